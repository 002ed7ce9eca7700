"""What plans from C/8 lose on the sweeps of a real language model: with all seeds, and with one of each n.

    python benchmarks/lm_plans.py results/2026-11-16-lm-grid.csv [--ahead 8] [--draws 3]

For every `set` of the table, three metrics and six budgets C (the largest to which two n go, and its halves): a law of
all runs up to C/8 (`--ahead`) plans C. What the planned n had reached by C (best value so far, mean over all seeds,
`lm_grid.py`) is compared with the best n, with n = 8 and n = 16 where they were run, and with two rules of thumb: the n
that leads at C/8 by its points, and the smallest. With one seed of each n the law is of `--draws` random choices of
them; the truth is of all seeds.
"""

from __future__ import annotations

import os

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import argparse
import warnings
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
from lm_grid import of_set, reached

import isocompute
from isocompute import InputError
from isocompute.core.curve import Curve
from isocompute.law.law import fit_law
from isocompute.planner.law import planning_law

METRICS = ("avg@4", "worst@4", "best@4")
HALVINGS, POINTS, REPLICATES = 6, 5, 300


def curves_of(table: pl.DataFrame, metric: str) -> list[Curve]:
    """A curve a run."""
    out = []
    ordered = table.sort("rollouts")
    for (n, seed), run in ordered.group_by("rollouts_per_problem", "seed", maintain_order=True):
        bp, compute_C = int(run["problems_per_batch"][0]), run["rollouts"].to_numpy().astype(float)
        out.append(Curve(f"n{n}-s{seed}", compute_C, run[metric].to_numpy(), bp, int(n), seed=int(seed)))
    return sorted(out, key=lambda curve: curve.name)


def cut(curves: list[Curve], end: float) -> list[Curve]:
    """What of the runs has begun by `end`."""
    some = [curve.until(int((curve.compute_C <= end).sum())) for curve in curves]
    return [curve for curve in some if len(curve.compute_C) >= POINTS and np.ptp(curve.values_C)]


def one_of_each(curves: list[Curve], rng: np.random.Generator) -> list[Curve]:
    """One seed of every n."""
    by_n: dict[int, list[Curve]] = defaultdict(list)
    for curve in curves:
        by_n[int(curve.rollouts_per_problem or 0)].append(curve)
    return [of[int(rng.integers(len(of)))] for of in by_n.values()]


def planned(curves: list[Curve], budget: float, end: float, metric: str) -> int | None:
    """The n planned from runs up to `end`; None where too little has begun."""
    begun = cut(curves, end)
    tried = sorted({int(curve.rollouts_per_problem or 0) for curve in begun})
    if len(tried) < 2:
        return None
    try:
        law = planning_law(fit_law(begun, metric=metric, unit="rollouts", replicates=REPLICATES))
    except InputError:
        return None
    plan = isocompute.plan(budget=budget, law=law, rollouts_per_problem=tried, extrapolate=True)
    return plan.allocation.rollouts_per_problem


def questions(table: pl.DataFrame, metric: str) -> Iterator[tuple[float, dict[int, float]]]:
    """Budgets, and what every n that goes so far has reached by them."""
    ends = table.group_by("rollouts_per_problem", "seed").agg(pl.col("rollouts").max())
    far = ends.group_by("rollouts_per_problem").agg(pl.col("rollouts").quantile(0.25, "lower"))
    top = float(far["rollouts"].sort()[-2])
    budgets = [top / 2**k for k in range(HALVINGS)]
    found = of_set(table, metric, budgets, last=False)
    for i, budget in enumerate(budgets):
        yield budget, {n: float(np.mean(of[i])) for n, of in found.items() if of[i]}


def leader(table: pl.DataFrame, metric: str, end: float, among: dict[int, float]) -> int:
    """The n that leads where the law ends, by the mean of its seeds' best values so far."""
    there: dict[int, list[float]] = defaultdict(list)
    for (n, _), run in table.group_by("rollouts_per_problem", "seed"):
        if int(n) in among and run.filter(pl.col("rollouts") > 0)["rollouts"].min() <= end:
            there[int(n)] += reached(run, metric, [end])
    return max(there, key=lambda n: float(np.mean(there[n])))


def line(name: str, lost: list[float], leads: list[float]) -> str:
    mean, median, most = np.mean(lost), np.median(lost), np.quantile(lost, 0.9)
    beaten = f"{sum(lead > 0 for lead in leads)} of {len(leads)}" if leads else ""
    return f"{name:36s}{len(lost):5d}{mean:9.4f}{median:9.4f}{most:9.4f}   {beaten}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("--ahead", type=float, default=8.0)
    parser.add_argument("--draws", type=int, default=3)
    args = parser.parse_args()
    warnings.simplefilter("ignore")  # runs that are cut short
    whole = pl.read_csv(args.table, infer_schema_length=None)
    lost: dict[str, list[float]] = defaultdict(list)
    leads: dict[str, list[float]] = defaultdict(list)
    rng = np.random.default_rng(0)
    for name in sorted(whole["set"].unique()):
        table = whole.filter(pl.col("set") == name)
        for metric in METRICS:
            curves = curves_of(table, metric)
            for budget, values in questions(table, metric):
                best, end = max(values.values()), budget / args.ahead
                for rule, n in (("smallest", min(values)), ("leader", leader(table, metric, end, values))):
                    lost[f"{rule} n, all seeds"].append(best - values[n])
                samples = {"all seeds": [curves], "one seed": [one_of_each(curves, rng) for _ in range(args.draws)]}
                for seeds, some in samples.items():
                    for sample in some:
                        n = planned(sample, budget, end, metric)
                        if n not in values:
                            continue  # too little has begun, or the planned n was not run so far
                        lost[f"plan, {seeds}"].append(best - values[n])
                        leads[f"plan, {seeds}"] += [values[n] - values[o] for o in (8, 16) if o != n and o in values]
    print(f"{'':36s}{'cases':>5s}{'mean':>9s}{'median':>9s}{'90%':>9s}   beats n = 8, 16 where it differs")
    for rule in sorted(lost):
        print(line(rule, lost[rule], leads[rule]))


if __name__ == "__main__":
    main()
