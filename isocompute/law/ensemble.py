"""Bootstrap replicates of one curve."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from isocompute.core.arrays import Array, Ints
from isocompute.core.formatting import plural
from isocompute.law.families import FAMILIES
from isocompute.law.solver import Fits, evaluate

__all__ = ["Ensemble"]


@dataclass(frozen=True)
class Ensemble:
    """Bootstrap replicates of one curve, each with the family that was drawn for it."""

    unit: float
    family_B: Ints
    theta_BK: Array
    base_B: Array
    ceiling_B: Array

    def __repr__(self) -> str:
        return f"Ensemble({plural(len(self.family_B), 'replicate')})"

    def at(self, compute_C: Array) -> Array:
        """Values of every replicate (rows) at some compute."""
        out_BC = np.empty((len(self.family_B), len(compute_C)))
        for index, family in enumerate(FAMILIES):
            rows = np.flatnonzero(self.family_B == index)
            if len(rows):
                fits = Fits(
                    self.theta_BK[rows, : len(family.parameters)],
                    self.base_B[rows],
                    self.ceiling_B[rows],
                    np.zeros(len(rows)),
                )
                out_BC[rows] = evaluate(family, fits, compute_C[None, :] / self.unit)
        return out_BC
