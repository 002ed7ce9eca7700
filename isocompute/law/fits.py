"""Fits of many curves at once, with a bootstrap ensemble for each: every number of the law comes from here.

The bootstrap resamples points, seeds and the form of the curve (`bootstrap`).

A single bad evaluation must not bend a curve: points further than two noise levels from every family's fit are
down-weighted (Huber), which costs 1% of the precision on clean data.

On made-up curves with noise .01 the resulting 95% intervals of the ceiling cover 92-97% (`benchmarks/coverage.py`);
intervals from the best family alone cover as little as 51%.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from isocompute.core.arrays import Array
from isocompute.core.formatting import number, value
from isocompute.law.bootstrap import FLOOR, HUBER, bootstrap, seed_curves
from isocompute.law.curve import Curve, Setting, noise_level, scale_of, upper_bound
from isocompute.law.ensemble import Ensemble
from isocompute.law.evidence import akaike_weights
from isocompute.law.falls import fitted
from isocompute.law.families import FAMILIES, Family
from isocompute.law.intervals import around
from isocompute.law.records import DEFAULT_BIN, record_points
from isocompute.law.rows import Rows
from isocompute.law.seeds import Luck, Spread, moderated, of_one
from isocompute.law.solver import Fits, evaluate

__all__ = ["MAXIMUM_POINTS", "SEEN", "CurveFit", "Ensemble", "fit_groups", "usable_points"]

MAXIMUM_POINTS = 256
"""Longer curves are averaged into this many points: evaluation noise shrinks, the shape stays."""
SEEN = 0.8
"""A ceiling counts as seen when this share of the rise to it is done; below, it depends on the form of the curve."""
_HUBER_PASSES = 2


@dataclass(frozen=True)
class CurveFit:
    """The best-supported curve through one run, or through all seeds of a setting."""

    curves: tuple[Curve, ...]
    """As fitted: thinned, and without the part after a lasting fall."""
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
    """Where the curve is known from: `first`, or before it where a published curve is."""
    ensemble: Ensemble
    seed_error: float = 0.0
    """Standard error of its level between repetitions of all its seeds, as the ensemble has it; 0 where it has none."""
    seed_spread: float = 0.0
    """Where the ensemble has none: what the other settings' seeds say of it; 0 where no setting has several."""
    trend: float | None = None
    """Rise for each doubling of compute where its runs end (`last_trend`), of a law's settings; None if not known."""

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
        """Share of the rise up to its last point that it has behind it."""
        top = float(self.at(np.array([self.last]))[0])
        rise = top - self.base
        return np.ones_like(compute_C) if rise <= 0 else np.clip((self.at(compute_C) - self.base) / rise, 0.0, 1.0)

    @property
    def rise_done(self) -> float:
        """Share of the fitted rise, from base to ceiling, that the last point has behind it.

        A ceiling is seen rather than guessed when most of the rise is done; see `SEEN`.
        """
        rise = self.ceiling - self.base
        return 1.0 if rise <= 0 else (float(self.at(np.array([self.last]))[0]) - self.base) / rise

    def parameters(self) -> dict[str, float]:
        """The family's own parameters, compute-like ones in the unit of the data."""
        return {
            name: float(np.exp(value)) * (self.unit if in_compute else 1.0)
            for name, value, in_compute in zip(
                self.family.parameters, self.theta_K, self.family.compute_like, strict=True
            )
        }

    def at_bound(self) -> list[str]:
        """Parameters that ended on the edge of the box they were searched in: known only to be that far out."""
        box_K2 = self.family.bounds(max(self.last / self.unit, 1.0 + 1e-9))
        near_K = np.abs(self.theta_K[:, None] - box_K2).min(axis=1) < 1e-6
        return [name for name, near in zip(self.family.parameters, near_K, strict=True) if near]

    def ceiling_interval(self, level: float = 0.95) -> tuple[float, float]:
        """Percentile interval of the ceiling over the ensemble, always around the estimate."""
        return around(self.ceiling, self.ensemble.ceiling_B, level)

    def base_interval(self, level: float = 0.95) -> tuple[float, float]:
        """The same for the value at compute 0."""
        return around(self.base, self.ensemble.base_B, level)

    def parameter_intervals(self, level: float = 0.95) -> dict[str, tuple[float, float]]:
        """The same for the family's own parameters, over the replicates that were drawn from this family."""
        mine_B = self.ensemble.family_B == FAMILIES.index(self.family)
        values = self.parameters()
        return {
            name: around(
                values[name],
                np.exp(self.ensemble.theta_BK[mine_B, k]) * (self.unit if self.family.compute_like[k] else 1.0),
                level,
            )
            for k, name in enumerate(self.family.parameters)
        }


def usable_points(curve: Curve, *, points: str = "all", bin_width: float = DEFAULT_BIN) -> Curve:
    """What a monotone fit may use: up to a lasting fall, without dips, thinned, and only the records if `points` says
    so.
    """
    keep_C = fitted(curve.values_C)
    if not keep_C.all():
        curve = replace(curve, compute_C=curve.compute_C[keep_C], values_C=curve.values_C[keep_C])
    if points == "records":
        keep = record_points(curve.compute_C, curve.values_C, bin_width=bin_width)
        return replace(curve, compute_C=curve.compute_C[keep], values_C=curve.values_C[keep])
    return curve.averaged(MAXIMUM_POINTS)


