"""The study's folder: its spec, what may change in it, and the state of every cell, told from files alone.

study.toml      the spec of the last run, as it was written
identity.json   what the points depend on; a spec that differs here is another study
runner.json     the process that runs the study now
easy/32x8-s0/   a cell: a run folder, see `isocompute.core.recorder`
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from isocompute.core import files
from isocompute.core.cell import SPEED_ONLY, Cell
from isocompute.core.errors import InputError
from isocompute.core.recorder import CHECKPOINT, ERROR, FINISHED, POINTS, SETTINGS
from isocompute.sweep import remote
from isocompute.sweep.claim import RUNNING, STALE_SECONDS, claimed, holder_of, is_alive
from isocompute.sweep.spec import IDENTITY, RUNNER, SPEC, StudySpec, parse_spec
from isocompute.sweep.spec import cells as cells_of
from isocompute.sweep.summary import object_in

__all__ = ["CellStatus", "State", "StudyFolder"]

State = Literal["finished", "failed", "running", "stopped", "waiting"]
_TAIL = 1 << 16
_EARLY = ("ended", "diverged")
"""Keys of a summary that say why a cell ended before its last update."""
_ELSEWHERE = "another --out (`study run` has --fork for it)"
"""Where a study goes that cannot go on here; every command that runs one has --out."""


@dataclass(frozen=True)
class CellStatus:
    """How far a cell is."""

    cell: Cell
    state: State
    rollouts: int
    """Rollouts behind its last point; when it is finished, all that it made."""
    error: str | None = None
    """What went wrong and its last lines, of a failed cell."""
    last: Mapping[str, Any] | None = None
    """Its last point, where it was asked for."""
    settings: Mapping[str, Any] | None = None
    """Its `run.json`, where its last point was asked for; None before there is one."""
    summary: Mapping[str, Any] | None = None
    """Its `finished.json`, of a finished cell."""

    @property
    def total(self) -> int:
        """Rollouts that it will have made in the end: those it may make; of a finished cell, those it made."""
        return self.rollouts if self.state == "finished" else self.cell.compute

    @property
    def rollouts_per_problem(self) -> int | None:
        """n as its run has it, None where that changes on the way; as the spec has it before there is a run."""
        if self.settings is None:
            return self.cell.rollouts_per_problem
        return _whole(self.settings.get("rollouts_per_problem"))

    @property
    def update_steps(self) -> int:
        """M as its run has it, else as the spec; of a cell that ended early, the updates it made."""
        early = self.summary is not None and any(name in self.summary for name in _EARLY)
        made = _whole((self.last or {}).get("step")) if early else None
        planned = _whole((self.settings or {}).get("update_steps"))
        return next((known for known in (made, planned) if known is not None), self.cell.update_steps)


def _whole(value: Any) -> int | None:
    """A whole number that a file tells, else None."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


