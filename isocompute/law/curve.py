"""One learning curve as the law sees it, and what can be read off it before any fit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from isocompute.arrays import Array, Bools

__all__ = [
    "MINIMUM_POINTS",
    "Curve",
    "Setting",
    "fitted",
    "lasting_fall",
    "median",
    "noise_level",
    "on_one_scale",
    "scale_of",
    "upper_bound",
    "usable_end",
]

MINIMUM_POINTS = 4
_ENOUGH_FOR_NOISE, _SHORT = 6, 12
"""Points from which noise can be told, and from which two or three that fell no longer hide it."""
_GRAINS = 2.5
"""Steps of the smallest size that a fall has to exceed where values move in steps."""
_DIPS = 4
"""At most one point in so many is a dip; more of them are how a run is."""
_MOVES = 0.8
"""Share of evaluations that change a value, below which it moves in steps."""
_ONE_SCALE = 2.0
"""Lengths of scales may differ so much: a reward from -1 to 1 looks like a rate where it never was negative."""

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
    recipe: str = ""
    """What else is known of how the run was made; runs that differ in it are not seeds of each other."""
    lost: bool = False
    """Whether later evaluations are there and are no numbers: the run broke after its last point."""

    def __post_init__(self) -> None:
        for name in ("compute_C", "values_C"):  # `condense` reads their bytes as float64
            object.__setattr__(self, name, np.asarray(getattr(self, name), dtype=np.float64))

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
        """At most so many points, each the mean of its neighbours: evaluation noise shrinks, the shape stays.

        The base model's evaluation at compute 0 stays a point of its own: averaged in, it would pose as compute > 0.
        """
        if len(self.compute_C) <= most:
            return self
        lead = int(self.compute_C[0] <= 0)
        return replace(
            self,
            compute_C=_means(self.compute_C, lead, most - lead),
            values_C=_means(self.values_C, lead, most - lead),
        )

    def until(self, end: int) -> Curve:
        """The curve's first `end` points."""
        lost = self.lost and end >= len(self.compute_C)
        return replace(self, compute_C=self.compute_C[:end], values_C=self.values_C[:end], lost=lost)


def _means(values_C: Array, lead: int, groups: int) -> Array:
    """The first `lead` as they are, then the means of so many groups of neighbours, which differ in size by one."""
    size, larger = divmod(len(values_C) - lead, groups)
    middle = lead + larger * (size + 1)
    large, small = values_C[lead:middle].reshape(larger, size + 1), values_C[middle:].reshape(-1, size)
    return np.concatenate([values_C[:lead], large.mean(axis=1), small.mean(axis=1)])


def median(values_C: Array) -> float:
    """numpy's median of a short list, without the fifty microseconds of its checks."""
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


def lasting_fall(values_C: Array, shortest: int = 3, *, deep: int = 1) -> int | None:
    """Index of the first point of a fall that lasts to the end of the curve, or None.

    A fall lasts when at least `shortest` points, up to the last one, all lie below the best level (running median of
    three) by more than four noise levels and a fifth of the rise seen; or the last `deep` of them by eight noise levels
    and half of the rise, since no evaluation is that unlucky; or the last two of them by six noise levels and all of
    the rise. One or two problems more or less of a small set are no fall. A monotone curve says nothing about what
    follows.
    """
    n = len(values_C)
    if n < MINIMUM_POINTS + 1:
        return None
    if n >= _ENOUGH_FOR_NOISE:
        before_C, here_C, after_C = values_C[:-2], values_C[1:-1], values_C[2:]
        lower_C, higher_C = np.minimum(before_C, here_C), np.maximum(before_C, here_C)
        smooth_C = np.maximum(lower_C, np.minimum(higher_C, after_C))
        best = float(smooth_C.max())
        lowest = float(values_C[: int(smooth_C.argmax()) + 2].min())
        rise = best - lowest
        noise, grain = noise_level(values_C), _steps(values_C)
        high = np.flatnonzero(values_C >= best - max(4.0 * noise, 0.2 * rise, grain))
        start = int(high[-1]) + 1
        fallen_C = values_C[start:]
        if len(fallen_C) >= shortest:
            return start
        last = max(deep, 1)
        if len(fallen_C) >= last and float(fallen_C[-last:].max()) < best - max(8.0 * noise, 0.5 * rise, grain):
            return start
        if len(fallen_C) >= max(deep, 2) and float(fallen_C[-2:].max()) < min(lowest, best - 6.0 * noise):
            return start
    return _collapse(values_C, deep) if n < _SHORT else None


