"""The joint law: one surface R(C; n, Bp) for settings that were run and for those that were not.

    R = R0 + (A - R0) · g(C; Cmid, B)

All runs share the base R0, since they start from the same model. The ceiling A, the midpoint log Cmid and the
efficiency log B are low-degree polynomials in log2 n and log2 Bp; the exponential form has no B. Least squares fit it
to the binned points of all settings (`fits.bins_of`), starting from the fits of single settings. AIC chooses between
the Hill and the exponential form.

The surface is for settings that were not run. So its error is measured by leaving out every n once and predicting it
from the others. Each bootstrap draw is one Gauss-Newton step from the estimate, for resampled residuals and settings
shifted by a seed effect. That is cheap enough for a planner to use a thousand surfaces.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np

from isocompute.core.arrays import Array, Bools, Ints
from isocompute.law.fits import CurveFit, bins_of, block_resample
from isocompute.law.solver import EXPONENTIAL, HILL, Family, blas_on_one_core

_BOX = ((-30.0, 60.0), (float(np.log(0.1)), float(np.log(20.0))))
"""Bounds of log Cmid (in units of the first compute) and of log B."""

_Powers = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class LeftOut:
    """Error of the surface fitted without one n, at the runs with that n."""

    rollouts_per_problem: int
    rmse: float
    final_error: float
    """Mean absolute error at the last compute of its settings."""
    edge: bool
    """Whether it is the smallest or largest n, whose prediction is an extrapolation."""


@dataclass(frozen=True)
class Terms:
    """The powers of the centred (log2 n, log2 Bp) in ceiling, midpoint and efficiency."""

    centre: tuple[float, float]
    ceiling: _Powers
    midpoint: _Powers
    efficiency: _Powers

    def design(self, powers: _Powers, n: Array, bp: Array) -> Array:
        """The design matrix of these powers."""
        u, v = np.log2(n) - self.centre[0], np.log2(bp) - self.centre[1]
        return np.stack([u**i * v**j for i, j in powers], axis=-1)

    def shape(self, family: Family) -> tuple[_Powers, ...]:
        """The powers of each θ of a family: the midpoint and, where it has one, the efficiency."""
        return (self.midpoint, self.efficiency)[: len(family.parameters)]


@dataclass(frozen=True)
class Surface:
    """The fitted surface; `replicates_BQ` are the bootstrap draws of its coefficients."""

    family: Family
    terms: Terms
    unit: float
    coefficients_Q: Array
    replicates_BQ: Array
    rmse: float
    left_out: tuple[LeftOut, ...]
    upper: float

    def at(self, compute: Array, rollouts_per_problem: Array, problems_per_batch: Array) -> Array:
        """Expected value for any setting; arguments broadcast."""
        values_1I = self._values(self.coefficients_Q[None], compute, rollouts_per_problem, problems_per_batch)
        return np.asarray(values_1I[0])

    def replicates_at(self, compute: Array, rollouts_per_problem: Array, problems_per_batch: Array) -> Array:
        """Value of every draw (first axis) for any setting; arguments broadcast."""
        return self._values(self.replicates_BQ, compute, rollouts_per_problem, problems_per_batch)

    def to_json(self) -> dict[str, Any]:
        """The keys of `surface` in `fit --json`."""
        return {
            "form": self.family.name,
            "unit": self.unit,
            "centre": self.terms.centre,
            "terms": {name: getattr(self.terms, name) for name in ("ceiling", "midpoint", "efficiency")},
            "coefficients": self.coefficients_Q.tolist(),
            "coefficient_intervals": np.percentile(self.replicates_BQ, [2.5, 97.5], axis=0).T.tolist(),
            "rmse": self.rmse,
            "leave_one_out": [asdict(left) for left in self.left_out],
        }

    def _values(self, coefficients_BQ: Array, compute: Array, rollouts: Array, problems: Array) -> Array:
        c, n, bp = np.broadcast_arrays(compute, rollouts, problems)
        design = _Design.of(self.family, self.terms, n.ravel(), bp.ravel())
        g_BI = self.family.shape(self.family.coordinate(c.ravel() / self.unit), design.theta_KBI(coefficients_BQ))
        base_B1, ceiling_BI = coefficients_BQ[:, :1], design.ceiling_BI(coefficients_BQ)
        values_BI = base_B1 + (ceiling_BI - base_B1) * g_BI
        return np.minimum(values_BI, self.upper).reshape(len(coefficients_BQ), *c.shape)


@dataclass(frozen=True)
class _Design:
    """Design matrices that turn coefficients (columns: R0, ceiling, midpoint, efficiency) into curves of settings."""

    ceiling_IQ: Array
    shape_KIQ: tuple[Array, ...]

    @classmethod
    def of(cls, family: Family, terms: Terms, n_I: Array, bp_I: Array) -> _Design:
        shape = tuple(terms.design(powers, n_I, bp_I) for powers in terms.shape(family))
        return cls(terms.design(terms.ceiling, n_I, bp_I), shape)

    def ceiling_BI(self, coefficients_BQ: Array) -> Array:
        """A for each row of coefficients."""
        return np.asarray(coefficients_BQ[:, 1 : 1 + self.ceiling_IQ.shape[1]] @ self.ceiling_IQ.T)

    def theta_KBI(self, coefficients_BQ: Array) -> Array:
        """θ of the family, within its bounds."""
        start, out = 1 + self.ceiling_IQ.shape[1], []
        for design_IQ, (low, high) in zip(self.shape_KIQ, _BOX, strict=False):
            stop = start + design_IQ.shape[1]
            out.append(np.clip(coefficients_BQ[:, start:stop] @ design_IQ.T, low, high))
            start = stop
        return np.stack(out)


@dataclass(frozen=True)
class _Points:
    """Points of all settings as columns of one table, with compute in units of the first."""

    compute_I: Array
    n_I: Array
    bp_I: Array
    values_I: Array
    weights_I: Array
    run_I: Ints

    def where(self, keep_I: Bools) -> _Points:
        return _Points(*(getattr(self, field.name)[keep_I] for field in fields(self)))


@dataclass(frozen=True)
class _Fitted:
    family: Family
    terms: Terms
    coefficients_Q: Array

    def at(self, points: _Points) -> Array:
        return self.with_slopes(points)[0]

    def with_slopes(self, points: _Points) -> tuple[Array, Array]:
        """Values, and their derivatives with respect to the coefficients."""
        design, q_1Q = _Design.of(self.family, self.terms, points.n_I, points.bp_I), self.coefficients_Q[None]
        x_I, theta_KI = self.family.coordinate(points.compute_I), design.theta_KBI(q_1Q)[:, 0]
        g_I = self.family.shape(x_I, theta_KI)
        base, ceiling_I = self.coefficients_Q[0], design.ceiling_BI(q_1Q)[0]
        columns = [(1.0 - g_I)[:, None], design.ceiling_IQ * g_I[:, None]]
        for shape_IQ, slope_I in zip(design.shape_KIQ, self.family.slopes(x_I, theta_KI, g_I), strict=True):
            columns.append(shape_IQ * ((ceiling_I - base) * slope_I)[:, None])
        return base + (ceiling_I - base) * g_I, np.concatenate(columns, axis=1)


def fit_surface(
    fits: Sequence[CurveFit], *, upper: float, replicates: int = 1000, seed: int | np.random.Generator = 0
) -> Surface | None:
    """Fit the joint law to the settings' points; None if fewer than three n were run."""
    known = [fit for fit in fits if fit.setting[1] is not None]
    if len({fit.setting[1] for fit in known}) < 3 or len({fit.setting[0] is None for fit in known}) > 1:
        return None
    unit = min(float(c.compute_C[c.compute_C > 0].min()) for fit in known for c in fit.curves)
    points, bins, bin_I = _points(known, unit)
    terms = _terms(points)
    both = [_fit(family, terms, bins, _start(family, terms, known, unit)) for family in (HILL, EXPONENTIAL)]

    def aic(fitted: _Fitted) -> float:
        error = float(np.mean((points.values_I - fitted.at(points)) ** 2))
        return len(points.values_I) * float(np.log(error + 1e-30)) + 2 * len(fitted.coefficients_Q)

    best = min(both, key=aic)
    residual_I = points.values_I - best.at(points)
    with blas_on_one_core():
        replicates_BQ = _draws(best, known, points, bins, bin_I, replicates, np.random.default_rng(seed))
    return Surface(
        family=best.family,
        terms=terms,
        unit=unit,
        coefficients_Q=best.coefficients_Q,
        replicates_BQ=replicates_BQ,
        rmse=float(np.sqrt(np.mean(residual_I**2))),
        left_out=_leave_one_out(best, points, bins),
        upper=upper,
    )


