"""`Run` and `RunSet`: the points and settings of training runs, from our engines or from a trainer's log.

A law needs numbers, while a health check must know about NaN and infinite values. So a metric that is NaN, infinite or
beyond `LARGEST` is null in its point. The point's column `non_finite` keeps the value in a JSON object such as
`{"loss": "nan", "kl": "inf"}`.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import polars as pl

from isocompute.core.errors import InputError
from isocompute.core.recorder import RunSettings

POINT_COLUMNS = ("step", "rollouts", "tokens", "seconds", "gpu_hours")
"""Columns of a point that count compute; every other numeric column is a metric."""
NON_FINITE = "non_finite"
"""The column of a JSON object with the metrics that were NaN or infinite at a point: `{"loss": "nan"}`."""
LARGEST = 1e100
"""Larger values count as infinite, since their squares may be."""


class RunWarning(UserWarning):
    """Something in the data was repaired or left out; the result is still sound."""


class NonFiniteWarning(RunWarning):
    """Values that are NaN or infinite were left out."""


@dataclass(frozen=True)
class Run:
    """Settings and points of one training run; one row per point, in order of step, at most one row per step."""

    name: str
    settings: RunSettings
    points: pl.DataFrame
    rows: pl.Series | None = field(default=None, compare=False, repr=False)
    """Row of each point in its file, from 1; null if several rows make up the point. None: row i is point i."""

    def place(self, row: int) -> str:
        """Where a point is found in its file: its row, or its step if several rows make up the point."""
        at = row + 1 if self.rows is None else self.rows[row]
        return f"step {self.points['step'][row]}" if at is None else f"row {at}"

    @property
    def metrics(self) -> list[str]:
        """Names of the numeric columns that do not count compute and are not empty.

        A metric that was never finite is not empty: asking for it raises an error about its values.
        """
        names = [
            name
            for name, kind in self.points.schema.items()
            if name not in POINT_COLUMNS and (kind.is_numeric() or kind == pl.Boolean)
        ]
        empty = {name for name in names if not self.points[name].count()}
        if empty and self.points.schema.get(NON_FINITE) == pl.String:
            for cell in self.points[NON_FINITE].drop_nulls().unique():
                empty -= marks_in(cell).keys()
        return [name for name in names if name not in empty]


@dataclass(frozen=True)
class RunSet(Sequence[Run]):
    """Runs with distinct names."""

    runs: tuple[Run, ...]
    source: str = "runs"
    value_column: str | None = field(default=None)
    """The column that the user named as the value, if any."""

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for run in self.runs:
            if run.name in seen:
                raise InputError(
                    f"{self.source}: two different runs are named '{run.name}'; rename one, or keep one with --where."
                )
            seen.add(run.name)

    def __len__(self) -> int:
        return len(self.runs)

    def __iter__(self) -> Iterator[Run]:
        return iter(self.runs)

    def __getitem__(self, index: Any) -> Any:
        """A run by position or by name; a slice gives a tuple of runs."""
        if isinstance(index, str):
            return self.named(index)
        return self.runs[index]

    def named(self, name: str) -> Run:
        """The run with this name."""
        for run in self.runs:
            if run.name == name:
                return run
        raise InputError(f"{self.source}: there is no run '{name}'; there are {listing([r.name for r in self.runs])}.")


def listing(names: Sequence[str], most: int = 8) -> str:
    """Names for an error message, cut to a readable number."""
    shown = ", ".join(f"'{name}'" for name in names[:most])
    return shown + (f" and {len(names) - most} more" if len(names) > most else "") if names else "none"


# Metrics that were NaN or infinite: null in the points, and listed in the column `non_finite`.


class NonFinite(NamedTuple):
    """A metric with non-finite values: the first such row, its value, and the number of such rows."""

    row: int
    value: float
    rows: int


def mark_non_finite(points: pl.DataFrame, *, but: Iterable[str] = ()) -> pl.DataFrame:
    """Points with non-finite values moved to the column `non_finite`; columns in `but` stay as they are."""
    floats = [name for name, kind in points.schema.items() if kind.is_float() and name not in but]
    wrong = points.select(pl.col(floats).is_not_null() & ~(pl.col(floats).abs() <= LARGEST))
    bad = [name for name in floats if wrong[name].any()]
    if not bad:
        return points
    odd = points.select(pl.when(wrong[name]).then(pl.col(name)).alias(name) for name in bad)
    numbers = points.with_columns(pl.when(~wrong[name]).then(pl.col(name)).alias(name) for name in bad)
    return with_marks(numbers, odd)


def restore_non_finite(points: pl.DataFrame, *, but: Iterable[str] = ()) -> pl.DataFrame:
    """Points with the values of `non_finite` back in their own columns: the inverse of `mark_non_finite`.

    A cell that also names a column in `but`, or a column without numbers, stays as it is.
    """
    if points.schema.get(NON_FINITE) != pl.String:
        return points
    kept = {*but, *(name for name, kind in points.schema.items() if not (kind.is_numeric() or kind == pl.Null))}
    marks = {cell: found for cell in points[NON_FINITE].drop_nulls().unique() if (found := marks_in(cell))}
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
    """Points whose `non_finite` also lists the values of `odd` (one column per metric, null if it is finite).

    A numeric column named `non_finite` is the user's own and stays as it is.
    """
    cells = pl.Series(NON_FINITE, [None], dtype=pl.String).new_from_index(0, points.height)
    if NON_FINITE in points.columns:
        if points.schema[NON_FINITE] not in (pl.String, pl.Null):
            return points
        cells = points[NON_FINITE].cast(pl.String)
    before = cells.str.extract(r"(?s)^\{(.+)\}$")
    # Written as `marks_as_json` does; Python's `nan` and `inf` are polars' in lower case.
    new = [
        pl.concat_str(pl.lit(f'{json.dumps(name)}: "'), odd[name].cast(pl.String).str.to_lowercase(), pl.lit('"'))
        for name in odd.columns
    ]
    joined = pl.select(pl.concat_str(before, *new, separator=", ", ignore_nulls=True)).to_series()
    marked = pl.concat_str(pl.lit("{"), joined, pl.lit("}"))
    return points.with_columns(pl.when(joined != "").then(marked).otherwise(cells).alias(NON_FINITE))


def marks_as_json(marks: Mapping[str, float]) -> str:
    """The cell of a point's `non_finite` for these values."""
    return json.dumps({name: str(value) for name, value in marks.items()})


