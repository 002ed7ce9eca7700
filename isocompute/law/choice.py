"""Which setting to run at a budget, under the law's uncertainty."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from isocompute.law.fits import CurveFit
from isocompute.law.frontier import live
from isocompute.law.intervals import percentiles

__all__ = ["Choice", "choose"]


@dataclass(frozen=True)
class Choice:
    """The setting with the highest expected value at a budget."""

    fit: CurveFit
    value: float
    interval: tuple[float, float]
    probability: float
    """Share of replicates in which it is the best of all settings."""
    runner_up: CurveFit | None
    regret: float
    """Expected loss of the runner-up against it."""


def choose(fits: Sequence[CurveFit], compute: float) -> Choice:
    """The best setting by expected value over the bootstrap, among those that have begun by this compute."""
    begun_S = live(fits, np.array([compute]))[:, 0]
    able = [fit for fit, begun in zip(fits, begun_S, strict=True) if begun] or list(fits)
    values_SB = np.stack([fit.ensemble.at(np.array([min(compute, fit.last)]))[:, 0] for fit in able])
    order = np.argsort(-values_SB.mean(axis=1), kind="stable")
    best = int(order[0])
    second = int(order[1]) if len(order) > 1 else None
    return Choice(
        fit=able[best],
        value=float(values_SB[best].mean()),
        interval=percentiles(values_SB[best], 0.8),
        probability=float((values_SB.argmax(axis=0) == best).mean()),
        runner_up=None if second is None else able[second],
        regret=0.0 if second is None else float((values_SB[best] - values_SB[second]).mean()),
    )
