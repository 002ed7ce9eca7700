"""One learning curve as the law sees it, and what can be read off it before any fit."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from isocompute.arrays import Array

__all__ = ["MINIMUM_POINTS", "Curve", "Setting", "lasting_fall", "noise_level", "upper_bound"]

MINIMUM_POINTS = 4

Setting = tuple[int | None, int | None]
"""(problems per batch, rollouts per problem); None where a log does not say."""


@dataclass(frozen=True)
class Curve:
    """Validation reward of one run against compute, in order of compute, finite, at least four points."""

    name: str
    compute_C: Array
    values_C: Array
    problems_per_batch: int | None = None
    rollouts_per_problem: int | None = None
    seed: int | None = None

    @property
    def setting(self) -> Setting:
        """(problems per batch, rollouts per problem): runs that share it are seeds of one setting."""
        return self.problems_per_batch, self.rollouts_per_problem

    @property
    def batch_size(self) -> int | None:
        """B = Bp · n, where both are known."""
        if self.problems_per_batch is None or self.rollouts_per_problem is None:
            return None
        return self.problems_per_batch * self.rollouts_per_problem

    def until(self, end: int) -> Curve:
        """The curve's first `end` points."""
        return Curve(
            self.name,
            self.compute_C[:end],
            self.values_C[:end],
            self.problems_per_batch,
            self.rollouts_per_problem,
            self.seed,
        )


def noise_level(values_C: Array) -> float:
    """Standard deviation of the evaluation noise, from second differences (they cancel level and slope).

    The median makes it blind to jumps; a floor keeps a digitised, noise-free curve from claiming perfection.
    """
    floor = 1e-4 * max(float(np.abs(values_C).max()), 1e-12)
    if len(values_C) < 4:
        return max(floor, float(np.std(values_C)) * 0.5)
    second_C = values_C[2:] - 2.0 * values_C[1:-1] + values_C[:-2]
    return max(floor, 1.4826 * float(np.median(np.abs(second_C))) / math.sqrt(6.0))


def lasting_fall(values_C: Array) -> int | None:
    """Index of the first point of a fall that lasts to the end of the curve, or None.

    A fall lasts when at least three points, up to the last one, all lie below the best level (running median of three)
    by more than four noise levels and a fifth of the rise seen. A monotone curve says nothing about what follows.
    """
    n = len(values_C)
    if n < 6:
        return None
    smooth_C = np.median(np.stack([values_C[:-2], values_C[1:-1], values_C[2:]]), axis=0)
    best = float(smooth_C.max())
    drop = max(4.0 * noise_level(values_C), 0.2 * (best - float(values_C[: int(smooth_C.argmax()) + 2].min())))
    high = np.flatnonzero(values_C >= best - drop)
    start = int(high[-1]) + 1
    return start if n - start >= 3 else None


def upper_bound(values: Array) -> float:
    """What a ceiling may be at most: 1 for rates, else ten times the range seen above the best value."""
    low, high = float(values.min()), float(values.max())
    if low >= 0.0 and high <= 1.0:
        return 1.0
    return high + 10.0 * max(high - low, 1e-12)
