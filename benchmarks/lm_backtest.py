"""Plans from C/8 on the sweeps of a real language model, set by set: what they lose, whether they beat n = 8 and 16.

    python benchmarks/lm_backtest.py results/2026-11-18-lm-sets.csv [--budgets 3] [--seeds 0,1]

For every `set` of the table: `isocompute plan --backtest` of C, the largest compute that two n go to, and its halves;
avg@4. What a setting reached is its best level up to C by a curve fitted to every run, mean over all seeds. `--seeds`
fits the law to these seeds alone.
"""

from __future__ import annotations

import os

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import argparse
import warnings
from pathlib import Path

import numpy as np
import polars as pl
from lm_plans import curves_of

from isocompute.core.curve import Curve
from isocompute.planner.backtest import PlanTest, backtest_curves, halved_budgets

REPLICATES = 300


def tests_of(curves: list[Curve], budgets: int, seeds: set[int] | None) -> list[PlanTest]:
    """The largest budget first. What was reached is of all seeds, the law of these."""
    spent = halved_budgets(curves, budgets)
    return backtest_curves(curves, spent, metric="avg@4", replicates=REPLICATES, law_seeds=seeds)


def leads(test: PlanTest) -> dict[int, float]:
    """The planned n against the usual ones, where it differs from them."""
    if test.planned is None:
        return {}
    n, bp = test.planned.rollouts_per_problem, test.planned.problems_per_batch
    others = {s.rollouts_per_problem: s.value for s in test.settings if s.problems_per_batch == bp}
    return {usual: test.planned.value - others[usual] for usual in (8, 16) if usual != n and usual in others}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("--budgets", type=int, default=3)
    parser.add_argument("--seeds")
    args = parser.parse_args()
    warnings.simplefilter("ignore")  # runs that are cut short
    whole = pl.read_csv(args.table, infer_schema_length=None)
    seeds = None if args.seeds is None else {int(seed) for seed in args.seeds.split(",")}
    found: list[PlanTest] = []
    by_set: list[list[PlanTest]] = []
    print("set               problems  KL          C  best at C  planned  lost    n=8     n=16    leader at C/8 lost")
    for name in sorted(whole["set"].unique()):
        table = whole.filter(pl.col("set") == name)
        about = [str(table[key][0]) if key in table.columns else "–" for key in ("size", "kl_coef")]
        by_set.append(tests_of(curves_of(table, "avg@4"), args.budgets, seeds))
        for test in by_set[-1]:
            found.append(test)
            ahead = leads(test)
            shown = "  ".join(f"{ahead[n]:+.4f}" if n in ahead else "   –   " for n in (8, 16))
            lost = "   –  " if test.planned is None else f"{test.planned.regret:.4f}"
            print(
                f"{name:16s}  {about[0]:>8s}  {about[1]:6s} {test.budget:9,.0f}  {test.best.rollouts_per_problem:>9d}  "
                f"{test.planned_setting[1]:>7d}  {lost}  {shown}  {test.leader.regret:.4f}",
                flush=True,
            )
    lost_T = [test.planned.regret for test in found if test.planned]
    led_T = [test.leader.regret for test in found]
    print(
        f"\n{len(found)} plans lose {np.mean(lost_T):.4f} in the mean, {np.median(lost_T):.4f} in the median, ", end=""
    )
    print(f"{np.quantile(lost_T, 0.9):.4f} at the 90th percentile; leaders at C/8 {np.mean(led_T):.4f} in the mean")
    for n in (8, 16):
        won = [ahead[n] > 0 for test in found if n in (ahead := leads(test))]
        print(f"planned n beats n = {n} in {sum(won)} of {len(won)} where it differs")
    against_constants("all budgets", found)
    against_constants("the largest budget of each set", [tests[0] for tests in by_set])


def against_constants(title: str, tests: list[PlanTest]) -> None:
    """What always taking one n loses, and by how much plans lose less."""
    print(title)
    planned_T = np.array([test.planned.regret if test.planned else np.nan for test in tests])
    print(f"  plan    {np.nanmean(planned_T):.4f}")
    for n in sorted(set.intersection(*({s.rollouts_per_problem for s in test.settings} for test in tests))):
        fixed_T = np.array(
            [min(test.best.value - s.value for s in test.settings if s.rollouts_per_problem == n) for test in tests]
        )
        less_T = (fixed_T - planned_T)[np.isfinite(planned_T)]
        error = less_T.std(ddof=1) / np.sqrt(len(less_T))
        print(f"  n = {n:3d} {fixed_T.mean():.4f}; the plan loses {less_T.mean():.4f} ± {error:.4f} less")


if __name__ == "__main__":
    main()