def _points(fits: Sequence[CurveFit], unit: float) -> tuple[_Points, _Points, Ints]:
    """All points, run after run; the means of their bins; and the bin of every point."""
    curves = [curve for fit in fits for curve in fit.curves]
    sizes = [len(curve.compute_C) for curve in curves]
    bins_S = [bins_of(np.concatenate([curve.compute_C for curve in fit.curves])) for fit in fits]
    first_S = np.cumsum([0, *[int(bin_N.max()) + 1 for bin_N in bins_S]])
    bin_I = np.concatenate([bin_N + first for bin_N, first in zip(bins_S, first_S, strict=False)])
    points = _Points(
        np.concatenate([curve.compute_C for curve in curves]) / unit,
        np.repeat([float(curve.rollouts_per_problem or 1) for curve in curves], sizes),
        np.repeat([float(curve.problems_per_batch or 1) for curve in curves], sizes),
        np.concatenate([curve.values_C for curve in curves]),
        np.ones(sum(sizes)),
        np.repeat(np.arange(len(curves)), sizes),
    )
    count_M = np.bincount(bin_I)
    compute_M, n_M, bp_M, values_M = (
        np.bincount(bin_I, each_I) / count_M for each_I in (points.compute_I, points.n_I, points.bp_I, points.values_I)
    )
    run_M = np.zeros(len(count_M), dtype=np.int64)  # bins hold several runs
    return points, _Points(compute_M, n_M, bp_M, values_M, count_M.astype(np.float64), run_M), bin_I


