"""How much the reward depends on n, and how much on Bp (IsoCompute figure 10).

A slice holds one of the two fixed and varies the other; its range is the best minus the worst value reached at the
largest compute that all runs of the slice have, from the fitted curves.

Noise alone spreads values: the best minus the worst of six equal settings is two and a half standard errors. That is
taken off (`intervals.basic`), and nothing below 0 is said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from isocompute.core.arrays import Array
from isocompute.law.fits import CurveFit
from isocompute.law.intervals import around, basic

__all__ = ["Slice", "sensitivity"]


@dataclass(frozen=True)
class Slice:
    """Reward at one compute along one axis with the other fixed."""

    varied: str
    fixed: int | None
    compute: float
    settings: tuple[int, ...]
    """Values of the varied axis."""
    values: tuple[float, ...]
    intervals: tuple[tuple[float, float], ...]
    range: float
    range_interval: tuple[float, float]


def sensitivity(fits: Sequence[CurveFit], *, luck_SB: Array | None = None) -> list[Slice]:
    """All slices with at least two values, the widest first for each axis.

    `luck_SB` is how far another seed of a setting might lie off, where its replicates do not show it.
    """
    place = {id(fit): i for i, fit in enumerate(fits)}
    slices = []
    for varied, axis in (("rollouts_per_problem", 1), ("problems_per_batch", 0)):
        groups: dict[int | None, list[CurveFit]] = {}
        for fit in fits:
            if fit.setting[axis] is not None:
                groups.setdefault(fit.setting[1 - axis], []).append(fit)
        several = {k: group for k, group in groups.items() if len({fit.setting[axis] for fit in group}) > 1}
        found = [
            _slice(varied, axis, fixed, group, None if luck_SB is None else luck_SB[[place[id(fit)] for fit in group]])
            for fixed, group in several.items()
        ]
        slices += sorted((s for s in found if len(set(s.settings)) > 1), key=lambda s: -len(s.settings))
    return slices


def _slice(varied: str, axis: int, fixed: int | None, group: list[CurveFit], luck_SB: Array | None) -> Slice:
    compute = min(fit.last for fit in group)
    order = sorted(range(len(group)), key=lambda i: group[i].setting[axis] or 0)
    order = [i for i in order if group[i].first <= compute]
    group = [group[i] for i in order]
    at = np.array([compute])
    values_S = np.array([float(fit.at(at)[0]) for fit in group])
    replicates_SB: Array = np.stack([fit.ensemble.at(at)[:, 0] for fit in group])
    span, interval = _span(values_S, replicates_SB if luck_SB is None else replicates_SB + luck_SB[order])
    return Slice(
        varied=varied,
        fixed=fixed,
        compute=compute,
        settings=tuple(int(fit.setting[axis] or 0) for fit in group),
        values=tuple(values_S.tolist()),
        intervals=tuple(around(v, values_B) for v, values_B in zip(values_S.tolist(), replicates_SB, strict=True)),
        range=span,
        range_interval=interval,
    )


def _span(values_S: Array, replicates_SB: Array) -> tuple[float, tuple[float, float]]:
    """Best minus worst, and its 95% interval."""
    span, (low, high) = basic(lambda values_SB: np.ptp(values_SB, axis=0), values_S, replicates_SB)
    return max(0.0, span), (max(0.0, low), max(0.0, high))