class StudyFolder:
    """A study on disk, or at any fsspec address."""

    def __init__(self, address: str | Path) -> None:
        self.address = str(address).rstrip("/") or "/"

    @property
    def is_remote(self) -> bool:
        """Whether files go through fsspec."""
        return files.is_remote(self.address)

    def at(self, name: str) -> str:
        """Address of something inside."""
        return files.join(self.address, name)

    def fork(self) -> StudyFolder:
        """This folder if it is free, else the first free of NAME-2, NAME-3, …"""
        folder, number = self, 1
        while files.exists(folder.address):
            number += 1
            folder = StudyFolder(f"{self.address}-{number}")
        return folder

    def create(self) -> None:
        """Make the folder; one that holds something else is refused, so that no foreign file is ever touched."""
        if files.exists(self.address) and not files.is_folder(self.address):
            raise InputError(f"{self.address}: there is a file of that name; give another --out.")
        if files.exists(self.address) and not files.exists(self.at(SPEC)):
            inside = {files.last_part(child) for child in files.children(self.address)} - {RUNNER, IDENTITY}
            if inside:
                raise InputError(f"{self.address}: not empty and not a study (no {SPEC} in it); give another --out.")
        if not self.is_remote:
            try:
                Path(self.address).mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise InputError(f"{self.address}: cannot be made ({error.strerror}); give another --out.") from error

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the study: a second runner would start the same cells."""
        if self.is_remote:
            with remote.claimed(self.at(RUNNER), what=f"{self.address}: the study", patience=0.0):
                yield
            return
        doing, instead = "the study is being run", f"give {_ELSEWHERE}"
        with claimed(Path(self.address) / RUNNER, doing=doing, instead=instead):
            yield

    def adopt(self, spec: StudySpec, data: bytes) -> None:
        """Make this the study's spec, if what it has already computed still stands under it."""
        new = _identity(spec)
        if files.exists(self.at(IDENTITY)):
            old = self._begun_with()
            self._refuse_moving(old, new)
            for table in _MAY_GROW:
                before = old.setdefault(table, {})  # studies begun before there were variants have none
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

    def _begun_with(self) -> dict[str, Any]:
        """What the points that are there depend on."""
        told = object_in(files.read_bytes(self.at(IDENTITY)))
        if told is None or not isinstance(told.get("problems"), dict):
            raise InputError(
                f"{self.at(IDENTITY)}: damaged, so nobody can say whether the cells are of this spec; put it back, or "
                f"give {_ELSEWHERE}."
            )
        return told

    def _refuse_moving(self, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        """A first variant or a name for the only set moves every cell: all would be run again, and what there is be
        taken for further seeds.
        """
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
        if self.is_remote:
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
        """The state of every cell of the spec, or of these; with `points`, the last point and settings of each too."""
        if cells is None:
            cells = cells_of(self.spec())
        if self.is_remote:
            there = remote.listing(self.address)
            small = (FINISHED, SETTINGS) if points else (FINISHED,)
            names = {f"{cell.name}/{name}" for cell in cells for name in small}
            told = remote.read_all(self.address, names & there)
            return [_status(cell, _RemoteCell(self.at(cell.name), cell.name, there, told), points) for cell in cells]
        top = Path(self.address)
        return [
            _status(cell, _LocalCell(folder), points) if folder.exists() else CellStatus(cell, "waiting", 0)
            for cell, folder in ((cell, top / cell.name) for cell in cells)
        ]


def _identity(spec: StudySpec) -> dict[str, Any]:
    """What a cell's points depend on, apart from its own Bp, n, seed and problem set."""
    whole = spec.model_dump(mode="json")
    kept = {key: whole[key] for key in ("engine", "recipe", "budget", "evaluation", "engine_options")}
    return {
        **kept,
        "problems": {table.get("set", ""): table for table in whole["problems"]},
        "variants": whole["variants"],
    }


_SPEED = tuple(f"engine_options.{name}: " for name in SPEED_ONLY)
_MAY_GROW = ("problems", "variants")
"""Tables by name: a study may get further ones, those it has stay as they are."""


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
    """A cell's files on a disk: looked at one by one, which costs microseconds."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def has(self, name: str) -> bool:
        return (self._folder / name).exists()

    def tail(self, name: str) -> bytes:
        try:
            with (self._folder / name).open("rb") as file:
                file.seek(max(0, file.seek(0, 2) - _TAIL))
                return file.read()
        except FileNotFoundError:
            return b""

    def settings(self) -> dict[str, Any] | None:
        return object_in(self._whole(SETTINGS))

    def summary(self) -> dict[str, Any] | None:
        return object_in(self._whole(FINISHED))

    def _whole(self, name: str) -> bytes:
        try:
            return (self._folder / name).read_bytes()
        except FileNotFoundError:
            return b""

    def running(self) -> bool:
        path = self._folder / RUNNING
        try:
            holder, age = holder_of(path.read_bytes()), time.time() - path.stat().st_mtime
        except FileNotFoundError:
            return False
        return holder is not None and is_alive(holder, age=age)


class _RemoteCell:
    """A cell's files at an fsspec address: one listing and the study's small files, then only what is there."""

    def __init__(self, address: str, name: str, there: set[str], told: Mapping[str, bytes]) -> None:
        self._address, self._name, self._there, self._told = address, name, there, told

    def has(self, name: str) -> bool:
        return f"{self._name}/{name}" in self._there

    def tail(self, name: str) -> bytes:
        return files.read_bytes(files.join(self._address, name))[-_TAIL:] if self.has(name) else b""

    def settings(self) -> dict[str, Any] | None:
        return object_in(self._told.get(f"{self._name}/{SETTINGS}", b""))

    def summary(self) -> dict[str, Any] | None:
        """One that is there and cannot be read for a moment tells nothing, and the cell is finished all the same."""
        told = self._told.get(f"{self._name}/{FINISHED}")
        if told is None:
            return {} if self.has(FINISHED) else None
        return object_in(told)

    def running(self) -> bool:
        return self.has(RUNNING) and remote.claim_age(files.join(self._address, RUNNING)) < STALE_SECONDS


def _status(cell: Cell, at: _LocalCell | _RemoteCell, points: bool) -> CellStatus:
    summary = at.summary()
    settings = at.settings() if points else None
    if summary is not None:
        last = _last_point(at.tail(POINTS)) if points else None
        spent = _spent(cell, summary)
        return CellStatus(cell, "finished", spent, last=last, settings=settings, summary=summary)
    last = _last_point(at.tail(POINTS))
    state, error = _unfinished(at, begun=last is not None)
    return CellStatus(cell, state, _rollouts(cell, last), error, last, settings)


def _unfinished(at: _LocalCell | _RemoteCell, *, begun: bool) -> tuple[State, str | None]:
    """State and error of a cell that is not finished."""
    if at.running():
        return "running", None
    if at.has(ERROR):
        return "failed", at.tail(ERROR).decode(errors="replace").strip()
    return "stopped" if begun or at.has(CHECKPOINT) else "waiting", None


def _last_point(tail: bytes) -> dict[str, Any] | None:
    """The last whole line of `points.jsonl`."""
    for line in reversed(tail.splitlines()):
        if (point := object_in(line)) is not None:
            return point
    return None


def _spent(cell: Cell, summary: Mapping[str, Any]) -> int:
    """Rollouts of a finished cell as its summary tells them, else those it was given."""
    told = _whole(summary.get("rollouts"))
    return cell.compute if told is None else told


def _rollouts(cell: Cell, last: Mapping[str, Any] | None) -> int:
    try:
        told = last and (last.get("rollouts") or last.get("step", 0) * cell.rollouts_per_update)
        return min(cell.compute, int(told or 0))
    except (TypeError, ValueError):
        return 0
