"""Allocations of sampling compute: C = Bp · n · M (IsoCompute eq. 1), and the grid of a sweep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from isocompute.core.errors import InputError

__all__ = ["Allocation", "Spending", "grid"]


class Spending:
    """What follows from Bp, n and M, for everything that has the three."""

    problems_per_batch: int
    rollouts_per_problem: int
    update_steps: int

    @property
    def batch_size(self) -> int:
        """B = Bp · n."""
        return self.problems_per_batch * self.rollouts_per_problem

    @property
    def compute(self) -> int:
        """C = Bp · n · M, in rollouts."""
        return self.batch_size * self.update_steps


@dataclass(frozen=True, order=True)
class Allocation(Spending):
    """How a budget of rollouts is spent."""

    problems_per_batch: int
    rollouts_per_problem: int
    update_steps: int


def grid(
    *,
    problems_per_batch: Sequence[int],
    rollouts_per_problem: Sequence[int],
    budget: int,
    max_batch: int | None = None,
) -> list[Allocation]:
    """Every (Bp, n) with Bp · n <= `max_batch`, with as many updates as the budget allows.

    >>> [a.update_steps for a in grid(problems_per_batch=[32], rollouts_per_problem=[8, 16], budget=5000)]
    [19, 9]
    """
    out = [
        Allocation(bp, n, budget // (bp * n))
        for bp in sorted(set(problems_per_batch))
        for n in sorted(set(rollouts_per_problem))
        if max_batch is None or bp * n <= max_batch
    ]
    if not out:
        smallest = min(problems_per_batch) * min(rollouts_per_problem)
        raise InputError(
            f"max_batch = {max_batch} leaves no cell: the smallest batch of the grid is {smallest}; "
            "raise max_batch or add smaller values."
        )
    short = [a for a in out if a.update_steps < 1]
    if short:
        raise InputError(
            f"budget = {budget} is under one batch of {short[0].problems_per_batch} × "
            f"{short[0].rollouts_per_problem} = {short[0].batch_size}; raise the budget or set max_batch."
        )
    return out
