"""Synthetic runs: noise around a known curve, with changes from a given step on."""

from __future__ import annotations

import numpy as np
import polars as pl

from isocompute.data import Run, RunSettings


def rising(rng: np.random.Generator, points: int, *, noise: float, low: float = 0.3, high: float = 0.7) -> np.ndarray:
    """A saturating curve with Gaussian noise."""
    t = np.arange(points)
    return np.asarray(low + (high - low) * (1 - np.exp(-3.0 * t / points)) + noise * rng.normal(size=points))


def run_of(settings: RunSettings | None = None, /, **columns: np.ndarray) -> Run:
    """A run with a point a step; NaN is a value that is not there."""
    length = len(next(iter(columns.values())))
    table = {name.replace("_at_", "@").replace("train_", "train/"): values for name, values in columns.items()}
    points = pl.DataFrame({"step": np.arange(length), **table}).with_columns(pl.all().fill_nan(None))
    return Run("made-up", settings or RunSettings(problems_per_batch=32, rollouts_per_problem=8), points)
