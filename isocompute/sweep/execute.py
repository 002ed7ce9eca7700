"""One cell, wherever it runs: claim its folder, run the engine, and turn whatever happens into an outcome.

Both runners call this inside a worker. It never raises for what an engine does: a crash becomes `error.txt` and a
failed outcome, so that the other cells go on. Cells that one process runs at the same time (`execute_pack`) are each
claimed, run and ended the same way.
"""

from __future__ import annotations

import errno
import json
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal
from zipfile import BadZipFile

import numpy as np

from isocompute.core import files
from isocompute.data.writer import POINTS, SETTINGS
from isocompute.sweep import remote
from isocompute.sweep.base import CHECKPOINT, ERROR, FINISHED, Cell, Control, Engine, PackingEngine, appended
from isocompute.sweep.claim import RUNNING, STALE_SECONDS, Claim, HeldError
from isocompute.sweep.summary import is_finished

__all__ = ["Outcome", "execute", "execute_pack", "headline", "write_error"]

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


def execute_pack(
    *,
    engine: PackingEngine,
    cells: Sequence[Cell],
    address: str,
    control: Control,
    began: Callable[[Cell], None],
    ended: Callable[[Outcome], None],
) -> None:
    """Run cells at the same time in this process; tells of each when it begins, and its outcome when it ends. When
    asked to stop, those that had not begun have none.
    """
    start = time.perf_counter()
    claimed: dict[str, tuple[Path, ExitStack]] = {}
    left = {cell.name: cell for cell in cells}

    def end(outcome: Outcome) -> None:
        del left[outcome.name]
        ended(replace(outcome, seconds=time.perf_counter() - start))

    def jobs() -> Iterator[tuple[Cell, Path, Control]]:
        for cell in cells:
            if control.stopping():
                return
            held = ExitStack()
            began(cell)
            try:
                folder, carried = held.enter_context(_folder(address, cell.name, control))
                done = is_finished(folder)
                if not done:
                    _make_ready(folder)
            except Exception as error:
                end(_released(held, address, cell, _without_folder(address, cell, error)))
                continue
            if done:
                end(_released(held, address, cell, Outcome(cell.name, "finished")))
                continue
            claimed[cell.name] = folder, held
            yield cell, folder, carried

    try:
        for cell, how in engine.run_pack(jobs()):
            folder, held = claimed.pop(cell.name)
            outcome = _failed(cell, folder, how) if isinstance(how, Exception) else _ended(cell, done=how)
            del how  # an error holds the frames, and with them the memory, of what it ended
            end(_released(held, address, cell, outcome))
        for cell in [] if control.stopping() else list(left.values()):  # or the runner would wait for them for ever
            forgotten = Outcome(cell.name, "failed", "the engine ended its pack without running this cell")
            held = claimed.pop(cell.name)[1] if cell.name in claimed else ExitStack()
            end(_released(held, address, cell, forgotten))
    finally:
        for _, held in claimed.values():
            with suppress(Exception):  # the others' folders are given back all the same
                held.close()


def _released(held: ExitStack, address: str, cell: Cell, outcome: Outcome) -> Outcome:
    """Give a cell's folder back; where that fails, a remote one may not have all of it."""
    try:
        held.close()
    except Exception as error:
        return _without_folder(address, cell, error)
    return outcome


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
