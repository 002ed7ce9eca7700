"""One cell, wherever it runs: claim its folder, run the engine, and turn whatever happens into an outcome.

Both runners call this inside a worker. It never raises for what an engine does: a crash becomes `error.txt` and a
failed outcome, so that the other cells go on.
"""

from __future__ import annotations

import errno
import json
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal
from zipfile import BadZipFile

import numpy as np

from isocompute.core import files
from isocompute.core.cell import Cell, Control, Engine
from isocompute.core.recorder import CHECKPOINT, ERROR, FINISHED, POINTS, SETTINGS, appended
from isocompute.sweep import remote
from isocompute.sweep.claim import RUNNING, STALE_SECONDS, Claim, HeldError
from isocompute.sweep.summary import is_finished

__all__ = ["Outcome", "execute", "headline", "write_error"]

_TRACE_LINES = 20
_PATIENCE = 2 * STALE_SECONDS
"""A worker whose runner was killed ends within moments; one on a dead node counts as gone after STALE_SECONDS."""
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG}
_NO_ACCESS = {errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE}
_BEGUN = (SETTINGS, POINTS, CHECKPOINT, FINISHED)


@dataclass(frozen=True)
class Outcome:
    """How a cell ended."""

    name: str
    state: Literal["finished", "stopped", "failed", "unwritable"]
    """`unwritable`: the disk is full or the folder cannot be written, which no other cell will escape."""
    error: str = ""
    seconds: float = 0.0


def execute(*, engine: Engine, cell: Cell, address: str, control: Control) -> Outcome:
    """Run a cell of the study at `address` to its end, or until it is asked to stop."""
    start = time.perf_counter()
    try:
        with _folder(address, cell.name, control) as (folder, carried):
            outcome = _attempt(engine, cell, folder, carried)
    except Exception as error:  # a remote system may raise anything; a claim that never falls free ends here too
        outcome = _without_folder(address, cell, error)
    return replace(outcome, seconds=time.perf_counter() - start)


def _without_folder(address: str, cell: Cell, error: Exception) -> Outcome:
    """A cell whose folder could not be had."""
    if isinstance(error, OSError):
        return Outcome(cell.name, "unwritable", f"{files.join(address, cell.name)}: {error.strerror or error}")
    return Outcome(cell.name, "failed", _message(error))


@contextmanager
def _folder(address: str, name: str, control: Control) -> Iterator[tuple[Path, Control]]:
    """The cell's folder, claimed; a remote one as a scratch folder."""
    if files.is_remote(address):
        above = files.join(address, name)
        with (
            remote.claimed(files.join(above, RUNNING), what=f"cell {name}", patience=_PATIENCE),
            remote.scratch(above, control) as (folder, carrier),
        ):
            yield folder, carrier
        return
    folder = Path(address) / name
    begun = folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    claim = Claim(folder / RUNNING)
    try:
        claim.take(patience=_PATIENCE)
    except HeldError as error:
        raise RuntimeError(f"the cell is being run by {error}") from error
    try:
        if begun:
            _sweep(folder)
        yield folder, control
    finally:
        claim.release()


def _sweep(folder: Path) -> None:
    """Remove what a kill inside an atomic write left behind."""
    for path in folder.glob(".*"):
        if path.name.startswith(tuple(f".{name}." for name in _BEGUN)):
            path.unlink(missing_ok=True)


def _attempt(engine: Engine, cell: Cell, folder: Path, control: Control) -> Outcome:
    if is_finished(folder):
        return Outcome(cell.name, "finished")  # done by the attempt whose end we waited for
    try:
        _make_ready(folder)
        done = engine.run(cell, folder, control)
    except Exception as error:  # an engine may raise anything; the other cells go on
        return _failed(cell, folder, error)
    return _ended(cell, done=done)


def _make_ready(folder: Path) -> None:
    """Leave nothing of an earlier attempt but what can be gone on from."""
    for name in (ERROR, FINISHED):  # the second is torn, or the cell would not be run
        (folder / name).unlink(missing_ok=True)
    _drop_unsound(folder)


def _failed(cell: Cell, folder: Path, error: Exception) -> Outcome:
    """What an engine raised, written down."""
    cause = _unwritable(error, folder)
    if cause is not None:
        return Outcome(cell.name, "unwritable", f"{folder}: {cause.strerror or cause}")
    write_error(folder, error)
    return Outcome(cell.name, "failed", _message(error))


def _ended(cell: Cell, *, done: bool) -> Outcome:
    return Outcome(cell.name, "finished" if done else "stopped")


def _drop_unsound(folder: Path) -> None:
    """Start over where a checkpoint is torn or counts more lines than there are.

    A kill cannot do that: lines are written before the checkpoint, which is renamed into place. A power cut or half an
    upload can.
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
    """The error of the file system behind an exception, if it is about writing the study."""
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
    with suppress(OSError):  # the outcome tells the runner all the same
        (folder / ERROR).write_text(text + "\n")


def headline(error: str) -> str:
    """The message of an `error.txt`, without the traceback."""
    return error.split("\n\nTraceback, last lines:", 1)[0]
