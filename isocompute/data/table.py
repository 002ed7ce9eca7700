"""Bare tables: CSV, JSON lines or parquet with one row an evaluation, in our column names or renamed by the user."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import polars as pl
import polars.selectors as cs

from isocompute.core import files
from isocompute.core.errors import InputError
from isocompute.core.run import POINT_COLUMNS, Run, RunSettings, RunWarning, listing
from isocompute.data.bookkeeping import is_bookkeeping
from isocompute.data.cells import is_text, tell_of_text, with_numbers
from isocompute.data.columns import MADE_OF, constant_columns, made_of, said_by
from isocompute.data.folder import parse_lines, rows_of_points, steps_of, tidy

__all__ = ["TABLE_SUFFIXES", "read_table"]

TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")
_SETTING_COLUMNS = ("problems_per_batch", "rollouts_per_problem", "seed", "gpus")
_ROLES = ("run", "value", *_SETTING_COLUMNS, *POINT_COLUMNS, *MADE_OF)
_ROW = "\0row"
"""A column for the row in the file, while the rows are parted."""
_SAMPLE = 1000
"""Rows of a CSV that tell the types of its columns; a later row that disagrees is read the slower way."""


def read_table(
    address: str, *, columns: Mapping[str, str] | None = None, where: Mapping[str, str] | None = None
) -> list[Run]:
    """The runs of one table.

    `columns` maps our names to the table's (`{"value": "val_reward_fit", "rollouts": "C_rollouts"}`), `where` keeps
    the rows whose column has a value. Without a `run` column the rows are one run for each (Bp, n, seed), model and
    problem set they name. Columns that say a model, a problem set or a field of the recipe, the same in all rows of a
    run, go into the settings.
    """
    columns, where = columns or {}, where or {}
    table, rows = _read(address, columns)
    for key, wanted in where.items():
        kept = _kept(table, _column_of(key, table), wanted, address)
        table, rows = table.filter(kept), rows.filter(kept)
    if where:
        table = _with_numbers(table, columns)  # a cell that was none may be gone
    table = _renamed(table, columns, address)
    settings = [c for c in _SETTING_COLUMNS if c in table.columns]
    table = table.with_columns(pl.col(c).fill_nan(None) for c in settings if table.schema[c].is_float())
    keys = ["run"] if "run" in table.columns else [*settings, *_telling(table, settings)]
    for column in {*keys, *settings}:
        if table.schema[column].is_nested():
            raise InputError(f"{address}: the column '{column}' holds lists or objects; give plain values.")
    text = {*keys, *settings, *said_by(table.columns)}
    tell_of_text(table, address, used=text, value=columns.get("value"), place=lambda row: f"row {rows[row]}")
    if not keys:
        made = _made(table, [table], columns)
        return [_run(files.last_part(address).rsplit(".", 1)[0], table, rows, settings, made, address)]
    for column in keys:
        if table[column].has_nulls():
            raise InputError(f"{address}: a row has an empty '{column}'; fill it in.")
    named = keys == ["run"]
    parts = table.with_columns(rows).partition_by(keys, as_dict=True, maintain_order=True, include_key=not named)
    made = _made(table, parts.values(), columns)
    runs = []
    for values, part in parts.items():
        name = str(values[0]) if named else ",".join(f"{_short(k)}={v}" for k, v in zip(keys, values, strict=True))
        runs.append(_run(name, part.drop(_ROW), part[_ROW], settings, made, address))
    return runs


def _made(table: pl.DataFrame, parts: Iterable[pl.DataFrame], columns: Mapping[str, str]) -> dict[str, str]:
    """Columns that say how the runs were made; never the one that the user named as the value."""
    return {c: name for c, name in constant_columns(table, parts).items() if c != columns.get("value")}


def _telling(table: pl.DataFrame, settings: list[str]) -> list[str]:
    """Of columns that say how runs were made, those that tell rows apart which would else be one run.

    Text always does; a number, such as a learning rate, only where rows go back to an earlier step without it.
    """
    said = [c for c in said_by(table.columns) if not table.schema[c].is_nested() and not table[c].has_nulls()]
    counter = next((c for c in POINT_COLUMNS if c in table.columns and table.schema[c].is_numeric()), None)
    keys: list[str] = []
    for column in sorted(said, key=lambda c: table.schema[c] != pl.String):
        groups = [*settings, *keys]
        parts = table.partition_by(groups, maintain_order=True) if groups else [table]
        splits = any(part[column].n_unique() > 1 for part in parts)
        back = counter is not None and not all(part[counter].drop_nulls().is_sorted() for part in parts)
        if splits and (back or table.schema[column] == pl.String):
            keys.append(column)
    return keys


def _short(key: str) -> str:
    return {"problems_per_batch": "Bp", "rollouts_per_problem": "n"}.get(key, key)


def _read(address: str, columns: Mapping[str, str]) -> tuple[pl.DataFrame, pl.Series]:
    """The table, and where its rows stand in the file: from 1, the header not counted, blank lines counted."""
    data = files.read_bytes(address)
    if not data or data.isspace():
        raise InputError(f"{address}: the file is empty.")
    suffix = "." + address.rsplit(".", 1)[-1].lower()
    try:
        if suffix == ".parquet":
            table = _with_numbers(pl.read_parquet(io.BytesIO(data)), columns)
        elif suffix in (".jsonl", ".ndjson"):
            table = _with_numbers(parse_lines(data, address), columns)
        else:
            table = _read_csv(data, address, "\t" if suffix == ".tsv" else ",", columns.get("run", "run"))
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise InputError(f"{address}: not a readable {suffix[1:]} table ({str(error).splitlines()[0]}).") from error
    there = pl.repeat(value=True, n=table.height, eager=True)
    if suffix in (".csv", ".tsv"):
        there = table.select(~pl.all_horizontal(pl.all().is_null())).to_series()
    if not there.any():
        raise InputError(f"{address}: the table has no rows.")
    return table.filter(there), (there.arg_true() + 1).cast(pl.Int64).alias(_ROW)


def _with_numbers(table: pl.DataFrame, columns: Mapping[str, str]) -> pl.DataFrame:
    """Numbers in quotes as numbers, but for columns that name runs, models or problems (`007` stays `007`)."""
    names = ("run", "model", "problems")
    said = [column for column, role in said_by(table.columns).items() if role in names]
    named = [columns.get(role, role) for role in names]
    return with_numbers(table, text=[*said, *named, *filter(is_text, table.columns)])


def _read_csv(data: bytes, address: str, separator: str, run_column: str) -> pl.DataFrame:
    """A CSV: run names are text (`007` stays `007`), a column of numbers may hold `nan`, spaces and empty cells."""
    data = _whole_rows(data, address, separator)
    for sample in (_SAMPLE, None):
        try:
            table = pl.read_csv(
                io.BytesIO(data),
                separator=separator,
                infer_schema_length=sample,
                null_values=["", "null", "NULL", "None"],
                schema_overrides={run_column: pl.String},
            )
            break
        except pl.exceptions.PolarsError:
            if sample is None:
                raise
    return with_numbers(table, text=[run_column])


def _whole_rows(data: bytes, address: str, separator: str) -> bytes:
    """Without a last row that lacks its newline and some of its cells: a writer was killed inside it."""
    header, last = data.split(b"\n", 1)[0], data.rfind(b"\n") + 1
    row = data[last:]
    if not row or b'"' in header + row or row.count(separator.encode()) >= header.count(separator.encode()):
        return data
    warnings.warn(f"{address}: the last line is torn and was dropped", RunWarning, stacklevel=2)
    return data[:last]


def _column_of(key: str, table: pl.DataFrame) -> str:
    """The column that `--where` means: by its own name, or by what it is called in the settings of its runs."""
    ours = {name: column for column, name in said_by(table.columns).items()}
    return key if key in table.columns else ours.get(key.removeprefix("recipe."), key)


def _kept(table: pl.DataFrame, column: str, wanted: str, address: str) -> pl.Series:
    """Whether `--where` keeps each row; an error where it keeps none."""
    if column not in table.columns:
        raise InputError(
            f"--where {column}={wanted}: {address} has no column '{column}'; it has {listing(table.columns, 12)}."
        )
    kind = table.schema[column]
    if kind.is_nested():
        raise InputError(f"--where {column}={wanted}: the column of {address} holds lists; give another column.")
    if kind.is_numeric():
        try:
            kept = table[column] == float(wanted)
        except ValueError as error:
            raise InputError(f"--where {column}={wanted}: the column holds numbers; give a number.") from error
    else:
        kept = table[column].cast(pl.String) == wanted
    if not kept.any():
        values = table[column].unique(maintain_order=True).drop_nulls().cast(pl.String).to_list()
        raise InputError(f"--where {column}={wanted} leaves no rows of {address}; '{column}' has {listing(values)}.")
    return kept


def _renamed(table: pl.DataFrame, columns: Mapping[str, str], address: str) -> pl.DataFrame:
    """The table in our column names; the value keeps its own, which is the metric's name."""
    for ours, theirs in columns.items():
        if ours not in _ROLES:
            raise InputError(f"--columns {ours}={theirs}: '{ours}' is not one of {listing(_ROLES, 12)}.")
        if theirs not in table.columns:
            raise InputError(f"{address}: there is no column '{theirs}'; there are {listing(table.columns, 12)}.")
    renames = {ours: theirs for ours, theirs in columns.items() if ours != "value"}
    used = set(renames.values()) - set(renames)
    return table.with_columns(pl.col(theirs).alias(ours) for ours, theirs in renames.items()).drop(used)


