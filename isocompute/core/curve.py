"""Learning curves: how they are read from runs, and their noise level and scale before any fit.

Errors about a run's columns name the run, the column and the row.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from isocompute.core.arrays import Array, Bools
from isocompute.core.errors import InputError
from isocompute.core.metric_names import REWARDS, TRAIN_REWARD, our_name_among, reward_rank
from isocompute.core.run import LARGEST, Run, RunSet, RunWarning, ends_non_finite, listing, text_cells

UNITS = ("rollouts", "tokens", "gpu_hours", "steps")
MINIMUM_POINTS = 4
PERCENT = 100.0
_LARGEST_SUM = 10.0
"""A sum of a few reward parts lies between 0 and this; values without negatives that exceed it are percent."""
_ONE_SCALE = 2.0
"""Lengths of scales may differ by this factor: a reward in [-1, 1] that was never negative looks like a rate."""

_REMEDIES = {
    "rollouts": "add the column 'rollouts', or 'step' with problems_per_batch and rollouts_per_problem.",
    "tokens": "add the column 'tokens', or use --unit rollouts.",
    "gpu_hours": "add the column 'gpu_hours', or 'seconds' with gpus in run.json.",
    "steps": "add the column 'step'.",
}

Setting = tuple[int | None, int | None]
"""(problems per batch, rollouts per problem); None where it was not logged."""


@dataclass(frozen=True)
class Curve:
    """Validation reward of one run against compute: at least four finite points, in order of compute."""

    name: str
    compute_C: Array
    values_C: Array
    problems_per_batch: int | None = None
    rollouts_per_problem: int | None = None
    seed: int | None = None
    recipe: str = ""
    """The other settings of the run, as JSON; runs that differ in it are not seeds of each other."""
    ends_non_finite: bool = False
    """The run was evaluated after its last point, and every later value is NaN or infinite."""

    def __post_init__(self) -> None:
        for name in ("compute_C", "values_C"):
            object.__setattr__(self, name, np.asarray(getattr(self, name), dtype=np.float64))

    @property
    def recipe_fields(self) -> dict[str, Any]:
        """`recipe` as a dictionary; empty where the text is not a JSON object."""
        try:
            table = json.loads(self.recipe)
        except ValueError:
            return {}
        return table if isinstance(table, dict) else {}

    @property
    def setting(self) -> Setting:
        """(problems per batch, rollouts per problem): runs that share it are seeds of one setting."""
        return self.problems_per_batch, self.rollouts_per_problem

    @property
    def batch_size(self) -> int | None:
        """B = Bp · n, where both are known."""
        if self.problems_per_batch is None or self.rollouts_per_problem is None:
            return None
        return self.problems_per_batch * self.rollouts_per_problem

    def averaged(self, most: int) -> Curve:
        """The curve with at most `most` points, each the mean of consecutive ones; a point at compute 0 is kept."""
        if len(self.compute_C) <= most:
            return self
        lead = int(self.compute_C[0] <= 0)
        return replace(
            self,
            compute_C=_means(self.compute_C, lead, most - lead),
            values_C=_means(self.values_C, lead, most - lead),
        )

    def points_up_to(self, compute: float) -> int:
        """Number of points at or before this compute, with a tolerance for rounding."""
        return int((self.compute_C <= compute * (1 + 1e-12)).sum())

    def until(self, end: int) -> Curve:
        """The curve's first `end` points."""
        broke = self.ends_non_finite and end >= len(self.compute_C)
        return replace(self, compute_C=self.compute_C[:end], values_C=self.values_C[:end], ends_non_finite=broke)


def _means(values_C: Array, lead: int, groups: int) -> Array:
    """The first `lead` values unchanged, then the means of `groups` consecutive groups of nearly equal size."""
    size, larger = divmod(len(values_C) - lead, groups)
    middle = lead + larger * (size + 1)
    large, small = values_C[lead:middle].reshape(larger, size + 1), values_C[middle:].reshape(-1, size)
    return np.concatenate([values_C[:lead], large.mean(axis=1), small.mean(axis=1)])


