"""Intervals over the samples of a posterior."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.special import ndtri, stdtrit

from isocompute.core.arrays import Array
from isocompute.core.errors import InputError

SEED_MARGIN = 0.02
"""ScaleRL's 95% half-width of a difference between two runs, as a share of the values' scale."""
_FEWEST = 20
"""Least number of samples for an interval."""


def check_replicates(replicates: int) -> None:
    """Raise if there are too few samples for an interval."""
    if replicates < _FEWEST:
        raise InputError(f"replicates = {replicates}: intervals need at least {_FEWEST} of them.")


def percentiles(values_B: Array, level: float = 0.95) -> tuple[float, float]:
    """The central interval that contains a share `level` of the samples."""
    low, high = np.quantile(values_B, [0.5 - 0.5 * level, 0.5 + 0.5 * level])
    return float(low), float(high)


def around(value: float, values_B: Array, level: float = 0.95) -> tuple[float, float]:
    """The central interval of the samples, widened to contain the estimate; without samples, the estimate alone."""
    if not len(values_B):
        return value, value
    low, high = percentiles(values_B, level)
    return min(low, value), max(high, value)


def shortest(values_B: Array, estimate: float, level: float = 0.9) -> tuple[float, float]:
    """The shortest interval between values that were run with a share `level` of the samples, and the estimate.

    >>> shortest(np.array([8.0, 8, 8, 8, 8, 8, 8, 8, 16, 64]), 8.0, level=0.9)
    (8.0, 16.0)
    """
    values, counts = np.unique(values_B, return_counts=True)
    total = np.concatenate([[0.0], np.cumsum(counts)]) / len(values_B)
    low, high = float(values[0]), float(values[-1])
    best = (np.inf, 0.0)
    for i in range(len(values)):
        j = int(np.searchsorted(total, total[i] + level - 1e-12))
        if j <= len(values):
            ratio = float(values[j - 1] / values[i])
            if (ratio, -(total[j] - total[i])) < best:
                best, low, high = (ratio, -float(total[j] - total[i])), float(values[i]), float(values[j - 1])
    return min(low, float(estimate)), max(high, float(estimate))


def basic(
    statistic: Callable[[Array], Array], values_S: Array, replicates_SB: Array, level: float = 0.95
) -> tuple[float, tuple[float, float]]:
    """A statistic over configurations (axis 0), such as their best, corrected for selection: estimate and interval.

    The best of several noisy values is biased upwards, and the best of their samples even more. The second bias can be
    measured and is subtracted. That removes half of the bias between equal settings, and all of it between others.
    """
    seen = float(statistic(values_S[:, None])[0])
    if not replicates_SB.shape[1]:
        return seen, (seen, seen)
    again_B = statistic(values_S[:, None] + replicates_SB - replicates_SB.mean(axis=1, keepdims=True))
    low, high = percentiles(again_B, level)
    estimate = 2.0 * seen - float(again_B.mean())
    return estimate, (min(2.0 * seen - high, estimate), max(2.0 * seen - low, estimate))


def t_over_normal(degrees: int) -> float:
    """Ratio of the 95% interval of Student's t with these degrees of freedom to that of a normal distribution.

    >>> round(t_over_normal(1), 2), round(t_over_normal(30), 2)
    (6.48, 1.04)
    """
    return float(stdtrit(degrees, 0.975) / ndtri(0.975))
