"""NaN in a trainer's log: not measured, or not finite any more.

Many trainers write NaN for what they did not measure, from the start or between evaluations. A metric that had been a
number each of the first `NUMBERS_BEFORE` times it was logged is measured, and NaN or infinity after that is news.
"""

from __future__ import annotations

import numpy as np

from isocompute.core.arrays import Array, Ints

__all__ = ["NUMBERS_BEFORE", "no_longer_numbers"]

NUMBERS_BEFORE = 5


def no_longer_numbers(logged_T: Array, odd_T: Ints) -> Ints:
    """Which of the places `odd_T`, where a metric was logged and not finite, are news.

    Causal: what is said of a place depends on the places before it.

    >>> numbers = np.array([1, 2, 3, 4, 5, np.nan, 7, np.inf])
    >>> no_longer_numbers(numbers, np.array([5, 7])).tolist()
    [5, 7]
    >>> no_longer_numbers(numbers[2:], np.array([3, 5])).tolist()
    []
    """
    if not len(odd_T) or np.isfinite(logged_T[: odd_T[0]]).sum() < NUMBERS_BEFORE:
        return odd_T[:0]
    return odd_T
