"""A law and a budget in, a plan out: allocation, recipe, expected reward, cost, alternatives, warnings."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from isocompute.allocation import Allocation
from isocompute.arrays import Array
from isocompute.errors import InputError
from isocompute.plan.advice import Warned, data_advice, metric_advice, run_advice
from isocompute.plan.advised_recipe import PAPER_ANCHOR, AdvisedRecipe, Anchor, advise_recipe
from isocompute.plan.budget import Budget
from isocompute.plan.candidates import Constraints, allocations
from isocompute.plan.decision import Ranked, rank
from isocompute.plan.difficulty import Mix, classify
from isocompute.plan.law_advice import law_advice, next_command
from isocompute.plan.limits import ADVICE, Diagnosis, assumed_regime
from isocompute.plan.model import OWN, PlanningLaw
from isocompute.plan.spending import Prices

__all__ = ["FAR", "Assumed", "Option", "Plan", "make_plan"]

FAR = 10.0
"""A budget so many times outside a law's range is refused unless asked for."""
_METRIC = re.compile(r"(avg|best|worst)@[1-9]\d*")
_NEAR = 1.02
_LOOKS = 32
_SHOWN = 8
"""Alternatives of a plan."""


@dataclass(frozen=True)
class Option:
    """An allocation as the law ranks it."""

    allocation: Allocation
    ranked: Ranked
    seconds: float | None
    """On the wall clock, where the throughput is known."""
    cheapest: bool
    """The cheapest to run of those within one standard error of the best, the best included."""


@dataclass(frozen=True)
class Assumed:
    """The limit that the plan takes the setup to be up against (`plan.limits`)."""

    regime: str | None
    reason: str
    diagnosis: Diagnosis | None = None
    """Where there were runs to read it from."""


@dataclass(frozen=True)
class Plan:
    """What to run, what to expect of it, and what would change that."""

    law: PlanningLaw
    budget: Budget
    budget_rollouts: float
    constraints: Constraints
    metric: str
    chosen: Option
    alternatives: tuple[Option, ...]
    recipe: AdvisedRecipe
    anchor: Anchor
    difficulty: str | None
    mix: Mix | None
    prices: Prices
    warnings: tuple[Warned, ...]
    regime: Assumed
    targets: tuple[Allocation, ...]
    """All allocations that were compared, in the order of `values_AB`."""
    values_AB: Array

    @property
    def allocation(self) -> Allocation:
        """The chosen one."""
        return self.chosen.allocation


def make_plan(
    *,
    law: PlanningLaw,
    budget: Budget,
    prices: Prices,
    constraints: Constraints | None = None,
    metric: str | None = None,
    difficulty: str | None = None,
    rates_P: Array | None = None,
    truncated: float | None = None,
    anchor: Anchor = PAPER_ANCHOR,
    extrapolate: bool = False,
    diagnosis: Diagnosis | None = None,
) -> Plan:
    """Choose among all allocations that the budget and the constraints allow, under every member of the law."""
    held = constraints or Constraints()
    mix = None if rates_P is None else classify(rates_P)
    difficulty = difficulty or (mix.difficulty if mix else law.difficulty)
    metric = metric or law.metric
    if law.setup != OWN and metric != law.metric and not _METRIC.fullmatch(metric):
        raise InputError(f"--metric {metric}: {law.name} is a law of {law.metric}; say avg@k, best@k or worst@k.")
    if law.setup == OWN and metric != law.metric:
        raise InputError(
            f"--metric {metric}: {law.name} is a law of {law.metric}; fit the runs with --metric {metric}."
        )
    targets = allocations(
        budget=lambda bp, n: prices.rates(bp, n).rollouts(budget),
        settings=_grid(law, held),
        constraints=held,
        asked=budget,
    )
    warnings = _range_warnings(law, budget, prices, targets, extrapolate)
    targets = _begun(law, prices, targets)
    values_AB = law.values(*_columns(law, prices, targets))
    options = _options(rank(values_AB, seen_AB=law.with_seeds(values_AB)), targets, prices)
    chosen = options[0]
    recipe = advise_recipe(
        allocation=chosen.allocation,
        difficulty=difficulty,
        anchor=anchor,
        own=law.recipe,
        own_source=law.source,
        runs=law.runs_recipe,
    )
    a = chosen.allocation
    rollouts = prices.rates(a.problems_per_batch, a.rollouts_per_problem).rollouts(budget)
    warnings += _law_warnings(law, held, chosen, targets, rollouts)
    warnings += law_advice(law, difficulty=difficulty, anchor_given=anchor.given)
    warnings += run_advice(
        chosen.allocation,
        problems=held.problems or (mix.problems if mix else None),
        warmup_steps=recipe.recipe.warmup_steps,
    )
    warnings += data_advice(
        allocation=chosen.allocation,
        mix=mix,
        rates_P=rates_P,
        truncated=truncated,
        filtered=recipe.recipe.zero_variance_filter != "off",
    )
    warnings += metric_advice(metric, difficulty, law_metric=law.metric)
    return Plan(
        law=law,
        budget=budget,
        budget_rollouts=rollouts,
        constraints=held,
        metric=metric,
        chosen=chosen,
        alternatives=tuple(options[1 : 1 + _SHOWN]),
        recipe=recipe,
        anchor=anchor,
        difficulty=difficulty,
        mix=mix,
        prices=prices,
        warnings=tuple(warnings),
        regime=_assumed(law, diagnosis),
        targets=tuple(targets),
        values_AB=values_AB,
    )


