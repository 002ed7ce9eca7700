"""One learning curve, and what can be read off its values before any fit: noise level, scale, upper bound."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from isocompute.core.arrays import Array, Bools

__all__ = [
    "MINIMUM_POINTS",
    "Curve",
    "Setting",
    "are_percent",
    "median",
    "noise_level",
    "on_one_scale",
    "scale_of",
    "upper_bound",
]

MINIMUM_POINTS = 4
PERCENT = 100.0
_LARGEST_SUM = 10.0
"""Rewards that are sums of a few parts lie between 0 and this; values that begin at 0 and go beyond are percent."""
_ONE_SCALE = 2.0
"""Lengths of scales may differ this much: a reward from -1 to 1 looks like a rate where it never was negative."""

Setting = tuple[int | None, int | None]
"""(problems per batch, rollouts per problem); None where it was not logged."""


@dataclass(frozen=True)
class Curve:
    """Validation reward of one run against compute, in order of compute, finite, at least four points."""

    name: str
    compute_C: Array
    values_C: Array
    problems_per_batch: int | None = None
    rollouts_per_problem: int | None = None
    seed: int | None = None
    recipe: str = ""
    """The other settings of the run, as JSON; runs that differ in it are not seeds of each other."""
    ends_non_finite: bool = False
    """The run was evaluated after its last point, and every later value is NaN or infinite."""

    def __post_init__(self) -> None:
        for name in ("compute_C", "values_C"):
            object.__setattr__(self, name, np.asarray(getattr(self, name), dtype=np.float64))

    @property
    def recipe_fields(self) -> dict[str, Any]:
        """`recipe` as a dictionary; empty where the text is not a JSON object."""
        try:
            table = json.loads(self.recipe)
        except ValueError:
            return {}
        return table if isinstance(table, dict) else {}

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

    def averaged(self, most: int) -> Curve:
        """At most this many points, each the mean of consecutive ones; the base model's, at compute 0, is kept as it is."""
        if len(self.compute_C) <= most:
            return self
        lead = int(self.compute_C[0] <= 0)
        return replace(
            self,
            compute_C=_means(self.compute_C, lead, most - lead),
            values_C=_means(self.values_C, lead, most - lead),
        )

    def points_up_to(self, compute: float) -> int:
        """How many of its points lie at this compute or before, but for rounding."""
        return int((self.compute_C <= compute * (1 + 1e-12)).sum())

    def until(self, end: int) -> Curve:
        """The curve's first `end` points."""
        broke = self.ends_non_finite and end >= len(self.compute_C)
        return replace(self, compute_C=self.compute_C[:end], values_C=self.values_C[:end], ends_non_finite=broke)


def _means(values_C: Array, lead: int, groups: int) -> Array:
    """The first `lead` as they are, then the means of this many groups of neighbours, which differ in size by one."""
    size, larger = divmod(len(values_C) - lead, groups)
    middle = lead + larger * (size + 1)
    large, small = values_C[lead:middle].reshape(larger, size + 1), values_C[middle:].reshape(-1, size)
    return np.concatenate([values_C[:lead], large.mean(axis=1), small.mean(axis=1)])


def median(values_C: Array) -> float:
    """`numpy.median`, without the fifty microseconds of its checks."""
    ordered_C = np.sort(values_C)
    return 0.5 * float(ordered_C[(len(ordered_C) - 1) // 2] + ordered_C[len(ordered_C) // 2])


def noise_level(values_C: Array) -> float:
    """Standard deviation of the evaluation noise, from second differences (they cancel level and slope).

    The median makes it blind to jumps; a floor keeps a digitised, noise-free curve from claiming perfection.
    """
    floor = 1e-4 * max(float(np.abs(values_C).max()), 1e-12)
    if len(values_C) < 4:
        return max(floor, float(np.std(values_C)) * 0.5)
    second_C = values_C[2:] - 2.0 * values_C[1:-1] + values_C[:-2]
    return max(floor, 1.4826 * median(np.abs(second_C)) / math.sqrt(6.0))


def are_percent(low: Array, high: Array) -> Bools:
    """Which of these ranges are of values in percent: from 0 to 100, and beyond what a sum of rewards gives."""
    return (low >= 0.0) & (high > _LARGEST_SUM) & (high <= PERCENT)


def upper_bound(values: Array) -> float:
    """What a ceiling may be at most: 1 for values in [0, 1] or [-1, 1], 100 for percent, and never further above the
    best value than ten times the range seen.
    """
    low, high = values.min(), values.max()
    if low >= -1.0 and high <= 1.0:
        return 1.0
    far = float(high + 10.0 * max(high - low, 1e-12))
    return min(PERCENT, far) if are_percent(low, high) else far


def scale_of(values: Array) -> float:
    """The length of the scale that values lie on: 1 for rates, 2 for [-1, 1], 100 for percent, else the range seen."""
    low, high = values.min(), values.max()
    if low >= -1.0 and high <= 1.0:
        return 1.0 if low >= 0.0 else 2.0
    return PERCENT if are_percent(low, high) else max(float(high - low), 1e-12)


def on_one_scale(curves: Sequence[Curve]) -> bool:
    """Whether the curves' values lie on scales of about one length."""
    scales = [scale_of(curve.values_C) for curve in curves]
    return not scales or max(scales) <= _ONE_SCALE * min(scales)
