"""Fits the curves of all settings at once, each with bootstrap draws, from which the whole law follows.

Each group of curves, the seeds of one setting, is fitted with all families, and Akaike weights measure how well the
data support each family. The IsoCompute paper draws sigmoids, its figures follow exponentials, and ScaleRL uses Hill
curves, so the form has to be tested. We use AIC, since its small-sample version AICc gives the Hill family too little
weight. With AICc, 95% intervals of a Hill curve's ceiling cover 88% instead of 92% (30 log-spaced points).

A single bad evaluation must not bend a curve. So points further than two noise levels from every family's fit are
down-weighted (Huber), at the cost of 1% of the precision on clean data.

The bootstrap redraws what a repetition of the study would:

- *points*: residuals of a run are resampled in circular blocks whose length follows their autocorrelation. They are
  clipped against glitches, and inflated for the fitted parameters (N / (N - p)) and to Student's t.
- *seeds*: deviations of a setting's seeds from the pooled curve are drawn as whole curves (`uncertainty.SeedEffect`).
- *the form*: families are drawn in proportion to their Akaike weights, so intervals cover the doubt about the form.

Long curves are fitted as the means of log-spaced bins, weighted by their number of points. On made-up curves with noise
.01, the 95% intervals of the ceiling cover 92-97% (`benchmarks/coverage.py`). Intervals from the best family alone
cover as little as 51%.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from isocompute.core.arrays import Array, Bools, Ints
from isocompute.core.curve import Curve, Setting, median, noise_level, scale_of, upper_bound
from isocompute.core.formatting import number, plural, value
from isocompute.law.solver import FAMILIES, Family, FitRows, Fits, blas_on_one_core, evaluate, solve
from isocompute.law.uncertainty import (
    SeedEffect,
    SeedSpread,
    around,
    seed_effects,
    single_seed_deviation,
    t_over_normal,
)

CEILING_SEEN = 0.8
"""A ceiling counts as seen when this share of the rise to it is done; before that, it depends on the curve's form."""
_MOST_BINS = 48
_HUBER_PASSES = 2
_HUBER = 2.0
"""Residuals larger than this many noise levels are glitches."""
_NOISE_FLOOR = 0.3
"""The noise level is at least this share of the residuals' root mean square, since their median may be 0."""
_AT_ONCE = 5_000_000
"""Values fitted at once, which limits memory for thousands of runs."""
_KMAX = max(len(family.parameters) for family in FAMILIES)


@dataclass(frozen=True)
class Ensemble:
    """Bootstrap draws of one curve, each with the family that was drawn for it."""

    unit: float
    family_B: Ints
    theta_BK: Array
    base_B: Array
    ceiling_B: Array

    def __repr__(self) -> str:
        return f"Ensemble({plural(len(self.family_B), 'replicate')})"

    def at(self, compute_C: Array) -> Array:
        """Values of every draw (rows) at these computes."""
        out_BC = np.empty((len(self.family_B), len(compute_C)))
        for index, family in enumerate(FAMILIES):
            rows = np.flatnonzero(self.family_B == index)
            theta_RK = self.theta_BK[rows, : len(family.parameters)]
            fits = Fits(theta_RK, self.base_B[rows], self.ceiling_B[rows], np.zeros(len(rows)))
            out_BC[rows] = evaluate(family, fits, compute_C[None, :] / self.unit)
        return out_BC


