"""Reward that never rose: the commonest failure, which no fall or drift shows.

A reward has risen where the mean of what follows its first 1, 2, 4, … values, or of its last 4, 8, 16, …, lies three
standard errors above the mean of what came before: the former sees a rise that came early and was kept, the latter one
that comes late. More is asked of a longer series, which has had more chances: the square of the three grows by 2 ln of
its length, so that every doubling is as likely to show a rise that is none. The noise behind these errors is the
series' own, without any prior: the mean of its moves, which for noise of standard deviation σ is 2σ/√π.

Not to have seen a rise says nothing while noise would hide one. So a reward counts as stalled only from where a tenth
of its scale, between its first half and its second, would be three standard errors.
"""

from __future__ import annotations

import math

import numpy as np

from isocompute.core.arrays import Array
from isocompute.diagnose.health.rewards import binomial_scale

__all__ = ["FEWEST_FOR_PROGRESS", "FEWEST_OF_TRAINING", "has_risen", "stalled_since"]

FEWEST_FOR_PROGRESS = 8
"""Evaluations before which a slow start is no standstill."""
FEWEST_OF_TRAINING = 40
"""The same of batches, of which a run has many more: two full levels."""
RISE = 3.0
MATTERS = 0.1
"""A rise that must be able to show, of the scale."""
_LAST = 4
"""Values at the end that can be a rise: a single high one is an outlier."""


def has_risen(values_T: Array) -> bool:
    """Whether the reward rose at any time, of the points up to there: what rose once has learned."""
    count = len(values_T)
    if count < FEWEST_FOR_PROGRESS:
        return False
    total_T = np.concatenate([[0.0], np.cumsum(values_T - values_T[0])])
    noise_T = _noise(values_T)
    asked_T = np.sqrt(RISE**2 + 2.0 * np.log(np.arange(1, count + 1) / FEWEST_FOR_PROGRESS).clip(0.0))
    for power in range(int(math.log2(count - 1)) + 1):
        part = 2**power
        end_T = np.arange(max(part + 1, FEWEST_FOR_PROGRESS), count + 1)  # how many values are seen
        splits = [np.full(len(end_T), part)] + ([end_T - part] if part >= _LAST else [])
        for split_T in splits:
            before_T = total_T[split_T] / split_T
            after_T = (total_T[end_T] - total_T[split_T]) / (end_T - split_T)
            error_T = noise_T[end_T - 1] * np.sqrt(1.0 / split_T + 1.0 / (end_T - split_T))
            if np.any(after_T - before_T > asked_T[end_T - 1] * error_T):
                return True
    return False


def stalled_since(values_T: Array, *, fewest: int) -> int | None:
    """Of a reward that has not risen, the point from which a rise that matters would have shown."""
    count_T = np.arange(1, len(values_T) + 1)
    error_T = _noise(values_T) * 2.0 / np.sqrt(count_T)
    mean_T = np.cumsum(values_T / count_T[-1]) * (count_T[-1] / count_T)
    enough_T = (count_T >= fewest) & (RISE * error_T <= MATTERS * binomial_scale(values_T, rate_T=mean_T))
    return int(enough_T.argmax()) if enough_T.any() else None


def _noise(values_T: Array) -> Array:
    """Standard deviation of the noise by the mean move up to each point; a trend only adds to it."""
    moves_T = np.abs(np.diff(values_T, prepend=values_T[0]))
    return np.cumsum(moves_T) / np.maximum(1, np.arange(len(values_T))) * (math.sqrt(math.pi) / 2.0)
