"""Thousands of monotone curve fits at once: variable projection and a batched damped Gauss-Newton.

A fit minimises `Σ w (y - R0 - (A - R0) g(C; θ))²` under `A >= R0` (monotone) and `A <= upper` (a pass rate cannot
exceed 1). For a given θ the best (R0, A) has a closed form, so the search is over θ alone, one or two numbers
(Golub & Pereyra 1973; the Jacobian is Kaufman's). Rows of a batch are independent fits: runs, bootstrap replicates,
rolling origins. Weights make all three the same thing: a resampled point is a point with another weight.

Every row starts from the best point of a grid that covers the whole box of θ (`best_starts`), so no row depends on a
lucky first guess; scoring the grid is three matrix products because the rows of one run share their compute values.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from isocompute.arrays import Array, Bools, Ints
from isocompute.law.families import Family

__all__ = ["Batch", "Fits", "evaluate", "solve"]

_CHUNK = 2048  # rows of one pass: small enough that the temporaries stay in cache
_MAX_STEPS = 60
_ENOUGH = 1e-8  # a step that saves less than this share of the sum of squares is the last
_TINY = 1e-100


@dataclass(frozen=True)
class Batch:
    """Rows to fit. Rows with the same `group` share `compute_GC[group]`; padding has weight 0."""

    compute_GC: Array
    """In units of the group's first positive compute."""
    span_G: Array
    """Last compute over first positive compute of each group: the box of θ follows the data."""
    group_R: Ints
    values_RC: Array
    weights_RC: Array
    upper: float = np.inf
    pinned: bool = False
    """Hold every ceiling at `upper` instead of at or below it."""


@dataclass(frozen=True)
class Fits:
    """The solution of each row; compute-like parameters are in the group's normalised unit."""

    theta_RK: Array
    base_R: Array
    ceiling_R: Array
    sse_R: Array

    def __getitem__(self, rows: slice | Ints | Bools) -> Fits:
        return Fits(self.theta_RK[rows], self.base_R[rows], self.ceiling_R[rows], self.sse_R[rows])


def solve(family: Family, batch: Batch) -> Fits:
    """Fit every row of the batch with one family."""
    parts = []
    for start in range(0, len(batch.group_R), _CHUNK):
        rows = slice(start, start + _CHUNK)
        part = Batch(
            batch.compute_GC,
            batch.span_G,
            batch.group_R[rows],
            batch.values_RC[rows],
            batch.weights_RC[rows],
            batch.upper,
            batch.pinned,
        )
        parts.append(_refine(family, part, _best_starts(family, part)))
    return Fits(
        np.concatenate([p.theta_RK for p in parts]),
        np.concatenate([p.base_R for p in parts]),
        np.concatenate([p.ceiling_R for p in parts]),
        np.concatenate([p.sse_R for p in parts]),
    )


def evaluate(family: Family, fits: Fits, compute_RC: Array) -> Array:
    """The fitted curves at normalised compute (one row for all fits, or one a fit)."""
    g_RC = family.shape(family.coordinate(compute_RC), fits.theta_RK)[0]
    return np.asarray(fits.base_R[:, None] + (fits.ceiling_R - fits.base_R)[:, None] * g_RC)


def _best_starts(family: Family, batch: Batch) -> Array:
    """The grid point with the smallest sum of squares, for every row.

    The upper bound enters by capping the gain of a line through the means, which is exact enough for a start.
    """
    starts_RK = np.empty((len(batch.group_R), len(family.parameters)))
    for group in np.unique(batch.group_R):
        rows = np.flatnonzero(batch.group_R == group)
        grid_SK = family.grid(float(batch.span_G[group]))
        g_SC = family.shape(family.coordinate(batch.compute_GC[group])[None, :], grid_SK)[0]
        weights_RC = batch.weights_RC[rows]
        if (weights_RC == weights_RC[0]).all():
            weights_RC = weights_RC[:1]  # one set of sums for all rows
        total_R1 = weights_RC.sum(axis=1, keepdims=True)
        level_R1 = (weights_RC * batch.values_RC[rows]).sum(axis=1, keepdims=True) / total_R1
        mean_RS = weights_RC @ g_SC.T / total_R1
        variance_RS = np.maximum(weights_RC @ (g_SC**2).T - total_R1 * mean_RS**2, 1e-12 * total_R1)
        covariance_RS = (weights_RC * (batch.values_RC[rows] - level_R1)) @ g_SC.T
        if batch.pinned:
            room_R1 = batch.upper - level_R1
            rest_RS = np.maximum(variance_RS + total_R1 * (1.0 - mean_RS) ** 2, 1e-12 * total_R1)
            overlap_RS = np.maximum(room_R1 * total_R1 * (1.0 - mean_RS) + covariance_RS, 0.0)
            starts_RK[rows] = grid_SK[(overlap_RS**2 / rest_RS).argmax(axis=1)]
            continue
        gain_RS = np.maximum(covariance_RS, 0.0) / variance_RS
        if np.isfinite(batch.upper):
            np.minimum(gain_RS, (batch.upper - level_R1) / np.maximum(1.0 - mean_RS, 1e-9), out=gain_RS)
        saved_RS = gain_RS * (2.0 * covariance_RS - gain_RS * variance_RS)
        starts_RK[rows] = grid_SK[saved_RS.argmax(axis=1)]
    return starts_RK


