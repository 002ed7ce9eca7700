"""`Run` and `RunSet`: what an engine or a trainer's log leaves behind, and what the law reads.

A law needs numbers, and a health check must know that something else was logged. So a metric that is NaN, infinite or
beyond `LARGEST` is null in its point, and the point's column `non_finite` keeps what it was as a JSON object:
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

_BETWEEN = ", "


class NonFinite(NamedTuple):
    """A metric that was not always a finite number: the first such row, its value, and the number of such rows."""

    row: int
    value: float
    rows: int


def mark_non_finite(points: pl.DataFrame, *, but: Iterable[str] = ()) -> pl.DataFrame:
    """Points with null for every non-finite value, which `non_finite` then names; columns of `but` stay as they are."""
    floats = [name for name, kind in points.schema.items() if kind.is_float() and name not in but]
    wrong = points.select(pl.col(floats).is_not_null() & ~(pl.col(floats).abs() <= LARGEST))
    bad = [name for name in floats if wrong[name].any()]
    if not bad:
        return points
    odd = points.select(pl.when(wrong[name]).then(pl.col(name)).alias(name) for name in bad)
    numbers = points.with_columns(pl.when(~wrong[name]).then(pl.col(name)).alias(name) for name in bad)
    return with_marks(numbers, odd)


def restore_non_finite(points: pl.DataFrame, *, but: Iterable[str] = ()) -> pl.DataFrame:
    """Points with the values that `non_finite` names in their own cells: `mark_non_finite` undone.

    A cell that also names a column of `but`, or one that holds no numbers, stays as it is.
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
    """Points whose `non_finite` also names the values of `odd` (one column per metric, null where it is finite).

    A user's own column of numbers named `non_finite` stays as it is.
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
    joined = pl.select(pl.concat_str(before, *new, separator=_BETWEEN, ignore_nulls=True)).to_series()
    marked = pl.concat_str(pl.lit("{"), joined, pl.lit("}"))
    return points.with_columns(pl.when(joined != "").then(marked).otherwise(cells).alias(NON_FINITE))


def marks_as_json(marks: Mapping[str, float]) -> str:
    """What a point's `non_finite` holds."""
    return json.dumps({name: str(value) for name, value in marks.items()})


def non_finite(points: pl.DataFrame) -> dict[str, NonFinite]:
    """The metrics that were not always finite, in order of the first such row.

    A run that diverged has the same cell in most rows, so each distinct cell is parsed once.
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
    """Whether a metric ends in non-finite rows, more of them than between any two of its numbers.

    The comparison is needed because some logs fill points without an evaluation with NaN.
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


# Text where numbers were meant: one cell says `-`, or all of them `58.7%` or `20,480`. Names, ids and dates stay text.

_ALMOST_NUMBER = r"^[-+]?(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d*[.,]?\d+)(?:[eE][-+]?\d+)?\s?%?$"
_LIST = r"\d+(,\d{1,2})+"
"""The same in every row this is a list, such as the devices `0,1`."""
_TEXT_NAMES = {
    *("id", "uid", "uuid", "name", "label", "tag", "key", "hash", "commit", "version", "host", "hostname"),
    *("group", "variant", "method", "algorithm", "setting", "config", "env", "status", "note", "notes", "comment"),
    *("date", "time", "timestamp"),
}
"""Last words of the names of columns that are rightly text."""
_LONGEST_CELL = 40
_MOST_NAMED = 3


class TextCell(NamedTuple):
    """The first cell that is not a number in a column meant for numbers."""

    column: str
    place: str
    """Where it stands: `row 3`, counted from 1 without the header."""
    cell: str

    def __str__(self) -> str:
        shown = self.cell if len(self.cell) <= _LONGEST_CELL else f"{self.cell[:_LONGEST_CELL]}…"
        return f"column '{self.column}': '{shown}' ({self.place}) is not a number"


def is_text_column(name: str) -> bool:
    """Whether a column of this name is rightly text, whatever its cells look like."""
    return re.split(r"[\W_]+", name.strip().lower())[-1] in _TEXT_NAMES


def text_cells(
    table: pl.DataFrame, columns: Iterable[str], *, place: Callable[[int], str] = lambda row: f"row {row + 1}"
) -> list[TextCell]:
    """The first text cell of each of these columns that is text and was meant for numbers; `place` names a row.

    A column was meant for numbers where at least half of its cells are numbers, or would be without a percent sign or
    commas.
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


POINT_COLUMNS = ("step", "rollouts", "tokens", "seconds", "gpu_hours")
"""Columns of a point that count compute; every other numeric column is a metric."""
NON_FINITE = "non_finite"
"""The column that names metrics which were NaN or infinite at a point, as a JSON object: `{"loss": "nan"}`."""
LARGEST = 1e100
"""Values beyond it count as infinite: their squares are."""


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
    """Row of each point in its file, from 1; null where several rows are one point. None: row i is point i."""

    def place(self, row: int) -> str:
        """Where a point stands in its file: its row, or its step where several rows are one point."""
        at = row + 1 if self.rows is None else self.rows[row]
        return f"step {self.points['step'][row]}" if at is None else f"row {at}"

    @property
    def metrics(self) -> list[str]:
        """Names of the numeric columns that do not count compute and are not empty.

        A metric that was never finite is not empty: asking for it should say so.
        """
        import polars as pl

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
    """The column that the user named as the value, where they did."""

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


def marks_in(cell: str) -> dict[str, float]:
    """The metrics that a cell of `non_finite` names and their values; empty where it is other text."""
    try:
        values = json.loads(cell)
        marks = {name: float(value) for name, value in values.items() if isinstance(value, str)}
    except (ValueError, AttributeError, RecursionError):
        return {}
    return {name: value for name, value in marks.items() if not math.fabs(value) <= LARGEST}


def listing(names: Sequence[str], most: int = 8) -> str:
    """Names for an error message, cut to a readable number."""
    shown = ", ".join(f"'{name}'" for name in names[:most])
    return shown + (f" and {len(names) - most} more" if len(names) > most else "") if names else "none"
