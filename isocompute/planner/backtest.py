"""Tests plans on a finished sweep: cut every run at C/8, fit, plan for C, and compare with the rewards at C.

A setting's reward at C is its best level up to C (the paper's "highest reward achievable with at most C"), averaged
over seeds. The best of many noisy evaluations is biased upwards, so the level is that of a curve fitted to the run up
to its best three evaluations in a row. Settings take part if three in four of their runs go to C; shorter runs count
with their best level. The plan chooses among the settings that had begun at C/8. Of several recipes, only the one that
reached highest is tested, although this was not known at C/8.
"""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace

import numpy as np

from isocompute.core.curve import MINIMUM_POINTS, Curve, upper_bound
from isocompute.core.errors import InputError, quiet
from isocompute.law.curves import MAXIMUM_POINTS, collapsed_early
from isocompute.law.law import Law, fit_law
from isocompute.law.solver import FAMILIES, FitRows, evaluate, solve
from isocompute.planner.cost.prices import Hardware, Prices
from isocompute.planner.decide import decide
from isocompute.planner.law import planning_law
from isocompute.planner.request import Budget, PlanRequest

AHEAD = 8.0
"""A plan for C uses a law fitted to the runs up to C / AHEAD."""
_SLACK = 1.03
"""A run that ends within this factor of C counts as run to C, since updates do not divide every budget."""
_POINTS = 5
"""A run has begun once it has this many evaluations."""
_MOST = 0.75
"""A setting goes to a compute if this share of its runs does."""
_HALVINGS = 6
"""Number of budgets that are tested by default, each half of the one before."""

Setting = tuple[int, int]


@dataclass(frozen=True)
class Reached:
    """A setting, its reward at C, and how far that is below the best setting's."""

    problems_per_batch: int
    rollouts_per_problem: int
    value: float
    regret: float


@dataclass(frozen=True)
class PlanTest:
    """A plan for C from the runs up to C/8, compared with the rewards at C."""

    budget: float
    settings: tuple[Reached, ...]
    """Settings that go to C."""
    left_out: tuple[Setting, ...]
    """Settings that have too few runs to C."""
    best: Reached
    planned: Reached | None
    """The planned setting; None if its Bp and n were not run together up to C."""
    planned_setting: Setting
    error: float | None
    """Standard error of the planned setting's regret over seeds; None if it is the best or has one seed."""
    leader: Reached
    """The setting that led at C/8 by the fitted curves, a baseline without a plan."""


def backtest_sweep(
    curves: Sequence[Curve],
    *,
    source: str,
    metric: str,
    budget: float | None = None,
    replicates: int = 1000,
    seed: int = 0,
) -> list[PlanTest]:
    """Test plans for one budget, or for several up to the largest that two settings reach."""
    with_n = [curve for curve in curves if curve.rollouts_per_problem]
    if len({curve.setting for curve in with_n}) < 2:
        raise InputError(f"{source}: plans are tested on a sweep, runs of several n (or Bp); give those.")
    known = [curve for curve in with_n if curve.problems_per_batch]
    if len(known) < len(with_n):
        raise InputError(f"{source}: a plan needs Bp, which its runs do not all say; give --problems-per-batch.")
    budgets, far = [budget] if budget else halved_budgets(known), _reach(_ends(known))
    if budgets[0] > far * _SLACK:
        raise InputError(
            f"--budget {budgets[0]:g}: only one setting goes so far, or none; two go to {far:,.0f} rollouts."
        )
    tests = backtest_curves(known, budgets, metric=metric, replicates=replicates, seed=seed)
    if not tests:
        raise InputError(
            f"{source}: at an eighth of {budgets[0]:,.0f} rollouts fewer than two settings have {_POINTS} "
            "evaluations; give runs that are longer, or evaluated more often."
        )
    return tests


def halved_budgets(curves: Sequence[Curve], count: int = _HALVINGS) -> list[float]:
    """The largest compute that two settings reach, and successive halves of it."""
    return [_reach(_ends(curves)) / 2**i for i in range(count)]


def backtest_curves(
    curves: Sequence[Curve],
    budgets: Sequence[float],
    *,
    metric: str,
    replicates: int = 1000,
    seed: int = 0,
    law_seeds: Container[int | None] | None = None,
) -> list[PlanTest]:
    """A test for every budget whose first eighth has enough points; `law_seeds` restricts the seeds of the law."""
    out = []
    for budget in budgets:
        seeds = _reached(curves, budget)
        known = [c for c in curves if _setting(c) in seeds and (law_seeds is None or c.seed in law_seeds)]
        law = _law(known, budget / AHEAD, metric, replicates, seed)
        if law is None:
            continue
        truth = {key: float(np.mean(values)) for key, values in seeds.items()}
        chosen, best = _planned(law, budget), max(truth, key=lambda key: truth[key])
        at = {key: Reached(*key, value, truth[best] - value) for key, value in truth.items()}
        led = max(law.settings, key=lambda fit: float(fit.at(np.array([budget / AHEAD]))[0])).setting
        out.append(
            PlanTest(
                budget,
                tuple(at.values()),
                tuple(sorted({_setting(curve) for curve in curves} - set(at))),
                at[best],
                at.get(chosen),
                chosen,
                None if chosen == best else _error(seeds.get(chosen, []), seeds[best]),
                at[int(led[0] or 0), int(led[1] or 0)],
            )
        )
    return out