def usable_end(values_C: Array) -> int:
    """How many points a monotone curve may be fitted to: those before a lasting fall. Where that leaves too few, the
    first four will do if the fall has hardly begun in them.
    """
    fall = lasting_fall(values_C)
    if fall is None:
        return len(values_C)
    half = 0.5 * (float(values_C[:fall].max()) + median(values_C[fall:]))
    hardly = bool((values_C[fall:MINIMUM_POINTS] > half).all())
    return max(fall, MINIMUM_POINTS) if hardly else fall


def fitted(values_C: Array) -> Bools:
    """The points that a monotone curve may be fitted to: up to a lasting fall, and without those in between that lie
    below what came before by eight noise levels and half of all the rise, where the run came back afterwards.
    """
    end = usable_end(values_C)
    keep_C = np.arange(len(values_C)) < end
    if end < _SHORT:
        return keep_C
    here_C = values_C[:end]
    smooth_C = np.pad(np.sort(np.stack([here_C[:-2], here_C[1:-1], here_C[2:]]), axis=0)[1], 1, mode="edge")
    before_C = np.maximum.accumulate(np.concatenate([smooth_C[:1], smooth_C[:-1]]))
    after_C = np.maximum.accumulate(np.concatenate([smooth_C[1:], smooth_C[-1:]])[::-1])[::-1]
    noise, rise, step = noise_level(here_C), float(np.ptp(smooth_C)), _steps(here_C)
    deep_C = here_C < before_C - max(8.0 * noise, 0.5 * rise, step)
    back_C = after_C >= before_C - max(4.0 * noise, 0.2 * rise, step)
    dips_C = deep_C & back_C
    if dips_C.sum() <= end // _DIPS and np.ptp(here_C[~dips_C]):
        keep_C[:end] &= ~dips_C
    return keep_C


def _collapse(values_C: Array, deep: int) -> int | None:
    """A fall of a short curve, whose noise as a whole is the fall itself: below all that came before and half of the
    best, by a tenth of the scale and eight times the noise before it.
    """
    start = int(np.diff(values_C).argmin()) + 1
    before_C, fallen_C = values_C[:start], values_C[start:]
    if start < MINIMUM_POINTS or len(fallen_C) < deep:
        return None
    best, low, now = float(before_C.max()), float(before_C.min()), float(fallen_C.max())
    least = max(8.0 * noise_level(before_C), _steps(before_C), 0.1 * scale_of(values_C))
    return start if now < low and best - now > least and (low < 0 or now < 0.5 * best) else None


def _steps(values_C: Array) -> float:
    """What a fall has to exceed where a curve often stands still, as greedy evaluations of few problems do: two of its
    smallest steps and a half, but no more than .15 of the scale.
    """
    step_C = np.abs(np.diff(values_C))
    moved = step_C[step_C > 0]
    if not 0 < len(moved) < _MOVES * len(step_C):
        return 0.0
    return min(_GRAINS * float(moved.min()), 0.15 * scale_of(values_C))


def upper_bound(values: Array) -> float:
    """What a ceiling may be at most: 1 for values in [0, 1] or [-1, 1], 100 for what looks like percent or points, and
    never further above the best value than ten times the range seen.
    """
    low, high = float(values.min()), float(values.max())
    if low >= -1.0 and high <= 1.0:
        return 1.0
    far = high + 10.0 * max(high - low, 1e-12)
    return min(100.0, far) if low >= 0.0 and high <= 100.0 else far


def scale_of(values: Array) -> float:
    """The length of the scale that values lie on: 1 for rates, 2 for [-1, 1], 100 for percent, else the range seen."""
    low, high = float(values.min()), float(values.max())
    if low >= -1.0 and high <= 1.0:
        return 1.0 if low >= 0.0 else 2.0
    return 100.0 if low >= 0.0 and 20.0 < high <= 100.0 else max(high - low, 1e-12)


def on_one_scale(curves: Sequence[Curve]) -> bool:
    """Whether the curves' values lie on scales of about one length."""
    scales = [scale_of(curve.values_C) for curve in curves]
    return not scales or max(scales) <= _ONE_SCALE * min(scales)