@dataclass(frozen=True)
class CurveFit:
    """The best-supported curve through one run, or through all seeds of a setting."""

    curves: tuple[Curve, ...]
    """The curves as fitted: up to a collapse, and with at most `curves.MAXIMUM_POINTS` points each."""
    family: Family
    theta_K: Array
    base: float
    ceiling: float
    rmse: float
    weights: dict[str, float]
    """Akaike weight of each family."""
    unit: float
    first: float
    """Smallest positive compute with a value."""
    last: float
    """Largest compute with a value."""
    starts: float
    """Compute from which the curve is known: `first`, or less for a published curve."""
    ensemble: Ensemble
    seed_error: float = 0.0
    """Standard error of its level over seeds, which the ensemble contains; 0 for a single seed."""
    seed_deviation: float = 0.0
    """For a single seed, the standard deviation between seeds of the other settings, which the ensemble lacks.

    It is 0 if no setting has several seeds.
    """
    trend: float | None = None
    """Rise per doubling of compute at the end of its runs (`curves.last_trend`); None if not known."""

    def __repr__(self) -> str:
        more = f" and {len(self.curves) - 1} more" if len(self.curves) > 1 else ""
        return (
            f"CurveFit({self.curves[0].name}{more}: {self.family.name} from {value(self.base)} to "
            f"{value(self.ceiling)}, {self.rise_done:.0%} of it by {number(self.last)}; rmse {value(self.rmse)})"
        )

    @property
    def setting(self) -> Setting:
        """(problems per batch, rollouts per problem) of all its curves."""
        return self.curves[0].setting

    def at(self, compute_C: Array) -> Array:
        """The fitted curve."""
        fits = Fits(self.theta_K[None], np.array([self.base]), np.array([self.ceiling]), np.zeros(1))
        return np.asarray(evaluate(self.family, fits, np.atleast_1d(compute_C)[None, :] / self.unit)[0])

    def risen(self, compute_C: Array) -> Array:
        """Share of the rise up to its last point that is done at these computes."""
        rise = float(self.at(np.array([self.last]))[0]) - self.base
        return np.ones_like(compute_C) if rise <= 0 else np.clip((self.at(compute_C) - self.base) / rise, 0.0, 1.0)

    @property
    def rise_done(self) -> float:
        """Share of the rise from base to ceiling that is done at its last point (see `CEILING_SEEN`)."""
        rise = self.ceiling - self.base
        return 1.0 if rise <= 0 else (float(self.at(np.array([self.last]))[0]) - self.base) / rise

    def parameters(self) -> dict[str, float]:
        """The family's parameters; those that are computes are in the unit of the data."""
        return {
            name: float(np.exp(value)) * (self.unit if in_compute else 1.0)
            for name, value, in_compute in zip(
                self.family.parameters, self.theta_K, self.family.compute_like, strict=True
            )
        }

    def at_bound(self) -> list[str]:
        """Parameters that ended on a bound of the search, which only bounds their true value."""
        box_K2 = self.family.bounds(max(self.last / self.unit, 1.0 + 1e-9))
        near_K = np.abs(self.theta_K[:, None] - box_K2).min(axis=1) < 1e-6
        return [name for name, near in zip(self.family.parameters, near_K, strict=True) if near]

    def ceiling_interval(self) -> tuple[float, float]:
        """95% interval of the ceiling over the ensemble; it contains the estimate."""
        return around(self.ceiling, self.ensemble.ceiling_B)

    def base_interval(self) -> tuple[float, float]:
        """95% interval of the value at compute 0 over the ensemble; it contains the estimate."""
        return around(self.base, self.ensemble.base_B)

    def parameter_intervals(self) -> dict[str, tuple[float, float]]:
        """95% interval of each parameter of the family, over the draws of this family."""
        mine_B = self.ensemble.family_B == FAMILIES.index(self.family)
        return {
            name: around(
                estimate,
                np.exp(self.ensemble.theta_BK[mine_B, k]) * (self.unit if self.family.compute_like[k] else 1.0),
            )
            for k, (name, estimate) in enumerate(self.parameters().items())
        }


