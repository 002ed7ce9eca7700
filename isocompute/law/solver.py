"""Thousands of monotone curve fits at once: variable projection and a batched damped Gauss-Newton.

A fit minimises `Σ w (y - R0 - (A - R0) g(C; θ))²` under `A >= R0` (monotone) and `A <= upper` (a pass rate cannot
exceed 1). For a given θ the best (R0, A) has a closed form (`projection`), so the search is over θ alone, one or two
numbers (Golub & Pereyra 1973; the Jacobian is Kaufman's). Rows of a batch are independent fits: runs, bootstrap
replicates, rolling origins. Weights make all three the same thing: a resampled point is a point with another weight.
Every row starts from the best point of a grid that covers the whole box of θ (`starts`).
"""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np

from isocompute.core.arrays import Array, Ints
from isocompute.law.batch import Batch, Fits
from isocompute.law.families import Family
from isocompute.law.projection import Point, Work, project, squares
from isocompute.law.starts import best_starts

__all__ = ["Batch", "Fits", "evaluate", "solve"]

_CHUNK = 65_536  # values of one pass: few enough that the temporaries stay in cache
_SLACK = 1.25  # rows of one pass differ in width by at most this much
_MAX_STEPS = 60
_ENOUGH = 1e-8  # a step that saves less than this share of the sum of squares is the last
_TINY = 1e-100


def solve(family: Family, batch: Batch) -> Fits:
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
        parts.append(_refine(family, part, best_starts(family, part)))
    back_R = np.argsort(np.concatenate([rows_R for rows_R, _ in chunks]))
    return Fits(*(np.concatenate([getattr(p, f.name) for p in parts])[back_R] for f in fields(Fits)))


def _chunks(batch: Batch) -> list[tuple[Ints, int]]:
    """Rows to fit together, and how many of their columns are more than padding: rows of one width, and so many that
    a pass stays in cache.
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


def evaluate(family: Family, fits: Fits, compute_RC: Array) -> Array:
    """The fitted curves at normalised compute (one row for all fits, or one a fit)."""
    g_RC = family.shape(family.coordinate(compute_RC), fits.theta_RK.T[:, :, None])
    return np.asarray(fits.base_R[:, None] + (fits.ceiling_R - fits.base_R)[:, None] * g_RC)


def _refine(family: Family, batch: Batch, theta_RK: Array) -> Fits:
    """Damped Gauss-Newton inside the box; rows that have converged drop out of the work."""
    theta_KR = np.ascontiguousarray(theta_RK.T)
    low_KR, high_KR = _box(family, batch)
    whole = work = Work.of(family, batch)
    done_KR, active = theta_KR.copy(), np.arange(len(theta_RK))
    point = project(family, work, theta_KR)
    damping_R = np.full(len(theta_RK), 1e-3)
    for _ in range(_MAX_STEPS):
        step_KR = _damped_step(point, theta_KR, damping_R, low_KR, high_KR)
        trial_KR = np.clip(theta_KR + step_KR, low_KR, high_KR)
        trial = project(family, work, trial_KR)
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
        if keep.mean() < 0.8:  # copying the rows costs about one pass over them
            work, point, active = work.keep(keep), point.keep(keep), active[keep]
            theta_KR, damping_R = theta_KR[:, keep], damping_R[keep]
            low_KR, high_KR = low_KR[:, keep], high_KR[:, keep]
    return Fits(np.ascontiguousarray(done_KR.T), *squares(family, whole, done_KR))


def _box(family: Family, batch: Batch) -> tuple[Array, Array]:
    """The bounds of every row's θ."""
    spans, place_R = np.unique(batch.span_G[batch.group_R], return_inverse=True)
    box_GK2 = np.stack([family.bounds(float(span)) for span in spans])
    return box_GK2[place_R, :, 0].T, box_GK2[place_R, :, 1].T


def _damped_step(point: Point, theta_KR: Array, damping_R: Array, low_KR: Array, high_KR: Array) -> Array:
    """Marquardt's step; a θ that sits on its bound and is pushed outwards stays where it is."""
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
