"""Writes a run folder during training: settings, points, pass rates and checkpoints.

A run folder has `run.json` and `points.jsonl` (append-only, one evaluation per line), `checkpoint.npz` during the run
and `finished.json` at its end. A checkpoint stores the lengths of the append-only files. Resuming truncates the files
to these lengths and repeats the rest, so no point is lost or doubled. A file shorter than its stored length has lost
points, and is refused.

A lock file names the process that writes, by host, process id and start time (`isocompute.sweep.lock` takes and
refreshes it). If the host sleeps for longer than a lock lasts, another process may take the folder over. So every
write first checks that the lock still names this process.

Runs are also written on machines without polars, so this module does not import it.
"""

from __future__ import annotations

import errno
import json
import math
import os
import socket
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, Self
from zipfile import BadZipFile

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, field_validator

from isocompute.core import files
from isocompute.core.errors import InputError
from isocompute.core.recipe import current_names

RUNNING = "running.json"
"""The lock of a run, in its folder."""


@dataclass(frozen=True)
class Owner:
    """A process that holds a lock. No later process of its host has the same id and start time."""

    host: str
    pid: int
    started: str


class LostError(OSError):
    """Another process has taken over this process's lock; an `OSError`, like other failures to write a folder."""

    def __init__(self, path: str | Path, owner: Owner | None) -> None:
        if owner is None:
            why = "its lock is gone: another process took it over and ended, or somebody removed it"
        else:
            why = f"taken over by process {owner.pid} on {owner.host} while this one was silent"
        super().__init__(errno.ESTALE, why, str(path))


def process_start(pid: int) -> str | None:
    """Start time of a process in ticks since boot, which do not depend on the clock; None if it is dead.

    Empty on systems without /proc, which identify a process by its id alone.
    """
    try:
        state, *_, start = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:20]
    except OSError:
        if Path("/proc/self/stat").exists():
            return None
    else:
        return None if state == "Z" else start
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return ""


@cache
def _owner(pid: int) -> Owner:
    return Owner(socket.gethostname(), pid, process_start(pid) or "")


def this_process() -> Owner:
    """This process as an owner of locks."""
    return _owner(os.getpid())


def parse_owner(data: bytes) -> Owner | None:
    """The process that a lock file names; None for an empty or torn one."""
    try:
        table = json.loads(data)
        return Owner(table["host"], table["pid"], table["started"])
    except (ValueError, TypeError, KeyError):
        return None


def read_owner(path: Path) -> Owner | None:
    """The process named by the lock file at a path; None if there is no such file."""
    try:
        return parse_owner(path.read_bytes())
    except FileNotFoundError:
        return None


class LockGuard:
    """Checks that a folder which this process locked is still its own; a folder without a lock always is."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / RUNNING
        self._locked = read_owner(self._path) == this_process()

    def is_ours(self) -> bool:
        """Whether no other process has the folder."""
        return not self._locked or read_owner(self._path) == this_process()

    def check(self) -> None:
        """Raise `LostError` if another process has the folder, which must then not be written."""
        if self._locked and (owner := read_owner(self._path)) != this_process():
            raise LostError(self._path, owner)


SETTINGS = "run.json"
POINTS = "points.jsonl"
PASS_RATES = "pass_rates.jsonl"
SAMPLES = "samples.jsonl"
CHECKPOINT = "checkpoint.npz"
FINISHED = "finished.json"
ERROR = "error.txt"
_APPENDED = {POINTS: "points_bytes", PASS_RATES: "pass_rates_bytes", SAMPLES: "samples_bytes"}
"""Append-only files, and the checkpoint's key for the length of each."""
_META = "__meta__"

_NOT_COMPARED = {
    *("problems_per_batch", "rollouts_per_problem", "update_steps", "seed", "gpus", "versions"),
    *("device", "micro_batch", "sample_batch", "rollout", "threads", "together", "workers"),
    *("host", "hostname", "user", "pid", "date", "time", "timestamp", "created", "started", "finished"),
}
"""Keys of `run.json` for a run's allocation and seed, and for where, when and how fast it ran."""


class RunSettings(BaseModel):
    """`run.json`: how a run was made. Unknown values are None; further keys are kept as they are."""

    model_config = ConfigDict(extra="allow")

    problems_per_batch: int | None = Field(default=None, ge=1, description="Bp: problems in a batch")
    rollouts_per_problem: int | None = Field(default=None, ge=1, description="n: rollouts of each problem")
    update_steps: int | None = Field(default=None, ge=1, description="M: updates planned")
    seed: int | None = Field(default=None, description="seed of the run; runs that differ only in it are repetitions")
    gpus: int | None = Field(default=None, ge=1, description="accelerators, to count GPU-hours from seconds")
    engine: str | None = Field(default=None, description="what made the run: sim, lm, or a trainer's name")
    model: str | None = Field(default=None, description="base model")
    problems: str | None = Field(default=None, description="problem set")
    recipe: dict[str, Any] | None = Field(default=None, description="the recipe's fields")
    versions: dict[str, str] | None = Field(default=None, description="software that made the run")

    @property
    def compared(self) -> dict[str, Any]:
        """All settings but allocation, seed, machine and time: runs that agree in these share a recipe."""
        return self.model_dump(exclude=_NOT_COMPARED, exclude_none=True)

    def filled(self, **defaults: int | None) -> RunSettings:
        """The settings with these values where they are None."""
        missing = {k: v for k, v in defaults.items() if v is not None and getattr(self, k) is None}
        return self.model_copy(update=missing) if missing else self

    @field_validator("recipe", mode="before")
    @classmethod
    def _current_names(cls, recipe: Any) -> Any:
        """Runs stored by version 0.1 have older names of some fields."""
        return current_names(recipe) if isinstance(recipe, Mapping) else recipe


