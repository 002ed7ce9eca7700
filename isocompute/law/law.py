"""The law of a study: everything that `isocompute fit` computes, from curves to n*(C).

The paper's three trade-offs differ in which settings compete on the frontier:

| trade-off | competitors | optimum along |
| --- | --- | --- |
| n against M at fixed Bp (section 4.1) | all n with that Bp | compute |
| Bp against n at fixed B (section 4.2) | all (Bp, n) with Bp · n = B | update steps M = C / B |
| jointly (section 4.3) | all (Bp, n) | compute |
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from isocompute.core.arrays import Array
from isocompute.core.curve import Curve, on_one_scale, scale_of, upper_bound
from isocompute.core.formatting import number, plural
from isocompute.core.recipe import FOLLOWS_BATCH
from isocompute.law.curves import (
    DEFAULT_BIN,
    collapse_start,
    collapsed_early,
    record_points,
    settings_of,
    usable_curves,
    usable_end,
    usable_mask,
)
from isocompute.law.fits import CurveFit, Surface, fit_groups, fits_of, surface_of
from isocompute.law.frontier import (
    Frontier,
    Grid,
    Optimum,
    Reading,
    Slice,
    bounds,
    compared,
    ended,
    fit_optima,
    frontier,
    movement,
    sensitivity,
)
from isocompute.law.posterior import fit_posterior, shortest

_NAMED = 3
"""Most runs that a note names."""
_SMOOTHED = 0.85
"""Autocorrelation of evaluations from which they look smoothed."""


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
            "form": fit.form,
            "form_weights": fit.form_weights,
            "base": fit.base,
            "base_interval": fit.base_interval(),
            "asymptote": fit.ceiling,
            "asymptote_interval": fit.ceiling_interval(),
            "rise_done": fit.rise_done,
            "parameters": fit.parameters(),
            "parameter_intervals": fit.parameter_intervals(),
            "at_bound": [],
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
            n_BC, n_C = np.array(tried, dtype=np.float64)[front.best_BC], np.array(tried)[front.best_C]
            interval_C2 = [shortest(n_B, n) for n_B, n in zip(n_BC.T, n_C.tolist(), strict=True)]
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
        for bound, i in ((best.floor_bound, best.start), (best.ceiling_bound, -1))
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
    # Runs of one study share a bound, which helps short runs; runs without n may be on different scales.
    one_study = all(curve.rollouts_per_problem is not None for curve in curves)
    uppers = [upper if one_study else upper_bound(curve.values_C) for curve in curves]
    alone = fit_groups([[c] for c in usable], replicates=replicates, seed=rng, upper=uppers, with_seeds=False)
    runs = tuple(
        RunFit(curve, fit, len(record_points(curve.compute_C, curve.values_C, bin_width=bin_width)), _collapse(curve))
        for curve, fit in zip(curves, alone, strict=True)
    )
    settings = _settings(runs, usable, unit, replicates, rng)
    # A step of n = 32 costs four times one of n = 8, so steps compare settings of one n and batch size only.
    iso = unit != "steps" or len({(fit.setting[1], fit.curves[0].batch_size) for fit in settings}) < 2
    joint, *tradeoffs = _tradeoffs(settings, unit=unit, iso=iso)
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
        slices=tuple(sensitivity(settings)) if iso else (),
        surface=surface_of(settings) if iso else None,
        notes=tuple(_notes(runs, settings, joint, early, unit)),
        early_collapses=tuple(early),
    )


def _values(curves: Sequence[Curve]) -> Array:
    return np.concatenate([curve.values_C for curve in curves])


def _settings(
    runs: Sequence[RunFit], usable: Sequence[Curve], unit: str, replicates: int, rng: np.random.Generator
) -> tuple[CurveFit, ...]:
    """The configurations, smaller n and Bp first.

    Those of one recipe share a posterior; recipes do not. A run without n is a configuration of its own.
    """
    groups = settings_of(usable)
    out = [runs[group[0]].fit for group in groups]
    known = [g for g, group in enumerate(groups) if usable[group[0]].rollouts_per_problem is not None]
    recipes = dict(zip(known, recipes_of([usable[groups[g][0]] for g in known]), strict=True))
    upper = upper_bound(_values([runs[i].curve for g in known for i in groups[g]])) if known else np.inf
    for recipe in dict.fromkeys(recipes.values()):
        mine = [g for g, name in recipes.items() if name == recipe]
        of = [[usable[i] for i in groups[g]] for g in mine]
        posterior = fit_posterior(
            of,
            upper=upper,
            replicates=replicates,
            rng=rng,
            in_rollouts=unit == "rollouts",
            ended=[all(runs[i].collapse_after is not None for i in groups[g]) for g in mine],
        )
        for g, fit in zip(mine, fits_of(of, posterior), strict=True):
            out[g] = fit
    return tuple(out)


def recipes_of(firsts: Sequence[Curve]) -> list[str]:
    """Each configuration's recipe; all the same if none of them was run with several.

    Learning rates that differ only because they follow the batch size are no difference.
    """
    settings = [curve.setting for curve in firsts]
    if len(set(settings)) == len(settings):
        return [""] * len(settings)
    logged = [curve.recipe_fields for curve in firsts]
    fields = [each["recipe"] for each in logged if isinstance(each.get("recipe"), dict)]
    if len(fields) < len(firsts):
        return [curve.recipe for curve in firsts]
    for name in FOLLOWS_BATCH:
        rates = [json.dumps(each.get(name)) for each in fields]
        if len(set(zip(settings, rates, strict=True))) == len(set(settings)):
            for each in fields:
                each.pop(name, None)
    return [json.dumps(each, sort_keys=True) for each in logged]


def _collapse(curve: Curve) -> float | None:
    start = collapse_start(curve.values_C) or (len(curve.compute_C) if curve.ends_non_finite else None)
    return None if start is None else float(curve.compute_C[start - 1])


@dataclass(frozen=True)
class _Competition:
    """Configurations that compete for the frontier (by index), and the quantity that they share."""

    fixed: str | None
    value: int | None
    among: tuple[int, ...]


def _sharing(fits: Sequence[CurveFit], fixed: str) -> list[_Competition]:
    """The groups of several configurations that share a Bp, or a batch size."""
    groups: dict[int, list[int]] = {}
    for i, fit in enumerate(fits):
        value = getattr(fit.curves[0], fixed)
        if value is not None:
            groups.setdefault(value, []).append(i)
    return [_Competition(fixed, value, tuple(g)) for value, g in sorted(groups.items()) if len(g) > 1]


def _tradeoffs(settings: tuple[CurveFit, ...], *, unit: str, iso: bool) -> list[Tradeoff]:
    """The frontier of each competition, and the optima along all of them, fitted at once."""
    competitions = [_Competition(None, None, tuple(range(len(settings)))), *_sharing(settings, "problems_per_batch")]
    if unit == "rollouts":
        competitions += _sharing(settings, "batch_size")
    grid = Grid.of(settings)
    fits = [tuple(settings[i] for i in each.among) for each in competitions]
    grids = [grid if len(each.among) == len(settings) else grid.part(each.among) for each in competitions]
    fronts: dict[tuple[int, ...], Frontier] = {}
    readings: dict[tuple[int, int], Reading] = {}
    for i, each in enumerate(competitions):
        if each.among not in fronts:
            fronts[each.among] = frontier(fits[i], grids[i])
        front, at_batch = fronts[each.among], each.fixed == "batch_size"
        for axis in [1] * iso + [0] * at_batch:
            reading = _reading(fits[i], front, grids[i], axis, scale=float(each.value or 1) if at_batch else 1.0)
            if reading is not None:
                readings[i, axis] = reading
    optima = dict(zip(readings, fit_optima(list(readings.values())), strict=True))
    return [
        Tradeoff(each.fixed, each.value, fits[i], fronts[each.among], optima.get((i, 1)), optima.get((i, 0)))
        for i, each in enumerate(competitions)
    ]


def _reading(fits: Sequence[CurveFit], front: Frontier, grid: Grid, axis: int, *, scale: float) -> Reading | None:
    """The optimal n (axis 1) or Bp (axis 0) along compute / `scale`, in the range where settings can be compared."""
    values = [fit.setting[axis] for fit in fits]
    if any(v is None for v in values) or len(set(values)) < 2:
        return None
    part = compared(fits, front.compute_C)
    if front.switches and all(switch.crosses for switch in front.switches):
        # Every configuration that took the lead began behind, so it did not lead before its first point either.
        part = slice(0, part.stop)
    if part.stop - part.start < 2:
        return None
    tried: Array = np.array([float(v or 0) for v in values])
    skipped = len(grid.compute_C) - len(front.compute_C)
    return Reading(
        front.compute_C[part] / scale,
        tried[front.best_C[part]],
        tried[front.best_BC[:, part]],
        tried=tried,
        movement=movement(fits, grid, slice(0, part.stop + skipped), axis),
        bound_C=tuple(bounds(fits, front.best_C[part], front.compute_C[part], axis=axis)),
    )


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
    if len(settings) > 1 and not shared and best is not None:
        share = f"{settings[0].posterior.seed_effect:.1%}"
        out.append(
            f"one seed a setting: how much seeds differ is not measured; a standard deviation of {share} of the rise "
            "is assumed (ScaleRL's margin)"
        )
    smoothed = [f"'{run.curve.name}'" for run in runs if run.fit.posterior.autocorrelation >= _SMOOTHED]
    if smoothed:
        more = f" and {len(smoothed) - _NAMED} more" if len(smoothed) > _NAMED else ""
        out.append(
            f"evaluations look smoothed (each repeats most of the one before): {', '.join(smoothed[:_NAMED])}{more}; "
            "intervals allow for it, raw values would tell more"
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
    ends = (("small", best.floor_bound, best.floor), ("large", best.ceiling_bound, best.ceiling))
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
