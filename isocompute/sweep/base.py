"""What a study asks of an engine, and how a cell's folder survives a kill at any moment.

A cell is one run of a study. Its folder is a run folder (`run.json`, `points.jsonl`) plus `checkpoint.npz` while it is
under way and `finished.json` when it is done. A checkpoint remembers how long `points.jsonl` was: on resuming, what was
appended after it is cut off and made again, so no point is lost and none stands twice. A file that is shorter than that
has lost what nobody can make again, and is refused.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self, runtime_checkable
from zipfile import BadZipFile

import numpy as np

from isocompute.core import files
from isocompute.core.allocation import Spending
from isocompute.core.errors import InputError
from isocompute.core.recipe import sampled_per_problem
from isocompute.core.run_settings import RunSettings
from isocompute.data.writer import POINTS, RunWriter
from isocompute.sweep.holder import Holding

__all__ = [
    "CHECKPOINT",
    "ERROR",
    "FINISHED",
    "PASS_RATES",
    "SPEED_ONLY",
    "Cell",
    "Control",
    "Engine",
    "Measures",
    "MeasuringEngine",
    "PackingEngine",
    "Recorder",
    "appended",
    "metric_names",
]

CHECKPOINT = "checkpoint.npz"
FINISHED = "finished.json"
ERROR = "error.txt"
PASS_RATES = "pass_rates.jsonl"
_APPENDED = {POINTS: "points_bytes", PASS_RATES: "pass_rates_bytes"}
"""Files that only grow, and where a checkpoint keeps how long they were."""
_META = "__meta__"
SPEED_ONLY = ("micro_batch", "sample_batch", "threads", "together")
"""Engine options that change speed and memory alone: what ran out of memory goes on with others."""


@dataclass(frozen=True)
class Cell(Spending):
    """One run of a study as plain data: the allocation, and the tables of the study's spec that apply to it."""

    name: str
    """Folder of the run inside the study, such as `easy/32x8-s0`."""
    problems_per_batch: int
    rollouts_per_problem: int
    update_steps: int
    seed: int
    problems: Mapping[str, Any] = field(default_factory=dict)
    recipe: Mapping[str, Any] = field(default_factory=dict)
    evaluation: Mapping[str, Any] = field(default_factory=dict)
    engine: Mapping[str, Any] = field(default_factory=dict)

    @property
    def rollouts_per_update(self) -> int:
        """What an update costs: Bp · n; with a decoupled baseline, all rollouts that estimate it."""
        n = sampled_per_problem(self.recipe, rollouts_per_problem=self.rollouts_per_problem)
        return self.problems_per_batch * n

    @property
    def compute(self) -> int:
        """C, in rollouts: all that are sampled."""
        return self.rollouts_per_update * self.update_steps


class Control(Protocol):
    """How a running cell talks to its runner."""

    def stopping(self) -> bool:
        """Whether the cell should write a checkpoint and return."""
        ...

    def advanced(self, rollouts: int) -> None:
        """So many more rollouts are done."""
        ...


class Engine(Protocol):
    """Makes the run of a cell. Engines are stateless: all state is in the cell's folder."""

    def check(self, cell: Cell) -> None:
        """Raise `InputError` for a cell this engine cannot run, before anything is started."""
        ...

    def run(self, cell: Cell, folder: Path, control: Control) -> bool:
        """Run the cell, from its checkpoint where there is one; False if it was asked to stop before the end."""
        ...


@runtime_checkable
class PackingEngine(Engine, Protocol):
    """An engine that runs some cells better at the same time, in one process, than one after another."""

    def packs(self, cells: Sequence[Cell]) -> list[list[Cell]]:
        """The cells, those together that one process should run at the same time."""
        ...

    def run_pack(self, jobs: Iterable[tuple[Cell, Path, Control]]) -> Iterator[tuple[Cell, bool | Exception]]:
        """Run cells in their folders; tells of each, as it ends, what `run` would return or raise.

        A job is taken when there is room for it; the caller gives none while its cells are asked to stop.
        """
        ...


@dataclass(frozen=True)
class Measures:
    """What the points of a cell will hold."""

    metrics: frozenset[str]
    units: frozenset[str]
    """Of compute, in which the points can be counted."""


@runtime_checkable
class MeasuringEngine(Engine, Protocol):
    """An engine that knows what a cell's points will hold before it has run."""

    def measures(self, cell: Cell) -> Measures:
        """Every metric and unit of the points."""
        ...


