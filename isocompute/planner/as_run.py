"""Curves as they were run, where evaluations have no noise and the mean over worlds needs no form.

A simulated sweep is exact at every point and goes to the budget itself, so a fitted form can only take away
(docs/plan_quality.md has what it took). Beyond the last point, and for settings that were not run, the fits still say
how much further a setting goes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from isocompute.core.arrays import Array
from isocompute.law import Curve
from isocompute.planner.curves import Curves

__all__ = ["AsRun", "as_run"]


@dataclass(frozen=True)
class AsRun(Curves):
    """`Curves` whose values inside their range are the best that was reached so far, mean over some worlds."""

    worlds: Mapping[tuple[int, int], Sequence[Curve]] = field(default_factory=dict)
    """By (Bp, n), in the same order for all: a curve a world."""
    shares_BW: Array = field(default_factory=lambda: np.zeros((0, 0)))
    """Members × worlds: how often each world is drawn, the same for all settings, since a world moves them together."""

    def _own(self, key: tuple[int, int], compute_C: Array) -> Array:
        best_WC = np.stack(
            [
                np.interp(np.log1p(compute_C), np.log1p(of.compute_C), np.maximum.accumulate(of.values_C))
                for of in self.worlds[key]
            ]
        )
        return np.asarray((self.shares_BW @ best_WC).T)


def as_run(fitted: Curves, curves: Sequence[Curve], *, seed: int = 0) -> AsRun:
    """The same law, read off its runs; the seed of a curve is its world. Members are a bootstrap over worlds."""
    worlds: dict[tuple[int, int], list[Curve]] = {}
    for curve in sorted(curves, key=lambda curve: curve.seed or 0):
        worlds.setdefault((int(curve.problems_per_batch or 1), int(curve.rollouts_per_problem or 1)), []).append(curve)
    count, members = len(next(iter(worlds.values()))), len(fitted.fits[0].ensemble.base_B)
    shares_BW = np.random.default_rng([seed, 2]).multinomial(count, [1.0 / count] * count, size=members) / count
    return AsRun(
        fits=fitted.fits,
        surface=fitted.surface,
        problems_per_batch=fitted.problems_per_batch,
        seed=fitted.seed,
        fallen=fitted.fallen,
        worlds=worlds,
        shares_BW=shares_BW,
    )
