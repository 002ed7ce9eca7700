"""Running a single cell of the simulator."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from isocompute.core.allocation import Cell
from isocompute.sim import SimEngine

SMALL = {"size": 300, "validation": 100, "out_of_distribution": 50, "features": 12, "responses": 8}


class Patient:
    """A runner that never stops a cell."""

    def __init__(self) -> None:
        self.rollouts = 0

    def stopping(self) -> bool:
        return False

    def advanced(self, rollouts: int) -> None:
        self.rollouts += rollouts


class StopAfter(Patient):
    """A runner that asks to stop at the n-th look."""

    def __init__(self, looks: int) -> None:
        super().__init__()
        self.looks = looks

    def stopping(self) -> bool:
        self.looks -= 1
        return self.looks < 0


def cell(
    *,
    bp: int = 16,
    n: int = 8,
    steps: int = 300,
    seed: int = 0,
    problems: dict[str, Any] | None = None,
    recipe: dict[str, Any] | None = None,
    evaluation: dict[str, Any] | None = None,
) -> Cell:
    return Cell(
        "cell",
        bp,
        n,
        steps,
        seed,
        {**SMALL, **(problems or {})},
        recipe or {"name": "grpo"},
        evaluation or {"points": 12},
    )


def run(folder: Path, spec: Cell, control: Patient | None = None) -> list[dict[str, Any]]:
    engine = SimEngine()
    engine.check(spec)
    engine.run(spec, folder, control or Patient())
    return [json.loads(line) for line in (folder / "points.jsonl").read_text().splitlines()]
