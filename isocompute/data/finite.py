"""Values that are not finite: empty in the points, and named beside them.

A law can use numbers alone, and a health check must know that there was something else. So a metric that is NaN,
infinite or beyond `LARGEST` is empty in its point, and the point's `non_finite` says what it was, as the text of a JSON
object: `{"loss": "nan", "kl": "inf"}`.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import polars as pl

__all__ = [
    "LARGEST",
    "NON_FINITE",
    "Marked",
    "as_text",
    "ends_marked",
    "non_finite",
    "place",
    "put_back",
    "set_apart",
    "with_marks",
]

LARGEST = 1e100
"""Beyond it a number is as good as infinite, and its square is."""
NON_FINITE = "non_finite"
_BETWEEN = ", "


class Marked(NamedTuple):
    """What is known of a metric that was not always a finite number."""

    row: int
    """The first such row."""
    value: float
    """What stood there."""
    rows: int
    """How many such rows there are."""


def set_apart(points: pl.DataFrame, *, but: Iterable[str] = ()) -> pl.DataFrame:
    """Points whose metrics are numbers or empty, the others named in the column `non_finite`; `but` stay as is."""
    floats = [name for name, kind in points.schema.items() if kind.is_float() and name not in but]
    wrong = points.select(pl.col(floats).is_not_null() & ~(pl.col(floats).abs() <= LARGEST))
    bad = [name for name in floats if wrong[name].any()]
    if not bad:
        return points
    odd = points.select(pl.when(wrong[name]).then(pl.col(name)).alias(name) for name in bad)
    numbers = points.with_columns(pl.when(~wrong[name]).then(pl.col(name)).alias(name) for name in bad)
    return with_marks(numbers, odd)


def put_back(points: pl.DataFrame, *, but: Iterable[str] = ()) -> pl.DataFrame:
    """Points with the values that `non_finite` names in their own cells: `set_apart` the other way round.

    A cell that also names a column of `but`, or one that holds no numbers, stays as it is.
    """
    if points.schema.get(NON_FINITE) != pl.String:
        return points
    kept = {*but, *(name for name, kind in points.schema.items() if not (kind.is_numeric() or kind == pl.Null))}
    marks = {cell: found for cell in points[NON_FINITE].drop_nulls().unique() if (found := _marks(cell))}
    marks = {cell: found for cell, found in marks.items() if not kept & found.keys()}
    if not marks:
        return points
    values: dict[str, dict[str, float]] = {}
    for cell, found in marks.items():
        for name, value in found.items():
            values.setdefault(name, {})[cell] = value
    cells = pl.col(NON_FINITE)
    return points.with_columns(
        pl.when(~cells.is_in([*marks])).then(cells).alias(NON_FINITE),
        *(
            pl.coalesce(
                cells.replace_strict(by_cell, default=None, return_dtype=pl.Float64),
                *([pl.col(name)] if name in points.columns else []),
            ).alias(name)
            for name, by_cell in values.items()
        ),
    )


def with_marks(points: pl.DataFrame, odd: pl.DataFrame) -> pl.DataFrame:
    """Points that name the values of `odd` as well: a column a metric, null where there is nothing to say.

    A column of numbers named `non_finite` is the user's and stays.
    """
    cells = pl.Series(NON_FINITE, [None], dtype=pl.String).new_from_index(0, points.height)
    if NON_FINITE in points.columns:
        if points.schema[NON_FINITE] not in (pl.String, pl.Null):
            return points
        cells = points[NON_FINITE].cast(pl.String)
    before = cells.str.extract(r"(?s)^\{(.+)\}$")
    # Written as `as_text` does; Python's `nan` and `inf` are polars' in lower case.
    new = [
        pl.concat_str(pl.lit(f'{json.dumps(name)}: "'), odd[name].cast(pl.String).str.to_lowercase(), pl.lit('"'))
        for name in odd.columns
    ]
    joined = pl.select(pl.concat_str(before, *new, separator=_BETWEEN, ignore_nulls=True)).to_series()
    marked = pl.concat_str(pl.lit("{"), joined, pl.lit("}"))
    return points.with_columns(pl.when(joined != "").then(marked).otherwise(cells).alias(NON_FINITE))


def as_text(marks: Mapping[str, float]) -> str:
    """What a point's `non_finite` holds."""
    return json.dumps({name: str(value) for name, value in marks.items()})


def non_finite(points: pl.DataFrame) -> dict[str, Marked]:
    """The metrics that were not always finite numbers, in order of the rows where that began.

    A run that broke says the same in most of its rows, so each different cell is read once.
    """
    if points.schema.get(NON_FINITE) != pl.String:
        return {}
    first: dict[str, tuple[int, float]] = {}
    rows: Counter[str] = Counter()
    cells = points.select(cell=NON_FINITE).with_row_index("row").drop_nulls("cell")
    same = cells.group_by("cell", maintain_order=True).agg(pl.col("row").first(), count=pl.len())
    for cell, row, count in same.iter_rows():
        for name, value in _marks(cell).items():
            rows[name] += count
            if name not in first:
                first[name] = (row, value)
    return {name: Marked(*at, rows[name]) for name, at in first.items()}


def ends_marked(points: pl.DataFrame, metric: str) -> bool:
    """Whether a metric ends in rows where it is not a number, more of them than ever stood between two numbers: some
    logs fill what was not evaluated with NaN.
    """
    if points.schema.get(NON_FINITE) != pl.String or metric not in points.columns:
        return False
    cells = points[NON_FINITE]
    marking = [cell for cell in cells.drop_nulls().unique() if metric in _marks(cell)]
    counts = [0]  # of marked rows before each number, and after the last one
    for marked, empty in zip(cells.is_in(marking).fill_null(False), points[metric].is_null(), strict=True):
        if not empty:
            counts.append(0)
        elif marked:
            counts[-1] += 1
    return counts[-1] > max(counts[:-1], default=0)


def _marks(cell: str) -> dict[str, float]:
    """The values that a cell names; none where it is somebody's own text."""
    try:
        values = json.loads(cell)
        marks = {name: float(value) for name, value in values.items() if isinstance(value, str)}
    except (ValueError, AttributeError, RecursionError):
        return {}
    return {name: value for name, value in marks.items() if not math.fabs(value) <= LARGEST}


def place(points: pl.DataFrame, row: int) -> str:
    """A point in words: its step, or its row where it has none."""
    step = points["step"][row] if "step" in points.columns else None
    return f"row {row + 1}" if step is None else f"step {step}"
