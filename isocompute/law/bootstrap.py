"""The bootstrap of many curves at once: what a repetition of the study would redraw, fitted again.

- *points*: residuals of a run are resampled in circular blocks whose length follows their autocorrelation (1 where
  there is none), inflated for the fitted parameters (N / (N - p)) and to Student's t; glitches enter clipped;
- *seeds*: where a setting has several runs, their deviations from the pooled curve are drawn as whole curves, as far
  as few seeds may be off (`seeds`);
- *the form*: families are drawn in proportion to their Akaike weight, so an interval covers the doubt about the form
  too.

Seeds that were evaluated at the same compute are fitted as their mean, which is the same, and long curves as the few
points that say the same (`condense`); replicates that are too steep for those are fitted to all points.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from isocompute.core.arrays import Array, Ints
from isocompute.law.curve import median
from isocompute.law.ensemble import Ensemble
from isocompute.law.families import FAMILIES, Family
from isocompute.law.rows import Rows, padded
from isocompute.law.seeds import Luck
from isocompute.law.solver import Batch, Fits, solve
from isocompute.law.student import widening

__all__ = ["FLOOR", "HUBER", "block_length", "block_resample", "bootstrap", "seed_curves"]

HUBER = 2.0
"""Residuals further out than this many noise levels are glitches."""
FLOOR = 0.3
"""The noise scale is at least this share of the residuals' root mean square: more than half of them may be equal."""
_AT_ONCE = 5_000_000
"""Values resampled at one time: those of thousands of runs would not fit memory together."""
_KMAX = max(len(family.parameters) for family in FAMILIES)