def _run(
    name: str, table: pl.DataFrame, rows: pl.Series, settings: list[str], made: Mapping[str, str], address: str
) -> Run:
    found: dict[str, Any] = made_of(table, made)
    for column in settings:
        low: Any = table[column].min()
        high: Any = table[column].max()
        if low != high:
            raise InputError(
                f"{address}: run '{name}' has {column} = {low} and {high}: two different runs with one name; "
                "give them their own names in the run column."
            )
        if low is not None:
            found[column] = _whole_number(low, name, column, address)
    table = table.drop(settings, *made)
    _check_first_step(name, table, address)
    return Run(name, RunSettings.model_validate(found), tidy(table), rows_of_points(table, rows))


def _whole_number(value: Any, name: str, column: str, address: str) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        number = None
    if number is None or number != value or (number < 1 and column != "seed"):
        raise InputError(f"{address}: run '{name}' has {column} = {value}; it must be a whole number above 0.")
    return number


def _check_first_step(name: str, table: pl.DataFrame, address: str) -> None:
    """A resumed run goes on from a checkpoint; rows back at the first step with other values are another run."""
    step = steps_of(table)
    if step is None or step.n_unique() == table.height:
        return
    first = table.filter(step == step[0]).with_columns(cs.float().fill_nan(None))
    if all(first[c].count() <= 1 for c in first.columns if not is_bookkeeping(c)):
        return  # a validation and a training row of one run, each with its own clock
    if any(first[c].drop_nulls().n_unique() > 1 for c in first.columns):
        raise InputError(
            f"{address}: run '{name}', column 'step': {step[0]} comes twice with different values: two "
            "different runs with one name? Give them their own names in the run column, or keep one with --where."
        )
