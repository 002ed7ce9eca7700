"""Percentile intervals over bootstrap replicates."""

from __future__ import annotations

import numpy as np

from isocompute.arrays import Array

__all__ = ["around", "percentiles"]


def percentiles(values_B: Array, level: float = 0.95) -> tuple[float, float]:
    """The central `level` of the replicates."""
    tail = 50.0 * (1.0 - level)
    low, high = np.percentile(values_B, [tail, 100.0 - tail])
    return float(low), float(high)


def around(value: float, values_B: Array, level: float = 0.95) -> tuple[float, float]:
    """The same, widened to hold the estimate; the estimate alone where there are no replicates."""
    if not len(values_B):
        return value, value
    low, high = percentiles(values_B, level)
    return min(low, value), max(high, value)
