"""A run whose n changes on the way: which n each update has, when n is a step function of the rollouts made.

`recipe.schedule = [[100_000, 32], [400_000, 128]]`: the grid's n up to 100,000 rollouts, 32 from there on, 128 from
400,000 on. A change waits for the update under way, and the run ends when the next batch would exceed C = Bp · n · M of
the cell. n depends on the number of the update alone, so a resumed run goes on where it was.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from isocompute.core.allocation import Spending
from isocompute.core.arrays import Ints
from isocompute.core.errors import InputError

__all__ = ["Growth", "growth"]


@dataclass(frozen=True)
class Growth:
    """Stages of constant n: the update each begins with, its n, and the rollouts made before it."""

    problems_per_batch: int
    first_S: tuple[int, ...]
    rollouts_per_problem_S: tuple[int, ...]
    before_S: tuple[int, ...]
    update_steps: int
    compute: int

    def at(self, step: int) -> int:
        """n of update `step` (from 0)."""
        return self.rollouts_per_problem_S[bisect_right(self.first_S, step) - 1]

    def evaluated(self, points: int) -> Ints:
        """Updates to evaluate after: 0, then log-spaced in compute up to the last."""
        if len(self.first_S) == 1:
            wanted = np.geomspace(1, self.update_steps, points)
        else:
            first_batch = self.problems_per_batch * self.rollouts_per_problem_S[0]
            compute = np.geomspace(first_batch, self.compute, points)
            wanted = np.interp(compute, [*self.before_S, self.compute], [*self.first_S, self.update_steps])
        return np.unique(np.concatenate([[0], wanted.round()]).astype(np.int64))


def growth(cell: Spending, schedule: Sequence[tuple[int, int]] | None) -> Growth:
    """The stages of a cell under a schedule; one stage without.

    >>> from isocompute.core.allocation import Allocation
    >>> stages = growth(Allocation(10, 4, 100), [(1000, 8), (2000, 16)])
    >>> stages.first_S, stages.before_S, stages.update_steps, stages.compute
    ((0, 25, 38), (0, 1000, 2040), 50, 3960)
    """
    bp = cell.problems_per_batch
    if not schedule:
        return Growth(bp, (0,), (cell.rollouts_per_problem,), (0,), cell.update_steps, cell.compute)
    changes = [*schedule, (cell.compute, 0)]
    first, before, ns = [0], [0], [cell.rollouts_per_problem]
    step = made = 0
    for start, n in changes:
        batch = bp * ns[-1]
        left = start - made
        updates = left // batch if n == 0 else -(-left // batch)
        if updates < 1 or made + updates * batch > cell.compute:
            raise InputError(
                f"recipe.schedule: n = {ns[-1]} begins at {made:,} rollouts and has no room for an update of {batch:,} "
                f"up to {min(start, cell.compute):,}; move the change or leave it out."
            )
        step, made = step + updates, made + updates * batch
        if n:
            first.append(step)
            before.append(made)
            ns.append(n)
    return Growth(bp, tuple(first), tuple(ns), tuple(before), step, made)