@dataclass(frozen=True)
class _Work:
    """The rows still being refined, values centred on their weighted mean."""

    x_RC: Array
    y_RC: Array
    w_RC: Array
    total_R: Array
    level_R: Array
    power_R: Array
    """Σ w y², of the centred values."""

    @classmethod
    def of(cls, family: Family, batch: Batch) -> _Work:
        w_RC = batch.weights_RC
        total_R = w_RC.sum(axis=1)
        level_R = np.einsum("rc,rc->r", w_RC, batch.values_RC) / total_R
        y_RC = batch.values_RC - level_R[:, None]
        x_GC = family.coordinate(batch.compute_GC)
        power_R = np.einsum("rc,rc,rc->r", w_RC, y_RC, y_RC)
        return cls(x_GC[batch.group_R], y_RC, w_RC, total_R, level_R, power_R)

    def keep(self, rows: Bools) -> _Work:
        return _Work(*(getattr(self, f)[rows] for f in self.__dataclass_fields__))


@dataclass(frozen=True)
class _Point:
    """The projected problem at one θ of every row: base and gain (of centred values), Σ r², normal equations."""

    base_R: Array
    gain_R: Array
    sse_R: Array
    normal_RKK: Array
    gradient_RK: Array

    def keep(self, rows: Bools) -> _Point:
        return _Point(*(getattr(self, f)[rows] for f in self.__dataclass_fields__))

    def updated(self, other: _Point, rows: Bools) -> _Point:
        out = []
        for field in self.__dataclass_fields__:
            mine, theirs = getattr(self, field), getattr(other, field)
            out.append(np.where(rows.reshape(-1, *[1] * (mine.ndim - 1)), theirs, mine))
        return _Point(*out)


def _project(family: Family, work: _Work, theta_RK: Array, batch: Batch) -> _Point:
    """Closed-form (R0, gain) at θ, and the normal equations with what they absorb taken out (Kaufman).

    Everything follows from weighted inner products of 1, g, ∂g and y; the residual itself is never formed.
    """
    g_RC, *d_KRC = family.shape(work.x_RC, theta_RK)
    wg_RC = work.w_RC * g_RC
    w, sg, sgg, sgy = work.total_R, wg_RC.sum(axis=1), _dot(wg_RC, g_RC), _dot(wg_RC, work.y_RC)
    wd_KRC = [work.w_RC * d_RC for d_RC in d_KRC]
    sd_RK = np.stack([wd.sum(axis=1) for wd in wd_KRC], axis=1)
    sdg_RK = np.stack([_dot(wd, g_RC) for wd in wd_KRC], axis=1)
    sdy_RK = np.stack([_dot(wd, work.y_RC) for wd in wd_KRC], axis=1)
    k = len(d_KRC)
    sdd_RKK = np.empty((len(w), k, k))
    for i in range(k):
        for j in range(i + 1):
            sdd_RKK[:, i, j] = sdd_RKK[:, j, i] = _dot(wd_KRC[i], d_KRC[j])

    mean = sg / w
    variance = np.maximum(sgg - sg * mean, 1e-13 * np.maximum(sgg, _TINY))
    gain = np.maximum(sgy, 0.0) / variance
    base = -gain * mean
    sse = work.power_R - gain * np.maximum(sgy, 0.0)
    along_RK = sdg_RK - mean[:, None] * sd_RK
    gradient_RK = sdy_RK - base[:, None] * sd_RK - gain[:, None] * sdg_RK
    normal_RKK = sdd_RKK - sd_RK[:, :, None] * sd_RK[:, None, :] / w[:, None, None]
    normal_RKK -= along_RK[:, :, None] * along_RK[:, None, :] / variance[:, None, None]

    over = (base + gain + work.level_R > batch.upper) | batch.pinned
    if over.any():
        # A pinned at the bound: y - U = -gain (1 - g), one linear parameter left.
        room = batch.upper - work.level_R
        rest = np.maximum(w - 2.0 * sg + sgg, 1e-13 * w)
        overlap = np.maximum(room * (w - sg) + sgy, 0.0)
        pinned = overlap / rest
        gain, base = np.where(over, pinned, gain), np.where(over, room - pinned, base)
        sse = np.where(over, work.power_R + room * room * w - pinned * overlap, sse)
        left_RK = sd_RK - sdg_RK
        pinned_gradient_RK = sdy_RK - room[:, None] * sd_RK + pinned[:, None] * left_RK
        pinned_normal_RKK = sdd_RKK - left_RK[:, :, None] * left_RK[:, None, :] / rest[:, None, None]
        gradient_RK = np.where(over[:, None], pinned_gradient_RK, gradient_RK)
        normal_RKK = np.where(over[:, None, None], pinned_normal_RKK, normal_RKK)
    return _Point(
        base,
        gain,
        np.maximum(sse, 0.0),
        normal_RKK * (gain * gain)[:, None, None],
        gradient_RK * gain[:, None],
    )


