"""`--follow`: read again whenever a log or a run folder has grown, until the user stops it.

The whole is read again, so that a file that was cut, replaced or rotated needs no case of its own; the pauses grow
with what a reading costs, so that following never takes more than a small share of one core.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from isocompute.core.errors import InputError
from isocompute.data.folder import POINTS, SETTINGS
from isocompute.data.logs.discover import Found, find
from isocompute.data.logs.importing import Imports, import_logs

__all__ = ["follow", "watch"]

T = TypeVar("T")
_State = tuple[tuple[str, int, int, int], ...]

_PASS_RATES = "pass_rates.jsonl"
_PAUSE = 2.0
_SHARE = 10
"""A pause is at least this many times as long as the last reading took."""


def follow(
    paths: Sequence[str],
    *,
    format: str | None = None,
    problems_per_batch: int | None = None,
    rollouts_per_problem: int | None = None,
    changed: Callable[[Imports], None],
    wait: Callable[[float], object] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Import logs again and again: `changed` gets what there is now, and after every growth."""

    def read() -> Imports:
        return import_logs(
            paths,
            format=format,
            problems_per_batch=problems_per_batch,
            rollouts_per_problem=rollouts_per_problem,
        )

    watch(paths, read=read, changed=changed, wait=wait, clock=clock)


def watch(
    paths: Sequence[str],
    *,
    read: Callable[[], T],
    changed: Callable[[T], None],
    wait: Callable[[float], object] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Call `read`, and `changed` with what it returns, now and after every growth of what lies at `paths`.

    Returns when `wait` is interrupted (Ctrl-C). What is not there yet, or has no points yet, is waited for, which is
    said once on standard error.
    """
    if "-" in paths:
        raise InputError("--follow: standard input cannot be read again; name the file that it comes from.")
    last: _State | None = None
    told: set[str] = set()
    try:
        while True:
            began = clock()
            state, missing = _look(paths)
            for path in missing:
                _tell(f"waiting for {path}", told)
            if state != last:
                last = state
                try:
                    there = read()
                except InputError as error:
                    if state and _is_final(state):
                        raise
                    if not missing:
                        _tell(f"waiting for points: {' '.join(str(error).split())}", told)
                else:
                    changed(there)
            wait(max(_PAUSE, _SHARE * (clock() - began)))
    except KeyboardInterrupt:
        return


def _tell(line: str, told: set[str]) -> None:
    if line not in told:
        told.add(line)
        print(line, file=sys.stderr, flush=True)


def _look(paths: Sequence[str]) -> tuple[_State, list[str]]:
    """Name, file, size and time of everything that is read, of which one changes whatever happens; and what is not
    there yet.
    """
    state, missing = [], []
    for path in paths:
        try:
            files = [file for found in find([path]) for file in _files(found)]
        except InputError:
            missing.append(path)
            continue
        for file in files:
            try:
                stat = file.stat()
            except OSError:
                continue
            state.append((str(file), stat.st_ino, stat.st_size, stat.st_mtime_ns))
    return tuple(state), missing


def _files(found: Found) -> Iterator[Path]:
    if found.run_folder is not None:
        yield from (found.run_folder / name for name in (SETTINGS, POINTS, _PASS_RATES))
    yield from (log.path for log in found.logs if log.path is not None)


def _is_final(state: _State) -> bool:
    """A log this long without a point is no log in the making but the wrong file."""
    return all(size > 50_000_000 for _, _, size, _ in state)
