"""The fit at a given θ: base and gain in closed form, and the normal equations of the search over θ (Kaufman's).

Everything follows from weighted inner products of 1, g, ∂g and y; the residual itself is not formed until the end. Rows
come last in these arrays, points and parameters first: there are two or three parameters and thousands of rows, and
numpy is fast along the last axis.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np

from isocompute.core.arrays import Array, Bools
from isocompute.law.batch import Batch
from isocompute.law.families import Family

__all__ = ["Linear", "Point", "Work", "linear", "project", "squares"]

_TINY = 1e-100


@dataclass(frozen=True)
class Work:
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
    def of(cls, family: Family, batch: Batch) -> Work:
        """A batch as one family sees it."""
        w_CR = np.ascontiguousarray(batch.weights_RC.T)
        total_R = w_CR.sum(axis=0)
        level_R = np.einsum("rc,rc->r", batch.weights_RC, batch.values_RC) / total_R
        y_CR = batch.values_RC.T - level_R
        x_CR = np.ascontiguousarray(family.coordinate(batch.compute_GC).T[:, batch.group_R])
        power_R = np.einsum("cr,cr,cr->r", w_CR, y_CR, y_CR)
        return cls(x_CR, y_CR, w_CR, total_R, level_R, power_R, batch.upper_R, batch.pinned)

    def keep(self, rows: Bools) -> Work:
        """Some of the rows."""
        arrays = ("x_CR", "y_CR", "w_CR", "total_R", "level_R", "power_R", "upper_R")
        return replace(self, **{name: getattr(self, name)[..., rows] for name in arrays})


@dataclass(frozen=True)
class Linear:
    """The closed form at one θ of every row, with the sums that the rest needs too."""

    base_R: Array
    """Of the centred values."""
    gain_R: Array
    sse_R: Array
    mean_R: Array
    """Of g."""
    variance_R: Array
    """Σ w (g - mean)²."""
    rest_R: Array
    """Σ w (1 - g)²."""
    over_R: Bools
    """Rows whose ceiling is held at the bound."""


def linear(work: Work, g_CR: Array, wg_CR: Array) -> Linear:
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
        # A pinned at the bound: y - U = -gain (1 - g), one linear parameter left.
        room = work.upper_R - work.level_R
        overlap = np.maximum(room * (w - sg) + sgy, 0.0)
        pinned = overlap / rest
        gain, base = np.where(over, pinned, gain), np.where(over, room - pinned, base)
        sse = np.where(over, work.power_R + room * room * w - pinned * overlap, sse)
    return Linear(base, gain, np.maximum(sse, 0.0), mean, variance, rest, over)


@dataclass(frozen=True)
class Point:
    """The projected problem at one θ of every row: Σ r² and the normal equations."""

    sse_R: Array
    normal_KKR: Array
    gradient_KR: Array

    def keep(self, rows: Bools) -> Point:
        """Some of the rows."""
        return Point(*(getattr(self, field.name)[..., rows] for field in fields(self)))

    def updated(self, other: Point, rows: Bools) -> Point:
        """The same with the other's in some rows."""
        return Point(*(np.where(rows, getattr(other, f.name), getattr(self, f.name)) for f in fields(self)))


def project(family: Family, work: Work, theta_KR: Array) -> Point:
    """The normal equations at θ, with what base and gain absorb taken out."""
    g_CR = family.shape(work.x_CR, theta_KR)
    wg_CR = work.w_CR * g_CR
    line = linear(work, g_CR, wg_CR)
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
    # Two directions are absorbed, 1 and g, or where the ceiling is held the one of 1 - g alone.
    along_KR = sdg_KR - line.mean_R * sd_KR
    normal_KKR = sdd_KKR - sd_KR[:, None] * (sd_KR / work.total_R)
    normal_KKR -= along_KR[:, None] * (along_KR / line.variance_R)
    if line.over_R.any():
        left_KR = sd_KR - sdg_KR
        held_KKR = sdd_KKR - left_KR[:, None] * (left_KR / line.rest_R)
        normal_KKR = np.where(line.over_R, held_KKR, normal_KKR)
    gradient_KR = sdy_KR - line.base_R * sd_KR - line.gain_R * sdg_KR
    return Point(line.sse_R, normal_KKR * (line.gain_R * line.gain_R), gradient_KR * line.gain_R)


def squares(family: Family, work: Work, theta_KR: Array) -> tuple[Array, Array, Array]:
    """Base, ceiling and Σ r² at θ, the last from the residuals themselves."""
    g_CR = family.shape(work.x_CR, theta_KR)
    line = linear(work, g_CR, work.w_CR * g_CR)
    residual_CR = work.y_CR - line.base_R
    g_CR *= line.gain_R
    residual_CR -= g_CR
    base_R = line.base_R + work.level_R
    return base_R, base_R + line.gain_R, np.einsum("cr,cr,cr->r", work.w_CR, residual_CR, residual_CR)


def _dot(a_CR: Array, b_CR: Array) -> Array:
    return np.asarray(np.einsum("cr,cr->r", a_CR, b_CR))
