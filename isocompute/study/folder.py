"""The study's folder: its spec, what may change in it, and the state of every cell, told from files alone.

study.toml      the spec of the last run, as it was written
identity.json   what the points depend on; a spec that differs here is another study
runner.json     the process that runs the study now
easy/32x8-s0/   a cell: a run folder, see `isocompute.engines.base`
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from isocompute.engines.base import CHECKPOINT, ERROR, FINISHED, SPEED_ONLY, Cell
from isocompute.errors import InputError
from isocompute.runs import files
from isocompute.runs.writer import POINTS
from isocompute.study import remote
from isocompute.study.claim import RUNNING, STALE_SECONDS, claimed, holder_of, is_alive
from isocompute.study.spec import StudySpec, parse_spec
from isocompute.study.spec import cells as cells_of

__all__ = ["IDENTITY", "SPEC", "CellStatus", "State", "StudyFolder"]

SPEC = "study.toml"
IDENTITY = "identity.json"
RUNNER = "runner.json"
State = Literal["finished", "failed", "running", "stopped", "waiting"]
_TAIL = 1 << 16


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
        doing, instead = "the study is being run", "use --fork"
        with claimed(Path(self.address) / RUNNER, doing=doing, instead=instead):
            yield

    def adopt(self, spec: StudySpec, data: bytes) -> None:
        """Make this the study's spec, if what it has already computed still stands under it."""
        new = _identity(spec)
        if files.exists(self.at(IDENTITY)):
            old: dict[str, Any] = json.loads(files.read_bytes(self.at(IDENTITY)))
            self._refuse_moving(old, new)
            for table in _MAY_GROW:
                before = old.setdefault(table, {})  # studies begun before there were variants have none
                new[table] = {**before, **new[table]}
            known = {table: {name: new[table][name] for name in old[table]} for table in _MAY_GROW}
            changes = [change for change in _changes(old, {**new, **known}) if not change.startswith(_SPEED)]
            if changes:
                raise InputError(
                    f"{self.address}: the spec has changed under this study ({'; '.join(changes)}). Set it back, or "
                    "start a new study with --fork; only sets, variants, seeds, the grid, resources and what changes "
                    f"speed alone ({', '.join(SPEED_ONLY)}) may change."
                )
        self._write(IDENTITY, json.dumps(new, indent=1).encode() + b"\n")
        self._write(SPEC, data)

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
                    "move to other folders and all be run again. Set it back, or start a new study with --fork."
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
        """The state of every cell of the spec, or of these; with `points`, the last point of each too."""
        if cells is None:
            cells = cells_of(self.spec())
        if self.is_remote:
            there = remote.listing(self.address)
            ends = {name for cell in cells if (name := f"{cell.name}/{FINISHED}") in there}
            told = remote.read_all(self.address, ends)
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

    def running(self) -> bool:
        path = self._folder / RUNNING
        try:
            holder, age = holder_of(path.read_bytes()), time.time() - path.stat().st_mtime
        except FileNotFoundError:
            return False
        return holder is not None and is_alive(holder, age=age)


class _RemoteCell:
    """A cell's files at an fsspec address: one listing and the ends of the whole study, then only what is there."""

    def __init__(self, address: str, name: str, there: set[str], told: Mapping[str, bytes]) -> None:
        self._address, self._name, self._there, self._told = address, name, there, told

    def has(self, name: str) -> bool:
        return f"{self._name}/{name}" in self._there

    def tail(self, name: str) -> bytes:
        if name == FINISHED:
            return self._told.get(f"{self._name}/{name}", b"")
        return files.read_bytes(files.join(self._address, name))[-_TAIL:] if self.has(name) else b""

    def running(self) -> bool:
        return self.has(RUNNING) and remote.claim_age(files.join(self._address, RUNNING)) < STALE_SECONDS


def _status(cell: Cell, at: _LocalCell | _RemoteCell, points: bool) -> CellStatus:
    finished = at.has(FINISHED)
    last = None if finished and not points else _last_point(at.tail(POINTS))
    if finished:
        return CellStatus(cell, "finished", _spent(cell, at.tail(FINISHED)), last=last)
    done = _rollouts(cell, last)
    if at.running():
        return CellStatus(cell, "running", done, last=last)
    if at.has(ERROR):
        return CellStatus(cell, "failed", done, at.tail(ERROR).decode(errors="replace").strip(), last)
    begun = last is not None or at.has(CHECKPOINT)
    return CellStatus(cell, "stopped" if begun else "waiting", done, last=last)


def _last_point(tail: bytes) -> dict[str, Any] | None:
    """The last whole line of `points.jsonl`."""
    for line in reversed(tail.splitlines()):
        try:
            point = json.loads(line)
        except ValueError:
            continue
        if isinstance(point, dict):
            return point
    return None


def _spent(cell: Cell, finished: bytes) -> int:
    """Rollouts of a finished cell as its summary tells them, else those it was given."""
    try:
        return int(json.loads(finished)["rollouts"])
    except (ValueError, KeyError, TypeError):
        return cell.compute


def _rollouts(cell: Cell, last: Mapping[str, Any] | None) -> int:
    try:
        told = last and (last.get("rollouts") or last.get("step", 0) * cell.rollouts_per_update)
        return min(cell.compute, int(told or 0))
    except (TypeError, ValueError):
        return 0
