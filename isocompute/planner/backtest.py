"""How good plans would have been on a finished sweep: cut every run at C/8, fit, plan C, and compare with what came.

What a setting has reached by C is its best level up to C (the paper's "highest reward achievable with at most C"), mean
over its seeds. The best of many noisy evaluations is biased upwards, so the level is that of a curve fitted to the run
up to its best three evaluations in a row. Settings take part if three in four of their runs go to C; a run that ended
before counts with the best it had. The plan chooses among the settings that had begun at C/8. Of several recipes the
one that reached highest is planned with, which at C/8 nobody could know.
"""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace

import numpy as np

from isocompute.core.curve import MINIMUM_POINTS, Curve
from isocompute.core.errors import InputError, quiet
from isocompute.law.curves import MAXIMUM_POINTS, collapsed_early
from isocompute.law.fits import fit_groups
from isocompute.law.law import Law, fit_law
from isocompute.planner.cost.prices import Hardware, Prices
from isocompute.planner.decide import decide
from isocompute.planner.law import planning_law
from isocompute.planner.request import Budget, PlanRequest

AHEAD = 8.0
"""A law of the first 1/AHEAD of the compute plans the whole."""
_SLACK = 1.03
"""Updates do not divide every budget: a run that ends this close to C has gone to C."""
_POINTS = 5
"""Evaluations from which a run has begun."""
_MOST = 0.75
"""A setting goes as far as this share of its runs."""
_HALVINGS = 6
"""Budgets that are tried where none is given, each half of the one before."""

Setting = tuple[int, int]


@dataclass(frozen=True)
class Reached:
    """A setting, what it had reached by C, and how far that is below the best."""

    problems_per_batch: int
    rollouts_per_problem: int
    value: float
    regret: float


@dataclass(frozen=True)
class PlanTest:
    """A plan for C by what was known at C/8."""

    budget: float
    settings: tuple[Reached, ...]
    """Those that go to C."""
    left_out: tuple[Setting, ...]
    """Those that were run, but too few of their runs to C."""
    best: Reached
    planned: Reached | None
    """None: the plan is a Bp and n, each of which was run, but not with the other."""
    planned_setting: Setting
    error: float | None
    """Standard error of the planned setting's regret, by their seeds; None where it is the best or has one seed."""
    leader: Reached
    """The setting that led at C/8 by the fitted curves: what somebody would have run who does not plan."""


def backtest_sweep(
    curves: Sequence[Curve],
    *,
    source: str,
    metric: str,
    budget: float | None = None,
    replicates: int = 1000,
    seed: int = 0,
) -> list[PlanTest]:
    """Plans for one budget, or for several up to the largest that two settings reach."""
    curves = [replace(c, compute_C=c.compute_C[c.compute_C > 0], values_C=c.values_C[c.compute_C > 0]) for c in curves]
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
    """The largest compute to which two settings go, and its halves."""
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
    """A test for every budget of which an eighth says enough; the law is of `law_seeds` alone where they are given."""
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
    """The law of all runs up to `end`; None where too little has begun."""
    begun = [cut for cut in (_until(curve, end) for curve in curves) if _has_begun(cut)]
    if len({_setting(curve) for curve in begun}) < 2:
        return None
    with quiet():  # runs cut short warn of it, and that is what they are
        return fit_law(begun, metric=metric, unit="rollouts", replicates=replicates, seed=seed)


def _has_begun(curve: Curve) -> bool:
    return len(curve.compute_C) >= _POINTS and bool(np.ptp(curve.values_C)) and not collapsed_early(curve)


def _planned(law: Law, budget: float) -> Setting:
    """What the law plans, with the n that were run."""
    rollouts = sorted({int(fit.setting[1] or 0) for fit in law.settings})
    chosen = decide(
        law=planning_law(law),
        request=PlanRequest(budget=Budget(budget, "rollouts"), rollouts_per_problem=tuple(rollouts), extrapolate=True),
        prices=Prices(Hardware()),
    )
    return chosen.allocation.problems_per_batch, chosen.allocation.rollouts_per_problem


def _reached(curves: Sequence[Curve], compute: float) -> dict[Setting, list[float]]:
    """What the seeds of every setting that goes so far have reached."""
    ends = _ends(curves)
    there = [c for c in curves if ends[_setting(c)] * _SLACK >= compute >= c.compute_C[0]]
    values: dict[Setting, list[float]] = {}
    for curve, level in zip(there, _best_levels(there, compute), strict=True):
        values.setdefault(_setting(curve), []).append(level)
    return values


def _best_levels(curves: Sequence[Curve], compute: float) -> list[float]:
    """Of each run up to a compute; its plain maximum where there are too few points for a curve."""
    cut = [_to_the_best(_with_end(curve, compute).averaged(MAXIMUM_POINTS)) for curve in curves]
    rising = [c for c in cut if len(c.compute_C) >= MINIMUM_POINTS and np.ptp(c.values_C)]
    fits = {id(fit.curves[0]): fit for fit in fit_groups([[c] for c in rising], replicates=0)} if rising else {}
    return [float(fits[id(c)].at(c.compute_C[-1:])[0]) if id(c) in fits else float(c.values_C.max()) for c in cut]


def _with_end(curve: Curve, compute: float) -> Curve:
    """Up to a compute, and on the line in log C to the next evaluation there: settings are not evaluated at one C."""
    cut = _until(curve, compute)
    if len(cut.compute_C) == len(curve.compute_C) or cut.compute_C[-1] == compute:
        return cut
    there = np.interp(np.log(compute), np.log(curve.compute_C), curve.values_C)
    return replace(cut, compute_C=np.append(cut.compute_C, compute), values_C=np.append(cut.values_C, there))


def _to_the_best(curve: Curve) -> Curve:
    """Up to the best three evaluations in a row."""
    if len(curve.values_C) < 3:
        return curve
    return curve.until(int(np.convolve(curve.values_C, np.ones(3), mode="valid").argmax()) + 3)


def _error(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Standard error of the difference between two settings' means."""
    if min(len(a), len(b)) < 2:
        return None
    return float(np.sqrt(np.var(a, ddof=1) / len(a) + np.var(b, ddof=1) / len(b)))


def _ends(curves: Sequence[Curve]) -> dict[Setting, float]:
    """How far most runs of a setting go."""
    ends: dict[Setting, list[float]] = {}
    for curve in curves:
        ends.setdefault(_setting(curve), []).append(float(curve.compute_C[-1]))
    return {key: sorted(of, reverse=True)[math.ceil(_MOST * len(of)) - 1] for key, of in ends.items()}


def _reach(ends: dict[Setting, float]) -> float:
    """The largest compute to which two settings go."""
    return sorted(ends.values())[-2]


def _until(curve: Curve, compute: float) -> Curve:
    return curve.until(int((curve.compute_C <= compute).sum()))


def _setting(curve: Curve) -> Setting:
    return int(curve.problems_per_batch or 0), int(curve.rollouts_per_problem or 0)
