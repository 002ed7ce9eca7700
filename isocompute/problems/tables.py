"""Rows of a JSONL, JSON, CSV or parquet file, each with where it stands, for error messages."""

from __future__ import annotations

import csv
import io
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isocompute.core.errors import InputError

__all__ = ["SUFFIXES", "Row", "columns_of", "filled", "lookup", "read_rows"]

SUFFIXES = (".jsonl", ".json", ".csv", ".parquet")
_LONGEST_FIELD = 2**30


@dataclass(frozen=True)
class Row:
    """One row."""

    place: str
    """Such as `train.jsonl, line 3`."""
    values: Mapping[str, Any]


def read_rows(path: str) -> list[Row]:
    """All rows of a file."""
    file = Path(path)
    suffix = file.suffix.lower()
    if suffix not in SUFFIXES:
        raise InputError(f"{path}: not a problem file; give one that ends on {', '.join(SUFFIXES)}.")
    try:
        rows = (
            _parquet(file, path) if suffix == ".parquet" else _text(file.read_text(encoding="utf-8-sig"), suffix, path)
        )
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error}).") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 at byte {error.start}; save it as UTF-8.") from error
    if not rows:
        raise InputError(f"{path}: has no rows; give a file with at least one.")
    return rows


def _text(text: str, suffix: str, path: str) -> list[Row]:
    if suffix == ".csv":
        csv.field_size_limit(_LONGEST_FIELD)
        reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
        try:
            return [Row(f"{path}, line {reader.line_num}", row) for row in reader]
        except csv.Error as error:
            raise InputError(f"{path}, line {reader.line_num}: not CSV ({error}); check its quotes.") from error
    if suffix == ".json":
        data = _json(text, path)
        if isinstance(data, dict):  # {"data": [...]}, as some exports write
            lists = [value for value in data.values() if isinstance(value, list)]
            data = lists[0] if len(lists) == 1 else data
        if not isinstance(data, list):
            raise InputError(
                f"{path}: not a list of problems; give a JSON list of objects, or one object a line in a .jsonl."
            )
        return [_object(value, f"{path}, item {i + 1}") for i, value in enumerate(data)]
    lines = ((i, line) for i, line in enumerate(text.split("\n"), 1) if line.strip())
    return [_object(_json(line, f"{path}, line {i}"), f"{path}, line {i}") for i, line in lines]


def _json(text: str, place: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"{place}: not JSON ({error.msg}, column {error.colno}).") from error
    except RecursionError as error:
        raise InputError(f"{place}: not JSON (too deep).") from error
    except ValueError as error:  # Python reads no longer ones
        digits = f"{sys.get_int_max_str_digits():,} digits"
        raise InputError(f"{place}: a whole number of over {digits}; write it as text, between quotes.") from error


def _object(value: Any, place: str) -> Row:
    if not isinstance(value, dict):
        raise InputError(f"{place}: not a JSON object with columns, but {type(value).__name__}.")
    return Row(place, value)


def _parquet(file: Path, path: str) -> list[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    file.stat()
    try:
        table = pq.read_table(file)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path}: cannot be read as parquet ({str(error).splitlines()[0]}).") from error
    return [Row(f"{path}, row {i + 1}", row) for i, row in enumerate(table.to_pylist())]


def filled(value: Any) -> Any:
    """A cell; None where it is NaN, since tables of numbers have no other mark for an empty one."""
    return None if isinstance(value, float) and math.isnan(value) else value


def lookup(values: Mapping[str, Any], name: str) -> Any:
    """A column, or `outer.inner` of a nested one; names may hold dots themselves. None where there is none."""
    if name in values:
        return filled(values[name])
    for cut in range(len(name)):
        if name[cut] == "." and isinstance(inner := values.get(name[:cut]), Mapping):
            return lookup(inner, name[cut + 1 :])
    return None


def columns_of(rows: Sequence[Row]) -> list[str]:
    """All columns, nested ones with their path."""
    out: dict[str, None] = {}
    for row in rows:
        for name, value in row.values.items():
            out[str(name)] = None
            if isinstance(value, Mapping):
                out.update((f"{name}.{inner}", None) for inner in value)
    return list(out)
