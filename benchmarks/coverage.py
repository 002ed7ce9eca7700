"""How often the 95% interval of a ceiling holds the true one, on made-up curves with autocorrelated noise of .01.

    python benchmarks/coverage.py [--draws 200] [--replicates 400]

Several designs: Hill, exponential and two-stage truths, 12 to 400 points, ceilings that are reached and ceilings that
are not. The noise is AR(1): ρ = 0 are independent evaluations, .85 and .95 what smoothing leaves. `level` is the share
of fits whose ceiling lies below the mean of the last tenth of the points, less twice its standard error.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np

from isocompute.core.curve import Curve
from isocompute.law.fits import CurveFit, fit_groups

NOISE = 0.01
RHOS = (0.0, 0.85, 0.95)
Truth = Callable[[np.ndarray], np.ndarray]
Design = tuple[np.ndarray, Truth, float]


def hill(compute: np.ndarray, base: float, ceiling: float, middle: float, steep: float) -> Design:
    return compute, lambda c: base + (ceiling - base) / (1 + (middle / c) ** steep), ceiling


def exponential(compute: np.ndarray, base: float, ceiling: float, scale: float) -> Design:
    return compute, lambda c: base + (ceiling - base) * (1 - np.exp(-c / scale)), ceiling


def jump_then_climb(compute: np.ndarray, base: float, jump: float, ceiling: float, middle: float) -> Design:
    def truth(c: np.ndarray) -> np.ndarray:
        return base + jump * (1 - np.exp(-6 * c / middle)) + (ceiling - base - jump) / (1 + (middle / c) ** 1.3)

    return compute, truth, ceiling


# The priors of the model were chosen on these …
CHOSEN_ON: dict[str, Design] = {
    "Hill, 60 points to 7 midpoints": hill(np.linspace(1, 60, 60), 0.4, 0.65, 9, 1.7),
    "Hill, 60 points to 3 midpoints": hill(np.linspace(1, 60, 60), 0.4, 0.65, 20, 1.7),
    "Hill, 30 points, log-spaced": hill(np.geomspace(1, 100, 30), 0.3, 0.65, 20, 1.3),
    "Hill, 40 points, steep": hill(np.linspace(1, 40, 40), 0.3, 0.65, 10, 3.0),
    "Hill, 15 points": hill(np.linspace(1, 15, 15), 0.3, 0.65, 4, 2.0),
    "exponential, 40 points": exponential(np.linspace(1, 40, 40), 0.3, 0.65, 12),
    "exponential, 20 points": exponential(np.linspace(1, 20, 20), 0.3, 0.65, 8),
}
# … and these changed nothing.
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
    "jump and climb, 60 points": jump_then_climb(np.linspace(1, 60, 60), 0.2, 0.15, 0.6, 10),
    "jump and climb, 30 log-spaced": jump_then_climb(np.geomspace(1, 200, 30), 0.1, 0.2, 0.5, 20),
}


def covered(fits: list[CurveFit], ceiling: float) -> float:
    return float(np.mean([low <= ceiling <= high for low, high in (f.ceiling_interval() for f in fits)]))


def noise(points: int, rho: float, rng: np.random.Generator) -> np.ndarray:
    """AR(1) noise of standard deviation NOISE."""
    z = rng.standard_normal(points) * NOISE
    out = z.copy()
    for i in range(1, points):
        out[i] = rho * out[i - 1] + np.sqrt(1 - rho**2) * z[i]
    return out


def below_level(fit: CurveFit, values: np.ndarray, rho: float) -> bool:
    last = values[-max(3, len(values) // 10) :]
    error = NOISE / np.sqrt(len(last) * (1 - rho) / (1 + rho) + rho)
    return bool(fit.ceiling < last.mean() - 2 * error)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--replicates", type=int, default=400)
    args = parser.parse_args()
    print(f"{'':34s}" + "".join(f"{f'ρ = {rho:g}':>9s}{'width':>7s}{'level':>7s}" for rho in RHOS))
    designs = [(0, *item) for item in CHOSEN_ON.items()] + [(20261119, *item) for item in FRESH.items()]
    means: dict[float, list[float]] = {rho: [] for rho in RHOS}
    for seed, name, (compute, truth, ceiling) in designs:
        rng = np.random.default_rng(seed)
        print(f"{name:34s}", end="")
        for rho in RHOS:
            values = [truth(compute) + noise(len(compute), rho, rng) for _ in range(args.draws)]
            curves = [Curve(f"{i}", compute, each) for i, each in enumerate(values)]
            fits = fit_groups([[c] for c in curves], replicates=args.replicates, upper=1.0, with_seeds=False)
            width = np.median([high - low for low, high in (f.ceiling_interval() for f in fits)])
            low = np.mean([below_level(f, v, rho) for f, v in zip(fits, values, strict=True)])
            means[rho].append(covered(fits, ceiling))
            print(f"{means[rho][-1]:9.2f}{width:7.3f}{low:7.1%}", end="", flush=True)
        print()
    print("mean                              " + "".join(f"{np.mean(means[rho]):9.2f}{'':14s}" for rho in RHOS))


if __name__ == "__main__":
    main()
