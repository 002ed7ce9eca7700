"""Choosing an allocation under a law's uncertainty: expected value, chance to be the best, regret.

Everything is a function of `values_AB`, the value of every allocation (rows) under every member of the law's ensemble
(columns). Members are draws of one law, so a column compares allocations under the same law.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from isocompute.core.allocation import Allocation
from isocompute.core.arrays import Array
from isocompute.core.errors import InputError
from isocompute.core.formatting import number, pair, plural, thousands, value
from isocompute.law.uncertainty import percentiles
from isocompute.planner.budget import Budget
from isocompute.planner.candidates import (
    Constraints,
    allocations,
    asked_settings,
    begun,
    columns,
    figure_10,
    hold_to_set,
    left_out_rollouts,
    only_problems,
    planned_range,
    problems_between,
    range_warnings,
    setting_warnings,
    values,
)
from isocompute.planner.cost.prices import Prices
from isocompute.planner.law import OWN, PlanningLaw
from isocompute.planner.next_runs import Proposal
from isocompute.planner.published import law_advice, way_to_find_out
from isocompute.planner.recipe import PAPER_ANCHOR, AdvisedRecipe, Anchor, advise_recipe
from isocompute.planner.regime import ADVICE, Diagnosis, assumed_regime
from isocompute.planner.stability import Fallen, fall_warnings
from isocompute.planner.warnings import (
    Mix,
    Warned,
    classify,
    data_advice,
    enough_updates,
    epochs_of,
    metric_advice,
    run_advice,
    zero_variance_behind,
    zero_variance_share,
)

__all__ = [
    "Assumed",
    "LEVEL",
    "Option",
    "Plan",
    "Ranked",
    "TOLERANCE",
    "make_plan",
    "plan_to_json",
    "proposal_to_json",
    "rank",
]


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


# A law and a budget in, a plan out: allocation, recipe, expected reward, cost, alternatives, warnings.

_METRIC = re.compile(r"(avg|best|worst)@[1-9]\d*")
_LOOKS = 32
_LIKELY = 0.5
"""Probability from which the chosen setting is more likely the best than not."""
_LONG = 10**6
"""Updates of a run whose warm-up is not shortened."""
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
    fallen: Fallen | None = None
    """How many of the user's runs of the setting had fallen for good by this compute; None where none were run."""


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
    zero_variance: float | None
    """Expected share of groups that are all right or all wrong at the chosen n, at the start, by the given rates."""
    zero_variance_behind: float | None
    """The same by the rates behind them, where they were measured with few samples."""
    prices: Prices
    warnings: tuple[Warned, ...]
    regime: Assumed
    targets: tuple[Allocation, ...]
    """All allocations that were compared, in the order of `values_AB`."""
    values_AB: Array
    """What each is worth under every member of the law."""

    def __repr__(self) -> str:
        a, ranked, other = self.allocation, self.chosen.ranked, self.cheapest.allocation
        cheaper = f"{other.problems_per_batch} × {other.rollouts_per_problem} × {other.update_steps}"
        return (
            f"Plan({plural(a.problems_per_batch, 'problem')} × {plural(a.rollouts_per_problem, 'rollout')} × "
            f"{plural(a.update_steps, 'update')} = "
            f"{number(a.compute)} rollouts; expect {self.law.metric} {value(ranked.value)} ({pair(ranked.interval)}, "
            f"{LEVEL:.0%}); best of {len(self.targets)} with probability {ranked.probability_best:.2f}"
            + ("" if self.stands_out else f"; cheapest within one error of it: {cheaper}")
            + f"; law: {self.law.name}; {plural(len(self.warnings), 'warning')})"
        )

    def to_json(self) -> dict[str, Any]:
        """The keys of `plan --json` (docs/planning.md)."""

        return plan_to_json(self)

    @property
    def allocation(self) -> Allocation:
        """The chosen one."""
        return self.chosen.allocation

    def epochs(self, allocation: Allocation) -> float | None:
        """Passes over the training set; None where its size is unknown."""
        return None if self.problems is None else epochs_of(allocation, self.problems)

    @property
    def problems(self) -> int | None:
        """D: problems of the training set, as said or as many as there are pass rates."""
        return self.constraints.problems or (self.mix.problems if self.mix else None)

    @property
    def stands_out(self) -> bool:
        """Whether to name the chosen setting and not the cheapest within one error of it: it is the cheapest itself, or
        the other is expected to lose more than seeds differ by. Where the members
        show what seeds do, "within one error" has counted that, and the chosen one has to be more likely the best than
        not.
        """
        if self.chosen.cheapest:
            return True
        pair_of = [option.allocation for option in (self.chosen, self.cheapest)]
        if any(self.law.seed_spread(a.problems_per_batch, a.rollouts_per_problem) > 0.0 for a in pair_of):
            return self.cheapest.ranked.regret > self.law.seed_error
        return self.chosen.ranked.probability_best >= _LIKELY

    @property
    def cheapest(self) -> Option:
        """The cheapest to run of those within one standard error of the chosen one."""
        return next((option for option in (self.chosen, *self.alternatives) if option.cheapest), self.chosen)


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
    advise = partial(
        advise_recipe,
        difficulty=difficulty,
        anchor=anchor,
        own=law.recipe,
        runs=law.runs_recipe,
    )
    prices = prices.of_recipe(advise(allocation=Allocation(1, 1, 1)).recipe)  # whatever the batch
    settings = asked_settings(law, held)
    held, small = hold_to_set(law, held, settings)
    least, most = planned_range(law, prices, extrapolate=extrapolate)
    targets = allocations(
        budget=lambda bp, n: prices.rates(bp, n).rollouts(budget),
        settings=settings,
        constraints=held,
        asked=budget,
        least=least,
        most=most,
        problems_between=problems_between(law),
    )
    warnings = (
        small + left_out_rollouts(law, held, settings) + range_warnings(law, budget, prices, targets, extrapolate)
    )
    targets = [a for a, kept in zip(targets, begun(law, *columns(law, prices, targets)), strict=True) if kept]
    grid = columns(law, prices, targets)
    values_AB = values(law, *grid)
    seen_AB = law.with_seeds(values_AB, [(a.problems_per_batch, a.rollouts_per_problem) for a in targets])
    ranking = rank(values_AB, with_seeds_AB=seen_AB)
    warnings += setting_warnings(law, targets, grid[2].tolist(), ranking)
    fallen_A = [
        law.fallen(a.problems_per_batch, a.rollouts_per_problem, c) for a, c in zip(targets, grid[2], strict=True)
    ]
    warnings += fall_warnings(targets, fallen_A, ranking, unit=law.unit)
    long_run = advise(allocation=Allocation(1, 1, _LONG)).recipe
    options = _options(ranking, targets, fallen_A, prices, budget, enough_updates(long_run.warmup_steps))
    chosen = options[0]
    recipe = advise(allocation=chosen.allocation)
    a = chosen.allocation
    rollouts = prices.rates(a.problems_per_batch, a.rollouts_per_problem).rollouts(budget)
    warnings += _law_warnings(law, held, chosen, targets, rollouts)
    warnings += law_advice(law, difficulty=difficulty, anchor_given=anchor.given, mean_rate=mix.mean if mix else None)
    warnings += run_advice(
        chosen.allocation,
        problems=held.problems or (mix.problems if mix else None),
        warmup_steps=recipe.recipe.warmup_steps,
    )
    warnings += data_advice(
        allocation=chosen.allocation,
        mix=mix,
        difficulty=difficulty,
        rates_P=rates_P,
        truncated=truncated,
        filtered=recipe.recipe.zero_variance_filter != "off",
    )
    warnings += metric_advice(metric, difficulty, law_metric=law.metric)
    warnings += [*prices.warnings, *prices.doubts(chosen.allocation)]
    return Plan(
        law=law,
        budget=budget,
        budget_rollouts=rollouts,
        constraints=held,
        metric=metric,
        chosen=chosen,
        alternatives=_shown(options),
        recipe=recipe,
        anchor=anchor,
        difficulty=difficulty,
        mix=mix,
        zero_variance=None if rates_P is None else zero_variance_share(rates_P, a.rollouts_per_problem),
        zero_variance_behind=None if rates_P is None else zero_variance_behind(rates_P, a.rollouts_per_problem),
        prices=prices,
        warnings=tuple(warnings),
        regime=_assumed(law, diagnosis),
        targets=tuple(targets),
        values_AB=values_AB,
    )


