"""Intervals over bootstrap draws, and the variance between seeds of a setting.

Two or three seeds give a poor estimate of their variance: two alone would need an interval of 12.7 standard errors. So
the variance between a setting's seeds is shrunk, as in analyses of many small groups (Smyth 2004). One prior is the
median of the other settings, which a single outlier does not move. The other is ScaleRL's margin: ±.02 of the scale
between two runs, from three repetitions of one run. These priors count for a few degrees of freedom, and the interval
is Student's t with all of them. A setting with one seed has the priors alone.

A fit weights points, so each seed counts by its number of points. The mean of seeds with n₁, n₂, … points has
Σ n² / (Σ n)² of one seed's variance, or 1 / S for S seeds of equal length. After a seed ends, the others make up the
curve.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri, stdtrit

from isocompute.core.arrays import Array, Bools
from isocompute.core.curve import Curve
from isocompute.core.errors import InputError

SEED_MARGIN = 0.02
"""ScaleRL's 95% half-width of a difference between two runs, as a share of the values' scale."""
_FEWEST = 20
"""Least number of draws for an interval."""
_TWO_SIDED = 1.96
_MARGIN_DEGREES = 1
"""Degrees of freedom of the prior from ScaleRL's margin."""
_OTHERS_DEGREES = 4
"""Most degrees of freedom of the prior from the other settings, whose variance may differ."""
_STILL_RUNNING = 1.25
"""A seed counts as running up to this many times its last compute."""
_LEAST_RISEN = 0.5
"""Least share of the rise from which deviations are extrapolated to the whole rise."""


def check_replicates(replicates: int) -> None:
    """Raise if there are too few bootstrap replicates for an interval."""
    if replicates < _FEWEST:
        raise InputError(f"replicates = {replicates}: intervals need at least {_FEWEST} of them.")


def percentiles(values_B: Array, level: float = 0.95) -> tuple[float, float]:
    """The central interval that contains a share `level` of the draws."""
    low, high = np.quantile(values_B, [0.5 - 0.5 * level, 0.5 + 0.5 * level])
    return float(low), float(high)


def around(value: float, values_B: Array, level: float = 0.95) -> tuple[float, float]:
    """The central interval of the draws, widened to contain the estimate; without draws, the estimate alone."""
    if not len(values_B):
        return value, value
    low, high = percentiles(values_B, level)
    return min(low, value), max(high, value)


def basic(
    statistic: Callable[[Array], Array], values_S: Array, replicates_SB: Array, level: float = 0.95
) -> tuple[float, tuple[float, float]]:
    """The basic bootstrap of a statistic over settings (axis 0), such as their best: estimate and interval.

    The best of several noisy values is biased upwards, and the best of their draws even more. The second bias can be
    measured and is subtracted. That removes half of the bias between equal settings, and all of it between others.
    """
    seen = float(statistic(values_S[:, None])[0])
    if not replicates_SB.shape[1]:
        return seen, (seen, seen)
    again_B = statistic(values_S[:, None] + replicates_SB - replicates_SB.mean(axis=1, keepdims=True))
    low, high = percentiles(again_B, level)
    estimate = 2.0 * seen - float(again_B.mean())
    return estimate, (min(2.0 * seen - high, estimate), max(2.0 * seen - low, estimate))


def by_chance(statistic: Callable[[Array], Array], values_S: Array, replicates_SB: Array) -> float:
    """The p-value of a statistic (over axis 0): the chance that equal settings reach the value seen."""
    if not replicates_SB.shape[1]:
        return 1.0
    equal_SB = replicates_SB - replicates_SB.mean(axis=1, keepdims=True)
    return float((statistic(equal_SB) >= statistic(values_S[:, None])).mean())


def t_over_normal(degrees: int) -> float:
    """Ratio of the 95% interval of Student's t with these degrees of freedom to that of a normal distribution.

    >>> round(t_over_normal(1), 2), round(t_over_normal(30), 2)
    (6.48, 1.04)
    """
    return float(stdtrit(degrees, 0.975) / ndtri(0.975))


def seed_deviation(error: float) -> float:
    """Standard deviation of one seed, if `error` is the 95% half-width of a difference between two."""
    return error / _TWO_SIDED / math.sqrt(2.0)


def difference_error(deviation: float) -> float:
    """95% half-width of a difference between two seeds of this standard deviation."""
    return deviation * _TWO_SIDED * math.sqrt(2.0)


