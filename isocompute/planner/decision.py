"""Choosing an allocation under a law's uncertainty: expected value, chance to be the best, regret.

Everything is a function of `values_AB`, the value of every allocation (rows) under every member of the law's ensemble
(columns). Members are draws of one law, so a column compares allocations under the same law.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from isocompute.core.arrays import Array
from isocompute.law.intervals import percentiles

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


def rank(
    values_AB: Array,
    *,
    seen_AB: Array | None = None,
    compared_AB: Array | None = None,
    tolerance: float = TOLERANCE,
) -> list[Ranked]:
    """The allocations, best expected value first; of those within `tolerance` of the best, the earliest row wins.

    How sure that is comes from `seen_AB` where it is given: the same values with what the ensemble does not show. Where
    allocations are compared by more than their own values, `compared_AB`, that alone decides; each one's own say which
    is best of those that it does not tell apart, and what to expect of it.
    """
    own_A, seen_AB = values_AB.mean(axis=1), values_AB if seen_AB is None else seen_AB
    mean_A, against_AB = (own_A, seen_AB) if compared_AB is None else (compared_AB.mean(axis=1), compared_AB)
    near_A = mean_A >= mean_A.max() - tolerance
    best = int(np.argmax(near_A & (own_A >= own_A[near_A].max() - tolerance)))
    order = np.argsort(-mean_A, kind="stable")
    order = np.concatenate([[best], order[order != best]])
    winner_B = order[against_AB[order].argmax(axis=0)]
    probability_A = np.bincount(winner_B, minlength=len(values_AB)) / values_AB.shape[1]
    loss_A, spread_A = mean_A[best] - mean_A, (against_AB[best] - against_AB).std(axis=1)
    return [
        Ranked(
            index=int(a),
            value=float(own_A[a]),
            interval=percentiles(seen_AB[a], LEVEL),
            probability_best=float(probability_A[a]),
            regret=max(0.0, float(loss_A[a])),
            standard_error=float(spread_A[a]),
        )
        for a in order
    ]