def _options(
    ranking: Sequence[Ranked],
    targets: Sequence[Allocation],
    fallen_A: Sequence[Fallen | None],
    prices: Prices,
    budget: Budget,
    enough: int,
) -> list[Option]:
    """Cheapest: the fewest GPU-hours, or the fewest updates (each syncs the weights once) where no throughput is known
    or the budget is one of time or money, which all allocations spend but for rounding.
    """
    priced = [(r, targets[r.index]) for r in ranking]
    costs = [prices.cost(a) for _, a in priced]
    timed = budget.unit not in ("gpu_hours", "money")
    ties = [i for i, (r, _) in enumerate(priced) if r.ties]

    def price(i: int) -> tuple[float, int]:
        known = costs[i]["gpu_hours"]
        return (round(known, 6) if timed and known is not None else 0.0, priced[i][1].update_steps)

    def share(i: int) -> float:
        fallen = fallen_A[priced[i][0].index]
        return fallen.share if fallen is not None else 0.0

    def updates(i: int) -> int:
        return min(priced[i][1].update_steps, enough)

    # What fell more often than the chosen setting, or makes too few updates to learn much, is no way to save.
    sound = [i for i in ties if share(i) <= share(0) and updates(i) >= updates(0)]
    cheapest = min(sound, key=price)
    return [Option(a, r, costs[i]["seconds"], i == cheapest, fallen_A[r.index]) for i, (r, a) in enumerate(priced)]


