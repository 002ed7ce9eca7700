"""Curve families, and a solver that fits thousands of curves at once: variable projection and damped Gauss-Newton.

Every family is `R(C) = R0 + (A - R0) · g(C; θ)` with a shape `g` that rises from 0 at C = 0 to 1 at C = ∞. The base
`R0` and the ceiling `A` enter linearly and are solved in closed form. The search is over θ alone, one or two numbers.

| family | g(C) | θ | source |
| --- | --- | --- | --- |
| hill | 1 / (1 + (Cmid/C)^B) | log Cmid, log B | ScaleRL eq. 1 |
| exponential | 1 - exp(-C/τ) | log τ | figure 6 of the IsoCompute paper follows it to pixel error |
| power | 1 - (1 + C/s)^-β, s the first compute | log β | Kaplan-style power law, finite at C = 0 |

The IsoCompute paper's n*(C) is a logistic in log10 C. That is also a Hill shape (B = k / ln 10), so the same code fits
it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields, replace

import numpy as np
from threadpoolctl import ThreadpoolController

from isocompute.core.arrays import Array, Bools, Ints

Shape = Callable[[Array, Array], Array]
"""`(x, theta_K) -> g`, where x = `Family.coordinate` of compute in units of the curve's first positive compute.

Each of `theta_K` broadcasts against x."""
Slopes = Callable[[Array, Array, Array], tuple[Array, ...]]
"""`(x, theta_K, g) -> (dg for each θ)`: the shape's derivatives with respect to θ, given the shape's values."""


@dataclass(frozen=True)
class Family:
    """A shape with the bounds of its θ and a starting grid within them."""

    name: str
    coordinate: Callable[[Array], Array]
    """Transforms compute before the shape does, once per curve instead of once per search step."""
    shape: Shape
    slopes: Slopes
    parameters: tuple[str, ...]
    """Names of exp(θ), as reported to the user."""
    compute_like: tuple[bool, ...]
    """Whether each exp(θ) is a compute, reported in the unit of the data."""
    bounds: Callable[[float], Array]
    """`(last compute / first compute) -> [[low, high] per θ]`."""
    grid_sizes: tuple[int, ...]

    @property
    def free(self) -> int:
        """Number of free parameters: θ, R0 and A."""
        return len(self.parameters) + 2

    def grid(self, span: float) -> Array:
        """Starting values that cover the bounds, one per row."""
        return _grid(self, span)


@functools.lru_cache(maxsize=1024)  # many fits have the same span
def _grid(family: Family, span: float) -> Array:
    axes = [
        np.linspace(low, high, size) for (low, high), size in zip(family.bounds(span), family.grid_sizes, strict=True)
    ]
    grid_SK = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(axes))
    grid_SK.setflags(write=False)
    return grid_SK


def _log(compute: Array) -> Array:
    return np.log(np.maximum(compute, 1e-12))  # at compute 0, the base model, g is 0


def _hill(x: Array, theta_K: Array) -> Array:
    z: Array = theta_K[0] - x
    z *= np.exp(theta_K[1])
    np.minimum(z, 500.0, out=z)
    np.exp(z, out=z)
    z += 1.0
    np.reciprocal(z, out=z)
    return z


def _hill_slopes(x: Array, theta_K: Array, g: Array) -> tuple[Array, ...]:
    b = np.exp(theta_K[1])
    by_midpoint = g - 1.0
    by_midpoint *= g
    by_midpoint *= b
    by_efficiency = theta_K[0] - x
    by_efficiency *= by_midpoint
    return by_midpoint, by_efficiency


def _exponential(x: Array, theta_K: Array) -> Array:
    return np.asarray(1.0 - np.exp(-np.minimum(x * np.exp(-theta_K[0]), 700.0)))


def _exponential_slopes(x: Array, theta_K: Array, g: Array) -> tuple[Array, ...]:
    return ((g - 1.0) * np.minimum(x * np.exp(-theta_K[0]), 700.0),)


def _power(x: Array, theta_K: Array) -> Array:
    return np.asarray(1.0 - np.exp(-np.exp(theta_K[0]) * x))


def _power_slopes(x: Array, theta_K: Array, g: Array) -> tuple[Array, ...]:
    return ((1.0 - g) * (np.exp(theta_K[0]) * x),)


def _log_box(*pairs: tuple[float, float]) -> Array:
    return np.asarray(np.log(np.array(pairs)))


HILL = Family(
    name="hill",
    coordinate=_log,
    shape=_hill,
    slopes=_hill_slopes,
    parameters=("midpoint", "efficiency"),
    compute_like=(True, False),
    bounds=lambda span: _log_box((0.1, 10.0 * span), (0.25, 12.0)),
    grid_sizes=(24, 8),
)
EXPONENTIAL = Family(
    name="exponential",
    coordinate=lambda compute: compute,
    shape=_exponential,
    slopes=_exponential_slopes,
    parameters=("scale",),
    compute_like=(True,),
    bounds=lambda span: _log_box((0.1, 10.0 * span)),
    grid_sizes=(24,),
)
POWER = Family(
    name="power",
    coordinate=np.log1p,
    shape=_power,
    slopes=_power_slopes,
    parameters=("exponent",),
    compute_like=(False,),
    bounds=lambda _: _log_box((0.02, 8.0)),
    grid_sizes=(16,),
)
FAMILIES: tuple[Family, ...] = (HILL, EXPONENTIAL, POWER)


_CHUNK = 65_536  # values per pass, so that temporaries stay in cache
_SLACK = 1.25  # rows of one pass differ in width by at most this factor
_MAX_STEPS = 60
_ENOUGH = 1e-8  # the search ends when a step saves less than this share of the sum of squares
_TINY = 1e-100


@dataclass(frozen=True)
class FitRows:
    """Rows to fit. Rows with the same `group` share `compute_GC[group]`; padding has weight 0."""

    compute_GC: Array
    """In units of the group's first positive compute."""
    span_G: Array
    """Last over first positive compute of each group, which sets the bounds of θ."""
    group_R: Ints
    values_RC: Array
    weights_RC: Array
    upper: float | Array = np.inf
    """Upper bound of the ceilings, for all groups or for each."""
    pinned: bool = False
    """Fix every ceiling at `upper` instead of bounding it."""

    @property
    def upper_R(self) -> Array:
        """Upper bound of every row's ceiling."""
        return np.broadcast_to(np.asarray(self.upper, dtype=np.float64), self.span_G.shape)[self.group_R]


