"""The progress of a study: a bar on a terminal, a plain line every few seconds elsewhere; always on standard error."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bars

from isocompute.core.formatting import number

if TYPE_CHECKING:
    from isocompute.sweep.folder import Progress, Report

__all__ = ["display", "duration", "line"]

_EVERY_SECONDS = 5.0


@contextmanager
def display(*, quiet: bool) -> Iterator[Report]:
    """A function that shows each `Progress` it is given; `quiet` keeps to plain lines."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    if console.is_terminal and not quiet:
        columns = (BarColumn(), TextColumn("{task.description}", markup=False))
        with Bars(*columns, console=console, transient=True) as bars:
            task = bars.add_task("starting")

            def draw(progress: Progress) -> None:
                _tell_failure(console, progress)
                bars.update(
                    task,
                    total=progress.total_rollouts,
                    completed=progress.rollouts,
                    description=line(progress),
                )

            yield draw
        return
    last, told_stop = time.monotonic(), False

    def write(progress: Progress) -> None:
        nonlocal last, told_stop
        _tell_failure(console, progress)
        now = time.monotonic()
        if now - last >= _EVERY_SECONDS or progress.stopping > told_stop:
            last, told_stop = now, progress.stopping
            console.print(line(progress), markup=False)

    yield write


def _tell_failure(console: Console, progress: Progress) -> None:
    if progress.failure is not None:
        first = (progress.failure.error.splitlines() or [""])[0]
        console.print(f"failed: {progress.failure.name}: {first}", markup=False)


def line(progress: Progress) -> str:
    """`12/78 cells, 2 running, 1 failed · 3.1M rollouts/s · 40 s left`."""
    cells = f"{progress.finished}/{progress.cells} cells"
    if progress.running:
        cells += f", {progress.running} running"
    if progress.failed:
        cells += f", {progress.failed} failed"
    left = progress.seconds_left
    parts = [cells, f"{number(progress.rate)} rollouts/s"]
    if progress.stopping:
        parts.append("stopping, Ctrl-C again ends at once")
    elif left is not None:
        parts.append(f"{duration(left)} left")
    return " · ".join(parts)


def duration(seconds: float) -> str:
    """Seconds as a person says them.

    >>> duration(42.0), duration(3 * 60 + 5), duration(30 * 3600)
    ('42 s', '3 min 05 s', '30 h 00 min')
    """
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