def _shown(options: Sequence[Option]) -> tuple[Option, ...]:
    """The next best, the cheapest tie always among them."""
    shown = tuple(options[1 : 1 + _SHOWN])
    left_out = tuple(o for o in options[1 + _SHOWN :] if o.cheapest)
    return shown[: _SHOWN - len(left_out)] + left_out


def _assumed(law: PlanningLaw, diagnosis: Diagnosis | None) -> Assumed:
    """What the runs show, or what the law's n* suggests where there are none to look at."""
    if diagnosis is not None:
        found = diagnosis.regime
        return Assumed(found, ADVICE[found] if found else "no limit stands out in the runs", diagnosis)
    known = law.model.settings()
    if len({n for _, n in known}) < 2:
        return Assumed(None, "the law knows one n: there is nothing to compare")
    bp_A = np.array([float(bp) for bp, _ in known])
    n_A = np.array([float(n) for _, n in known])
    grid_C = np.geomspace(law.first, law.last, _LOOKS)
    begun_C = [bool(law.model.begun(bp_A, n_A, np.full(len(known), c)).all()) for c in grid_C]
    low = float(grid_C[begun_C.index(True)]) if any(begun_C) else law.last
    ranked = [rank(law.values(bp_A, n_A, np.full(len(known), c))) for c in (low, law.last)]
    early, late = (n_A[each[0].index] for each in ranked)
    told_apart = not any(r.ties for r in ranked[1][1:] if n_A[r.index] <= early)
    return Assumed(*assumed_regime("rises" if late > early and told_apart else "flat"))


def _law_warnings(
    law: PlanningLaw, held: Constraints, chosen: Option, targets: Sequence[Allocation], budget: float
) -> list[Warned]:
    out = []
    known = law.model.settings()
    rollouts = {n for _, n in known}
    a = chosen.allocation
    own = only_problems(law)
    if own is not None and a.problems_per_batch != own:
        seen = figure_10(law)
        why = (
            ""
            if seen is None
            else (
                f" (Bp moved the reward by {100 * seen.problems_range:.1f} points where n moved it by "
                f"{100 * seen.rollouts_range:.1f}, {law.difficulty} set: IsoCompute figure 10)"
            )
        )
        wider = "the interval is wider for it" if law.bounded else "the interval does not count that"
        out.append(
            Warned(
                "problems_not_in_law",
                f"Bp = {a.problems_per_batch} was not run; the law's {own} stands in and {wider}{why}",
            )
        )
    elif (a.problems_per_batch, a.rollouts_per_problem) not in known:
        out.append(
            Warned(
                "interpolated",
                f"{a.problems_per_batch} × {a.rollouts_per_problem} was not run; its value is interpolated between the "
                "law's settings",
            )
        )
    if law.unit == "gpu_hours" and law.gpu_hours_per_rollout is None:
        out.append(
            Warned(
                "foreign_gpu_hours",
                f"{law.name} counts GPU-hours of its paper's machines; yours are taken to do as much in an hour",
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
                + (
                    "; yours may differ"
                    if held.problems is None
                    else f"; yours has {thousands(held.problems, 'problem')}"
                )
                + f": {way_to_find_out(law, budget)}",
            )
        )
    return out