@dataclass(frozen=True)
class Fits:
    """The solution of each row; compute-like parameters are in the group's normalised unit."""

    theta_RK: Array
    base_R: Array
    ceiling_R: Array
    sse_R: Array

    def __getitem__(self, rows: slice | Ints | Bools) -> Fits:
        return Fits(self.theta_RK[rows], self.base_R[rows], self.ceiling_R[rows], self.sse_R[rows])

    def updated(self, rows: Ints, others: Fits) -> Fits:
        """A copy with other solutions in some rows."""
        out = Fits(self.theta_RK.copy(), self.base_R.copy(), self.ceiling_R.copy(), self.sse_R.copy())
        for field in fields(self):
            getattr(out, field.name)[rows] = getattr(others, field.name)
        return out


def solve(family: Family, batch: FitRows) -> Fits:
    """Fit every row of the batch with one family."""
    chunks = _chunks(batch)
    parts = []
    for rows_R, width in chunks:
        part = replace(
            batch,
            compute_GC=batch.compute_GC[:, :width],
            group_R=batch.group_R[rows_R],
            values_RC=batch.values_RC[rows_R, :width],
            weights_RC=batch.weights_RC[rows_R, :width],
        )
        with blas_on_one_core():
            starts_RK = _best_starts(family, part)
        parts.append(_refine(family, part, starts_RK))
    back_R = np.argsort(np.concatenate([rows_R for rows_R, _ in chunks]))
    return Fits(*(np.concatenate([getattr(p, f.name) for p in parts])[back_R] for f in fields(Fits)))


