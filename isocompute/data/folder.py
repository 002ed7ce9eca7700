"""Run folders: `run.json` (settings) and `points.jsonl` (append-only, one evaluation per line), read as a `Run`.

A run that was resumed from a checkpoint repeats steps. Of the rows of one step the last value of each column counts,
and rows of an abandoned branch are dropped. Tables and logs follow the same rules (data/table.py, data/rows.py).
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import polars as pl
import polars.selectors as cs
from pydantic import ValidationError

from isocompute.core import files
from isocompute.core.arrays import Bools, Ints
from isocompute.core.errors import InputError, first_wrong
from isocompute.core.formatting import plural
from isocompute.core.metric_names import REWARDS, reward_rank
from isocompute.core.recorder import POINTS, SETTINGS, RunSettings
from isocompute.core.run import (
    NON_FINITE,
    POINT_COLUMNS,
    Run,
    RunWarning,
    is_text_column,
    mark_non_finite,
    restore_non_finite,
)
from isocompute.data.frames import parse_json_lines, with_numbers


def read_run(address: str, *, name: str | None = None) -> Run:
    """Read a run folder; `NoPointsError` where it has no point yet."""
    points_address = files.join(address, POINTS)
    points = parse_json_lines(files.read_bytes(points_address), points_address)
    # Quoted digits are numbers in columns of compute or reward; elsewhere they may be anything, such as a job's id.
    numeric = {c for c in points.columns if c in POINT_COLUMNS or reward_rank(c) < len(REWARDS)}
    points = with_numbers(points, text=[c for c in points.columns if c not in numeric or is_text_column(c)])
    settings = RunSettings()
    settings_address = files.join(address, SETTINGS)
    if files.exists(settings_address):
        try:
            settings = RunSettings.model_validate_json(files.read_bytes(settings_address))
        except ValidationError as error:
            where, why = first_wrong(error)
            raise InputError(f"{settings_address}: {where or 'the file'}: {why}; fix or remove it.") from error
    points, rows = _without_abandoned(points, points_address)
    return Run(name or files.last_part(address), settings, merge_rows_of_steps(points), rows_of_points(points, rows))


def _without_abandoned(table: pl.DataFrame, address: str) -> tuple[pl.DataFrame, pl.Series | None]:
    """The table without the rows of an abandoned branch; the kept rows' numbers where some are gone."""
    step = steps_of(table)
    measured = [name for name in table.columns if not is_bookkeeping(name) and name != NON_FINITE]
    if step is None or not measured or step.is_sorted():
        return table, None
    whole = step.is_finite().all() and ((step == step.round()) & (step.abs() < 2**53)).all()
    most = max(measured, key=lambda name: table[name].count())
    branch = abandoned_branch(step.cast(pl.Int64).to_numpy(), table[most].is_not_null().to_numpy()) if whole else None
    if branch is None:
        return table, None
    warnings.warn(f"{address}: {branch.note}", RunWarning, stacklevel=3)
    kept = ~pl.Series(branch.rows_R)
    return table.filter(kept), pl.int_range(1, table.height + 1, eager=True).filter(kept)


def merge_rows_of_steps(table: pl.DataFrame) -> pl.DataFrame:
    """One row per step in order of step, with the last value of each column; non-finite values are marked."""
    step = steps_of(table)
    if step is not None and step.n_unique() < table.height:
        table = _last_of_each_step(table.sort("step", maintain_order=True))
    table = mark_non_finite(table, but=POINT_COLUMNS)
    return table if step is None or table["step"].is_sorted() else table.sort("step", maintain_order=True)


def rows_of_points(table: pl.DataFrame, rows: pl.Series | None = None) -> pl.Series | None:
    """`Run.rows` for the points of `merge_rows_of_steps(table)`, where `rows` are the table's rows in the file."""
    step = steps_of(table)
    if step is None or (step.is_sorted() and step.n_unique() == table.height):
        return rows
    rows = pl.int_range(1, table.height + 1, eager=True) if rows is None else rows
    points = pl.DataFrame({"step": step, "row": rows}).group_by("step").agg(pl.col("row").first(), count=pl.len())
    return points.sort("step").select(pl.when(pl.col("count") == 1).then("row")).to_series()


def _last_of_each_step(cells: pl.DataFrame) -> pl.DataFrame:
    """The last value of each column; NaN only where no row of the step has a number."""
    table = restore_non_finite(cells, but=POINT_COLUMNS)
    numbers = restore_non_finite(cells.with_columns(cs.float().fill_nan(None)), but=POINT_COLUMNS)
    kept = ~pl.Series(_repeated_rows(table, numbers))
    last, number = (
        each.filter(kept).group_by("step", maintain_order=True).agg(pl.all().drop_nulls().last())
        for each in (table, numbers)
    )
    return last.select(pl.coalesce(number[name], name).alias(name) for name in table.columns)


