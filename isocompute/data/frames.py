"""Files as data frames: CSV, TSV, parquet, JSON lines, a JSON array, a JSON object of columns.

There are two ways to read them. Files in our own layout (run folders, tables with our column names) are read strictly:
a wrong line is an error that names it. Tables of other tools are read leniently: lines that are not rows are skipped
and counted.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
import warnings
from collections.abc import Collection
from typing import Any

import polars as pl

from isocompute.core.errors import InputError
from isocompute.core.recorder import whole_lines
from isocompute.core.run import RunWarning
from isocompute.data.source import Log, Sample, as_number, flatten


class NoPointsError(InputError):
    """A run without a point yet: the file has no complete line."""


class DecimalCommaError(InputError):
    """A table whose numbers are written with decimal commas."""


# Strictly, for files in our own layout.


def parse_json_lines(data: bytes, address: str) -> pl.DataFrame:
    """A table from JSON lines; a torn last line is dropped with a warning."""
    end = whole_lines(data)
    if not data[:end].strip():
        raise NoPointsError(f"{address}: holds no points yet; let the run evaluate, or leave it out.")
    if end < len(data):
        warnings.warn(f"{address}: the last line is torn and was dropped", RunWarning, stacklevel=2)
        data = data[:end]
    for sample in (100, None):  # rows to infer the schema from
        try:
            table = pl.read_ndjson(io.BytesIO(data), infer_schema_length=sample)
        except pl.exceptions.PolarsError:
            continue
        if sample is None or _has_every_key(table, data):
            return table
    return _parse_line_by_line(data, address)


def _has_every_key(table: pl.DataFrame, data: bytes) -> bool:
    """Whether every key became a column; polars silently drops those that its sample of rows did not have.

    Every key has a colon, so there are as many colons as values and nulls. Colons inside strings can only turn a yes
    into a no, never the reverse. Colons in the text of `non_finite` follow an escaped quote and are subtracted.
    """
    nulls = data.count(b":null") + data.count(b": null")
    quoted = data.count(b'\\":') - data.count(b'\\\\":')
    return data.count(b":") == nulls + quoted + sum(table[c].count() for c in table.columns)


def _parse_line_by_line(data: bytes, address: str) -> pl.DataFrame:
    """Parse line by line, which is slow but names an invalid line and reads what polars does not."""
    rows = []
    for number, line in enumerate(data.split(b"\n"), start=1):
        if line.strip():
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise InputError(f"{address}, line {number}: not JSON ({error}); fix or delete the line.") from error
            if not isinstance(row, dict):
                raise InputError(f"{address}, line {number}: not an object but {type(row).__name__}; delete the line.")
            rows.append({key: None if isinstance(value, list | dict) else value for key, value in row.items()})
    try:
        return pl.DataFrame(rows, infer_schema_length=None, strict=False)
    except (pl.exceptions.PolarsError, TypeError, OverflowError) as error:
        why = str(error).splitlines()[0]
        raise InputError(f"{address}: a key has different kinds of values ({why}); give numbers only.") from error


def parse_csv(data: bytes, address: str, *, separator: str, run_column: str) -> pl.DataFrame:
    """A table from CSV. Run names stay text (`007`); a column of numbers may hold `nan`, spaces and empty cells.

    A last row without its newline and some of its cells (the writer was killed) is dropped with a warning.
    """
    header, start = data.split(b"\n", 1)[0], data.rfind(b"\n") + 1
    last, comma = data[start:], separator.encode()
    if last and b'"' not in header + last and last.count(comma) < header.count(comma):
        warnings.warn(f"{address}: the last line is torn and was dropped", RunWarning, stacklevel=2)
        data = data[:start]
    for sample in (1000, None):  # rows to infer the schema from
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


def with_numbers(table: pl.DataFrame, *, text: Collection[str]) -> pl.DataFrame:
    """Convert columns of text whose cells are all numbers or empty; the columns in `text` stay text."""
    numbers = []
    for name in [c for c, kind in table.schema.items() if kind == pl.String and c not in text]:
        cells = table[name].str.strip_chars()
        found = cells.cast(pl.Float64, strict=False)
        if 0 < found.count() == (cells != "").sum():
            whole = cells.cast(pl.Int64, strict=False)
            numbers.append(whole if whole.count() == found.count() else found)
    return table.with_columns(numbers)


# Leniently, for tables of other tools.

_LARGEST = 1 << 31
_SAMPLE_ROWS = 200
_MOST_COLUMNS = 5000
_EMPTY = ["", "null", "NULL", "None", "NaN", "nan", "N/A", "inf", "-inf"]
_RAGGED = "isocompute: beyond the header"
"""A column for the cells that a row has more than the header."""
_UNREADABLE = (
    pl.exceptions.PolarsError,
    pl.exceptions.PanicException,
    ValueError,
    TypeError,
    RecursionError,
    OverflowError,
    MemoryError,
    csv.Error,
)


def first_rows(sample: Sample) -> pl.DataFrame | None:
    """The first rows, or None if the file is not a table; `DecimalCommaError` if it has decimal commas."""
    parquet = sample.head[:4] == b"PAR1"  # its schema is at the end of the file
    try:
        frame, _ = _parse(sample.log.whole(_LARGEST) if parquet else sample.head, sample.log.name, whole=parquet)
    except DecimalCommaError:
        raise
    except (InputError, *_UNREADABLE):
        return None
    return None if frame is None or frame.is_empty() or frame.width < 2 else frame


def read_frame(log: Log) -> pl.DataFrame:
    """The whole table; lines that are not rows count as skipped."""
    data = log.whole(_LARGEST)
    try:
        frame, skipped = _parse(data, log.name, whole=True)
    except InputError:
        raise
    except _UNREADABLE as error:
        why = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise InputError(f"{log.name}: not a readable table ({why}).") from error
    if frame is None or frame.is_empty():
        raise InputError(f"{log.name}: not a table, or one without rows.")
    log.skipped_lines += skipped
    return frame


def _parse(data: bytes, name: str, *, whole: bool) -> tuple[pl.DataFrame | None, int]:
    """The table and the number of skipped lines; only the first rows unless `whole`."""
    if data[:4] == b"PAR1":
        return pl.read_parquet(io.BytesIO(data)), 0
    start = data.lstrip()[:1]
    if start == b"{":
        return _parse_objects(data, whole)
    if start == b"[":
        try:
            rows = json.loads(data)
        except ValueError:
            if whole:
                raise
            # The head of a long array: a key is enough to recognise a table.
            return (pl.DataFrame({"step": [0], "value": [0.0]}) if b'step"' in data else None), 0
        return _from_rows([flatten(row) for row in rows if isinstance(row, dict)]), 0
    return _parse_text(data, name, whole)


def _parse_objects(data: bytes, whole: bool) -> tuple[pl.DataFrame | None, int]:
    """JSON lines, or one object whose values are columns."""
    rows, skipped = [], 0
    lines = data.split(b"\n") if whole else data.split(b"\n", _SAMPLE_ROWS)[:_SAMPLE_ROWS]
    for line in filter(bytes.strip, lines):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict):
            rows.append(flatten(value))
        else:
            skipped += 1
    if len(rows) > 1 or (rows and not any(isinstance(v, list) for v in rows[0].values())):
        return _from_rows(rows), skipped
    try:
        columns = json.loads(data)
    except (ValueError, RecursionError):
        return None, 0
    lists = {str(k): v for k, v in columns.items() if isinstance(v, list)}
    height = max(map(len, lists.values()), default=0)
    same = {k: v for k, v in lists.items() if len(v) == height}
    return (pl.DataFrame([_column(k, v) for k, v in same.items()]) if same else None), 0


def _from_rows(rows: list[dict[str, Any]]) -> pl.DataFrame | None:
    """A table of rows with any keys; None if hardly any rows share their keys."""
    names = dict.fromkeys(key for row in rows for key in row)
    if not rows or len(names) * len(rows) > 1_000_000 + 50 * sum(map(len, rows)):
        return None
    return pl.DataFrame([_column(name, [row.get(name) for row in rows]) for name in names])


def _column(name: str, cells: list[Any]) -> pl.Series:
    """Text if any cell is text that is not a number, else numbers; other values become null."""
    if any(isinstance(c, str) and as_number(c) is None and c not in _EMPTY for c in cells):
        texts = [c if isinstance(c, str) else None if c is None else str(c) for c in cells]
        return pl.Series(name, texts, dtype=pl.String)
    return pl.Series(name, [as_number(c) for c in cells], dtype=pl.Float64)


def _parse_text(data: bytes, name: str, whole: bool) -> tuple[pl.DataFrame | None, int]:
    """A table from separated text; None if too many of the first rows have more or fewer cells than the header."""
    head = data[: 1 << 18].decode("utf-8-sig", "replace")
    first = next((line for line in head.split("\n", 50) if line.strip()), "")
    separator = max(_SEPARATORS, key=first.count)
    if not 1 <= first.count(separator) <= _MOST_COLUMNS or "\0" in head:
        return None, 0
    reader = csv.reader(io.StringIO(head, newline=""), delimiter=separator)
    sizes = [len(row) for row in itertools.islice(reader, _SAMPLE_ROWS) if row]
    if len(sizes) < 2 or sizes[1:].count(sizes[0]) < 0.8 * (len(sizes) - 1):
        return None, 0
    separator_of(data[: 1 << 18], name)  # refuses decimal commas
    if not whole:
        data = data[: data.rfind(b"\n") + 1] or data
        return _typed(_read_text(data, separator, n_rows=_SAMPLE_ROWS, truncate_ragged_lines=True)), 0
    try:
        return _typed(_read_text(data, separator)), 0
    except pl.exceptions.PolarsError:
        frame, skipped = _without_ragged(data, separator)
        return _typed(frame), skipped


def _read_text(data: bytes, separator: str, **how: Any) -> pl.DataFrame:
    """All cells as text, stripped."""
    frame = pl.read_csv(io.BytesIO(data), separator=separator, infer_schema=False, encoding="utf8-lossy", **how)
    return frame.rename(str.strip).select(pl.all().str.strip_chars())


def _typed(text: pl.DataFrame) -> pl.DataFrame:
    """Convert columns whose cells are all numbers or empty; the others stay text."""
    text = text.select(pl.when(pl.all().is_in(_EMPTY)).then(None).otherwise(pl.all()).name.keep())
    numbers = text.select(pl.all().cast(pl.Float64, strict=False))
    nulls = zip(text.columns, text.null_count().row(0), numbers.null_count().row(0), strict=True)
    return text.with_columns(numbers[name] for name, before, after in nulls if before == after < text.height)


def _without_ragged(data: bytes, separator: str) -> tuple[pl.DataFrame, int]:
    """Drop rows with more cells than the header, whose values are in the wrong columns; also return their number."""
    start = len(data) - len(data.lstrip())
    end = start + len(data[start : data.find(b"\n", start)].rstrip(b"\r"))
    wider = data[:end] + f"{separator}{_RAGGED}".encode() + data[end:]
    frame = _read_text(wider, separator, truncate_ragged_lines=True)
    if _RAGGED not in frame.columns:
        return _read_text(data, separator, truncate_ragged_lines=True), 0
    ragged = (frame[_RAGGED] != "").fill_null(value=False)
    return frame.filter(~ragged).drop(_RAGGED), int(ragged.sum())


# The separator of cells. Where the comma is the decimal sign, spreadsheets write `;`, and numbers may have commas.

_SEPARATORS = (",", "\t", ";")
_DECIMAL_COMMA = re.compile(r"-?\d+,\d+")
_THOUSANDS = re.compile(r"-?[1-9]\d{0,2}(,\d{3})+")


def separator_of(head: bytes, address: str) -> str:
    """The separator of the cells, from the first bytes of a table; decimal commas are an error.

    >>> separator_of(b"run;step;reward\\na;1;0.25\\n", "x.csv")
    ';'
    """
    lines = [line for line in head.decode("utf-8-sig", "replace").splitlines() if line.strip()][:50]
    separator = max(_SEPARATORS, key=lines[0].count) if lines else ","
    if separator == ",":
        return separator
    rows = [[cell.strip() for cell in line.split(separator)] for line in lines[1:]]
    for column in itertools.zip_longest(*rows, fillvalue=""):
        cells = [cell for cell in column if cell]
        commas = [cell for cell in cells if _DECIMAL_COMMA.fullmatch(cell)]
        if not commas or 2 * len(commas) < len(cells) or (len(set(commas)) == 1 < len(cells)):
            continue  # the same list in all rows, such as `0,1`, is not a number
        named = "tabs" if separator == "\t" else f"'{separator}'"
        if all(_THOUSANDS.fullmatch(cell) for cell in commas):
            wrong, right = "commas in thousands", f"without them ({commas[0].replace(',', '')})"
        else:
            wrong, right = "decimal commas", f"with decimal points ({commas[0].replace(',', '.')})"
        raise DecimalCommaError(f"{address}: separated by {named} with {wrong} ({commas[0]}); save it {right}.")
    return separator
