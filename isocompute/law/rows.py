"""Groups of curves laid out for the solver: the seeds of one setting are fitted together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from isocompute.core.arrays import Array, Bools, Ints
from isocompute.law.curve import Curve
from isocompute.law.families import Family
from isocompute.law.solver import Batch, Fits, evaluate, solve
from isocompute.law.strands import Strand, strands

__all__ = ["Rows", "padded"]


@dataclass(frozen=True)
class Rows:
    """One padded row a group: its points (`_N`, run after run) and their distinct compute (`_C`, strand after strand).

    Compute is in units of the group's first positive compute.
    """

    groups: list[tuple[Curve, ...]]
    strands_G: list[list[Strand]]
    unit_G: Array
    span_G: Array
    """Last compute over first."""
    compute_GC: Array
    values_GN: Array
    real_GN: Bools
    """False where a row is padding."""
    column_GN: Ints
    """The place of each point's compute."""

    @classmethod
    def of(cls, groups: Sequence[Sequence[Curve]]) -> Rows:
        """Lay groups out."""
        strands_G = [strands(group) for group in groups]
        compute_G = [np.concatenate([strand.compute_C for strand in mine]) for mine in strands_G]
        unit_G = np.array([line[line > 0].min() for line in compute_G])
        return cls(
            [tuple(group) for group in groups],
            strands_G,
            unit_G,
            np.maximum(np.array([line.max() for line in compute_G]) / unit_G, 1.0 + 1e-9),
            padded([line / unit for line, unit in zip(compute_G, unit_G, strict=True)], 1.0),
            padded([np.concatenate([c.values_C for c in group]) for group in groups], 0.0),
            padded([np.ones(sum(len(c.compute_C) for c in group)) for group in groups], 0.0) > 0,
            padded([_columns(mine) for mine in strands_G], 0.0).astype(np.int64),
        )

    def solve(self, family: Family, weights_GN: Array, upper_G: Array) -> Fits:
        """Fit every group, its points weighted. Points at the same compute are fitted as their mean, which is the same
        up to the squares around it.
        """
        shape = self.compute_GC.shape
        flat_GN = self.column_GN + np.arange(len(self.groups))[:, None] * shape[1]

        def total(each_GN: Array) -> Array:
            sums = np.bincount(flat_GN.ravel(), weights=each_GN.ravel(), minlength=shape[0] * shape[1])
            return np.asarray(sums, dtype=np.float64).reshape(shape)

        weights_GC = total(weights_GN)
        mean_GC = total(weights_GN * self.values_GN) / np.where(weights_GC > 0, weights_GC, 1.0)
        every = np.arange(len(self.groups), dtype=np.int64)
        fits = solve(family, Batch(self.compute_GC, self.span_G, every, mean_GC, weights_GC, upper_G))
        around_GN = self.values_GN - np.take_along_axis(mean_GC, self.column_GN, axis=1)
        within_G = np.einsum("gn,gn,gn->g", weights_GN, around_GN, around_GN)
        return Fits(fits.theta_RK, fits.base_R, fits.ceiling_R, fits.sse_R + within_G)

    def at(self, family: Family, fits: Fits) -> Array:
        """The fitted curves at all points."""
        return np.take_along_axis(evaluate(family, fits, self.compute_GC), self.column_GN, axis=1)


def padded(lines: Sequence[Array], value: float) -> Array:
    """Lines of different lengths as one array."""
    out = np.full((len(lines), max(len(line) for line in lines)), value)
    for row, line in zip(out, lines, strict=True):
        row[: len(line)] = line
    return out


def _columns(mine: Sequence[Strand]) -> Array:
    """The column of every point of a group, run after run."""
    first, parts = 0, {}
    for strand in mine:
        for run in strand.runs:
            parts[run] = np.arange(first, first + len(strand.compute_C), dtype=np.float64)
        first += len(strand.compute_C)
    return np.concatenate([parts[run] for run in sorted(parts)])
