"""Curves with known answers for the tests of the law."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from isocompute.core.arrays import Array
from isocompute.core.curve import Curve

# A - D exp(-C / tau) as read off figure 6 of the IsoCompute paper (arXiv 2603.12151), Bp = 32, C in million rollouts.
FIGURE_6_EASY = {
    8: (0.5827, 0.1500, 0.2230),
    32: (0.5953, 0.1892, 0.2220),
    128: (0.6184, 0.1666, 0.4535),
    256: (0.6542, 0.1807, 0.9254),
    512: (0.7094, 0.2852, 1.8200),
}
FIGURE_6_HARD = {8: (0.0837, 0.0613, 0.4702), 128: (0.1304, 0.1036, 1.3438)}
# Where the figure begins to draw each n, in million rollouts: the exponentials say nothing about what came before.
DRAWN_FROM = {8: 0.047, 32: 0.272, 128: 0.969, 256: 1.271, 512: 2.687}


def hill(compute: Array, base: float, ceiling: float, midpoint: float, efficiency: float) -> Array:
    """ScaleRL eq. 1."""
    return np.asarray(base + (ceiling - base) / (1.0 + (midpoint / compute) ** efficiency))


def exponential(compute: Array, ceiling: float, drop: float, scale: float) -> Array:
    return np.asarray(ceiling - drop * np.exp(-compute / scale))


def figure_6(parameters: dict[int, tuple[float, float, float]], *, noise: float = 0.0, seed: int = 0) -> list[Curve]:
    rng = np.random.default_rng(seed)
    out = []
    for n, (ceiling, drop, scale) in parameters.items():
        start = 0.759 if (n == 128 and parameters is FIGURE_6_HARD) else DRAWN_FROM[n]
        compute_C = np.linspace(start * 1e6, 4.1e6, 50)
        values_C = exponential(compute_C / 1e6, ceiling, drop, scale) + noise * rng.standard_normal(50)
        out.append(Curve(f"n={n}", compute_C, values_C, 32, n))
    return out


def noisy(name: str, compute_C: Array, values_C: Array, *, noise: float, seed: int, **setting: int) -> Curve:
    rng = np.random.default_rng(seed)
    return Curve(name, compute_C, values_C + noise * rng.standard_normal(len(compute_C)), **setting)


def autocorrelated(rng: np.random.Generator, count: int, rho: float) -> Array:
    """AR(1) noise of standard deviation 1."""
    out = rng.standard_normal(count)
    for i in range(1, count):
        out[i] = rho * out[i - 1] + np.sqrt(1.0 - rho**2) * out[i]
    return out


def sweep(
    truth: Callable[[Array, int], Array],
    ns: Sequence[int] = (8, 16, 32, 64),
    *,
    seeds: int = 1,
    noise: float = 0.01,
    seed_effect: float = 0.02,
    seed: int = 0,
    last: float = 1e6,
) -> list[list[Curve]]:
    """The seeds of every n at Bp = 32: the base model, then 25 points of `truth(compute, n)`.

    Each seed's rise differs from the truth by a share of standard deviation `seed_effect`.
    """
    rng = np.random.default_rng(seed)
    out = []
    for n in ns:
        compute_C = np.append(0.0, np.geomspace(4.0 * 32 * n, last, 25))
        true_C = truth(compute_C, n)
        group = []
        for s in range(seeds):
            rise_C = (true_C - true_C[0]) * (1.0 + seed_effect * rng.standard_normal())
            values_C = true_C[0] + rise_C + noise * rng.standard_normal(len(compute_C))
            group.append(Curve(f"{n}-{s}", compute_C, values_C, 32, n, s))
        out.append(group)
    return out


def larger_wins(compute_C: Array, n: int) -> Array:
    """Larger n reach higher, but later: n* rises."""
    u = np.log2(n / 8)
    return hill(np.maximum(compute_C, 1e-9), 0.3, 0.5 + 0.04 * u, 4e4 * 1.6**u, 1.2)


def smaller_wins(compute_C: Array, n: int) -> Array:
    """Larger n are faster, but reach less: n* falls."""
    u = np.log2(n / 8)
    return hill(np.maximum(compute_C, 1e-9), 0.3, 0.62 - 0.04 * u, 4e5 * 1.6**-u, 1.2)


def smallest_leads(compute_C: Array, n: int) -> Array:
    """The smallest n is the best everywhere."""
    return hill(np.maximum(compute_C, 1e-9), 0.3, 0.6 - 0.04 * np.log2(n / 8), 4e4, 1.2)


def all_equal(compute_C: Array, _n: int) -> Array:
    """n makes no difference."""
    return hill(np.maximum(compute_C, 1e-9), 0.3, 0.6, 6e4, 1.3)
