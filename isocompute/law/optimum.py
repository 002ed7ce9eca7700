"""n*(C): the rollouts per problem on the frontier as a sigmoid of compute, with errors and honest edges.

IsoCompute figure 7: `log2 n* = L / (1 + exp(-k (log10 C - log10 C0))) + b`. That is a Hill curve in C with exponent
k / ln 10, so the solver of the reward curves fits it, for the estimate and all replicates at once, once rising (L > 0)
and once falling (L < 0); the better of the two stands. Its far end is held inside the optima that were seen: the data
say nothing beyond them.

Where the best n is the smallest or largest that was run, the optimum is only bounded by it; that is what is reported.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from isocompute.arrays import Array
from isocompute.law.families import HILL, Family
from isocompute.law.intervals import percentiles
from isocompute.law.solver import Batch, Fits, evaluate, solve

__all__ = ["Optimum", "at_end", "fit_optimum"]

_LN10 = float(np.log(10.0))
_STEEPEST = 50.0
_SURE = 0.8
_STILL = 0.5
"""Doublings by which the optimum must move to count as moving."""
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
    direction: str
    """`rises`, `falls`, `flat`, or `unclear`: fewer than 80% of the replicates agree, or it moves only because settings
    begin or end."""
    probability_rises: float
    saturates: bool
    floor_bound: str | None
    """`<=` or `>=` where the optimum at small compute is the smallest or largest value that was run."""
    ceiling_bound: str | None
    """The same at large compute."""
    smallest: float
    largest: float

    @property
    def rises(self) -> bool:
        """Whether more compute wants a larger value."""
        return self.direction == "rises"

    @property
    def floor(self) -> float:
        """The optimum at small compute, 2^b."""
        return float(2.0**self.b)

    @property
    def ceiling(self) -> float:
        """The optimum at large compute, 2^(L + b)."""
        return float(2.0 ** (self.L + self.b))


def fit_optimum(
    x_C: Array,
    optimum_C: Array,
    optimum_BC: Array,
    *,
    tried: Array,
    moves: frozenset[str] = frozenset({"rises", "falls"}),
) -> Optimum:
    """Fit the sigmoid to an optimum read along log-spaced `x_C`; `tried` are the values that were run.

    `moves` are the directions that comparisons between settings support; another one is reported as `unclear`.
    """
    smallest, largest = float(tried.min()), float(tried.max())
    every = slice(None, None, max(1, len(x_C) // _SIGMOID_POINTS))
    log2_RC = np.log2(np.concatenate([optimum_C[None], optimum_BC[:_SIGMOID_REPLICATES]]))[:, every]
    theta_RK, start_R, end_R = _sigmoids(x_C[every], log2_RC)
    k_R = np.exp(theta_RK[:, 1]) * _LN10
    middle_R = np.log10(np.exp(theta_RK[:, 0]) * x_C[0])
    rest = slice(1, None) if len(log2_RC) > 1 else slice(None)
    curve = Fits(theta_RK[:1], start_R[:1], end_R[:1], np.zeros(1))
    sigmoid_C = evaluate(_SIGMOID, curve, (x_C / x_C[0])[None])[0]
    move = float(end_R[0] - start_R[0])
    direction = "flat" if abs(move) <= _STILL else "rises" if move > 0 else "falls"
    moves_B = (end_R[rest] - start_R[rest]) * np.sign(move) > _STILL
    if direction != "flat" and (direction not in moves or moves_B.mean() < _SURE):
        direction = "unclear"
    ceiling_bound = _bound(optimum_C[-1], smallest, largest)
    return Optimum(
        x_C=x_C,
        estimate_C=optimum_C,
        interval_C2=_interval(optimum_BC if len(optimum_BC) else optimum_C[None]),
        sigmoid_C=2.0**sigmoid_C,
        L=move,
        k=float(k_R[0]),
        log10_C0=float(middle_R[0]),
        b=float(start_R[0]),
        k_at_bound=bool(direction != "flat" and k_R[0] > 0.99 * _STEEPEST),
        L_interval=percentiles(end_R[rest] - start_R[rest]),
        k_interval=percentiles(k_R[rest]),
        b_interval=percentiles(start_R[rest]),
        floor_interval=percentiles(2.0 ** start_R[rest]),
        ceiling_interval=percentiles(2.0 ** end_R[rest]),
        midpoint_interval=percentiles(middle_R[rest]),
        direction=direction,
        probability_rises=float((end_R[rest] - start_R[rest] > _STILL).mean()) if "rises" in moves else 0.0,
        saturates=bool(direction == "rises" and ceiling_bound is None and _levels_off(sigmoid_C, start_R[0], end_R[0])),
        floor_bound=_bound(optimum_C[0], smallest, largest),
        ceiling_bound=ceiling_bound,
        smallest=smallest,
        largest=largest,
    )


def _sigmoids(x_C: Array, log2_RC: Array) -> tuple[Array, Array, Array]:
    """θ and the two ends of the better of a rising and a falling sigmoid, for every row."""
    # Replicates share many step functions: each distinct one is fitted once.
    log2_UC, row_R = np.unique(log2_RC, axis=0, return_inverse=True)
    solved = []
    for sign in (1.0, -1.0):
        values_UC = sign * log2_UC
        top_U = values_UC.max(axis=1)
        batch = Batch(
            compute_GC=(x_C / x_C[0])[None],
            span_G=np.array([max(float(x_C[-1] / x_C[0]), 1.0 + 1e-9)]),
            group_R=np.zeros(len(values_UC), dtype=np.int64),
            values_RC=values_UC - top_U[:, None],
            weights_RC=np.ones_like(values_UC),
            upper=0.0,
        )
        fits = solve(_SIGMOID, batch)
        solved.append((fits.theta_RK, sign * (fits.base_R + top_U), sign * (fits.ceiling_R + top_U), fits.sse_R))
    rising, falling = solved
    falls_U = falling[3] < rising[3] * (1.0 - 1e-9) - 1e-12
    row_R = row_R.ravel()
    theta_UK = np.where(falls_U[:, None], falling[0], rising[0])
    start_U, end_U = (np.where(falls_U, falling[i], rising[i]) for i in (1, 2))
    return theta_UK[row_R], start_U[row_R], end_U[row_R]


def _levels_off(sigmoid_C: Array, start: float, end: float) -> bool:
    """The sigmoid has done 95% of its rise before the last tenth (in log compute) of the data."""
    return bool(sigmoid_C[int(0.9 * (len(sigmoid_C) - 1))] - start >= 0.95 * (end - start))


def _bound(estimate: float, smallest: float, largest: float) -> str | None:
    if estimate == smallest:
        return "<="
    return ">=" if estimate == largest else None


def _interval(values_BC: Array) -> Array:
    """Percentiles that are values which were run: between 8 and 16 there is nothing."""
    return np.asarray(np.percentile(values_BC, [2.5, 97.5], axis=0, method="inverted_cdf").T)


def at_end(value: float, bound: str | None, best: Optimum) -> str:
    """The optimum at one end of the data, as a bound where it is one."""
    if bound is None:
        return f"{value:.0f}"
    return f"≤ {best.smallest:.0f}" if bound == "<=" else f"≥ {best.largest:.0f}"
