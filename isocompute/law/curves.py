"""From runs to the curves that are fitted: which metric and unit of compute, which points, which runs are seeds.

Everything that can be wrong with a run's columns is an error here that names the run, the column and the row.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import polars as pl

from isocompute.core.arrays import Array, Ints
from isocompute.core.curve import MINIMUM_POINTS, PERCENT, Curve, Setting, scale_of
from isocompute.core.errors import InputError
from isocompute.core.metric_names import REWARDS, TRAINED, name_here, rank
from isocompute.core.not_numbers import ends_non_finite, text_cells
from isocompute.core.run import LARGEST, Run, RunSet, RunWarning, listing
from isocompute.law.collapse import collapsed_early, usable_end, usable_mask

__all__ = [
    "DEFAULT_BIN",
    "MAXIMUM_POINTS",
    "UNITS",
    "choose_metric",
    "choose_unit",
    "curves_of",
    "last_trend",
    "record_points",
    "settings_of",
    "usable_curves",
    "usable_points",
    "warn_of_scales",
]

UNITS = ("rollouts", "tokens", "gpu_hours", "steps")
MAXIMUM_POINTS = 256
"""Longer curves are averaged into this many points: evaluation noise shrinks, the shape stays."""
DEFAULT_BIN = 0.005
"""Bin of record-breaking points, of the metric's scale: the IsoCompute paper's."""
_REMEDIES = {
    "rollouts": "add the column 'rollouts', or 'step' with problems_per_batch and rollouts_per_problem.",
    "tokens": "add the column 'tokens', or use --unit rollouts.",
    "gpu_hours": "add the column 'gpu_hours', or 'seconds' with gpus in run.json.",
    "steps": "add the column 'step'.",
}


def curves_of(runs: RunSet, *, metric: str | None = None, unit: str | None = None) -> tuple[list[Curve], str, str]:
    """The runs' curves of one metric against one unit of compute, with the names of both.

    Where some runs have curves, runs of single points (no compute at all, or too few values) are left out with a
    warning.
    """
    asked = metric or runs.value_column
    if not any(_compute(run, counted) is not None for run in runs for counted in UNITS):
        choose_unit(runs, unit)  # no metric helps such runs: say that before asking for one
    metric = choose_metric(runs, metric)
    if metric == TRAINED and asked is None:
        warnings.warn(
            f"{runs.source}: no metric on held-out problems; taking {TRAINED}, the reward in training.",
            RunWarning,
            stacklevel=2,
        )
    runs = _with_curves(runs, metric)
    unit = choose_unit(runs, unit)
    return [_curve(run, metric, unit) for run in runs], metric, unit


def choose_metric(runs: RunSet, metric: str | None = None, *, any_number: bool = True) -> str:
    """The metric asked for, or else the named value column, the first reward, or the only metric.

    A metric that was never a number in any run is taken where there is no other, or without `any_number`.
    """
    metric = metric or runs.value_column
    have = dict.fromkeys(name for run in runs for name in run.metrics)
    if metric is not None:
        if metric not in have:
            _refuse_text(runs, metric)
            here = name_here(metric, have)
            hint = (
                "say --metric NAME with one of"
                if here is None
                else f"a trainer's metric of that name is called '{here}' here: say --metric {here}, or another one of"
            )
            raise InputError(f"{runs.source}: no run has a metric '{metric}'; {hint} {_names(have)}.")
        return metric
    shared = set.intersection(*(set(run.metrics) for run in _counted(runs))) if have else set()
    everywhere = [name for name in have if name in shared]
    if any_number:
        numbers = [name for name in everywhere if any(run.points[name].count() for run in runs if name in run.points)]
        everywhere = numbers or everywhere
    best = min(everywhere, key=rank, default=None)
    if best is not None and (rank(best) < len(REWARDS) or len(everywhere) == 1):
        _refuse_better_text(runs, best)
        return best
    if not have:
        for column in dict.fromkeys(name for run in runs for name in run.points.columns):
            _refuse_text(runs, column, partly=True)
        raise InputError(f"{runs.source}: no column holds numbers to fit; is there one besides compute?")
    raise InputError(f"{runs.source}: which metric? Say --metric NAME with one of {_names(have)}.")


def choose_unit(runs: RunSet, unit: str | None = None) -> str:
    """The unit asked for, or the first that every run can give."""
    if unit is not None and unit not in UNITS:
        raise InputError(f"--unit {unit}: a unit is one of {', '.join(UNITS)}.")
    runs = replace(runs, runs=tuple(_counted(runs)))
    can = {u: [run.name for run in runs if _compute(run, u) is not None] for u in UNITS}
    wanted = (unit,) if unit else UNITS
    for candidate in wanted:
        if len(can[candidate]) == len(runs):
            return candidate
    for candidate in wanted:
        if can[candidate]:
            lacking = next(run.name for run in runs if run.name not in can[candidate])
            raise InputError(
                f"{runs.source}: mixed units: run '{can[candidate][0]}' counts compute in {candidate}, run '{lacking}' "
                f"cannot; {_REMEDIES[candidate]}"
            )
    for candidate in wanted:
        _refuse_text(runs, "step" if candidate == "steps" else candidate)
    raise InputError(f"{runs.source}: no run counts compute in {' or '.join(wanted)}; {_REMEDIES[wanted[0]]}")


def warn_of_scales(curves: Sequence[Curve], *, metric: str, source: str) -> None:
    """Warn where some curves are rates and others percent: one law through both compares what does not compare."""
    tops = {curve.name: float(curve.values_C.max()) for curve in curves}
    percent = [curve.name for curve in curves if scale_of(curve.values_C) == PERCENT]
    rates = [name for name, top in tops.items() if 0.0 < top <= 1.0]
    if percent and rates:
        one, other = percent[0], rates[0]
        warnings.warn(
            f"{source}: {metric} of {len(percent)} of {len(curves)} runs looks like percent ('{one}' goes up to "
            f"{tops[one]:.3g}), of others like a rate ('{other}': {tops[other]:.3g}): what follows compares them as "
            "they are; write one of them on the other's scale.",
            RunWarning,
            stacklevel=3,
        )


def _with_curves(runs: RunSet, metric: str) -> RunSet:
    """Without runs of single points, unless all are. A run without the metric is not passed over."""

    def is_short(run: Run) -> bool:
        return (run.points[metric].count() if metric in run.metrics else run.points.height) < MINIMUM_POINTS

    counted = _counted(runs)
    kept = tuple(run for run in counted if not is_short(run))
    if len(kept) == len(runs) or not any(metric in run.metrics for run in kept):
        return runs
    reasons = (
        (len(runs) - len(counted), "without step or compute"),
        (len(counted) - len(kept), f"with fewer than {MINIMUM_POINTS} values of '{metric}'"),
    )
    names = {run.name for run in kept}
    without = listing([run.name for run in runs if run.name not in names], 3)
    warnings.warn(
        f"{runs.source}: {len(runs) - len(kept)} of {len(runs)} runs left out, "
        f"{' and '.join(f'{number} {why}' for number, why in reasons if number)}: {without}.",
        RunWarning,
        stacklevel=3,
    )
    return replace(runs, runs=kept)


def _counted(runs: RunSet) -> list[Run]:
    """The runs that count compute in any unit; all of them where none does, or where text stands for numbers."""
    return [
        run
        for run in runs
        if any(_compute(run, unit) is not None for unit in UNITS)
        or any(run.points.schema.get(column) == pl.String for column in (*UNITS, "step"))
    ] or list(runs)


def _compute(run: Run, unit: str) -> pl.Series | None:
    def counter(column: str) -> pl.Series | None:
        """A column of numbers that is not empty: in a table of many runs, one that a run does not use is."""
        series = run.points.get_column(column, default=None)
        return series if series is not None and series.dtype.is_numeric() and series.count() else None

    settings, column = run.settings, counter("step" if unit == "steps" else unit)
    if column is not None:
        return column
    step, seconds = counter("step"), counter("seconds")
    if unit == "rollouts" and step is not None and settings.problems_per_batch and settings.rollouts_per_problem:
        return step * settings.problems_per_batch * settings.rollouts_per_problem
    if unit == "gpu_hours" and seconds is not None and settings.gpus:
        return seconds * settings.gpus / 3600.0
    return None


def _names(metrics: Iterable[str]) -> str:
    return listing(sorted(metrics, key=rank), 12)


def _refuse_better_text(runs: RunSet, chosen: str) -> None:
    """Refuse a better reward that is text because of one cell, before another metric answers in its place."""
    for run in runs:
        better = [name for name, kind in run.points.schema.items() if kind == pl.String and rank(name) < rank(chosen)]
        for odd in text_cells(run.points, better, place=run.place):
            raise InputError(
                f"run '{run.name}', {odd}; fix the cell or leave it empty, or say --metric {chosen} if that is meant."
            )


def _refuse_text(runs: RunSet, column: str, *, partly: bool = False) -> None:
    """If a column that should hold numbers holds text (or, `partly`, text and numbers), name the first such cell."""
    for run in runs:
        if run.points.schema.get(column) == pl.String:
            cells = run.points[column]
            numbers = cells.cast(pl.Float64, strict=False)
            odd = cells.is_not_null() & numbers.is_null()
            if odd.any() and (numbers.count() or not partly):
                row = odd.arg_max() or 0
                raise InputError(
                    f"run '{run.name}', column '{column}': '{cells[row]}' ({run.place(row)}) is not a number; "
                    "fix the cell or leave it empty."
                )


def _curve(run: Run, metric: str, unit: str) -> Curve:
    compute = _compute(run, unit)
    where = f"run '{run.name}', column '{metric}'"
    leave_out = f"leave the run out: --without '{run.name}'"
    if compute is None or metric not in run.metrics:
        _refuse_text(RunSet((run,)), metric)
        raise InputError(
            f"{where}: it is not there or empty; say --metric with one of {_names(run.metrics)}, or {leave_out}."
        )
    there = run.points[metric].is_not_null()
    values_C, compute_C = (
        series.filter(there).cast(pl.Float64).to_numpy().astype(np.float64) for series in (run.points[metric], compute)
    )
    row_C = np.flatnonzero(there.to_numpy())
    wrong = np.flatnonzero(~(np.abs(values_C) < LARGEST))
    if len(wrong):
        i = int(wrong[0])
        place = run.place(int(row_C[i]))
        raise InputError(f"{where}: the value in {place} is {values_C[i]:g}; delete that row or empty the cell.")
    counted = f"run '{run.name}', column '{'step' if unit == 'steps' else unit}'"
    wrong = np.flatnonzero(~((compute_C >= 0) & (compute_C < LARGEST)))
    if len(wrong):
        place = run.place(int(row_C[wrong[0]]))
        raise InputError(f"{counted}: {place} is empty, negative or not finite; fix or delete that row.")
    back = np.flatnonzero(np.diff(compute_C) <= 0)
    if len(back):
        i = int(back[0])
        how = "stands still at" if compute_C[i] == compute_C[i + 1] else f"goes backwards, from {compute_C[i]:g} to"
        place = run.place(int(row_C[i + 1]))
        raise InputError(
            f"{counted}: compute {how} {compute_C[i + 1]:g} in {place}; sort the rows, keep one row a point, or give "
            "different runs different names."
        )
    if len(values_C) < MINIMUM_POINTS or (compute_C > 0).sum() < MINIMUM_POINTS - 1:
        counts = {name: run.points[name].count() for name in sorted(run.metrics, key=rank) if rank(name) < len(REWARDS)}
        fuller = [name for name, count in counts.items() if name != metric and count >= MINIMUM_POINTS]
        better = f", or use --metric {fuller[0]}, which has {counts[fuller[0]]}" if fuller else ""
        raise InputError(
            f"{where}: {len(values_C)} of {run.points.height} points have a value, a fit needs {MINIMUM_POINTS}; "
            f"evaluate more often{better}."
        )
    if np.ptp(values_C) == 0:
        raise InputError(
            f"{where}: all {len(values_C)} values are {values_C[0]:g}; a constant has no curve: check the metric or "
            f"{leave_out}."
        )
    s = run.settings
    return Curve(
        run.name,
        compute_C,
        values_C,
        s.problems_per_batch,
        s.rollouts_per_problem,
        s.seed,
        recipe=json.dumps(s.compared, sort_keys=True, default=str),
        ends_non_finite=ends_non_finite(run.points, metric),
    )


def usable_curves(
    curves: Sequence[Curve], *, metric: str, points: str = "all", bin_width: float = DEFAULT_BIN
) -> list[Curve]:
    """The usable points of each curve; an error names the first that has too few."""
    if not curves:
        raise InputError("there are no runs to fit; give a folder of runs or a table with at least one run.")
    for curve in curves:
        if collapsed_early(curve):
            raise InputError(
                f"run '{curve.name}', column '{metric}': it collapses within its first "
                f"{usable_end(curve.values_C)} evaluations, before there is a curve to fit; leave it out: "
                f"--without '{curve.name}'."
            )
    usable = [usable_points(curve, points=points, bin_width=bin_width) for curve in curves]
    for curve in usable:
        leave_out = f"leave the run out: --without '{curve.name}'."
        if len(curve.compute_C) < MINIMUM_POINTS:
            records = points == "records"
            raise InputError(
                f"run '{curve.name}', column '{metric}': {len(curve.compute_C)} "
                f"{'record-breaking points' if records else 'usable points'}, a fit needs {MINIMUM_POINTS}; evaluate "
                f"more often{', use a smaller --bin, or fit --points all.' if records else f' or {leave_out}'}"
            )
        if np.ptp(curve.values_C) == 0:
            raise InputError(
                f"run '{curve.name}', column '{metric}': all {len(curve.values_C)} values are "
                f"{curve.values_C[0]:g}; a constant has no curve: check the metric or {leave_out}"
            )
    return usable


def usable_points(curve: Curve, *, points: str = "all", bin_width: float = DEFAULT_BIN) -> Curve:
    """What a monotone fit may use: up to a collapse, without dips, and all of it or only the records."""
    keep_C = usable_mask(curve.values_C)
    if not keep_C.all():
        curve = replace(curve, compute_C=curve.compute_C[keep_C], values_C=curve.values_C[keep_C])
    if points == "records":
        keep = record_points(curve.compute_C, curve.values_C, bin_width=bin_width)
        return replace(curve, compute_C=curve.compute_C[keep], values_C=curve.values_C[keep])
    return curve.averaged(MAXIMUM_POINTS)


def record_points(compute_C: Array, values_C: Array, *, bin_width: float = DEFAULT_BIN) -> Ints:
    """Indices of the record-breaking points, in order of compute (IsoCompute figures 5 and 15).

    A point counts if its reward, rounded down to a bin, is above that of every point with less compute.

    >>> record_points(np.array([1.0, 2, 3, 4]), np.array([0.1, 0.3, 0.302, 0.4])).tolist()
    [0, 1, 3]
    """
    if not bin_width > 0:
        raise InputError(f"the reward bin is {bin_width:g}; it must be above 0 (the paper uses {DEFAULT_BIN}).")
    order = np.argsort(compute_C, kind="stable")
    # A value that sits on a bin's edge up to rounding belongs to that bin: .3 / .005 is 59.999…
    bins_C = np.floor(values_C[order] / bin_width + 1e-9)
    # Only points with strictly less compute can forbid a record, so ties in compute look back to before the tie.
    first_of_tie_C = np.searchsorted(compute_C[order], compute_C[order], side="left")
    best_before_C = np.concatenate([[-np.inf], np.maximum.accumulate(bins_C)])[first_of_tie_C]
    return order[bins_C > best_before_C].astype(np.int64)


def settings_of(curves: Sequence[Curve]) -> list[list[int]]:
    """Indices of the runs of each setting, smaller n and Bp first.

    Seeds share Bp, n and the rest of their recipe; a run whose n is unknown is a setting of its own.
    """
    out: dict[tuple[Setting, str, str], list[int]] = {}
    order = sorted(
        range(len(curves)), key=lambda i: (curves[i].rollouts_per_problem or 0, curves[i].problems_per_batch or 0)
    )
    for i in order:
        known = curves[i].rollouts_per_problem is not None
        out.setdefault((curves[i].setting, curves[i].recipe, "" if known else curves[i].name), []).append(i)
    return list(out.values())


_DOUBLINGS = 2.0
"""Of compute, before the end of the longest run, whose points make the trend."""
_LEAST_SPAN = 1.0
"""Doublings that the points of a trend have to span."""
_ROUNDING = 1e-9


def last_trend(curves: Sequence[Curve]) -> float | None:
    """Rise for each doubling of compute over a setting's last two doublings; None where too few points lie there.

    A fitted form is decided mostly by its steep beginning; an extrapolation should see the last points too. The slope
    is taken around each run's own level, since seeds differ in that and may end at different compute.

    >>> compute_C = np.array([1.0, 2.0, 4.0, 6.0, 8.0, 16.0])
    >>> last_trend([Curve("a", compute_C, 0.01 * np.log2(compute_C) + (compute_C > 1))])  # doctest: +ELLIPSIS
    0.01...
    """
    start = max(float(curve.compute_C[-1]) for curve in curves) / 2.0**_DOUBLINGS
    x_R, y_R = [], []
    for curve in curves:
        late_C = curve.compute_C >= start * (1 - _ROUNDING)
        if late_C.any():
            x_R.append(np.log2(curve.compute_C[late_C] / start))
            y_R.append(curve.values_C[late_C])
    if sum(map(len, x_R)) < MINIMUM_POINTS or max(float(np.ptp(x_C)) for x_C in x_R) < _LEAST_SPAN * (1 - _ROUNDING):
        return None
    off_R = [x_C - x_C.mean() for x_C in x_R]
    rise = sum(float(off_C @ y_C) for off_C, y_C in zip(off_R, y_R, strict=True))
    return rise / sum(float(off_C @ off_C) for off_C in off_R)