def median(values_C: Array) -> float:
    """`numpy.median`, without the fifty microseconds of its checks."""
    ordered_C = np.sort(values_C)
    return 0.5 * float(ordered_C[(len(ordered_C) - 1) // 2] + ordered_C[len(ordered_C) // 2])


def noise_level(values_C: Array) -> float:
    """Standard deviation of the evaluation noise, from second differences (they cancel level and slope).

    The median ignores jumps, and a floor keeps the noise of a digitised curve above zero.
    """
    floor = 1e-4 * max(float(np.abs(values_C).max()), 1e-12)
    if len(values_C) < 4:
        return max(floor, float(np.std(values_C)) * 0.5)
    second_C = values_C[2:] - 2.0 * values_C[1:-1] + values_C[:-2]
    return max(floor, 1.4826 * median(np.abs(second_C)) / math.sqrt(6.0))


def are_percent(low: Array, high: Array) -> Bools:
    """Which of these ranges are percent: within [0, 100] and above any sum of reward parts."""
    return (low >= 0.0) & (high > _LARGEST_SUM) & (high <= PERCENT)


def upper_bound(values: Array) -> float:
    """The largest ceiling that a fit may have: 1 for values in [0, 1] or [-1, 1], 100 for percent.

    In percent and on other scales it lies at most ten times the observed range above the best value.
    """
    low, high = values.min(), values.max()
    if low >= -1.0 and high <= 1.0:
        return 1.0
    far = float(high + 10.0 * max(high - low, 1e-12))
    return min(PERCENT, far) if are_percent(low, high) else far


def scale_of(values: Array) -> float:
    """Length of the values' scale: 1 for rates, 2 for [-1, 1], 100 for percent, else the observed range."""
    low, high = values.min(), values.max()
    if low >= -1.0 and high <= 1.0:
        return 1.0 if low >= 0.0 else 2.0
    return PERCENT if are_percent(low, high) else max(float(high - low), 1e-12)


def on_one_scale(curves: Sequence[Curve]) -> bool:
    """Whether the scales of the curves' values have about the same length."""
    scales = [scale_of(curve.values_C) for curve in curves]
    return not scales or max(scales) <= _ONE_SCALE * min(scales)


# From runs to curves: which metric, and which unit of compute.


def curves_of(runs: RunSet, *, metric: str | None = None, unit: str | None = None) -> tuple[list[Curve], str, str]:
    """The runs' curves of one metric against one unit of compute, with the names of both.

    If some runs have curves, those without compute or with too few values are left out with a warning.
    """
    asked = metric or runs.value_column
    if not any(_compute(run, counted) is not None for run in runs for counted in UNITS):
        choose_unit(runs, unit)  # raises: without compute no choice of a metric helps
    metric = choose_metric(runs, metric)
    if metric == TRAIN_REWARD and asked is None:
        warnings.warn(
            f"{runs.source}: no metric on held-out problems; taking {TRAIN_REWARD}, the reward in training.",
            RunWarning,
            stacklevel=2,
        )
    runs = _with_curves(runs, metric)
    unit = choose_unit(runs, unit)
    return [_curve(run, metric, unit) for run in runs], metric, unit


def choose_metric(runs: RunSet, metric: str | None = None, *, any_number: bool = True) -> str:
    """The metric asked for, or else the named value column, the first reward, or the only metric.

    With `any_number`, metrics that have numbers come before those that were never finite.
    """
    metric = metric or runs.value_column
    have = dict.fromkeys(name for run in runs for name in run.metrics)
    if metric is not None:
        if metric not in have:
            _refuse_text(runs, metric)
            here = our_name_among(metric, have)
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
    best = min(everywhere, key=reward_rank, default=None)
    if best is not None and (reward_rank(best) < len(REWARDS) or len(everywhere) == 1):
        _refuse_better_text(runs, best)
        return best
    if not have:
        for column in dict.fromkeys(name for run in runs for name in run.points.columns):
            _refuse_text(runs, column, partly=True)
        raise InputError(f"{runs.source}: no column holds numbers to fit; is there one besides compute?")
    raise InputError(f"{runs.source}: which metric? Say --metric NAME with one of {_names(have)}.")


def choose_unit(runs: RunSet, unit: str | None = None) -> str:
    """The unit asked for, or the first in which every run counts compute."""
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
    """Warn if some curves are rates and others percent, which no law can compare."""
    tops = {curve.name: float(curve.values_C.max()) for curve in curves}
    percent = [curve.name for curve in curves if scale_of(curve.values_C) == PERCENT]
    rates = [name for name, top in tops.items() if 0.0 < top <= 1.0]
    if percent and rates:
        one, other = percent[0], rates[0]
        warnings.warn(
            f"{source}: {metric} of {len(percent)} of {len(curves)} runs looks like percent ('{one}' goes up to "
            f"{tops[one]:.3g}), of others like a rate ('{other}': {tops[other]:.3g}): they are compared as they are; "
            "convert one of them to the other's scale.",
            RunWarning,
            stacklevel=3,
        )


def _with_curves(runs: RunSet, metric: str) -> RunSet:
    """The runs with enough points for a curve, or all runs if none has.

    A run that lacks the metric is kept, so that reading its curve raises an error.
    """

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
    """The runs with a column of compute, be it numbers or text; all runs if none has one."""
    return [
        run
        for run in runs
        if any(_compute(run, unit) is not None for unit in UNITS)
        or any(run.points.schema.get(column) == pl.String for column in (*UNITS, "step"))
    ] or list(runs)


def _compute(run: Run, unit: str) -> pl.Series | None:
    """Compute of each point, logged in this unit or derived from steps or seconds; None if unknown."""

    def counter(column: str) -> pl.Series | None:
        """A numeric column with values; in a table of many runs, columns that a run does not use are empty."""
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
    return listing(sorted(metrics, key=reward_rank), 12)


def _refuse_better_text(runs: RunSet, chosen: str) -> None:
    """Raise if a reward preferred to the chosen metric is text because of a few cells."""
    for run in runs:
        better = [
            name
            for name, kind in run.points.schema.items()
            if kind == pl.String and reward_rank(name) < reward_rank(chosen)
        ]
        for odd in text_cells(run.points, better, place=run.place):
            raise InputError(
                f"run '{run.name}', {odd}; fix the cell or leave it empty, or say --metric {chosen} if that is meant."
            )


def _refuse_text(runs: RunSet, column: str, *, partly: bool = False) -> None:
    """Raise for the first text cell of a column that should be numeric; with `partly`, only if it also has numbers."""
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
        counts = {
            name: run.points[name].count()
            for name in sorted(run.metrics, key=reward_rank)
            if reward_rank(name) < len(REWARDS)
        }
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
