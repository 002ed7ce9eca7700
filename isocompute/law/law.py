"""The law of a study: everything that `isocompute fit` computes, from curves to n*(C).

The paper's three trade-offs differ in which settings compete on the frontier:

| trade-off | competitors | optimum along |
| --- | --- | --- |
| n against M at fixed Bp (section 4.1) | all n with that Bp | compute |
| Bp against n at fixed B (section 4.2) | all (Bp, n) with Bp · n = B | update steps M = C / B |
| jointly (section 4.3) | all (Bp, n) | compute |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from isocompute.core.arrays import Array, Bools
from isocompute.core.curve import Curve, on_one_scale, scale_of, upper_bound
from isocompute.core.formatting import number, plural
from isocompute.law.curves import (
    DEFAULT_BIN,
    collapse_start,
    collapsed_early,
    last_trend,
    record_points,
    settings_of,
    usable_curves,
    usable_end,
    usable_mask,
)
from isocompute.law.fits import CurveFit, fit_groups
from isocompute.law.frontier import (
    EARLY_FACTOR,
    Frontier,
    Optimum,
    Reading,
    Slice,
    bounds,
    compared,
    ended,
    fit_optima,
    frontier,
    reached,
    seed_noise,
    sensitivity,
)
from isocompute.law.surface import Surface, fit_surface
from isocompute.law.uncertainty import SEED_MARGIN, by_chance

_NAMED = 3
"""Most runs that a note names."""
_SIGNIFICANT = 0.05
"""Chance of reporting that n* moves if all n are equal at the end."""


@dataclass(frozen=True)
class RunFit:
    """One run's curve, its fit, and the evaluations that are not in the fit."""

    curve: Curve = field(repr=False)
    fit: CurveFit
    records: int
    collapse_after: float | None
    """Compute of the last point before a collapse; the points after it are not in the fit."""

    @property
    def points(self) -> int:
        """Number of evaluations in the fit."""
        return int(usable_mask(self.curve.values_C).sum())

    @property
    def dips(self) -> int:
        """Number of evaluations before any collapse that lie far below the others and are not in the fit."""
        return usable_end(self.curve.values_C) - self.points

    def to_json(self) -> dict[str, Any]:
        """The keys of one entry of `curves` in `fit --json`."""
        curve, fit = self.curve, self.fit
        return {
            "run": curve.name,
            "problems_per_batch": curve.problems_per_batch,
            "rollouts_per_problem": curve.rollouts_per_problem,
            "seed": curve.seed,
            "form": fit.family.name,
            "form_weights": fit.weights,
            "base": fit.base,
            "base_interval": fit.base_interval(),
            "asymptote": fit.ceiling,
            "asymptote_interval": fit.ceiling_interval(),
            "rise_done": fit.rise_done,
            "parameters": fit.parameters(),
            "parameter_intervals": fit.parameter_intervals(),
            "at_bound": fit.at_bound(),
            "rmse": fit.rmse,
            "points": self.points,
            "records": self.records,
            "last": float(curve.compute_C[-1]),
            "falls_after": self.collapse_after,
        }


@dataclass(frozen=True)
class EarlyCollapse:
    """A run that collapsed before it had enough points for a curve."""

    curve: Curve = field(repr=False)
    collapse_after: float

    def to_json(self) -> dict[str, Any]:
        """The keys of one entry of `early_falls` in `fit --json`."""
        problems, rollouts = self.curve.setting
        return {
            "run": self.curve.name,
            "problems_per_batch": problems,
            "rollouts_per_problem": rollouts,
            "falls_after": self.collapse_after,
        }


