"""Makes the plan: `decide` turns a law and a budget into allocation, recipe, expected reward, cost and warnings.

All allocations are compared under the same samples of the law. `values_AB` has the value of every allocation (rows) in
every sample (columns); everything about them is computed from it.

*Ties* are the allocations whose expected loss against the best is at most `TIE`, or one standard error of the
difference. The default is the cheapest tie where the cost is known. Otherwise it is the best expected value; of those
within `EQUAL` of it, the one with the most updates. The choice at smaller budgets stands while it is within twice that.
Choosing the one with the most updates among all ties would lose .001 within the data and .005 beyond
(docs/studies/plan-quality.md).
"""

from __future__ import annotations

import math
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
from isocompute.law.posterior import SAME, percentiles
from isocompute.planner.candidates import (
    Constraints,
    allocations,
    begun,
    candidate_settings,
    columns,
    figure_10,
    law_warnings,
    planned_range,
    problems_between,
    range_warnings,
    small_set_limit,
    values,
    way_to_find_out,
)
from isocompute.planner.cost.prices import Prices
from isocompute.planner.law import OWN, CollapseRate, Curves, PlanningLaw
from isocompute.planner.recipe import AdvisedRecipe, advise_recipe
from isocompute.planner.regime import ADVICE, Diagnosis
from isocompute.planner.request import Anchor, Budget, PlanRequest
from isocompute.planner.warnings import (
    BaseRates,
    Mix,
    PlanWarning,
    classify,
    data_warnings,
    enough_updates,
    epochs_of,
    metric_warnings,
    run_warnings,
)

LEVEL = 0.8
"""Coverage of the interval of an expected value."""
TIE = 0.003
"""Least expected loss, as a share of the scale, by which an allocation is worse than the best."""
EQUAL = 5e-4
"""Expected values that differ by less of the scale are equal, since no evaluation could distinguish them."""
_STANDS, _BUDGETS = 2.0, 12
"""The choice at smaller budgets, doubling up to this one, stands until another is better by so many times `EQUAL`."""
_CURSE = 0.5
"""The best of several estimates is likely too high: its interval reaches lower, by this share of what the best of all
samples exceeds the best mean by."""
_METRIC = re.compile(r"(avg|best|worst)@[1-9]\d*")
_LONG_RUN = Allocation(1, 1, 10**6)
"""A run long enough to keep its whole warm-up."""
_SHOWN = 8
"""Number of alternatives in a plan."""
_ENDED = 1.25
"""A configuration counts as extrapolated beyond this many times the compute of its own runs."""
_RIVAL = 0.1
"""A rival that was not run so far is named from this chance of being the best."""
_COMPUTES = 32
"""Computes at which the start of the law's range is searched."""


@dataclass(frozen=True)
class Ranked:
    """One allocation (an index) under the samples of the law."""

    index: int
    value: float
    interval: tuple[float, float]
    probability_best: float | None
    """None beyond the data, where such chances are not calibrated."""
    regret: float
    """Expected loss against the best allocation; 0 for that one."""
    standard_error: float
    """Standard deviation of that loss over the samples."""
    tolerance: float
    """Expected loss up to which it ties with the best."""

    @property
    def ties(self) -> bool:
        """Whether it ties with the best allocation."""
        return self.regret <= self.tolerance


def rank(values_AB: Array, *, scale: float = 1.0, inside: bool = True, incumbent: int | None = None) -> list[Ranked]:
    """The allocations, best expected value first; of those that equal the best, the earliest row wins.

    `scale` is the length of the values' scale, and `inside` says whether the data reach so far. The `incumbent` is the
    choice at smaller budgets.
    """
    mean_A = values_AB.mean(axis=1)
    best = _choice(values_AB, scale, incumbent)
    order = np.argsort(-mean_A, kind="stable")
    order = np.concatenate([[best], order[order != best]])
    winner_B = order[values_AB[order].argmax(axis=0)]
    probability_A = np.bincount(winner_B, minlength=len(values_AB)) / values_AB.shape[1]
    error_A = (values_AB[best] - values_AB).std(axis=1)
    curse = _CURSE * float(values_AB.max(axis=0).mean() - mean_A.max())

    def interval(a: int) -> tuple[float, float]:
        low, high = percentiles(values_AB[a], LEVEL)
        return low - curse * (a == best), high

    return [
        Ranked(
            index=int(a),
            value=float(mean_A[a]),
            interval=interval(int(a)),
            probability_best=float(probability_A[a]) if inside else None,
            regret=max(0.0, float(mean_A[best] - mean_A[a])),
            standard_error=float(error_A[a]),
            tolerance=max(TIE * scale, float(error_A[a])),
        )
        for a in order
    ]


