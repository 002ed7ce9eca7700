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
from dataclasses import dataclass

import numpy as np

from isocompute.arrays import Array
from isocompute.errors import InputError
from isocompute.law.curve import MINIMUM_POINTS, Curve, Setting, lasting_fall, upper_bound
from isocompute.law.fits import CurveFit, fit_groups, usable_points
from isocompute.law.frontier import Frontier, frontier
from isocompute.law.optimum import Optimum, fit_optimum
from isocompute.law.records import DEFAULT_BIN, record_points
from isocompute.law.sensitivity import Slice, sensitivity
from isocompute.law.surface import Surface, fit_surface

__all__ = ["Law", "RunFit", "Tradeoff", "fit_law"]


@dataclass(frozen=True)
class RunFit:
    """One run's curve with what was left out of it."""

    curve: Curve
    fit: CurveFit
    records: int
    falls_after: float | None
    """Compute of the last point before a lasting fall; the points after it are not in the fit."""


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


@dataclass(frozen=True)
class Law:
    """What a set of runs says about spending compute."""

    metric: str
    unit: str
    points: str
    bin_width: float
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
    """Fit everything the curves support."""
    if not curves:
        raise InputError("there are no runs to fit; give a folder of runs or a table with at least one run.")
    usable = [usable_points(curve, points=points, bin_width=bin_width) for curve in curves]
    for curve, kept in zip(curves, usable, strict=True):
        _check(curve, kept, points, metric)
    upper = upper_bound(np.concatenate([curve.values_C for curve in curves]))
    settings = _settings(usable)
    several = [group for group in settings if len(group) > 1]
    singles = [[index] for index in range(len(usable))]
    fitted = fit_groups(
        [[usable[i] for i in group] for group in singles + several], replicates=replicates, seed=seed, upper=upper
    )
    single, pooled = fitted[: len(usable)], iter(fitted[len(usable) :])
    setting_fits = tuple(next(pooled) if len(group) > 1 else single[group[0]] for group in settings)
    runs = tuple(
        RunFit(
            curve,
            fit,
            len(record_points(curve.compute_C, curve.values_C, bin_width=bin_width)),
            _falls_after(curve),
        )
        for curve, fit in zip(curves, single, strict=True)
    )
    joint = _tradeoff(None, None, setting_fits)
    by_problems = _slices_of(setting_fits, "problems_per_batch")
    by_batch = _slices_of(setting_fits, "batch_size") if unit == "rollouts" else ()
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
        by_problems=by_problems,
        by_batch=by_batch,
        slices=tuple(sensitivity(setting_fits)),
        surface=surface,
        notes=tuple(_notes(runs, settings, joint, unit)),
    )


def _check(curve: Curve, kept: Curve, points: str, metric: str) -> None:
    if len(kept.compute_C) < MINIMUM_POINTS:
        what = "record-breaking points" if points == "records" else "usable points"
        raise InputError(
            f"run '{curve.name}', column '{metric}': {len(kept.compute_C)} {what}, a fit needs "
            f"{MINIMUM_POINTS}; evaluate more often"
            + (", use a smaller --bin, or fit --points all." if points == "records" else " or leave the run out.")
        )
    if np.ptp(kept.values_C) == 0:
        raise InputError(
            f"run '{curve.name}', column '{metric}': all {len(kept.values_C)} values are "
            f"{kept.values_C[0]:g}; a constant has no curve: check the metric or leave the run out."
        )


def _settings(curves: Sequence[Curve]) -> list[list[int]]:
    """Indices of the runs of each setting, smaller n and Bp first; a run whose n is unknown is a setting of its own."""
    out: dict[tuple[Setting, str], list[int]] = {}
    order = sorted(
        range(len(curves)), key=lambda i: (curves[i].rollouts_per_problem or 0, curves[i].problems_per_batch or 0)
    )
    for i in order:
        known = curves[i].rollouts_per_problem is not None
        out.setdefault((curves[i].setting, "" if known else curves[i].name), []).append(i)
    return list(out.values())


def _falls_after(curve: Curve) -> float | None:
    start = lasting_fall(curve.values_C)
    return float(curve.compute_C[start - 1]) if start is not None and start >= MINIMUM_POINTS else None


