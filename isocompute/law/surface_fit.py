"""Fitting the joint law R(C; n, Bp) of `surface` to the points of all settings.

R0 and the coefficients of A enter linearly; the others are found by least squares from the fits of the single settings,
to the points that stand for each setting's (`strands`), or to all of them where a form is too steep for those. The
form, Hill or exponential, is chosen by AIC.

The error that matters is that of a setting nobody ran, so every n is left out once and predicted from the rest.
Replicates are one Gauss-Newton step from the estimate for resampled residuals, and for settings moved as far as few
seeds may be off: cheap enough for a planner to use a thousand surfaces.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from isocompute.core.arrays import Array, Bools
from isocompute.law.bootstrap import block_resample
from isocompute.law.families import EXPONENTIAL, HILL, Family
from isocompute.law.fits import CurveFit
from isocompute.law.product import product
from isocompute.law.strands import Strand, strands
from isocompute.law.surface import Design, LeftOut, Surface, Terms

__all__ = ["fit_surface"]


def fit_surface(fits: Sequence[CurveFit], *, upper: float, replicates: int = 1000, seed: int = 0) -> Surface | None:
    """Fit the joint law to the settings' points, or None where fewer than three n were run."""
    known = [fit for fit in fits if fit.setting[1] is not None]
    if len({fit.setting[1] for fit in known}) < 3 or len({fit.setting[0] is None for fit in known}) > 1:
        return None
    strands_S = [strands(fit.curves) for fit in known]
    data = _Data.of(known, strands_S)
    every = _Data.of(known, [[replace(strand, condensed=None) for strand in mine] for mine in strands_S])
    best = _best(known, data, every)
    if not best.holds(data.few):
        data = every
    residual_I = data.whole.values_I - best.at(data.whole)
    return Surface(
        family=best.family,
        terms=best.terms,
        unit=data.unit,
        coefficients_Q=best.coefficients_Q,
        replicates_BQ=_replicates(best, known, data, residual_I, replicates, np.random.default_rng(seed)),
        rmse=float(np.sqrt(np.mean(residual_I**2))),
        left_out=_leave_one_out(best, data, every),
        upper=upper,
    )


@dataclass(frozen=True)
class _Points:
    """Points of all settings in one long table; compute in units of the first."""

    compute_I: Array
    n_I: Array
    bp_I: Array
    values_I: Array
    weights_I: Array
    run_I: Array
    """The number of the run, or of the strand."""
    steepest_I: Array

    def where(self, keep_I: Bools) -> _Points:
        return _Points(*(getattr(self, field.name)[keep_I] for field in fields(self)))


@dataclass(frozen=True)
class _Data:
    """The runs' points, and those that stand for them."""

    unit: float
    whole: _Points
    few: _Points
    strands: tuple[Strand, ...]
    """All settings', one after another; their `runs` count through all settings too."""

    @classmethod
    def of(cls, fits: Sequence[CurveFit], strands_S: Sequence[Sequence[Strand]]) -> _Data:
        curves = [curve for fit in fits for curve in fit.curves]
        first_S = np.cumsum([0, *[len(fit.curves) for fit in fits]]).tolist()
        every = tuple(
            replace(strand, runs=tuple(first + run for run in strand.runs))
            for first, mine in zip(first_S, strands_S, strict=False)
            for strand in mine
        )
        unit = min(float(c.compute_C[c.compute_C > 0].min()) for c in curves)
        alone = [Strand((run,), curve.compute_C, None) for run, curve in enumerate(curves)]
        return cls(unit, _points(fits, alone, unit), _points(fits, every, unit), every)


def _points(fits: Sequence[CurveFit], every: Sequence[Strand], unit: float) -> _Points:
    curves = [curve for fit in fits for curve in fit.curves]
    sizes = [len(strand.compute_M) for strand in every]
    mean = [np.mean([curves[run].values_C for run in strand.runs], axis=0) for strand in every]
    leading = [curves[strand.runs[0]] for strand in every]
    return _Points(
        np.concatenate([strand.compute_M for strand in every]) / unit,
        np.repeat([float(c.rollouts_per_problem or 1) for c in leading], sizes),
        np.repeat([float(c.problems_per_batch or 1) for c in leading], sizes),
        np.concatenate([s.values_M(values_C[None])[0] for s, values_C in zip(every, mean, strict=True)]),
        np.concatenate([len(strand.runs) * strand.weights_M for strand in every]),
        np.repeat(np.arange(len(every), dtype=np.float64), sizes),
        np.repeat([strand.steepest for strand in every], sizes),
    )


def _terms(points: _Points) -> Terms:
    """As many powers as the number of values run can hold."""
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


@dataclass(frozen=True)
class _Fitted:
    family: Family
    terms: Terms
    coefficients_Q: Array

    def at(self, points: _Points) -> Array:
        return _model(self.family, self._design(points), self.coefficients_Q, points)[0]

    def jacobian(self, points: _Points) -> Array:
        """Derivatives by the coefficients, weighted as the residuals are."""
        return _model(self.family, self._design(points), self.coefficients_Q, points)[1] * _root(points)[:, None]

    def holds(self, points: _Points) -> bool:
        """Whether the points stand for all, to curves as steep as these."""
        theta_KI = self._design(points).theta_KBI(self.coefficients_Q[None])[:, 0]
        return bool((self.family.steepness(theta_KI) <= points.steepest_I).all())

    def _design(self, points: _Points) -> Design:
        return Design.of(self.family, self.terms, points.n_I, points.bp_I)


