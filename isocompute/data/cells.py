"""Columns of text that were meant for numbers: one cell says `-`, or all of them `58.7%` or `20,480`.

Names, ids and dates are text and stay so. A column is meant for numbers where at least half of its cells are numbers,
or would be but for a percent sign or commas.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

import polars as pl

from isocompute.core.errors import InputError
from isocompute.core.run import POINT_COLUMNS, RunWarning
from isocompute.data.rewards import REWARDS, rank

__all__ = ["OddCell", "is_text", "listed", "odd_cells", "tell_of_text", "with_numbers"]

_ALMOST = r"^[-+]?(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d*[.,]?\d+)(?:[eE][-+]?\d+)?\s?%?$"
_LIST = r"\d+(,\d{1,2})+"
"""The same in all rows it is a list, such as the devices `0,1`."""
_TEXTS = {
    *("id", "uid", "uuid", "name", "label", "tag", "key", "hash", "commit", "version", "host", "hostname"),
    *("group", "variant", "method", "algorithm", "setting", "config", "env", "status", "note", "notes", "comment"),
    *("date", "time", "timestamp"),
}
"""How the names of columns end that are text rightly."""
_LONGEST = 40
_MOST_NAMED = 3


class OddCell(NamedTuple):
    """The first cell of a column meant for numbers that is none."""

    column: str
    place: str
    """In words: `row 3`, from 1 and the header not counted."""
    cell: str

    def __str__(self) -> str:
        shown = self.cell if len(self.cell) <= _LONGEST else f"{self.cell[:_LONGEST]}…"
        return f"column '{self.column}': '{shown}' ({self.place}) is not a number"


def is_text(name: str) -> bool:
    """Whether a column of this name is text rightly, whatever its cells look like."""
    return re.split(r"[\W_]+", name.strip().lower())[-1] in _TEXTS


def with_numbers(table: pl.DataFrame, *, text: Collection[str]) -> pl.DataFrame:
    """The table, columns of text whose cells are all numbers or empty as numbers; those of `text` stay."""
    numbers = []
    for name in [c for c, kind in table.schema.items() if kind == pl.String and c not in text]:
        cells = table[name].str.strip_chars()
        found = cells.cast(pl.Float64, strict=False)
        if 0 < found.count() == (cells != "").sum():
            whole = cells.cast(pl.Int64, strict=False)
            numbers.append(whole if whole.count() == found.count() else found)
    return table.with_columns(numbers)


def _own_row(row: int) -> str:
    return f"row {row + 1}"


def odd_cells(table: pl.DataFrame, columns: Iterable[str], *, place: Callable[[int], str] = _own_row) -> list[OddCell]:
    """One for each of these columns that is text and was meant for numbers; `place` says where a row stands."""
    schema = table.schema  # made anew each time it is asked for
    texts = [name for name in columns if schema[name] == pl.String]
    return [odd for name in texts if not is_text(name) and (odd := _odd_cell(table[name], place))]


def _odd_cell(column: pl.Series, place: Callable[[int], str]) -> OddCell | None:
    text = column.str.strip_chars()
    there = (text != "").fill_null(value=False)
    is_number = text.cast(pl.Float64, strict=False).is_not_null()
    odd = there & ~is_number
    meant = there & (is_number | text.str.contains(_ALMOST))
    if not odd.any() or 2 * meant.sum() < there.sum():
        return None
    row = odd.arg_max() or 0
    if there.sum() > 1 and text.filter(there).n_unique() == 1 and re.fullmatch(_LIST, text[row]):
        return None
    return OddCell(column.name, place(row), text[row])


def tell_of_text(
    table: pl.DataFrame,
    address: str,
    *,
    used: Collection[str],
    value: str | None = None,
    place: Callable[[int], str] = _own_row,
) -> None:
    """Say which columns no law can use because a cell is not a number.

    An error where the column counts rollouts, and else a warning, but for rewards: whether one of them is meant, the
    law knows. `used` are columns that are text rightly. A user who named the `value` has chosen.
    """
    odd = [
        found
        for found in odd_cells(table, [c for c in table.columns if c not in used], place=place)
        if found.column in POINT_COLUMNS or (value is None and rank(found.column) == len(REWARDS))
    ]
    counts = [found for found in odd if found.column == "rollouts"]
    if counts:
        raise InputError(f"{address}: {counts[0]}; fix the cell or leave it empty.")
    if odd and any(kind.is_numeric() for c, kind in table.schema.items() if c not in (*used, *POINT_COLUMNS)):
        said = f"{address}: {listed(odd)}: taken for text; fix such cells or leave them empty."
        warnings.warn(said, RunWarning, stacklevel=2)  # a law that finds no number says so itself


def listed(odd: Sequence[OddCell]) -> str:
    """The cells for a message, cut to a readable number."""
    more = f"; and {len(odd) - _MOST_NAMED} more" if len(odd) > _MOST_NAMED else ""
    return "; ".join(map(str, odd[:_MOST_NAMED])) + more
