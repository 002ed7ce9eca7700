"""From runs to curves: which metric, which unit of compute, and everything that can be wrong with either."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import polars as pl

from isocompute.arrays import Array
from isocompute.errors import InputError
from isocompute.law.curve import MINIMUM_POINTS, Curve
from isocompute.runs.model import Run, RunSet, listing

__all__ = ["UNITS", "choose_metric", "choose_unit", "curves_of"]

UNITS = ("rollouts", "tokens", "gpu_hours", "steps")


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
            raise InputError(f"{runs.source}: there is no metric '{metric}'; there are {listing(list(have), 12)}.")
        return metric
    everywhere = [name for name, count in have.items() if count == len(runs)]
    for pattern in (r"avg@\d+", "value", r"(.*/)?(val|eval)\w*/?.*(reward|acc|score).*", "reward"):
        found = [name for name in everywhere if re.fullmatch(pattern, name)]
        if found:
            return found[0]
    if len(everywhere) == 1:
        return everywhere[0]
    raise InputError(f"{runs.source}: which metric? Say --metric NAME with one of {listing(list(have), 12)}.")


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
    raise InputError(f"{runs.source}: no run counts compute in {' or '.join(wanted)}; {_remedy(wanted[0])}")


def _remedy(unit: str) -> str:
    return {
        "rollouts": "add the column 'rollouts', or 'step' with problems_per_batch and rollouts_per_problem.",
        "tokens": "add the column 'tokens', or use --unit rollouts.",
        "gpu_hours": "add the column 'gpu_hours', or 'seconds' with gpus in run.json.",
        "steps": "add the column 'step'.",
    }[unit]


def _compute(run: Run, unit: str) -> pl.Series | None:
    points, settings = run.points, run.settings
    column = "step" if unit == "steps" else unit
    if column in points.columns:
        return points[column]
    if (
        unit == "rollouts"
        and "step" in points.columns
        and settings.problems_per_batch
        and settings.rollouts_per_problem
    ):
        return points["step"] * settings.problems_per_batch * settings.rollouts_per_problem
    if unit == "gpu_hours" and "seconds" in points.columns and settings.gpus:
        return points["seconds"] * settings.gpus / 3600.0
    return None


def _curve(run: Run, metric: str, unit: str) -> Curve:
    compute = _compute(run, unit)
    if compute is None or metric not in run.metrics:
        missing = unit if compute is None else metric
        others = listing(run.metrics, 8)
        raise InputError(f"run '{run.name}': column '{missing}' is not there; its metrics are {others}.")
    where = f"run '{run.name}', column '{metric}'"
    value = run.points[metric]
    there = value.is_not_null()
    values_C = _floats(value.filter(there))
    compute_C = _floats(compute.filter(there))
    column = "step" if unit == "steps" else unit
    if not np.isfinite(values_C).all():
        row = int(np.flatnonzero(~np.isfinite(values_C))[0])
        raise InputError(f"{where}: value {row + 1} is {values_C[row]}; delete that row or leave the cell empty.")
    if not np.isfinite(compute_C).all() or (compute_C < 0).any():
        raise InputError(
            f"run '{run.name}', column '{column}': a value is missing or negative; mend or delete that row."
        )
    back = np.flatnonzero(np.diff(compute_C) < 0)
    if len(back):
        i = int(back[0])
        raise InputError(
            f"run '{run.name}', column '{column}': compute goes backwards, from {compute_C[i]:g} to "
            f"{compute_C[i + 1]:g} (row {i + 2}); sort the rows, or give different runs different names."
        )
    if (np.diff(compute_C) == 0).any():
        i = int(np.flatnonzero(np.diff(compute_C) == 0)[0])
        raise InputError(
            f"run '{run.name}', column '{column}': two values at {compute_C[i]:g} (row {i + 2}); "
            "give different runs different names, or keep one of the rows."
        )
    if len(values_C) < MINIMUM_POINTS or (compute_C > 0).sum() < MINIMUM_POINTS - 1:
        better = _fuller(run, metric)
        raise InputError(
            f"{where}: {len(values_C)} of {run.points.height} points have a value, a fit needs {MINIMUM_POINTS}; "
            f"evaluate more often{better}."
        )
    s = run.settings
    return Curve(run.name, compute_C, values_C, s.problems_per_batch, s.rollouts_per_problem, s.seed)


def _floats(series: pl.Series) -> Array:
    return series.cast(pl.Float64).to_numpy().astype(np.float64)


def _fuller(run: Run, metric: str) -> str:
    counts: Sequence[tuple[int, str]] = [(int(run.points[m].count()), m) for m in run.metrics if m != metric]
    best = max(counts, default=(0, ""))
    return f", or use --metric {best[1]}, which has {best[0]}" if best[0] >= MINIMUM_POINTS else ""