class RunWriter:
    """Appends points to a run folder, each as one line in one write, so a reader sees at most one torn line.

    Opening a folder cuts off a torn last line, which a killed writer left.
    """

    def __init__(self, folder: str | Path, settings: RunSettings) -> None:
        self.folder = Path(folder)
        data = json.dumps(settings.model_dump(exclude_none=True), indent=1, allow_nan=False)
        files.write_atomically(self.folder / SETTINGS, data.encode() + b"\n")
        path = self.folder / POINTS
        whole = b""
        if path.exists():
            whole = path.read_bytes()
            whole = whole[: whole_lines(whole)]
            with path.open("r+b") as file:
                file.truncate(len(whole))
        self._file = path.open("ab", buffering=0)
        if whole and not whole.endswith(b"\n"):
            self._file.write(b"\n")

    def append(self, point: dict[str, Any]) -> None:
        """Add one evaluation; NaN and infinity are refused, leave a metric out instead."""
        for name, value in point.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise InputError(f"{self.folder / POINTS}: '{name}' is {value}; leave it out of the point.")
        self._file.write(json.dumps(point, allow_nan=False).encode() + b"\n")

    def close(self) -> None:
        """Close the file; the folder is complete after every `append` already."""
        self._file.close()

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def whole_lines(data: bytes) -> int:
    """How many bytes are whole lines: all of them, unless the last line is not JSON."""
    end = len(data)
    while end and data[end - 1 : end].isspace():
        end -= 1
    start = data.rfind(b"\n", 0, end) + 1
    return len(data) if start == end or _is_json(data[start:end]) else start


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


class Recorder:
    """Writes the points and checkpoints of one cell.

    If another process has taken over the locked folder, every method that writes raises `LostError`.
    """

    def __init__(
        self, folder: Path, settings: RunSettings, *, on_point: Callable[[Mapping[str, Any]], None] | None = None
    ) -> None:
        self.folder = folder
        self._settings, self._on_point = settings, on_point
        self._writer: RunWriter | None = None
        self._guard = LockGuard(folder)
        self._saver: ThreadPoolExecutor | None = None
        self._saving: Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def resume(self) -> tuple[dict[str, np.ndarray], dict[str, Any]] | None:
        """Open the folder and return the last checkpoint's arrays and meta, or None to start from the beginning."""
        self.check_lock()
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

    def check_lock(self) -> None:
        """Raise `LostError` if another process has taken over the folder."""
        self._guard.check()

    def last_checkpoint(self) -> tuple[dict[str, np.ndarray], dict[str, Any]] | None:
        """Arrays and meta of the last checkpoint, or None."""
        self._wait()
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
        self.check_lock()
        self._writer.append(point)
        if self._on_point is not None:
            self._on_point(point)

    def append_rates(self, row: Mapping[str, Any]) -> None:
        """Keep per-problem counts of an evaluation."""
        self._append_to(PASS_RATES, row)

    def append_sample(self, row: Mapping[str, Any]) -> None:
        """Keep a response of an evaluation."""
        self._append_to(SAMPLES, row)

    def _append_to(self, name: str, row: Mapping[str, Any]) -> None:
        self.check_lock()
        with (self.folder / name).open("ab") as file:
            file.write(json.dumps(row).encode() + b"\n")

    def checkpoint(self, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> None:
        """Replace the checkpoint by this state atomically, in a thread; the arrays must not change any more."""
        self._wait()
        paths = {key: self.folder / name for name, key in _APPENDED.items()}
        lengths = {key: path.stat().st_size for key, path in paths.items() if path.exists()}
        text = json.dumps({**meta, **lengths}).encode()
        named: dict[str, Any] = {**arrays, _META: np.frombuffer(text, dtype=np.uint8)}

        def write(file: BinaryIO) -> None:
            np.savez(file, **named)
            self.check_lock()

        self._saver = self._saver or ThreadPoolExecutor(1, "checkpoint")
        self._saving = self._saver.submit(files.write_atomically, self.folder / CHECKPOINT, write)

    def _wait(self) -> None:
        """Wait for the checkpoint that is being written, and raise what it raised."""
        saving, self._saving = self._saving, None
        if saving is not None:
            saving.result()

    def finish(self, summary: Mapping[str, Any] | None = None) -> None:
        """Mark the cell as done and drop its checkpoint."""
        self._wait()
        if self._writer is not None:
            self._writer.close()
        self.check_lock()
        files.write_atomically(self.folder / FINISHED, json.dumps(dict(summary or {})).encode() + b"\n")
        (self.folder / CHECKPOINT).unlink(missing_ok=True)

    def close(self) -> None:
        """Close without finishing."""
        if self._writer is not None:
            self._writer.close()
        if self._saver is not None:
            self._saver.shutdown()
        self._wait()


def appended(meta: Mapping[str, Any]) -> dict[str, int]:
    """Lengths of the append-only files when a checkpoint was written, from its meta."""
    return {name: int(meta.get(key, 0)) for name, key in _APPENDED.items()}


def _refuse_shorter(path: Path, length: int) -> None:
    """Raise if an append-only file is shorter than its checkpoint says."""
    there = path.stat().st_size if path.exists() else 0
    if there < length:
        raise InputError(
            f"{path}: {f'has {there:,} bytes' if path.exists() else 'is gone'}, {CHECKPOINT} counts {length:,}: lines "
            "are lost; put the file back, or remove the run's folder to start it again."
        )
