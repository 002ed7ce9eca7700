"""The joint law: one surface R(C; n, Bp) for settings that were run and for those that were not.

    R = R0 + (A - R0) · g(C; Cmid, B)

with one base R0 for all runs (they start from the same model) and a ceiling A, a midpoint log Cmid and an efficiency
log B that are low-degree polynomials in log2 n and log2 Bp. R0 and the coefficients of A enter linearly; the others
are found by least squares from the fits of the single settings. The form (Hill, or exponential without B) is chosen
by AIC.

The error that matters is that of a setting nobody ran, so every n is left out once and predicted from the rest.
Replicates are one Gauss-Newton step from the estimate for resampled residuals: cheap enough for a planner to use
a thousand surfaces.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import least_squares

from isocompute.arrays import Array
from isocompute.law.curve import Curve
from isocompute.law.families import EXPONENTIAL, HILL, Family
from isocompute.law.fits import CurveFit, block_resample

__all__ = ["LeftOut", "Surface", "Terms", "fit_surface"]


@dataclass(frozen=True)
class LeftOut:
    """How well the surface fitted without one n predicts the runs with that n."""

    rollouts_per_problem: int
    rmse: float
    final_error: float
    """Mean absolute error at the last compute of its settings."""
    edge: bool
    """The smallest or largest n: predicting it is extrapolation."""


@dataclass(frozen=True)
class Terms:
    """Which powers of (log2 n, log2 Bp), centred, each of the three functions uses."""

    centre: tuple[float, float]
    ceiling: tuple[tuple[int, int], ...]
    midpoint: tuple[tuple[int, int], ...]
    efficiency: tuple[tuple[int, int], ...]

    def design(self, powers: tuple[tuple[int, int], ...], n: Array, bp: Array) -> Array:
        """The design matrix of some of the powers."""
        u, v = np.log2(n) - self.centre[0], np.log2(bp) - self.centre[1]
        return np.stack([u**i * v**j for i, j in powers], axis=-1)


@dataclass(frozen=True)
class Surface:
    """The fitted surface; `replicates_BQ` are its coefficients over the bootstrap."""

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
        c, n, bp = np.broadcast_arrays(compute, rollouts_per_problem, problems_per_batch)
        return self._values(self.coefficients_Q, c, n, bp)

    def replicates_at(self, compute: Array, rollouts_per_problem: Array, problems_per_batch: Array) -> Array:
        """The same over the bootstrap, replicates first."""
        c, n, bp = np.broadcast_arrays(compute, rollouts_per_problem, problems_per_batch)
        members, points = len(self.replicates_BQ), c.size
        a, m, _ = _split(self.family, self.terms)
        used = (self.terms.midpoint, self.terms.efficiency)[: len(self.family.parameters)]
        parts = np.split(self.replicates_BQ[:, a:], [m], axis=1)
        theta_K = [
            part @ self.terms.design(powers, n.ravel(), bp.ravel()).T for powers, part in zip(used, parts, strict=False)
        ]
        theta_IK = np.stack([each_BI.ravel() for each_BI in theta_K], axis=-1)
        g_BI = _pointwise(self.family, np.tile(c.ravel() / self.unit, members), theta_IK)[0].reshape(members, points)
        base_B1 = self.replicates_BQ[:, :1]
        ceiling_BI = self.replicates_BQ[:, 1:a] @ self.terms.design(self.terms.ceiling, n.ravel(), bp.ravel()).T
        values_BI = base_B1 + (ceiling_BI - base_B1) * g_BI
        return np.minimum(values_BI, self.upper).reshape(members, *c.shape)

    def _values(self, coefficients_Q: Array, c: Array, n: Array, bp: Array) -> Array:
        value, _ = _model(self.family, self.terms, coefficients_Q, c.ravel() / self.unit, n.ravel(), bp.ravel())
        return np.minimum(value, self.upper).reshape(c.shape)


def fit_surface(fits: Sequence[CurveFit], *, upper: float, replicates: int = 1000, seed: int = 0) -> Surface | None:
    """Fit the joint law to the settings' points, or None where fewer than three n were run."""
    known = [fit for fit in fits if fit.setting[1] is not None]
    if len({fit.setting[1] for fit in known}) < 3 or len({fit.setting[0] is None for fit in known}) > 1:
        return None
    curves = [curve for fit in known for curve in fit.curves]
    data = _Data.of(curves)
    terms = _terms(data)
    best = min(
        (_fit(family, terms, data, _start(family, terms, known, data.unit)) for family in (HILL, EXPONENTIAL)),
        key=lambda fitted: fitted.aic,
    )
    return Surface(
        family=best.family,
        terms=terms,
        unit=data.unit,
        coefficients_Q=best.coefficients_Q,
        replicates_BQ=_replicates(best, data, replicates, np.random.default_rng(seed)),
        rmse=float(np.sqrt(np.mean(best.residual_I**2))),
        left_out=_leave_one_out(best, terms, data),
        upper=upper,
    )


