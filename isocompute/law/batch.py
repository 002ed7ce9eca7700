"""Rows for the solver, and what it finds for them."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from isocompute.core.arrays import Array, Bools, Ints

__all__ = ["Batch", "Fits"]


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
    upper: float | Array = np.inf
    """What ceilings may be at most: of all groups, or of each."""
    pinned: bool = False
    """Hold every ceiling at `upper` instead of at or below it."""

    @property
    def upper_R(self) -> Array:
        """The bound of every row."""
        return np.broadcast_to(np.asarray(self.upper, dtype=np.float64), self.span_G.shape)[self.group_R]


@dataclass(frozen=True)
class Fits:
    """The solution of each row; compute-like parameters are in the group's normalised unit."""

    theta_RK: Array
    base_R: Array
    ceiling_R: Array
    sse_R: Array

    def __getitem__(self, rows: slice | Ints | Bools) -> Fits:
        return Fits(self.theta_RK[rows], self.base_R[rows], self.ceiling_R[rows], self.sse_R[rows])

    def updated(self, rows: Ints, others: Fits) -> Fits:
        """The same with other solutions in some rows."""
        out = Fits(self.theta_RK.copy(), self.base_R.copy(), self.ceiling_R.copy(), self.sse_R.copy())
        for field in fields(self):
            getattr(out, field.name)[rows] = getattr(others, field.name)
        return out