def _dot(a_RC: Array, b_RC: Array) -> Array:
    return np.asarray(np.einsum("rc,rc->r", a_RC, b_RC))


def _refine(family: Family, batch: Batch, theta_RK: Array) -> Fits:
    """Damped Gauss-Newton inside the box; rows that have converged drop out of the work."""
    rows = len(theta_RK)
    box_GK2 = np.stack([family.bounds(float(span)) for span in batch.span_G])
    low_RK, high_RK = box_GK2[batch.group_R, :, 0], box_GK2[batch.group_R, :, 1]
    whole = _Work.of(family, batch)
    done_RK = theta_RK.copy()
    work, active = whole, np.arange(rows)
    point = _project(family, work, theta_RK, batch)
    damping_R = np.full(rows, 1e-3)
    for _ in range(_MAX_STEPS):
        step_RK = _damped_step(point, theta_RK, damping_R, low_RK, high_RK)
        trial_RK = np.clip(theta_RK + step_RK, low_RK, high_RK)
        trial = _project(family, work, trial_RK, batch)
        better = trial.sse_R < point.sse_R
        saved_R = (point.sse_R - trial.sse_R) / np.maximum(point.sse_R, _TINY)
        moved_R = np.abs(trial_RK - theta_RK).max(axis=1)
        finished = (moved_R < 1e-6) | (better & (saved_R < _ENOUGH)) | (~better & (damping_R > 1e7))
        damping_R = np.where(better, np.maximum(damping_R * 0.1, 1e-9), damping_R * 10.0)
        theta_RK = np.where(better[:, None], trial_RK, theta_RK)
        point = point.updated(trial, better)
        done_RK[active] = theta_RK
        keep = ~finished
        if not keep.any():
            break
        if keep.mean() < 0.8:  # copying the rows costs about one pass over them
            work, point, active = work.keep(keep), point.keep(keep), active[keep]
            theta_RK, damping_R = theta_RK[keep], damping_R[keep]
            low_RK, high_RK = low_RK[keep], high_RK[keep]
    return _solution(family, whole, done_RK, batch)


def _solution(family: Family, work: _Work, theta_RK: Array, batch: Batch) -> Fits:
    """The fits at θ, with the sum of squares taken from the residuals themselves."""
    point = _project(family, work, theta_RK, batch)
    g_RC = family.shape(work.x_RC, theta_RK)[0]
    residual_RC = work.y_RC - point.base_R[:, None] - point.gain_R[:, None] * g_RC
    base_R = point.base_R + work.level_R
    return Fits(theta_RK, base_R, base_R + point.gain_R, _dot(work.w_RC * residual_RC, residual_RC))


def _damped_step(point: _Point, theta_RK: Array, damping_R: Array, low_RK: Array, high_RK: Array) -> Array:
    """Marquardt's step; a θ that sits on its bound and is pushed outwards stays where it is."""
    push_RK = point.gradient_RK
    outward_RK = ((theta_RK <= low_RK) & (push_RK < 0)) | ((theta_RK >= high_RK) & (push_RK > 0))
    push_RK = np.where(outward_RK, 0.0, push_RK)
    diagonal_RK = np.maximum(np.einsum("rkk->rk", point.normal_RKK), _TINY)
    diagonal_RK = diagonal_RK * (1.0 + damping_R[:, None]) + 1e-10 * diagonal_RK.max(axis=1, keepdims=True)
    if push_RK.shape[1] == 1:
        return np.asarray(np.clip(push_RK / diagonal_RK, -2.0, 2.0))
    cross_R = np.where(outward_RK.any(axis=1), 0.0, point.normal_RKK[:, 0, 1])
    determinant_R = np.maximum(diagonal_RK.prod(axis=1) - cross_R**2, 1e-12 * diagonal_RK.prod(axis=1) + _TINY)
    step_RK = (diagonal_RK[:, ::-1] * push_RK - cross_R[:, None] * push_RK[:, ::-1]) / determinant_R[:, None]
    return np.asarray(np.clip(step_RK, -2.0, 2.0))