def fit_groups(
    groups: Sequence[Sequence[Curve]],
    *,
    replicates: int = 1000,
    seed: int | np.random.Generator = 0,
    upper: float | Sequence[float] | None = None,
    draw_single_seeds: bool = False,
) -> list[CurveFit]:
    """Fit every group of curves (the seeds of one setting) with all families, and bootstrap all of them at once.

    Ceilings are at most `upper`, one bound for all groups or one for each. With `draw_single_seeds`, the draws of a
    group of one curve include the seed effect that the other groups show.
    """
    rows = _Rows.of(groups)
    values = rows.values_GN[rows.real_GN]
    upper_G = np.broadcast_to(np.asarray(upper_bound(values) if upper is None else upper), len(groups))
    plain_F = fits_F = [rows.solve(family, rows.real_GN.astype(np.float64), upper_G) for family in FAMILIES]
    for _ in range(_HUBER_PASSES):
        weights_GN = _huber(rows, fits_F)
        fits_F = [rows.solve(family, weights_GN, upper_G) for family in FAMILIES]
    points_G = rows.real_GN.sum(axis=1)
    rmse_FG = np.sqrt((_residuals(rows, fits_F) ** 2).sum(axis=2) / points_G)
    floor_G = np.array([(0.05 * min(noise_level(c.values_C) for c in group)) ** 2 for group in rows.groups])
    weights_FG = akaike_weights(np.stack([f.sse_R for f in fits_F]), points_G, variance_floor_R=floor_G)
    own_F = _own_curves(rows, plain_F, upper_G)
    found_F = [
        _seed_effects(rows, family, fits, own, scale_of(values))
        for family, fits, own in zip(FAMILIES, fits_F, own_F, strict=True)
    ]
    effects_F = [pooled | (single if draw_single_seeds else {}) for pooled, single in found_F]
    rng = np.random.default_rng(seed)
    with blas_on_one_core():
        ensembles = _bootstrap(rows, fits_F, weights_FG, own_F, effects_F, upper_G, replicates, rng)
    out = []
    for g, group in enumerate(rows.groups):
        best = int(weights_FG[:, g].argmax())
        fit, effect, single = fits_F[best], effects_F[best].get(g), found_F[best][1].get(g)
        unit = float(rows.unit_G[g])
        out.append(
            CurveFit(
                curves=group,
                family=FAMILIES[best],
                theta_K=fit.theta_RK[g],
                base=float(fit.base_R[g]),
                ceiling=float(fit.ceiling_R[g]),
                rmse=float(rmse_FG[best, g]),
                weights={f.name: float(w) for f, w in zip(FAMILIES, weights_FG[:, g], strict=True)},
                unit=unit,
                first=unit,
                last=max(float(c.compute_C[-1]) for c in group),
                starts=unit,
                ensemble=ensembles[g],
                seed_error=effect.level if effect else 0.0,
                seed_deviation=single.level if single and not effect else 0.0,
            )
        )
    return out


def bins_of(compute_N: Array) -> Ints:
    """The bin of each point: one bin per compute, or log-spaced bins if there are more than 48 computes.

    >>> bins_of(np.array([0.0, 1.0, 2.0, 1.0, 2.0])).tolist()
    [0, 1, 2, 1, 2]
    """
    distinct, bin_N = np.unique(compute_N, return_inverse=True)
    if len(distinct) > _MOST_BINS:
        first, last = distinct[distinct > 0][[0, -1]]
        edges = np.geomspace(first, last, _MOST_BINS)[1:]
        after_N = np.searchsorted(edges, compute_N, side="left") + (compute_N > 0)
        bin_N = np.unique(after_N, return_inverse=True)[1]
    return np.asarray(bin_N, dtype=np.int64)


