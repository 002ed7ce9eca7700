"""What laws that end at C/8 expect of settings at C, and what came: with the trend of the last points and without.

    python benchmarks/plan_ahead.py FOLDER|TABLE.csv … [--ahead 8] [--metric avg@4]

A FOLDER is one of `plan_regret.py`, which has for every set a law's runs up to C/8 and a sweep of eight seeds to C. A
TABLE has the columns of results/2026-11-16-lm-grid.csv: for every `set` (and `learning_rate`, where it has that) the
runs up to C/8 give the law, and the mean over seeds of the best value so far is the truth, at the largest C to which
two settings go and at a quarter of it. Errors are what came less what was expected, as a share of the rise seen (the
median setting's, from base to its last point): their mean, root mean square and 90th percentile, and how often the 80%
interval held what came. All settings count, not just the one that a plan chooses. Then how often the 80% interval of
the difference between two settings of one Bp held it, whose n are one or two, three or four, or more doublings apart.
"""

from __future__ import annotations

import os

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import argparse
import math
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path

import numpy as np
import polars as pl
from lm_grid import MOST, SLACK, reached
from plan_sets import POPULATIONS, Setting, truth

from isocompute import InputError
from isocompute.core.curve import Curve, curves_of
from isocompute.data import load
from isocompute.law.law import Law, fit_law
from isocompute.planner.law import planning_law

LEVEL, REPLICATES, POINTS = 0.8, 300, 5
SHARES = (1.0, 0.25)
APART = ((2.5, "1-2"), (4.5, "3-4"), (math.inf, "5+"))
"""Doublings between two n."""

Case = tuple[list[Curve], float, Mapping[Setting, float]]
"""Curves up to C/8, C, and what each setting reached by C."""


def of_folder(folder: Path, metric: str) -> Iterator[Case]:
    """The sets that `plan_regret.py` has kept."""
    for one in sorted(path for path in folder.iterdir() if (path / "truth").is_dir()):
        curves, _, _ = curves_of(load(one / "law"), metric=metric, unit="rollouts")
        last = max(float(curve.compute_C[-1]) for curve in curves)
        budget = min((p.budget for p in POPULATIONS.values()), key=lambda budget: abs(math.log(budget / 8 / last)))
        yield curves, float(budget), truth(one / "truth").best


def of_table(path: Path, metric: str, ahead: float) -> Iterator[Case]:
    """The sweeps of a table."""
    table = pl.read_csv(path, infer_schema_length=None)
    parts = [name for name in ("set", "learning_rate") if name in table.columns]
    for _, part in sorted(table.group_by(parts)):
        runs = [
            (int(bp), int(n), int(seed), run.sort("rollouts"))
            for (bp, n, seed), run in sorted(part.group_by("problems_per_batch", "rollouts_per_problem", "seed"))
        ]
        by_setting: dict[Setting, list[pl.DataFrame]] = defaultdict(list)
        for bp, n, _, run in runs:
            by_setting[bp, n].append(run)
        ends = {key: _end([float(run["rollouts"].max()) for run in of]) for key, of in by_setting.items()}
        if len(ends) < 2:
            continue
        for share in SHARES:
            budget = share * sorted(ends.values())[-2]
            true = {
                key: float(np.mean([reached(run, metric, [budget])[0] for run in of]))
                for key, of in by_setting.items()
                if ends[key] * SLACK >= budget
            }
            yield [c for run in runs if (c := _begun(*run, metric, budget / ahead)) is not None], budget, true


def _end(ends: list[float]) -> float:
    """As far as three in four runs of a setting go."""
    return sorted(ends, reverse=True)[math.ceil(MOST * len(ends)) - 1]


def _begun(bp: int, n: int, seed: int, run: pl.DataFrame, metric: str, end: float) -> Curve | None:
    """What of a run is there by `end`; None where that is too little for a fit."""
    there = run.filter((pl.col("rollouts") > 0) & (pl.col("rollouts") <= end))
    values_C = there[metric].to_numpy()
    if len(values_C) < POINTS or not np.ptp(values_C):
        return None
    return Curve(f"{bp}x{n}-{seed}", there["rollouts"].to_numpy().astype(float), values_C, bp, n, seed=seed)


@dataclass
class Found:
    """What a rule's laws expected, setting by setting and pair by pair."""

    errors: list[float] = field(default_factory=list)
    held: list[bool] = field(default_factory=list)
    pairs: dict[str, list[bool]] = field(default_factory=lambda: {name: [] for _, name in APART})

    def add(self, law: Law, budget: float, true: Mapping[Setting, float]) -> None:
        """Every setting of the law: the error as a share of the rise, and whether intervals held."""
        planning = planning_law(law)
        keys = [key for key in planning.model.settings() if key in true]
        bp_A, n_A = np.array(keys, dtype=np.float64).T
        values_AB = planning.values(bp_A, n_A, np.full(len(keys), budget))
        rise = float(np.median([abs(fit.at(np.array([fit.last]))[0] - fit.base) for fit in law.settings]))
        came_A = np.array([true[key] for key in keys])
        self.errors += ((came_A - values_AB.mean(axis=1)) / rise).tolist()
        self.held += [_holds(*pair) for pair in zip(values_AB, came_A, strict=True)]
        for one, other in combinations(range(len(keys)), 2):
            if keys[one][0] == keys[other][0]:
                apart = abs(math.log2(keys[one][1] / keys[other][1]))
                name = next(name for most, name in APART if apart <= most)
                self.pairs[name].append(_holds(values_AB[one] - values_AB[other], came_A[one] - came_A[other]))


def _holds(values_B: np.ndarray, came: float) -> bool:
    low, high = np.quantile(values_B, [0.5 - LEVEL / 2, 0.5 + LEVEL / 2])
    return bool(low <= came <= high)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", type=Path, nargs="+")
    parser.add_argument("--ahead", type=float, default=8.0, help="of tables")
    parser.add_argument("--metric", default="avg@4")
    args = parser.parse_args()
    warnings.simplefilter("ignore")  # runs that are cut short
    print(f"{'':40s}{'laws':>6s}{'settings':>9s}{'mean':>8s}{'rms':>7s}{'90%':>7s}   {LEVEL:.0%} intervals hold")
    print(f"{'':80s}values   differences of n by {', '.join(name for _, name in APART)} doublings")
    for source in args.sources:
        cases = of_folder(source, args.metric) if source.is_dir() else of_table(source, args.metric, args.ahead)
        found: dict[str, Found] = defaultdict(Found)
        laws = 0
        for curves, budget, true in cases:
            try:
                law = fit_law(curves, metric=args.metric, unit="rollouts", replicates=REPLICATES)
            except InputError:
                continue
            laws += 1
            blind = replace(law, settings=tuple(replace(fit, trend=None) for fit in law.settings))
            found["without the trend"].add(blind, budget, true)
            found["with the trend"].add(law, budget, true)
        for rule, of in found.items():
            error_A = np.array(of.errors)
            pairs = "  ".join(f"{np.mean(held):.0%}" if held else "–" for held in of.pairs.values())
            print(
                f"{source.stem[:20] + ', ' + rule:40s}{laws:6d}{len(error_A):9d}{error_A.mean():+8.3f}"
                f"{np.sqrt(np.mean(error_A**2)):7.3f}{np.quantile(np.abs(error_A), 0.9):7.3f}   {np.mean(of.held):.0%}"
                f"      {pairs}"
            )


if __name__ == "__main__":
    main()