def _model(family: Family, design: Design, coefficients_Q: Array, points: _Points) -> tuple[Array, Array]:
    """Values and their derivatives by the coefficients (columns: R0, ceiling, midpoint, efficiency)."""
    x_I, theta_KI = family.coordinate(points.compute_I), design.theta_KBI(coefficients_Q[None])[:, 0]
    g_I = family.shape(x_I, theta_KI)
    base, ceiling_I = coefficients_Q[0], design.ceiling_BI(coefficients_Q[None])[0]
    columns = [(1.0 - g_I)[:, None], design.ceiling_IQ * g_I[:, None]]
    for shape_IQ, slope_I in zip(design.shape_KIQ, family.slopes(x_I, theta_KI, g_I), strict=True):
        columns.append(shape_IQ * ((ceiling_I - base) * slope_I)[:, None])
    return base + (ceiling_I - base) * g_I, np.concatenate(columns, axis=1)


def _root(points: _Points) -> Array:
    return np.asarray(np.sqrt(points.weights_I))


def _best(fits: Sequence[CurveFit], data: _Data, every: _Data) -> _Fitted:
    """The better of the two forms."""
    terms = _terms(data.whole)
    both = [
        _fit(family, terms, data.few, every.few, _start(family, terms, fits, data.unit))
        for family in (HILL, EXPONENTIAL)
    ]
    return min(both, key=lambda fitted: _aic(fitted, data.whole))


def _aic(fitted: _Fitted, points: _Points) -> float:
    error = float(np.mean((points.values_I - fitted.at(points)) ** 2))
    return len(points.values_I) * float(np.log(error + 1e-30)) + 2 * len(fitted.coefficients_Q)


def _fit(family: Family, terms: Terms, few: _Points, every: _Points, start_Q: Array) -> _Fitted:
    """The fit to few points that stand for `every`, or to those where it is too steep."""
    fitted = _fit_to(family, terms, few, start_Q)
    return fitted if fitted.holds(few) else _fit_to(family, terms, every, start_Q)


def _fit_to(family: Family, terms: Terms, points: _Points, start_Q: Array) -> _Fitted:
    from scipy.optimize import least_squares  # a quarter of a second to load: late, for those who need no joint law

    design, root_I = Design.of(family, terms, points.n_I, points.bp_I), _root(points)

    def residual(q: Array) -> Array:
        return np.asarray((_model(family, design, q, points)[0] - points.values_I) * root_I)

    def jacobian(q: Array) -> Array:
        return np.asarray(_model(family, design, q, points)[1] * root_I[:, None])

    solution = least_squares(residual, start_Q, jac=jacobian, method="lm", x_scale="jac", max_nfev=200)
    return _Fitted(family, terms, np.asarray(solution.x, dtype=np.float64))


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


def _replicates(
    fitted: _Fitted,
    fits: Sequence[CurveFit],
    data: _Data,
    residual_I: Array,
    replicates: int,
    rng: np.random.Generator,
) -> Array:
    """Coefficients after one Gauss-Newton step, which is linear in each run's residuals."""
    step_QM = np.linalg.pinv(fitted.jacobian(data.few), rcond=1e-8) * _root(data.few)
    strand_of = {run: strand for strand in data.strands for run in strand.runs}
    step_of = {}
    for number, strand in enumerate(data.strands):
        step_MQ = step_QM[:, data.few.run_I == number].T / len(strand.runs)
        step_of[strand.runs] = step_MQ if strand.condensed is None else strand.condensed.project_CM @ step_MQ
    out_BQ = np.tile(fitted.coefficients_Q, (replicates, 1))
    ends = np.flatnonzero(np.diff(data.whole.run_I)) + 1
    for run, residual_C in enumerate(np.split(residual_I, ends)):
        out_BQ += product(block_resample(residual_C, 1, replicates, rng), step_of[strand_of[run].runs])
    run = 0
    for fit in fits:
        moved_Q = np.zeros(out_BQ.shape[1])
        for curve in fit.curves:
            moved_Q += fit.risen(curve.compute_C) @ step_of[strand_of[run].runs]
            run += 1
        out_BQ += fit.seed_error * rng.standard_normal((replicates, 1)) * moved_Q
    return out_BQ


def _leave_one_out(fitted: _Fitted, data: _Data, every: _Data) -> tuple[LeftOut, ...]:
    values = np.unique(data.whole.n_I)
    if len(values) < 4:
        return ()
    out = []
    for n in values:
        rest, all_rest = (points.where(points.n_I != n) for points in (data.few, every.few))
        held = data.whole.where(data.whole.n_I == n)
        fewer = replace(_terms(rest), centre=fitted.terms.centre)
        start_Q = fitted.coefficients_Q[_kept(fitted.family, fitted.terms, fewer)]
        error_I = _fit(fitted.family, fewer, rest, all_rest, start_Q).at(held) - held.values_I
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
