"""A law as the planner sees it: the value of any allocation under every member of an ensemble of laws.

Two kinds of knowledge give such an ensemble: reward curves of settings (`plan.curves.Curves`: fitted runs, published
curves), and an optimum n* along compute with the reward on its frontier (`OptimumOnly`: what the IsoCompute paper
prints for its joint law). The decision on top of them is the same.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from isocompute.core.arrays import Array
from isocompute.law.uncertainty import one_seed_spread
from isocompute.planner.beyond import BLIND, SAME, centred, drift, held
from isocompute.planner.budget import Rates
from isocompute.planner.runs_recipe import RunsRecipe
from isocompute.planner.stability import Fallen, Steadiness

__all__ = ["OWN", "Model", "OptimumOnly", "PlanningLaw", "is_rate"]

OWN = "your runs"
"""Setup of a law that was fitted to the user's runs."""


def is_rate(metric: str) -> bool:
    """Whether a metric is avg@k, best@k or worst@k, whatever it is logged under.

    >>> is_rate("val/avg@4"), is_rate("avg@4/math"), is_rate("reward")
    (True, True, False)
    """
    return any(re.fullmatch(r"(avg|best|worst)@\d+", part) for part in metric.split("/"))


class Model(Protocol):
    """Values of allocations, and which (Bp, n) it knows."""

    def settings(self) -> list[tuple[int, int]]:
        """(Bp, n) that were measured, or that the law names."""
        ...

    def interpolates(self) -> bool:
        """Whether other (Bp, n) can be asked for too."""
        ...

    def begun(self, problems_A: Array, rollouts_A: Array, compute_A: Array) -> Array:
        """Whether the law says anything about an allocation at so little compute."""
        ...

    def values(self, problems_A: Array, rollouts_A: Array, compute_A: Array) -> Array:
        """Allocations × members."""
        ...


@dataclass(frozen=True)
class PlanningLaw:
    """A law with its name, its range and where its uncertainty comes from."""

    name: str
    source: str
    setup: str
    metric: str
    unit: str
    """Of compute: rollouts, tokens or gpu_hours."""
    first: float
    last: float
    """The range of compute that was measured."""
    uncertainty: str
    model: Model
    difficulty: str | None = None
    problems: int | None = None
    """D it was measured on."""
    max_batch: int | None = None
    batch_size: int | None = None
    """The one B that it is of: it says nothing about others."""
    response_tokens: float | None = None
    gpu_hours_per_rollout: float | None = None
    """On the machines that it was measured on."""
    rate_source: str = ""
    recipe: Mapping[str, Any] | None = None
    """Where it was published with another recipe than the IsoCompute paper's."""
    runs_recipe: RunsRecipe | None = None
    """What is known of the recipe of the user's runs; None for a published law."""
    seed_error: float = 0.0
    """What a difference between two settings of one seed each must exceed, since no member shows what another seed
    would give; 0 where every setting has several.
    """
    repeated: frozenset[tuple[int, int]] = frozenset()
    """Settings (Bp, n) of several seeds, whose spread the members show."""
    steadiness: Mapping[tuple[int, int], Steadiness] = field(default_factory=dict)
    """By (Bp, n): which of the user's runs held; empty for a published law."""
    bounded: bool = False
    """Whether its values are rates, which no member can take out of [0, 1]."""

    def values(self, problems_A: Array, rollouts_A: Array, compute_A: Array) -> Array:
        """Allocations × members, as the metric can be."""
        values_AB = self.model.values(problems_A, rollouts_A, compute_A)
        return held(values_AB, 0.0, 1.0) if self.bounded else values_AB

    def seed_spread(self, bp: int, n: int) -> float:
        """Standard deviation of a setting over seeds, where no member shows it; 0 where they do. A law of one Bp stands
        in for others.
        """
        own = {known for known, _ in self.model.settings()}
        bp = next(iter(own)) if len(own) == 1 else bp
        return 0.0 if (bp, n) in self.repeated else one_seed_spread(self.seed_error)

    def seed_draws(self, settings: Sequence[tuple[int, int]], members: int) -> Array:
        """What another seed would give of these settings, settings × members, where no member shows it: the 95%
        interval of a difference between two settings of one seed is then at least ± `seed_error`. A setting's draws are
        the same whatever stands beside it: a seed is off at every compute.
        """
        return np.stack(
            [self.seed_spread(bp, n) * centred(np.random.default_rng([bp, n]), (1, members))[0] for bp, n in settings]
        )

    def with_seeds(self, values_AB: Array, settings: Sequence[tuple[int, int]]) -> Array:
        """The values of these settings with what another seed would give."""
        if self.seed_error == 0.0:
            return values_AB
        out_AB = values_AB + self.seed_draws(settings, values_AB.shape[1])
        return held(out_AB, 0.0, 1.0) if self.bounded else out_AB

    def fallen(self, bp: int, n: int, compute: float) -> Fallen | None:
        """How many of the user's runs of a setting had fallen by a compute (in the law's unit); None if not run."""
        known = self.steadiness.get((bp, n))
        return None if known is None else known.by(compute)

    def per_rollout(self, rates: Rates) -> float:
        """A rollout in the law's unit. A law's GPU-hours are those of its own machines: faster GPUs make a rollout
        cheaper, not less worth.
        """
        if self.unit == "gpu_hours" and self.gpu_hours_per_rollout is not None:
            return self.gpu_hours_per_rollout
        return rates.amount(1.0, self.unit)

    def outside(self, compute: float) -> float:
        """How many times outside its range a compute is; 1 inside, above 1 beyond it, below 1 before it."""
        return compute / self.last if compute > self.last else min(1.0, compute / self.first)


