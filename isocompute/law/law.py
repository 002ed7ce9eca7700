"""The law of a study: everything that `isocompute fit` finds, from curves to n*(C).

The paper's three settings are three choices of which settings compete on the frontier:

| setting | competitors | optimum along |
| --- | --- | --- |
| n against M at fixed Bp (section 4.1) | all n with that Bp | compute |
| Bp against n at fixed B (section 4.2) | all (Bp, n) with Bp · n = B | update steps M = C / B |
| jointly (section 4.3) | all (Bp, n) | compute |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from isocompute.core.arrays import Array, Bools
from isocompute.core.formatting import number, plural
from isocompute.law.curve import Curve, on_one_scale, scale_of, upper_bound
from isocompute.law.falls import fallen_early, fitted, lasting_fall, usable_end
from isocompute.law.fits import CurveFit, fit_groups
from isocompute.law.frontier import REACH, Frontier, bounds, compared, ended, frontier, luck_of, reached
from isocompute.law.intervals import by_chance
from isocompute.law.optimum import Optimum, Reading, fit_optima
from isocompute.law.records import DEFAULT_BIN, record_points
from isocompute.law.seeds import ONE_SEED_ERROR
from isocompute.law.sensitivity import Slice, sensitivity
from isocompute.law.settings import settings_of, usable_curves
from isocompute.law.surface import Surface
from isocompute.law.surface_fit import fit_surface
from isocompute.law.trend import last_trend

__all__ = ["Law", "RunFit", "Tradeoff", "fit_law"]


@dataclass(frozen=True)
class RunFit:
    """One run's curve with what was left out of it."""

    curve: Curve = field(repr=False)
    fit: CurveFit
    records: int
    falls_after: float | None
    """Compute of the last point before a lasting fall; the points after it are not in the fit."""

    @property
    def points(self) -> int:
        """How many of its evaluations the fit goes through."""
        return int(fitted(self.curve.values_C).sum())

    @property
    def dips(self) -> int:
        """Evaluations before any lasting fall that lie far below those around them and are not in the fit."""
        return usable_end(self.curve.values_C) - self.points


@dataclass(frozen=True)
class EarlyFall:
    """A run that fell for good before it had points for a curve."""

    curve: Curve = field(repr=False)
    falls_after: float


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


_NAMED = 3
"""Runs that a note names."""
_CHANCE = 0.05
"""How often n* may be said to move where all n are equal at the end."""

_CURVES_HOLD = "intervals of curves hold evaluation noise and the doubt about the form alone"

_Competition = tuple[str | None, int | None, tuple[CurveFit, ...]]
"""What is held fixed, its value, and the settings that compete."""


@dataclass(frozen=True)
class Law:
    """What a set of runs says about spending compute."""

    metric: str
    unit: str
    points: str
    bin_width: float
    """Of record-breaking points, in the metric's own unit."""
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
    early: tuple[EarlyFall, ...] = ()
    """Runs that are in none of this, since they fell before they had points for a curve."""

    def __repr__(self) -> str:
        many = f"{plural(len(self.runs), 'run')}, {plural(len(self.settings), 'setting')}"
        return (
            f"Law({self.metric} over {self.unit}; {many}; {_in_words(self.joint.rollouts)}; "
            f"{plural(len(self.notes), 'note')})"
        )

    def to_json(self) -> dict[str, Any]:
        """The keys of `fit --json` (docs/fit.md)."""
        from isocompute.law.store import law_to_json

        return law_to_json(self)


def _in_words(best: Optimum | None) -> str:
    """n* at both ends of what was run, for a result that is shown."""
    if best is None:
        return "no n*"
    signs = {None: "", "<=": "≤ ", ">=": "≥ "}
    ends = ((best.floor_bound, 0), (best.ceiling_bound, -1))
    said = [f"{signs[bound]}{best.estimate_C[i]:.0f} at {number(float(best.x_C[i]))}" for bound, i in ends]
    return f"n* {said[0]}, {said[1]} ({best.direction})"