def _terms(points: _Points) -> Terms:
    """As many powers as the number of different n and Bp can determine."""
    n_values, bp_values = len(np.unique(points.n_I)), len(np.unique(points.bp_I))
    linear = [(0, 0), (1, 0)] + ([(0, 1)] if bp_values > 1 else [])
    square = [(2, 0)] if n_values > 3 else []
    wide = ([(0, 2)] if bp_values > 3 else []) + ([(1, 1)] if bp_values > 2 else [])
    return Terms(
        centre=(float(np.log2(points.n_I).mean()), float(np.log2(points.bp_I).mean())),
        ceiling=tuple(linear + square + wide),
        midpoint=tuple(linear + square + wide),
        efficiency=tuple(linear),
    )


def _fit(family: Family, terms: Terms, bins: _Points, start_Q: Array) -> _Fitted:
    from scipy.optimize import least_squares  # a quarter of a second to load

    root_I = np.sqrt(bins.weights_I)

    def residual(q: Array) -> Array:
        return np.asarray((_Fitted(family, terms, q).at(bins) - bins.values_I) * root_I)

    def jacobian(q: Array) -> Array:
        return np.asarray(_Fitted(family, terms, q).with_slopes(bins)[1] * root_I[:, None])

    solution = least_squares(residual, start_Q, jac=jacobian, method="lm", x_scale="jac", max_nfev=200)
    return _Fitted(family, terms, np.asarray(solution.x, dtype=np.float64))