@dataclass(frozen=True)
class _Rows:
    """Groups of curves laid out for the solver, one padded row per group, of points (`_N`) and of bins (`_M`).

    The runs of a group follow one another. Compute is in units of the group's first positive compute.
    """

    groups: list[tuple[Curve, ...]]
    unit_G: Array
    span_G: Array
    """Last compute over first."""
    compute_GN: Array
    values_GN: Array
    real_GN: Bools
    """False for padding."""
    bin_GN: Ints
    compute_GM: Array
    """Mean compute of each bin."""

    @classmethod
    def of(cls, groups: Sequence[Sequence[Curve]]) -> _Rows:
        compute_G = [np.concatenate([c.compute_C for c in group]) for group in groups]
        unit_G = np.array([line[line > 0].min() for line in compute_G])
        compute_G = [line / unit for line, unit in zip(compute_G, unit_G, strict=True)]
        bin_G = [bins_of(line) for line in compute_G]
        means = [np.bincount(b, line) / np.bincount(b) for b, line in zip(bin_G, compute_G, strict=True)]
        return cls(
            [tuple(group) for group in groups],
            unit_G,
            np.array([max(line.max(), 1.0 + 1e-9) for line in compute_G]),
            padded(compute_G, 1.0),
            padded([np.concatenate([c.values_C for c in group]) for group in groups], 0.0),
            padded([np.ones(len(line)) for line in compute_G], 0.0) > 0,
            padded(bin_G, 0).astype(np.int64),
            padded(means, 1.0),
        )

    def solve(self, family: Family, weights_GN: Array, upper_G: Array) -> Fits:
        """Fit every group with weighted points; the sum of squares is that of the points, not of the bins."""
        shape = self.compute_GM.shape
        flat_N = (self.bin_GN + np.arange(len(self.groups))[:, None] * shape[1]).ravel()

        def total(each_GN: Array) -> Array:
            sums = np.bincount(flat_N, weights=each_GN.ravel(), minlength=shape[0] * shape[1])
            return np.asarray(sums, dtype=np.float64).reshape(shape)

        weights_GM = total(weights_GN)
        mean_GM = total(weights_GN * self.values_GN) / np.where(weights_GM > 0, weights_GM, 1.0)
        every = np.arange(len(self.groups), dtype=np.int64)
        fits = solve(family, FitRows(self.compute_GM, self.span_G, every, mean_GM, weights_GM, upper_G))
        residual_GN = self.values_GN - self.at(family, fits)
        return Fits(
            fits.theta_RK, fits.base_R, fits.ceiling_R, np.einsum("gn,gn,gn->g", weights_GN, residual_GN, residual_GN)
        )

    def at(self, family: Family, fits: Fits) -> Array:
        """The fitted curves at all points."""
        return evaluate(family, fits, self.compute_GN)


def padded(lines: Sequence[Array] | Sequence[Ints], value: float) -> Array:
    """Lines of different lengths as the rows of one array, filled up with `value`."""
    out = np.full((len(lines), max(len(line) for line in lines)), value, dtype=np.float64)
    for row, line in zip(out, lines, strict=True):
        row[: len(line)] = line
    return out


def akaike_weights(sse_FR: Array, points_R: Array, *, variance_floor_R: Array) -> Array:
    """Weights of the families (rows as in FAMILIES) for each fit; columns sum to 1.

    Residual variances below `variance_floor_R` count as equal, so that rounding does not choose the family of a
    noise-free curve. A family with as many parameters as there are points gets no weight if another has fewer.
    """
    free_F1 = np.array([[float(family.free)] for family in FAMILIES])
    variance_FR = np.maximum(sse_FR / points_R, variance_floor_R)
    score_FR = points_R * np.log(variance_FR) + 2.0 * free_F1
    score_FR += np.where(points_R - free_F1 < 1, 1e3 * (free_F1 - points_R + 1), 0.0)
    weights_FR = np.exp(-0.5 * (score_FR - score_FR.min(axis=0)))
    return np.asarray(weights_FR / weights_FR.sum(axis=0))


def _residuals(rows: _Rows, fits_F: Sequence[Fits]) -> Array:
    """Residuals of every family at every point; 0 for padding."""
    return np.stack(
        [
            np.where(rows.real_GN, rows.values_GN - rows.at(family, fits), 0.0)
            for family, fits in zip(FAMILIES, fits_F, strict=True)
        ]
    )


