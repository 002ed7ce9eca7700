"""Runs one cell: loads the engine, locks the cell's folder, runs the engine and returns the outcome.

Both runners call `execute` in a worker. Errors of an engine do not propagate: a crash becomes `error.txt` and a failed
outcome, and the other cells continue.
"""

from __future__ import annotations

import errno
import importlib
import json
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast
from zipfile import BadZipFile

import numpy as np

from isocompute.core import files
from isocompute.core.allocation import Cell, Control, Engine
from isocompute.core.errors import InputError
from isocompute.core.recorder import CHECKPOINT, ERROR, FINISHED, POINTS, RUNNING, SETTINGS, appended
from isocompute.sweep import remote
from isocompute.sweep.lock import STALE_SECONDS, LockedError, locked

ENGINES = {
    "sim": "isocompute.sim:SimEngine",
    "lm": "isocompute.rl.engine:LmEngine",
    "command": "isocompute.sweep.command:CommandEngine",
}
_METHODS = ("check", "run")
_DOTTED = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_TRACE_LINES = 20
_PATIENCE = 2 * STALE_SECONDS
"""Wait for the lock of a killed runner's worker, which ends soon, or of a dead node, which expires."""
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG}
_NO_ACCESS = {errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE}


# Engines by name, imported only when needed: the command engine must load neither the simulator nor torch.


def check_name(name: str) -> str:
    """Refuse a name that cannot be an engine, without importing anything."""
    if name not in ENGINES and not _DOTTED.fullmatch(name):
        raise InputError(f"'{name}' is not one of {', '.join(ENGINES)}; your own is written package.module:Class")
    return name


def load_engine(name: str) -> Engine:
    """The engine with this name, or the class at `package.module:Class` (the working directory is searched too)."""
    if check_name(name) not in ENGINES:
        return _load_own(name)
    try:
        return _make(ENGINES[name])
    except ImportError as error:
        if name == "lm" and isinstance(error, ModuleNotFoundError) and not str(error.name).startswith("isocompute"):
            raise InputError(f"engine 'lm' needs {error.name}; pip install 'isocompute[rl]'.") from error
        raise InputError(f"engine '{name}' cannot be loaded: {error}.") from error


def _load_own(name: str) -> Engine:
    """Load a user's class; errors while importing or creating it become `InputError`."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        engine = _make(name)
    except InputError:
        raise  # the engine's own message
    except (Exception, SystemExit) as error:  # a script without a __main__ guard may exit
        raise InputError(f"engine '{name}' cannot be loaded: {_cause(error)}.") from error
    missing = [method for method in _METHODS if not callable(getattr(engine, method, None))]
    if missing:
        raise InputError(
            f"engine '{name}' has no method {' and no '.join(missing)}; an engine is a class with "
            f"{' and '.join(_METHODS)} (docs/reference/study-toml.md)."
        )
    return engine


def _make(address: str) -> Engine:
    module, _, attribute = address.partition(":")
    return cast(Engine, getattr(importlib.import_module(module), attribute)())


def _cause(error: BaseException) -> str:
    """An error's type and message, and the line of the user's code that raised it."""
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, SyntaxError):
        return text  # it names its own line
    ours = (__file__, importlib.__file__)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename not in ours]
    theirs = [frame for frame in frames if not frame.filename.startswith("<frozen ")]
    return f"{text} ({theirs[-1].filename}, line {theirs[-1].lineno})" if theirs else text


# Running a cell


@dataclass(frozen=True)
class Outcome:
    """How a cell ended."""

    name: str
    state: Literal["finished", "stopped", "failed", "unwritable"]
    """`unwritable`: the disk is full or the folder cannot be written, so no other cell could run either."""
    error: str = ""
    seconds: float = 0.0


def execute(*, engine: Engine, cell: Cell, address: str, control: Control) -> Outcome:
    """Run a cell of the study at `address` until it ends or is asked to stop."""
    start = time.perf_counter()
    try:
        with _locked_folder(address, cell.name, control) as (folder, folder_control):
            outcome = _attempt(engine, cell, folder, folder_control)
    except OSError as error:
        outcome = Outcome(cell.name, "unwritable", f"{files.join(address, cell.name)}: {error.strerror or error}")
    except LockedError as error:
        outcome = Outcome(cell.name, "failed", f"the cell is being run by {error}")
    except Exception as error:  # a remote system may raise anything
        outcome = Outcome(cell.name, "failed", _message(error))
    return replace(outcome, seconds=time.perf_counter() - start)


@contextmanager
def _locked_folder(address: str, name: str, control: Control) -> Iterator[tuple[Path, Control]]:
    """The cell's locked folder, or a local copy of a remote one, with the control to use."""
    above = files.join(address, name)
    if files.is_remote(address):
        with (
            locked(files.join(above, RUNNING), patience=_PATIENCE) as check_lock,
            remote.scratch(above, control, check_lock) as (folder, uploader),
        ):
            yield folder, uploader
        return
    folder = Path(above)
    begun = folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    with locked(files.join(above, RUNNING), patience=_PATIENCE) as check_lock:
        if begun:  # a kill inside an atomic write leaves a temporary file
            for path in folder.glob(".*"):
                if path.name.startswith(tuple(f".{name}." for name in (SETTINGS, POINTS, CHECKPOINT, FINISHED))):
                    path.unlink(missing_ok=True)
        yield folder, control
        check_lock()


