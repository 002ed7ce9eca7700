"""What intervals of a few seeds hold, on made-up sweeps in which every n is equally good.

    python benchmarks/seed_coverage.py [--draws 60] [--replicates 300]

A run's ceiling is drawn around .6 with the spread between seeds given, its 25 evaluations with noise .005. Nominal is
95% held, 5% told. For sweeps of four n:

- `setting`: the value of a setting at the last compute, from its own seeds; `alone`, from a fit without other settings;
- `surface`: the same from the joint law;
- `range`: best minus worst n (truly 0);
- `higher`, `ahead`: how often `compare` tells two recipes apart that are one;
- `noise`: how often `plan` finds a larger n ahead (a limit by noise).

The prior spread of a seed that single runs are given is ScaleRL's, .0072.

A second table is of sweeps of five n of which the smallest leads at first, and the largest at the end by the lead given
(0: all are equal there): how often n* is said to rise, and the mean share of replicates in which it does.
"""

from __future__ import annotations

import argparse

import numpy as np

from isocompute.core.curve import Curve
from isocompute.law.comparison import compare
from isocompute.law.fits import CurveFit, fit_groups
from isocompute.law.frontier import seed_noise, sensitivity
from isocompute.law.law import fit_law
from isocompute.law.surface import fit_surface
from isocompute.planner.regime import Sweep, by_rollouts

COMPUTE = np.geomspace(1e4, 1e6, 25)
NOISE = 0.005
ROLLOUTS = (8, 16, 32, 64)
END = COMPUTE[-1:]


def mean(ceiling: float) -> np.ndarray:
    return 0.3 + (ceiling - 0.3) * (1 - np.exp(-COMPUTE / 1.5e5))


TRUTH = float(mean(0.6)[-1])


def run(rng: np.random.Generator, n: int, seed: int, spread: float) -> Curve:
    values = mean(0.6 + spread * rng.standard_normal()) + NOISE * rng.standard_normal(len(COMPUTE))
    return Curve(f"{n}-{seed}", COMPUTE, values, 32, n, seed)


def held(values: np.ndarray) -> bool:
    low, high = np.percentile(values, [2.5, 97.5])
    return bool(low <= TRUTH <= high)


def own(fit: CurveFit) -> bool:
    return held(fit.ensemble.at(END)[:, 0])


def one_draw(rng: np.random.Generator, seeds: int, spread: float, replicates: int) -> dict[str, list[bool]]:
    groups = [[run(rng, n, seed, spread) for seed in range(seeds)] for n in ROLLOUTS]
    fits = fit_groups(groups, replicates=replicates, upper=1.0)
    surface = fit_surface(fits, upper=1.0, replicates=replicates)
    assert surface is not None
    at = surface.replicates_at(np.repeat(END, 4), np.array(ROLLOUTS, float), np.full(4, 32.0))
    (over_n,) = sensitivity(fits, seed_noise_SB=seed_noise(fits, seed=0))
    pair = compare(groups[0], groups[1], replicates=replicates)
    _, noise = by_rollouts(Sweep(tuple(fits), "rollouts"))
    return {
        "setting": [own(fit) for fit in fits],
        "alone": [own(fit_groups(groups[:1], replicates=replicates, upper=1.0)[0])],
        "surface": [held(at[:, i]) for i in range(4)],
        "range": [over_n.range_interval[0] <= 0.0],
        "higher": [pair.higher in ("a", "b")],
        "ahead": [pair.ahead_now in ("a", "b")],
        "noise": [noise.verdict == "yes"],
    }


def late(rng: np.random.Generator, seeds: int, spread: float, lead: float) -> list[Curve]:
    """Larger n rise later, and the further the larger they are."""
    curves = []
    for i, n in enumerate((4, 8, 16, 32, 64)):
        for seed in range(seeds):
            rise = 0.3 + lead * i / 4 + spread * rng.standard_normal()
            values = 0.3 + rise * (1 - np.exp(-COMPUTE / (2e4 * (n / 4) ** 0.6)))
            curves.append(Curve(f"{n}-{seed}", COMPUTE, values + NOISE * rng.standard_normal(25), 32, n, seed))
    return curves


def direction(rng: np.random.Generator, seeds: int, spread: float, lead: float, replicates: int) -> tuple[bool, float]:
    law = fit_law(late(rng, seeds, spread, lead), metric="avg@4", replicates=replicates)
    best = law.joint.rollouts
    assert best is not None
    return best.rises, best.probability_rises


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=60)
    parser.add_argument("--replicates", type=int, default=300)
    args = parser.parse_args()
    names = ("setting", "alone", "surface", "range", "higher", "ahead", "noise")
    print("spread  seeds " + "".join(f"{name:>9s}" for name in names))
    for spread in (0.005, 0.02):
        for seeds in (1, 2, 3, 5):
            rng = np.random.default_rng([int(1000 * spread), seeds])
            draws = [one_draw(rng, seeds, spread, args.replicates) for _ in range(args.draws)]
            shares = [np.mean([each for draw in draws for each in draw[name]]) for name in names]
            print(f"{spread:6.3f}  {seeds:5d} " + "".join(f"{share:9.0%}" for share in shares), flush=True)
    print("\nspread  seeds    lead    rises  in replicates")
    for spread in (0.005, 0.02):
        for seeds in (1, 2, 3, 5):
            for lead in (0.0, 0.03, 0.06):
                rng = np.random.default_rng([int(1000 * spread), seeds, int(1000 * lead)])
                found = [direction(rng, seeds, spread, lead, args.replicates) for _ in range(args.draws)]
                rises, share = (float(np.mean(each)) for each in zip(*found, strict=True))
                print(f"{spread:6.3f}  {seeds:5d}  {lead:6.2f} {rises:8.0%} {share:14.0%}", flush=True)


if __name__ == "__main__":
    main()