def metric_names(ks: Iterable[int], prefixes: Iterable[str]) -> set[str]:
    """avg@k, best@k and worst@k of some problem sets, with their errors."""
    plain = [f"{prefix}{name}@{k}" for prefix in prefixes for name in ("avg", "best", "worst") for k in ks]
    return {*plain, *(f"{name}/error" for name in plain)}


class Recorder:
    """Points and checkpoint of one cell. Where another process has taken its claimed folder over, nothing is written
    any more: every method that writes raises `LostError`.
    """

    def __init__(
        self, folder: Path, settings: RunSettings, *, on_point: Callable[[Mapping[str, Any]], None] | None = None
    ) -> None:
        self.folder = folder
        self._settings, self._on_point = settings, on_point
        self._writer: RunWriter | None = None
        self._holding = Holding(folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def resume(self) -> tuple[dict[str, np.ndarray], dict[str, Any]] | None:
        """Open the folder; the last checkpoint's arrays and meta, or None to start from the beginning."""
        self.check_holding()
        for torn in self.folder.glob(f".{CHECKPOINT}.*"):  # of a process that was killed while it wrote
            torn.unlink(missing_ok=True)
        state = self.last_checkpoint()
        lengths = appended(state[1] if state else {})
        for key in _APPENDED.values():
            if state:
                state[1].pop(key, None)
        for name, length in lengths.items():
            _refuse_shorter(self.folder / name, length)
        for name, length in lengths.items():
            if (self.folder / name).exists():
                with (self.folder / name).open("r+b") as file:
                    file.truncate(length)
        self._writer = RunWriter(self.folder, self._settings)
        return state

    def check_holding(self) -> None:
        """Raise `LostError` where the folder is another process's by now."""
        self._holding.check()

    def last_checkpoint(self) -> tuple[dict[str, np.ndarray], dict[str, Any]] | None:
        """Arrays and meta of the last checkpoint, where there is one."""
        path = self.folder / CHECKPOINT
        if not path.exists():
            return None
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as data:
                arrays = {name: data[name] for name in data.files if name != _META}
                meta: dict[str, Any] = json.loads(bytes(data[_META]).decode())
        except (BadZipFile, EOFError, KeyError, OSError, ValueError) as error:
            raise InputError(f"{path}: damaged ({error}); remove the run's folder to start it again.") from error
        return arrays, meta

    def append(self, point: dict[str, Any]) -> None:
        """Add an evaluation."""
        assert self._writer is not None, "resume() opens the folder"
        self.check_holding()
        self._writer.append(point)
        if self._on_point is not None:
            self._on_point(point)

    def append_rates(self, row: Mapping[str, Any]) -> None:
        """Keep per-problem counts of an evaluation (docs/runs.md)."""
        self.check_holding()
        with (self.folder / PASS_RATES).open("ab") as file:
            file.write(json.dumps(row).encode() + b"\n")

    def checkpoint(self, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> None:
        """Replace the checkpoint by this state, whole or not at all."""
        paths = {key: self.folder / name for name, key in _APPENDED.items()}
        lengths = {key: path.stat().st_size for key, path in paths.items() if path.exists()}
        text = json.dumps({**meta, **lengths}).encode()
        buffer = io.BytesIO()
        named: dict[str, Any] = {**arrays, _META: np.frombuffer(text, dtype=np.uint8)}
        np.savez(buffer, **named)
        self.check_holding()
        files.write_atomically(self.folder / CHECKPOINT, buffer.getvalue())

    def finish(self, summary: Mapping[str, Any] | None = None) -> None:
        """Mark the cell as done and drop its checkpoint."""
        if self._writer is not None:
            self._writer.close()
        self.check_holding()
        files.write_atomically(self.folder / FINISHED, json.dumps(dict(summary or {})).encode() + b"\n")
        (self.folder / CHECKPOINT).unlink(missing_ok=True)

    def close(self) -> None:
        """Close without finishing."""
        if self._writer is not None:
            self._writer.close()


def appended(meta: Mapping[str, Any]) -> dict[str, int]:
    """How long the files that only grow were when a checkpoint was written, of which this is the meta."""
    return {name: int(meta.get(key, 0)) for name, key in _APPENDED.items()}


def _refuse_shorter(path: Path, length: int) -> None:
    """A file that only grows has at least what its checkpoint counts."""
    there = path.stat().st_size if path.exists() else 0
    if there < length:
        raise InputError(
            f"{path}: {f'has {there:,} bytes' if path.exists() else 'is gone'}, {CHECKPOINT} counts {length:,}: lines "
            "are lost; put the file back, or remove the run's folder to start it again."
        )
