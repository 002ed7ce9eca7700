"""The joint law: one surface R(C; n, Bp) for settings that were run and for those that were not.

    R = R0 + (A - R0) · g(C; Cmid, B)

with one base R0 for all runs (they start from the same model) and a ceiling A, a midpoint log Cmid and an efficiency
log B that are low-degree polynomials in log2 n and log2 Bp; the exponential form has no B. `surface_fit` fits it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from isocompute.core.arrays import Array
from isocompute.law.families import Family

__all__ = ["Design", "LeftOut", "Surface", "Terms"]

_BOX = ((-30.0, 60.0), (float(np.log(0.1)), float(np.log(20.0))))
"""Where log Cmid (in units of the first compute) and log B are held."""


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
        values_1I = self._values(self.coefficients_Q[None], compute, rollouts_per_problem, problems_per_batch)
        return np.asarray(values_1I[0])

    def replicates_at(self, compute: Array, rollouts_per_problem: Array, problems_per_batch: Array) -> Array:
        """The same over the bootstrap, replicates first."""
        return self._values(self.replicates_BQ, compute, rollouts_per_problem, problems_per_batch)

    def _values(self, coefficients_BQ: Array, compute: Array, rollouts: Array, problems: Array) -> Array:
        c, n, bp = np.broadcast_arrays(compute, rollouts, problems)
        design = Design.of(self.family, self.terms, n.ravel(), bp.ravel())
        g_BI = self.family.shape(self.family.coordinate(c.ravel() / self.unit), design.theta_KBI(coefficients_BQ))
        base_B1, ceiling_BI = coefficients_BQ[:, :1], design.ceiling_BI(coefficients_BQ)
        values_BI = base_B1 + (ceiling_BI - base_B1) * g_BI
        return np.minimum(values_BI, self.upper).reshape(len(coefficients_BQ), *c.shape)


@dataclass(frozen=True)
class Design:
    """What the coefficients of a surface mean at some settings: its powers of n and Bp there."""

    ceiling_IQ: Array
    shape_KIQ: tuple[Array, ...]
    """For the midpoint and, where the family has one, the efficiency."""

    @classmethod
    def of(cls, family: Family, terms: Terms, n_I: Array, bp_I: Array) -> Design:
        """The design at (n, Bp)."""
        used = (terms.midpoint, terms.efficiency)[: len(family.parameters)]
        return cls(terms.design(terms.ceiling, n_I, bp_I), tuple(terms.design(powers, n_I, bp_I) for powers in used))

    def ceiling_BI(self, coefficients_BQ: Array) -> Array:
        """A for each row of coefficients."""
        return np.asarray(coefficients_BQ[:, 1 : 1 + self.ceiling_IQ.shape[1]] @ self.ceiling_IQ.T)

    def theta_KBI(self, coefficients_BQ: Array) -> Array:
        """θ of the family, inside what a curve may be."""
        start, out = 1 + self.ceiling_IQ.shape[1], []
        for design_IQ, (low, high) in zip(self.shape_KIQ, _BOX, strict=False):
            stop = start + design_IQ.shape[1]
            out.append(np.clip(coefficients_BQ[:, start:stop] @ design_IQ.T, low, high))
            start = stop
        return np.stack(out)
