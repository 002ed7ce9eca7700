"""From runs to curves: which metric, which unit of compute, and everything that can be wrong with either."""

from __future__ import annotations

import json
import warnings
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

import numpy as np
import polars as pl

from isocompute.core.arrays import Array
from isocompute.core.errors import InputError
from isocompute.core.run import Run, RunSet, RunWarning, listing
from isocompute.data.cells import odd_cells
from isocompute.data.conditions import conditions_of, made_of
from isocompute.data.finite import ends_marked
from isocompute.data.rewards import REWARDS, TRAINED, rank
from isocompute.law.curve import MINIMUM_POINTS, PERCENT, Curve, scale_of

__all__ = ["UNITS", "choose_metric", "choose_unit", "curves_of", "warn_of_pooling", "warn_of_scales"]

UNITS = ("rollouts", "tokens", "gpu_hours", "steps")
_LARGEST = 1e100  # squares of anything larger overflow; nothing real is


def curves_of(runs: RunSet, *, metric: str | None = None, unit: str | None = None) -> tuple[list[Curve], str, str]:
    """The runs' curves of one metric against one unit of compute, with the names of both.

    Where some runs have curves, end points among them (no compute at all, or too few values) are left out with a
    warning.
    """
    asked = metric or runs.value_column
    if not any(_compute(run, counted) is not None for run in runs for counted in UNITS):
        choose_unit(runs, unit)  # no metric helps end points: say that before asking for one
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


def warn_of_scales(curves: Sequence[Curve], *, metric: str, source: str) -> None:
    """One law through rates and percent compares what does not compare."""
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


def warn_of_pooling(side: RunSet) -> None:
    """Runs that are taken as seeds of one recipe, and are not: what tells them apart is named."""
    found = conditions_of(side)
    if len(found) > 1:
        warnings.warn(
            f"{side.source}: its runs differ in more than their seed ({listing([c.name for c in found], 3)}): what "
            "follows pools them as seeds of one recipe; name those of one as PATH::NAME or with --where.",
            RunWarning,
            stacklevel=3,
        )


def _with_curves(runs: RunSet, metric: str) -> RunSet:
    """Without runs that are end points, if any is more than that. A run without the metric is not passed over."""
    counted = _counted(runs)
    kept = tuple(run for run in counted if not _is_short(run, metric))
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


def _is_short(run: Run, metric: str) -> bool:
    """Too few points, or too few of them with a value."""
    values = run.points[metric].count() if metric in run.metrics else run.points.height
    return values < MINIMUM_POINTS


def _counted(runs: RunSet) -> list[Run]:
    """The runs that count compute in any unit; all of them where none does, or where text stands for numbers."""
    return [
        run
        for run in runs
        if any(_compute(run, unit) is not None for unit in UNITS)
        or any(run.points.schema.get(column) == pl.String for column in (*UNITS, "step"))
    ] or list(runs)


def choose_metric(runs: RunSet, metric: str | None = None, *, any_number: bool = True) -> str:
    """The metric asked for, or the one that is meant: the named value column, the first reward, or the only.

    A metric that was never a number in any run is meant where there is no other, or without `any_number`.
    """
    metric = metric or runs.value_column
    have = dict.fromkeys(name for run in runs for name in run.metrics)
    if metric is not None:
        if metric not in have:
            _refuse_text(runs, metric)
            raise InputError(f"{runs.source}: no run has a metric '{metric}'; {_advice(metric, have)} {_names(have)}.")
        return metric
    shared = set.intersection(*(set(run.metrics) for run in _counted(runs))) if have else set()
    everywhere = [name for name in have if name in shared]
    if any_number:
        everywhere = [name for name in everywhere if any(_count(run, name) for run in runs)] or everywhere
    best = min(everywhere, key=rank, default=None)
    if best is not None and (rank(best) < len(REWARDS) or len(everywhere) == 1):
        _refuse_better(runs, best)
        return best
    if not have:
        for column in dict.fromkeys(name for run in runs for name in run.points.columns):
            _refuse_text(runs, column, partly=True)
        raise InputError(f"{runs.source}: no column holds numbers to fit; is there one besides compute?")
    raise InputError(f"{runs.source}: which metric? Say --metric NAME with one of {_names(have)}.")


def _advice(metric: str, have: Collection[str]) -> str:
    """What to ask for instead of a metric that is not there; a log's metrics were renamed on the way."""
    from isocompute.data.logs.names import name_here

    here = name_here(metric, have)
    if here is None:
        return "say --metric NAME with one of"
    return f"a trainer's metric of that name is called '{here}' here: say --metric {here}, or another one of"


def _refuse_better(runs: RunSet, chosen: str) -> None:
    """If a reward that would have been meant has a cell that is not a number, name it before another one answers."""
    for run in runs:
        better = [name for name, kind in run.points.schema.items() if kind == pl.String and rank(name) < rank(chosen)]
        for odd in odd_cells(run.points, better, place=run.place):
            raise InputError(
                f"run '{run.name}', {odd}; fix the cell or leave it empty, or say --metric {chosen} if that is meant."
            )


def _count(run: Run, metric: str) -> int:
    return run.points[metric].count() if metric in run.points.columns else 0


def _names(metrics: Iterable[str]) -> str:
    return listing(sorted(metrics, key=rank), 12)


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
            f"{where}: it is not there or empty; say --metric with one of {_names(run.metrics)}, or leave the run out: "
            f"--without '{run.name}'."
        )
    value = run.points[metric]
    there = value.is_not_null()
    values_C = _floats(value.filter(there))
    compute_C = _floats(compute.filter(there))
    row_C = np.flatnonzero(there.to_numpy())
    wrong = np.flatnonzero(~(np.abs(values_C) < _LARGEST))
    if len(wrong):
        i = int(wrong[0])
        place = run.place(int(row_C[i]))
        raise InputError(f"{where}: the value in {place} is {values_C[i]:g}; delete that row or empty the cell.")
    counted = f"run '{run.name}', column '{'step' if unit == 'steps' else unit}'"
    wrong = np.flatnonzero(~((compute_C >= 0) & (compute_C < _LARGEST)))
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
        better = _fuller(run, metric)
        raise InputError(
            f"{where}: {len(values_C)} of {run.points.height} points have a value, a fit needs {MINIMUM_POINTS}; "
            f"evaluate more often{better}."
        )
    if np.ptp(values_C) == 0:
        raise InputError(
            f"{where}: all {len(values_C)} values are {values_C[0]:g}; a constant has no curve: check the metric or "
            f"leave the run out: --without '{run.name}'."
        )
    s = run.settings
    lost = ends_marked(run.points, metric)
    return Curve(
        run.name, compute_C, values_C, s.problems_per_batch, s.rollouts_per_problem, s.seed, _recipe(run), lost
    )


def _recipe(run: Run) -> str:
    """What the run is made of, as text to compare by."""
    return json.dumps(made_of(run), sort_keys=True, default=str)


def _floats(series: pl.Series) -> Array:
    return series.cast(pl.Float64).to_numpy().astype(np.float64)


def _fuller(run: Run, metric: str) -> str:
    """Another reward of the run that has enough values, if there is one."""
    for name in sorted(run.metrics, key=rank):
        count = run.points[name].count()
        if name != metric and rank(name) < len(REWARDS) and count >= MINIMUM_POINTS:
            return f", or use --metric {name}, which has {count}"
    return ""
