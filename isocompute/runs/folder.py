"""Reading the run folder: `run.json` (settings) and `points.jsonl` (append-only, one evaluation a line)."""

from __future__ import annotations

import io
import json
import warnings

import numpy as np
import polars as pl
from pydantic import ValidationError

from isocompute.arrays import Bools
from isocompute.errors import InputError
from isocompute.runs import files
from isocompute.runs.bookkeeping import is_bookkeeping
from isocompute.runs.finite import NON_FINITE, put_back, set_apart
from isocompute.runs.model import POINT_COLUMNS, Run, RunWarning
from isocompute.runs.settings import RunSettings
from isocompute.runs.writer import POINTS, SETTINGS, RunWriter, whole_lines

__all__ = ["POINTS", "SETTINGS", "NoPointsError", "RunWriter", "parse_lines", "read_run", "steps_of", "tidy"]

_ROWS_A_STEP = 16
"""So far on a step is said again; trainers write a handful of rows, a run is resumed a few times."""
_SAMPLE = 100
"""Lines that tell the columns of a file; whatever they do not tell is noticed and read the slower way."""


class NoPointsError(InputError):
    """A run that has not come to its first point: there is no whole line."""


def read_run(address: str, *, name: str | None = None) -> Run:
    """Read a run folder; `NoPointsError` where it has no point yet."""
    points_address = files.join(address, POINTS)
    points = parse_lines(files.read_bytes(points_address), points_address)
    settings = RunSettings()
    settings_address = files.join(address, SETTINGS)
    if files.exists(settings_address):
        try:
            settings = RunSettings.model_validate_json(files.read_bytes(settings_address))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "the file"
            raise InputError(f"{settings_address}: {where}: {first['msg']}; mend or remove it.") from error
    return Run(name or files.last_part(address), settings, tidy(points))


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
                raise InputError(f"{address}, line {number}: not JSON ({error}); mend or delete the line.") from error
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
        table = _one_row_a_step(put_back(table, but=POINT_COLUMNS))
    table = set_apart(table, but=POINT_COLUMNS)
    return table if step is None or table["step"].is_sorted() else table.sort("step", maintain_order=True)


def _one_row_a_step(table: pl.DataFrame) -> pl.DataFrame:
    """Rows of a step as one: a validation and a training row say different things, of which the last word counts."""
    table = table.sort("step", maintain_order=True)
    table = table.filter(~pl.Series(_said_again(table)))
    last = table.group_by("step", maintain_order=True).agg(pl.all().drop_nulls().last())
    return last.select(table.columns)


def _said_again(table: pl.DataFrame) -> Bools:
    """Rows, in order of step, half of which a later row of their step says again: of a branch that a resumed run left.

    The half is that of the larger row, as in imports (`logs.collect`).
    """
    measured = [name for name in table.columns if not is_bookkeeping(name) and name != NON_FINITE]
    step_R = table["step"].to_numpy()
    there_RC = np.stack([table[name].is_not_null().to_numpy() for name in measured], axis=1) if measured else None
    gone_R = np.zeros(len(step_R), dtype=np.bool_)
    if there_RC is None:
        return gone_R
    count_R = there_RC.sum(axis=1)
    for later in range(1, _ROWS_A_STEP):
        same_R = step_R[later:] == step_R[:-later]
        if not same_R.any():
            break
        common_R = (there_RC[later:] & there_RC[:-later]).sum(axis=1)
        gone_R[:-later] |= same_R & (common_R > 0) & (2 * common_R >= np.maximum(count_R[later:], count_R[:-later]))
    return gone_R


def steps_of(table: pl.DataFrame) -> pl.Series | None:
    """The steps, where every row has one."""
    step = table.get_column("step", default=None)
    return step if step is not None and step.dtype.is_numeric() and not step.has_nulls() else None
