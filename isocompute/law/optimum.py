"""n*(C): the rollouts per problem on the frontier as a sigmoid of compute, with errors and honest edges.

IsoCompute figure 7: `log2 n* = L / (1 + exp(-k (log10 C - log10 C0))) + b`. That is a Hill curve in C with exponent
k / ln 10, so the solver of the reward curves fits it, for the estimate and all replicates at once, once rising (L > 0)
and once falling (L < 0); the better of the two stands. Its far end is held inside the optima that were seen: the data
say nothing beyond them.

Where the best n is the smallest or largest that was run, or the next larger one had ended by then, the optimum is only
bounded by it; that is what is reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from isocompute.core.arrays import Array, Bools
from isocompute.law.families import HILL
from isocompute.law.intervals import percentiles
from isocompute.law.solver import Batch, Fits, evaluate, solve

__all__ = ["Optimum", "Reading", "at_end", "beyond", "fit_optima"]

_LN10 = float(np.log(10.0))
_STEEPEST = 50.0
_SURE = 0.8
_STILL = 0.5
"""Doublings by which the optimum must move to count as moving."""
_SIGMOID_POINTS = 60
_SIGMOID_REPLICATES = 400
"""n* itself uses all points and replicates; the sigmoid through it needs fewer."""
_SIGMOID = replace(
    HILL,
    name="sigmoid",
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
    """`rises`, `falls`, `flat`, or `unclear`: fewer than 80% of the replicates agree, the lead at the end is not
    beyond doubt, or it moves only because settings begin or end."""
    probability_rises: float
    saturates: bool
    bound_C: tuple[str | None, ...]
    """`<=` or `>=` where the optimum on the frontier is only a bound (`frontier.bounds`)."""
    smallest: float
    largest: float

    @property
    def floor_bound(self) -> str | None:
        """The bound at small compute."""
        return self.bound_C[0]

    @property
    def ceiling_bound(self) -> str | None:
        """The bound at large compute."""
        return self.bound_C[-1]

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


@dataclass(frozen=True)
class Reading:
    """An optimum read along log-spaced compute (or update steps)."""

    x_C: Array
    optimum_C: Array
    optimum_BC: Array
    """The same for every replicate."""
    tried: Array
    """The values that were run."""
    bound_C: tuple[str | None, ...] = (None,)
    """Where the optimum is only a bound; by default nowhere."""
    moves: frozenset[str] = frozenset({"rises", "falls"})
    """The directions that comparisons between settings support; another one is reported as `unclear`."""
    leads: frozenset[str] = frozenset({"rises", "falls"})
    """Those in which the lead at the end stands out; another one is `unclear` too."""


@dataclass(frozen=True)
class _Sigmoids:
    """Fits to the estimate (first) and the replicates of a reading."""

    theta_RK: Array
    start_R: Array
    end_R: Array


def fit_optima(readings: Sequence[Reading]) -> list[Optimum]:
    """Fit the sigmoid to each reading; all of them, and their replicates, at once."""
    thinned = []
    for reading in readings:
        every = slice(None, None, max(1, len(reading.x_C) // _SIGMOID_POINTS))
        rows_RC = np.concatenate([reading.optimum_C[None], reading.optimum_BC[:_SIGMOID_REPLICATES]])[:, every]
        thinned.append((reading.x_C[every], np.log2(rows_RC)))
    return [_optimum(*each) for each in zip(readings, _sigmoids(thinned), strict=True)]


def _optimum(reading: Reading, fits: _Sigmoids) -> Optimum:
    x_C, optimum_C, optimum_BC = reading.x_C, reading.optimum_C, reading.optimum_BC
    theta_RK, start_R, end_R = fits.theta_RK, fits.start_R, fits.end_R
    smallest, largest = float(reading.tried.min()), float(reading.tried.max())
    k_R = np.exp(theta_RK[:, 1]) * _LN10
    middle_R = np.log10(np.exp(theta_RK[:, 0]) * x_C[0])
    rest = slice(1, None) if len(start_R) > 1 else slice(None)
    curve = Fits(theta_RK[:1], start_R[:1], end_R[:1], np.zeros(1))
    sigmoid_C = evaluate(_SIGMOID, curve, (x_C / x_C[0])[None])[0]
    move = float(end_R[0] - start_R[0])
    direction = "flat" if abs(move) <= _STILL else "rises" if move > 0 else "falls"
    moves_B = (end_R[rest] - start_R[rest]) * np.sign(move) > _STILL
    if direction != "flat" and (direction not in reading.moves & reading.leads or moves_B.mean() < _SURE):
        direction = "unclear"
    rises = float((end_R[rest] - start_R[rest] > _STILL).mean())
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
        probability_rises=rises if "rises" in reading.moves else 0.0,
        saturates=bool(
            direction == "rises" and reading.bound_C[-1] is None and _levels_off(sigmoid_C, start_R[0], end_R[0])
        ),
        bound_C=reading.bound_C,
        smallest=smallest,
        largest=largest,
    )


def _sigmoids(thinned: Sequence[tuple[Array, Array]]) -> list[_Sigmoids]:
    """The better of a rising and a falling sigmoid for every row of every (x, log2 of the optimum)."""
    # Replicates share many step functions: each distinct one is fitted once.
    known: dict[tuple[int, bytes], int] = {}
    group_U, rows_U, row_GR = [], [], []
    for group, (_, log2_RC) in enumerate(thinned):
        row_GR.append([known.setdefault((group, row_C.tobytes()), len(known)) for row_C in log2_RC])
        first_U = np.unique(row_GR[-1], return_index=True)[1]
        group_U += [group] * len(first_U)
        rows_U += list(log2_RC[first_U])
    width = max((len(x_C) for x_C, _ in thinned), default=1)
    compute_GC = np.array([_filled(x_C / x_C[0], width, 1.0) for x_C, _ in thinned]).reshape(len(thinned), width)
    values_UC = np.array([_filled(row_C, width, 0.0) for row_C in rows_U]).reshape(len(rows_U), width)
    weights_UC = np.array([_filled(np.ones(len(row_C)), width, 0.0) for row_C in rows_U]).reshape(len(rows_U), width)
    batch = Batch(
        compute_GC=compute_GC,
        span_G=np.array([max(float(x_C[-1] / x_C[0]), 1.0 + 1e-9) for x_C, _ in thinned]),
        group_R=np.array(group_U, dtype=np.int64),
        values_RC=values_UC,
        weights_RC=weights_UC,
        upper=0.0,
    )
    change_UC = np.diff(values_UC, axis=1) * weights_UC[:, 1:]
    up_U, down_U = (change_UC > 0).any(axis=1), (change_UC < 0).any(axis=1)
    # A monotone sigmoid gains nothing on a row that moves the other way only.
    rising, falling = _fit_signed(batch, up_U | ~down_U, 1.0), _fit_signed(batch, down_U, -1.0)
    falls_U = falling.sse_R < rising.sse_R * (1.0 - 1e-9) - 1e-12
    theta_UK = np.where(falls_U[:, None], falling.theta_RK, rising.theta_RK)
    start_U, end_U = (
        np.where(falls_U, getattr(falling, name), getattr(rising, name)) for name in ("base_R", "ceiling_R")
    )
    return [_Sigmoids(theta_UK[row_R], start_U[row_R], end_U[row_R]) for row_R in row_GR]


def _filled(line_C: Array, width: int, value: float) -> Array:
    return np.concatenate([line_C, np.full(width - len(line_C), value)])


def _fit_signed(batch: Batch, wanted_R: Bools, sign: float) -> Fits:
    """Sigmoids that rise (sign 1) or fall (-1) and end at or below (above) the highest (lowest) value seen; the other
    rows have an infinite sum of squares.
    """
    count = len(wanted_R)
    out = Fits(np.zeros((count, 2)), np.zeros(count), np.zeros(count), np.full(count, np.inf))
    rows_R = np.flatnonzero(wanted_R)
    if not len(rows_R):
        return out
    seen_RC = batch.weights_RC[rows_R] > 0
    values_RC = sign * batch.values_RC[rows_R]
    top_R = np.where(seen_RC, values_RC, -np.inf).max(axis=1)
    fits = solve(
        _SIGMOID,
        replace(
            batch,
            group_R=batch.group_R[rows_R],
            values_RC=np.where(seen_RC, values_RC - top_R[:, None], 0.0),
            weights_RC=batch.weights_RC[rows_R],
        ),
    )
    signed = Fits(fits.theta_RK, sign * (fits.base_R + top_R), sign * (fits.ceiling_R + top_R), fits.sse_R)
    return out.updated(rows_R, signed)


def _levels_off(sigmoid_C: Array, start: float, end: float) -> bool:
    """The sigmoid has done 95% of its rise before the last tenth (in log compute) of the data."""
    return bool(sigmoid_C[int(0.9 * (len(sigmoid_C) - 1))] - start >= 0.95 * (end - start))


def _interval(values_BC: Array) -> Array:
    """Percentiles that are values which were run: between 8 and 16 there is nothing."""
    return np.asarray(np.percentile(values_BC, [2.5, 97.5], axis=0, method="inverted_cdf").T)


def beyond(best: Optimum) -> str:
    """What to run where the optimum at the end is a lower bound: larger n, or one that had ended for longer."""
    last = best.estimate_C[-1]
    if last == best.largest:
        return f"n above {best.largest:.0f}"
    return f"n above {last:.0f} run to the end of the range: the next larger one ends before"


def at_end(value: float, bound: str | None, best: Optimum) -> str:
    """The optimum at one end of the data, as a bound where it is one."""
    if bound is None:
        return f"{value:.0f}"
    if bound == "<=":
        return f"≤ {best.smallest:.0f}"
    end = best.estimate_C[-1] if value == best.ceiling else best.estimate_C[0]
    return f"≥ {end:.0f}"
