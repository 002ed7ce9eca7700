"""Simple rules that a planner has to beat: each names a setting for a budget from the runs at hand.

`runs` are `worlds.Run`s (or anything with the same five fields); the answer is (Bp, n). The thirty-line hierarchical
fit is the strongest of them beyond the data.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.optimize import least_squares
from worlds import Run

Pair = tuple[int, int]


def by_setting(runs: Sequence[Run]) -> dict[Pair, list[Run]]:
    """Runs of one setting together."""
    out: dict[Pair, list[Run]] = {}
    for run in runs:
        out.setdefault((run.problems_per_batch, run.rollouts_per_problem), []).append(run)
    return out


def constant(n: int, runs: Sequence[Run], _: float) -> Pair:
    """Always this n, or the nearest that was run."""
    return min(by_setting(runs), key=lambda pair: (abs(np.log(pair[1] / n)), abs(np.log(pair[0] / 32))))


def leader(runs: Sequence[Run], _: float) -> Pair:
    """The setting whose last three values are highest."""
    settings = by_setting(runs)
    return max(settings, key=lambda pair: float(np.mean([run.values[-3:].mean() for run in settings[pair]])))


def hill(theta: np.ndarray, compute: np.ndarray, base: float) -> np.ndarray:
    ceiling, midpoint, exponent = theta
    return base + (ceiling - base) / (1 + (np.exp(midpoint) / np.maximum(compute, 1.0)) ** np.exp(exponent))


def independent_hill(runs: Sequence[Run], budget: float) -> Pair:
    """A Hill curve for each setting by itself."""
    base = float(np.median([run.values[0] for run in runs]))
    ends: dict[Pair, float] = {}
    for pair, own in by_setting(runs).items():
        compute, values = np.concatenate([r.compute for r in own]), np.concatenate([r.values for r in own])
        start = np.array([values.max() + 0.02, np.log(max(np.median(compute), 1.0)), 0.0])
        bounds = ([base - 0.1, 0.0, -1.5], [1.0, 25.0, 1.5])
        found = least_squares(
            lambda theta, c=compute, v=values: hill(theta, c, base) - v,
            np.clip(start, *bounds),
            bounds=bounds,
            loss="soft_l1",
            f_scale=0.02,
        )
        ends[pair] = float(hill(found.x, np.array([budget]), base)[0])
    return max(ends, key=lambda pair: ends[pair])


def hierarchical_surface(runs: Sequence[Run], budget: float) -> dict[Pair, float]:
    """Hill curves whose ceiling and log-midpoint are quadratic in log n and linear in log Bp, with one exponent."""
    base = float(np.median([run.values[0] for run in runs]))
    pairs = sorted(by_setting(runs))
    where = np.concatenate(
        [[pairs.index((r.problems_per_batch, r.rollouts_per_problem))] * len(r.values) for r in runs]
    )
    compute, values = np.concatenate([r.compute for r in runs]), np.concatenate([r.values for r in runs])
    x = np.log2([n for _, n in pairs]) - np.mean(np.log2([n for _, n in pairs]))
    z = np.log2([bp for bp, _ in pairs]) - np.mean(np.log2([bp for bp, _ in pairs]))
    design = np.stack([np.ones_like(x), x, x**2, z], axis=1)
    rise = max(float(values.max()) - base, 0.01)

    def ends(theta: np.ndarray, at: np.ndarray, own: np.ndarray) -> np.ndarray:
        ceiling, midpoint = base + rise * (design @ theta[:4])[own], (design @ theta[4:8])[own]
        return base + (ceiling - base) / (1 + (np.exp(midpoint) / np.maximum(at, 1.0)) ** np.exp(theta[8]))

    def residuals(theta: np.ndarray) -> np.ndarray:
        ridge = np.array([0.0, 1, 4, 1, 0, 0.3, 2, 0.3, 1]) * (theta - np.array([0.0] * 8 + [0.0]))
        return np.concatenate([(ends(theta, compute, where) - values) / (0.03 * rise), ridge])

    start = np.array([1.1, 0, 0, 0, np.log(np.median(compute[compute > 0])), 0.3, 0, 0.2, 0.0])
    theta = least_squares(residuals, start, loss="huber", f_scale=1.0, max_nfev=300).x
    return dict(zip(pairs, ends(theta, np.full(len(pairs), budget), np.arange(len(pairs))), strict=True))


def hierarchical(runs: Sequence[Run], budget: float) -> Pair:
    """The setting that `hierarchical_surface` puts highest."""
    ends = hierarchical_surface(runs, budget)
    return max(ends, key=lambda pair: ends[pair])