def _choice(values_AB: Array, scale: float, incumbent: int | None) -> int:
    """The earliest row that equals the best in expectation, or the incumbent while nothing is distinctly better."""
    mean_A = values_AB.mean(axis=1)
    lost_A = mean_A.max() - mean_A
    if incumbent is not None and lost_A[incumbent] <= _STANDS * EQUAL * scale:
        return incumbent
    return int(np.argmax(lost_A <= EQUAL * scale))


def _incumbent(law: PlanningLaw, prices: Prices, targets: Sequence[Allocation], budget: Budget) -> int | None:
    """The choice at smaller budgets that double up to this one, so that it does not jump among equals."""
    bp_A, n_A, _ = columns(law, prices, targets)
    rates = [prices.rates(a.problems_per_batch, a.rollouts_per_problem) for a in targets]
    compute_A = np.array([each.rollouts(budget) * law.per_rollout(each) for each in rates])  # not in whole updates
    most = float(compute_A.max())
    count = min(math.ceil(math.log2(max(most / law.first, 1.0))), _BUDGETS)
    if not count:
        return None
    last = math.ceil(math.log2(most / law.first)) - 1
    compute_KA = law.first * 2.0 ** np.arange(last - count + 1, last + 1)[:, None] * (compute_A / most)
    columns_3 = np.tile(bp_A, count), np.tile(n_A, count), compute_KA.ravel()
    values_KAB = values(law, *columns_3).reshape(count, len(bp_A), -1)
    begun_KA = np.asarray(law.model.begun(*columns_3), dtype=np.bool_).reshape(count, -1)
    found: int | None = None
    for values_AB, begun_A in zip(values_KAB, begun_KA, strict=True):
        rows = np.flatnonzero(begun_A)
        if len(rows):
            before = np.flatnonzero(rows == found)
            found = int(rows[_choice(values_AB[rows], law.scale, int(before[0]) if len(before) else None)])
    return found


@dataclass(frozen=True)
class Option:
    """An allocation as the law ranks it."""

    allocation: Allocation
    ranked: Ranked
    seconds: float | None
    """Wall-clock time of the run; None if the throughput is not known."""
    cheapest: bool
    """Whether it is the cheapest of the ties, where costs are known."""
    collapses: CollapseRate | None = None
    """Collapse rate of the user's runs of the setting by this compute; None if there are none."""


@dataclass(frozen=True)
class AssumedRegime:
    """What limits the setup, according to its runs or else the law (`planner.regime`)."""

    regime: str | None
    reason: str
    diagnosis: Diagnosis | None = None
    """Findings from the runs; None for a published law."""


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
    """The next best options."""
    tied: tuple[Allocation, ...]
    """The allocations that tie with the best, that one included."""
    tolerance: float
    """Largest expected loss among them."""
    recipe: AdvisedRecipe
    anchor: Anchor
    difficulty: str | None
    mix: Mix | None
    zero_variance: tuple[float, float] | None
    """Expected share of zero-variance groups at the start, at the chosen n, by the measured and by the latent rates."""
    prices: Prices
    warnings: tuple[PlanWarning, ...]
    regime: AssumedRegime
    targets: tuple[Allocation, ...]
    """All allocations that were compared, in the order of `values_AB`."""
    values_AB: Array
    """Value of each allocation (rows) in every draw (columns)."""

    def __repr__(self) -> str:
        a, ranked = self.allocation, self.chosen.ranked
        return (
            f"Plan({plural(a.problems_per_batch, 'problem')} × {plural(a.rollouts_per_problem, 'rollout')} × "
            f"{plural(a.update_steps, 'update')} = "
            f"{number(a.compute)} rollouts; expect {self.law.metric} {value(ranked.value)} ({pair(ranked.interval)}, "
            f"{LEVEL:.0%}); {self.answer}; law: {self.law.name}; {plural(len(self.warnings), 'warning')})"
        )

    def to_json(self) -> dict[str, Any]:
        """The keys of `plan --json` (docs/reference/budget.md)."""
        return plan_to_json(self)

    @property
    def allocation(self) -> Allocation:
        """The chosen allocation."""
        return self.chosen.allocation

    @property
    def problems(self) -> int | None:
        """D: problems in the training set, as given, or else the number of pass rates."""
        return self.constraints.problems or (self.mix.problems if self.mix else None)

    def epochs(self, allocation: Allocation) -> float | None:
        """Passes over the training set; None if its size is unknown."""
        return None if self.problems is None else epochs_of(allocation, self.problems)

    @property
    def answer(self) -> str:
        """How the chosen allocation stands among the others, in one sentence."""
        if len(self.targets) == 1:
            return f"{_name(self.allocation)} is the only allocation that the law compares"
        if len(self.tied) == 1:
            second = self.alternatives[0]
            return f"{_name(self.allocation)} leads by {value(second.ranked.regret)} over {_name(second.allocation)}"
        why = "the cheapest of them" if self.chosen.cheapest else "the one expected to reach highest"
        within = value(max(0.001 * self.law.scale, self.tolerance))
        return (
            f"{len(self.tied)} of {len(self.targets)} allocations tie within {within}: {self._tied_in_words()}; "
            f"{_name(self.allocation)} is the default, {why}"
        )

    def _tied_in_words(self) -> str:
        """The n and Bp of the ties, as ranges where no other was compared between them."""
        parts = []
        for name, field in (("n", "rollouts_per_problem"), ("Bp", "problems_per_batch")):
            every, own = ({int(getattr(a, field)) for a in group} for group in (self.targets, self.tied))
            if len(every) > 1:
                parts.append(f"{name} = {_ranges(sorted(every), own)}")
        return ", ".join(parts)