@dataclass(frozen=True)
class Tradeoff:
    """A frontier over some settings and the optimum along it."""

    fixed: str | None
    """`problems_per_batch`, `batch_size`, or None for the joint frontier."""
    value: int | None
    fits: tuple[CurveFit, ...]
    frontier: Frontier
    rollouts: Optimum | None
    """n*(C), or n*(M) at fixed batch size; None where n is unknown or has one value."""
    problems: Optimum | None
    """Bp*(M), at fixed batch size only."""

    def __repr__(self) -> str:
        fixed = "joint" if self.fixed is None else f"{self.fixed} = {self.value}"
        return f"Tradeoff({fixed}; {plural(len(self.fits), 'setting')}; {_in_words(self.rollouts)})"

    def to_json(self) -> dict[str, Any]:
        """The keys of `frontier`, `switches`, `best` and the optima in `fit --json`."""
        front, settings = self.frontier, [fit.setting for fit in self.fits]
        # n where it is known, else the run's name
        labels = [n if n is not None else fit.curves[0].name for fit, (_, n) in zip(self.fits, settings, strict=True)]
        low_C, high_C = np.percentile(front.values_BC, [2.5, 97.5], axis=0)
        bound_C: list[str | None] = [None] * len(front.best_C)
        if self.rollouts is not None:
            bound_C = bounds(self.fits, front.best_C, front.compute_C)
        interval_C2: list[Any] = [None] * len(front.compute_C)
        tried = [n for _, n in settings if n is not None]
        if len(tried) == len(settings):
            n_BC = np.array(tried)[front.best_BC]
            interval_C2 = np.percentile(n_BC, [2.5, 97.5], axis=0, method="inverted_cdf").T.tolist()
        best = []
        for compute, best_B, interval in zip(front.compute_C, front.best_BC.T, interval_C2, strict=True):
            probability: dict[str, float] = {}
            for i, count in enumerate(np.bincount(best_B)):
                if count:
                    probability[str(labels[i])] = probability.get(str(labels[i]), 0.0) + float(count) / len(best_B)
            best.append({"compute": float(compute), "probability": probability, "interval": interval})
        optima = {"optimal_rollouts": self.rollouts}
        if self.fixed == "batch_size":
            optima["optimal_problems"] = self.problems
        return {
            "frontier": [
                {
                    "compute": float(compute),
                    "rollouts_per_problem": settings[s][1],
                    "problems_per_batch": settings[s][0],
                    "run": self.fits[s].curves[0].name,
                    "value": float(value),
                    "value_interval": [min(float(low), float(value)), max(float(high), float(value))],
                    "bound": bound,
                }
                for compute, s, value, low, high, bound in zip(
                    front.compute_C, front.best_C.tolist(), front.values_C, low_C, high_C, bound_C, strict=True
                )
            ],
            "switches": [
                {
                    "compute": s.compute,
                    "from": labels[s.before],
                    "to": labels[s.after],
                    "value": s.value,
                    "from_problems_per_batch": settings[s.before][0],
                    "to_problems_per_batch": settings[s.after][0],
                    "crosses": s.crosses,
                }
                for s in front.switches
            ],
            **{
                key: None if optimum is None else optimum.to_json("M" if self.fixed == "batch_size" else "C")
                for key, optimum in optima.items()
            },
            "best": best,
        }


@dataclass(frozen=True)
class Law:
    """Everything that `fit` computes from a set of runs."""

    metric: str
    unit: str
    points: str
    bin_width: float
    """Bin of record-breaking points, in the metric's own unit."""
    replicates: int
    seed: int
    upper: float
    runs: tuple[RunFit, ...]
    settings: tuple[CurveFit, ...]
    joint: Tradeoff
    by_problems: tuple[Tradeoff, ...]
    by_batch: tuple[Tradeoff, ...]
    slices: tuple[Slice, ...]
    surface: Surface | None
    notes: tuple[str, ...]
    early_collapses: tuple[EarlyCollapse, ...] = ()
    """Runs that are left out, since they collapsed before they had enough points for a curve."""

    def __repr__(self) -> str:
        many = f"{plural(len(self.runs), 'run')}, {plural(len(self.settings), 'setting')}"
        return (
            f"Law({self.metric} over {self.unit}; {many}; {_in_words(self.joint.rollouts)}; "
            f"{plural(len(self.notes), 'note')})"
        )

    def to_json(self) -> dict[str, Any]:
        """The object that `fit --json` prints."""
        return {
            "metric": self.metric,
            "unit": self.unit,
            "points": self.points,
            "replicates": self.replicates,
            "curves": [run.to_json() for run in self.runs],
            "early_falls": [early.to_json() for early in self.early_collapses],
            **self.joint.to_json(),
            "fixed_problems": [
                {"problems_per_batch": t.value, **t.to_json()} for t in self.by_problems if len(self.by_problems) > 1
            ],
            "fixed_batch": [{"batch_size": t.value, **t.to_json()} for t in self.by_batch],
            "sensitivity": [each.to_json() for each in self.slices],
            "surface": None if self.surface is None else self.surface.to_json(),
            "notes": list(self.notes),
        }


