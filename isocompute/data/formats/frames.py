"""Bytes as a table: CSV, TSV, parquet, a JSON array, JSON lines, a JSON object of columns."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import polars as pl

from isocompute.core.errors import InputError
from isocompute.data.logs.literals import as_number, scalars
from isocompute.data.logs.source import Log, Sample
from isocompute.data.separators import DecimalCommaError, likely_separator, separator_of

__all__ = ["look", "read_frame"]

_LARGEST = 1 << 31
_FEW_CELLS = 1_000_000
_SPARSE = 50
"""Cells for each value that is there: beyond it the rows have nothing in common."""
_LOOK = 200
_MOST_COLUMNS = 5000
_PARQUET = b"PAR1"
_BEYOND = "isocompute: beyond the header"
"""A column for what a row has more than the header."""
_EMPTY = ["", "null", "NULL", "None", "NaN", "nan", "N/A", "inf", "-inf"]
_WRONG = (
    pl.exceptions.PolarsError,
    pl.exceptions.PanicException,
    ValueError,
    TypeError,
    RecursionError,
    OverflowError,
    MemoryError,
    csv.Error,
)


def look(sample: Sample) -> pl.DataFrame | None:
    """The first rows, where the file is a table at all; one with decimal commas is an error."""
    parquet = sample.head[:4] == _PARQUET  # its columns stand at its end
    try:
        frame, _ = _frame(sample.log.whole(_LARGEST) if parquet else sample.head, sample.log.name, whole=parquet)
    except DecimalCommaError:
        raise
    except (InputError, *_WRONG):
        return None
    return None if frame is None or frame.is_empty() or frame.width < 2 else frame


def read_frame(log: Log) -> pl.DataFrame:
    """The whole table; lines that are none of its rows count as skipped."""
    data = log.whole(_LARGEST)
    try:
        frame, skipped = _frame(data, log.name, whole=True)
    except InputError:
        raise
    except _WRONG as error:
        why = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise InputError(f"{log.name}: not a readable table ({why}).") from error
    if frame is None or frame.is_empty():
        raise InputError(f"{log.name}: not a table, or one without rows.")
    log.skipped_lines += skipped
    return frame


def _frame(data: bytes, name: str, *, whole: bool) -> tuple[pl.DataFrame | None, int]:
    """Columns of text and of numbers, and how many lines were skipped; of a head only the first rows."""
    if data[:4] == _PARQUET:
        return pl.read_parquet(io.BytesIO(data)), 0
    start = data.lstrip()[:1]
    if start == b"{":
        return _of_objects(data, whole)
    if start == b"[":
        try:
            rows = json.loads(data)
        except ValueError:
            if whole:
                raise
            # A long array cut off: its keys are enough to know it by.
            return (pl.DataFrame({"step": [0], "value": [0.0]}) if b'step"' in data else None), 0
        return _of_rows([scalars(row) for row in rows if isinstance(row, dict)]), 0
    return _of_csv(data, name, whole)


def _of_objects(data: bytes, whole: bool) -> tuple[pl.DataFrame | None, int]:
    """JSON lines, else one object whose values are columns."""
    rows = []
    skipped = 0
    for line in data.split(b"\n", -1 if whole else _LOOK)[: None if whole else _LOOK]:
        if line.strip():
            try:
                value = json.loads(line)
            except (ValueError, RecursionError):
                value = None
            if isinstance(value, dict):
                rows.append(scalars(value))
            else:
                skipped += 1
    if len(rows) > 1 or (rows and not any(isinstance(v, list) for v in rows[0].values())):
        return _of_rows(rows), skipped
    try:
        columns = json.loads(data)
    except (ValueError, RecursionError):
        return None, 0
    lists = {str(k): v for k, v in columns.items() if isinstance(v, list)}
    height = max(map(len, lists.values()), default=0)
    same = {k: v for k, v in lists.items() if len(v) == height}
    return (pl.DataFrame([_column(k, v) for k, v in same.items()]) if same else None), 0


def _of_rows(rows: list[dict[str, Any]]) -> pl.DataFrame | None:
    """Rows of any keys."""
    names = dict.fromkeys(key for row in rows for key in row)
    if not rows or len(names) * len(rows) > _FEW_CELLS + _SPARSE * sum(map(len, rows)):
        return None  # hardly a row has the keys of another: no table
    return pl.DataFrame([_column(name, [row.get(name) for row in rows]) for name in names])


def _column(name: str, cells: list[Any]) -> pl.Series:
    """Text if any cell is text that is not a number, else numbers; what is neither is left out."""
    if any(isinstance(c, str) and as_number(c) is None and c not in _EMPTY for c in cells):
        texts = [c if isinstance(c, str) else None if c is None else str(c) for c in cells]
        return pl.Series(name, texts, dtype=pl.String)
    return pl.Series(name, [as_number(c) for c in cells], dtype=pl.Float64)


def _of_csv(data: bytes, name: str, whole: bool) -> tuple[pl.DataFrame | None, int]:
    head = data[: 1 << 18].decode("utf-8-sig", "replace")
    first = next((line for line in head.split("\n", 50) if line.strip()), "")
    separator = likely_separator(first)
    if not 1 <= first.count(separator) <= _MOST_COLUMNS or "\0" in head or not _is_even(head, separator):
        return None, 0
    separator = separator_of(data[: 1 << 18], name)
    if not whole:
        data = data[: data.rfind(b"\n") + 1] or data
        return _with_numbers(_read_csv(data, separator, n_rows=_LOOK, truncate_ragged_lines=True)), 0
    try:
        return _with_numbers(_read_csv(data, separator)), 0
    except pl.exceptions.PolarsError:
        frame, skipped = _without_ragged(data, separator)
        return _with_numbers(frame), skipped


def _read_csv(data: bytes, separator: str, **how: Any) -> pl.DataFrame:
    """All cells as text."""
    text = io.BytesIO(data)
    frame = pl.read_csv(text, separator=separator, infer_schema=False, encoding="utf8-lossy", **how)
    return frame.rename(str.strip)


def _without_ragged(data: bytes, separator: str) -> tuple[pl.DataFrame, int]:
    """A table without its rows of more cells than the header has, whose values stand in the wrong columns."""
    start = len(data) - len(data.lstrip())
    end = data.find(b"\n", start)
    end = start + len(data[start:end].rstrip(b"\r"))
    beyond = data[:end] + f"{separator}{_BEYOND}".encode() + data[end:]
    frame = _read_csv(beyond, separator, truncate_ragged_lines=True)
    if _BEYOND not in frame.columns:
        return _read_csv(data, separator, truncate_ragged_lines=True), 0
    ragged = (frame[_BEYOND].str.strip_chars() != "").fill_null(value=False)
    return frame.filter(~ragged).drop(_BEYOND), int(ragged.sum())


def _is_even(head: str, separator: str) -> bool:
    """Whether most of the first rows have as many cells as the header: other text with commas in it has not."""
    reader = csv.reader(io.StringIO(head, newline=""), delimiter=separator)
    sizes = [len(row) for _, row in zip(range(_LOOK), reader, strict=False) if row]
    return len(sizes) > 1 and sizes[1:].count(sizes[0]) >= 0.8 * (len(sizes) - 1)


def _with_numbers(frame: pl.DataFrame) -> pl.DataFrame:
    """Columns whose cells are all numbers, or empty, as numbers."""
    text = frame.select(pl.all().str.strip_chars())
    text = text.select(pl.when(pl.all().is_in(_EMPTY)).then(None).otherwise(pl.all()).name.keep())
    numbers = text.select(pl.all().cast(pl.Float64, strict=False))
    missing = zip(text.columns, text.null_count().row(0), numbers.null_count().row(0), strict=True)
    return text.with_columns(numbers[name] for name, empty, no in missing if empty == no < text.height)
