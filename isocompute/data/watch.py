"""Read logs and run folders again whenever they grow (`--follow`), until the user interrupts.

Every file is read as a whole, so one that was truncated, replaced or rotated needs no special case. The pauses grow
with the time that reading takes, so that following never needs more than a small share of one core.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from isocompute.core.errors import InputError
from isocompute.core.recorder import PASS_RATES, POINTS, SETTINGS
from isocompute.data.discover import find

T = TypeVar("T")
_State = tuple[tuple[str, int, int, int], ...]
"""Path, inode, size and time of every file that is read."""
_PAUSE = 2.0
_PAUSE_PER_READING = 10
"""A pause is at least this many times as long as the last reading took."""
_LARGE = 50_000_000
"""A log of this size without a point is the wrong file, not a run that has just begun."""


def watch(
    paths: Sequence[str],
    *,
    read: Callable[[], T],
    changed: Callable[[T], None],
    wait: Callable[[float], object] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Call `read`, and `changed` with what it returns, now and after every growth of the files at `paths`.

    Returns when `wait` is interrupted (Ctrl-C). Files that are missing, or have no points yet, are waited for, with one
    line on standard error.
    """
    if "-" in paths:
        raise InputError("--follow: standard input cannot be read again; name the file that it comes from.")
    last: _State | None = None
    printed: set[str] = set()

    def say(line: str) -> None:
        if line not in printed:
            printed.add(line)
            print(line, file=sys.stderr, flush=True)

    try:
        while True:
            began = clock()
            state, missing = _state_of(paths)
            for path in missing:
                say(f"waiting for {path}")
            if state != last:
                last = state
                try:
                    result = read()
                except InputError as error:
                    if state and all(size > _LARGE for _, _, size, _ in state):
                        raise
                    if not missing:
                        say(f"waiting for points: {' '.join(str(error).split())}")
                else:
                    changed(result)
            wait(max(_PAUSE, _PAUSE_PER_READING * (clock() - began)))
    except KeyboardInterrupt:
        return


def _state_of(paths: Sequence[str]) -> tuple[_State, list[str]]:
    """The state of all files to read, and the paths that are missing."""
    state, missing = [], []
    for path in paths:
        files: list[Path] = []
        try:
            for found in find([path]):
                files += [log.path for log in found.logs if log.path is not None]
                if found.run_folder is not None:
                    files += [found.run_folder / name for name in (SETTINGS, POINTS, PASS_RATES)]
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