def _repeated_rows(table: pl.DataFrame, numbers: pl.DataFrame) -> Bools:
    """Rows, in order of step, that a later row of the same step repeats: it shares half of the larger row's columns.

    Logs follow the same rule (data/rows.py). `numbers` is the table without NaN. Two rows are compared by it if each
    has a number that the other lacks, such as a training and a validation row that are padded with NaN.
    """
    measured = [name for name in table.columns if not is_bookkeeping(name) and name != NON_FINITE]
    step_R = table["step"].to_numpy()
    repeated_R = np.zeros(len(step_R), dtype=np.bool_)
    if not measured:
        return repeated_R
    filled_RC, number_RC = (
        np.stack([each[name].is_not_null().to_numpy() for name in measured], axis=1) for each in (table, numbers)
    )
    for later in range(1, 16):  # a trainer writes a handful of rows per step, and a run is resumed a few times
        same_R = step_R[later:] == step_R[:-later]
        if not same_R.any():
            break
        a_RC, b_RC = number_RC[:-later], number_RC[later:]
        disjoint_R = (a_RC & ~b_RC).any(axis=1) & (b_RC & ~a_RC).any(axis=1)
        half_R = np.where(disjoint_R, _share_half(a_RC, b_RC), _share_half(filled_RC[:-later], filled_RC[later:]))
        repeated_R[:-later] |= same_R & half_R
    return repeated_R


def _share_half(a_RC: Bools, b_RC: Bools) -> Bools:
    """Whether two rows share half of the larger one."""
    common_R = (a_RC & b_RC).sum(axis=1)
    half_R: Bools = (common_R > 0) & (2 * common_R >= np.maximum(a_RC.sum(axis=1), b_RC.sum(axis=1)))
    return half_R


def steps_of(table: pl.DataFrame) -> pl.Series | None:
    """The steps; None unless every row has one."""
    step = table.get_column("step", default=None)
    return step if step is not None and step.dtype.is_numeric() and not step.has_nulls() else None


# Branches that a resumed run abandoned: points logged beyond the checkpoint that it resumed from.

_MIN_REPEATED = 3
"""Fewer repeated steps may be late rows, or those of another process."""
_MAX_RESTARTS = 100
"""A log that goes back more often is in another order, such as the newest row first."""


@dataclass(frozen=True)
class AbandonedBranch:
    """Rows of an abandoned branch that lie beyond the last step of the resumed run."""

    rows_R: Bools
    end: int
    """The last step of the resumed run."""
    steps: int
    """The number of steps in these rows; the resumed run has not reached any of them."""

    @property
    def note(self) -> str:
        """One line for the user."""
        return (
            f"{plural(self.steps, 'point')} beyond step {self.end} left out: the run was resumed from an earlier "
            "checkpoint and has not reached them again"
        )


def abandoned_branch(step_R: Ints, trained_R: Bools) -> AbandonedBranch | None:
    """Find rows beyond the last step since a restart, in rows as they were written; None if there are none.

    At a restart the training rows (`trained_R`) go back and continue through steps that were logged before. Late rows,
    rows in another order, and rows of evaluations are not restarts. Nor are the rows of several processes, which log
    nearly every step more than once.

    >>> branch = abandoned_branch(np.array([1, 2, 3, 4, 5, 6, 2, 3, 4]), np.ones(9, dtype=bool))
    >>> branch.rows_R.tolist(), branch.end, branch.steps
    ([False, False, False, False, True, True, False, False, False], 4, 2)
    """
    if len(step_R) < 2:
        return None
    end_R = np.maximum.accumulate(step_R[::-1])[::-1]
    before_R = np.maximum.accumulate(step_R)
    at = np.flatnonzero(trained_R)
    back = at[1:][(np.diff(step_R[at]) < 0) & (before_R[at[:-1]] > end_R[at[1:]])]
    if len(back) > _MAX_RESTARTS:
        return None
    rows_R = np.zeros(len(step_R), dtype=np.bool_)
    for row in back.tolist():
        if _is_restart(step_R[at[at < row]], step_R[at[at >= row]]):
            rows_R[:row] |= step_R[:row] > end_R[row]
    if not rows_R.any():
        return None
    return AbandonedBranch(rows_R, int(step_R[~rows_R].max()), len(np.unique(step_R[rows_R])))


def _is_restart(before: Ints, after: Ints) -> bool:
    """Whether `after` repeats steps of `before`, and most steps before those were logged once."""
    turns = np.flatnonzero(np.diff(after) < 0)
    first = after[: turns[0] + 1] if len(turns) else after
    steps, times = np.unique(before[before < first[0]], return_counts=True)
    several_processes = 2 * np.count_nonzero(times > 1) > len(steps)
    return np.isin(np.unique(first), before).sum() >= _MIN_REPEATED and not several_processes


_BOOKKEEPING = {
    *POINT_COLUMNS,
    *("steps", "_step", "global_step", "iteration", "iter", "update", "batch", "epoch", "epochs", "done_frac"),
    *("time", "timestamp", "_timestamp", "wall_time", "walltime", "runtime", "_runtime"),
    *("elapsed", "elapsed_time", "elapsed_seconds", "epoch_time", "date"),
    *("samples", "consumed_samples", "num_tokens", "total_tokens", "num_input_tokens_seen", "total_flos"),
    *("lr", "learning_rate"),
}


def is_bookkeeping(name: str) -> bool:
    """Whether a column records the progress of training (clocks, counters, learning rate) and not a measurement.

    >>> is_bookkeeping("training/epoch"), is_bookkeeping("_runtime"), is_bookkeeping("val_reward")
    (True, True, False)
    """
    return name.rsplit("/", 1)[-1].strip().lower() in _BOOKKEEPING
