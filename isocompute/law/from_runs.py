"""From runs to curves: which metric, which unit of compute, and everything that can be wrong with either."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence

import numpy as np
import polars as pl

from isocompute.arrays import Array
from isocompute.errors import InputError
from isocompute.law.curve import MINIMUM_POINTS, Curve
from isocompute.runs.model import Run, RunSet, listing

__all__ = ["UNITS", "choose_metric", "choose_unit", "curves_of"]

UNITS = ("rollouts", "tokens", "gpu_hours", "steps")
_LARGEST = 1e100  # squares of anything larger overflow; nothing real is


def curves_of(runs: RunSet, *, metric: str | None = None, unit: str | None = None) -> tuple[list[Curve], str, str]:
    """The runs' curves of one metric against one unit of compute, with the names of both."""
    metric = choose_metric(runs, metric)
    unit = choose_unit(runs, unit)
    return [_curve(run, metric, unit) for run in runs], metric, unit


def choose_metric(runs: RunSet, metric: str | None = None) -> str:
    """The metric asked for, or the one that is meant: the named value column, avg@k, `value`, `reward`, or the only."""
    metric = metric or runs.value_column
    have: dict[str, int] = {}
    for run in runs:
        for name in run.metrics:
            have[name] = have.get(name, 0) + 1
    if metric is not None:
        if metric not in have:
            _refuse_text(runs, metric)
            raise InputError(
                f"{runs.source}: no run has a metric '{metric}'; say --metric NAME with one of {_names(have)}."
            )
        return metric
    everywhere = [name for name, count in have.items() if count == len(runs)]
    for pattern in (r"avg@\d+", "value", r"(.*/)?(val|eval)\w*/?.*(reward|acc|score).*", "reward"):
        found = [name for name in everywhere if re.fullmatch(pattern, name)]
        if found:
            return found[0]
    if len(everywhere) == 1:
        return everywhere[0]
    if not have:
        for column in dict.fromkeys(name for run in runs for name in run.points.columns):
            _refuse_text(runs, column, partly=True)
        raise InputError(f"{runs.source}: no column holds numbers to fit; is there one besides compute?")
    raise InputError(f"{runs.source}: which metric? Say --metric NAME with one of {_names(have)}.")


def _names(metrics: Iterable[str]) -> str:
    return listing(list(metrics), 12)


def _refuse_text(runs: RunSet, column: str, *, partly: bool = False) -> None:
    """If a column that should hold numbers holds text (or, `partly`, text and numbers), name the first such cell."""
    for run in runs:
        if run.points.schema.get(column) == pl.String:
            cells = run.points[column]
            numbers = cells.cast(pl.Float64, strict=False)
            row = (cells.is_not_null() & numbers.is_null()).arg_max() or 0
            if numbers.count() or not partly:
                raise InputError(
                    f"run '{run.name}', column '{column}': '{cells[row]}' (row {row + 1}) is not a number; "
                    "mend the cell or leave it empty."
                )


def choose_unit(runs: RunSet, unit: str | None = None) -> str:
    """The unit asked for, or the first that every run can give."""
    if unit is not None and unit not in UNITS:
        raise InputError(f"--unit {unit}: a unit is one of {', '.join(UNITS)}.")
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
                f"cannot; {_remedy(candidate)}"
            )
    for candidate in wanted:
        _refuse_text(runs, "step" if candidate == "steps" else candidate)
    raise InputError(f"{runs.source}: no run counts compute in {' or '.join(wanted)}; {_remedy(wanted[0])}")


def _remedy(unit: str) -> str:
    return {
        "rollouts": "add the column 'rollouts', or 'step' with problems_per_batch and rollouts_per_problem.",
        "tokens": "add the column 'tokens', or use --unit rollouts.",
        "gpu_hours": "add the column 'gpu_hours', or 'seconds' with gpus in run.json.",
        "steps": "add the column 'step'.",
    }[unit]


