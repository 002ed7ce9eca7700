"""Runs of one setting that were evaluated at the same compute: to a fit they are their mean, as often as they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from isocompute.core.arrays import Array
from isocompute.law.condense import Condensed, condense
from isocompute.law.curve import Curve
from isocompute.law.product import product

__all__ = ["Strand", "strands"]


@dataclass(frozen=True)
class Strand:
    """Such runs, by their place in the setting, and the points that stand for theirs."""

    runs: tuple[int, ...]
    compute_C: Array
    condensed: Condensed | None
    """None where all points are kept."""

    @property
    def steepest(self) -> float:
        """The largest steepness of a curve that may be fitted to the condensed points."""
        return np.inf if self.condensed is None else self.condensed.steepest

    @property
    def compute_M(self) -> Array:
        """Where the condensed points lie."""
        return self.compute_C if self.condensed is None else self.condensed.compute_M

    @property
    def weights_M(self) -> Array:
        """What they weigh, in points."""
        return np.ones(len(self.compute_C)) if self.condensed is None else self.condensed.weights_M

    def values_M(self, values_BC: Array) -> Array:
        """Their values, for rows of values at all points."""
        return values_BC if self.condensed is None else product(values_BC, self.condensed.project_CM)


def strands(curves: Sequence[Curve]) -> list[Strand]:
    """The strands of a setting, in the order in which they begin."""
    runs: dict[bytes, list[int]] = {}
    for i, curve in enumerate(curves):
        runs.setdefault(curve.compute_C.tobytes(), []).append(i)
    out = []
    for mine in runs.values():
        compute_C = curves[mine[0]].compute_C
        out.append(Strand(tuple(mine), compute_C, condense(compute_C)))
    return out
