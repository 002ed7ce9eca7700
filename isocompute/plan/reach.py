"""How far a law carries along compute: what is outside its range, what is too far, and what is then expected."""

from __future__ import annotations

from collections.abc import Sequence

from isocompute.allocation import Allocation
from isocompute.errors import InputError
from isocompute.plan.advice import Warned
from isocompute.plan.budget import Budget
from isocompute.plan.model import OptimumOnly, PlanningLaw
from isocompute.plan.spending import Prices
from isocompute.words import number

__all__ = ["least", "range_warnings"]

_FAR = 10.0
"""A budget so many times outside a law's range is refused unless asked for."""
_NEAR = 1.02


def least(law: PlanningLaw, prices: Prices) -> float:
    """The fewest rollouts that the law plans without --extrapolate; 0 where a rollout is not known in its unit."""
    bp, n = min(law.model.settings(), key=lambda pair: pair[0] * pair[1])
    rates = prices.rates(bp, n)
    known = rates.known(law.unit) or law.gpu_hours_per_rollout is not None
    return law.first / _FAR / law.per_rollout(rates) if known else 0.0


def range_warnings(
    law: PlanningLaw, budget: Budget, prices: Prices, targets: Sequence[Allocation], extrapolate: bool
) -> list[Warned]:
    """Refuse what is far outside the law's range, say what is outside."""
    rates = [prices.rates(a.problems_per_batch, a.rollouts_per_problem) for a in targets]
    most = max(r.rollouts(budget) * law.per_rollout(r) for r in rates)
    times = law.outside(most)
    unit = law.unit.replace("gpu_hours", "GPU-hours")
    span = f"{number(law.first)}–{number(law.last)} {unit}"
    far = max(times, 1 / times) > _FAR * (1 + 1e-6)  # the budget that the message names is not far
    if far and not extrapolate:
        nearest = law.last * _FAR if times > 1 else law.first / _FAR
        raise InputError(
            f"--budget: {number(most)} {unit} is {_times(times)} the range of {law.name}, {span}; plan for at "
            f"{'most' if times > 1 else 'least'} --budget {budget.times(nearest / most, at_most=times > 1)}, or say "
            "--extrapolate."
        )
    if 1 / _NEAR <= times <= _NEAR:
        return []
    return [
        Warned(
            "far_extrapolation" if far else "extrapolation",
            f"{number(most)} {unit} is {_times(times)} the range of {law.name}, {span}: {_outside(law, times > 1)}",
        )
    ]


def _outside(law: PlanningLaw, beyond: bool) -> str:
    """What an expectation outside the range is made of."""
    if not isinstance(law.model, OptimumOnly):
        return "the expectation rests on the form of the curves, not on data"
    made = "stays at" if beyond else "follows, down to the base, the slope of"
    points = "the law's last point" if beyond else "the law's first two points"
    return f"the expectation {made} {points}, less sure with each doubling of compute"


def _times(times: float) -> str:
    factor = max(times, 1 / times)
    text = f"{factor:,.0f}" if factor >= 10 else f"{factor:.2g}"
    return f"{text} times {'above' if times > 1 else 'below'}"