def fit_law(
    curves: Sequence[Curve],
    *,
    metric: str,
    unit: str = "rollouts",
    points: str = "all",
    bin_width: float = DEFAULT_BIN,
    replicates: int = 1000,
    seed: int = 0,
    with_surface: bool = True,
) -> Law:
    """Fit everything the curves support; the surface through all settings, which takes longest to begin, if wanted.

    `bin_width`, of record-breaking points, is in units of the scale that the values lie on: 1 for rates, 100 for
    percent (`scale_of`).
    """
    early = [EarlyFall(c, float(c.compute_C[usable_end(c.values_C) - 1])) for c in curves if fallen_early(c)]
    curves = [curve for curve in curves if not fallen_early(curve)] or curves  # all of them are refused below
    values = _values(curves) if curves else np.zeros(1)  # no curves are refused below
    upper = upper_bound(values)
    bin_width *= scale_of(values)
    usable = usable_curves(curves, metric=metric, points=points, bin_width=bin_width)
    settings = settings_of(usable)
    several = [group for group in settings if len(group) > 1]
    singles = [[index] for index in range(len(usable))]
    groups = singles + several
    fitted = fit_groups(
        [[usable[i] for i in group] for group in groups],
        replicates=replicates,
        seed=seed,
        upper=upper
        if _of_one_study(curves)
        else [upper_bound(_values([curves[i] for i in group])) for group in groups],
    )
    single, pooled = fitted[: len(usable)], iter(fitted[len(usable) :])
    setting_fits = tuple(next(pooled) if len(group) > 1 else single[group[0]] for group in settings)
    if points == "all":  # records rise with noise alone
        setting_fits = tuple(replace(fit, trend=last_trend(fit.curves)) for fit in setting_fits)
    runs = tuple(
        RunFit(
            curve,
            fit,
            len(record_points(curve.compute_C, curve.values_C, bin_width=bin_width)),
            _falls_after(curve),
        )
        for curve, fit in zip(curves, single, strict=True)
    )
    iso = unit != "steps" or len({fit.curves[0].batch_size for fit in setting_fits}) < 2
    if unit == "steps" and len({fit.setting[1] for fit in setting_fits}) > 1:
        iso = False  # a step of n = 32 costs four times one of n = 8, whatever Bp is
    competitions: list[_Competition] = [(None, None, setting_fits)]
    competitions += _slices_of(setting_fits, "problems_per_batch")
    if unit == "rollouts":
        competitions += _slices_of(setting_fits, "batch_size")
    luck_SB = luck_of(setting_fits, seed=seed)
    joint, *tradeoffs = _tradeoffs(competitions, luck_SB, iso=iso)
    surface = None
    if with_surface and iso:
        surface = fit_surface(setting_fits, upper=upper, replicates=replicates, seed=seed)
    return Law(
        metric=metric,
        unit=unit,
        points=points,
        bin_width=bin_width,
        replicates=replicates,
        seed=seed,
        upper=upper,
        runs=runs,
        settings=setting_fits,
        joint=joint,
        by_problems=tuple(t for t in tradeoffs if t.fixed == "problems_per_batch"),
        by_batch=tuple(t for t in tradeoffs if t.fixed == "batch_size"),
        slices=tuple(sensitivity(setting_fits, luck_SB=luck_SB)) if iso else (),
        surface=surface,
        notes=(*_notes(runs, settings, joint, unit), *_early_notes(early, unit)),
        early=tuple(early),
    )


def _values(curves: Sequence[Curve]) -> Array:
    return np.concatenate([curve.values_C for curve in curves])


def _of_one_study(curves: Sequence[Curve]) -> bool:
    """Whether the runs seem to be of one study, whose metric has one bound, also for those that have not got far."""
    return all(curve.rollouts_per_problem is not None for curve in curves)


def _falls_after(curve: Curve) -> float | None:
    start = lasting_fall(curve.values_C) or (len(curve.compute_C) if curve.lost else None)
    return None if start is None else float(curve.compute_C[start - 1])


def _slices_of(fits: Sequence[CurveFit], fixed: str) -> list[_Competition]:
    """The settings that share a Bp, or a batch size, where there are several."""
    groups: dict[int, list[CurveFit]] = {}
    for fit in fits:
        curve = fit.curves[0]
        value = curve.problems_per_batch if fixed == "problems_per_batch" else curve.batch_size
        if value is not None:
            groups.setdefault(value, []).append(fit)
    return [(fixed, value, tuple(group)) for value, group in sorted(groups.items()) if len(group) > 1]


def _tradeoffs(competitions: Sequence[_Competition], luck_SB: Array, *, iso: bool) -> list[Tradeoff]:
    """A frontier for each, and the optima along all of them, fitted at once; all settings compete in the first."""
    luck = {id(fit): luck_B for fit, luck_B in zip(competitions[0][2], luck_SB, strict=True)}
    lucks = [np.stack([luck[id(fit)] for fit in fits]) for _, _, fits in competitions]
    fronts = [frontier(fits, luck_SB=mine_SB) for (_, _, fits), mine_SB in zip(competitions, lucks, strict=True)]
    readings: dict[tuple[int, int], Reading] = {}
    for i, ((fixed, value, fits), front) in enumerate(zip(competitions, fronts, strict=True)):
        at_batch = fixed == "batch_size"
        scale = float(value or 1) if at_batch else 1.0
        axes = [axis for axis, wanted in ((1, iso), (0, at_batch)) if wanted]
        for axis in axes:
            reading = _reading(front, fits, lucks[i], axis, scale)
            if reading is not None:
                readings[i, axis] = reading
    optima = dict(zip(readings, fit_optima(list(readings.values())), strict=True))
    return [
        Tradeoff(fixed, value, fits, front, optima.get((i, 1)), optima.get((i, 0)))
        for i, ((fixed, value, fits), front) in enumerate(zip(competitions, fronts, strict=True))
    ]


