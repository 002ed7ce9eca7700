"""What a runner tells while it runs and when it ends; the same for every runner."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from isocompute.core.cell import Cell
from isocompute.sweep.execute import Outcome
from isocompute.sweep.folder import CellStatus

__all__ = ["Progress", "Report", "Result", "Tally", "longest_first"]

_KNOWN = 0.01
"""Share of the work after which the time for the rest is told."""


@dataclass(frozen=True)
class Progress:
    """A study at one moment."""

    cells: int
    finished: int
    failed: int
    running: int
    rollouts: int
    """Rollouts done, those of earlier runs of the study included."""
    total_rollouts: int
    new_rollouts: int
    seconds: float
    stopping: bool = False
    failure: Outcome | None = None
    """A cell that has just failed."""

    @property
    def rate(self) -> float:
        """Rollouts a second since the runner started."""
        return self.new_rollouts / self.seconds if self.seconds > 0 else 0.0

    @property
    def seconds_left(self) -> float | None:
        """At the rate so far; None before that says anything: the first seconds go into starting up."""
        left = self.total_rollouts - self.rollouts
        known = self.new_rollouts > _KNOWN * (left + self.new_rollouts)
        return left / self.rate if known else None


Report = Callable[[Progress], None]


@dataclass(frozen=True)
class Result:
    """How a study ended."""

    folder: str
    cells: int
    finished: int
    skipped: int
    """Cells that were finished before."""
    failed: dict[str, str]
    stopped: bool
    """Whether a stop was asked for and has left cells to go on with."""
    interrupted: bool
    """Whether one was asked for, all the same if the cells had ended by then."""
    unwritable: str | None
    seconds: float
    new_rollouts: int


@dataclass
class Tally:
    """Counts outcomes as they come in."""

    statuses: list[CellStatus]
    report: Report
    rollouts: Callable[[], int]
    """New rollouts so far."""
    failed: dict[str, str] = field(default_factory=dict)
    unwritable: str | None = None
    finished: int = 0
    seconds: Callable[[], float] = field(init=False)

    def __post_init__(self) -> None:
        start = time.monotonic()
        self.seconds = lambda: time.monotonic() - start
        self.skipped = sum(status.state == "finished" for status in self.statuses)
        self._before = sum(status.rollouts for status in self.statuses)
        self._total = sum(status.total for status in self.statuses)

    def add(self, outcome: Outcome) -> None:
        """A cell has ended."""
        if outcome.state == "finished":
            self.finished += 1
        elif outcome.state == "failed":
            self.failed[outcome.name] = outcome.error
        elif outcome.state == "unwritable":
            self.unwritable = self.unwritable or outcome.error
        if outcome.state == "failed":
            self.tell(failure=outcome)

    def tell(self, *, running: int = 0, stopping: bool = False, failure: Outcome | None = None) -> None:
        """Report where the study is."""
        new = self.rollouts()
        self.report(
            Progress(
                cells=len(self.statuses),
                finished=self.skipped + self.finished,
                failed=len(self.failed),
                running=running,
                rollouts=min(self._total, self._before + new),
                total_rollouts=self._total,
                new_rollouts=new,
                seconds=self.seconds(),
                stopping=stopping,
                failure=failure,
            )
        )

    def result(self, *, folder: str, stopping: bool) -> Result:
        """The end; `stopping`: the cells were asked to stop, by the user unless nothing could be written any more."""
        interrupted = stopping and self.unwritable is None
        ended = self.skipped + self.finished + len(self.failed)
        return Result(
            folder=folder,
            cells=len(self.statuses),
            finished=self.skipped + self.finished,
            skipped=self.skipped,
            failed=dict(sorted(self.failed.items())),
            stopped=interrupted and ended < len(self.statuses),
            interrupted=interrupted,
            unwritable=self.unwritable,
            seconds=self.seconds(),
            new_rollouts=self.rollouts(),
        )


def longest_first(statuses: list[CellStatus]) -> list[Cell]:
    """The cells that are left, so ordered that no long one is left over for the end.

    All cells spend the same budget; what differs is how often a step and a problem must be set up, since the n
    rollouts of a problem are made together. So M · Bp tells, and M among equals.
    """
    left = [status.cell for status in statuses if status.state != "finished"]
    return sorted(left, key=lambda c: (c.update_steps * c.problems_per_batch, c.update_steps), reverse=True)
