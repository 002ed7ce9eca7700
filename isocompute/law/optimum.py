"""n*(C): the rollouts per problem on the frontier as a sigmoid of compute, with errors and honest edges.

IsoCompute figure 7: `log2 n* = L / (1 + exp(-k (log10 C - log10 C0))) + b`. That is a Hill curve in C with exponent
k / ln 10, so the solver of the reward curves fits it, for the estimate and all replicates at once. The ceiling is
held at or below the largest optimum that was seen: the data say nothing beyond it.

Where the best n is the smallest or largest that was run, the optimum is only bounded by it; that is what is reported.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from isocompute.arrays import Array
from isocompute.law.families import HILL, Family
from isocompute.law.intervals import percentiles
from isocompute.law.solver import Batch, Fits, evaluate, solve

__all__ = ["Optimum", "fit_optimum"]

_LN10 = float(np.log(10.0))
_STEEPEST = 50.0
_SIGMOID_POINTS = 60
_SIGMOID_REPLICATES = 400
"""n* itself uses all points and replicates; the sigmoid through it needs fewer."""
_SIGMOID = Family(
    name="sigmoid",
    coordinate=HILL.coordinate,
    shape=HILL.shape,
    parameters=HILL.parameters,
    compute_like=HILL.compute_like,
    bounds=lambda span: np.array([[0.0, np.log(span)], [np.log(0.5 / _LN10), np.log(_STEEPEST / _LN10)]]),
    grid_sizes=(40, 16),
)


@dataclass(frozen=True)
class Optimum:
    """The fitted sigmoid of a quantity that doubles (n or Bp) along compute or update steps."""

    x_C: Array
    """Compute (or update steps) at which the optimum was read."""
    estimate_C: Array
    """The optimum on the frontier, a step function of values that were run."""
    interval_C2: Array
    """Its 95% interval over the bootstrap."""
    sigmoid_C: Array
    sigmoid_interval_C2: Array
    L: float
    k: float
    log10_C0: float
    b: float
    k_at_bound: bool
    """A single jump has no finite slope: k is then only known to be large."""
    L_interval: tuple[float, float]
    k_interval: tuple[float, float]
    b_interval: tuple[float, float]
    floor_interval: tuple[float, float]
    ceiling_interval: tuple[float, float]
    midpoint_interval: tuple[float, float]
    rises: bool
    probability_rises: float
    saturates: bool
    floor_is_bound: bool
    ceiling_is_bound: bool
    smallest: float
    largest: float

    @property
    def floor(self) -> float:
        """n* at small compute, 2^b."""
        return float(2.0**self.b)

    @property
    def ceiling(self) -> float:
        """n* at large compute, 2^(L + b)."""
        return float(2.0 ** (self.L + self.b))


def fit_optimum(x_C: Array, optimum_C: Array, optimum_BC: Array, *, tried: Array) -> Optimum:
    """Fit the sigmoid to an optimum read along log-spaced `x_C`; `tried` are the values that were run."""
    smallest, largest = float(tried.min()), float(tried.max())
    every = slice(None, None, max(1, len(x_C) // _SIGMOID_POINTS))
    read_C = x_C[every]
    log2_RC = np.log2(np.concatenate([optimum_C[None], optimum_BC[:_SIGMOID_REPLICATES]]))[:, every]
    # Replicates share many step functions: each distinct one is fitted once.
    log2_UC, row_R = np.unique(log2_RC, axis=0, return_inverse=True)
    top_U = log2_UC.max(axis=1)
    rows = len(log2_RC)
    batch = Batch(
        compute_GC=(read_C / read_C[0])[None],
        span_G=np.array([max(float(read_C[-1] / read_C[0]), 1.0 + 1e-9)]),
        group_R=np.zeros(len(log2_UC), dtype=np.int64),
        values_RC=log2_UC - top_U[:, None],
        weights_RC=np.ones_like(log2_UC),
        upper=0.0,
    )
    solved = solve(_SIGMOID, batch)
    fits = Fits(solved.theta_RK, solved.base_R + top_U, solved.ceiling_R + top_U, solved.sse_R)[row_R.ravel()]
    k = float(np.exp(fits.theta_RK[0, 1])) * _LN10
    low, high = float(fits.base_R[0]), float(fits.ceiling_R[0])
    replicates = fits[1:] if rows > 1 else fits
    sigmoid_RC = 2.0 ** evaluate(_SIGMOID, fits, (x_C / x_C[0])[None])
    rises_B = replicates.ceiling_R - replicates.base_R > 0.5
    rises = high - low > 0.5
    edge_high = _share(optimum_C[-1], optimum_BC[:, -1], largest)
    edge_low = _share(optimum_C[0], optimum_BC[:, 0], smallest)
    return Optimum(
        x_C=x_C,
        estimate_C=optimum_C,
        interval_C2=_interval(optimum_BC if rows > 1 else optimum_C[None]),
        sigmoid_C=sigmoid_RC[0],
        sigmoid_interval_C2=_interval(sigmoid_RC[1:] if rows > 1 else sigmoid_RC),
        L=high - low,
        k=k,
        log10_C0=float(np.log10(np.exp(fits.theta_RK[0, 0]) * x_C[0])),
        b=low,
        k_at_bound=bool(k > 0.99 * _STEEPEST),
        L_interval=percentiles(replicates.ceiling_R - replicates.base_R),
        k_interval=percentiles(np.exp(replicates.theta_RK[:, 1]) * _LN10),
        b_interval=percentiles(replicates.base_R),
        floor_interval=percentiles(2.0**replicates.base_R),
        ceiling_interval=percentiles(2.0**replicates.ceiling_R),
        midpoint_interval=percentiles(np.log10(np.exp(replicates.theta_RK[:, 0]) * x_C[0])),
        rises=bool(rises),
        probability_rises=float(rises_B.mean()),
        saturates=bool(rises and not edge_high and _levels_off(fits, batch)),
        floor_is_bound=edge_low,
        ceiling_is_bound=edge_high,
        smallest=smallest,
        largest=largest,
    )


def _levels_off(fits: Fits, batch: Batch) -> bool:
    """The sigmoid has done 95% of its rise before the last tenth (in log compute) of the data."""
    width = batch.compute_GC.shape[1]
    at = batch.compute_GC[:, [int(0.9 * (width - 1))]]
    value = float(evaluate(_SIGMOID, fits[:1], at)[0, 0])
    rise = float(fits.ceiling_R[0] - fits.base_R[0])
    return rise > 0 and value - float(fits.base_R[0]) >= 0.95 * rise


def _share(estimate: float, replicates_B: Array, edge: float) -> bool:
    """An optimum counts as on the edge when the estimate is there, or one replicate in twenty is."""
    return bool(estimate == edge or (replicates_B == edge).mean() > 0.05)


def _interval(values_BC: Array) -> Array:
    return np.asarray(np.percentile(values_BC, [2.5, 97.5], axis=0).T)
