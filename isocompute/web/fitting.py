"""The law of a study in two goes: a rough one that is there at once, and the one that `isocompute fit` finds.

The rough one is the same fit to curves of averaged points, with few replicates and without the surface through all
settings, which matters beyond the data: its estimates are close to the final ones, its intervals and probabilities are
rough.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from isocompute.data import RunSet
    from isocompute.law.curve import Curve
    from isocompute.law.law import Law

__all__ = [
    "Fitted",
    "Rough",
    "asked",
    "curves_in",
    "fit_fully",
    "fit_roughly",
    "may_be_rough",
    "points_of",
    "replicates_for",
]

_USUAL = 1000
_FEWER, _MANY_POINTS = 200, 10_000
"""A fifth of the wait, and intervals that are still good to a few percent of their width."""
_ROUGH_REPLICATES, _ROUGH_POINTS = 50, 24
_SLOW = 6000
"""Replicates of single runs that take about a quarter of a second: fewer are not worth a rough law."""


@dataclass(frozen=True)
class Rough:
    """How much of the work a rough law has behind it."""

    replicates: int
    of: int


@dataclass(frozen=True)
class Fitted:
    """A law, and how many replicates the final one has."""

    law: Law
    of: int

    @property
    def rough(self) -> Rough | None:
        """What the law lacks; None where it is final."""
        return None if self.law.replicates == self.of else Rough(self.law.replicates, self.of)


def replicates_for(points: int) -> int:
    """A study with many points is fitted with fewer."""
    return _FEWER if points > _MANY_POINTS else _USUAL


def asked(replicates: int) -> int | None:
    """What a command must be told; None where its default is meant."""
    return None if replicates == _USUAL else replicates


def points_of(runs: RunSet) -> int:
    """How many points all runs have."""
    return sum(run.points.height for run in runs)


def may_be_rough(runs: int) -> bool:
    """Whether a part with this many runs, 0 where that is not known, can have a rough law: a few are not worth it."""
    return runs == 0 or runs * _USUAL > _SLOW


def fit_roughly(curves: Sequence[Curve], *, metric: str, unit: str, points: int) -> Fitted | None:
    """The law of averaged points; None where the final one of this many `points` is there almost as soon."""
    from isocompute.law.law import fit_law

    final = replicates_for(points)
    if len(curves) * final <= _SLOW:
        return None
    few = [_few_points(curve) for curve in curves]
    law = fit_law(few, metric=metric, unit=unit, replicates=_ROUGH_REPLICATES, with_surface=False)
    return Fitted(law, final)


def _few_points(curve: Curve) -> Curve:
    """Averaged between its ends, which stay: a law's range, and what is planned in it, depend on them. The last value
    is a mean too: among means a single one would look like a fall.
    """
    import numpy as np

    count = len(curve.compute_C)
    if count <= _ROUGH_POINTS:
        return curve
    ends = slice(None, None, count - 1)
    inner = replace(curve, compute_C=curve.compute_C[1:-1], values_C=curve.values_C[1:-1]).averaged(_ROUGH_POINTS - 2)
    compute_C, values_C = (
        np.insert(each[ends], 1, between)
        for each, between in ((curve.compute_C, inner.compute_C), (curve.values_C, inner.values_C))
    )
    values_C[-1] = curve.values_C[-max(count // _ROUGH_POINTS, 1) :].mean()
    return replace(curve, compute_C=compute_C, values_C=values_C)


def fit_fully(curves: Sequence[Curve], *, metric: str, unit: str, points: int) -> Fitted:
    """What `isocompute fit` finds."""
    from isocompute.law.law import fit_law

    replicates = replicates_for(points)
    return Fitted(fit_law(curves, metric=metric, unit=unit, replicates=replicates), replicates)


def curves_in(runs: RunSet, *, metric: str | None, unit: str | None) -> tuple[list[Curve], str, str]:
    """The runs' curves, of the metric and in the unit that is meant where none is named."""
    from isocompute.law.from_runs import choose_metric, curves_of

    return curves_of(runs, metric=choose_metric(runs, metric), unit=unit)
