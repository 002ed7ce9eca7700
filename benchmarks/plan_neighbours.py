"""What neighbouring settings are worth to a plan of one seed a setting, on the sweeps that `plan_regret.py` has kept.

    python benchmarks/plan_neighbours.py FOLDER [--seeds 4] [--problems-per-batch 32]

FOLDER is that of `plan_regret.py`, which has a sweep of eight seeds for every set. Each of the first seeds is taken by
itself, as somebody would have it who runs every cell once, cut at C, C/2, C/8 and C/16, and C is planned with and
without what neighbouring settings say (`isocompute/planner/neighbours.py`).
The planned cell's true value, exact avg@4 of
the best checkpoint, is the mean of the other seeds; printed are the losses against the best cell by the same, and how
often the 80% interval of the planned cell held its true value.
"""

from __future__ import annotations

import os

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import argparse
from collections import defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from plan_sets import TRUTH_SEEDS, Setting

import isocompute
from isocompute.data import RunSet, load
from isocompute.law import Curve, curves_of, fit_law
from isocompute.planner.load_law import load_law

SHARES = (1.0, 0.5, 0.125, 0.0625)
REPLICATES, POINTS = 100, 5


@dataclass
class Found:
    """Of one rule, for one share of the budget."""

    lost: list[float] = field(default_factory=list)
    held: list[bool] = field(default_factory=list)


def of_others(runs: RunSet, seed: int) -> dict[Setting, float]:
    """The true value of every cell by all seeds but one."""
    curves: dict[Setting, list[np.ndarray]] = defaultdict(list)
    for run in runs:
        if run.settings.seed != seed:
            key = (int(run.settings.problems_per_batch or 0), int(run.settings.rollouts_per_problem or 0))
            curves[key].append(run.points["exact/avg@4"].to_numpy())
    return {key: float(np.mean(of, axis=0).max()) for key, of in curves.items()}


def cut(curve: Curve, compute: float) -> Curve:
    """Up to its first evaluation at this compute or beyond."""
    return curve.until(int(np.searchsorted(curve.compute_C, 0.98 * compute)) + 1)


def measure(folder: Path, seeds: int, only: int | None, out: dict[tuple[float, bool], Found]) -> None:
    every = load(folder)
    kept = [run for run in every if only is None or run.settings.problems_per_batch == only]
    runs = RunSet(tuple(kept), source=every.source)
    curves, _, _ = curves_of(runs, metric="avg@4", unit="rollouts")
    budget = max(float(curve.compute_C[-1]) for curve in curves)
    for seed in TRUTH_SEEDS[:seeds]:
        true = of_others(runs, seed)
        for share in SHARES:
            own = [cut(curve, share * budget) for curve in curves if curve.seed == seed]
            begun = [curve for curve in own if len(curve.compute_C) >= POINTS]
            law = load_law(fit_law(begun, metric="avg@4", unit="rollouts", replicates=REPLICATES))
            for borrows in (False, True):
                plan = isocompute.plan(budget=budget, law=replace(law, borrows=borrows), extrapolate=True)
                key = (plan.allocation.problems_per_batch, plan.allocation.rollouts_per_problem)
                low, high = plan.chosen.ranked.interval
                found = out[share, borrows]
                found.lost.append(max(true.values()) - true[key])
                found.held.append(low <= true[key] <= high)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--problems-per-batch", type=int)
    args = parser.parse_args()
    out: dict[tuple[float, bool], Found] = defaultdict(Found)
    sets = sorted(path for path in args.folder.iterdir() if (path / "truth").is_dir())
    for path in sets:
        measure(path / "truth", args.seeds, args.problems_per_batch, out)
    print(f"{len(sets)} sets × {args.seeds} seeds, one at a time")
    print("law up to  neighbours  mean loss  median  90th percentile  80% interval holds")
    for share in SHARES:
        for borrows in (False, True):
            lost, held = out[share, borrows].lost, out[share, borrows].held
            print(
                f"{f'C/{1 / share:g}' if share < 1 else 'C':9s}  {'with' if borrows else 'without':10s}  "
                f"{np.mean(lost):9.4f}  {np.median(lost):6.4f}  {np.quantile(lost, 0.9):15.4f}  {np.mean(held):18.0%}"
            )


if __name__ == "__main__":
    main()
