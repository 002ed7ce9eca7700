"""A long curve as a few points that say the same to a fit.

Least squares sees a curve only through sums over its points. For N points at u = log C there are m < N points (the
nodes of Gauss's rule for the N) with weights and values such that the weighted sum of squares around *every* polynomial
of degree < m in u is that of the N points, up to a constant: the weights are Gauss's, the values those of the
polynomial through the curve. (With Q the first m orthonormal polynomials on the points, Golub and Welsch 1969:
Qᵀ diag(u) Q = Z diag(nodes) Zᵀ; the columns of E = Q Z are the polynomials that vanish at all nodes but one.)

The curves of `families` are not polynomials, but close to them. The nearest pole of a Hill curve lies π/B off the real
axis of u; over a range of length L its slopes are then polynomials to about `_FACTOR` · exp(-m · asinh(2π / (B · L))),
relative to themselves, and that is also the error of θ in standard errors. `Condensed.steepest` is the B up to which it
is below `TOLERANCE`. `Family.steepness` says what the B of a curve is, of the other two families too.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np

from isocompute.core.arrays import Array

__all__ = ["NODES", "TOLERANCE", "Condensed", "condense"]

NODES = 32
_WORTH = 1.5
"""A curve is condensed if it has this many times as many points at different compute."""
TOLERANCE = 1e-3
"""Of a standard error."""
_FACTOR = 50.0
"""Measured on evenly and on log-spaced points; see tests/law/test_condense.py."""
_NO_WEIGHT = 1e-9
_COLLAPSED = 1e-6
"""Below this norm the next polynomial vanishes on the points but for rounding."""


@dataclass(frozen=True)
class Condensed:
    """The points that stand for a curve's, at any values that the curve may have."""

    compute_M: Array
    weights_M: Array
    project_CM: Array
    """`values_C @ project_CM` are the values of the condensed points."""
    steepest: float
    """The largest `Family.steepness` of a curve that may be fitted to them."""


def condense(compute_C: Array) -> Condensed | None:
    """The points that stand for those at `compute_C`; None where they are too few for it to be worth it, or so
    close together that rounding makes them too few.

    A point at compute 0, the base model's, stays as it is.
    """
    return _condense(compute_C.tobytes())


@functools.lru_cache(maxsize=256)  # the runs of a study share a few grids of compute
def _condense(grid: bytes) -> Condensed | None:
    compute_C = np.frombuffer(grid)
    after = np.flatnonzero(compute_C > 0)
    u_C = np.log(compute_C[after])
    if len(np.unique(u_C)) < _WORTH * NODES:
        return None
    low, length = float(u_C.min()), float(np.ptp(u_C))
    x_C = 2.0 * (u_C - low) / length - 1.0
    q_CM = _polynomials(x_C, NODES)
    if q_CM is None:
        return None
    nodes_M, z_MM = np.linalg.eigh(q_CM.T @ (x_C[:, None] * q_CM))
    e_CM = q_CM @ z_MM
    root_M = e_CM.sum(axis=0)
    # A node in a gap between the points stands for nothing.
    kept_M = root_M**2 > _NO_WEIGHT
    before = np.flatnonzero(compute_C <= 0)
    base, nodes = len(before), int(kept_M.sum())
    project_CM = np.zeros((len(compute_C), base + nodes))
    project_CM[before, np.arange(base)] = 1.0
    project_CM[after, base:] = e_CM[:, kept_M] / root_M[kept_M]
    return Condensed(
        np.concatenate([compute_C[before], np.exp(low + 0.5 * length * (nodes_M[kept_M] + 1.0))]),
        np.concatenate([np.ones(base), root_M[kept_M] ** 2]),
        project_CM,
        2.0 * math.pi / (length * math.sinh(math.log(_FACTOR / TOLERANCE) / NODES)),
    )


def _polynomials(x_C: Array, count: int) -> Array | None:
    """Orthonormal polynomials of degree 0, 1, … on the points (Lanczos, orthogonalised twice); None if too few."""
    q_CM = np.empty((len(x_C), count))
    q_CM[:, 0] = 1.0 / math.sqrt(len(x_C))
    for k in range(1, count):
        next_C = x_C * q_CM[:, k - 1]
        for _ in range(2):
            next_C -= q_CM[:, :k] @ (q_CM[:, :k].T @ next_C)
        norm = float(np.linalg.norm(next_C))
        if norm < _COLLAPSED:
            return None
        q_CM[:, k] = next_C / norm
    return q_CM
