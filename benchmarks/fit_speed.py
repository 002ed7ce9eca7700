"""Batched bootstrap fits against a loop of `scipy.optimize.curve_fit`, on the same data, in one process.

    python benchmarks/fit_speed.py [--runs 40] [--points 60] [--replicates 1000] [--sample 60]

Every replicate is fitted with every family. scipy gets the same families and three starts a fit, and is timed on a
random sample of the same fits, since the whole would take hours: once without bounds (MINPACK, its fastest way) and
once with our bounds, which is the like-for-like fit. Prints the time a fit, both ratios, and the worst excess of our
sum of squares over the best of scipy's three bounded fits.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
import warnings

import numpy as np
from scipy.optimize import OptimizeWarning, curve_fit

from isocompute.law.solver import FAMILIES, Family, FitRows, solve


def made_up(runs: int, points: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Hill curves of varied ceiling, midpoint and efficiency with noise .01."""
    compute_GC = np.sort(10 ** rng.uniform(0, 2.5, size=(runs, points)), axis=1)
    compute_GC /= compute_GC[:, :1]
    base, gain = rng.uniform(0.1, 0.4, (runs, 1)), rng.uniform(0.1, 0.4, (runs, 1))
    middle, steep = 10 ** rng.uniform(0.7, 1.8, (runs, 1)), rng.uniform(0.8, 2.5, (runs, 1))
    return compute_GC, base + gain / (1 + (middle / compute_GC) ** steep)


# Written out as a script would, without our batched shapes; the ceiling is a parameter, so that it can be bounded.
MODELS = {
    "hill": lambda c, top, gain, m, b: top - gain / (1.0 + np.exp(np.exp(b) * (np.log(c) - m))),
    "exponential": lambda c, top, gain, t: top - gain * np.exp(-c * np.exp(-t)),
    "power": lambda c, top, gain, b: top - gain * (1.0 + c) ** -np.exp(b),
}


def scipy_fit(family: Family, compute: np.ndarray, values: np.ndarray, *, bounded: bool) -> float:
    """The best sum of squares of three starts; infinite where all of them fail."""
    model = MODELS[family.name]
    box = family.bounds(float(compute[-1]))
    low, high = np.r_[-1.0, 0.0, box[:, 0]], np.r_[1.0, 5.0, box[:, 1]]
    best = np.inf
    for share in (0.25, 0.5, 0.75):
        start = np.r_[values[-3:].mean(), np.ptp(values), box[:, 0] + share * (box[:, 1] - box[:, 0])]
        limits = {"bounds": (low, high)} if bounded else {}
        try:
            found, _ = curve_fit(model, compute, values, p0=np.clip(start, low, high), maxfev=2000, **limits)
        except RuntimeError:
            continue
        best = min(best, float(((model(compute, *found) - values) ** 2).sum()))
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("runs", 40), ("points", 60), ("replicates", 1000), ("sample", 60)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    warnings.simplefilter("ignore", OptimizeWarning)
    rng = np.random.default_rng(0)
    compute_GC, truth_GC = made_up(args.runs, args.points, rng)
    rows = args.runs * args.replicates
    group_R = np.repeat(np.arange(args.runs), args.replicates)
    values_RC = truth_GC[group_R] + 0.01 * rng.standard_normal((rows, args.points))
    batch = FitRows(compute_GC, compute_GC[:, -1], group_R, values_RC, np.ones_like(values_RC), upper=1.0)
    out: dict[str, object] = {"fits": rows * len(FAMILIES), "machine": platform.processor(), "cores": os.cpu_count()}
    totals = np.zeros(3)
    worst, compared = 0.0, 0
    for family in FAMILIES:
        start = time.perf_counter()
        fits = solve(family, batch)
        ours = (time.perf_counter() - start) / rows
        sample = rng.choice(rows, args.sample, replace=False)
        times, sums = [], []
        for bounded in (False, True):
            start = time.perf_counter()
            sums = [scipy_fit(family, compute_GC[group_R[r]], values_RC[r], bounded=bounded) for r in sample]
            times.append((time.perf_counter() - start) / args.sample)
        excess = [fits.sse_R[r] / s - 1.0 for r, s in zip(sample, sums, strict=True) if np.isfinite(s)]
        worst, compared = max(worst, *excess), compared + len(excess)
        totals += [ours, *times]
        free, like = times[0] / ours, times[1] / ours
        out[family.name] = {
            "ours_us": ours * 1e6,
            "ratio_unbounded": free,
            "ratio_bounded": like,
            "excess": max(excess),
        }
        print(f"{family.name:12s} ours {ours * 1e6:6.1f} us a fit; scipy {times[0] * 1e6:8.1f} us ", end="")
        print(f"without bounds ({free:.0f}x), {times[1] * 1e6:8.1f} us with ({like:.0f}x)")
    free, like = totals[1] / totals[0], totals[2] / totals[0]
    out |= {"ratio_unbounded": free, "ratio_bounded": like, "worst_excess": worst, "compared": compared}
    print(f"all families: {rows * len(FAMILIES):,} fits in {totals[0] * rows:.1f} s, {free:.0f} times scipy ", end="")
    print(f"without bounds and {like:.0f} times with; worst excess of our squares {worst:.1e} over {compared} fits")
    print(json.dumps(out))


if __name__ == "__main__":
    main()
