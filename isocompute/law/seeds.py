"""How far repetitions of a setting lie apart, and how far the mean of a few of them may lie from that of many.

Two or three seeds say little about the spread they are drawn from: alone, two would need an interval of 12.7 standard
errors. So a setting's own spread is moderated, as in analyses of many small groups (Smyth 2004), by what else is known
of it: the other settings of the same fit, by their median, which one odd setting does not move, and ScaleRL's margin.
What they say counts for a few degrees of freedom, the interval is Student's t with all of them. For a setting of one
seed that is all there is; where no setting has several, nothing but ScaleRL's margin is left: ±.02 of the scale, from
three repetitions of one run, by which the paper tells ceilings apart.

A fit weighs points, so a seed counts in the mean by its points: that of n₁, n₂, … of them varies by Σ n² / (Σ n)² of
one seed's variance, 1 / S where all have as many. Where seeds have ended, those that go on make up the curve alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from isocompute.core.arrays import Array, Bools
from isocompute.law.curve import Curve
from isocompute.law.student import widening

__all__ = ["ONE_SEED_ERROR", "Luck", "Spread", "difference_error", "moderated", "of_one", "one_seed_spread"]

ONE_SEED_ERROR = 0.02
"""95% half-width of a difference between two runs, of the scale the values lie on."""
_TWO_SIDED = 1.96
_MARGIN_DEGREES = 1
"""Degrees of freedom that the margin counts for beside a setting's own."""
_OTHERS_DEGREES = 4
"""Most that the other settings count for: theirs may differ."""
_NEARLY = 1.25
"""A seed counts as running up to this many times its last compute."""
_LEAST_RISEN = 0.5
"""Share of the rise from which what seeds differ in is scaled up to all of it."""


def one_seed_spread(error: float) -> float:
    """Standard deviation of one seed where `error` is the 95% half-width of a difference between two."""
    return error / _TWO_SIDED / math.sqrt(2.0)


def difference_error(spread: float) -> float:
    """95% half-width of a difference between two seeds, `spread` the standard deviation of one."""
    return spread * _TWO_SIDED * math.sqrt(2.0)


@dataclass(frozen=True)
class Spread:
    """What the seeds of one setting show."""

    deviation_SN: Array
    """Each seed's curve less the mean of all that are running, at the points of all seeds, run after run; 0 where it is
    not."""
    running_SN: Bools
    risen_N: Array
    """Share of its rise that the setting's curve has behind it there: repetitions begin at one base."""
    share_N: Array
    """Of one seed's variance that the setting's curve has there."""
    share: float
    """The same at its end."""

    @classmethod
    def of(cls, curves: Sequence[Curve], pooled_N: Array, own_N: Array) -> Spread:
        """From each seed's own curve at its own points; elsewhere its deviation is read between them."""
        sizes = np.cumsum([len(c.compute_C) for c in curves])[:-1]
        off_S = np.split(own_N - pooled_N, sizes)
        at_S = [_position(c.compute_C) for c in curves]
        deviation_SN = np.stack(
            [
                np.concatenate([off_C if at is mine else np.interp(at, mine, off_C) for at in at_S])
                for mine, off_C in zip(at_S, off_S, strict=True)
            ]
        )
        compute_N = np.concatenate([c.compute_C for c in curves])
        running_SN = compute_N <= _NEARLY * np.array([[c.compute_C[-1]] for c in curves])
        deviation_SN = np.where(running_SN, deviation_SN - deviation_SN.mean(axis=0, where=running_SN), 0.0)
        share_N = _shares(curves, running_SN)
        return cls(deviation_SN, running_SN, _risen(pooled_N), share_N, float(share_N[compute_N.argmax()]))

    @property
    def degrees(self) -> int:
        """Of freedom."""
        return len(self.deviation_SN) - 1

    @property
    def variance(self) -> float:
        """Of one seed, once all of the rise is done: what they differ in at the base is not scaled up to it."""
        free_N = self.running_SN.sum(axis=0) - 1
        top = float(self.risen_N[free_N > 0].max())  # as far as several are running
        risen_N = self.risen_N / top if top > 0 else np.ones_like(self.risen_N)
        weighted = (risen_N * self.deviation_SN) ** 2
        return float(weighted.sum() / (free_N * risen_N**4).sum()) / max(top, _LEAST_RISEN) ** 2


