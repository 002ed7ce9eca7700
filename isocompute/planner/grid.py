"""Which settings a law is asked about, at which compute, and what stands in for a Bp that was not run.

Curves of one Bp say little about another. Figure 10 of the IsoCompute paper varies Bp at n = 16: 1.9 points on the easy
set (n: 9.2), 2.2 on the hard set (n: 3.1). So a law of one Bp stands in for others within a factor of `NEAR_PROBLEMS`,
with the spread of that figure in its members; further away it is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from isocompute.core.allocation import Allocation
from isocompute.core.arrays import Array
from isocompute.core.errors import InputError
from isocompute.planner.advice import Warned
from isocompute.planner.beyond import centred, held
from isocompute.planner.candidates import Constraints
from isocompute.planner.model import PlanningLaw
from isocompute.planner.spending import Prices

__all__ = [
    "asked_settings",
    "begun",
    "columns",
    "figure_10",
    "left_out_rollouts",
    "only_problems",
    "problems_between",
    "started",
    "values",
]

NEAR_PROBLEMS = 8
"""A law of one Bp answers for others up to this many times smaller or larger."""
_LOOKS = 256
_TOGETHER = 1.25
"""Settings whose first points are this many times apart begin together."""


@dataclass(frozen=True)
class Sensitivity:
    """What figure 10 shows of a problem set: best rewards over Bp = 32…1,024 at n = 16, and over n at Bp = 32."""

    problems_range: float
    rollouts_range: float
    problems_spread: float
    """Standard deviation over the six Bp."""


_FIGURE_10 = {"easy": Sensitivity(0.019, 0.092, 0.0065), "hard": Sensitivity(0.022, 0.031, 0.0085)}


def figure_10(law: PlanningLaw) -> Sensitivity | None:
    """The paper's figure, for the paper's laws."""
    return _FIGURE_10.get(law.difficulty or "") if law.name.startswith("isocompute/") else None


def only_problems(law: PlanningLaw) -> int | None:
    """The Bp of a law of one Bp."""
    found = {bp for bp, _ in law.model.settings()}
    return next(iter(found)) if len(found) == 1 else None


def problems_between(law: PlanningLaw) -> tuple[int, int] | None:
    """The range of Bp that a law answers for besides those it has; None where it has only those."""
    only, found = only_problems(law), [bp for bp, _ in law.model.settings()]
    if law.batch_size is not None:
        return None
    if only is not None:
        return -(-only // NEAR_PROBLEMS), only * NEAR_PROBLEMS
    return (min(found), max(found)) if law.model.interpolates() else None


def asked_settings(law: PlanningLaw, held: Constraints) -> list[tuple[int, int]]:
    """The law's settings, and those that were asked for and that it answers for without having run them."""
    known = law.model.settings()
    if law.batch_size is not None:
        return known
    problems, rollouts = {bp for bp, _ in known}, {n for _, n in known}
    bp, wanted = held.problems_per_batch or _stable(problems, held), held.rollouts_per_problem or ()
    between = problems_between(law)
    if bp and bp not in problems and between and only_problems(law) is not None:
        if not between[0] <= bp <= between[1]:
            raise InputError(_too_far(law, bp, between, held))
        known, problems = [(bp, n) for _, n in known], {bp}
    if law.model.interpolates():
        more = {n for n in wanted if min(rollouts) <= n <= max(rollouts)} - rollouts
        other = {bp} - problems if bp and between and between[0] <= bp <= between[1] else set()
        biggest = law.max_batch or max(bp * n for bp, n in known)
        if more or other:
            known = [(x, n) for x in sorted(problems | other) for n in sorted(rollouts | more) if x * n <= biggest]
        if held.batch_size is not None and held.batch_size <= biggest:
            known = sorted({*known, *_of_batch(held.batch_size, problems | other, rollouts | more)})
    return known


def _stable(problems: set[int], held: Constraints) -> int | None:
    """The Bp that a range of stable ones asks for where the law has none in it: the nearest of its ends."""
    if held.problems_range is None:
        return None
    low, high = held.problems_range
    if low > high or any(low <= bp <= high for bp in problems):
        return None
    return low if min(problems) < low else high