def _in_words(best: Optimum | None) -> str:
    """n* at both ends of the range that was run, as text."""
    if best is None:
        return "no n*"
    signs = {None: "", "<=": "≤ ", ">=": "≥ "}
    low, high = (
        f"{signs[bound]}{best.estimate_C[i]:.0f} at {number(float(best.x_C[i]))}"
        for bound, i in ((best.floor_bound, 0), (best.ceiling_bound, -1))
    )
    return f"n* {low}, {high} ({best.direction})"


def fit_law(
    curves: Sequence[Curve],
    *,
    metric: str,
    unit: str = "rollouts",
    points: str = "all",
    bin_width: float = DEFAULT_BIN,
    replicates: int = 1000,
    seed: int = 0,
) -> Law:
    """Fit everything that the curves support; one random stream draws all of its uncertainty.

    `bin_width` of record-breaking points is a share of the values' scale: 1 for rates, 100 for percent (`scale_of`).
    """
    early = [EarlyCollapse(c, float(c.compute_C[usable_end(c.values_C) - 1])) for c in curves if collapsed_early(c)]
    # If all collapsed early, `usable_curves` raises.
    curves = [curve for curve in curves if not collapsed_early(curve)] or curves
    values = _values(curves) if curves else np.zeros(1)
    upper = upper_bound(values)
    bin_width *= scale_of(values)
    usable = usable_curves(curves, metric=metric, points=points, bin_width=bin_width)
    rng = np.random.default_rng(seed)
    runs, settings = _fit(curves, usable, upper, points, bin_width, replicates, rng)
    # A step of n = 32 costs four times one of n = 8, so steps compare settings of one n and batch size only.
    iso = unit != "steps" or len({(fit.setting[1], fit.curves[0].batch_size) for fit in settings}) < 2
    noise_SB = seed_noise(settings, seed=rng)
    competitions = [_Competition(None, None, settings, noise_SB)]
    competitions += _sharing(settings, noise_SB, "problems_per_batch")
    if unit == "rollouts":
        competitions += _sharing(settings, noise_SB, "batch_size")
    joint, *tradeoffs = _tradeoffs(competitions, iso=iso)
    return Law(
        metric=metric,
        unit=unit,
        points=points,
        bin_width=bin_width,
        replicates=replicates,
        seed=seed,
        upper=upper,
        runs=runs,
        settings=settings,
        joint=joint,
        by_problems=tuple(t for t in tradeoffs if t.fixed == "problems_per_batch"),
        by_batch=tuple(t for t in tradeoffs if t.fixed == "batch_size"),
        slices=tuple(sensitivity(settings, seed_noise_SB=noise_SB)) if iso else (),
        surface=fit_surface(settings, upper=upper, replicates=replicates, seed=rng) if iso else None,
        notes=tuple(_notes(runs, settings, joint, early, unit)),
        early_collapses=tuple(early),
    )


def _values(curves: Sequence[Curve]) -> Array:
    return np.concatenate([curve.values_C for curve in curves])


def _fit(
    curves: Sequence[Curve],
    usable: Sequence[Curve],
    upper: float,
    points: str,
    bin_width: float,
    replicates: int,
    rng: np.random.Generator,
) -> tuple[tuple[RunFit, ...], tuple[CurveFit, ...]]:
    """The fits of all runs and of all settings, made at once."""
    settings = settings_of(usable)
    groups = [[index] for index in range(len(usable))] + [group for group in settings if len(group) > 1]
    # Runs of one study share a bound, which helps short runs; runs without n may be on different scales.
    one_study = all(curve.rollouts_per_problem is not None for curve in curves)
    fits = fit_groups(
        [[usable[i] for i in group] for group in groups],
        replicates=replicates,
        seed=rng,
        upper=upper if one_study else [upper_bound(_values([curves[i] for i in group])) for group in groups],
    )
    fit_of = {tuple(group): fit for group, fit in zip(groups, fits, strict=True)}
    runs = tuple(
        RunFit(curve, fit, len(record_points(curve.compute_C, curve.values_C, bin_width=bin_width)), _collapse(curve))
        for curve, fit in zip(curves, fits, strict=False)
    )
    setting_fits = tuple(fit_of[tuple(group)] for group in settings)
    if points == "all":  # records rise with noise alone
        setting_fits = tuple(replace(fit, trend=last_trend(fit.curves)) for fit in setting_fits)
    return runs, setting_fits


