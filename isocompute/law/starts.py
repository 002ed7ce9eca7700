"""Where the search begins: the best point of a grid over the whole box of θ, so that no row depends on a lucky guess.

Scoring the grid is a few matrix products, because the rows of one run share their compute values.
"""

from __future__ import annotations

import numpy as np

from isocompute.core.arrays import Array, Ints
from isocompute.law.batch import Batch
from isocompute.law.families import Family
from isocompute.law.product import product

__all__ = ["best_starts"]


def best_starts(family: Family, batch: Batch) -> Array:
    """The grid point with the smallest sum of squares, for every row; groups with the same compute share the work."""
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
    """Which shape saves most of the sum of squares.

    The upper bound enters by capping the gain of a line through the means, which is exact enough for a start.
    """
    if (weights_RC == weights_RC[0]).all():
        weights_RC = weights_RC[:1]  # one set of sums for all rows
    total_R1 = weights_RC.sum(axis=1, keepdims=True)
    level_R1 = (weights_RC * values_RC).sum(axis=1, keepdims=True) / total_R1
    g_CS = np.ascontiguousarray(g_SC.T)
    mean_RS = product(weights_RC, g_CS) / total_R1
    variance_RS = np.maximum(product(weights_RC, g_CS**2) - total_R1 * mean_RS**2, 1e-12 * total_R1)
    pull_RC = weights_RC * (values_RC - level_R1)
    if pinned:
        covariance_RS = product(pull_RC, g_CS)
        room_R1 = upper_R[:, None] - level_R1
        rest_RS = np.maximum(variance_RS + total_R1 * (1.0 - mean_RS) ** 2, 1e-12 * total_R1)
        overlap_RS = np.maximum(room_R1 * total_R1 * (1.0 - mean_RS) + covariance_RS, 0.0)
        return np.asarray((overlap_RS**2 / rest_RS).argmax(axis=1))
    # Without the bound a shape saves covariance² / variance; where the best of them keeps the bound, it is the best.
    deviation_RS = np.sqrt(variance_RS)
    if len(weights_RC) == 1:
        score_RS = product(pull_RC, g_CS / deviation_RS)
    else:
        score_RS = product(pull_RC, g_CS)
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