def _reading(front: Frontier, fits: tuple[CurveFit, ...], luck_SB: Array, axis: int, scale: float) -> Reading | None:
    """The optimal n (axis 1) or Bp (axis 0) along compute / scale, where settings can be compared."""
    values = [fit.setting[axis] for fit in fits]
    if any(v is None for v in values) or len(set(values)) < 2:
        return None
    part, everyone = compared(fits, front.compute_C)
    if not everyone and front.switches and all(s.crosses for s in front.switches):
        # Every setting that took the lead began behind: what came before its beginning is not in doubt.
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
        leads=_leads(fits, luck_SB, tried, first, end),
    )


def _leads(fits: Sequence[CurveFit], luck_SB: Array, tried: Array, first: float, end: float) -> frozenset[str]:
    """Which way the optimum has moved from `first`, its value at small compute, beyond doubt: a larger, or a smaller,
    setting leads all others at the end.

    Of several equal settings another than the first is in front more often than not, in the estimate and in every
    replicate; so the lead has to be larger than that of equals.
    """
    begun = [i for i, fit in enumerate(fits) if fit.starts <= end * REACH]
    at = np.array([end])
    values_S = np.array([reached(fits[i], at)[0] for i in begun])
    replicates_SB = np.stack([fits[i].ensemble.at(np.minimum(at, fits[i].last))[:, 0] for i in begun])
    out = set()
    for way, ahead_S in (("rises", tried[begun] > first), ("falls", tried[begun] < first)):
        if ahead_S.any() and not ahead_S.all():
            chance = by_chance(partial(_lead, ahead_S=ahead_S), values_S, replicates_SB + luck_SB[begun])
            out |= {way} if chance < _CHANCE else set()
    return frozenset(out)


def _lead(values_SB: Array, ahead_S: Bools) -> Array:
    return np.asarray(values_SB[ahead_S].max(axis=0) - values_SB[~ahead_S].max(axis=0))


def _notes(runs: Sequence[RunFit], settings: Sequence[Sequence[int]], joint: Tradeoff, unit: str) -> list[str]:
    out = _optimum_notes(joint, unit) if joint.rollouts is not None else _missing_notes(runs, unit)
    if any(run.curve.rollouts_per_problem is None for run in runs) and not on_one_scale([run.curve for run in runs]):
        out.append("the runs' values lie on different scales: a frontier through them compares what does not compare")
    shared = [group for group in settings if len(group) > 1]
    if len(settings) > 1 and not shared:
        out.append(f"one seed a setting: {_margin(runs) if joint.rollouts is not None else ''}{_CURVES_HOLD}")
    unnamed = [group for group in shared if any(runs[i].curve.seed is None for i in group)]
    if unnamed:
        names = " and ".join(f"'{runs[i].curve.name}'" for i in unnamed[0][:2])
        out.append(f"runs with the same Bp and n, such as {names}, are taken as seeds of one setting")
    if len({run.curve.setting for run in runs}) < len(settings) and joint.rollouts is not None:
        out.append("several recipes share a Bp and n; the frontier takes the best of them: fit one with --where")
    out += _left_out(runs, unit)
    return out


def _margin(runs: Sequence[RunFit]) -> str:
    scale = scale_of(_values([curve for run in runs for curve in run.fit.curves]))
    margin = f"{ONE_SEED_ERROR * scale:.2g}".removeprefix("0")
    return f"n* allows for ±{margin} between seeds (ScaleRL's margin), which may be more; "


def _left_out(runs: Sequence[RunFit], unit: str) -> list[str]:
    """Which evaluations are not in the fits, the first few runs by name."""

    def told(what: str, named: Sequence[str]) -> list[str]:
        more = f" and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
        return [f"{what}: {', '.join(named[:_NAMED])}{more}"] if named else []

    ended = [(run.curve, run.falls_after) for run in runs if run.falls_after is not None]
    broke = [f"'{curve.name}' after {number(at)} {unit}" for curve, at in ended if at == curve.compute_C[-1]]
    fell = [f"'{curve.name}' after {number(at)} {unit}" for curve, at in ended if at < curve.compute_C[-1]]
    dips = [f"{run.dips} of '{run.curve.name}'" for run in runs if run.dips]
    return (
        told("evaluations far below those before and after are not in the fits", dips)
        + told("runs that fall for good, as far as they were run, are fitted up to there", fell)
        + told("runs that broke: their later evaluations are NaN or infinite", broke)
    )


def _early_notes(early: Sequence[EarlyFall], unit: str) -> list[str]:
    return [
        f"run '{lost.curve.name}' fell for good within its first {usable_end(lost.curve.values_C)} evaluations "
        f"({number(lost.falls_after)} {unit}), too early for a curve: left out"
        for lost in early
    ]


def _optimum_notes(joint: Tradeoff, unit: str) -> list[str]:
    best = joint.rollouts
    if best is None:
        return []
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
