"""Reading the run folder: `run.json` (settings) and `points.jsonl` (append-only, one evaluation a line)."""

from __future__ import annotations

import io
import json
import warnings

import numpy as np
import polars as pl
import polars.selectors as cs
from pydantic import ValidationError

from isocompute.core import files
from isocompute.core.arrays import Bools
from isocompute.core.errors import InputError, first_wrong
from isocompute.core.run import POINT_COLUMNS, Run, RunWarning
from isocompute.core.run_settings import RunSettings
from isocompute.data.bookkeeping import is_bookkeeping
from isocompute.data.branches import left_behind
from isocompute.data.cells import is_text, with_numbers
from isocompute.data.finite import NON_FINITE, put_back, set_apart
from isocompute.data.rewards import REWARDS, rank
from isocompute.data.writer import POINTS, SETTINGS, RunWriter, whole_lines

__all__ = [
    "POINTS",
    "SETTINGS",
    "NoPointsError",
    "RunWriter",
    "parse_lines",
    "read_run",
    "rows_of_points",
    "steps_of",
    "tidy",
]

_ROWS_A_STEP = 16
"""So far on a step is said again; trainers write a handful of rows, a run is resumed a few times."""
_SAMPLE = 100
"""Lines that tell the columns of a file; whatever they do not tell is noticed and read the slower way."""


class NoPointsError(InputError):
    """A run that has not come to its first point: there is no whole line."""


_MOST = 2**53


def read_run(address: str, *, name: str | None = None) -> Run:
    """Read a run folder; `NoPointsError` where it has no point yet."""
    points_address = files.join(address, POINTS)
    points = parse_lines(files.read_bytes(points_address), points_address)
    points = with_numbers(points, text=[name for name in points.columns if not _is_measured(name)])
    settings = RunSettings()
    settings_address = files.join(address, SETTINGS)
    if files.exists(settings_address):
        try:
            settings = RunSettings.model_validate_json(files.read_bytes(settings_address))
        except ValidationError as error:
            where, why = first_wrong(error)
            raise InputError(f"{settings_address}: {where or 'the file'}: {why}; fix or remove it.") from error
    points, rows = _without_left(points, points_address)
    return Run(name or files.last_part(address), settings, tidy(points), rows_of_points(points, rows))


def _is_measured(name: str) -> bool:
    """Whether digits in quotes are a number under this name: those of compute and rewards; a job may be anything."""
    return not is_text(name) and (name in POINT_COLUMNS or rank(name) < len(REWARDS))


def _are_counts(step: pl.Series) -> bool:
    """Whether steps are whole numbers that floats tell apart."""
    return bool(step.is_finite().all()) and bool(((step == step.round()) & (step.abs() < _MOST)).all())


def _without_left(table: pl.DataFrame, address: str) -> tuple[pl.DataFrame, pl.Series | None]:
    """Without what a resumed run wrote beyond the point it has come to since; the rows' places where some are gone."""
    step = steps_of(table)
    measured = [name for name in table.columns if not is_bookkeeping(name) and name != NON_FINITE]
    if step is None or not measured or step.is_sorted() or not _are_counts(step):
        return table, None
    most = max(measured, key=lambda name: table[name].count())
    left = left_behind(step.cast(pl.Int64).to_numpy(), table[most].is_not_null().to_numpy())
    if left is None:
        return table, None
    warnings.warn(f"{address}: {left.note}", RunWarning, stacklevel=3)
    kept = ~pl.Series(left.rows_R)
    return table.filter(kept), pl.int_range(1, table.height + 1, eager=True).filter(kept)


def parse_lines(data: bytes, address: str) -> pl.DataFrame:
    """A table from JSON lines, a torn last line dropped."""
    end = whole_lines(data)
    if not data[:end].strip():
        raise NoPointsError(f"{address}: holds no points yet; let the run evaluate, or leave it out.")
    if end < len(data):
        warnings.warn(f"{address}: the last line is torn and was dropped", RunWarning, stacklevel=2)
        data = data[:end]
    for sample in (_SAMPLE, None):
        try:
            table = pl.read_ndjson(io.BytesIO(data), infer_schema_length=sample)
        except pl.exceptions.PolarsError:
            continue
        if sample is None or _has_every_key(table, data):
            return table
    return _slowly(data, address)


def _has_every_key(table: pl.DataFrame, data: bytes) -> bool:
    """Whether no line had a key beyond the table's columns, which the reader would have dropped without a word.

    Every key has its colon, so the colons are as many as the table's values and the nulls spelled out. Colons inside
    strings make them too many: then the answer is no where it might be yes, never the reverse. Those of `non_finite`
    follow an escaped quote and are known by it.
    """
    nulls = data.count(b":null") + data.count(b": null")
    quoted = data.count(b'\\":') - data.count(b'\\\\":')
    return data.count(b":") == nulls + quoted + sum(table[c].count() for c in table.columns)


