"""The study's folder: its spec, which changes to the spec are allowed, and the state of each cell from its files.

The folder has these files:

    study.toml      the spec of the last run, as it was written
    identity.json   everything that the points depend on; a spec that differs here is another study
    runner.json     the process that runs the study now
    easy/32x8-s0/   a cell: a run folder, see `isocompute.core.recorder`
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from isocompute.core import files
from isocompute.core.allocation import SPEED_ONLY, Cell
from isocompute.core.errors import InputError
from isocompute.core.recipe import current_names
from isocompute.core.recorder import CHECKPOINT, ERROR, FINISHED, POINTS, RUNNING, SETTINGS
from isocompute.sweep import remote
from isocompute.sweep.execute import Outcome, json_object
from isocompute.sweep.lock import is_locked, locked_folder
from isocompute.sweep.spec import IDENTITY, RUNNER, SPEC, StudySpec, parse_spec
from isocompute.sweep.spec import cells as cells_of

State = Literal["finished", "failed", "running", "stopped", "waiting"]
_TAIL = 1 << 16
_EARLY = ("ended", "diverged")
"""Keys of a summary with the reason why a cell ended before its last update."""
_ELSEWHERE = "another --out (`study run` has --fork for it)"
_SPEED = tuple(f"engine_options.{name}: " for name in SPEED_ONLY)
_MAY_GROW = ("problems", "variants")
"""Tables by name: a study may add new ones but not change existing ones."""
_KNOWN = 0.01
"""Share of the remaining work after which the time left is estimated."""


@dataclass(frozen=True)
class CellStatus:
    """The progress of a cell, from its files."""

    cell: Cell
    state: State
    rollouts: int
    """Rollouts at its last point; all of them if it is finished."""
    error: str | None = None
    """The content of `error.txt`, of a failed cell."""
    last: Mapping[str, Any] | None = None
    """Its last point, if `status` was asked for `points`."""
    settings: Mapping[str, Any] | None = None
    """Its `run.json`, if `status` was asked for `points` and the file exists."""
    summary: Mapping[str, Any] | None = None
    """Its `finished.json`, if the cell is finished."""

    @property
    def total(self) -> int:
        """The rollouts that it made if it is finished, else its budget."""
        return self.rollouts if self.state == "finished" else self.cell.compute

    @property
    def rollouts_per_problem(self) -> int | None:
        """n of its run, else of the spec; None if it changes during the run, as in some studies of 0.1."""
        if self.settings is None:
            return self.cell.rollouts_per_problem
        return _whole(self.settings.get("rollouts_per_problem"))

    @property
    def update_steps(self) -> int:
        """The updates made if it ended early, else M of its run, else of the spec."""
        early = self.summary is not None and any(name in self.summary for name in _EARLY)
        made = _whole((self.last or {}).get("step")) if early else None
        planned = _whole((self.settings or {}).get("update_steps"))
        return next((known for known in (made, planned) if known is not None), self.cell.update_steps)

    def to_json(self) -> dict[str, Any]:
        """An entry of `runs` in `study runs --json`."""
        return {
            "run": self.cell.name,
            "set": self.cell.problems.get("set"),
            "problems_per_batch": self.cell.problems_per_batch,
            "rollouts_per_problem": self.rollouts_per_problem,
            "update_steps": self.update_steps,
            "seed": self.cell.seed,
            "compute": self.total,
            "state": self.state,
            "rollouts": self.rollouts,
            "error": self.error,
            "last": self.last,
        }


STATES: tuple[State, ...] = ("finished", "running", "stopped", "waiting", "failed")


def status_to_json(folder: str, cells: Sequence[CellStatus]) -> dict[str, Any]:
    """The keys of `study status --json`."""
    counts = Counter(cell.state for cell in cells)
    return {
        "folder": folder,
        "cells": len(cells),
        **{state: counts[state] for state in STATES},
        "rollouts": sum(cell.rollouts for cell in cells),
        "total_rollouts": sum(cell.total for cell in cells),
        "errors": [{"cell": c.cell.name, "error": c.error or ""} for c in cells if c.state == "failed"],
    }


def _whole(value: Any) -> int | None:
    """The value if it is a whole number, else None."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