def bootstrap(
    rows: Rows,
    fits_F: Sequence[Fits],
    weights_FG: Array,
    *,
    seeds: Sequence[Mapping[int, Array]],
    luck: Sequence[Mapping[int, Luck]],
    upper_G: Array,
    replicates: int,
    rng: np.random.Generator,
) -> list[Ensemble]:
    """Replicates of every group, around its fits with all families (`fits_F`), which weigh `weights_FG`; `seeds` are
    the curves of single seeds (`seed_curves`) and `luck` how far groups of several may be off, by family too.
    """
    n_groups, width = rows.values_GN.shape
    family_GB = np.stack([_draw_families(weights_FG[:, g], replicates, rng) for g in range(n_groups)])
    theta_GBK = np.zeros((n_groups, replicates, _KMAX))
    base_GB, ceiling_GB = np.empty((n_groups, replicates)), np.empty((n_groups, replicates))
    few = _Few.of(rows)
    pooled_F = [rows.at(family, fits) for family, fits in zip(FAMILIES, fits_F, strict=True)]
    stride = max(1, _AT_ONCE // (max(replicates, 1) * width))
    for first in range(0, n_groups, stride):
        part = np.arange(first, min(first + stride, n_groups), dtype=np.int64)
        for index, family in enumerate(FAMILIES):
            drawn_GB = family_GB[part] == index
            if not drawn_GB.any():
                continue
            resampled = [
                _resample(rows, g, pooled_F[index][g], seeds[index].get(g), luck[index].get(g), family, count, rng)
                for g, count in zip(part.tolist(), drawn_GB.sum(axis=1).tolist(), strict=True)
                if count
            ]
            solved = _solve(family, rows, few, resampled, upper_G)
            where = np.zeros_like(family_GB, dtype=np.bool_)
            where[part] = drawn_GB
            theta_GBK[where, : len(family.parameters)] = solved.theta_RK
            base_GB[where], ceiling_GB[where] = solved.base_R, solved.ceiling_R
    return [
        Ensemble(float(rows.unit_G[g]), family_GB[g], theta_GBK[g], base_GB[g], ceiling_GB[g]) for g in range(n_groups)
    ]


def _draw_families(weights_F: Array, replicates: int, rng: np.random.Generator) -> Ints:
    """Systematic sampling: the counts are within one of weight × replicates, the order is random."""
    marks = (np.arange(replicates) + rng.random()) / max(replicates, 1)
    drawn = np.searchsorted(np.cumsum(weights_F)[:-1], marks, side="right")
    return np.asarray(rng.permutation(drawn), dtype=np.int64)


def seed_curves(rows: Rows, plain_F: Sequence[Fits], upper_G: Array) -> list[dict[int, Array]]:
    """For groups of several seeds: each seed's own curve at its own points, by family and group.

    `plain_F` are the groups' unweighted fits: a seed that is also a group of its own has its curve there.
    """
    several = {g: group for g, group in enumerate(rows.groups) if len(group) > 1}
    alone = {id(group[0]): g for g, group in enumerate(rows.groups) if len(group) == 1}
    new = [(curve, g) for g, group in several.items() for curve in group if id(curve) not in alone]
    places = alone | {id(curve): len(rows.groups) + i for i, (curve, _) in enumerate(new)}
    out: list[dict[int, Array]] = [{} for _ in FAMILIES]
    for family, plain, curves in zip(FAMILIES, plain_F, out, strict=True):
        at_points = list(rows.at(family, plain))
        if new:
            extra = Rows.of([[curve] for curve, _ in new])
            held_G = upper_G[[g for _, g in new]]
            at_points += list(extra.at(family, extra.solve(family, extra.real_GN.astype(np.float64), held_G)))
        for g, group in several.items():
            curves[g] = np.concatenate([at_points[places[id(c)]][: len(c.compute_C)] for c in group])
    return out


@dataclass(frozen=True)
class _Few:
    """The condensed points to which replicates are fitted, strand after strand."""

    compute_GM: Array
    steepest_G: Array

    @classmethod
    def of(cls, rows: Rows) -> _Few:
        lines = [np.concatenate([s.compute_M for s in mine]) for mine in rows.strands_G]
        return cls(
            padded([line / unit for line, unit in zip(lines, rows.unit_G, strict=True)], 1.0),
            np.array([min(s.steepest for s in mine) for mine in rows.strands_G]),
        )


@dataclass(frozen=True)
class _Resampled:
    """Replicates of one group under one family: its strands' mean values."""

    group: int
    values_TBC: list[Array]

    def __len__(self) -> int:
        return len(self.values_TBC[0])


def _resample(
    rows: Rows,
    g: int,
    pooled_N: Array,
    own_N: Array | None,
    luck: Luck | None,
    family: Family,
    count: int,
    rng: np.random.Generator,
) -> _Resampled:
    group = rows.groups[g]
    pooled_N = pooled_N[: sum(len(c.compute_C) for c in group)]
    own_N = pooled_N if own_N is None else own_N
    centre_BN = pooled_N[None] if luck is None else pooled_N + luck.draw(count, rng)
    values_S, start = [], 0
    for curve in group:
        part = slice(start, start + len(curve.compute_C))
        values_BC = block_resample(curve.values_C - own_N[part], family.free, count, rng)
        values_BC += centre_BN[:, part]
        values_S.append(values_BC)
        start = part.stop
    return _Resampled(g, [_mean([values_S[s] for s in strand.runs]) for strand in rows.strands_G[g]])


def _mean(values_S: list[Array]) -> Array:
    return values_S[0] if len(values_S) == 1 else np.asarray(np.mean(values_S, axis=0))


def _solve(family: Family, rows: Rows, few: _Few, resampled: list[_Resampled], upper_G: Array) -> Fits:
    """Fit replicates to the condensed points, and those that are too steep for them to all points."""
    group_R = np.concatenate([np.full(len(each), each.group) for each in resampled])
    solved = solve(family, Batch(few.compute_GM, rows.span_G, group_R, *_condensed(rows, few, resampled), upper_G))
    steep = np.flatnonzero(family.steepness(solved.theta_RK.T) > few.steepest_G[group_R])
    if not len(steep):
        return solved
    whole = _whole(rows, resampled, steep)
    return solved.updated(steep, solve(family, Batch(rows.compute_GC, rows.span_G, group_R[steep], *whole, upper_G)))


def _condensed(rows: Rows, few: _Few, resampled: list[_Resampled]) -> tuple[Array, Array]:
    """Values and weights at the condensed points."""
    count = sum(len(each) for each in resampled)
    values_RM, weights_RM = np.zeros((2, count, few.compute_GM.shape[1]))
    row = 0
    for each in resampled:
        block, column, seeds = slice(row, row + len(each)), 0, len(rows.groups[each.group])
        for strand, values_BC in zip(rows.strands_G[each.group], each.values_TBC, strict=True):
            columns = slice(column, column + len(strand.compute_M))
            values_RM[block, columns] = strand.values_M(values_BC)
            weights_RM[block, columns] = len(strand.runs) / seeds * strand.weights_M
            column = columns.stop
        row = block.stop
    return values_RM, weights_RM


def _whole(rows: Rows, resampled: list[_Resampled], wanted: Ints) -> tuple[Array, Array]:
    """Values and weights of some of the rows at all points."""
    values_RC, weights_RC = np.zeros((2, len(wanted), rows.compute_GC.shape[1]))
    first = 0
    for each in resampled:
        out = np.flatnonzero((wanted >= first) & (wanted < first + len(each)))
        mine, column, seeds = wanted[out] - first, 0, len(rows.groups[each.group])
        for strand, values_BC in zip(rows.strands_G[each.group], each.values_TBC, strict=True):
            columns = slice(column, column + values_BC.shape[1])
            values_RC[out, columns] = values_BC[mine]
            weights_RC[out, columns] = len(strand.runs) / seeds
            column = columns.stop
        first += len(each)
    return values_RC, weights_RC


def block_resample(residual_C: Array, free: int, count: int, rng: np.random.Generator) -> Array:
    """Circular blocks of the centred residuals, inflated for `free` fitted parameters."""
    n = len(residual_C)
    spare = max(n - free, 1)
    inflation = np.sqrt(n / spare) * widening(spare)
    spread = median(np.abs(residual_C - median(residual_C)))
    scale = max(1.4826 * spread, FLOOR * float(residual_C.std()))
    clipped_C = np.clip(residual_C, -HUBER * scale, HUBER * scale)
    # An estimate that ignores the clipped part of some points leans on the others by so much more.
    inflation *= n / max(int((np.abs(residual_C) <= HUBER * scale).sum()), 1)
    centred_C = (clipped_C - clipped_C.mean()) * inflation
    length = block_length(centred_C)
    blocks = -(-n // length)
    index_BC = rng.integers(0, n, size=(count, blocks))
    if length > 1:
        index_BC = (index_BC[:, :, None] + np.arange(length)).reshape(count, -1)[:, :n]
    circle_C = np.concatenate([centred_C, centred_C[: length - 1]])
    return np.asarray(circle_C.take(index_BC))


def block_length(residual_C: Array) -> int:
    """Politis and White's block length for an AR(1) with the lag-1 correlation seen; 1 where none stands out."""
    n = len(residual_C)
    power = float(residual_C @ residual_C)
    if n < 8 or power <= 0:
        return 1
    rho = float(residual_C[1:] @ residual_C[:-1]) / power
    if rho < 1.645 / np.sqrt(n):
        return 1
    rho = min(rho, 0.97)
    return int(np.clip(round((6.0 ** (1 / 3)) * (rho / (1 - rho**2)) ** (2 / 3) * n ** (1 / 3)), 1, n // 3))