@dataclass(frozen=True)
class _Data:
    """All points of all runs in one long table."""

    unit: float
    run_I: Array
    compute_I: Array
    n_I: Array
    bp_I: Array
    values_I: Array

    @classmethod
    def of(cls, curves: Sequence[Curve]) -> _Data:
        sizes = [len(c.compute_C) for c in curves]
        compute_I = np.concatenate([c.compute_C for c in curves])
        unit = float(compute_I[compute_I > 0].min())
        return cls(
            unit,
            np.repeat(np.arange(len(curves), dtype=np.float64), sizes),
            compute_I / unit,
            np.repeat([float(c.rollouts_per_problem or 1) for c in curves], sizes),
            np.repeat([float(c.problems_per_batch or 1) for c in curves], sizes),
            np.concatenate([c.values_C for c in curves]),
        )

    def where(self, keep: Array) -> _Data:
        return _Data(
            self.unit,
            self.run_I[keep],
            self.compute_I[keep],
            self.n_I[keep],
            self.bp_I[keep],
            self.values_I[keep],
        )


def _terms(data: _Data) -> Terms:
    """As many powers as the number of values run can hold."""
    n_values, bp_values = len(np.unique(data.n_I)), len(np.unique(data.bp_I))
    linear = [(0, 0), (1, 0)] + ([(0, 1)] if bp_values > 1 else [])
    square = [(2, 0)] if n_values > 3 else []
    wide = ([(0, 2)] if bp_values > 3 else []) + ([(1, 1)] if bp_values > 2 else [])
    return Terms(
        centre=(float(np.log2(data.n_I).mean()), float(np.log2(data.bp_I).mean())),
        ceiling=tuple(linear + square + wide),
        midpoint=tuple(linear + square + wide),
        efficiency=tuple(linear),
    )


def _split(family: Family, terms: Terms) -> tuple[int, int, int]:
    """Numbers of coefficients: 1 + ceiling, midpoint, efficiency."""
    shape_terms = len(terms.efficiency) if family is HILL else 0
    return 1 + len(terms.ceiling), len(terms.midpoint), shape_terms


def _kept(family: Family, terms: Terms, fewer: Terms) -> list[int]:
    """Positions, among the coefficients of `terms`, of those that `fewer` has too."""
    pairs = [(terms.ceiling, fewer.ceiling), (terms.midpoint, fewer.midpoint)]
    if family is HILL:
        pairs.append((terms.efficiency, fewer.efficiency))
    out, offset = [0], 1
    for powers, wanted in pairs:
        out += [offset + i for i, power in enumerate(powers) if power in wanted]
        offset += len(powers)
    return out


def _model(family: Family, terms: Terms, coefficients_Q: Array, c: Array, n: Array, bp: Array) -> tuple[Array, Array]:
    """Values and their derivatives by the coefficients (columns: R0, ceiling, midpoint, efficiency)."""
    a, m, e = _split(family, terms)
    ceiling_design = terms.design(terms.ceiling, n, bp)
    designs = [terms.design(terms.midpoint, n, bp)]
    if e:
        designs.append(terms.design(terms.efficiency, n, bp))
    parts = np.split(coefficients_Q[a:], [m])
    theta = np.stack([design @ part for design, part in zip(designs, parts, strict=False)], axis=-1)
    g_I, dg_KI = _pointwise(family, c, theta)
    base, ceiling = coefficients_Q[0], ceiling_design @ coefficients_Q[1:a]
    columns = [(1.0 - g_I)[:, None], ceiling_design * g_I[:, None]]
    columns += [design * ((ceiling - base) * slope)[:, None] for design, slope in zip(designs, dg_KI, strict=True)]
    return base + (ceiling - base) * g_I, np.concatenate(columns, axis=1)


def _pointwise(family: Family, c: Array, theta_IK: Array) -> tuple[Array, list[Array]]:
    """The family's shape with a θ of its own for every point."""
    theta_IK = np.clip(theta_IK, -30.0, 60.0)
    if theta_IK.shape[1] > 1:
        theta_IK[:, 1] = np.clip(theta_IK[:, 1], np.log(0.1), np.log(20.0))
    g_I1, *dg_KI1 = family.shape(family.coordinate(c)[:, None], theta_IK)
    return g_I1[:, 0], [dg_I1[:, 0] for dg_I1 in dg_KI1]