def _attempt(engine: Engine, cell: Cell, folder: Path, control: Control) -> Outcome:
    if is_finished(folder):
        return Outcome(cell.name, "finished")  # finished by the process that had the lock before
    try:
        for name in (ERROR, FINISHED):  # an existing FINISHED is incomplete, or the cell would not run
            (folder / name).unlink(missing_ok=True)
        _drop_unsound(folder)
        done = engine.run(cell, folder, control)
    except Exception as error:  # an engine may raise anything; the other cells continue
        cause = _unwritable(error, folder)
        if cause is not None:
            return Outcome(cell.name, "unwritable", f"{folder}: {cause.strerror or cause}")
        write_error(folder, error)
        return Outcome(cell.name, "failed", _message(error))
    return Outcome(cell.name, "finished" if done else "stopped")


def json_object(data: bytes) -> dict[str, Any] | None:
    """The JSON object in a file's bytes; None if they are empty, incomplete or not an object.

    >>> json_object(b'{"rollouts": 12}'), json_object(b""), json_object(b'{"roll'), json_object(b"[]")
    ({'rollouts': 12}, None, None, None)
    """
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def summary_at(folder: Path) -> dict[str, Any] | None:
    """`finished.json` of a cell; None if it is missing, or if a power cut left it empty or incomplete."""
    try:
        return json_object((folder / FINISHED).read_bytes())
    except FileNotFoundError:
        return None


def is_finished(folder: Path) -> bool:
    """Whether the cell of this folder is finished."""
    return summary_at(folder) is not None


def _drop_unsound(folder: Path) -> None:
    """Remove a checkpoint that is incomplete or counts more lines than the files have, so that the cell starts over.

    A kill cannot cause this, since lines are written before the checkpoint and the checkpoint is renamed into place. A
    power cut or a partial upload can.
    """
    checkpoint = folder / CHECKPOINT
    if not checkpoint.exists():
        return
    try:
        with checkpoint.open("rb") as file, np.load(file, allow_pickle=False) as data:
            lengths = appended(json.loads(bytes(data["__meta__"])))
        sound = all(length <= (folder / name).stat().st_size for name, length in lengths.items() if length)
    except (ValueError, KeyError, OSError, EOFError, BadZipFile):
        sound = False
    if not sound:
        checkpoint.unlink()


def _unwritable(error: BaseException, folder: Path) -> OSError | None:
    """The file-system error behind an exception, if it concerns writing the study."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError):
            inside = str(seen.filename or "").startswith(str(folder))
            if seen.errno in _NO_ROOM or (seen.errno in _NO_ACCESS and inside):
                return seen
        seen = seen.__cause__ or seen.__context__
    return None


def _message(error: BaseException) -> str:
    return "".join(traceback.format_exception_only(error)).strip()


def write_error(folder: Path, error: BaseException) -> None:
    """`error.txt`: the message first, then the end of the traceback."""
    lines = "".join(traceback.format_tb(error.__traceback__)).splitlines()
    text = _message(error)
    if lines:
        text += "\n\nTraceback, last lines:\n" + "\n".join(lines[-_TRACE_LINES:])
    with suppress(OSError):  # the outcome has the message too
        (folder / ERROR).write_text(text + "\n")


def headline(error: str) -> str:
    """The message of an `error.txt`, without the traceback."""
    return error.split("\n\nTraceback, last lines:", 1)[0]


# Signals


@contextmanager
def stops_on_signal(stop: Callable[[], bool]) -> Iterator[None]:
    """Call `stop` on Ctrl-C and SIGTERM; if it returns False because it was called before, interrupt the program."""

    def handle(*_: object) -> None:
        if not stop():
            raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handle) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