def _huber(rows: _Rows, fits_F: Sequence[Fits]) -> Array:
    """Huber weights by the residual of the closest family, so a point is a glitch only if no family explains it."""
    distance_GN = np.abs(_residuals(rows, fits_F)).min(axis=0)
    count_G = rows.real_GN.sum(axis=1)
    spread_G = np.sqrt((distance_GN**2).sum(axis=1) / count_G)
    median_G = np.nanmedian(np.where(rows.real_GN, distance_GN, np.nan), axis=1)
    limit_G1 = _HUBER * (np.maximum(1.4826 * median_G, _NOISE_FLOOR * spread_G) + 1e-12)[:, None]
    return np.where(rows.real_GN, limit_G1 / np.maximum(distance_GN, limit_G1), 0.0)


def _own_curves(rows: _Rows, plain_F: Sequence[Fits], upper_G: Array) -> list[dict[int, Array]]:
    """For groups of several seeds: each seed's own curve at its own points, by family and group.

    `plain_F` are the groups' unweighted fits, which include the curve of a seed that is also a group of its own.
    """
    several = {g: group for g, group in enumerate(rows.groups) if len(group) > 1}
    alone = {id(group[0]): g for g, group in enumerate(rows.groups) if len(group) == 1}
    new = [(curve, g) for g, group in several.items() for curve in group if id(curve) not in alone]
    places = alone | {id(curve): len(rows.groups) + i for i, (curve, _) in enumerate(new)}
    out: list[dict[int, Array]] = [{} for _ in FAMILIES]
    for family, plain, curves in zip(FAMILIES, plain_F, out, strict=True):
        at_points = list(rows.at(family, plain))
        if new:
            extra = _Rows.of([[curve] for curve, _ in new])
            bound_G = upper_G[[g for _, g in new]]
            at_points += list(extra.at(family, extra.solve(family, extra.real_GN.astype(np.float64), bound_G)))
        for g, group in several.items():
            curves[g] = np.concatenate([at_points[places[id(c)]][: len(c.compute_C)] for c in group])
    return out


def _seed_effects(
    rows: _Rows, family: Family, fits: Fits, own: Mapping[int, Array], scale: float
) -> tuple[dict[int, SeedEffect], dict[int, SeedEffect]]:
    """The seed effects of groups with several seeds, and those that these imply for groups with one, both by group."""
    pooled_GN = rows.at(family, fits)
    spreads = [SeedSpread.of(rows.groups[g], pooled_GN[g, : len(own_N)], own_N) for g, own_N in own.items()]
    level = single_seed_deviation(spreads, scale)
    single = {g: pooled_GN[g, : len(group[0].compute_C)] for g, group in enumerate(rows.groups) if len(group) == 1}
    singles = {g: SeedEffect.of_level(level, mine_N) for g, mine_N in single.items()} if level else {}
    return dict(zip(own, seed_effects(spreads, scale), strict=True)), singles


