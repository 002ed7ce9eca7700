"""Laws of real runs: ceilings and levels, evaluations left out, recipes compared with themselves, forecasts.

    python benchmarks/collect_curves.py DATA_FOLDER curves.csv --train train.csv
    python benchmarks/law_logs.py curves.csv [train.csv …] [--seeds results/2026-11-16-lm-grid.csv]

For every run of the tables: whether its fitted ceiling lies below the level of its last evaluations, whether an
estimate lies outside of its interval, and whether its first evaluation is in the fit. Forecasts are made from the first
half of a run, and judged by the mean of its last tenth beside the mean of the last three evaluations, one Hill fit, and
the posterior of the run alone; errors of values above 1 are shares of the run's range.

`--seeds` is a table of sweeps with many seeds. The seeds of one configuration are split at random into two recipes
that `compare` has to call the same, with one, two and three seeds on each side.
"""

from __future__ import annotations

import os

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import argparse
import warnings
from itertools import product
from pathlib import Path

import numpy as np
import polars as pl
from lm_plans import curves_of as sweep_curves

from isocompute.core.curve import MINIMUM_POINTS, Curve, curves_of, noise_level
from isocompute.core.errors import InputError
from isocompute.data import load
from isocompute.law.comparison import compare
from isocompute.law.curves import usable_mask, usable_points
from isocompute.law.fits import fit_groups
from isocompute.law.forecasting import backtest

PAIRS, SIDES = 48, (1, 2, 3)


def ceilings(curves: list[Curve]) -> None:
    """Ceilings below the level held, estimates outside their intervals, first evaluations left out."""
    below = outside = dropped = fitted = 0
    for curve in curves:
        mask = usable_mask(curve.values_C)
        dropped += not mask[0]
        usable = usable_points(curve)
        if len(usable.compute_C) < MINIMUM_POINTS or np.ptp(usable.values_C) == 0:
            continue
        fit = fit_groups([[usable]], replicates=400, with_seeds=False)[0]
        low, high = fit.ceiling_interval()
        fitted += 1
        below += fit.ceiling < min(float(usable.values_C[-3:].mean()), 1.0) - 1e-9
        outside += not low <= fit.ceiling <= high
    print(f"  {fitted} runs fitted: {below} ceilings below the last three evaluations, ", end="")
    print(f"{outside} outside of their interval; first evaluation left out in {dropped} of {len(curves)}")


def forecasts(curves: list[Curve]) -> None:
    """Forecasts from the first half."""
    rows = []
    for curve in curves:
        half = curve.points_up_to(curve.compute_C[-1] / 2.0)
        if half < MINIMUM_POINTS or np.ptp(curve.values_C[:half]) == 0:
            continue
        made = backtest(curve)
        scale = float(np.ptp(curve.values_C)) if np.abs(curve.values_C).max() > 1.0 else 1.0
        usable = usable_points(curve.until(half))
        (fit,) = fit_groups([[usable]], replicates=400, with_seeds=False)
        noise = noise_level(usable.values_C) / np.sqrt(3) * np.random.default_rng(0).standard_normal(400)
        samples = fit.draws_at(np.array([made.forecast.at]))[0] + noise
        low, high = np.quantile(samples, [0.1, 0.9])
        guesses = (made.forecast.value, made.last_three, made.hill, float(samples.mean()))
        errors = [abs(guess - made.target) / scale for guess in guesses]
        rows.append([*errors, made.covered, low <= made.target <= high])
    if not rows:
        return
    ours, last, hill, posterior, held, posterior_held = np.mean(rows, axis=0)
    print(f"  {len(rows)} forecasts from the first half: mean error {ours:.4f}; last three {last:.4f}, ", end="")
    print(f"Hill {hill:.4f}, posterior {posterior:.4f}")
    print(f"  80% intervals hold {held:.0%}; those of the posterior {posterior_held:.0%}")


def with_themselves(path: Path) -> None:
    """Compare random halves of the seeds of one configuration."""
    table = pl.read_csv(path, infer_schema_length=None)
    rng = np.random.default_rng(0)
    print(f"{path}: one recipe compared with itself, shares said to differ")
    for size in SIDES:
        said: dict[str, list[bool]] = {"higher": [], "faster": [], "ahead_now": []}
        for name in sorted(table["set"].unique()):
            mine = sweep_curves(table.filter(pl.col("set") == name), "avg@4")
            settings = sorted({curve.setting for curve in mine})
            groups = [[c for c in mine if c.setting == setting] for setting in settings]
            groups = [group for group in groups if len(group) >= 2 * size]
            for group, _ in product(groups, range(PAIRS // max(len(groups), 1) + 1)):
                order = rng.permutation(len(group))
                sides = [[group[i] for i in order[k * size : (k + 1) * size]] for k in range(2)]
                try:
                    found = compare(*sides, replicates=400)
                except InputError:  # a run that collapsed at once
                    continue
                for key, list_ in said.items():
                    list_.append(getattr(found, key) in ("a", "b"))
        many = len(said["higher"])
        shares = ", ".join(f"{key} {np.mean(each):.1%}" for key, each in said.items())
        print(f"  {size} and {size} seeds, {many} pairs: {shares}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", type=Path, nargs="*")
    parser.add_argument("--seeds", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # runs that collapsed
    for path in options.tables:
        print(path)
        curves, _, _ = curves_of(load(str(path)), metric="value")
        ceilings(curves)
        forecasts(curves)
    if options.seeds is not None:
        with_themselves(options.seeds)


if __name__ == "__main__":
    main()