def _collapse(curve: Curve) -> float | None:
    start = collapse_start(curve.values_C) or (len(curve.compute_C) if curve.ends_non_finite else None)
    return None if start is None else float(curve.compute_C[start - 1])


@dataclass(frozen=True)
class _Competition:
    """Settings that compete for the frontier, and the quantity that they share."""

    fixed: str | None
    value: int | None
    fits: tuple[CurveFit, ...]
    noise_SB: Array


def _sharing(fits: Sequence[CurveFit], noise_SB: Array, fixed: str) -> list[_Competition]:
    """The groups of several settings that share a Bp, or a batch size."""
    groups: dict[int, list[int]] = {}
    for i, fit in enumerate(fits):
        value = getattr(fit.curves[0], fixed)
        if value is not None:
            groups.setdefault(value, []).append(i)
    return [
        _Competition(fixed, value, tuple(fits[i] for i in group), noise_SB[group])
        for value, group in sorted(groups.items())
        if len(group) > 1
    ]


def _tradeoffs(competitions: Sequence[_Competition], *, iso: bool) -> list[Tradeoff]:
    """The frontier of each competition, and the optima along all of them, fitted at once."""
    fronts = [frontier(each.fits, seed_noise_SB=each.noise_SB) for each in competitions]
    readings: dict[tuple[int, int], Reading] = {}
    for i, (each, front) in enumerate(zip(competitions, fronts, strict=True)):
        at_batch = each.fixed == "batch_size"
        for axis in [1] * iso + [0] * at_batch:
            reading = _reading(each, front, axis, scale=float(each.value or 1) if at_batch else 1.0)
            if reading is not None:
                readings[i, axis] = reading
    optima = dict(zip(readings, fit_optima(list(readings.values())), strict=True))
    return [
        Tradeoff(each.fixed, each.value, each.fits, front, optima.get((i, 1)), optima.get((i, 0)))
        for i, (each, front) in enumerate(zip(competitions, fronts, strict=True))
    ]


def _reading(competition: _Competition, front: Frontier, axis: int, *, scale: float) -> Reading | None:
    """The optimal n (axis 1) or Bp (axis 0) along compute / `scale`, in the range where settings can be compared."""
    fits = competition.fits
    values = [fit.setting[axis] for fit in fits]
    if any(v is None for v in values) or len(set(values)) < 2:
        return None
    part, everyone = compared(fits, front.compute_C)
    if not everyone and front.switches and all(s.crosses for s in front.switches):
        # Every setting that took the lead began behind, so it did not lead before its first point either.
        part = slice(0, len(front.compute_C))
    if part.stop - part.start < 2:
        return None
    tried: Array = np.array([float(v or 0) for v in values])
    crossings = {"rises" if tried[s.after] > tried[s.before] else "falls" for s in front.switches if s.crosses}
    first, end = float(tried[front.best_C[part.start]]), float(front.compute_C[part.stop - 1])
    return Reading(
        front.compute_C[part] / scale,
        tried[front.best_C[part]],
        tried[front.best_BC[:, part]],
        tried=tried,
        bound_C=tuple(bounds(fits, front.best_C[part], front.compute_C[part], axis=axis)),
        moves=frozenset({"rises", "falls"} if everyone else crossings),
        leads=_leads(competition, tried, first, end),
    )


def _leads(competition: _Competition, tried: Array, first: float, end: float) -> frozenset[str]:
    """The directions in which the optimum has moved significantly from `first`, its value at small compute.

    It has if larger (or smaller) settings lead all others at the end. One of several equal settings other than the
    first mostly leads by chance, so the lead has to exceed that between equal settings.
    """
    begun = [i for i, fit in enumerate(competition.fits) if fit.starts <= end * EARLY_FACTOR]
    fits, at = [competition.fits[i] for i in begun], np.array([end])
    values_S = np.array([reached(fit, at)[0] for fit in fits])
    draws_SB = np.stack([fit.ensemble.at(np.minimum(at, fit.last))[:, 0] for fit in fits])

    def is_significant(ahead_S: Bools) -> bool:
        def lead(values_SB: Array) -> Array:
            return np.asarray(values_SB[ahead_S].max(axis=0) - values_SB[~ahead_S].max(axis=0))

        if not ahead_S.any() or ahead_S.all():
            return False
        return by_chance(lead, values_S, draws_SB + competition.noise_SB[begun]) < _SIGNIFICANT

    ways = (("rises", tried[begun] > first), ("falls", tried[begun] < first))
    return frozenset(way for way, ahead_S in ways if is_significant(ahead_S))


