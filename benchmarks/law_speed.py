"""Seconds to fit a law to 200 runs of 200 points with 1,000 samples, and to plan with it: once, and for a new budget.

    python benchmarks/law_speed.py [--runs 200] [--points 200] [--samples 1000]

The runs are five Bp × eight n × five seeds of Hill curves. `benchmarks/web_speed.py` times it through the web app.
"""

from __future__ import annotations

import argparse
import time
from itertools import product

import numpy as np

import isocompute
from isocompute.core.curve import Curve
from isocompute.law.law import fit_law

BPS, NS = (16, 32, 64, 128, 256), (8, 16, 32, 64, 128, 256, 512, 1024)


def made_up(runs: int, points: int) -> list[Curve]:
    """Ceilings and midpoints that grow with n, and a seed effect."""
    out = []
    for seed, bp, n in list(product(range(runs // (len(BPS) * len(NS)) + 1), BPS, NS))[:runs]:
        rng = np.random.default_rng([seed, bp, n])
        compute_C = np.geomspace(bp * n, 8e6, points)
        ceiling = 0.55 + 0.02 * np.log2(n / 8) + 0.005 * rng.standard_normal()
        values_C = 0.3 + (ceiling - 0.3) / (1.0 + (6e4 * (n / 8) ** 0.5 / compute_C) ** 1.2)
        out.append(Curve(f"{bp}x{n}-{seed}", compute_C, values_C + 0.008 * rng.standard_normal(points), bp, n, seed))
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("runs", 200), ("points", 200), ("samples", 1000)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    curves = made_up(options.runs, options.points)
    start = time.perf_counter()
    law = fit_law(curves, metric="avg@4", replicates=options.samples)
    print(f"fit: {time.perf_counter() - start:.2f} s")
    for budget in (4e6, 1e6, 2e6, 3e6):
        start = time.perf_counter()
        isocompute.plan(budget=budget, law=law)
        print(f"plan of {budget:,.0f} rollouts: {time.perf_counter() - start:.3f} s")


if __name__ == "__main__":
    main()
