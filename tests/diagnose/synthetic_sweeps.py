"""Synthetic sweeps from known curves, with seed effects and noise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import polars as pl

from isocompute.data import Run, RunSet, RunSettings

Truth = Callable[[int, np.ndarray], np.ndarray]
"""(n, compute) → expected reward."""


def crossing(n: int, compute_C: np.ndarray) -> np.ndarray:
    """Small n is fast and ends low, large n slow and high: n* rises."""
    ceiling = {8: 0.55, 32: 0.65, 128: 0.75, 512: 0.6}[n]
    scale = {8: 1.5e4, 32: 6e4, 128: 2.5e5, 512: 1e6}[n]
    return np.asarray(0.35 + (ceiling - 0.35) * (1 - np.exp(-compute_C / scale)))


def same(_: int, compute_C: np.ndarray) -> np.ndarray:
    """n makes no difference."""
    return np.asarray(0.35 + 0.3 * (1 - np.exp(-compute_C / 4e5)))


def sweep(
    truth: Truth,
    *,
    rng: np.random.Generator,
    ns: tuple[int, ...] = (8, 32, 128),
    seeds: int = 1,
    noise: float = 0.008,
    seed_spread: float = 0.008,
    points: int = 24,
    problems: str = "easy",
    recipe: Mapping[str, Any] | None = None,
    prefix: str = "",
    metrics: Mapping[str, Truth] | None = None,
    **settings: Any,
) -> RunSet:
    """Runs at Bp = 32 from 10 thousand to 4 million rollouts; a seed shifts its whole curve."""
    compute_C = np.geomspace(1e4, 4e6, points).round()
    runs = []
    for n in ns:
        for seed in range(seeds):
            shift = seed_spread * rng.normal()
            table = {"rollouts": compute_C}
            for name, curve in {"avg@4": truth, **(metrics or {})}.items():
                table[name] = np.clip(curve(n, compute_C) + shift + noise * rng.normal(size=points), 0.0, 1.0)
            made = RunSettings.model_validate(
                {"problems_per_batch": 32, "rollouts_per_problem": n, "seed": seed, "problems": problems}
                | {"recipe": dict(recipe or {})}
                | settings
            )
            runs.append(Run(f"{prefix}{problems}-{n}-s{seed}", made, pl.DataFrame(table)))
    return RunSet(tuple(runs))