def _notes(
    runs: Sequence[RunFit],
    settings: Sequence[CurveFit],
    joint: Tradeoff,
    early: Sequence[EarlyCollapse],
    unit: str,
) -> list[str]:
    best = joint.rollouts
    out = _missing_notes(runs, unit) if best is None else _optimum_notes(joint, best, unit)
    if any(run.curve.rollouts_per_problem is None for run in runs) and not on_one_scale([run.curve for run in runs]):
        out.append("the runs' values lie on different scales: a frontier through them compares what does not compare")
    shared = [fit for fit in settings if len(fit.curves) > 1]
    if len(settings) > 1 and not shared:
        margin = f"{SEED_MARGIN * scale_of(_values([c for run in runs for c in run.fit.curves])):.2g}"
        allowed = f"n* allows for ±{margin.removeprefix('0')} between seeds (ScaleRL's margin), which may be more; "
        out.append(
            f"one seed a setting: {'' if best is None else allowed}intervals of curves hold evaluation noise and the "
            "doubt about the form alone"
        )
    unnamed = [fit for fit in shared if any(curve.seed is None for curve in fit.curves)]
    if unnamed:
        names = " and ".join(f"'{curve.name}'" for curve in unnamed[0].curves[:2])
        out.append(f"runs with the same Bp and n, such as {names}, are taken as seeds of one setting")
    if len({fit.setting for fit in settings}) < len(settings) and best is not None:
        out.append("several recipes share a Bp and n; the frontier takes the best of them: fit one with --where")
    collapsed = [(run.curve, run.collapse_after) for run in runs if run.collapse_after is not None]
    broke = [f"'{curve.name}' after {number(at)} {unit}" for curve, at in collapsed if at == curve.compute_C[-1]]
    fell = [f"'{curve.name}' after {number(at)} {unit}" for curve, at in collapsed if at < curve.compute_C[-1]]
    dips = [f"{run.dips} of '{run.curve.name}'" for run in runs if run.dips]
    for what, named in (
        ("evaluations far below those before and after are not in the fits", dips),
        ("runs that collapse are fitted up to there", fell),
        ("runs that broke: their later evaluations are NaN or infinite", broke),
    ):
        if named:
            more = f" and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
            out.append(f"{what}: {', '.join(named[:_NAMED])}{more}")
    return out + [
        f"run '{each.curve.name}' collapsed within its first {usable_end(each.curve.values_C)} evaluations "
        f"({number(each.collapse_after)} {unit}), too early for a curve: left out"
        for each in early
    ]


def _optimum_notes(joint: Tradeoff, best: Optimum, unit: str) -> list[str]:
    out = []
    ends = (("small", best.floor_bound, best.estimate_C[0]), ("large", best.ceiling_bound, best.estimate_C[-1]))
    for where, bound, n in ends:
        if bound == "<=":
            out.append(f"n* ≤ {n:.0f} at {where} compute: run smaller n to find it")
        elif bound == ">=" and n == best.largest:
            out.append(f"n* ≥ {n:.0f} at {where} compute: run larger n to find it")
    front = joint.frontier
    here_C = (front.compute_C >= best.x_C[0]) & (front.compute_C <= best.x_C[-1])
    gone = sorted({each for each in ended(joint.fits, front.best_C[here_C], front.compute_C[here_C]) if each})
    if gone:
        listed = " and ".join(f"n = {n} ends at {number(last)} {unit}" for n, last in gone)
        out.append(f"{listed}: n* beyond is not compared with {'it' if len(gone) == 1 else 'them'}, and may be larger")
    if best.k_at_bound:
        out.append("n* moves in one jump: its slope k is only known to be large")
    if best.direction == "unclear":
        out.append("whether n* moves with compute is undecided: run seeds, or the settings over one range of compute")
    return out


def _missing_notes(runs: Sequence[RunFit], unit: str) -> list[str]:
    known = {run.curve.rollouts_per_problem for run in runs}
    if None in known:
        return ["rollouts per problem are unknown for some runs: no n*(C); name the column with --columns"]
    if len(known) < 2:
        return []
    if unit == "steps":
        return ["steps of different n do not cost the same: no n*(C); say --problems-per-batch to count rollouts"]
    return ["no two settings were run over the same compute: no n*(C)"]