class StudyFolder:
    """A study's folder on disk or at an fsspec address."""

    def __init__(self, address: str | Path) -> None:
        self.address = str(address).rstrip("/") or "/"

    def at(self, name: str) -> str:
        """The address of a file or cell in the folder."""
        return files.join(self.address, name)

    def fork(self) -> StudyFolder:
        """This folder if it does not exist, else the first of NAME-2, NAME-3, … that does not."""
        folder, number = self, 1
        while files.exists(folder.address):
            number += 1
            folder = StudyFolder(f"{self.address}-{number}")
        return folder

    def create(self) -> None:
        """Make the folder; refuse one with other content, so that foreign files are never touched."""
        if files.exists(self.address) and not files.is_folder(self.address):
            raise InputError(f"{self.address}: there is a file of that name; give another --out.")
        if files.exists(self.address) and not files.exists(self.at(SPEC)):
            inside = {files.last_part(child) for child in files.children(self.address)} - {RUNNER, IDENTITY}
            if inside:
                raise InputError(f"{self.address}: not empty and not a study (no {SPEC} in it); give another --out.")
        if not files.is_remote(self.address):
            try:
                Path(self.address).mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise InputError(f"{self.address}: cannot be made ({error.strerror}); give another --out.") from error

    def locked(self) -> AbstractContextManager[None]:
        """Lock the study against a second runner, which would start the same cells."""
        return locked_folder(self.address, RUNNER, doing="the study is being run", instead=f"give {_ELSEWHERE}")

    def adopt(self, spec: StudySpec, data: bytes) -> None:
        """Store this spec, unless existing points depend on something that it changes."""
        new = _identity(spec)
        if files.exists(self.at(IDENTITY)):
            old = self._stored_identity()
            self._refuse_moving(old, new)
            for table in _MAY_GROW:
                before = old.setdefault(table, {})  # older studies have no variants
                new[table] = {**before, **new[table]}
            known = {table: {name: new[table][name] for name in old[table]} for table in _MAY_GROW}
            changes = [change for change in _changes(old, {**new, **known}) if not change.startswith(_SPEED)]
            if changes:
                raise InputError(
                    f"{self.address}: the spec has changed under this study ({'; '.join(changes)}). Set it back, or "
                    f"give {_ELSEWHERE}; only sets, variants, seeds, the grid, resources and what changes "
                    f"speed alone ({', '.join(SPEED_ONLY)}) may change."
                )
        self._write(IDENTITY, json.dumps(new, indent=1).encode() + b"\n")
        self._write(SPEC, data)

    def _stored_identity(self) -> dict[str, Any]:
        """The stored `identity.json`: what the existing points depend on."""
        identity = json_object(files.read_bytes(self.at(IDENTITY)))
        if identity is None or not isinstance(identity.get("problems"), dict):
            raise InputError(
                f"{self.at(IDENTITY)}: damaged, so it is unknown whether the cells are of this spec; put it back, or "
                f"give {_ELSEWHERE}."
            )
        return _with_current_names(identity)

    def _refuse_moving(self, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        """Refuse a first variant, or a name for the only set, since both move every cell to another folder."""
        for what, before, after in (
            ("variants", bool(old.get("variants")), bool(new["variants"])),
            ("a name of its problem set (`set`)", "" not in old["problems"], "" not in new["problems"]),
        ):
            if before != after:
                raise InputError(
                    f"{self.address}: this study was begun {'with' if before else 'without'} {what}; its cells would "
                    f"move to other folders and all be run again. Set it back, or give {_ELSEWHERE}."
                )

    def _write(self, name: str, data: bytes) -> None:
        if files.is_remote(self.address):
            remote.write(self.at(name), data)
        else:
            path = Path(self.address) / name
            if not path.exists() or path.read_bytes() != data:
                files.write_atomically(path, data)

    def spec(self) -> StudySpec:
        """The spec of the last run."""
        if not files.exists(self.at(SPEC)):
            raise InputError(f"{self.address}: not a study (no {SPEC} in it).")
        return parse_spec(files.read_bytes(self.at(SPEC)), name=self.at(SPEC))

    def status(self, cells: list[Cell] | None = None, *, points: bool = False) -> list[CellStatus]:
        """The state of each cell of the spec, or of `cells`; with `points`, also the last point and settings."""
        if cells is None:
            cells = cells_of(self.spec())
        if files.is_remote(self.address):
            there = remote.listing(self.address)
            small = (FINISHED, SETTINGS) if points else (FINISHED,)
            data = remote.read_all(self.address, {f"{cell.name}/{name}" for cell in cells for name in small} & there)
            return [_status(cell, _RemoteCell(self.address, cell.name, there, data), points) for cell in cells]
        folders = {cell.name: Path(self.address) / cell.name for cell in cells}
        return [
            _status(cell, _LocalCell(folders[cell.name]), points)
            if folders[cell.name].exists()
            else CellStatus(cell, "waiting", 0)
            for cell in cells
        ]


def _with_current_names(tables: dict[str, Any]) -> dict[str, Any]:
    """The tables with current field names in recipes and variants; studies of 0.1 have older names."""
    for table in (tables, *tables.get("variants", {}).values()):
        table["recipe"] = current_names(table.get("recipe", {}))
    return tables


def _identity(spec: StudySpec) -> dict[str, Any]:
    """Everything a cell's points depend on, apart from its own Bp, n, seed and problem set."""
    tables = _with_current_names(spec.model_dump(mode="json"))
    return {
        **{name: tables[name] for name in ("engine", "recipe", "budget", "evaluation", "engine_options")},
        "problems": {table.get("set", ""): table for table in tables["problems"]},
        "variants": tables["variants"],
    }


def _changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """One line for each field that differs: `recipe.kl_coef: 0.001 → 0.01`."""
    before, after = _flat(old), _flat(new)
    return [
        f"{key}: {before.get(key, 'absent')} → {after.get(key, 'absent')}"
        for key in sorted({**before, **after})
        if before.get(key) != after.get(key)
    ]


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    out: dict[str, str] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            out |= _flat(value, f"{prefix}{key}." if key else prefix)
        else:
            out[f"{prefix}{key}"] = json.dumps(value)
    return out


class _LocalCell:
    """A cell's files on a local disk, read one by one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def has(self, name: str) -> bool:
        return (self._folder / name).exists()

    def read(self, name: str, *, tail: int | None = None) -> bytes:
        """The content of a file, or its last `tail` bytes; empty if there is none."""
        try:
            with (self._folder / name).open("rb") as file:
                if tail is not None:
                    file.seek(max(0, file.seek(0, 2) - tail))
                return file.read()
        except FileNotFoundError:
            return b""

    def is_running(self) -> bool:
        return is_locked(str(self._folder / RUNNING))


class _RemoteCell:
    """A cell's files at an fsspec address, where the study's listing and small files are already read."""

    def __init__(self, address: str, name: str, there: set[str], data: Mapping[str, bytes]) -> None:
        self._address, self._name, self._there, self._data = address, name, there, data

    def has(self, name: str) -> bool:
        return f"{self._name}/{name}" in self._there

    def read(self, name: str, *, tail: int | None = None) -> bytes:
        """The content of a file, or its last `tail` bytes; empty if there is none."""
        if tail is not None:
            return (
                files.read_bytes(files.join(self._address, f"{self._name}/{name}"))[-tail:] if self.has(name) else b""
            )
        # A summary that exists but cannot be read for a moment still means that the cell is finished.
        unread = b"{}" if name == FINISHED and self.has(name) else b""
        return self._data.get(f"{self._name}/{name}", unread)

    def is_running(self) -> bool:
        return self.has(RUNNING) and is_locked(files.join(self._address, f"{self._name}/{RUNNING}"))


def _status(cell: Cell, at: _LocalCell | _RemoteCell, points: bool) -> CellStatus:
    summary = json_object(at.read(FINISHED))
    settings = json_object(at.read(SETTINGS)) if points else None
    last = _last_point(at.read(POINTS, tail=_TAIL)) if points or summary is None else None
    if summary is not None:
        spent = _whole(summary.get("rollouts"))
        spent = cell.compute if spent is None else spent
        return CellStatus(cell, "finished", spent, last=last, settings=settings, summary=summary)
    error = None
    state: State
    if at.is_running():
        state = "running"
    elif at.has(ERROR):
        state, error = "failed", at.read(ERROR, tail=_TAIL).decode(errors="replace").strip()
    else:
        state = "stopped" if last is not None or at.has(CHECKPOINT) else "waiting"
    return CellStatus(cell, state, _rollouts(cell, last), error, last, settings)


def _last_point(tail: bytes) -> dict[str, Any] | None:
    """The last complete line of `points.jsonl`."""
    return next((point for line in reversed(tail.splitlines()) if (point := json_object(line)) is not None), None)


def _rollouts(cell: Cell, last: Mapping[str, Any] | None) -> int:
    """Rollouts at the last point, at most the budget; 0 if the point has no usable number."""
    try:
        made = last and (last.get("rollouts") or last.get("step", 0) * cell.rollouts_per_update)
        return min(cell.compute, int(made or 0))
    except (TypeError, ValueError):
        return 0


# Progress and result of a run, the same for every runner


@dataclass(frozen=True)
class Progress:
    """The progress of a study while it runs."""

    cells: int
    finished: int
    failed: int
    running: int
    rollouts: int
    """Rollouts made, including those of earlier runs of the study."""
    total_rollouts: int
    new_rollouts: int
    seconds: float
    stopping: bool = False
    failure: Outcome | None = None
    """The cell that has just failed, if any."""

    @property
    def rate(self) -> float:
        """Rollouts per second since the runner started."""
        return self.new_rollouts / self.seconds if self.seconds > 0 else 0.0

    @property
    def seconds_left(self) -> float | None:
        """Time left at the rate so far; None at first, when start-up dominates."""
        left = self.total_rollouts - self.rollouts
        known = self.new_rollouts > _KNOWN * (left + self.new_rollouts)
        return left / self.rate if known else None


Report = Callable[[Progress], None]


@dataclass(frozen=True)
class Result:
    """How a study ended."""

    folder: str
    cells: int
    finished: int
    skipped: int
    """Cells that were finished before this run."""
    failed: dict[str, str]
    stopped: bool
    """Whether a stop was requested and left unfinished cells."""
    interrupted: bool
    """Whether a stop was requested, even if the cells had ended by then."""
    unwritable: str | None
    seconds: float
    new_rollouts: int


@dataclass
class Tally:
    """Counts outcomes of cells and reports progress."""

    statuses: list[CellStatus]
    report: Report
    rollouts: Callable[[], int]
    """Returns the rollouts made by this run so far."""
    failed: dict[str, str] = field(default_factory=dict)
    unwritable: str | None = None
    finished: int = 0
    seconds: Callable[[], float] = field(init=False)

    def __post_init__(self) -> None:
        start = time.monotonic()
        self.seconds = lambda: time.monotonic() - start
        self.skipped = sum(status.state == "finished" for status in self.statuses)
        self._before = sum(status.rollouts for status in self.statuses)
        self._total = sum(status.total for status in self.statuses)

    def add(self, outcome: Outcome) -> None:
        """Count the outcome of a cell."""
        if outcome.state == "finished":
            self.finished += 1
        elif outcome.state == "failed":
            self.failed[outcome.name] = outcome.error
        elif outcome.state == "unwritable":
            self.unwritable = self.unwritable or outcome.error
        if outcome.state == "failed":
            self.update(failure=outcome)

    def update(self, *, running: int = 0, stopping: bool = False, failure: Outcome | None = None) -> None:
        """Report the progress of the study."""
        new = self.rollouts()
        self.report(
            Progress(
                cells=len(self.statuses),
                finished=self.skipped + self.finished,
                failed=len(self.failed),
                running=running,
                rollouts=min(self._total, self._before + new),
                total_rollouts=self._total,
                new_rollouts=new,
                seconds=self.seconds(),
                stopping=stopping,
                failure=failure,
            )
        )

    def result(self, *, folder: str, stopping: bool) -> Result:
        """The result of the run; `stopping`: the cells were asked to stop, by the user or after a write error."""
        interrupted = stopping and self.unwritable is None
        ended = self.skipped + self.finished + len(self.failed)
        return Result(
            folder=folder,
            cells=len(self.statuses),
            finished=self.skipped + self.finished,
            skipped=self.skipped,
            failed=dict(sorted(self.failed.items())),
            stopped=interrupted and ended < len(self.statuses),
            interrupted=interrupted,
            unwritable=self.unwritable,
            seconds=self.seconds(),
            new_rollouts=self.rollouts(),
        )


def longest_first(statuses: list[CellStatus]) -> list[Cell]:
    """The unfinished cells, longest first: by M · Bp, then by M.

    All cells have the same budget, but each step and each problem in a batch adds time.
    """
    left = [status.cell for status in statuses if status.state != "finished"]
    return sorted(left, key=lambda c: (c.update_steps * c.problems_per_batch, c.update_steps), reverse=True)