def fit_groups(
    groups: Sequence[Sequence[Curve]],
    *,
    replicates: int = 1000,
    seed: int = 0,
    upper: float | Sequence[float] | None = None,
    lone_luck: bool = False,
) -> list[CurveFit]:
    """Fit every group of curves (the seeds of one setting) with all families, and bootstrap all of them at once.

    Ceilings are at most `upper`, one bound for all groups or one for each. With `lone_luck` a group of one is drawn as
    far off as the seeds of the others say; else it is a run of its own.
    """
    rows = Rows.of(groups)
    if upper is None:
        upper = upper_bound(rows.values_GN[rows.real_GN])
    upper_G = np.broadcast_to(np.asarray(upper, dtype=np.float64), len(groups))
    plain_F = fits_F = [rows.solve(family, rows.real_GN.astype(np.float64), upper_G) for family in FAMILIES]
    for _ in range(_HUBER_PASSES):
        weights_GN = _huber(rows, fits_F)
        fits_F = [rows.solve(family, weights_GN, upper_G) for family in FAMILIES]
    points_G = rows.real_GN.sum(axis=1)
    floor_G = np.array([(0.05 * min(noise_level(c.values_C) for c in group)) ** 2 for group in rows.groups])
    weights_FG = akaike_weights(np.stack([f.sse_R for f in fits_F]), points_G, variance_floor_R=floor_G)
    seeds_F = seed_curves(rows, plain_F, upper_G)
    found_F = [_luck(rows, family, fits, own) for family, fits, own in zip(FAMILIES, fits_F, seeds_F, strict=True)]
    luck_F = [luck | (lone if lone_luck else {}) for luck, lone in found_F]
    ensembles = bootstrap(
        rows,
        fits_F,
        weights_FG,
        seeds=seeds_F,
        luck=luck_F,
        upper_G=upper_G,
        replicates=replicates,
        rng=np.random.default_rng(seed),
    )
    rmse_FG = _rmse(rows, fits_F)
    out = []
    for g, group in enumerate(rows.groups):
        best = int(weights_FG[:, g].argmax())
        fit, luck, lone = fits_F[best], luck_F[best].get(g), found_F[best][1].get(g)
        out.append(
            CurveFit(
                curves=group,
                family=FAMILIES[best],
                theta_K=fit.theta_RK[g],
                base=float(fit.base_R[g]),
                ceiling=float(fit.ceiling_R[g]),
                rmse=float(rmse_FG[best, g]),
                weights={f.name: float(w) for f, w in zip(FAMILIES, weights_FG[:, g], strict=True)},
                unit=float(rows.unit_G[g]),
                first=float(rows.unit_G[g]),
                last=max(float(c.compute_C[-1]) for c in group),
                starts=float(rows.unit_G[g]),
                ensemble=ensembles[g],
                seed_error=luck.level if luck else 0.0,
                seed_spread=lone.level if lone and not luck else 0.0,
            )
        )
    return out


def _luck(rows: Rows, family: Family, fits: Fits, own: Mapping[int, Array]) -> tuple[dict[int, Luck], dict[int, Luck]]:
    """How far groups of several seeds may lie off, by group, and how far, by the others, those of one."""
    pooled_GN = rows.at(family, fits)
    scale = scale_of(rows.values_GN[rows.real_GN])
    spreads = [Spread.of(rows.groups[g], pooled_GN[g, : len(own_N)], own_N) for g, own_N in own.items()]
    level = of_one(spreads, scale)
    single = {g: pooled_GN[g, : len(group[0].compute_C)] for g, group in enumerate(rows.groups) if len(group) == 1}
    lone = {g: Luck.of_level(level, mine_N) for g, mine_N in single.items()} if level else {}
    return dict(zip(own, moderated(spreads, scale), strict=True)), lone


def _residuals(rows: Rows, fits_F: Sequence[Fits]) -> Array:
    """Of every family at every point; 0 where a row is padding."""
    fitted_F = [rows.at(family, fits) for family, fits in zip(FAMILIES, fits_F, strict=True)]
    return np.stack([np.where(rows.real_GN, rows.values_GN - fitted_GN, 0.0) for fitted_GN in fitted_F])


def _rmse(rows: Rows, fits_F: Sequence[Fits]) -> Array:
    return np.asarray(np.sqrt((_residuals(rows, fits_F) ** 2).sum(axis=2) / rows.real_GN.sum(axis=1)))


def _huber(rows: Rows, fits_F: Sequence[Fits]) -> Array:
    """Huber's weights for the residual of the closest family: a point is a glitch if no family explains it."""
    distance_GN = np.abs(_residuals(rows, fits_F)).min(axis=0)
    count_G = rows.real_GN.sum(axis=1)
    spread_G = np.sqrt((distance_GN**2).sum(axis=1) / count_G)
    sorted_GN = np.sort(np.where(rows.real_GN, distance_GN, np.inf), axis=1)
    each_G = np.arange(len(count_G))
    median_G = 0.5 * (sorted_GN[each_G, (count_G - 1) // 2] + sorted_GN[each_G, count_G // 2])
    limit_G1 = HUBER * (np.maximum(1.4826 * median_G, FLOOR * spread_G) + 1e-12)[:, None]
    return np.where(rows.real_GN, limit_G1 / np.maximum(distance_GN, limit_G1), 0.0)
