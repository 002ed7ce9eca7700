"""Plans on worlds of the papers' kind against simple rules: mean regret, and what intervals and verdicts are worth.

    python benchmarks/plan_worlds.py [--first 0] [--worlds 60]

Each world of `worlds.py` is seen up to C, C/4 and C/8; C = 4M rollouts is planned. Regret is the true value of the best
configuration less that of the chosen one. Printed beside `isocompute plan`: always n = 32, the leader at the end of the
data, independent Hill fits, and a thirty-line hierarchical fit (`baselines.py`). Worlds below 1,000 are for
development; draw others to judge.
"""

from __future__ import annotations

import os

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import argparse
import functools
import warnings
from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np
import polars as pl
from baselines import constant, hierarchical, independent_hill, leader
from worlds import KINDS, Run, World, draw_world

import isocompute
from isocompute.core import run as core_run
from isocompute.core.recorder import RunSettings

CUTS = (1, 4, 8)
RULES: dict[str, Callable[[Sequence[Run], float], tuple[int, int]]] = {
    "n = 32": functools.partial(constant, 32),
    "leader": leader,
    "Hill": independent_hill,
    "thirty lines": hierarchical,
}


def run_set(runs: Sequence[Run]) -> core_run.RunSet:
    """The runs as the package has them."""
    out = []
    for run in runs:
        batch = run.problems_per_batch * run.rollouts_per_problem
        points = pl.DataFrame({"step": run.compute // batch, "rollouts": run.compute, "avg@4": run.values})
        settings = RunSettings(
            problems_per_batch=run.problems_per_batch,
            rollouts_per_problem=run.rollouts_per_problem,
            seed=run.seed,
            problems="world",
            model="world",
        )
        name = f"{run.problems_per_batch}x{run.rollouts_per_problem}-s{run.seed}"
        out.append(core_run.Run(name, settings, points.with_columns(pl.col("step", "rollouts").cast(pl.Int64))))
    return core_run.RunSet(tuple(out))


def planned(world: World, runs: Sequence[Run]) -> tuple[tuple[int, int], bool]:
    """The configuration that `isocompute plan` chooses, and whether its 80% interval holds the truth."""
    plan = isocompute.plan(budget=world.budget, law=run_set(runs), replicates=300, extrapolate=True)
    pair = plan.allocation.problems_per_batch, plan.allocation.rollouts_per_problem
    low, high = plan.chosen.ranked.interval
    return pair, bool(low <= float(world.truth(*pair, world.budget)) <= high)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--worlds", type=int, default=60)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    regret: dict[tuple[str, int, str], list[float]] = defaultdict(list)
    held: dict[int, list[bool]] = defaultdict(list)
    refused = 0
    for number in range(options.first, options.first + options.worlds):
        world = draw_world(number)
        for cut in CUTS:
            runs = world.runs(until=world.budget / cut)
            try:
                pair, holds = planned(world, runs)
            except isocompute.InputError:
                refused += 1
                continue
            held[cut].append(holds)
            chosen = {"isocompute plan": pair, **{name: rule(runs, world.budget) for name, rule in RULES.items()}}
            for name, own in chosen.items():
                for kind in ("all", world.kind):
                    regret[kind, cut, name].append(world.regret(*own, world.budget))
    names = ["isocompute plan", *RULES]
    print(f"mean regret over worlds {options.first}–{options.first + options.worlds - 1}; {refused} plans refused")
    print(f"{'worlds':8s}{'data to':9s}" + "".join(f"{name:>17s}" for name in names))
    for kind in ("all", *KINDS):
        for cut in CUTS:
            row = "".join(f"{np.mean(regret[kind, cut, name] or np.nan):17.4f}" for name in names)
            print(f"{kind:8s}{'C' if cut == 1 else f'C/{cut}':9s}{row}")
    shares = ", ".join(f"{np.mean(held[cut]):.0%} with data to {'C' if cut == 1 else f'C/{cut}'}" for cut in CUTS)
    print(f"80% intervals of the planned configuration hold the truth: {shares}")


if __name__ == "__main__":
    main()