@dataclass(frozen=True)
class Luck:
    """How far the mean of a setting's seeds may lie from that of many, as draws of whole curves."""

    own_SN: Array
    """What a standard normal draw for each seed adds at the setting's points."""
    more_N: Array
    """What one more adds: as much of the margin and of the other settings' spread as is counted."""
    level: float
    """Standard deviation of the level, once all of the rise is done."""

    @classmethod
    def of_level(cls, level: float, pooled_N: Array) -> Luck:
        """Nothing but a level, for the curve given."""
        return cls(np.zeros((0, len(pooled_N))), level * _risen(pooled_N), level)

    def draw(self, count: int, rng: np.random.Generator) -> Array:
        """Curves to add to the setting's, draws × points."""
        own_BS, more_B1 = rng.standard_normal((count, len(self.own_SN))), rng.standard_normal((count, 1))
        return np.asarray(own_BS @ self.own_SN + more_B1 * self.more_N)


def moderated(spreads: Sequence[Spread], scale: float) -> list[Luck]:
    """The luck of every setting that has several seeds; `scale` is what their values lie on."""
    middle, every = _middle(spreads), sum(spread.degrees for spread in spreads)
    out = []
    for spread in spreads:
        prior, before = _known(middle, every - spread.degrees, scale)
        total = prior + spread.degrees
        variance = (prior * before + spread.degrees * spread.variance) / total
        level = widening(total) * math.sqrt(variance * spread.share)
        wider_N = widening(total) * np.sqrt(spread.share_N)
        if spread.running_SN.all():
            own_SN, rest = wider_N / math.sqrt(total) * spread.deviation_SN, prior / total * before
        else:  # seeds that ended show no whole curves
            own_SN, rest = 0.0 * spread.deviation_SN, variance
        out.append(Luck(own_SN, wider_N * math.sqrt(rest) * spread.risen_N, level))
    return out


def of_one(spreads: Sequence[Spread], scale: float) -> float:
    """Standard deviation of the level of a setting of one seed as those with several show it; 0 where none has."""
    if not spreads:
        return 0.0
    prior, before = _known(_middle(spreads), sum(spread.degrees for spread in spreads), scale)
    return widening(prior) * math.sqrt(before)


def _middle(spreads: Sequence[Spread]) -> float:
    """The variance that settings have in the median."""
    return float(np.median([spread.variance / _median_share(spread.degrees) for spread in spreads])) if spreads else 0.0


def _known(middle: float, degrees: int, scale: float) -> tuple[int, float]:
    """What the margin, and other settings of this many degrees of freedom, say of a setting's variance: of how many
    degrees that is, and the variance.
    """
    margin, others = one_seed_spread(ONE_SEED_ERROR * scale) ** 2, min(degrees, _OTHERS_DEGREES)
    prior = _MARGIN_DEGREES + others
    return prior, (_MARGIN_DEGREES * margin + others * middle) / prior


def _shares(curves: Sequence[Curve], running_SN: Bools) -> Array:
    """Σ n² / (Σ n)² over the seeds that are running, n their points up to where the first of them ends."""
    last_S1 = np.array([[c.compute_C[-1]] for c in curves])
    end_N = np.where(running_SN, last_S1, np.inf).min(axis=0)
    count_SN = np.stack([np.searchsorted(c.compute_C, end_N, side="right") for c in curves]) * running_SN
    return np.asarray((count_SN**2).sum(axis=0) / count_SN.sum(axis=0) ** 2)


def _risen(pooled_N: Array) -> Array:
    """Share of its rise that a curve has behind it at each of its points; all where it does not rise."""
    rise = float(np.ptp(pooled_N))
    return (pooled_N - pooled_N.min()) / rise if rise > 0 else np.ones_like(pooled_N)


def _position(compute_C: Array) -> Array:
    """Compute on a log scale; a point before training lies a doubling before the first."""
    first = float(compute_C[compute_C > 0].min())
    return np.asarray(np.log(np.maximum(compute_C, first / 2)))


def _median_share(degrees: int) -> float:
    """Median of an estimated variance over its mean (Wilson and Hilferty 1931)."""
    return float((1.0 - 2.0 / (9.0 * degrees)) ** 3)
