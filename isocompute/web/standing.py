"""How each run stands: its last and best value, its line in small, and what forecast and health say of it.

The numbers are read off the points at once. A forecast takes some hundredths of a second, which is seconds for a large
study: runs are judged a few at a time, by whoever asks, and the verdict is kept until the run's points change.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from isocompute.core.errors import InputError

if TYPE_CHECKING:
    from isocompute.data import Run

__all__ = ["Judge", "Verdict", "numbers"]

_LINE = 40
"""Values of a line that is as wide as a word."""


@dataclass(frozen=True)
class Verdict:
    """What forecast and health say of a run; where there can be no forecast, `reason` says why."""

    forecast: str | None
    reason: str
    health: str


def numbers(run: Run, metric: str) -> dict[str, Any]:
    """The last and the best value of a metric, and its course in few values."""
    values = run.points[metric].to_list() if metric in run.metrics else []
    there = [float(value) for value in values if value is not None and math.isfinite(value)]
    return {
        "last": there[-1] if there else None,
        "best": max(there, default=None),
        "line": _few(there),
    }


def _few(values: list[float]) -> list[float]:
    """Averaged in order, but for the ends, which stay."""
    if len(values) <= _LINE:
        return values
    inner = values[1:-1]
    edges = [len(inner) * i // (_LINE - 2) for i in range(_LINE - 1)]
    means = [sum(inner[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
    return [values[0], *means, values[-1]]


class Judge:
    """Verdicts of runs, each made once for the points that the run has."""

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[Run, Verdict]] = {}
        self._working = threading.Lock()

    def known(self, run: Run, *key: Hashable) -> Verdict | None:
        """The verdict of a run as it is now, if there is one."""
        of, verdict = self._known.get((run.name, *key), (None, None))
        return verdict if of is run or (of is not None and of.points.equals(run.points)) else None

    def judge(self, runs: Iterable[Run], *, address: str, metric: str, unit: str | None, seconds: float) -> None:
        """Make verdicts that are not known yet, until this many seconds are over; one caller at a time."""
        end = time.monotonic() + seconds
        with self._working:
            for run in runs:
                if time.monotonic() > end:
                    return
                if self.known(run, address, metric, unit) is None:
                    self._known[run.name, address, metric, unit] = (run, _verdict(run, address, metric, unit))


def _verdict(run: Run, address: str, metric: str, unit: str | None) -> Verdict:
    from isocompute import api
    from isocompute.data import RunSet
    from isocompute.web.commands import named_run

    one = RunSet((run,), address)
    health = api.check_health(one, paths=[named_run(address, run.name)])[0].verdict
    try:
        made = api.forecast(one, metric=metric, unit=unit)
    except InputError as error:
        return Verdict(None, str(error), health)
    return Verdict(made.verdict, made.reason, health)
