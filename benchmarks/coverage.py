"""How often the 95% interval of a ceiling holds the true one, on made-up curves with noise .01.

    python benchmarks/coverage.py [--draws 500] [--replicates 400]

Several designs: Hill and exponential truths, 15 to 60 points, ceilings that are reached and ceilings that are not.
`chosen` is what an interval from the best family alone covers, for comparison; `records` what a fit to record-breaking
points does.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np

from isocompute.law.curve import Curve
from isocompute.law.families import FAMILIES
from isocompute.law.fits import CurveFit, fit_groups, usable_points

CEILING, NOISE = 0.65, 0.01
Design = tuple[np.ndarray, Callable[[np.ndarray], np.ndarray]]


def hill(base: float, middle: float, steep: float) -> Callable[[np.ndarray], np.ndarray]:
    return lambda c: base + (CEILING - base) / (1 + (middle / c) ** steep)


def exponential(base: float, scale: float) -> Callable[[np.ndarray], np.ndarray]:
    return lambda c: base + (CEILING - base) * (1 - np.exp(-c / scale))


DESIGNS: dict[str, Design] = {
    "Hill, 60 points to 7 midpoints": (np.linspace(1, 60, 60), hill(0.4, 9, 1.7)),
    "Hill, 60 points to 3 midpoints": (np.linspace(1, 60, 60), hill(0.4, 20, 1.7)),
    "Hill, 30 points, log-spaced": (np.geomspace(1, 100, 30), hill(0.3, 20, 1.3)),
    "Hill, 40 points, steep": (np.linspace(1, 40, 40), hill(0.3, 10, 3.0)),
    "Hill, 15 points": (np.linspace(1, 15, 15), hill(0.3, 4, 2.0)),
    "exponential, 40 points": (np.linspace(1, 40, 40), exponential(0.3, 12)),
    "exponential, 20 points": (np.linspace(1, 20, 20), exponential(0.3, 8)),
}


def covered(fits: list[CurveFit]) -> float:
    return float(np.mean([low <= CEILING <= high for low, high in (f.ceiling_interval() for f in fits)]))


def chosen(fit: CurveFit) -> bool:
    """Whether the replicates of the best family alone hold the ceiling."""
    mine = fit.ensemble.family_B == FAMILIES.index(fit.family)
    low, high = np.percentile(fit.ensemble.ceiling_B[mine], [2.5, 97.5])
    return bool(low <= CEILING <= high)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=500)
    parser.add_argument("--replicates", type=int, default=400)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    print(f"{'':34s}{'covered':>9s}{'width':>8s}{'chosen':>9s}{'records':>9s}")
    for name, (compute, truth) in DESIGNS.items():
        curves = [
            Curve(f"{i}", compute, truth(compute) + NOISE * rng.standard_normal(len(compute)))
            for i in range(args.draws)
        ]
        fits = fit_groups([[c] for c in curves], replicates=args.replicates, upper=1.0)
        thinned = [usable_points(c, points="records") for c in curves]
        record_fits = fit_groups([[c] for c in thinned if len(c.compute_C) >= 4], replicates=args.replicates, upper=1.0)
        width = np.median([high - low for low, high in (f.ceiling_interval() for f in fits)])
        alone = np.mean([chosen(f) for f in fits])
        print(f"{name:34s}{covered(fits):9.3f}{width:8.3f}{alone:9.3f}{covered(record_fits):9.3f}", flush=True)


if __name__ == "__main__":
    main()
