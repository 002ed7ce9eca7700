"""Does an n that grows along n*(C) beat the best fixed n at equal compute? On the simulator, paired by seed.

python benchmarks/schedule.py [--budget 1e6] [--seeds 10]

For every problem set: a law is fitted to a sweep of fixed n (two seeds); the schedule follows its frontier; then fresh
seeds run the schedule and every fixed n to the same C. `best` is the fixed n that is best on those fresh seeds, chosen
with hindsight, which favours it; `planned` the n that the law would have chosen for C. `early` is a schedule that makes
each change at a quarter of the compute. Differences are in exact held-out reward at C, schedule minus fixed, with a
95% Student interval over seeds.
"""

from __future__ import annotations

import os

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from scipy import stats

from isocompute.core.arrays import Array
from isocompute.data import Run, RunSet, RunSettings
from isocompute.planner.load_law import load_law
from isocompute.planner.schedule import schedule
from isocompute.sim import SimEngine
from isocompute.sweep.base import Cell

BP = 32
NS = (8, 32, 128)
SETS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "easy, D 1,200": ({"set": "easy", "size": 1200}, {"name": "isocompute-easy"}),
    "easy, D 400": ({"set": "easy", "size": 400}, {"name": "isocompute-easy"}),
    "hard, D 1,200": ({"set": "hard", "size": 1200}, {"name": "isocompute-hard"}),
    "all, D 1,200": ({"set": "all", "size": 1200}, {"name": "isocompute-easy"}),
    "noisy steps": (
        {"set": "easy", "size": 4000, "noise": 0.0},
        {"name": "grpo", "learning_rate": 0.1, "lr_scaling": "constant", "weight_decay": 0.05},
    ),
}


class _Quiet:
    def stopping(self) -> bool:
        return False

    def advanced(self, rollouts: int) -> None:
        pass


def run(problems: dict[str, Any], recipe: dict[str, Any], n: int, budget: int, seed: int) -> Run:
    cell = Cell("cell", BP, n, budget // (BP * n), seed, problems, recipe, {"points": 30})
    with tempfile.TemporaryDirectory() as folder:
        SimEngine().check(cell)
        SimEngine().run(cell, Path(folder), _Quiet())
        lines = (Path(folder) / "points.jsonl").read_text().splitlines()
    settings = RunSettings(problems_per_batch=BP, rollouts_per_problem=n, seed=seed)
    return Run(f"{n}-s{seed}", settings, pl.DataFrame([json.loads(line) for line in lines]))


def final(run: Run) -> float:
    return float(run.points["exact/avg@4"][-1])


def paired(d: Array) -> str:
    half = stats.t.ppf(0.975, len(d) - 1) * d.std(ddof=1) / np.sqrt(len(d))
    return f"{d.mean():+.4f} ({d.mean() - half:+.4f}, {d.mean() + half:+.4f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", type=float, default=1e6)
    parser.add_argument("--seeds", type=int, default=10)
    arguments = parser.parse_args()
    budget = int(arguments.budget)
    means: dict[str, list[float]] = {}
    for world, (name, (problems, recipe)) in enumerate(SETS.items()):
        table = {**problems, "seed": world}
        sweep = RunSet(tuple(run(table, recipe, n, budget, seed) for n in NS for seed in (0, 1)))
        law = load_law(sweep, metric="avg@4", replicates=400)
        ones = np.ones(len(NS))
        planned = NS[int(law.model.values(BP * ones, np.array(NS) * ones, budget * ones).mean(axis=1).argmax())]
        plans = {
            # A rollout that counts four times in the law's unit reads the frontier at four times the compute.
            key: schedule(law=law, budget=budget, problems_per_batch=BP, unit_per_rollout=factor)
            for key, factor in (("schedule", 1.0), ("early", 4.0))
        }
        seeds = range(100, 100 + arguments.seeds)
        fixed = {n: np.array([final(run(table, recipe, n, budget, s)) for s in seeds]) for n in NS}
        best = max(NS, key=lambda n, fixed=fixed: float(fixed[n].mean()))
        print(f"{name}: best fixed n {best}, {fixed[best].mean():.4f}; planned {planned}, {fixed[planned].mean():.4f}")
        for key, p in plans.items():
            first = p.stages[0].rollouts_per_problem
            grown = np.array([final(run(table, {**recipe, "schedule": p.changes}, first, budget, s)) for s in seeds])
            print(f"   {key}: " + " → ".join(f"{s.rollouts_per_problem} at {s.rollouts_from:,}" for s in p.stages))
            for against, n in (("best", best), ("planned", planned)):
                difference = grown - fixed[n]
                means.setdefault(f"{key} − {against}", []).append(float(difference.mean()))
                print(f"      {grown.mean():.4f}; − {against} {paired(difference)}", flush=True)
    for what, values in means.items():
        print(f"over the sets, {what}: {paired(np.array(values))}")


if __name__ == "__main__":
    main()
