"""Intervals over bootstrap replicates: percentiles, and the basic bootstrap for a best of several."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from isocompute.core.arrays import Array
from isocompute.core.errors import InputError

__all__ = ["around", "basic", "by_chance", "check_replicates", "percentiles"]

_FEWEST = 20
"""Replicates for the ends of an interval to mean anything; results that are told have 1,000."""


def check_replicates(replicates: int) -> None:
    """Refuse too few."""
    if replicates < _FEWEST:
        raise InputError(f"replicates = {replicates}: intervals need at least {_FEWEST} of them.")


def percentiles(values_B: Array, level: float = 0.95) -> tuple[float, float]:
    """The central `level` of the replicates: `numpy.percentile` without the tenth of a millisecond of its checks."""
    ordered_B = np.sort(values_B)
    tail = 0.5 * (1.0 - level)
    return _quantile(ordered_B, tail), _quantile(ordered_B, 1.0 - tail)


def _quantile(ordered_B: Array, share: float) -> float:
    place = share * (len(ordered_B) - 1)
    below = min(int(place), len(ordered_B) - 1)
    above = min(below + 1, len(ordered_B) - 1)
    return float(ordered_B[below] + (place - below) * (ordered_B[above] - ordered_B[below]))


def around(value: float, values_B: Array, level: float = 0.95) -> tuple[float, float]:
    """The same, widened to hold the estimate; the estimate alone where there are no replicates."""
    if not len(values_B):
        return value, value
    low, high = percentiles(values_B, level)
    return min(low, value), max(high, value)


def basic(
    statistic: Callable[[Array], Array], values_S: Array, replicates_SB: Array, level: float = 0.95
) -> tuple[float, tuple[float, float]]:
    """A statistic of several settings' values (over axis 0), such as their best, without what noise adds to it, and its
    interval.

    The best of several noisy values is too good, and that of their replicates better still: that step is seen, and
    taken off. Between equals it is half of what there is, between others all of it.
    """
    seen = float(statistic(values_S[:, None])[0])
    if not replicates_SB.shape[1]:
        return seen, (seen, seen)
    again_B = statistic(values_S[:, None] + replicates_SB - replicates_SB.mean(axis=1, keepdims=True))
    low, high = percentiles(again_B, level)
    estimate = 2.0 * seen - float(again_B.mean())
    return estimate, (min(2.0 * seen - high, estimate), max(2.0 * seen - low, estimate))


def by_chance(statistic: Callable[[Array], Array], values_S: Array, replicates_SB: Array) -> float:
    """Chance that settings which are all equal show as much of a statistic (over axis 0) as these values do."""
    if not replicates_SB.shape[1]:
        return 1.0
    equal_SB = replicates_SB - replicates_SB.mean(axis=1, keepdims=True)
    return float((statistic(equal_SB) >= statistic(values_S[:, None])).mean())