def _law(curves: Sequence[Curve], end: float, metric: str, replicates: int, seed: int) -> Law | None:
    """The law of all runs up to `end`; None if fewer than two settings have begun."""
    cut = [_until(curve, end) for curve in curves]
    begun = [c for c in cut if len(c.compute_C) >= _POINTS and np.ptp(c.values_C) and not collapsed_early(c)]
    if len({_setting(curve) for curve in begun}) < 2:
        return None
    with quiet():  # warnings that runs are short do not apply to runs that were cut
        return fit_law(begun, metric=metric, unit="rollouts", replicates=replicates, seed=seed)


def _planned(law: Law, budget: float) -> Setting:
    """The setting that the law plans, among the n that were run."""
    rollouts = sorted({int(fit.setting[1] or 0) for fit in law.settings})
    chosen = decide(
        law=planning_law(law),
        request=PlanRequest(budget=Budget(budget, "rollouts"), rollouts_per_problem=tuple(rollouts), extrapolate=True),
        prices=Prices(Hardware()),
    )
    return chosen.allocation.problems_per_batch, chosen.allocation.rollouts_per_problem


def _reached(curves: Sequence[Curve], compute: float) -> dict[Setting, list[float]]:
    """The best levels of the seeds of every setting that goes to this compute."""
    ends = _ends(curves)
    there = [c for c in curves if ends[_setting(c)] * _SLACK >= compute >= c.compute_C[0]]
    values: dict[Setting, list[float]] = {}
    for curve, level in zip(there, _best_levels(there, compute), strict=True):
        values.setdefault(_setting(curve), []).append(level)
    return values


def _best_levels(curves: Sequence[Curve], compute: float) -> list[float]:
    """The best level of each run up to a compute; its largest value if it has too few points for a curve."""
    cut = [_to_the_best(_with_end(curve, compute).averaged(MAXIMUM_POINTS)) for curve in curves]
    return [
        _level(c) if len(c.compute_C) >= MINIMUM_POINTS and np.ptp(c.values_C) else float(c.values_C.max()) for c in cut
    ]


def _level(curve: Curve) -> float:
    """Value at the end of the closest of the solver's curves, by AIC."""
    unit = float(curve.compute_C[curve.compute_C > 0][0])
    compute_C = curve.compute_C / unit
    rows = FitRows(
        compute_C[None],
        np.array([max(float(compute_C[-1]), 1.0 + 1e-9)]),
        np.zeros(1, dtype=np.int64),
        curve.values_C[None],
        np.ones((1, len(compute_C))),
        upper_bound(curve.values_C),
    )
    scored = []
    for family in FAMILIES:
        fits = solve(family, rows)
        score = len(compute_C) * float(np.log(fits.sse_R[0] / len(compute_C) + 1e-12)) + 2 * family.free
        scored.append((score, float(evaluate(family, fits, compute_C[None, -1:])[0, 0])))
    return min(scored)[1]


def _with_end(curve: Curve, compute: float) -> Curve:
    """The curve up to a compute, with a last point there, interpolated in log C to the next evaluation."""
    cut = _until(curve, compute)
    if len(cut.compute_C) == len(curve.compute_C) or cut.compute_C[-1] == compute:
        return cut
    known = curve.compute_C > 0
    there = np.interp(np.log(compute), np.log(curve.compute_C[known]), curve.values_C[known])
    return replace(cut, compute_C=np.append(cut.compute_C, compute), values_C=np.append(cut.values_C, there))


def _to_the_best(curve: Curve) -> Curve:
    """The curve up to its best three evaluations in a row."""
    if len(curve.values_C) < 3:
        return curve
    return curve.until(int(np.convolve(curve.values_C, np.ones(3), mode="valid").argmax()) + 3)


def _error(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Standard error of the difference between two settings' means."""
    if min(len(a), len(b)) < 2:
        return None
    return float(np.sqrt(np.var(a, ddof=1) / len(a) + np.var(b, ddof=1) / len(b)))


def _ends(curves: Sequence[Curve]) -> dict[Setting, float]:
    """The compute that three in four runs of each setting reach."""
    ends: dict[Setting, list[float]] = {}
    for curve in curves:
        ends.setdefault(_setting(curve), []).append(float(curve.compute_C[-1]))
    return {key: sorted(of, reverse=True)[math.ceil(_MOST * len(of)) - 1] for key, of in ends.items()}


def _reach(ends: dict[Setting, float]) -> float:
    """The largest compute that two settings reach."""
    return sorted(ends.values())[-2]


def _until(curve: Curve, compute: float) -> Curve:
    return curve.until(int((curve.compute_C <= compute).sum()))


def _setting(curve: Curve) -> Setting:
    return int(curve.problems_per_batch or 0), int(curve.rollouts_per_problem or 0)