def marks_in(cell: str) -> dict[str, float]:
    """The metrics in a cell of `non_finite` and their values; empty for other text."""
    try:
        values = json.loads(cell)
        marks = {name: float(value) for name, value in values.items() if isinstance(value, str)}
    except (ValueError, AttributeError, RecursionError):
        return {}
    return {name: value for name, value in marks.items() if not math.fabs(value) <= LARGEST}


def non_finite(points: pl.DataFrame) -> dict[str, NonFinite]:
    """The metrics that were not always finite, in order of the first such row.

    A diverged run repeats the same cell in most rows, so each distinct cell is parsed once.
    """
    if points.schema.get(NON_FINITE) != pl.String:
        return {}
    first: dict[str, tuple[int, float]] = {}
    rows: Counter[str] = Counter()
    cells = points.select(cell=NON_FINITE).with_row_index("row").drop_nulls("cell")
    same = cells.group_by("cell", maintain_order=True).agg(pl.col("row").first(), count=pl.len())
    for cell, row, count in same.iter_rows():
        for name, value in marks_in(cell).items():
            rows[name] += count
            if name not in first:
                first[name] = (row, value)
    return {name: NonFinite(*at, rows[name]) for name, at in first.items()}


def ends_non_finite(points: pl.DataFrame, metric: str) -> bool:
    """Whether a metric ends with more non-finite rows than there are between any two of its numbers.

    The comparison allows for logs that fill points without an evaluation with NaN.
    """
    if points.schema.get(NON_FINITE) != pl.String or metric not in points.columns:
        return False
    cells = points[NON_FINITE]
    marking = [cell for cell in cells.drop_nulls().unique() if metric in marks_in(cell)]
    counts = [0]  # of marked rows before each number, and after the last one
    for marked, empty in zip(cells.is_in(marking).fill_null(False), points[metric].is_null(), strict=True):
        if not empty:
            counts.append(0)
        elif marked:
            counts[-1] += 1
    return counts[-1] > max(counts[:-1], default=0)


def place_of(points: pl.DataFrame, row: int) -> str:
    """A point in words: its step, or its row where it has none."""
    step = points["step"][row] if "step" in points.columns else None
    return f"row {row + 1}" if step is None else f"step {step}"


# Columns of text that should be numeric: one cell is `-`, or all look like `58.7%` or `20,480`.

_ALMOST_NUMBER = r"^[-+]?(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d*[.,]?\d+)(?:[eE][-+]?\d+)?\s?%?$"
_LIST = r"\d+(,\d{1,2})+"
"""If the same in every row, this is a list such as the devices `0,1`."""
_TEXT_NAMES = {
    *("id", "uid", "uuid", "name", "label", "tag", "key", "hash", "commit", "version", "host", "hostname"),
    *("group", "variant", "method", "algorithm", "setting", "config", "env", "status", "note", "notes", "comment"),
    *("date", "time", "timestamp"),
}
"""Last words of the names of columns whose text is intended."""
_LONGEST_CELL = 40
_MOST_NAMED = 3


class TextCell(NamedTuple):
    """The first cell that is not a number in a column meant for numbers."""

    column: str
    place: str
    """Its row, such as `row 3`, counted from 1 without the header."""
    cell: str

    def __str__(self) -> str:
        shown = self.cell if len(self.cell) <= _LONGEST_CELL else f"{self.cell[:_LONGEST_CELL]}…"
        return f"column '{self.column}': '{shown}' ({self.place}) is not a number"


def is_text_column(name: str) -> bool:
    """Whether a column of this name is text by intention, whatever its cells look like."""
    return re.split(r"[\W_]+", name.strip().lower())[-1] in _TEXT_NAMES


def text_cells(
    table: pl.DataFrame, columns: Iterable[str], *, place: Callable[[int], str] = lambda row: f"row {row + 1}"
) -> list[TextCell]:
    """The first text cell of each of these columns that should be numeric; `place` describes a row.

    A column should be numeric if at least half of its cells are numbers, with or without a percent sign or commas.
    """
    found = []
    schema = table.schema  # made anew each time it is asked for
    for name in columns:
        if schema[name] != pl.String or is_text_column(name):
            continue
        text = table[name].str.strip_chars()
        filled = (text != "").fill_null(value=False)
        is_number = text.cast(pl.Float64, strict=False).is_not_null()
        odd = filled & ~is_number
        meant = filled & (is_number | text.str.contains(_ALMOST_NUMBER))
        if not odd.any() or 2 * meant.sum() < filled.sum():
            continue
        row = odd.arg_max() or 0
        constant = filled.sum() > 1 and text.filter(filled).n_unique() == 1
        if not (constant and re.fullmatch(_LIST, text[row])):
            found.append(TextCell(name, place(row), text[row]))
    return found


def list_cells(odd: Sequence[TextCell]) -> str:
    """The cells for a message, cut to a readable number."""
    more = f"; and {len(odd) - _MOST_NAMED} more" if len(odd) > _MOST_NAMED else ""
    return "; ".join(map(str, odd[:_MOST_NAMED])) + more
