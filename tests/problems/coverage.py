"""How often the 95% interval of a subset's corrected mean holds its true mean (docs/studies/difficulty.md).

python -m tests.problems.coverage [--samples 16] [--problems 1000] [--draws 60] [--kept 0:.5625] [--fresh]
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

import numpy as np

from isocompute.core.arrays import Array
from isocompute.problems.difficulty import choose_subsets, fit_difficulty

Draw = Callable[[np.random.Generator, int], Array]


def _spikes(rng: np.random.Generator, n: int) -> Array:
    return np.asarray(np.select([(u := rng.random(n)) < 0.3, u < 0.6], [0.0, 1.0], rng.random(n)))


def _zeros(rng: np.random.Generator, n: int) -> Array:
    return np.asarray(np.where(rng.random(n) < 0.3, 0.0, rng.beta(0.7, 0.9, n)))


def _two_betas(rng: np.random.Generator, n: int) -> Array:
    return np.asarray(np.where(rng.random(n) < 0.4, rng.beta(1, 15, n), rng.beta(3, 2, n)))


SHAPES: dict[str, Draw] = {
    "30% at 0, beta(.7, .9)": _zeros,
    "U-shaped, beta(.4, .4)": lambda rng, n: rng.beta(0.4, 0.4, n),
    "30% at 0, 30% at 1, uniform": _spikes,
    "four values": lambda rng, n: rng.choice([0, 0.1, 0.5, 1.0], n, p=[0.4, 0.2, 0.2, 0.2]),
    "beta(1, 15) and beta(3, 2)": _two_betas,
    "high, beta(6, 2)": lambda rng, n: rng.beta(6, 2, n),
    "low, beta(.5, 6)": lambda rng, n: rng.beta(0.5, 6, n),
    "bell, beta(5, 5)": lambda rng, n: rng.beta(5, 5, n),
}
FRESH: dict[str, Draw] = {
    "three betas": lambda rng, n: rng.beta(*np.array([[1, 30], [4, 4], [20, 2]])[rng.integers(3, size=n)].T),
    "triangle, falling": lambda rng, n: 1 - np.sqrt(rng.random(n)),
    "logistic-normal, wide": lambda rng, n: 1 / (1 + np.exp(-rng.normal(-1, 2.5, n))),
    "60% at .02, rest uniform": lambda rng, n: np.where(rng.random(n) < 0.6, 0.02, rng.random(n)),
}
"""Written after the form of the interval was settled, and changed nothing."""
LEAST = 20
"""Smaller subsets are not counted: they come and go between draws."""


def trial(
    shape: str,
    *,
    samples: int,
    problems: int,
    seed: int,
    kept: tuple[float, float] | None = None,
    replicates: int = 100,
) -> list[tuple[str, str, float, float, float, bool]]:
    """One simulated set: (subset, chosen by, true, naive, corrected, covered) of each subset."""
    rng = np.random.default_rng([seed, samples, problems])
    rate_P = (SHAPES | FRESH)[shape](rng, problems if kept is None else 4 * problems)
    correct_P = rng.binomial(samples, rate_P)
    if kept is not None:
        passed_P = (correct_P >= kept[0] * samples) & (correct_P <= kept[1] * samples)
        rate_P, correct_P = rate_P[passed_P][:problems], correct_P[passed_P][:problems]
    found = fit_difficulty(correct_P, samples, kept=kept, replicates=replicates, seed=seed)
    out = []
    for by, naive in (("counts", True), ("posterior", False)):
        for name, chosen in choose_subsets(found, naive=naive).items():
            if chosen.mean is not None and chosen.mean.size >= LEAST:
                truth = float(rate_P[chosen.chosen_D[found.counts.index_P]].mean())
                low, high = chosen.mean.interval
                out.append((name, by, truth, chosen.mean.naive, chosen.mean.corrected, low <= truth <= high))
    return out


def _trial(
    job: tuple[str, int, int, int, tuple[float, float] | None],
) -> list[tuple[str, str, float, float, float, bool]]:
    shape, samples, problems, seed, kept = job
    return trial(shape, samples=samples, problems=problems, seed=seed, kept=kept)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--problems", type=int, default=1000)
    parser.add_argument("--draws", type=int, default=60)
    parser.add_argument("--kept")
    parser.add_argument("--fresh", action="store_true")
    asked = parser.parse_args()
    kept = None if asked.kept is None else (float(asked.kept.split(":")[0]), float(asked.kept.split(":")[1]))
    print("| shape | covered | easy: true | naive | corrected | hard: true | naive | corrected |")
    everything = []
    with ProcessPoolExecutor(2) as pool:
        for shape in FRESH if asked.fresh else SHAPES:
            rows = defaultdict(list)
            jobs = [(shape, asked.samples, asked.problems, seed, kept) for seed in range(asked.draws)]
            for result in pool.map(_trial, jobs, chunksize=4):
                for name, by, *values in result:
                    rows[name, by].append(values)
            covered = [row[3] for values in rows.values() for row in values]
            everything += covered
            cells = [f"{np.mean(covered):.3f}"]
            for name in ("easy", "hard"):
                values = rows.get((name, "counts"))
                cells += ["–"] * 3 if not values else [f"{x:.3f}" for x in np.mean(values, axis=0)[:3]]
            print(f"| {shape} | {' | '.join(cells)} |", flush=True)
    print(f"| all {len(everything)} | {np.mean(everything):.3f} |")


if __name__ == "__main__":
    main()
