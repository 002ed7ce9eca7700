"""`isocompute.plan(...)`: what `isocompute plan` runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from isocompute.core.allocation import Allocation
from isocompute.core.arrays import Array
from isocompute.core.caught import quiet
from isocompute.core.errors import InputError
from isocompute.data import RunSet, RunWarning
from isocompute.law.curves import choose_metric
from isocompute.law.uncertainty import check_replicates, seed_deviation
from isocompute.planner.budget import Budget, Rates, parse_budget
from isocompute.planner.candidates import Constraints, allowed_rollouts, columns, values
from isocompute.planner.cost.prices import Hardware, prices
from isocompute.planner.decide import Plan, make_plan
from isocompute.planner.extrapolation import Curves
from isocompute.planner.law import LawSource, load_law, runs_at
from isocompute.planner.next_runs import Proposal, candidate_cells, common_targets, contenders, propose
from isocompute.planner.one_condition import one_condition
from isocompute.planner.recipe import parse_anchor
from isocompute.planner.regime import diagnose
from isocompute.planner.warnings import read_pass_rates

__all__ = ["next_cells", "plan"]

_NOISE = 0.003
"""The least that two runs of one cell differ by, seeds and evaluation together."""


def plan(
    *,
    budget: str | float | Budget,
    law: LawSource,
    metric: str | None = None,
    difficulty: str | None = None,
    pass_rates: str | Path | Sequence[float] | Array | None = None,
    pass_rate_column: str | None = None,
    problems: int | None = None,
    problems_per_batch: int | None = None,
    batch_size: int | None = None,
    rollouts_per_problem: int | Sequence[int] | None = None,
    stable_problems: tuple[int, int] | None = None,
    max_batch: int | None = None,
    min_updates: int = 1,
    lr_anchor: str | None = None,
    truncated: float | None = None,
    gpus: int | None = None,
    gpu: str | None = None,
    model: str | None = None,
    prompt_tokens: float | None = None,
    response_tokens: float | None = None,
    rollouts_per_second: float | None = None,
    timed_runs: RunSet | str | Path | None = None,
    price_per_gpu_hour: float | None = None,
    extrapolate: bool = False,
    replicates: int = 1000,
    seed: int = 0,
) -> Plan:
    """From a law and a budget to an allocation, a recipe, a cost and how sure that is.

    `law` is a published law's name, a `law.json`, runs, or a `Law`. `timed_runs` log
    `seconds` and give the throughput. The options are those of `isocompute plan`; docs/planning.md explains them.

    >>> chosen = plan(budget="2e6", law="isocompute/bp32-easy").allocation
    >>> chosen.problems_per_batch, chosen.rollouts_per_problem, chosen.update_steps
    (32, 256, 244)
    """
    asked = parse_budget(budget)
    if difficulty not in (None, "easy", "hard"):
        raise InputError(f"--difficulty {difficulty}: it is easy or hard; or give --pass-rates FILE.")
    rates_P = _rates(pass_rates, pass_rate_column)
    held = Constraints(
        problems_per_batch=problems_per_batch,
        batch_size=batch_size,
        rollouts_per_problem=allowed_rollouts(rollouts_per_problem),
        problems_range=stable_problems,
        max_batch=max_batch,
        min_updates=min_updates,
        gpus=gpus,
        problems=problems,
    )
    held.check()
    hardware = Hardware(
        gpus=gpus,
        gpu=gpu,
        model=model,
        prompt_tokens=prompt_tokens,
        response_tokens=response_tokens,
        rollouts_per_second=rollouts_per_second,
        price_per_gpu_hour=price_per_gpu_hour,
    )
    timed = _timed(timed_runs)
    check_replicates(replicates)
    source, runs = _with_runs(law, metric)
    found = load_law(source, metric=metric, problems_per_batch=problems_per_batch, replicates=replicates, seed=seed)
    with quiet(RunWarning):  # the law has said what there is to say of its runs
        diagnosis = None if runs is None else diagnose(runs, metric=found.metric)
    return make_plan(
        law=found,
        budget=asked,
        prices=prices(
            hardware,
            runs=timed,
            law_runs=runs,
            law_gpu_hours_per_rollout=found.gpu_hours_per_rollout,
            law_response_tokens=found.response_tokens,
            law_source=found.rate_source,
        ),
        constraints=held,
        metric=metric,
        difficulty=difficulty,
        rates_P=rates_P,
        truncated=truncated,
        anchor=parse_anchor(lr_anchor),
        extrapolate=extrapolate,
        diagnosis=diagnosis,
    )


def next_cells(plan: Plan, count: int) -> list[Proposal]:
    """The `count` cells whose results would improve this plan's decision most for each rollout they cost.

    Where the budget buys different settings different numbers of rollouts, those of the study that teaches most.
    """
    model = plan.law.model
    if not isinstance(model, Curves):
        raise InputError(
            f"--next: {plan.law.name} knows where n* is, not what single settings reach, so it cannot say what a run "
            "would teach; use a law of curves, such as isocompute/bp32-easy or your own runs."
        )
    bought = [_rates_of(plan, target).rollouts(plan.budget) for target in plan.targets]
    studies = [_proposals(plan, model, group, count) for group in common_targets(plan.targets, bought)]
    return max(studies, key=lambda proposals: sum(p.gain for p in proposals))


def _proposals(plan: Plan, model: Curves, targets: Sequence[Allocation], count: int) -> list[Proposal]:
    """The best cells among these settings, to shares of what they are given here."""
    cells = candidate_cells(model, targets, per_unit=lambda a: plan.law.per_rollout(_rates_of(plan, a)))
    if not cells:
        return []
    values_AB = _with_seeds(plan, plan.targets)
    cells = contenders(cells, plan.targets, values_AB)
    looks_EB = _with_seeds(plan, cells)
    return propose(
        values_AB=values_AB,
        looks_EB=looks_EB,
        cells=cells,
        count=count,
        noise=float(np.hypot(max(_NOISE, model.noise()), seed_deviation(plan.law.seed_error))),
    )


def _with_seeds(plan: Plan, settings: Sequence[Allocation]) -> Array:
    """Values under every member. A setting with one seed is off by what that seed gave, at every compute; another seed
    shows it, and its own.
    """
    own_AB = values(plan.law, *columns(plan.law, plan.prices, settings))
    keys = [(a.problems_per_batch, a.rollouts_per_problem) for a in settings]
    return np.asarray(own_AB + plan.law.seed_draws(keys, own_AB.shape[1]))


def _rates_of(plan: Plan, a: Allocation) -> Rates:
    return plan.prices.rates(a.problems_per_batch, a.rollouts_per_problem)


def _with_runs(law: LawSource, metric: str | None) -> tuple[LawSource, RunSet | None]:
    """Runs are read once, for the law and, those that it is of, for what limits them and how fast they were."""
    if isinstance(law, str | Path):
        runs = runs_at(str(law))
        law = law if runs is None else runs
    if not isinstance(law, RunSet):
        return law, None
    return law, one_condition(law, metric=choose_metric(law, metric))[0]


def _rates(given: str | Path | Sequence[float] | Array | None, column: str | None) -> Array | None:
    if isinstance(given, str | Path):
        return read_pass_rates(str(given), column=column)
    if column is not None:
        raise InputError(f"--pass-rate-column {column}: it is a column of a file of pass rates; say --pass-rates FILE.")
    if given is None:
        return None
    rates_P = np.asarray(given, dtype=np.float64)
    if rates_P.ndim != 1 or not len(rates_P) or not ((rates_P >= 0) & (rates_P <= 1)).all():
        raise InputError("pass_rates: give a list of numbers in [0, 1].")
    return rates_P


def _timed(runs: RunSet | str | Path | None) -> RunSet | None:
    if runs is None or isinstance(runs, RunSet):
        return runs
    from isocompute.data import load

    return load(runs)
