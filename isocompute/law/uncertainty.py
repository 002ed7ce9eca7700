"""Intervals over bootstrap draws, and how far repetitions (seeds) of a setting lie apart.

Two or three seeds say little about the spread they are drawn from: alone, two would need an interval of 12.7 standard
errors. So the variance between a setting's own seeds is shrunk, as in analyses of many small groups (Smyth 2004),
towards the median of the other settings, which one odd setting does not move, and towards ScaleRL's margin: ±.02 of the
scale between two runs, from three repetitions of one run. These priors count for a few degrees of freedom; the interval
is Student's t with all of them. For a setting of one seed the priors are all there is.

A fit weighs points, so a seed counts in the mean by its points: the mean of seeds with n₁, n₂, … points has
Σ n² / (Σ n)² of one seed's variance, 1 / S where all have as many. Where seeds have ended the others make up the curve.
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
"""ScaleRL's 95% half-width of a difference between two runs, of the scale the values lie on."""
_FEWEST = 20
"""Draws that the ends of an interval take."""
_TWO_SIDED = 1.96
_MARGIN_DEGREES = 1
"""Degrees of freedom that ScaleRL's margin counts for beside a setting's own seeds."""
_OTHERS_DEGREES = 4
"""Most that the other settings count for: theirs may differ."""
_STILL_RUNNING = 1.25
"""A seed counts as running up to this many times its last compute."""
_LEAST_RISEN = 0.5
"""Share of the rise from which the deviations of seeds are scaled up to all of it."""


def check_replicates(replicates: int) -> None:
    """Refuse too few."""
    if replicates < _FEWEST:
        raise InputError(f"replicates = {replicates}: intervals need at least {_FEWEST} of them.")


def percentiles(values_B: Array, level: float = 0.95) -> tuple[float, float]:
    """The central `level` of the draws."""
    low, high = np.quantile(values_B, [0.5 - 0.5 * level, 0.5 + 0.5 * level])
    return float(low), float(high)


def around(value: float, values_B: Array, level: float = 0.95) -> tuple[float, float]:
    """The central `level` of the draws, widened to hold the estimate; the estimate alone where there are no draws."""
    if not len(values_B):
        return value, value
    low, high = percentiles(values_B, level)
    return min(low, value), max(high, value)


def basic(
    statistic: Callable[[Array], Array], values_S: Array, replicates_SB: Array, level: float = 0.95
) -> tuple[float, tuple[float, float]]:
    """The basic bootstrap of a statistic over settings (axis 0), such as their best: estimate and interval.

    The best of several noisy values is too high, and the best of their draws higher still. That second step is seen,
    and subtracted: half of the bias between equal settings, all of it between others.
    """
    seen = float(statistic(values_S[:, None])[0])
    if not replicates_SB.shape[1]:
        return seen, (seen, seen)
    again_B = statistic(values_S[:, None] + replicates_SB - replicates_SB.mean(axis=1, keepdims=True))
    low, high = percentiles(again_B, level)
    estimate = 2.0 * seen - float(again_B.mean())
    return estimate, (min(2.0 * seen - high, estimate), max(2.0 * seen - low, estimate))


def by_chance(statistic: Callable[[Array], Array], values_S: Array, replicates_SB: Array) -> float:
    """Chance that equal settings show as much of a statistic (over axis 0) as these values do: a p-value."""
    if not replicates_SB.shape[1]:
        return 1.0
    equal_SB = replicates_SB - replicates_SB.mean(axis=1, keepdims=True)
    return float((statistic(equal_SB) >= statistic(values_S[:, None])).mean())


def t_over_normal(degrees: int) -> float:
    """How much wider a 95% interval is with Student's t of these degrees of freedom than with a normal.

    >>> round(t_over_normal(1), 2), round(t_over_normal(30), 2)
    (6.48, 1.04)
    """
    return float(stdtrit(degrees, 0.975) / ndtri(0.975))


def seed_deviation(error: float) -> float:
    """Standard deviation of one seed where `error` is the 95% half-width of a difference between two."""
    return error / _TWO_SIDED / math.sqrt(2.0)


def difference_error(deviation: float) -> float:
    """95% half-width of a difference between two seeds of this standard deviation."""
    return deviation * _TWO_SIDED * math.sqrt(2.0)