@dataclass(frozen=True)
class SeedSpread:
    """How the seeds of one setting differ."""

    deviation_SN: Array
    """Each seed's curve minus the mean of all running seeds, at the points of all seeds, run after run; 0 after its
    end."""
    running_SN: Bools
    risen_N: Array
    """Share of the rise that the setting's curve has done at each point; seeds start at the same base."""
    share_N: Array
    """Variance of the setting's curve at each point, in units of one seed's."""
    share: float
    """Variance of the setting's curve at its end, in units of one seed's."""

    @classmethod
    def of(cls, curves: Sequence[Curve], pooled_N: Array, own_N: Array) -> SeedSpread:
        """From each seed's own curve at its own points; at other points its deviation is interpolated."""
        sizes = np.cumsum([len(c.compute_C) for c in curves])[:-1]
        off_S = np.split(own_N - pooled_N, sizes)
        at_S = [_position(c.compute_C) for c in curves]
        at_N = np.concatenate(at_S)
        deviation_SN = np.stack([np.interp(at_N, mine_C, off_C) for mine_C, off_C in zip(at_S, off_S, strict=True)])
        compute_N = np.concatenate([c.compute_C for c in curves])
        running_SN = compute_N <= _STILL_RUNNING * np.array([[c.compute_C[-1]] for c in curves])
        deviation_SN = np.where(running_SN, deviation_SN - deviation_SN.mean(axis=0, where=running_SN), 0.0)
        share_N = _shares(curves, running_SN)
        return cls(deviation_SN, running_SN, _risen(pooled_N), share_N, float(share_N[compute_N.argmax()]))

    @property
    def degrees(self) -> int:
        """Degrees of freedom of the variance between the seeds."""
        return len(self.deviation_SN) - 1

    @property
    def variance(self) -> float:
        """Variance of one seed at the end of the rise; deviations near the base count little."""
        free_N = self.running_SN.sum(axis=0) - 1
        top = float(self.risen_N[free_N > 0].max())  # at points where several seeds are running
        risen_N = self.risen_N / top if top > 0 else np.ones_like(self.risen_N)
        weighted = (risen_N * self.deviation_SN) ** 2
        return float(weighted.sum() / (free_N * risen_N**4).sum()) / max(top, _LEAST_RISEN) ** 2


@dataclass(frozen=True)
class SeedEffect:
    """Error of the mean of a setting's few seeds, as a distribution of whole curves."""

    own_SN: Array
    """Factor of a standard normal draw for each seed, at the setting's points."""
    more_N: Array
    """Factor of one more draw, for the part of the variance that comes from the priors."""
    level: float
    """Standard deviation at the end of the rise."""

    @classmethod
    def of_level(cls, level: float, pooled_N: Array) -> SeedEffect:
        """An effect in proportion to the rise that the curve has done, with this standard deviation at its end."""
        return cls(np.zeros((0, len(pooled_N))), level * _risen(pooled_N), level)

    def draw(self, count: int, rng: np.random.Generator) -> Array:
        """Deviations to add to the setting's curve, draws × points."""
        own_BS, more_B1 = rng.standard_normal((count, len(self.own_SN))), rng.standard_normal((count, 1))
        return np.asarray(own_BS @ self.own_SN + more_B1 * self.more_N)


def seed_effects(spreads: Sequence[SeedSpread], scale: float) -> list[SeedEffect]:
    """The seed effect of every setting with several seeds, from shrunken variances; `scale` is that of the values."""
    middle, every = _median_variance(spreads), sum(spread.degrees for spread in spreads)
    out = []
    for spread in spreads:
        degrees, variance = _prior(middle, every - spread.degrees, scale)
        total = degrees + spread.degrees
        shrunken = (degrees * variance + spread.degrees * spread.variance) / total
        level = t_over_normal(total) * math.sqrt(shrunken * spread.share)
        wider_N = t_over_normal(total) * np.sqrt(spread.share_N)
        if spread.running_SN.all():
            own_SN, rest = wider_N / math.sqrt(total) * spread.deviation_SN, degrees / total * variance
        else:  # a seed that ended shows no deviation of a whole curve
            own_SN, rest = 0.0 * spread.deviation_SN, shrunken
        out.append(SeedEffect(own_SN, wider_N * math.sqrt(rest) * spread.risen_N, level))
    return out


def single_seed_deviation(spreads: Sequence[SeedSpread], scale: float) -> float:
    """Standard deviation between seeds for settings with one seed, from those with several; 0 if there are none."""
    if not spreads:
        return 0.0
    degrees, variance = _prior(_median_variance(spreads), sum(spread.degrees for spread in spreads), scale)
    return t_over_normal(degrees) * math.sqrt(variance)


def _median_variance(spreads: Sequence[SeedSpread]) -> float:
    """Median variance over settings, corrected for the median of a χ² variable (Wilson and Hilferty 1931)."""
    if not spreads:
        return 0.0
    return float(np.median([spread.variance / (1.0 - 2.0 / (9.0 * spread.degrees)) ** 3 for spread in spreads]))


def _prior(middle: float, degrees: int, scale: float) -> tuple[int, float]:
    """Degrees of freedom and variance of the prior: ScaleRL's margin and the other settings' median, `middle`.

    `degrees` are the degrees of freedom of all the other settings.
    """
    margin, others = seed_deviation(SEED_MARGIN * scale) ** 2, min(degrees, _OTHERS_DEGREES)
    prior = _MARGIN_DEGREES + others
    return prior, (_MARGIN_DEGREES * margin + others * middle) / prior


def _shares(curves: Sequence[Curve], running_SN: Bools) -> Array:
    """Σ n² / (Σ n)² over the running seeds, with n the number of points of each up to the first end among them."""
    last_S1 = np.array([[c.compute_C[-1]] for c in curves])
    end_N = np.where(running_SN, last_S1, np.inf).min(axis=0)
    count_SN = np.stack([np.searchsorted(c.compute_C, end_N, side="right") for c in curves]) * running_SN
    return np.asarray((count_SN**2).sum(axis=0) / count_SN.sum(axis=0) ** 2)


def _risen(pooled_N: Array) -> Array:
    """Share of its rise that a curve has done at each of its points; 1 if it does not rise."""
    rise = float(np.ptp(pooled_N))
    return (pooled_N - pooled_N.min()) / rise if rise > 0 else np.ones_like(pooled_N)


def _position(compute_C: Array) -> Array:
    """Compute on a log scale; a point before training lies a doubling before the first."""
    first = float(compute_C[compute_C > 0].min())
    return np.asarray(np.log(np.maximum(compute_C, first / 2)))