def _slowly(data: bytes, address: str) -> pl.DataFrame:
    """Line by line, to name the line that is wrong or to read what the fast reader would not."""
    rows = []
    for number, line in enumerate(data.split(b"\n"), start=1):
        if line.strip():
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise InputError(f"{address}, line {number}: not JSON ({error}); fix or delete the line.") from error
            if not isinstance(row, dict):
                raise InputError(f"{address}, line {number}: not an object but {type(row).__name__}; delete the line.")
            # A value that is itself a list or an object is no number a law could use.
            rows.append({key: None if isinstance(value, list | dict) else value for key, value in row.items()})
    try:
        return pl.DataFrame(rows, infer_schema_length=None, strict=False)
    except (pl.exceptions.PolarsError, TypeError, OverflowError) as error:
        why = str(error).splitlines()[0]
        raise InputError(f"{address}: a key has different kinds of values ({why}); give numbers only.") from error


def tidy(table: pl.DataFrame) -> pl.DataFrame:
    """One row a step in order of step, of each column the last value that a row of the step has; metrics finite."""
    step = steps_of(table)
    if step is not None and step.n_unique() < table.height:
        table = _one_row_a_step(table.sort("step", maintain_order=True))
    table = set_apart(table, but=POINT_COLUMNS)
    return table if step is None or table["step"].is_sorted() else table.sort("step", maintain_order=True)


def rows_of_points(table: pl.DataFrame, rows: pl.Series | None = None) -> pl.Series | None:
    """Where the points of `tidy(table)` stand in the file whose `rows` these are, as `Run.rows` says it."""
    step = steps_of(table)
    if step is None or (step.is_sorted() and step.n_unique() == table.height):
        return rows
    rows = pl.int_range(1, table.height + 1, eager=True) if rows is None else rows
    points = pl.DataFrame({"step": step, "row": rows}).group_by("step").agg(pl.col("row").first(), count=pl.len())
    return points.sort("step").select(pl.when(pl.col("count") == 1).then("row")).to_series()


def _one_row_a_step(cells: pl.DataFrame) -> pl.DataFrame:
    """Rows of a step as one: a validation and a training row say different things, of which the last word counts.

    A NaN cell is the word on a metric that no row of the step has a number for; one that `non_finite` names always is.
    """
    table = put_back(cells, but=POINT_COLUMNS)
    numbers = put_back(cells.with_columns(cs.float().fill_nan(None)), but=POINT_COLUMNS)
    kept = ~pl.Series(_said_again(table, numbers))
    last, number = (
        each.filter(kept).group_by("step", maintain_order=True).agg(pl.all().drop_nulls().last())
        for each in (table, numbers)
    )
    return last.select(pl.coalesce(number[name], name).alias(name) for name in table.columns)


def _said_again(table: pl.DataFrame, numbers: pl.DataFrame) -> Bools:
    """Rows, in order of step, half of which a later row of their step says again: of a branch that a resumed run left.

    The half is that of the larger row, as in imports (`logs.collect`). `numbers` is the table without its NaN, which
    counts where each of two rows has a number that the other has not.
    """
    measured = [name for name in table.columns if not is_bookkeeping(name) and name != NON_FINITE]
    step_R = table["step"].to_numpy()
    gone_R = np.zeros(len(step_R), dtype=np.bool_)
    if not measured:
        return gone_R
    there_RC, number_RC = (
        np.stack([each[name].is_not_null().to_numpy() for name in measured], axis=1) for each in (table, numbers)
    )
    for later in range(1, _ROWS_A_STEP):
        same_R = step_R[later:] == step_R[:-later]
        if not same_R.any():
            break
        a_RC, b_RC = number_RC[:-later], number_RC[later:]
        apart_R = (a_RC & ~b_RC).any(axis=1) & (b_RC & ~a_RC).any(axis=1)
        gone_R[:-later] |= same_R & np.where(
            apart_R, _is_half(a_RC, b_RC), _is_half(there_RC[:-later], there_RC[later:])
        )
    return gone_R


def _is_half(a_RC: Bools, b_RC: Bools) -> Bools:
    """Whether two rows share half of the larger one."""
    common_R = (a_RC & b_RC).sum(axis=1)
    half_R: Bools = (common_R > 0) & (2 * common_R >= np.maximum(a_RC.sum(axis=1), b_RC.sum(axis=1)))
    return half_R


def steps_of(table: pl.DataFrame) -> pl.Series | None:
    """The steps, where every row has one."""
    step = table.get_column("step", default=None)
    return step if step is not None and step.dtype.is_numeric() and not step.has_nulls() else None