def _start(family: Family, terms: Terms, fits: Sequence[CurveFit], unit: float) -> Array:
    """Starting coefficients: polynomials through the ceilings and midpoints of the settings' own fits."""
    n = np.array([float(f.setting[1] or 1) for f in fits])
    bp = np.array([float(f.setting[0] or 1) for f in fits])
    ceiling = np.array([f.ceiling for f in fits])
    half = np.empty(len(fits))
    for i, fit in enumerate(fits):
        grid_C = np.geomspace(fit.first, fit.last * 10, 200)
        half[i] = grid_C[np.searchsorted(fit.at(grid_C), 0.5 * (fit.base + fit.ceiling)).clip(0, 199)] / unit
    base = float(np.median([f.base for f in fits]))

    def regress(powers: _Powers, target: Array) -> Array:
        design = terms.design(powers, n, bp)
        ridge = 1e-6 * np.eye(design.shape[1])
        return np.asarray(np.linalg.solve(design.T @ design + ridge, design.T @ target), dtype=np.float64)

    parts = [np.array([base]), regress(terms.ceiling, ceiling), regress(terms.midpoint, np.log(half))]
    if family is HILL:
        parts.append(np.concatenate([[np.log(1.5)], np.zeros(len(terms.efficiency) - 1)]))
    else:
        parts[2][0] -= np.log(np.log(2.0))
    return np.concatenate(parts)


def _draws(
    fitted: _Fitted,
    fits: Sequence[CurveFit],
    points: _Points,
    bins: _Points,
    bin_I: Ints,
    replicates: int,
    rng: np.random.Generator,
) -> Array:
    """Bootstrap draws of the coefficients, each after one Gauss-Newton step, which is linear in the points' values."""
    root_M = np.sqrt(bins.weights_I)
    step_QM = np.linalg.pinv(fitted.with_slopes(bins)[1] * root_M[:, None], rcond=1e-8) * root_M
    step_IQ = (step_QM / bins.weights_I).T[bin_I]
    out_BQ = np.tile(fitted.coefficients_Q, (replicates, 1))
    ends = np.flatnonzero(np.diff(points.run_I)) + 1
    step_RCQ = np.split(step_IQ, ends)
    for residual_C, step_CQ in zip(np.split(points.values_I - fitted.at(points), ends), step_RCQ, strict=True):
        out_BQ += block_resample(residual_C, 1, replicates, rng) @ step_CQ
    steps = iter(step_RCQ)
    for fit in fits:
        moved_Q = np.sum([fit.risen(curve.compute_C) @ next(steps) for curve in fit.curves], axis=0)
        out_BQ += fit.seed_error * rng.standard_normal((replicates, 1)) * moved_Q
    return out_BQ


def _leave_one_out(fitted: _Fitted, points: _Points, bins: _Points) -> tuple[LeftOut, ...]:
    """Errors of predicting each n from the others; empty with fewer than four n."""
    values = np.unique(points.n_I)
    if len(values) < 4:
        return ()
    out = []
    for n in values:
        rest, held_out = bins.where(bins.n_I != n), points.where(points.n_I == n)
        fewer = replace(_terms(rest), centre=fitted.terms.centre)
        start_Q = fitted.coefficients_Q[_kept(fitted.family, fitted.terms, fewer)]
        error_I = _fit(fitted.family, fewer, rest, start_Q).at(held_out) - held_out.values_I
        last_I = np.append(np.diff(held_out.run_I) != 0, True)
        out.append(
            LeftOut(
                rollouts_per_problem=int(n),
                rmse=float(np.sqrt(np.mean(error_I**2))),
                final_error=float(np.abs(error_I[last_I]).mean()),
                edge=bool(n in (values[0], values[-1])),
            )
        )
    return tuple(out)


def _kept(family: Family, terms: Terms, fewer: Terms) -> list[int]:
    """Positions, among the coefficients of `terms`, of those that `fewer` also has."""
    out, offset = [0], 1
    pairs = zip((terms.ceiling, *terms.shape(family)), (fewer.ceiling, *fewer.shape(family)), strict=True)
    for powers, wanted in pairs:
        out += [offset + i for i, power in enumerate(powers) if power in wanted]
        offset += len(powers)
    return out