@dataclass(frozen=True)
class SeedSpread:
    """How the seeds of one setting differ."""

    deviation_SN: Array
    """Each seed's curve minus the mean of all that are running, at the points of all seeds, run after run; 0 where it
    has ended."""
    running_SN: Bools
    risen_N: Array
    """Share of its rise that the setting's curve has done there: repetitions begin at one base."""
    share_N: Array
    """Variance of the setting's curve there, in units of one seed's."""
    share: float
    """The same at its end."""

    @classmethod
    def of(cls, curves: Sequence[Curve], pooled_N: Array, own_N: Array) -> SeedSpread:
        """From each seed's own curve at its own points; elsewhere its deviation is interpolated."""
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
        """Degrees of freedom."""
        return len(self.deviation_SN) - 1

    @property
    def variance(self) -> float:
        """Of one seed, once all of the rise is done: deviations at the base are not scaled up to it."""
        free_N = self.running_SN.sum(axis=0) - 1
        top = float(self.risen_N[free_N > 0].max())  # as far as several are running
        risen_N = self.risen_N / top if top > 0 else np.ones_like(self.risen_N)
        weighted = (risen_N * self.deviation_SN) ** 2
        return float(weighted.sum() / (free_N * risen_N**4).sum()) / max(top, _LEAST_RISEN) ** 2


@dataclass(frozen=True)
class SeedEffect:
    """How far the mean of a setting's seeds may lie from that of many: a distribution of whole curves."""

    own_SN: Array
    """What a standard normal draw for each seed adds at the setting's points."""
    more_N: Array
    """What one more draw adds: the part of the variance that comes from the margin and the other settings."""
    level: float
    """Standard deviation once all of the rise is done."""

    @classmethod
    def of_level(cls, level: float, pooled_N: Array) -> SeedEffect:
        """A deviation in proportion to the rise of the curve given."""
        return cls(np.zeros((0, len(pooled_N))), level * _risen(pooled_N), level)

    def draw(self, count: int, rng: np.random.Generator) -> Array:
        """Curves to add to the setting's, draws × points."""
        own_BS, more_B1 = rng.standard_normal((count, len(self.own_SN))), rng.standard_normal((count, 1))
        return np.asarray(own_BS @ self.own_SN + more_B1 * self.more_N)


def seed_effects(spreads: Sequence[SeedSpread], scale: float) -> list[SeedEffect]:
    """The seed effect of every setting with several seeds, from shrunken variances; values lie on a scale of this
    length.
    """
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
        else:  # seeds that ended show no whole curves
            own_SN, rest = 0.0 * spread.deviation_SN, shrunken
        out.append(SeedEffect(own_SN, wider_N * math.sqrt(rest) * spread.risen_N, level))
    return out


def single_seed_deviation(spreads: Sequence[SeedSpread], scale: float) -> float:
    """Standard deviation between seeds for a setting of one seed, from the settings with several; 0 without those."""
    if not spreads:
        return 0.0
    degrees, variance = _prior(_median_variance(spreads), sum(spread.degrees for spread in spreads), scale)
    return t_over_normal(degrees) * math.sqrt(variance)


def _median_variance(spreads: Sequence[SeedSpread]) -> float:
    """The median over settings, each divided by the median of an estimated variance (Wilson and Hilferty 1931)."""
    if not spreads:
        return 0.0
    return float(np.median([spread.variance / (1.0 - 2.0 / (9.0 * spread.degrees)) ** 3 for spread in spreads]))


def _prior(middle: float, degrees: int, scale: float) -> tuple[int, float]:
    """Degrees of freedom and variance of the prior: ScaleRL's margin and other settings of so many degrees in all."""
    margin, others = seed_deviation(SEED_MARGIN * scale) ** 2, min(degrees, _OTHERS_DEGREES)
    prior = _MARGIN_DEGREES + others
    return prior, (_MARGIN_DEGREES * margin + others * middle) / prior


def _shares(curves: Sequence[Curve], running_SN: Bools) -> Array:
    """Σ n² / (Σ n)² over the seeds that are running, n their points up to where the first of them ends."""
    last_S1 = np.array([[c.compute_C[-1]] for c in curves])
    end_N = np.where(running_SN, last_S1, np.inf).min(axis=0)
    count_SN = np.stack([np.searchsorted(c.compute_C, end_N, side="right") for c in curves]) * running_SN
    return np.asarray((count_SN**2).sum(axis=0) / count_SN.sum(axis=0) ** 2)


def _risen(pooled_N: Array) -> Array:
    """Share of its rise that a curve has done at each of its points; 1 where it does not rise."""
    rise = float(np.ptp(pooled_N))
    return (pooled_N - pooled_N.min()) / rise if rise > 0 else np.ones_like(pooled_N)


def _position(compute_C: Array) -> Array:
    """Compute on a log scale; a point before training lies a doubling before the first."""
    first = float(compute_C[compute_C > 0].min())
    return np.asarray(np.log(np.maximum(compute_C, first / 2)))
