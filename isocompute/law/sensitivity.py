"""How much the reward depends on n, and how much on Bp (IsoCompute figure 10).

A slice holds one of the two fixed and varies the other; its range is the best minus the worst value reached at the
largest compute that all runs of the slice have, from the fitted curves, with its interval over the bootstrap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from isocompute.arrays import Array
from isocompute.law.fits import CurveFit
from isocompute.law.intervals import around

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


def sensitivity(fits: Sequence[CurveFit]) -> list[Slice]:
    """All slices with at least two values, the widest first for each axis."""
    slices = []
    for varied, axis in (("rollouts_per_problem", 1), ("problems_per_batch", 0)):
        groups: dict[int | None, list[CurveFit]] = {}
        for fit in fits:
            if fit.setting[axis] is not None:
                groups.setdefault(fit.setting[1 - axis], []).append(fit)
        several = {k: group for k, group in groups.items() if len({fit.setting[axis] for fit in group}) > 1}
        found = [_slice(varied, axis, fixed, group) for fixed, group in several.items()]
        slices += sorted(found, key=lambda s: -len(s.settings))
    return slices


def _slice(varied: str, axis: int, fixed: int | None, group: list[CurveFit]) -> Slice:
    group = sorted(group, key=lambda fit: fit.setting[axis] or 0)
    compute = min(fit.last for fit in group)
    group = [fit for fit in group if fit.first <= compute]
    at = np.array([compute])
    values = [float(fit.at(at)[0]) for fit in group]
    replicates_SB: Array = np.stack([fit.ensemble.at(at)[:, 0] for fit in group])
    spread = max(values) - min(values)
    return Slice(
        varied=varied,
        fixed=fixed,
        compute=compute,
        settings=tuple(int(fit.setting[axis] or 0) for fit in group),
        values=tuple(values),
        intervals=tuple(around(value, values_B) for value, values_B in zip(values, replicates_SB, strict=True)),
        range=spread,
        range_interval=around(spread, np.ptp(replicates_SB, axis=0)),
    )
