"""How far repetitions of a setting lie apart, and how far the mean of a few of them may lie from that of many.

Two or three seeds say little about the spread they are drawn from: alone, two would need an interval of 12.7 standard
errors. So a setting's own spread is moderated, as in analyses of many small groups (Smyth 2004), by what else is known
of it: the other settings of the same fit, by their median, which one odd setting does not move, and ScaleRL's margin.
What they say counts for a few degrees of freedom, the interval is Student's t with all of them.

With one seed a side nothing but ScaleRL's margin is left: ±.02 of the scale, from three repetitions of one run, by
which the paper tells ceilings apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from isocompute.arrays import Array
from isocompute.law.curve import Curve
from isocompute.law.student import widening

__all__ = ["ONE_SEED_ERROR", "Luck", "Spread", "moderated", "one_seed_spread"]

ONE_SEED_ERROR = 0.02
"""95% half-width of a difference between two runs, of the scale the values lie on."""
_TWO_SIDED = 1.96
_MARGIN_DEGREES = 1
"""Degrees of freedom that the margin counts for beside a setting's own."""
_OTHERS_DEGREES = 4
"""Most that the other settings count for: theirs may differ."""


def one_seed_spread(error: float) -> float:
    """Standard deviation of one seed where `error` is the 95% half-width of a difference between two."""
    return error / _TWO_SIDED / math.sqrt(2.0)


@dataclass(frozen=True)
class Spread:
    """What the seeds of one setting show."""

    deviation_SN: Array
    """Each seed's curve less the mean of all, at the points of all seeds, run after run."""
    risen_N: Array
    """Share of its rise that the setting's curve has behind it there: repetitions begin at one base."""

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
        low, rise = float(pooled_N.min()), float(np.ptp(pooled_N))
        return cls(deviation_SN - deviation_SN.mean(axis=0), (pooled_N - low) / rise if rise > 0 else pooled_N * 0 + 1)

    @property
    def degrees(self) -> int:
        """Of freedom."""
        return len(self.deviation_SN) - 1

    @property
    def variance(self) -> float:
        """Of one seed, once all of the rise is done: what they differ in at the base is not scaled up to it."""
        weighted = (self.risen_N * self.deviation_SN) ** 2
        return float(weighted.sum() / self.degrees / (self.risen_N**4).sum())


@dataclass(frozen=True)
class Luck:
    """How far the mean of a setting's seeds may lie from that of many, as draws of whole curves."""

    own_SN: Array
    """What a standard normal draw for each seed adds at the setting's points."""
    more_N: Array
    """What one more adds: as much of the margin and of the other settings' spread as is counted."""
    level: float
    """Standard deviation of the level, once all of the rise is done."""

    def draw(self, count: int, rng: np.random.Generator) -> Array:
        """Curves to add to the setting's, draws × points."""
        own_BS, more_B1 = rng.standard_normal((count, len(self.own_SN))), rng.standard_normal((count, 1))
        return np.asarray(own_BS @ self.own_SN + more_B1 * self.more_N)


def moderated(spreads: Sequence[Spread], scale: float) -> list[Luck]:
    """The luck of every setting that has several seeds; `scale` is what their values lie on."""
    if not spreads:
        return []
    margin = one_seed_spread(ONE_SEED_ERROR * scale) ** 2
    every = sum(spread.degrees for spread in spreads)
    middle = float(np.median([spread.variance / _median_share(spread.degrees) for spread in spreads]))
    out = []
    for spread in spreads:
        others = min(every - spread.degrees, _OTHERS_DEGREES)
        prior = _MARGIN_DEGREES + others
        before = (_MARGIN_DEGREES * margin + others * middle) / prior
        total = prior + spread.degrees
        wider, seeds = widening(total), spread.degrees + 1
        own = wider * math.sqrt(spread.degrees / total / (seeds * spread.degrees))
        more = wider * math.sqrt(prior / total * before / seeds)
        level = wider * math.sqrt((prior * before + spread.degrees * spread.variance) / total / seeds)
        out.append(Luck(own * spread.deviation_SN, more * spread.risen_N, level))
    return out


def _position(compute_C: Array) -> Array:
    """Compute on a log scale; a point before training lies a doubling before the first."""
    first = float(compute_C[compute_C > 0].min())
    return np.asarray(np.log(np.maximum(compute_C, first / 2)))


def _median_share(degrees: int) -> float:
    """Median of an estimated variance over its mean (Wilson and Hilferty 1931)."""
    return float((1.0 - 2.0 / (9.0 * degrees)) ** 3)
