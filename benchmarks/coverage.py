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

from isocompute.core.curve import Curve
from isocompute.law.curves import usable_points
from isocompute.law.fits import CurveFit, fit_groups
from isocompute.law.solver import FAMILIES

NOISE = 0.01
Truth = Callable[[np.ndarray], np.ndarray]
Design = tuple[np.ndarray, Truth, float]


def hill(compute: np.ndarray, base: float, ceiling: float, middle: float, steep: float) -> Design:
    return compute, lambda c: base + (ceiling - base) / (1 + (middle / c) ** steep), ceiling


def exponential(compute: np.ndarray, base: float, ceiling: float, scale: float) -> Design:
    return compute, lambda c: base + (ceiling - base) * (1 - np.exp(-c / scale)), ceiling


# The weights of the families (AIC, not AICc or none) were chosen on these …
CHOSEN_ON: dict[str, Design] = {
    "Hill, 60 points to 7 midpoints": hill(np.linspace(1, 60, 60), 0.4, 0.65, 9, 1.7),
    "Hill, 60 points to 3 midpoints": hill(np.linspace(1, 60, 60), 0.4, 0.65, 20, 1.7),
    "Hill, 30 points, log-spaced": hill(np.geomspace(1, 100, 30), 0.3, 0.65, 20, 1.3),
    "Hill, 40 points, steep": hill(np.linspace(1, 40, 40), 0.3, 0.65, 10, 3.0),
    "Hill, 15 points": hill(np.linspace(1, 15, 15), 0.3, 0.65, 4, 2.0),
    "exponential, 40 points": exponential(np.linspace(1, 40, 40), 0.3, 0.65, 12),
    "exponential, 20 points": exponential(np.linspace(1, 20, 20), 0.3, 0.65, 8),
}
# … and these were written afterwards and changed nothing.
FRESH: dict[str, Design] = {
    "Hill, 25 points, ceiling .8": hill(np.linspace(2, 50, 25), 0.2, 0.8, 12, 1.5),
    "Hill, 50 log-spaced, soft": hill(np.geomspace(1, 300, 50), 0.1, 0.5, 25, 1.0),
    "Hill, 20 points, ceiling .3": hill(np.linspace(1, 20, 20), 0.05, 0.3, 5, 2.2),
    "Hill, 40 points to 2 midpoints": hill(np.linspace(1, 40, 40), 0.3, 0.7, 20, 2.0),
    "Hill, 12 points": hill(np.linspace(1, 12, 12), 0.3, 0.6, 3, 1.8),
    "exponential, 30 log-spaced": exponential(np.geomspace(1, 60, 30), 0.2, 0.45, 12),
    "exponential, 60 points, to .9": exponential(np.linspace(1, 60, 60), 0.5, 0.9, 20),
    # Fitted as the means of at most 48 bins.
    "Hill, 400 points": hill(np.linspace(1, 400, 400), 0.3, 0.65, 40, 1.5),
    "exponential, 250 points": exponential(np.linspace(1, 250, 250), 0.3, 0.65, 90),
}


def covered(fits: list[CurveFit], ceiling: float) -> float:
    return float(np.mean([low <= ceiling <= high for low, high in (f.ceiling_interval() for f in fits)]))


def chosen(fit: CurveFit, ceiling: float) -> bool:
    """Whether the replicates of the best family alone hold the ceiling."""
    mine = fit.ensemble.family_B == FAMILIES.index(fit.family)
    low, high = np.percentile(fit.ensemble.ceiling_B[mine], [2.5, 97.5])
    return bool(low <= ceiling <= high)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=500)
    parser.add_argument("--replicates", type=int, default=400)
    args = parser.parse_args()
    print(f"{'':34s}{'covered':>9s}{'width':>8s}{'chosen':>9s}{'records':>9s}")
    designs = [(0, *item) for item in CHOSEN_ON.items()] + [(20261115, *item) for item in FRESH.items()]
    generators = {seed: np.random.default_rng(seed) for seed in (0, 20261115)}
    for seed, name, (compute, truth, ceiling) in designs:
        rng = generators[seed]
        curves = [
            Curve(f"{i}", compute, truth(compute) + NOISE * rng.standard_normal(len(compute)))
            for i in range(args.draws)
        ]
        fits = fit_groups([[c] for c in curves], replicates=args.replicates, upper=1.0)
        thinned = [usable_points(c, points="records") for c in curves]
        record_fits = fit_groups([[c] for c in thinned if len(c.compute_C) >= 4], replicates=args.replicates, upper=1.0)
        width = np.median([high - low for low, high in (f.ceiling_interval() for f in fits)])
        alone = np.mean([chosen(f, ceiling) for f in fits])
        print(
            f"{name:34s}{covered(fits, ceiling):9.3f}{width:8.3f}{alone:9.3f}{covered(record_fits, ceiling):9.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