@dataclass(frozen=True)
class OptimumOnly:
    """n* along compute (or updates) as a logistic, the frontier's reward, and what a doubling away from n* costs.

    Value = frontier(C) - cost · |log2 n - log2 n*|, plus an effect of Bp that is zero on average. Members differ in n*,
    and the mean of what that costs at n* is added back: the frontier that was measured is the one that is expected.
    """

    slope: tuple[float, float, float, float]
    """(L, k, x0, b) of `log2 n* = L / (1 + exp(-k (x - x0))) + b`."""
    along: str
    """`compute`: x = log10 C; `updates`: x = M (figure 9 of the paper)."""
    grid: tuple[tuple[int, int], ...]
    frontier: Sequence[tuple[float, float]]
    """(compute, reward), interpolated in log compute."""
    base: float
    """The reward before training: the frontier does not start lower."""
    shift_B: Array
    """Doublings by which a member's n* differs."""
    cost_B: Array
    level_B: Array
    problems_effect: dict[int, Array]
    """By Bp: the member's effect of that Bp; between them the nearest one's."""

    def settings(self) -> list[tuple[int, int]]:
        """The grid of the paper's sweep."""
        return list(self.grid)

    def interpolates(self) -> bool:
        """n* is a number: any n can be compared with it."""
        return True

    def begun(self, problems_A: Array, rollouts_A: Array, compute_A: Array) -> Array:
        """Everything the grid holds."""
        del problems_A, rollouts_A
        return np.ones(len(compute_A), dtype=np.bool_)

    def log2_optimum(self, problems_A: Array, rollouts_A: Array, compute_A: Array) -> Array:
        """log2 n* at an allocation's compute."""
        L, k, x0, b = self.slope
        x_A = np.log10(compute_A) if self.along == "compute" else compute_A / (problems_A * rollouts_A)
        return np.asarray(L / (1.0 + np.exp(-np.clip(k * (x_A - x0), -500, 500))) + b)

    def values(self, problems_A: Array, rollouts_A: Array, compute_A: Array) -> Array:
        """Frontier minus what the distance to n* costs; less sure with each doubling outside the frontier's points."""
        off_AB = np.abs(
            np.log2(rollouts_A)[:, None]
            - self.log2_optimum(problems_A, rollouts_A, compute_A)[:, None]
            - self.shift_B[None, :]
        )
        lost_AB = self.cost_B[None, :] * off_AB - float(np.mean(self.cost_B * np.abs(self.shift_B)))
        known = list(self.problems_effect)
        near_A = np.abs(np.log(problems_A[:, None] / np.array(known))).argmin(axis=1)
        effect_AB = np.stack([self.problems_effect[known[i]] for i in near_A])
        drift_AB = drift(
            settings=self.grid,
            problems_A=problems_A,
            rollouts_A=rollouts_A,
            doublings_A=self._doublings(compute_A),
            rise=self.frontier[-1][1] - self.base,
            shares=BLIND,
            members=len(self.shift_B),
            seed=0,
        )
        return np.asarray(self._best(compute_A)[:, None] + self.level_B[None, :] - lost_AB + effect_AB + drift_AB)

    def _best(self, compute_A: Array) -> Array:
        """The frontier: before its first point along the slope of the first two, after its last as high as there."""
        (c0, r0), (c1, r1) = self.frontier[:2]
        c, r = np.array(self.frontier).T
        before_A = r0 + (r1 - r0) * np.log(compute_A / c0) / np.log(c1 / c0)
        inside_A = np.interp(np.log(compute_A), np.log(c), r)
        return np.asarray(np.where(compute_A < c0, np.maximum(before_A, self.base), inside_A))

    def _doublings(self, compute_A: Array) -> Array:
        """How far outside the frontier's points a compute is."""
        first, last = self.frontier[0][0], self.frontier[-1][0]
        out_A = np.log2(np.maximum(np.maximum(compute_A / last, first / compute_A), 1.0))
        return np.asarray(np.where(out_A < np.log2(SAME), 0.0, out_A))
