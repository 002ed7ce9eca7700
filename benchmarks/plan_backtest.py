"""How good plans would have been on a finished sweep: cut every run at C/8, fit, plan C, and look what came of it.

    python benchmarks/plan_backtest.py RUNS [--where set=hard] [--metric avg@4] [--ahead 8] [--budgets 4e4,8e4]

RUNS is a study's folder or a table in the columns of docs/runs.md, with several n and, better, several seeds. Truth at
C is what each setting has reached by then: the best evaluation up to C, mean over its seeds. Settings count whose every
run goes to C; the plan chooses among those that had begun at C/8. Without `--budgets`, C is halved from the largest to
which two settings go, while a law can be fitted.

Printed are the setting that was best at C, the planned one, what it lost, its lead over n = 8 and 16 at the same Bp
with the standard error of a difference between two settings, and the leader at C/8 with what following it would have
lost: the rule of somebody who does not plan.
"""

from __future__ import annotations

import argparse
import warnings
from dataclasses import replace

import numpy as np

import isocompute
from isocompute.errors import InputError
from isocompute.law import Curve, curves_of, fit_law
from isocompute.plan.load_law import load_law
from isocompute.runs import load

Setting = tuple[int, int]
SLACK = 1.03
"""Updates do not divide every budget: a run that ends this close to C has gone to C."""


def until(curve: Curve, compute: float) -> Curve:
    keep_C = curve.compute_C <= compute * SLACK
    return replace(curve, compute_C=curve.compute_C[keep_C], values_C=curve.values_C[keep_C])


def setting(curve: Curve) -> Setting:
    return int(curve.problems_per_batch or 0), int(curve.rollouts_per_problem or 0)


def reached(curves: list[Curve], compute: float) -> tuple[dict[Setting, float], float]:
    """What every setting has reached by `compute`, and the standard error of a mean over its seeds."""
    values: dict[Setting, list[float]] = {}
    short = {setting(c) for c in curves if c.compute_C[-1] * SLACK < compute}
    for curve in curves:
        if setting(curve) not in short and (cut := until(curve, compute)).compute_C.size:
            values.setdefault(setting(curve), []).append(float(cut.values_C.max()))
    several = [np.var(of, ddof=1) / len(of) for of in values.values() if len(of) > 1]
    return {key: float(np.mean(of)) for key, of in values.items()}, float(np.sqrt(np.mean(several or [np.nan])))


def planned(curves: list[Curve], *, metric: str, unit: str, budget: float, ahead: float) -> Setting | None:
    """What a law of the runs up to C / ahead plans for C; None where there is none."""
    begun = [c for c in (until(c, budget / ahead) for c in curves) if len(c.compute_C) >= 5]
    if len({setting(c) for c in begun}) < 2:
        return None
    settings = sorted({setting(c) for c in begun})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        law = fit_law(begun, metric=metric, unit=unit, replicates=300)
        rollouts = sorted({n for _, n in settings})
        plan = isocompute.plan(budget=budget, law=load_law(law), rollouts_per_problem=rollouts, extrapolate=True)
    return plan.allocation.problems_per_batch, plan.allocation.rollouts_per_problem


def halved(curves: list[Curve]) -> list[float]:
    """Budgets from the largest to which two settings go, downwards."""
    ends: dict[Setting, float] = {}
    for curve in curves:
        ends[setting(curve)] = min(ends.get(setting(curve), np.inf), float(curve.compute_C[-1]))
    largest = sorted(ends.values())[-2]
    return [largest / 2**i for i in range(6)]


def show(at: tuple[Setting, float] | None) -> str:
    return "–" if at is None else f"{at[0][0]} × {at[0][1]} ({at[1]:.4f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs")
    parser.add_argument("--where", action="append", default=[], metavar="COLUMN=VALUE")
    parser.add_argument("--metric")
    parser.add_argument("--ahead", type=float, default=8.0)
    parser.add_argument("--budgets", help="comma-separated")
    args = parser.parse_args()
    where = dict(one.split("=", 1) for one in args.where)
    curves, metric, unit = curves_of(load(args.runs, where=where), metric=args.metric)
    budgets = [float(c) for c in args.budgets.split(",")] if args.budgets else halved(curves)
    print(f"{args.runs} {' '.join(args.where)}: {metric}, {len(curves)} runs")
    head = f"{'C':>9}  {'best at C':18}  {'planned':18}  {'lost':>6}  {'n=8':>7}  {'n=16':>7}  error"
    print(f"{head}   leader at C/{args.ahead:g}")
    for budget in budgets:
        truth, error = reached(curves, budget)
        chosen = planned(curves, metric=metric, unit=unit, budget=budget, ahead=args.ahead)
        if chosen is None or not truth:
            print(f"{budget:9.3g}  too little has begun at C/{args.ahead:g}")
            continue
        before, _ = reached(curves, budget / args.ahead)
        leader = max((key for key in before if key in truth), key=lambda key: before[key], default=None)
        best = max(truth, key=lambda key: truth[key])
        if chosen not in truth:
            print(f"{budget:9.3g}  {show((best, truth[best])):18}  {chosen[0]} × {chosen[1]}, which ended before")
            continue
        leads = [
            truth[chosen] - truth[other] if (other := (chosen[0], n)) in truth and n != chosen[1] else None
            for n in (8, 16)
        ]
        words = "  ".join("      –" if lead is None else f"{lead:+7.4f}" for lead in leads)
        print(
            f"{budget:9.3g}  {show((best, truth[best])):18}  {show((chosen, truth[chosen])):18}  "
            f"{truth[best] - truth[chosen]:6.4f}  {words}  {error * np.sqrt(2):.4f}  "
            + ("–" if leader is None else f"{show((leader, truth[leader]))}, lost {truth[best] - truth[leader]:.4f}")
        )


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        raise SystemExit(str(error)) from None