def _compute(run: Run, unit: str) -> pl.Series | None:
    settings = run.settings
    column = _counter(run, "step" if unit == "steps" else unit)
    if column is not None:
        return column
    step, seconds = _counter(run, "step"), _counter(run, "seconds")
    if unit == "rollouts" and step is not None and settings.problems_per_batch and settings.rollouts_per_problem:
        return step * settings.problems_per_batch * settings.rollouts_per_problem
    if unit == "gpu_hours" and seconds is not None and settings.gpus:
        return seconds * settings.gpus / 3600.0
    return None


def _counter(run: Run, column: str) -> pl.Series | None:
    """A column of numbers with something in it: in a table of many runs, one that a run does not use is empty."""
    series = run.points.get_column(column, default=None)
    return series if series is not None and series.dtype.is_numeric() and series.count() else None


def _curve(run: Run, metric: str, unit: str) -> Curve:
    compute = _compute(run, unit)
    where = f"run '{run.name}', column '{metric}'"
    if compute is None or metric not in run.metrics:
        _refuse_text(RunSet((run,)), metric)
        raise InputError(
            f"{where}: it is not there or empty; say --metric with one of {_names(run.metrics)}, or leave the run out."
        )
    value = run.points[metric]
    there = value.is_not_null()
    values_C = _floats(value.filter(there))
    compute_C = _floats(compute.filter(there))
    row_C = np.flatnonzero(there.to_numpy()) + 1
    wrong = np.flatnonzero(~(np.abs(values_C) < _LARGEST))
    if len(wrong):
        i = int(wrong[0])
        raise InputError(f"{where}: the value in row {row_C[i]} is {values_C[i]:g}; delete that row or empty the cell.")
    counted = f"run '{run.name}', column '{'step' if unit == 'steps' else unit}'"
    wrong = np.flatnonzero(~((compute_C >= 0) & (compute_C < _LARGEST)))
    if len(wrong):
        i = int(wrong[0])
        raise InputError(f"{counted}: row {row_C[i]} is empty, negative or not finite; mend or delete that row.")
    back = np.flatnonzero(np.diff(compute_C) <= 0)
    if len(back):
        i = int(back[0])
        how = "stands still at" if compute_C[i] == compute_C[i + 1] else f"goes backwards, from {compute_C[i]:g} to"
        raise InputError(
            f"{counted}: compute {how} {compute_C[i + 1]:g} in row {row_C[i + 1]}; sort the rows, keep one row a "
            "point, or give different runs different names."
        )
    if len(values_C) < MINIMUM_POINTS or (compute_C > 0).sum() < MINIMUM_POINTS - 1:
        better = _fuller(run, metric)
        raise InputError(
            f"{where}: {len(values_C)} of {run.points.height} points have a value, a fit needs {MINIMUM_POINTS}; "
            f"evaluate more often{better}."
        )
    if np.ptp(values_C) == 0:
        raise InputError(
            f"{where}: all {len(values_C)} values are {values_C[0]:g}; a constant has no curve: check the metric or "
            "leave the run out."
        )
    s = run.settings
    return Curve(run.name, compute_C, values_C, s.problems_per_batch, s.rollouts_per_problem, s.seed, _recipe(run))


def _recipe(run: Run) -> str:
    """Everything of `run.json` but the allocation and the seed, as text to compare by."""
    apart = {"problems_per_batch", "rollouts_per_problem", "update_steps", "seed", "gpus", "versions"}
    return json.dumps(run.settings.model_dump(exclude=apart, exclude_none=True), sort_keys=True, default=str)


def _floats(series: pl.Series) -> Array:
    return series.cast(pl.Float64).to_numpy().astype(np.float64)


def _fuller(run: Run, metric: str) -> str:
    counts: Sequence[tuple[int, str]] = [(int(run.points[m].count()), m) for m in run.metrics if m != metric]
    best = max(counts, default=(0, ""))
    return f", or use --metric {best[1]}, which has {best[0]}" if best[0] >= MINIMUM_POINTS else ""
