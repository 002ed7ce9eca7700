"""How far a law carries along compute: what is outside its range, what is too far, and what is then expected."""

from __future__ import annotations

import math
from collections.abc import Sequence

from isocompute.core.allocation import Allocation
from isocompute.core.errors import InputError
from isocompute.core.formatting import number
from isocompute.planner.advice import Warned
from isocompute.planner.beyond import SAME
from isocompute.planner.budget import Budget
from isocompute.planner.curves import Curves
from isocompute.planner.decision import Ranked
from isocompute.planner.grid import only_problems
from isocompute.planner.model import OWN, OptimumOnly, PlanningLaw
from isocompute.planner.spending import Prices

__all__ = ["FAR", "planned_range", "range_warnings", "setting_warnings"]

FAR = 10.0
"""A budget this many times outside a law's range is refused unless asked for."""
_ENDED = 2.0
"""A setting whose own runs end this many times before what the law covers is extrapolated, though the law is not."""


def planned_range(law: PlanningLaw, prices: Prices, *, extrapolate: bool = False) -> tuple[float, float]:
    """The fewest and the most rollouts that are planned; any, where a rollout is not known in the law's unit."""
    bp, n = min(law.model.settings(), key=lambda pair: pair[0] * pair[1])
    rates = prices.rates(bp, n)
    known = rates.known(law.unit) or law.gpu_hours_per_rollout is not None
    if extrapolate or not known:
        return 0.0, math.inf
    return law.first / FAR / law.per_rollout(rates), law.last * FAR / law.per_rollout(rates)


def range_warnings(
    law: PlanningLaw, budget: Budget, prices: Prices, targets: Sequence[Allocation], extrapolate: bool
) -> list[Warned]:
    """Refuse what is far outside the law's range, say what is outside."""
    rates = [prices.rates(a.problems_per_batch, a.rollouts_per_problem) for a in targets]
    most = max(r.rollouts(budget) * law.per_rollout(r) for r in rates)
    times = law.outside(most)
    unit = law.unit.replace("gpu_hours", "GPU-hours")
    span = f"{number(law.first)}–{number(law.last)} {unit}"
    told = f"{number(most)} {unit}"
    if law.unit == "gpu_hours" and law.gpu_hours_per_rollout is not None and law.setup != OWN:
        # What the budget buys, on the machines that the law was measured on: not the hours that a user has.
        told = f"{budget} buys rollouts that took {told} on the machines of {law.name}'s paper, which"
    far = max(times, 1 / times) > FAR * (1 + 1e-6)  # the budget that the message names is not far
    if far and not extrapolate:
        nearest = law.last * FAR if times > 1 else law.first / FAR
        raise InputError(
            f"--budget: {told} is {_times(times)} the range of {law.name}, {span}; plan for at "
            f"{'most' if times > 1 else 'least'} --budget {budget.times(nearest / most, at_most=times > 1)}, or say "
            "--extrapolate."
        )
    if 1 / SAME <= times <= SAME:
        return []
    return [
        Warned(
            "far_extrapolation" if far else "extrapolation",
            f"{told} is {_times(times)} the range of {law.name}, {span}: {_outside(law, times > 1)}",
        )
    ]


def setting_warnings(
    law: PlanningLaw, targets: Sequence[Allocation], compute_A: Sequence[float], ranking: Sequence[Ranked]
) -> list[Warned]:
    """Say where the chosen setting's own runs end long before the budget while others of the law go on.

    `compute_A` are the targets' computes in the law's unit. The choice stays: the members' drift has counted that.
    """
    if not isinstance(law.model, Curves):
        return []
    last_A = [law.model.last(only_problems(law) or a.problems_per_batch, a.rollouts_per_problem) for a in targets]
    chosen = ranking[0].index
    a, compute, last = targets[chosen], compute_A[chosen], last_A[chosen]
    if last == 0.0 or min(compute, law.last) <= _ENDED * last:
        return []
    unit = law.unit.replace("gpu_hours", "GPU-hours")
    seen = [targets[r.index] for r in ranking if r.ties and compute_A[r.index] <= SAME * last_A[r.index]]
    other = "nothing within one error of it was run that far"
    if seen:
        b = seen[0]
        other = f"{b.problems_per_batch} × {b.rollouts_per_problem}, within one error of it, was run that far"
    return [
        Warned(
            "extrapolated_setting",
            f"{a.problems_per_batch} × {a.rollouts_per_problem} was run to {number(last)} {unit}; its value at "
            f"{number(compute)}, {compute / last:.2g} times that, is extrapolated; {other}",
        )
    ]


def _outside(law: PlanningLaw, beyond: bool) -> str:
    """What an expectation outside the range is made of."""
    if not isinstance(law.model, OptimumOnly):
        return "the expectation rests on the form of the curves and the trend at their ends, not on data"
    made = "stays at" if beyond else "follows, down to the base, the slope of"
    points = "the law's last point" if beyond else "the law's first two points"
    return f"the expectation {made} {points}, less sure with each doubling of compute"


def _times(times: float) -> str:
    factor = max(times, 1 / times)
    text = f"{factor:,.0f}" if factor >= 10 else f"{factor:.2g}"
    return f"{text} times {'above' if times > 1 else 'below'}"
