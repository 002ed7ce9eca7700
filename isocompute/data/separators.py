"""What stands between the cells of a text table.

Where a comma is the decimal sign, spreadsheets write `;` between cells, and some also the numbers with commas.
"""

from __future__ import annotations

import itertools
import re

from isocompute.core.errors import InputError

__all__ = ["DecimalCommaError", "likely_separator", "separator_of"]

_SEPARATORS = (",", "\t", ";")
_LOOK = 50
"""Lines to look at."""
_DECIMAL_COMMA = re.compile(r"-?\d+,\d+")
_THOUSANDS = re.compile(r"-?[1-9]\d{0,2}(,\d{3})+")


class DecimalCommaError(InputError):
    """A table whose numbers are written with decimal commas."""


def separator_of(head: bytes, address: str) -> str:
    """What separates the first line's cells, from the first bytes of a table; decimal commas are an error.

    >>> separator_of(b"run;step;reward\\na;1;0.25\\n", "x.csv")
    ';'
    """
    lines = [line for line in head.decode("utf-8-sig", "replace").splitlines() if line.strip()][:_LOOK]
    separator = likely_separator(lines[0]) if lines else ","
    for cells in _columns(lines[1:], separator) if separator != "," else ():
        commas = [cell for cell in cells if _DECIMAL_COMMA.fullmatch(cell)]
        if 2 * len(commas) < len(cells) or (len(set(commas)) == 1 < len(cells)):
            continue  # a list such as `0,1` in all rows is not a number
        named = "tabs" if separator == "\t" else f"'{separator}'"
        if all(_THOUSANDS.fullmatch(cell) for cell in commas):
            wrong, right = "commas in thousands", f"without them ({commas[0].replace(',', '')})"
        else:
            wrong, right = "decimal commas", f"with decimal points ({commas[0].replace(',', '.')})"
        raise DecimalCommaError(f"{address}: separated by {named} with {wrong} ({commas[0]}); save it {right}.")
    return separator


def _columns(lines: list[str], separator: str) -> list[list[str]]:
    """The filled cells of each column."""
    rows = [[cell.strip() for cell in line.split(separator)] for line in lines]
    filled = ([cell for cell in column if cell] for column in itertools.zip_longest(*rows, fillvalue=""))
    return [column for column in filled if column]


def likely_separator(header: str) -> str:
    """What separates the cells of a first line."""
    return max(_SEPARATORS, key=header.count)
