"""A run whose n grows: the law's n*(C) as stages of one run.

n* rises with compute, so the best n for the first tenth of a budget is smaller than for the whole of it. The schedule
follows the frontier: at C rollouts, the n with the highest expected value over the law's members there. n never falls
(where the frontier goes back, the smaller n is kept until it no longer does), and every stage is a whole number of
updates. A budget of hours or money buys more rollouts at one n than at another: there the frontier is along what is
spent, and every stage is paid at its own price. Where the run has to make more updates than the frontier does, the n
with the dearest updates is left out, and the next, until it makes them. Whether this beats one n for the whole run is
measured, not assumed: docs/schedule.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from isocompute.core.arrays import Array
from isocompute.core.errors import InputError
from isocompute.planner.candidates import Constraints
from isocompute.planner.comparing import compared
from isocompute.planner.grid import asked_settings, only_problems, started, values
from isocompute.planner.model import PlanningLaw

__all__ = ["Schedule", "Stage", "schedule"]

_PerRollout = float | Callable[[int], float]
"""Something that a rollout has, the same for all n or by n."""
_HAIR = 1e-12
_GRID = 256
_HALVINGS = 20
"""Of a step of the grid, 4% or less: under one rollout in a million."""


@dataclass(frozen=True)
class Stage:
    """A stretch of updates with one n."""

    rollouts_from: int
    rollouts_per_problem: int
    update_steps: int
    learning_rate: float | None = None
    """At this stage's batch; None where the recipe is not known."""


@dataclass(frozen=True)
class Schedule:
    """Stages in order; n rises from one to the next."""

    problems_per_batch: int
    stages: tuple[Stage, ...]

    @property
    def update_steps(self) -> int:
        """M of the whole run."""
        return sum(stage.update_steps for stage in self.stages)

    @property
    def compute(self) -> int:
        """C of the whole run, in rollouts."""
        return sum(s.update_steps * s.rollouts_per_problem for s in self.stages) * self.problems_per_batch

    @property
    def changes(self) -> list[list[int]]:
        """`recipe.schedule` of a study: (rollouts_from, n) after the first stage, whose n is the grid's."""
        return [[stage.rollouts_from, stage.rollouts_per_problem] for stage in self.stages[1:]]

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "problems_per_batch": self.problems_per_batch,
            "update_steps": self.update_steps,
            "compute": self.compute,
            "changes": self.changes,
            "stages": [
                {
                    "rollouts_from": stage.rollouts_from,
                    "rollouts_per_problem": stage.rollouts_per_problem,
                    "update_steps": stage.update_steps,
                    "batch_size": self.problems_per_batch * stage.rollouts_per_problem,
                    "learning_rate": stage.learning_rate,
                }
                for stage in self.stages
            ],
        }


def schedule(
    *,
    law: PlanningLaw,
    budget: float,
    problems_per_batch: int,
    constraints: Constraints | None = None,
    price: _PerRollout = 1.0,
    unit_per_rollout: _PerRollout = 1.0,
    learning_rate: Callable[[int], float] | None = None,
) -> Schedule:
    """The stages of a run along the law's frontier that spends `budget`: rollouts, or what `price` is in.

    Every stage keeps to the constraints on n and B, all of them together make the least updates. Of a rollout at some
    n, `price` is what it takes of the budget and `unit_per_rollout` what it is in the law's unit; `learning_rate` gives
    that of a batch.
    """
    held = constraints or Constraints()
    allowed = _allowed(law, problems_per_batch, held)
    costs = {n: problems_per_batch * n * _of(price, n) for n in allowed}
    first = min(costs, key=costs.__getitem__)
    if budget < costs[first]:
        rollouts = budget / _of(price, first)
        raise InputError(
            f"--budget: {rollouts:,.0f} rollouts are less than one batch of {problems_per_batch} × {first}."
        )
    most = _updates(budget, costs[first])
    if most < held.min_updates:
        raise InputError(
            f"--min-updates {held.min_updates}: the budget pays for {most:,} of {problems_per_batch} × {first}, the "
            f"cheapest there are; say --min-updates {most}."
        )
    while True:
        made = _along_the_frontier(law, budget, problems_per_batch, costs, price, unit_per_rollout)
        if len(costs) == 1 or sum(stage.update_steps for stage in made) >= held.min_updates:
            break
        del costs[max(costs, key=costs.__getitem__)]
    if learning_rate is not None:
        made = [replace(s, learning_rate=learning_rate(problems_per_batch * s.rollouts_per_problem)) for s in made]
    return Schedule(problems_per_batch, tuple(made))