def _grid(law: PlanningLaw, held: Constraints) -> list[tuple[int, int]]:
    """The law's settings, and those asked for by name that lie between them where the law can interpolate."""
    known = law.model.settings()
    problems, rollouts = {bp for bp, _ in known}, {n for _, n in known}
    if law.model.interpolates():
        rollouts |= {n for n in held.rollouts_per_problem or () if min(rollouts) <= n <= max(rollouts)}
        if held.problems_per_batch and min(problems) <= held.problems_per_batch <= max(problems):
            problems.add(held.problems_per_batch)
        if (held.problems_per_batch or held.rollouts_per_problem) and (problems, rollouts) != _axes(known):
            biggest = law.max_batch or max(bp * n for bp, n in known)
            return [(bp, n) for bp in sorted(problems) for n in sorted(rollouts) if bp * n <= biggest]
    bp = held.problems_per_batch
    if bp and bp not in problems and len(problems) == 1:
        return [(bp, n) for _, n in known]  # Bp hardly matters (IsoCompute figure 10); a warning says what was done
    return known


def _axes(known: Sequence[tuple[int, int]]) -> tuple[set[int], set[int]]:
    return {bp for bp, _ in known}, {n for _, n in known}


def _columns(law: PlanningLaw, prices: Prices, targets: Sequence[Allocation]) -> tuple[Array, Array, Array]:
    """Bp, n and compute in the law's unit. A fixed-Bp law at another Bp answers for its own."""
    known = law.model.settings()
    own = {bp for bp, _ in known}
    only = next(iter(own)) if len(own) == 1 else None
    bp_A = np.array([float(only or a.problems_per_batch) for a in targets])
    n_A = np.array([float(a.rollouts_per_problem) for a in targets])
    compute_A = np.array(
        [prices.rates(a.problems_per_batch, a.rollouts_per_problem).amount(a.compute, law.unit) for a in targets]
    )
    return bp_A, n_A, compute_A


def _begun(law: PlanningLaw, prices: Prices, targets: list[Allocation]) -> list[Allocation]:
    """Leave out settings that the law knows nothing about at so little compute, unless that leaves none."""
    begun_A = law.model.begun(*_columns(law, prices, targets))
    return [a for a, begun in zip(targets, begun_A, strict=True) if begun] or targets


