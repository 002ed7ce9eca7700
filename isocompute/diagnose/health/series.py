"""A metric of a run as a series, and what can be said of it at every point from the points up to there alone.

Every function here is causal: entry t of what it returns depends on entries up to t of what it is given. So a check
made of them says of a run's beginning what it said when the run had only begun.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import polars as pl

from isocompute.core.arrays import Array, Ints
from isocompute.core.run import Run
from isocompute.data.finite import LARGEST, non_finite

__all__ = ["Series", "counter_noise", "first_not_finite", "records", "series_of", "trailing_mean", "trailing_median"]

MEMORY = 100
"""Moves that the noise is estimated from: a run's noise changes as it learns."""
PRIOR_WEIGHT = 4.0
"""Moves that the prior noise counts for: a handful of points cannot say how noisy they are."""
_HALF_NORMAL = 0.6745
"""Median of the absolute value of a standard normal."""


@dataclass(frozen=True)
class Series:
    """The points of a run that have a finite value of a metric, up to `LARGEST`."""

    name: str
    row_T: Ints
    """Their rows in the run."""
    values_T: Array

    def __len__(self) -> int:
        return len(self.values_T)

    def until(self, row: int) -> int:
        """How many of its points lie in rows up to and including this one."""
        return int(np.searchsorted(self.row_T, row, side="right"))


def series_of(run: Run, name: str, *, fewest: int = 1) -> Series | None:
    """A metric of a run; None where it has fewer finite values than a check needs."""
    column = _numbers(run, name)
    if column is None:
        return None
    values = column.fill_null(math.nan).to_numpy()
    row_T = np.flatnonzero(np.abs(values) <= LARGEST)
    return Series(name, row_T, np.asarray(values[row_T], dtype=np.float64)) if len(row_T) >= fewest else None


def first_not_finite(run: Run, name: str) -> tuple[int, float] | None:
    """Row and value of the first entry of a metric that is there and not a finite number up to `LARGEST`."""
    marked = non_finite(run.points).get(name)
    return None if marked is None else (marked.row, marked.value)


def _numbers(run: Run, name: str) -> pl.Series | None:
    column: pl.Series | None = run.points.get_column(name, default=None)
    if column is None or not (column.dtype.is_numeric() or column.dtype == pl.Boolean):
        return None
    return column.cast(pl.Float64)


def trailing_median(values_T: Array, width: int) -> Array:
    """Median of the last `width` values, fewer at the start."""
    return _trailing(values_T, width, np.median)


def trailing_mean(values_T: Array, width: int) -> Array:
    """Mean of the last `width` values, fewer at the start."""
    return _trailing(values_T, width, np.mean)


def _trailing(values_T: Array, width: int, summary: Callable[..., Array]) -> Array:
    head = [float(summary(values_T[: t + 1])) for t in range(min(width - 1, len(values_T)))]
    if len(values_T) < width:
        return np.array(head)
    windows_TW = np.lib.stride_tricks.sliding_window_view(values_T, width)
    return np.concatenate([head, summary(windows_TW, axis=1)])


def counter_noise(values_T: Array, *, prior: Array | float) -> Array:
    """Standard deviation of the noise as the falls of a series show it.

    A series that rises falls by noise alone, so the size of its falls is noise, whatever its slope and curvature; the
    median makes it blind to the rare true fall. Negate a series that is expected to fall. Entry t uses the moves before
    t, the last `MEMORY` of them, drawn towards the prior standard deviation.
    """
    prior_T = np.broadcast_to(np.asarray(prior, dtype=np.float64), values_T.shape)
    falls: list[float] = []
    ordered: list[float] = []
    out_T = np.empty(len(values_T))
    for t in range(len(values_T)):
        m = len(ordered)
        seen = _median(ordered) / (_HALF_NORMAL * math.sqrt(2.0)) if m else 0.0
        out_T[t] = math.sqrt((PRIOR_WEIGHT * prior_T[t] ** 2 + m * seen**2) / (PRIOR_WEIGHT + m))
        if t and values_T[t] < values_T[t - 1]:
            fall = float(values_T[t - 1] - values_T[t])
            falls.append(fall)
            insort(ordered, fall)
            if len(falls) > MEMORY:
                del ordered[bisect_left(ordered, falls.pop(0))]
    return out_T


def _median(ordered: list[float]) -> float:
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else 0.5 * (ordered[middle - 1] + ordered[middle])


def records(values_T: Array) -> Ints:
    """Index of the highest value so far."""
    best_T = np.maximum.accumulate(values_T)
    is_new_T = np.concatenate([[True], values_T[1:] > best_T[:-1]])
    return np.maximum.accumulate(np.where(is_new_T, np.arange(len(values_T)), 0))