@dataclass(frozen=True)
class _Fitted:
    family: Family
    terms: Terms
    coefficients_Q: Array
    residual_I: Array
    jacobian_IQ: Array
    aic: float


def _fit(family: Family, terms: Terms, data: _Data, start_Q: Array) -> _Fitted:
    def residual(q: Array) -> Array:
        return _model(family, terms, q, data.compute_I, data.n_I, data.bp_I)[0] - data.values_I

    def jacobian(q: Array) -> Array:
        return _model(family, terms, q, data.compute_I, data.n_I, data.bp_I)[1]

    solution = least_squares(residual, start_Q, jac=jacobian, method="lm", x_scale="jac", max_nfev=200)
    coefficients_Q = np.asarray(solution.x, dtype=np.float64)
    value_I, jacobian_IQ = _model(family, terms, coefficients_Q, data.compute_I, data.n_I, data.bp_I)
    residual_I = data.values_I - value_I
    count = len(residual_I)
    aic = count * float(np.log(np.mean(residual_I**2) + 1e-30)) + 2 * len(coefficients_Q)
    return _Fitted(family, terms, coefficients_Q, residual_I, jacobian_IQ, aic)


def _start(family: Family, terms: Terms, fits: Sequence[CurveFit], unit: float) -> Array:
    """Polynomials through what the single settings' fits say: ceiling, and the compute of half their rise."""
    n = np.array([float(f.setting[1] or 1) for f in fits])
    bp = np.array([float(f.setting[0] or 1) for f in fits])
    ceiling = np.array([f.ceiling for f in fits])
    half = np.array([_half_rise(f) for f in fits]) / unit
    base = float(np.median([f.base for f in fits]))

    def regress(powers: tuple[tuple[int, int], ...], target: Array) -> Array:
        design = terms.design(powers, n, bp)
        ridge = 1e-6 * np.eye(design.shape[1])
        return np.asarray(np.linalg.solve(design.T @ design + ridge, design.T @ target), dtype=np.float64)

    parts = [np.array([base]), regress(terms.ceiling, ceiling), regress(terms.midpoint, np.log(half))]
    if family is HILL:
        parts.append(np.concatenate([[np.log(1.5)], np.zeros(len(terms.efficiency) - 1)]))
    else:
        parts[2][0] -= np.log(np.log(2.0))
    return np.concatenate(parts)


def _half_rise(fit: CurveFit) -> float:
    grid_C = np.geomspace(fit.first, fit.last * 10, 200)
    values_C = fit.at(grid_C)
    return float(grid_C[np.searchsorted(values_C, 0.5 * (fit.base + fit.ceiling)).clip(0, 199)])


def _replicates(fitted: _Fitted, data: _Data, replicates: int, rng: np.random.Generator) -> Array:
    resampled_BI = np.empty((replicates, len(fitted.residual_I)))
    for run in np.unique(data.run_I):
        rows = np.flatnonzero(data.run_I == run)
        resampled_BI[:, rows] = block_resample(fitted.residual_I[rows], 1, replicates, rng)
    step_QI = np.linalg.pinv(fitted.jacobian_IQ, rcond=1e-8)
    return np.asarray(fitted.coefficients_Q + resampled_BI @ step_QI.T)


def _leave_one_out(fitted: _Fitted, terms: Terms, data: _Data) -> tuple[LeftOut, ...]:
    values = np.unique(data.n_I)
    if len(values) < 4:
        return ()
    out = []
    for n in values:
        rest, held = data.where(data.n_I != n), data.where(data.n_I == n)
        fewer = replace(_terms(rest), centre=terms.centre)
        start_Q = fitted.coefficients_Q[_kept(fitted.family, terms, fewer)]
        refit = _fit(fitted.family, fewer, rest, start_Q)
        value_I, _ = _model(fitted.family, fewer, refit.coefficients_Q, held.compute_I, held.n_I, held.bp_I)
        error_I = value_I - held.values_I
        last_I = np.append(np.diff(held.run_I) != 0, True)
        out.append(
            LeftOut(
                rollouts_per_problem=int(n),
                rmse=float(np.sqrt(np.mean(error_I**2))),
                final_error=float(np.abs(error_I[last_I]).mean()),
                edge=bool(n in (values[0], values[-1])),
            )
        )
    return tuple(out)