def _options(ranking: Sequence[Ranked], targets: Sequence[Allocation], prices: Prices) -> list[Option]:
    """Cheapest: the least time, or where no throughput is known the fewest updates (each syncs the weights once)."""
    priced = [(r, targets[r.index]) for r in ranking]
    seconds = [prices.cost(a)["seconds"] for _, a in priced]
    ties = [i for i, (r, _) in enumerate(priced) if r.ties]

    def price(i: int) -> tuple[float, int]:
        known = seconds[i]
        return (round(known, 3) if known is not None else 0.0, priced[i][1].update_steps)

    cheapest = min(ties, key=price)
    return [Option(a, r, seconds[i], i == cheapest) for i, (r, a) in enumerate(priced)]


def _range_warnings(
    law: PlanningLaw, budget: Budget, prices: Prices, targets: Sequence[Allocation], extrapolate: bool
) -> list[Warned]:
    """Refuse what is far outside the law's range, say what is outside."""
    from isocompute.words import number

    most = float(_columns(law, prices, targets)[2].max())
    times = law.outside(most)
    unit = law.unit.replace("gpu_hours", "GPU-hours")
    span = f"{number(law.first)}–{number(law.last)} {unit}"
    far = times > FAR or times < 1 / FAR
    if far and not extrapolate:
        nearest = law.last * FAR if times > 1 else law.first / FAR
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
            f"{number(most)} {unit} is {_times(times)} the range of {law.name}, {span}: the expectation rests on the "
            "form of the curves, not on data",
        )
    ]


def _assumed(law: PlanningLaw, diagnosis: Diagnosis | None) -> Assumed:
    """What the runs show, or what the law's n* suggests where there are none to look at."""
    if diagnosis is not None:
        found = diagnosis.regime
        return Assumed(found, ADVICE[found] if found else "no limit stands out in the runs", diagnosis)
    known = law.model.settings()
    bp_A = np.array([float(bp) for bp, _ in known])
    n_A = np.array([float(n) for _, n in known])
    grid_C = np.geomspace(law.first, law.last, _LOOKS)
    begun_C = [bool(law.model.begun(bp_A, n_A, np.full(len(known), c)).all()) for c in grid_C]
    low = float(grid_C[begun_C.index(True)]) if any(begun_C) else law.last
    best = [n_A[int(law.values(bp_A, n_A, np.full(len(known), c)).mean(axis=1).argmax())] for c in (low, law.last)]
    return Assumed(*assumed_regime("rises" if best[1] > best[0] else "flat"))


def _times(times: float) -> str:
    factor = max(times, 1 / times)
    text = f"{factor:,.0f}" if factor >= 10 else f"{factor:.2g}"
    return f"{text} times {'above' if times > 1 else 'below'}"


def _law_warnings(
    law: PlanningLaw, held: Constraints, chosen: Option, targets: Sequence[Allocation], budget: float
) -> list[Warned]:
    out = []
    known = law.model.settings()
    problems, rollouts = _axes(known)
    a = chosen.allocation
    if a.problems_per_batch not in problems:
        out.append(
            Warned(
                "problems_not_in_law",
                f"Bp = {a.problems_per_batch} was not run; the law's {', '.join(map(str, sorted(problems)))} stands in "
                "(Bp moved the reward by 2% where n moved it by 9%: IsoCompute figure 10)",
            )
        )
    elif (a.problems_per_batch, a.rollouts_per_problem) not in known:
        out.append(
            Warned(
                "interpolated",
                f"{a.problems_per_batch} × {a.rollouts_per_problem} was not run; its value comes from the surface "
                "through the others",
            )
        )
    if len(targets) == 1:
        out.append(Warned("no_choice", "one allocation is left: nothing was compared"))
    elif len(rollouts) > 1 and a.rollouts_per_problem in (min(rollouts), max(rollouts)):
        edge = "smallest" if a.rollouts_per_problem == min(rollouts) else "largest"
        out.append(Warned("edge", f"n = {a.rollouts_per_problem} is the {edge} of the law: the best may lie beyond it"))
    if law.setup != OWN:
        out.append(
            Warned(
                "foreign_law",
                f"this law was measured on {law.setup}"
                + ("; yours may differ" if held.problems is None else f"; yours has {held.problems:,} problems")
                + f": {next_command(law, budget)} says what to run to find out",
            )
        )
    return out
