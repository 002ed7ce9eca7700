"""What `plan --law simulate` is worth for a real language model, of whose sweeps it knows nothing.

    python benchmarks/lm_simulated.py results/2026-11-18-lm-sets.csv

For every set of `lm_sets.py`: 16 samples of up to 600 of its problems by the base model give pass rates, `--law
simulate` plans the sweep's compute from these and the set's size alone, and its n is held against the n* of the sweep
(the level of every n as in `lm_backtest.py`).
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
from lm_backtest import tests_of
from lm_plans import curves_of
from scipy import stats

import isocompute
from isocompute.rl.difficulty import count_correct

PROBLEMS, SAMPLES, REPLICATES = 600, 16, 300


def base_rates(kind: str, seed: int, size: int) -> np.ndarray:
    """Measured pass rates of the base model."""
    asked = min(size, PROBLEMS)
    _, right_P = count_correct(
        problems=f"chain:{kind}", model="tiny", samples=SAMPLES, seed=seed, size=asked, device="cpu"
    )
    return np.asarray(right_P) / SAMPLES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    whole = pl.read_csv(args.table, infer_schema_length=None)
    true_n, simulated_n, lost = [], [], []
    fixed: dict[int, list[float]] = {8: [], 16: [], 32: []}
    print("set       problems  pass rate  n*   simulated  lost")
    for name in sorted(whole["set"].unique(), key=lambda name: int(name.split("-")[1])):
        table = whole.filter(pl.col("set") == name)
        (kind, seed), size = name.split("-"), int(table["size"][0])
        test = tests_of(curves_of(table, "avg@4"), 1, None)[0]
        values = {s.rollouts_per_problem: s.value for s in test.settings}
        rates_P = base_rates(kind, int(seed), size)
        plan = isocompute.plan(
            budget=test.budget,
            law="simulate",
            pass_rates=rates_P,
            problems=size,
            rollouts_per_problem=sorted(values),
            replicates=REPLICATES,
        )
        n = plan.allocation.rollouts_per_problem
        true_n.append(test.best.rollouts_per_problem)
        simulated_n.append(n)
        lost.append(test.best.value - values[n])
        for other, of in fixed.items():
            of.append(test.best.value - values[other])
        print(f"{name:8s}  {size:>8d}  {rates_P.mean():>9.3f}  {true_n[-1]:>3d}  {n:>9d}  {lost[-1]:.4f}", flush=True)
    print(f"\nrank correlation of n* {stats.spearmanr(true_n, simulated_n).statistic:.2f}")
    print(f"its n loses {np.mean(lost):.4f} in the mean, {np.quantile(lost, 0.9):.4f} at the 90th percentile;", end=" ")
    print("always n = " + ", ".join(f"{n} {np.mean(of):.4f}" for n, of in fixed.items()))


if __name__ == "__main__":
    main()
