"""Values that are no finite number: empty in the points, and named beside them.

A law can use numbers alone, and a health check must know that there was something else. So a metric that is NaN,
infinite or beyond `LARGEST` is empty in its point, and the point's `non_finite` says what it was: `loss=nan, kl=inf`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

import polars as pl

__all__ = ["LARGEST", "NON_FINITE", "as_text", "non_finite", "place", "set_apart", "with_marks"]

LARGEST = 1e100
"""Beyond it a number is as good as infinite, and its square is."""
NON_FINITE = "non_finite"
_BETWEEN = ", "


def set_apart(points: pl.DataFrame, *, but: Iterable[str] = ()) -> pl.DataFrame:
    """Points whose metrics are numbers or empty, the others named in the column `non_finite`; `but` stay as is."""
    floats = [name for name, kind in points.schema.items() if kind.is_float() and name not in but]
    wrong = points.select(pl.col(floats).is_not_null() & ~(pl.col(floats).abs() <= LARGEST))
    bad = [name for name in floats if wrong[name].any()]
    if not bad:
        return points
    marks = [(row, name, points[name][row]) for name in bad for row in wrong[name].arg_true()]
    return with_marks(points.with_columns(pl.when(~wrong[name]).then(pl.col(name)).alias(name) for name in bad), marks)


def with_marks(points: pl.DataFrame, marks: Iterable[tuple[int, str, float]]) -> pl.DataFrame:
    """Points that name these (row, metric, value) as well. A column of numbers by that name is the user's and stays."""
    cells: list[str | None] = [None] * points.height
    if NON_FINITE in points.columns:
        if points.schema[NON_FINITE] not in (pl.String, pl.Null):
            return points
        cells = points[NON_FINITE].to_list()
    for row, name, value in marks:
        before = cells[row]
        cells[row] = (f"{before}{_BETWEEN}" if before else "") + as_text({name: value})
    return points.with_columns(pl.Series(NON_FINITE, cells, dtype=pl.String))


def as_text(marks: Mapping[str, float]) -> str:
    """What a point's `non_finite` holds."""
    return _BETWEEN.join(f"{name}={value}" for name, value in marks.items())


def non_finite(points: pl.DataFrame) -> Iterator[tuple[int, str, float]]:
    """Row, metric and value of everything that was no finite number, in order of rows."""
    if points.schema.get(NON_FINITE) != pl.String:
        return
    for row in points[NON_FINITE].is_not_null().arg_true():
        for mark in points[NON_FINITE][row].split(_BETWEEN):
            name, _, text = mark.rpartition("=")
            try:
                value = float(text)
            except ValueError:  # somebody's own column of text
                continue
            if name and not math.fabs(value) <= LARGEST:
                yield row, name, value


def place(points: pl.DataFrame, row: int) -> str:
    """A point in words: its step, or its row where it has none."""
    step = points["step"][row] if "step" in points.columns else None
    return f"row {row + 1}" if step is None else f"step {step}"
