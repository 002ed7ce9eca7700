"""Choosing an allocation under a law's uncertainty: expected value, chance to be the best, regret.

Everything is a function of `values_AB`, the value of every allocation (rows) under every member of the law's ensemble
(columns). Members are draws of one law, so a column compares allocations under the same law.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from isocompute.core.arrays import Array
from isocompute.law.uncertainty import percentiles

__all__ = ["LEVEL", "TOLERANCE", "Ranked", "rank"]

LEVEL = 0.8
"""Share that the interval of an expected value holds."""
TOLERANCE = 5e-4
"""Expected values that differ by less count as equal: no evaluation could tell them apart."""


@dataclass(frozen=True)
class Ranked:
    """One allocation (an index) as the ensemble sees it."""

    index: int
    value: float
    """Of the allocation by itself."""
    interval: tuple[float, float]
    probability_best: float
    regret: float
    """Expected loss against the chosen allocation; 0 for the chosen one."""
    standard_error: float
    """Of that loss: its standard deviation over the ensemble, and between seeds where the ensemble does not show it."""

    @property
    def ties(self) -> bool:
        """Whether it is within one standard error of the chosen allocation."""
        return self.regret <= self.standard_error


def rank(values_AB: Array, *, with_seeds_AB: Array | None = None, tolerance: float = TOLERANCE) -> list[Ranked]:
    """The allocations, best expected value first; of those within `tolerance` of the best, the earliest row wins.

    `with_seeds_AB` are the same values plus the seed effects that the draws do not contain. Intervals, probabilities
    and standard errors are of them.
    """
    mean_A = values_AB.mean(axis=1)
    noisy_AB = values_AB if with_seeds_AB is None else with_seeds_AB
    best = int(np.argmax(mean_A >= mean_A.max() - tolerance))
    order = np.argsort(-mean_A, kind="stable")
    order = np.concatenate([[best], order[order != best]])
    winner_B = order[noisy_AB[order].argmax(axis=0)]
    probability_A = np.bincount(winner_B, minlength=len(values_AB)) / values_AB.shape[1]
    error_A = (noisy_AB[best] - noisy_AB).std(axis=1)
    return [
        Ranked(
            index=int(a),
            value=float(mean_A[a]),
            interval=percentiles(noisy_AB[a], LEVEL),
            probability_best=float(probability_A[a]),
            regret=max(0.0, float(mean_A[best] - mean_A[a])),
            standard_error=float(error_A[a]),
        )
        for a in order
    ]