def _ranges(every: Sequence[int], own: set[int]) -> str:
    """Some of these numbers, neighbours joined.

    >>> _ranges([8, 16, 32, 64], {8, 16, 64})
    '8–16 and 64'
    """
    runs: list[list[int]] = []
    for i, each in enumerate(every):
        if each in own:
            if i and every[i - 1] in own:
                runs[-1].append(each)
            else:
                runs.append([each])
    return " and ".join(f"{run[0]}–{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)


def decide(
    *,
    law: PlanningLaw,
    request: PlanRequest,
    prices: Prices,
    rates: BaseRates | None = None,
    diagnosis: Diagnosis | None = None,
) -> Plan:
    """Choose among all allocations that the request's budget and constraints allow, under every draw of the law."""
    budget, constraints, anchor = request.budget, Constraints.of(request), request.lr_reference
    mix = None if rates is None else classify(rates.measured_P)
    difficulty = request.difficulty or (mix.difficulty if mix else law.difficulty)
    metric = _checked_metric(law, request.metric)
    advise = partial(advise_recipe, difficulty=difficulty, anchor=anchor, own=law.recipe, runs=law.runs_recipe)
    long_recipe = advise(allocation=_LONG_RUN).recipe
    prices = prices.of_recipe(long_recipe)

    # Candidates: allocations that the law covers, the constraints allow and the budget pays for.
    settings, not_in_law = candidate_settings(law, constraints)
    constraints, small_set = small_set_limit(law, constraints, settings)
    least, most = planned_range(law, prices, extrapolate=request.extrapolate)
    targets = allocations(
        budget=lambda bp, n: prices.rates(bp, n).rollouts(budget),
        settings=settings,
        constraints=constraints,
        asked=budget,
        least=least,
        most=most,
        problems_between=problems_between(law),
    )
    outside = range_warnings(law, budget, prices, targets, request.extrapolate)
    targets = [a for a, kept in zip(targets, begun(law, *columns(law, prices, targets)), strict=True) if kept]

    # The ranking, under every sample. Most updates first, so that they win where values are equal.
    targets = sorted(targets, key=lambda a: (a.batch_size, a.rollouts_per_problem))
    grid = columns(law, prices, targets)
    values_AB = values(law, *grid)
    keys = [(a.problems_per_batch, a.rollouts_per_problem) for a in targets]
    stands = _incumbent(law, prices, targets, budget)
    inside = float(grid[2].max()) <= law.last * _ENDED
    ranking = rank(values_AB, scale=law.scale, inside=inside, incumbent=stands)
    collapses_A = [law.collapse_rate(*key, compute) for key, compute in zip(keys, grid[2].tolist(), strict=True)]
    options = _options(ranking, targets, collapses_A, prices, budget, enough_updates(long_recipe.warmup_steps))
    chosen = next((option for option in options if option.cheapest), options[0])
    a = chosen.allocation
    rollouts = prices.rates(a.problems_per_batch, a.rollouts_per_problem).rollouts(budget)
    recipe = advise(allocation=a)
    warnings = [
        *small_set,
        *not_in_law,
        *outside,
        *_not_run_so_far(law, targets, grid[2].tolist(), values_AB, chosen.ranked.index),
        *_collapse_warnings(chosen, options, unit=law.unit),
        *_choice_warnings(law, constraints, chosen, targets, rollouts),
        *law_warnings(law, difficulty=difficulty, anchor_given=anchor.given, mean_rate=mix.mean if mix else None),
        *run_warnings(
            a, problems=constraints.problems or (mix.problems if mix else None), warmup_steps=recipe.recipe.warmup_steps
        ),
        *data_warnings(
            allocation=a,
            mix=mix,
            difficulty=difficulty,
            rates=rates,
            truncated=request.truncated,
            filtered=recipe.recipe.zero_variance_filter != "off",
        ),
        *metric_warnings(metric, difficulty, law_metric=law.metric),
        *prices.warnings,
        *prices.doubts(a),
    ]
    return Plan(
        law=law,
        budget=budget,
        budget_rollouts=rollouts,
        constraints=constraints,
        metric=metric,
        chosen=chosen,
        alternatives=tuple(option for option in options if option is not chosen)[:_SHOWN],
        tied=tuple(option.allocation for option in options if option.ranked.ties),
        tolerance=max(option.ranked.regret for option in options if option.ranked.ties),
        recipe=recipe,
        anchor=anchor,
        difficulty=difficulty,
        mix=mix,
        zero_variance=None if rates is None else rates.zero_variance(a.rollouts_per_problem),
        prices=prices,
        warnings=tuple(warnings),
        regime=_assumed_regime(law, diagnosis),
        targets=tuple(targets),
        values_AB=values_AB,
    )


def _checked_metric(law: PlanningLaw, metric: str | None) -> str:
    """The metric to plan for, by default the law's; raise if the law says nothing about it."""
    metric = metric or law.metric
    if law.setup == OWN and metric != law.metric:
        raise InputError(
            f"--metric {metric}: {law.name} is a law of {law.metric}; fit the runs with --metric {metric}."
        )
    if metric != law.metric and not _METRIC.fullmatch(metric):
        raise InputError(f"--metric {metric}: {law.name} is a law of {law.metric}; say avg@k, best@k or worst@k.")
    return metric


def _options(
    ranking: Sequence[Ranked],
    targets: Sequence[Allocation],
    collapses_A: Sequence[CollapseRate | None],
    prices: Prices,
    budget: Budget,
    enough: int,
) -> list[Option]:
    """The ranking with prices; the tie with the fewest GPU-hours is marked where they are known and differ."""
    priced = [(r, targets[r.index]) for r in ranking]
    costs = [prices.cost(a) for _, a in priced]
    timed = budget.unit not in ("gpu_hours", "money")  # such a budget is spent by all allocations alike

    def collapsed(i: int) -> float:
        rate = collapses_A[priced[i][0].index]
        return 0.0 if rate is None else rate.share

    def updates(i: int) -> int:
        return min(priced[i][1].update_steps, enough)

    # A setting that collapses more often than the best one, or makes too few updates, saves nothing.
    ties = [i for i, (r, _) in enumerate(priced) if r.ties]
    sound = [i for i in ties if collapsed(i) <= collapsed(0) and updates(i) >= updates(0)]
    hours = {i: float(costs[i]["gpu_hours"] or 0.0) for i in sound}  # 0 where the throughput is not known
    differ = timed and min(hours.values()) > 0 and max(hours.values()) > SAME * min(hours.values())
    cheapest = min(sound, key=lambda i: (round(hours[i], 6), i)) if differ else None
    return [Option(a, r, costs[i]["seconds"], i == cheapest, collapses_A[r.index]) for i, (r, a) in enumerate(priced)]


def _assumed_regime(law: PlanningLaw, diagnosis: Diagnosis | None) -> AssumedRegime:
    """The limit that the runs show, or without runs the one that the law's n* suggests."""
    if diagnosis is not None:
        found = diagnosis.regime
        return AssumedRegime(found, ADVICE[found] if found else "no limit stands out in the runs", diagnosis)
    known = law.model.settings()
    if len({n for _, n in known}) < 2:
        return AssumedRegime(None, "the law knows one n: there is nothing to compare")
    bp_A, n_A = np.array(known, dtype=np.float64).T
    grid_C = np.geomspace(law.first, law.last, _COMPUTES)
    begun_C = [bool(law.model.begun(bp_A, n_A, np.full(len(known), c)).all()) for c in grid_C]
    low = float(grid_C[begun_C.index(True)]) if any(begun_C) else law.last
    ranked = [rank(law.values(bp_A, n_A, np.full(len(known), c)), scale=law.scale) for c in (low, law.last)]
    early, late = (n_A[each[0].index] for each in ranked)
    if late > early and not any(r.ties for r in ranked[1][1:] if n_A[r.index] <= early):
        reason = "n* rises with compute; without runs, noise, interference and data cannot be told apart"
        return AssumedRegime("noise", reason)
    return AssumedRegime("updates", "n* does not rise with compute: more updates win")


def _not_run_so_far(
    law: PlanningLaw, targets: Sequence[Allocation], compute_A: Sequence[float], values_AB: Array, chosen: int
) -> list[PlanWarning]:
    """Say what the law cannot know, and the run that would tell: the likeliest rival or choice that is extrapolated."""
    if not isinstance(law.model, Curves) or law.setup != OWN:
        return []
    only = law.only_problems_per_batch()
    last_A = [law.model.last(only or a.problems_per_batch, a.rollouts_per_problem) for a in targets]
    beyond = [i for i, last in enumerate(last_A) if 0.0 < last * _ENDED < compute_A[i]]
    chance_A = np.bincount(values_AB.argmax(axis=0), minlength=len(targets)) / values_AB.shape[1]
    rivals = [i for i in beyond if i != chosen and chance_A[i] >= _RIVAL]
    if not rivals and chosen not in beyond:
        return []
    unit = law.unit.replace("gpu_hours", "GPU-hours")
    i = max(rivals, key=lambda i: float(chance_A[i])) if rivals else chosen
    half = max(compute_A[i] / 2, 2 * last_A[i])
    run = f"run {_name(targets[i])} to {number(min(half, compute_A[i]))} {unit} to find out"
    what = f"whether {_name(targets[i])} passes {_name(targets[chosen])} by {number(compute_A[i])} is not known"
    if i == chosen:
        what = f"what {_name(targets[i])} reaches at {number(compute_A[i])} is extrapolated"
    return [PlanWarning("extrapolated_setting", f"{what}: it was run to {number(last_A[i])} {unit}; {run}")]


def _collapse_warnings(chosen: Option, options: Sequence[Option], *, unit: str) -> list[PlanWarning]:
    """Warn if runs of the chosen setting collapsed before the budget's compute, and name a stable setting."""
    mine = chosen.collapses
    if mine is None or mine.first is None:
        return []
    share = "" if mine.plain else f" ({mine.share:.0%} by this compute, each run counted as far as it went)"
    stable_one = "no setting that ties with it was stable in all its runs"
    for option in options:
        other = option.collapses
        if option.ranked.ties and option is not chosen and other is not None and other.collapsed == 0:
            stable = "its one run" if other.runs == 1 else f"all its {other.runs} runs"
            name, lost = _name(option.allocation), value(option.ranked.regret)
            stable_one = f"{name} (−{lost}), which ties with it, was stable in {stable}"
            break
    return [
        PlanWarning(
            "falls",
            f"{mine.collapsed} of {mine.runs} runs of {_name(chosen.allocation)} collapsed{share}, the first "
            f"after {number(mine.first)} {unit.replace('gpu_hours', 'GPU-hours')}: what is expected is of the best "
            f"checkpoint, so keep checkpoints and watch the run (`isocompute health`); {stable_one}",
        )
    ]


def _choice_warnings(
    law: PlanningLaw, constraints: Constraints, chosen: Option, targets: Sequence[Allocation], budget: float
) -> list[PlanWarning]:
    """Warn if the choice rests on interpolation, a single candidate, the grid's edge or a law of another setup."""
    out = []
    known, own = law.model.settings(), law.only_problems_per_batch()
    rollouts, a = {n for _, n in known}, chosen.allocation
    if own is not None and a.problems_per_batch != own:
        seen, why = figure_10(law), ""
        if seen is not None:
            why = (
                f" (Bp moved the reward by {100 * seen.problems_range:.1f} points where n moved it by "
                f"{100 * seen.rollouts_range:.1f}, {law.difficulty} set: IsoCompute figure 10)"
            )
        wider = "the interval is wider for it" if law.bounded else "the interval does not count that"
        message = f"Bp = {a.problems_per_batch} was not run; the law's {own} stands in and {wider}{why}"
        out.append(PlanWarning("problems_not_in_law", message))
    elif (a.problems_per_batch, a.rollouts_per_problem) not in known:
        message = f"{_name(a)} was not run; its value is interpolated between the law's settings"
        out.append(PlanWarning("interpolated", message))
    if law.unit == "gpu_hours" and law.gpu_hours_per_rollout is None:
        out.append(
            PlanWarning(
                "foreign_gpu_hours",
                f"{law.name} counts GPU-hours of its paper's machines; yours are taken to do as much in an hour",
            )
        )
    if len(targets) == 1:
        out.append(PlanWarning("no_choice", "one allocation is left: nothing was compared"))
    elif len(rollouts) > 1 and a.rollouts_per_problem in (min(rollouts), max(rollouts)):
        edge = "smallest" if a.rollouts_per_problem == min(rollouts) else "largest"
        message = f"n = {a.rollouts_per_problem} is the {edge} of the law: the best may lie beyond it"
        out.append(PlanWarning("edge", message))
    if law.setup != OWN:
        problems = constraints.problems
        yours = "yours may differ" if problems is None else f"yours has {thousands(problems, 'problem')}"
        message = f"this law was measured on {law.setup}; {yours}: {way_to_find_out(law, budget)}"
        out.append(PlanWarning("foreign_law", message))
    return out


def _name(a: Allocation) -> str:
    return f"{a.problems_per_batch} × {a.rollouts_per_problem}"


def plan_to_json(plan: Plan) -> dict[str, Any]:
    """The object of `isocompute plan --json`, with everything that a trainer's config or another program needs."""
    law, mix = plan.law, plan.mix
    measured, latent = plan.zero_variance or (None, None)
    return {
        **_option_to_json(plan, plan.chosen),
        "answer": plan.answer,
        "ties": [[a.problems_per_batch, a.rollouts_per_problem] for a in plan.tied],
        "alternatives": [_option_to_json(plan, option) for option in plan.alternatives],
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
        if mix is None
        else {
            "problems": mix.problems,
            "mean": mix.mean,
            **mix.shares,
            "zero_variance": measured,
            "zero_variance_behind": latent,
        },
        "recipe": plan.recipe.recipe.model_dump(),
        "recipe_lines": [
            {"setting": line.setting, "value": line.value, "reason": line.reason, "source": line.source}
            for line in plan.recipe.lines
        ],
    }


def _option_to_json(plan: Plan, option: Option) -> dict[str, Any]:
    a, ranked, law, collapses = option.allocation, option.ranked, plan.law, option.collapses
    advice = plan.recipe
    if option is not plan.chosen:
        advice = advise_recipe(
            allocation=a, difficulty=plan.difficulty, anchor=plan.anchor, own=law.recipe, runs=law.runs_recipe
        )
    recipe = advice.recipe
    return {
        **allocation_to_json(a),
        "epochs": plan.epochs(a),
        "learning_rate": advice.learning_rate,
        "warmup_steps": recipe.warmup_steps,
        "kl_coef": recipe.kl_coef,
        "entropy_coef": recipe.entropy_coef,
        "temperature": recipe.temperature,
        "expected": {"metric": law.metric, "value": ranked.value, "interval": list(ranked.interval), "level": LEVEL},
        "probability_best": ranked.probability_best,
        "regret": ranked.regret,
        "tolerance": ranked.tolerance,
        "within_one_error": ranked.ties,
        "cheapest": option.cheapest,
        "falls": None
        if collapses is None
        else {
            "runs": collapses.runs,
            "fallen": collapses.collapsed,
            "share": collapses.share,
            "interval": list(collapses.interval()),
        },
    }


def allocation_to_json(a: Allocation) -> dict[str, Any]:
    """An allocation's keys in `plan --json`."""
    return {
        "problems_per_batch": a.problems_per_batch,
        "rollouts_per_problem": a.rollouts_per_problem,
        "update_steps": a.update_steps,
        "batch_size": a.batch_size,
        "compute": a.compute,
    }
