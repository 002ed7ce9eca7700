"""`--follow`: import again whenever a log has grown, until the user stops it.

The whole log is read again, so that a file that was cut, replaced or rotated needs no case of its own; the pauses grow
with what a reading costs, so that following never takes more than a small share of one core.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from isocompute.errors import InputError
from isocompute.logs.discover import find
from isocompute.logs.importing import Imports, import_logs

__all__ = ["follow"]

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
    """Call `changed` with what there is now and after every growth; return when `wait` is interrupted (Ctrl-C).

    A log that is not there yet, or has no points yet, is waited for.
    """
    if "-" in paths:
        raise InputError("--follow: standard input cannot be read again; name the file that it comes from.")
    last: object = None
    try:
        while True:
            began = clock()
            state = _state(paths)
            if state != last:
                last = state
                try:
                    imports = import_logs(
                        paths,
                        format=format,
                        problems_per_batch=problems_per_batch,
                        rollouts_per_problem=rollouts_per_problem,
                    )
                except InputError:
                    if state and _is_final(state):
                        raise
                else:
                    changed(imports)
            wait(max(_PAUSE, _SHARE * (clock() - began)))
    except KeyboardInterrupt:
        return


def _state(paths: Sequence[str]) -> tuple[tuple[str, int, int, int], ...]:
    """Name, file, size and time of every log: whatever happens to one, this changes."""
    out = []
    for path in paths:
        try:
            logs = [log for found in find([path]) for log in found.logs]
        except InputError:
            continue  # not there yet
        for log in logs:
            if isinstance(log.path, Path):
                try:
                    stat = log.path.stat()
                except OSError:
                    continue
                out.append((log.name, stat.st_ino, stat.st_size, stat.st_mtime_ns))
    return tuple(out)


def _is_final(state: tuple[tuple[str, int, int, int], ...]) -> bool:
    """A log this long without a point is no log in the making but the wrong file."""
    return all(size > 50_000_000 for _, _, size, _ in state)