def evaluate(family: Family, fits: Fits, compute_RC: Array) -> Array:
    """The fitted curves at normalised compute, given as one row for all fits or one row per fit."""
    g_RC = family.shape(family.coordinate(compute_RC), fits.theta_RK.T[:, :, None])
    return np.asarray(fits.base_R[:, None] + (fits.ceiling_R - fits.base_R)[:, None] * g_RC)


@functools.cache
def _thread_pools() -> ThreadpoolController:
    return ThreadpoolController()


def blas_on_one_core() -> AbstractContextManager[object]:
    """Limit BLAS to one thread: on a busy machine, synchronising threads made small products a hundred times slower."""
    limit: AbstractContextManager[object] = _thread_pools().limit(limits=1, user_api="blas")
    return limit


def _chunks(batch: FitRows) -> list[tuple[Ints, int]]:
    """Rows to fit together, and the number of their columns without padding.

    The rows of a chunk have similar widths, and few enough values to stay in cache.
    """
    used_RC = batch.weights_RC > 0
    width_R = used_RC.shape[1] - used_RC[:, ::-1].argmax(axis=1)
    order_R = np.argsort(width_R, kind="stable")
    out, start = [], 0
    while start < len(order_R):
        narrowest = int(width_R[order_R[start]])
        end = int(np.searchsorted(width_R[order_R], _SLACK * narrowest, side="right"))
        end = min(end, start + max(1, _CHUNK // narrowest))
        rows_R = order_R[start:end]
        out.append((rows_R, int(width_R[rows_R[-1]])))
        start = end
    return out


def _best_starts(family: Family, batch: FitRows) -> Array:
    """The grid point with the smallest sum of squares for every row; groups with the same compute share the work."""
    starts_RK = np.empty((len(batch.group_R), len(family.parameters)))
    upper_R = batch.upper_R
    rows_by_grid: dict[bytes, list[Ints]] = {}
    order_R = np.argsort(batch.group_R, kind="stable")
    groups, first = np.unique(batch.group_R[order_R], return_index=True)
    for group, rows_R in zip(groups, np.split(order_R, first[1:]), strict=True):
        key = batch.compute_GC[group].tobytes() + batch.span_G[group].tobytes()
        rows_by_grid.setdefault(key, []).append(rows_R)
    for same in rows_by_grid.values():
        rows = np.concatenate(same)
        group = batch.group_R[rows[0]]
        grid_SK = family.grid(float(batch.span_G[group]))
        g_SC = family.shape(family.coordinate(batch.compute_GC[group])[None, :], grid_SK.T[:, :, None])
        best_R = _best_of_grid(g_SC, batch.values_RC[rows], batch.weights_RC[rows], upper_R[rows], batch.pinned)
        starts_RK[rows] = grid_SK[best_R]
    return starts_RK


def _best_of_grid(g_SC: Array, values_RC: Array, weights_RC: Array, upper_R: Array, pinned: bool) -> Ints:
    """Index of the shape that reduces each row's sum of squares most.

    The upper bound caps the gain of a line through the means, which is exact enough for a start.
    """
    if (weights_RC == weights_RC[0]).all():
        weights_RC = weights_RC[:1]  # one set of sums for all rows
    total_R1 = weights_RC.sum(axis=1, keepdims=True)
    level_R1 = (weights_RC * values_RC).sum(axis=1, keepdims=True) / total_R1
    g_CS = np.ascontiguousarray(g_SC.T)
    mean_RS = weights_RC @ g_CS / total_R1
    variance_RS = np.maximum(weights_RC @ g_CS**2 - total_R1 * mean_RS**2, 1e-12 * total_R1)
    pull_RC = weights_RC * (values_RC - level_R1)
    if pinned:
        covariance_RS = pull_RC @ g_CS
        room_R1 = upper_R[:, None] - level_R1
        rest_RS = np.maximum(variance_RS + total_R1 * (1.0 - mean_RS) ** 2, 1e-12 * total_R1)
        overlap_RS = np.maximum(room_R1 * total_R1 * (1.0 - mean_RS) + covariance_RS, 0.0)
        return np.asarray((overlap_RS**2 / rest_RS).argmax(axis=1))
    # Without the bound, a shape saves covariance² / variance; if the best one respects the bound, it stays the best.
    deviation_RS = np.sqrt(variance_RS)
    if len(weights_RC) == 1:
        score_RS = pull_RC @ (g_CS / deviation_RS)
    else:
        score_RS = pull_RC @ g_CS
        score_RS /= deviation_RS
    best_R = score_RS.argmax(axis=1)
    each_R = np.arange(len(best_R))
    score_R, of_R = score_RS[each_R, best_R], each_R if len(weights_RC) > 1 else 0 * each_R
    best_R[score_R <= 0] = 0
    if not np.isfinite(upper_R).any():
        return np.asarray(best_R)
    reach_R = (1.0 - mean_RS[of_R, best_R]) * score_R / deviation_RS[of_R, best_R]
    over = np.flatnonzero(level_R1[:, 0] + reach_R > upper_R)
    if len(over):
        of = over if len(weights_RC) > 1 else of_R[:1]
        covariance_RS = np.maximum(score_RS[over], 0.0) * deviation_RS[of]
        room_RS = (upper_R[over, None] - level_R1[over]) / np.maximum(1.0 - mean_RS[of], 1e-9)
        gain_RS = np.minimum(covariance_RS / variance_RS[of], room_RS)
        best_R[over] = (gain_RS * (2.0 * covariance_RS - gain_RS * variance_RS[of])).argmax(axis=1)
    return np.asarray(best_R)


def _refine(family: Family, batch: FitRows, theta_RK: Array) -> Fits:
    """Damped Gauss-Newton within the bounds; converged rows drop out."""
    theta_KR = np.ascontiguousarray(theta_RK.T)
    spans, place_R = np.unique(batch.span_G[batch.group_R], return_inverse=True)
    low_KR, high_KR = np.stack([family.bounds(float(span)) for span in spans])[place_R].T
    whole = work = _Work.of(family, batch)
    done_KR, active = theta_KR.copy(), np.arange(len(theta_RK))
    point = _project(family, work, theta_KR)
    damping_R = np.full(len(theta_RK), 1e-3)
    for _ in range(_MAX_STEPS):
        step_KR = _damped_step(point, theta_KR, damping_R, low_KR, high_KR)
        trial_KR = np.clip(theta_KR + step_KR, low_KR, high_KR)
        trial = _project(family, work, trial_KR)
        better = trial.sse_R < point.sse_R
        saved_R = (point.sse_R - trial.sse_R) / np.maximum(point.sse_R, _TINY)
        moved_R = np.abs(trial_KR - theta_KR).max(axis=0)
        finished = (moved_R < 1e-6) | (better & (saved_R < _ENOUGH)) | (~better & (damping_R > 1e7))
        damping_R = np.where(better, np.maximum(damping_R * 0.1, 1e-9), damping_R * 10.0)
        theta_KR = np.where(better, trial_KR, theta_KR)
        point = point.updated(trial, better)
        done_KR[:, active] = theta_KR
        keep = ~finished
        if not keep.any():
            break
        if keep.mean() < 0.8:  # copying rows costs about one pass over them
            work, point, active = work.keep(keep), point.keep(keep), active[keep]
            theta_KR, damping_R = theta_KR[:, keep], damping_R[keep]
            low_KR, high_KR = low_KR[:, keep], high_KR[:, keep]
    return Fits(np.ascontiguousarray(done_KR.T), *_squares(family, whole, done_KR))


def _damped_step(point: _Point, theta_KR: Array, damping_R: Array, low_KR: Array, high_KR: Array) -> Array:
    """Marquardt's step; a θ on its bound that is pushed outwards stays there."""
    push_KR = point.gradient_KR
    outward_KR = ((theta_KR <= low_KR) & (push_KR < 0)) | ((theta_KR >= high_KR) & (push_KR > 0))
    push_KR = np.where(outward_KR, 0.0, push_KR)
    diagonal_KR = np.maximum(np.einsum("kkr->kr", point.normal_KKR), _TINY)
    diagonal_KR = diagonal_KR * (1.0 + damping_R) + 1e-10 * diagonal_KR.max(axis=0)
    if len(push_KR) == 1:
        return np.asarray(np.clip(push_KR / diagonal_KR, -2.0, 2.0))
    cross_R = np.where(outward_KR.any(axis=0), 0.0, point.normal_KKR[0, 1])
    product_R = diagonal_KR[0] * diagonal_KR[1]
    determinant_R = np.maximum(product_R - cross_R**2, 1e-12 * product_R + _TINY)
    step_KR = (diagonal_KR[::-1] * push_KR - cross_R * push_KR[::-1]) / determinant_R
    return np.asarray(np.clip(step_KR, -2.0, 2.0))


@dataclass(frozen=True)
class _Work:
    """Rows to fit, values centred on their weighted mean."""

    x_CR: Array
    y_CR: Array
    w_CR: Array
    total_R: Array
    level_R: Array
    power_R: Array
    """Σ w y², of the centred values."""
    upper_R: Array
    pinned: bool

    @classmethod
    def of(cls, family: Family, batch: FitRows) -> _Work:
        """A batch in one family's coordinate."""
        w_CR = np.ascontiguousarray(batch.weights_RC.T)
        total_R = w_CR.sum(axis=0)
        level_R = np.einsum("rc,rc->r", batch.weights_RC, batch.values_RC) / total_R
        y_CR = batch.values_RC.T - level_R
        x_CR = np.ascontiguousarray(family.coordinate(batch.compute_GC).T[:, batch.group_R])
        power_R = np.einsum("cr,cr,cr->r", w_CR, y_CR, y_CR)
        return cls(x_CR, y_CR, w_CR, total_R, level_R, power_R, batch.upper_R, batch.pinned)

    def keep(self, rows: Bools) -> _Work:
        """The rows for which `rows` is true."""
        arrays = ("x_CR", "y_CR", "w_CR", "total_R", "level_R", "power_R", "upper_R")
        return replace(self, **{name: getattr(self, name)[..., rows] for name in arrays})


@dataclass(frozen=True)
class _Linear:
    """The closed-form base and gain of every row at its θ, with the sums that the normal equations need too."""

    base_R: Array
    """Base of the centred values."""
    gain_R: Array
    sse_R: Array
    mean_R: Array
    """Weighted mean of g."""
    variance_R: Array
    """Σ w (g - mean)²."""
    rest_R: Array
    """Σ w (1 - g)²."""
    over_R: Bools
    """Whether the row's ceiling is fixed at its bound."""


def _linear(work: _Work, g_CR: Array, wg_CR: Array) -> _Linear:
    """Base and gain that fit best, given the shape and the weighted shape."""
    w, sg = work.total_R, wg_CR.sum(axis=0)
    sgg, sgy = _dot(wg_CR, g_CR), _dot(wg_CR, work.y_CR)
    mean = sg / w
    variance = np.maximum(sgg - sg * mean, 1e-13 * np.maximum(sgg, _TINY))
    rest = np.maximum(w - 2.0 * sg + sgg, 1e-13 * w)
    rising = np.maximum(sgy, 0.0)
    gain = rising / variance
    base = -gain * mean
    sse = work.power_R - gain * rising
    over = (base + gain + work.level_R > work.upper_R) | work.pinned
    if over.any():
        # With A fixed at the bound U, y - U = -gain (1 - g) has one linear parameter left.
        room = work.upper_R - work.level_R
        overlap = np.maximum(room * (w - sg) + sgy, 0.0)
        pinned = overlap / rest
        gain, base = np.where(over, pinned, gain), np.where(over, room - pinned, base)
        sse = np.where(over, work.power_R + room * room * w - pinned * overlap, sse)
    return _Linear(base, gain, np.maximum(sse, 0.0), mean, variance, rest, over)


@dataclass(frozen=True)
class _Point:
    """The projected problem at one θ of every row: Σ r² and the normal equations."""

    sse_R: Array
    normal_KKR: Array
    gradient_KR: Array

    def keep(self, rows: Bools) -> _Point:
        """The rows for which `rows` is true."""
        return _Point(*(getattr(self, field.name)[..., rows] for field in fields(self)))

    def updated(self, other: _Point, rows: Bools) -> _Point:
        """A copy with the other's values in some rows."""
        return _Point(*(np.where(rows, getattr(other, f.name), getattr(self, f.name)) for f in fields(self)))


def _project(family: Family, work: _Work, theta_KR: Array) -> _Point:
    """The normal equations at θ, projected to what base and gain cannot absorb."""
    g_CR = family.shape(work.x_CR, theta_KR)
    wg_CR = work.w_CR * g_CR
    line = _linear(work, g_CR, wg_CR)
    slopes_K = family.slopes(work.x_CR, theta_KR, g_CR)
    k = len(slopes_K)
    sd_KR, sdg_KR, sdy_KR = np.empty((3, k, len(work.total_R)))
    sdd_KKR = np.empty((k, k, len(work.total_R)))
    for i, d_CR in enumerate(slopes_K):
        wd_CR = work.w_CR * d_CR
        wd_CR.sum(axis=0, out=sd_KR[i])
        sdg_KR[i], sdy_KR[i] = _dot(wd_CR, g_CR), _dot(wd_CR, work.y_CR)
        for j in range(i + 1):
            sdd_KKR[i, j] = sdd_KKR[j, i] = _dot(wd_CR, slopes_K[j])
    # Base and gain absorb the directions 1 and g; if the ceiling is fixed, only 1 - g is absorbed.
    along_KR = sdg_KR - line.mean_R * sd_KR
    normal_KKR = sdd_KKR - sd_KR[:, None] * (sd_KR / work.total_R)
    normal_KKR -= along_KR[:, None] * (along_KR / line.variance_R)
    if line.over_R.any():
        left_KR = sd_KR - sdg_KR
        held_KKR = sdd_KKR - left_KR[:, None] * (left_KR / line.rest_R)
        normal_KKR = np.where(line.over_R, held_KKR, normal_KKR)
    gradient_KR = sdy_KR - line.base_R * sd_KR - line.gain_R * sdg_KR
    return _Point(line.sse_R, normal_KKR * (line.gain_R * line.gain_R), gradient_KR * line.gain_R)


def _squares(family: Family, work: _Work, theta_KR: Array) -> tuple[Array, Array, Array]:
    """Base, ceiling and Σ r² at θ, with Σ r² computed from the residuals for precision."""
    g_CR = family.shape(work.x_CR, theta_KR)
    line = _linear(work, g_CR, work.w_CR * g_CR)
    residual_CR = work.y_CR - line.base_R
    g_CR *= line.gain_R
    residual_CR -= g_CR
    base_R = line.base_R + work.level_R
    return base_R, base_R + line.gain_R, np.einsum("cr,cr,cr->r", work.w_CR, residual_CR, residual_CR)


def _dot(a_CR: Array, b_CR: Array) -> Array:
    return np.asarray(np.einsum("cr,cr->r", a_CR, b_CR))