def _slices_of(fits: Sequence[CurveFit], fixed: str) -> tuple[Tradeoff, ...]:
    groups: dict[int, list[CurveFit]] = {}
    for fit in fits:
        curve = fit.curves[0]
        value = curve.problems_per_batch if fixed == "problems_per_batch" else curve.batch_size
        if value is not None:
            groups.setdefault(value, []).append(fit)
    return tuple(_tradeoff(fixed, value, tuple(group)) for value, group in sorted(groups.items()) if len(group) > 1)


def _tradeoff(fixed: str | None, value: int | None, fits: tuple[CurveFit, ...]) -> Tradeoff:
    front = frontier(fits)
    scale = float(value or 1) if fixed == "batch_size" else 1.0
    rollouts = _optimum(front, fits, 1, scale)
    problems = _optimum(front, fits, 0, scale) if fixed == "batch_size" else None
    return Tradeoff(fixed, value, fits, front, rollouts, problems)


def _optimum(front: Frontier, fits: tuple[CurveFit, ...], axis: int, scale: float) -> Optimum | None:
    """The optimal n (axis 1) or Bp (axis 0) along compute / scale."""
    values = [fit.setting[axis] for fit in fits]
    if any(v is None for v in values) or len(set(values)) < 2:
        return None
    tried: Array = np.array([float(v or 0) for v in values])
    if axis == 0:
        # Bp*(M) falls where n*(M) rises: fit 1/Bp, whose log2 rises, and turn it over.
        return _turned(
            fit_optimum(front.compute_C / scale, 1 / tried[front.best_C], 1 / tried[front.best_BC], tried=1 / tried)
        )
    return fit_optimum(front.compute_C / scale, tried[front.best_C], tried[front.best_BC], tried=tried)


def _turned(o: Optimum) -> Optimum:
    """The optimum of 1/x read as the optimum of x."""
    return Optimum(
        x_C=o.x_C,
        estimate_C=1 / o.estimate_C,
        interval_C2=1 / o.interval_C2[:, ::-1],
        sigmoid_C=1 / o.sigmoid_C,
        sigmoid_interval_C2=1 / o.sigmoid_interval_C2[:, ::-1],
        L=-o.L,
        k=o.k,
        log10_C0=o.log10_C0,
        b=-o.b,
        k_at_bound=o.k_at_bound,
        L_interval=(-o.L_interval[1], -o.L_interval[0]),
        k_interval=o.k_interval,
        b_interval=(-o.b_interval[1], -o.b_interval[0]),
        floor_interval=(1 / o.floor_interval[1], 1 / o.floor_interval[0]),
        ceiling_interval=(1 / o.ceiling_interval[1], 1 / o.ceiling_interval[0]),
        midpoint_interval=o.midpoint_interval,
        rises=o.rises,
        probability_rises=o.probability_rises,
        saturates=o.saturates,
        floor_is_bound=o.floor_is_bound,
        ceiling_is_bound=o.ceiling_is_bound,
        smallest=1 / o.largest,
        largest=1 / o.smallest,
    )


def _notes(runs: Sequence[RunFit], settings: Sequence[Sequence[int]], joint: Tradeoff, unit: str) -> list[str]:
    out = []
    best = joint.rollouts
    if best is not None:
        if best.floor_is_bound:
            out.append(f"n* ≤ {best.smallest:.0f} at small compute: run smaller n to find it")
        if best.ceiling_is_bound:
            out.append(f"n* ≥ {best.largest:.0f} at large compute: run larger n to find where it levels off")
        if best.k_at_bound:
            out.append("n* moves in one jump: its slope k is only known to be large")
    elif any(run.curve.rollouts_per_problem is None for run in runs):
        out.append("rollouts per problem are unknown for some runs: no n*(C); name the column with --columns")
    if len(settings) > 1 and all(len(group) == 1 for group in settings):
        out.append(
            "one seed a setting: intervals hold evaluation noise and the doubt about the form, not the "
            "spread between seeds"
        )
    for run in runs:
        if run.falls_after is not None:
            out.append(
                f"run '{run.curve.name}' falls for good after {run.falls_after:.3g} {unit}; "
                "its fit uses the points up to there"
            )
    return out