def _along_the_frontier(
    law: PlanningLaw,
    budget: float,
    problems_per_batch: int,
    costs: Mapping[int, float],
    price: _PerRollout,
    unit_per_rollout: _PerRollout,
) -> list[Stage]:
    """The stages with the best n at every compute, of those that an update has `costs` for."""
    allowed = sorted(costs)
    first = min(costs, key=costs.__getitem__)
    n_N = np.array(allowed, dtype=np.float64)
    units_N = np.array([_of(unit_per_rollout, n) / _of(price, n) for n in allowed])

    own = only_problems(law) or problems_per_batch
    others = [n for bp, n in law.model.settings() if bp == own and n not in allowed]
    beside = {(own, n): _of(unit_per_rollout, n) / _of(price, n) for n in others}

    def best(spent_C: Array) -> Array:
        return _frontier(law, problems_per_batch, n_N, units_N[:, None] * spent_C, beside, spent_C)

    spent_C = np.geomspace(costs[first], budget, _GRID // 4 if law.borrows else _GRID)
    # The smallest n that is still to come: n rises only to where it stays.
    rising_C = np.minimum.accumulate(best(spent_C)[::-1])[::-1]
    changes = [(0.0, int(n_N[rising_C[0]]))]
    for i in (np.flatnonzero(np.diff(rising_C)) + 1).tolist():
        to = int(rising_C[i])
        changes.append((_overtakes(best, to, spent_C[i - 1], spent_C[i]), int(n_N[to])))
    return _stages(changes, budget, problems_per_batch, costs)


def _of(per_rollout: _PerRollout, n: int) -> float:
    return per_rollout(n) if callable(per_rollout) else per_rollout


def _updates(amount: float, cost: float) -> int:
    """How many it pays for; one that a conversion left a hair short of whole is made, as in a plan."""
    exact = amount / cost
    return int(exact + _HAIR * min(exact, 1.0 / _HAIR**0.5))


def _allowed(law: PlanningLaw, bp: int, held: Constraints) -> list[int]:
    """The n that a stage may have."""
    fixed = held.batch_size or law.batch_size
    if fixed is not None:
        whose = f"--batch {fixed}" if held.batch_size else f"--law {law.name}, which is of B = {fixed:,}"
        instead = f"--max-batch {fixed}" if held.batch_size else "a law of any B, such as isocompute/joint-easy"
        raise InputError(f"--schedule with {whose}: n cannot grow while Bp and B are held; use {instead}.")
    known = asked_settings(law, replace(held, problems_per_batch=bp))
    kept = sorted(n for x, n in known if x == bp and not held.broken_by(x, n))
    if not kept:
        names = sorted({text for x, n in known for text in held.broken_by(x, n)})
        listed = ", ".join(map(str, sorted({x for x, _ in law.model.settings()})))
        raise InputError(
            f"problems_per_batch = {bp}: no n of the law keeps to {' and '.join(names)}."
            if names
            else f"problems_per_batch = {bp}: the law has Bp = {listed}; plan with one of them."
        )
    return kept


def _frontier(
    law: PlanningLaw,
    bp: int,
    n_N: Array,
    compute_NC: Array,
    beside: Mapping[tuple[int, int], float],
    spent_C: Array,
) -> Array:
    """Index of the best n at each column's computes, among those that the law knows anything about there.

    `beside` are the law's other settings at this Bp, which may not be chosen, with their compute for each unit spent.
    """
    shape = compute_NC.shape
    bp_A, n_A, compute_A = np.full(compute_NC.size, float(bp)), np.repeat(n_N, shape[1]), compute_NC.ravel()
    values_NC = values(law, bp_A, n_A, compute_A).mean(axis=1).reshape(shape)
    begun_NC = started(law, bp_A, n_A, compute_A).reshape(shape)
    begun_NC[0] |= ~begun_NC.any(axis=0)  # before everything, the smallest n
    if law.borrows:  # as the plan compares them
        own = only_problems(law) or bp
        for c, spent in enumerate(spent_C.tolist()):
            there = np.flatnonzero(begun_NC[:, c])
            asked = [(own, int(n_N[i])) for i in there]
            computes = {key: units * spent for key, units in beside.items()}
            computes |= dict(zip(asked, compute_NC[there, c].tolist(), strict=True))
            found_AB = compared(law, computes, asked)
            if found_AB is not None:
                values_NC[there, c] = found_AB.mean(axis=1)
    return np.asarray(np.where(begun_NC, values_NC, -np.inf).argmax(axis=0))


def _overtakes(best: Callable[[Array], Array], to: int, low: float, high: float) -> float:
    """Where the n at index `to` or a larger one becomes the best, by bisection: not yet at `low`, at `high` it is."""
    for _ in range(_HALVINGS):
        middle = float(np.sqrt(low * high))
        low, high = (low, middle) if best(np.array([middle]))[0] >= to else (middle, high)
    return float(high)


def _stages(changes: Sequence[tuple[float, int]], budget: float, bp: int, costs: Mapping[int, float]) -> list[Stage]:
    """Whole updates, each at the cost of its n: a change waits for the update under way, a stage without room for one
    is left out, and what the last stage leaves of the budget goes to the first, whose batches are the smallest.
    """
    ends = [*(start for start, _ in changes[1:]), None]
    counted: list[tuple[int, int]] = []
    spent = 0.0
    for (_, n), end in zip(changes, ends, strict=True):
        most = _updates(budget - spent, costs[n])
        updates = most if end is None else min(int(-(-max(end - spent, 0.0) // costs[n])), most)
        if updates > 0:
            counted.append((n, updates))
            spent += updates * costs[n]
    if not counted:  # the first n that is planned has larger batches than the smallest one pays for
        n = min(costs, key=costs.__getitem__)
        counted = [(n, _updates(budget, costs[n]))]
        spent = counted[0][1] * costs[n]
    first_n, first_updates = counted[0]
    counted[0] = (first_n, first_updates + _updates(budget - spent, costs[first_n]))
    out, made = [], 0
    for n, updates in counted:
        out.append(Stage(made, n, updates))
        made += updates * bp * n
    return out