# A plan as JSON: the keys are those of `isocompute plan --json` (docs/planning.md).


def plan_to_json(plan: Plan) -> dict[str, Any]:
    """One object with everything a trainer's config or another program needs."""
    law = plan.law
    return {
        **_option(plan, plan.chosen),
        "alternatives": [_option(plan, option) for option in plan.alternatives],
        "warnings": [{"code": w.code, "message": w.message} for w in plan.warnings],
        "cost": plan.prices.cost(plan.allocation),
        "law": {
            "name": law.name,
            "range": [law.first, law.last],
            "unit": law.unit,
            "metric": law.metric,
            "source": law.source,
            "setup": law.setup,
            "uncertainty": law.uncertainty,
            "seed_error": law.seed_error,
        },
        "budget": {
            "amount": plan.budget.amount,
            "unit": plan.budget.unit,
            "rollouts": plan.budget_rollouts,
            "used": plan.allocation.compute / plan.budget_rollouts,
        },
        "mode": plan.constraints.mode,
        "regime": {
            "regime": plan.regime.regime,
            "reason": plan.regime.reason,
            "findings": [] if plan.regime.diagnosis is None else plan.regime.diagnosis.to_json()["findings"],
        },
        "difficulty": plan.difficulty,
        "mix": None
        if plan.mix is None
        else {
            "problems": plan.mix.problems,
            "mean": plan.mix.mean,
            **plan.mix.shares,
            "zero_variance": plan.zero_variance,
            "zero_variance_behind": plan.zero_variance_behind,
        },
        "recipe": plan.recipe.recipe.model_dump(),
        "recipe_lines": [
            {"setting": line.setting, "value": line.value, "reason": line.reason, "source": line.source}
            for line in plan.recipe.lines
        ],
    }


def _option(plan: Plan, option: Option) -> dict[str, Any]:
    a, ranked = option.allocation, option.ranked
    advice = (
        plan.recipe
        if option is plan.chosen
        else advise_recipe(
            allocation=a,
            difficulty=plan.difficulty,
            anchor=plan.anchor,
            own=plan.law.recipe,
            runs=plan.law.runs_recipe,
        )
    )
    recipe = advice.recipe
    return {
        **_allocation(a),
        "epochs": plan.epochs(a),
        "learning_rate": advice.learning_rate,
        "warmup_steps": recipe.warmup_steps,
        "kl_coef": recipe.kl_coef,
        "entropy_coef": recipe.entropy_coef,
        "temperature": recipe.temperature,
        "expected": {
            "metric": plan.law.metric,
            "value": ranked.value,
            "interval": list(ranked.interval),
            "level": LEVEL,
        },
        "probability_best": ranked.probability_best,
        "regret": ranked.regret,
        "within_one_error": ranked.ties,
        "cheapest": option.cheapest,
        "falls": None
        if (fell := option.fallen) is None
        else {"runs": fell.runs, "fallen": fell.fallen, "share": fell.share, "interval": list(fell.interval())},
    }


def _allocation(a: Allocation) -> dict[str, Any]:
    return {
        "problems_per_batch": a.problems_per_batch,
        "rollouts_per_problem": a.rollouts_per_problem,
        "update_steps": a.update_steps,
        "batch_size": a.batch_size,
        "compute": a.compute,
    }


def proposal_to_json(proposal: Proposal) -> dict[str, Any]:
    """A cell of `plan --next`."""
    return {
        **_allocation(proposal.allocation),
        "gain": proposal.gain,
        "gain_per_million": proposal.gain_per_million,
    }
