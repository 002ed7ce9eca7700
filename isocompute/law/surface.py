"""The joint law R(C; n, Bp) in numbers: its trend along log n and log Bp, and how well it predicts an n left out.

The posterior has a curve for every configuration (`law.model`). Its trend is the polynomial in log2 n and log2 Bp
through their ceilings, log midpoints and log efficiencies, in every sample. Leaving out one n, its curve is predicted
from the samples of the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from isocompute.core.arrays import Array
from isocompute.law.fits import CurveFit

_Powers = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class LeftOut:
    """Error of the law without one n, at the runs with that n."""

    rollouts_per_problem: int
    rmse: float
    final_error: float
    """Mean absolute error at the last compute of its configurations."""
    edge: bool
    """Whether it is the smallest or largest n, whose prediction is an extrapolation."""


@dataclass(frozen=True)
class Surface:
    """The trend of the joint law."""

    form: str
    unit: float
    centre: tuple[float, float]
    terms: dict[str, _Powers]
    """Powers of the centred (log2 n, log2 Bp) in ceiling, log midpoint and log efficiency."""
    coefficients_Q: Array
    """The base, then the coefficients of each."""
    intervals_Q2: Array
    rmse: float
    left_out: tuple[LeftOut, ...]

    def to_json(self) -> dict[str, Any]:
        """The keys of `surface` in `fit --json`."""
        return {
            "form": self.form,
            "unit": self.unit,
            "centre": self.centre,
            "terms": self.terms,
            "coefficients": self.coefficients_Q.tolist(),
            "coefficient_intervals": self.intervals_Q2.tolist(),
            "rmse": self.rmse,
            "leave_one_out": [asdict(left) for left in self.left_out],
        }


def surface_of(fits: Sequence[CurveFit]) -> Surface | None:
    """The trend of configurations that share a posterior; None if they do not, or have fewer than three n."""
    posterior = fits[0].posterior
    if any(fit.posterior is not posterior or None in fit.setting for fit in fits):
        return None
    log_bp_S, log_n_S = np.log2(np.array([fit.setting for fit in fits], dtype=np.float64)).T
    if len(np.unique(log_n_S)) < 3:
        return None
    centre = float(log_n_S.mean()), float(log_bp_S.mean())
    u_S, v_S = log_n_S - centre[0], log_bp_S - centre[1]
    linear: _Powers = ((0, 0), (1, 0)) + (((0, 1),) if np.ptp(v_S) else ())
    square: _Powers = ((2, 0),) if len(np.unique(u_S)) > 3 else ()
    unit = posterior.first
    own = [fit.index for fit in fits]
    parts = {
        "ceiling": (linear + square, posterior.ceiling_SB[own]),
        "midpoint": (linear + square, posterior.midpoint_SB[own] - np.log(unit)),
        "efficiency": (linear, posterior.exponent_SB[own]),
    }
    draws = [posterior.base_RB[:1]]
    for powers, values_SB in parts.values():
        design_SQ = np.stack([u_S**i * v_S**j for i, j in powers], axis=1)
        draws.append(np.linalg.lstsq(design_SQ, values_SB, rcond=None)[0])
    draws_QB = np.concatenate(draws)
    return Surface(
        form=fits[0].form,
        unit=unit,
        centre=centre,
        terms={name: powers for name, (powers, _) in parts.items()},
        coefficients_Q=draws_QB.mean(axis=1),
        intervals_Q2=np.percentile(draws_QB, [2.5, 97.5], axis=1).T,
        rmse=float(np.sqrt(np.mean([fit.rmse**2 for fit in fits]))),
        left_out=_leave_one_out(fits),
    )


def _leave_one_out(fits: Sequence[CurveFit]) -> tuple[LeftOut, ...]:
    """Errors of predicting each n from the others; empty with fewer than four n."""
    tried = sorted({fit.setting[1] or 0 for fit in fits})
    if len(tried) < 4:
        return ()
    out = []
    for n in tried:
        rest = fits[0].posterior.subset([fit.index for fit in fits if fit.setting[1] != n])
        errors, final = [], []
        for fit in fits:
            bp, own = fit.setting
            if own != n:
                continue
            for curve in fit.curves:
                error_C = rest.between(bp or 1, n, curve.compute_C).mean(axis=1) - curve.values_C
                errors.append(error_C)
                final.append(abs(float(error_C[-1])))
        rmse = float(np.sqrt(np.mean(np.concatenate(errors) ** 2)))
        out.append(LeftOut(n, rmse, float(np.mean(final)), n in (tried[0], tried[-1])))
    return tuple(out)