def _bootstrap(
    rows: _Rows,
    fits_F: Sequence[Fits],
    weights_FG: Array,
    own_F: Sequence[Mapping[int, Array]],
    effects_F: Sequence[Mapping[int, SeedEffect]],
    upper_G: Array,
    replicates: int,
    rng: np.random.Generator,
) -> list[Ensemble]:
    """Bootstrap draws of every group around its fits with all families."""
    n_groups, width = rows.compute_GM.shape
    family_GB = np.stack([_draw_families(weights_FG[:, g], replicates, rng) for g in range(n_groups)])
    theta_GBK = np.zeros((n_groups, replicates, _KMAX))
    base_GB, ceiling_GB = np.empty((n_groups, replicates)), np.empty((n_groups, replicates))
    pooled_F = [rows.at(family, fits) for family, fits in zip(FAMILIES, fits_F, strict=True)]
    stride = max(1, _AT_ONCE // (max(replicates, 1) * width))
    for start in range(0, n_groups, stride):
        for index, family in enumerate(FAMILIES):
            drawn_GB = family_GB == index
            drawn_GB[:start] = drawn_GB[start + stride :] = False
            group_R = np.nonzero(drawn_GB)[0]
            if not len(group_R):
                continue
            values_RM, weights_RM = np.zeros((2, len(group_R), width))
            for g in np.unique(group_R).tolist():
                mine = slice(*np.searchsorted(group_R, [g, g + 1]))
                bin_N = rows.bin_GN[g, rows.real_GN[g]]
                values_BN = _resampled(
                    rows.groups[g],
                    pooled_F[index][g, : len(bin_N)],
                    own_F[index].get(g),
                    effects_F[index].get(g),
                    family,
                    mine.stop - mine.start,
                    rng,
                )
                points_M = np.bincount(bin_N)
                average_NM = (bin_N[:, None] == np.arange(len(points_M))) / points_M
                values_RM[mine, : len(points_M)] = values_BN @ average_NM
                weights_RM[mine, : len(points_M)] = points_M
            solved = solve(family, FitRows(rows.compute_GM, rows.span_G, group_R, values_RM, weights_RM, upper_G))
            theta_GBK[drawn_GB, : len(family.parameters)] = solved.theta_RK
            base_GB[drawn_GB], ceiling_GB[drawn_GB] = solved.base_R, solved.ceiling_R
    return [
        Ensemble(float(rows.unit_G[g]), family_GB[g], theta_GBK[g], base_GB[g], ceiling_GB[g]) for g in range(n_groups)
    ]


def _draw_families(weights_F: Array, replicates: int, rng: np.random.Generator) -> Ints:
    """Families in random order by systematic sampling, with counts within one of weight × replicates."""
    marks = (np.arange(replicates) + rng.random()) / max(replicates, 1)
    drawn = np.searchsorted(np.cumsum(weights_F)[:-1], marks, side="right")
    return np.asarray(rng.permutation(drawn), dtype=np.int64)


def _resampled(
    group: tuple[Curve, ...],
    pooled_N: Array,
    own_N: Array | None,
    effect: SeedEffect | None,
    family: Family,
    count: int,
    rng: np.random.Generator,
) -> Array:
    """Redrawn values at a group's points: the pooled curve, a seed effect and each run's resampled residuals."""
    out_BN = np.tile(pooled_N, (count, 1)) if effect is None else pooled_N + effect.draw(count, rng)
    own_N = pooled_N if own_N is None else own_N
    start = 0
    for curve in group:
        part = slice(start, start + len(curve.compute_C))
        out_BN[:, part] += block_resample(curve.values_C - own_N[part], family.free, count, rng)
        start = part.stop
    return out_BN


def block_resample(residual_C: Array, free: int, count: int, rng: np.random.Generator) -> Array:
    """Centred residuals resampled in circular blocks, and inflated for `free` fitted parameters."""
    n = len(residual_C)
    spare = max(n - free, 1)
    inflation = np.sqrt(n / spare) * t_over_normal(spare)
    spread = median(np.abs(residual_C - median(residual_C)))
    limit = _HUBER * max(1.4826 * spread, _NOISE_FLOOR * float(residual_C.std()))
    # An estimate that ignores the clipped part of some points depends more on the others.
    inflation *= n / max(int((np.abs(residual_C) <= limit).sum()), 1)
    clipped_C = np.clip(residual_C, -limit, limit)
    centred_C = (clipped_C - clipped_C.mean()) * inflation
    length = block_length(centred_C)
    index_BC = rng.integers(0, n, size=(count, -(-n // length)))
    if length > 1:
        index_BC = (index_BC[:, :, None] + np.arange(length)).reshape(count, -1)[:, :n]
    circle_C = np.concatenate([centred_C, centred_C[: length - 1]])
    return np.asarray(circle_C.take(index_BC))


def block_length(residual_C: Array) -> int:
    """Politis and White's block length for an AR(1) with the lag-1 correlation; 1 if that is not significant."""
    n = len(residual_C)
    power = float(residual_C @ residual_C)
    if n < 8 or power <= 0:
        return 1
    rho = float(residual_C[1:] @ residual_C[:-1]) / power
    if rho < 1.645 / np.sqrt(n):
        return 1
    rho = min(rho, 0.97)
    return int(np.clip(round((6.0 ** (1 / 3)) * (rho / (1 - rho**2)) ** (2 / 3) * n ** (1 / 3)), 1, n // 3))