def _of_batch(batch: int, problems: set[int], rollouts: set[int]) -> list[tuple[int, int]]:
    """Settings of one batch with a Bp or an n of the law and the other between those it has: Bp against n at fixed B
    needs several, and a grid of both need not have them.
    """
    low, high = min(problems), max(problems)
    least, most = min(rollouts), max(rollouts)
    by_problems = [(bp, batch // bp) for bp in problems if batch % bp == 0 and least <= batch // bp <= most]
    by_rollouts = [(batch // n, n) for n in rollouts if batch % n == 0 and low <= batch // n <= high]
    return by_problems + by_rollouts


def left_out_rollouts(law: PlanningLaw, held: Constraints, settings: Sequence[tuple[int, int]]) -> list[Warned]:
    """Say which n were asked for that the law knows nothing about; `settings` are those it was asked about."""
    known = {n for _, n in settings}
    missing = [n for n in held.rollouts_per_problem or () if n not in known]
    if not missing:
        return []
    listed, there = (", ".join(map(str, each)) for each in (missing, sorted({n for _, n in law.model.settings()})))
    return [
        Warned("n_not_in_law", f"n = {listed} of --n was left out: {law.name} says nothing of it; it has n = {there}")
    ]


def _too_far(law: PlanningLaw, bp: int, between: tuple[int, int], held: Constraints) -> str:
    instead = (
        f"run Bp = {bp} and fit it"
        if figure_10(law) is None
        else f"--law isocompute/joint-{law.difficulty}, which has Bp from 32 to 1,024"
    )
    nearest = min(max(bp, between[0]), between[1])
    said, say = f"--problems-per-batch {bp}", f"--problems-per-batch {nearest}"
    if held.problems_per_batch is None and held.problems_range is not None:
        said, say = "--stable-problems {}-{}".format(*held.problems_range), f"a --stable-problems with {nearest} in it"
    return (
        f"{said}: {law.name} is of Bp = {only_problems(law)} and answers for {between[0]} to {between[1]}; say {say}, "
        f"or {instead}."
    )


def columns(law: PlanningLaw, prices: Prices, targets: Sequence[Allocation]) -> tuple[Array, Array, Array]:
    """Bp, n and compute in the law's unit."""
    bp_A = np.array([float(a.problems_per_batch) for a in targets])
    n_A = np.array([float(a.rollouts_per_problem) for a in targets])
    per_A = [law.per_rollout(prices.rates(a.problems_per_batch, a.rollouts_per_problem)) for a in targets]
    return bp_A, n_A, np.array([a.compute for a in targets]) * np.array(per_A)


def values(law: PlanningLaw, problems_A: Array, rollouts_A: Array, compute_A: Array) -> Array:
    """Allocations × members; where the law's only Bp stands in for another, with what that may change."""
    own_A = _own(law, problems_A)
    values_AB = law.values(own_A, rollouts_A, compute_A)
    foreign_A = own_A != problems_A
    if not (law.bounded and foreign_A.any()):
        return values_AB
    spread = (figure_10(law) or _FIGURE_10["hard"]).problems_spread  # the wider of the two for other laws
    effect_B = spread * centred(np.random.default_rng(10), (1, values_AB.shape[1]))[0]
    return held(values_AB + foreign_A[:, None] * effect_B, 0.0, 1.0)


def begun(law: PlanningLaw, problems_A: Array, rollouts_A: Array, compute_A: Array) -> Array:
    """Which allocations the law says anything about at so little compute; where it is none, the settings that begin
    first, give or take a quarter: before that, values are where fits of different n happen to meet the axis.
    """
    begun_A = started(law, problems_A, rollouts_A, compute_A)
    for compute in np.geomspace(compute_A.max(), max(law.last, compute_A.max()), _LOOKS):
        if begun_A.any():
            break
        if started(law, problems_A, rollouts_A, np.full(len(begun_A), compute)).any():
            begun_A = started(law, problems_A, rollouts_A, np.full(len(begun_A), _TOGETHER * compute))
    return begun_A


def started(law: PlanningLaw, problems_A: Array, rollouts_A: Array, compute_A: Array) -> Array:
    """Which allocations the law says anything about."""
    return law.model.begun(_own(law, problems_A), rollouts_A, compute_A).astype(np.bool_)


def _own(law: PlanningLaw, problems_A: Array) -> Array:
    """A law of one Bp answers with that one."""
    only = only_problems(law)
    return problems_A if only is None else np.full(len(problems_A), float(only))
