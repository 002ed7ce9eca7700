"""How often a collapse is found in a healthy run, and how many collapses are found.

    python benchmarks/falls.py [--draws 400]

Made-up evaluations of n points: flat, low, rising, high and steep learning curves on 30 or 500 problems, sampled once
or several times, or greedy (a problem's answer changes only where the policy's pass rate crosses its threshold). First
the share of healthy runs in which `collapse_start` sees a collapse, and in which `usable_mask` sees a dip; then the
share of runs whose last one to four evaluations are collapsed in which the collapse is found where it begins.
"""

from __future__ import annotations

import argparse

import numpy as np

from isocompute.law.curves import collapse_start, usable_mask

SHAPES = {"flat": (0.3, 0.0), "low": (0.03, 0.02), "rising": (0.2, 0.4), "high": (0.8, 0.1), "steep": (0.05, 0.7)}
"""Pass rate at the start, and how much it rises."""
SETS = ((30, 1), (30, 16), (30, 0), (500, 4))
"""Problems, and samples of each; 0 is greedy."""
POINTS = (5, 6, 8, 10, 12, 20, 40)
COLLAPSED = 0.02


def evaluations(rate_C: np.ndarray, problems: int, samples: int, rng: np.random.Generator) -> np.ndarray:
    """Measured pass rates."""
    if samples:
        return rng.binomial(problems * samples, rate_C) / (problems * samples)
    threshold_P = rng.random(problems)
    return np.array([np.mean(threshold_P < rate + 0.01 * rng.standard_normal(problems)) for rate in rate_C])


def false_alarms(draws: int, rng: np.random.Generator) -> None:
    """Falls and dips of runs that have none."""
    print(f"healthy runs: collapses seen / dips seen, of {draws}")
    print(f"{'points':>6} {'set':>12}" + "".join(f"{name:>16}" for name in SHAPES))
    for points in POINTS:
        for problems, samples in SETS:
            cells = []
            for start, rise in SHAPES.values():
                rate_C = start + rise * np.linspace(0.0, 1.0, points)
                seen = [evaluations(rate_C, problems, samples, rng) for _ in range(draws)]
                falls = np.mean([collapse_start(values_C) is not None for values_C in seen])
                dips = np.mean([collapse_start(v_C) is None and not usable_mask(v_C).all() for v_C in seen])
                cells.append(f"{falls:.1%} / {dips:.1%}")
            name = f"{problems} × {samples or 'greedy'}"
            print(f"{points:>6} {name:>12}" + "".join(f"{cell:>16}" for cell in cells), flush=True)


def collapses(draws: int, rng: np.random.Generator) -> None:
    """Collapses that are found, of 30 problems × 16 samples."""
    shapes = {"flat": (0.5, 0.05), "rising": (0.3, 0.3), "steep": (0.05, 0.7)}
    print(f"\nruns that collapse: found where they do, of {draws}, by shape and collapsed evaluations")
    print(f"{'points':>6}" + "".join(f"{f'{name}, {m}':>12}" for name in shapes for m in (1, 2, 3, 4)))
    for points in POINTS:
        cells = []
        for start, rise in shapes.values():
            for collapsed in (1, 2, 3, 4):
                if points - collapsed < 4:  # too few before it for a curve
                    cells.append("")
                    continue
                rate_C = start + rise * np.linspace(0.0, 1.0, points)
                rate_C[-collapsed:] = COLLAPSED
                seen = [evaluations(rate_C, 30, 16, rng) for _ in range(draws)]
                cells.append(f"{np.mean([collapse_start(values_C) == points - collapsed for values_C in seen]):.0%}")
        print(f"{points:>6}" + "".join(f"{cell:>12}" for cell in cells), flush=True)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=400)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    false_alarms(args.draws, rng)
    collapses(args.draws, rng)


if __name__ == "__main__":
    main()
