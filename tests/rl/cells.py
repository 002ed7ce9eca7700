"""Small cells of the language-model engine, run, stopped and read back."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from isocompute.core.allocation import Cell
from isocompute.rl import loop
from isocompute.rl.engine import LmEngine
from isocompute.rl.loop import Training
from isocompute.rl.setup import set_up
from isocompute.rl.tasks import ChainGrader

CLOCK = {"seconds", "rollouts_per_second", "tokens_per_second"}
"""What differs from one run to the next."""
TABLES: dict[str, dict[str, Any]] = {
    "problems": {"source": "chain:easy", "size": 24, "validation": 12},
    "recipe": {"name": "isocompute-easy", "warmup_steps": 0},
    "evaluation": {"points": 3, "samples": 4, "k": [1, 4]},
    "engine": {"device": "cpu", "threads": 1, "save_model": True},
}


def make_cell(**changes: Any) -> Cell:
    """8 problems × 4 rollouts × 4 updates of the built-in model; tables are merged field by field."""
    fields: dict[str, Any] = {
        "name": "run",
        "problems_per_batch": 8,
        "rollouts_per_problem": 4,
        "update_steps": 4,
        "seed": 0,
        **TABLES,
    }
    for key, value in changes.items():
        fields[key] = {**fields[key], **value} if isinstance(value, dict) else value
    return Cell(**fields)


class Control:
    """Stops once so many rollouts are reported; never by default."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.stop_after, self.rollouts = stop_after, 0

    def stopping(self) -> bool:
        return self.stop_after is not None and self.rollouts >= self.stop_after

    def advanced(self, rollouts: int) -> None:
        self.rollouts += rollouts


def run(cell: Cell, folder: Path, *, stops: tuple[int, ...] = ()) -> Path:
    """Run a cell to its end, stopped on the way after so many rollouts of each leg."""
    folder.mkdir(parents=True, exist_ok=True)
    LmEngine().check(cell)
    for after in stops:
        assert not LmEngine().run(cell, folder, Control(after))
        assert (folder / "checkpoint.npz").exists()
    assert LmEngine().run(cell, folder, Control())
    return folder


def make_training(**changes: Any) -> Training:
    """The state of a cell, to be moved by hand."""
    return Training(set_up(make_cell(**changes)))


def checkpoint_every_update(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs write a checkpoint after each update, whatever it costs."""
    monkeypatch.setattr(loop, "_CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(loop, "_CHECKPOINT_SHARE", math.inf)


def count_graded(monkeypatch: pytest.MonkeyPatch, *, problems: int) -> list[tuple[int, int]]:
    """Responses and tokens of every group that the grader of a task of so many problems sees from now on."""
    seen: list[tuple[int, int]] = []
    inner = ChainGrader.__call__

    def counting(
        self: ChainGrader, problem: int, responses: Sequence[Sequence[int]], stopped: Sequence[bool]
    ) -> list[float]:
        if len(self.answers) == problems:
            seen.append((len(responses), sum(map(len, responses))))
        return inner(self, problem, responses, stopped)

    monkeypatch.setattr(ChainGrader, "__call__", counting)
    return seen


def points(folder: Path) -> list[dict[str, Any]]:
    """The evaluations, without the clock."""
    rows = [json.loads(line) for line in (folder / "points.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if key not in CLOCK} for row in rows]


def rates(folder: Path) -> list[dict[str, Any]]:
    """Per-problem counts."""
    return [json.loads(line) for line in (folder / "pass_rates.jsonl").read_text().splitlines()]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """Of the trained model."""
    return load_file(folder / "model" / "model.safetensors")


def distance(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    """Largest difference of two sets of weights."""
    assert a.keys() == b.keys()
    return max(float((a[name].double() - b[name].double()).abs().max()) for name in a)
