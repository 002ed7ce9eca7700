"""What stands between the cells of a text table.

Where a comma is the decimal sign, spreadsheets write `;` between cells, and some also the numbers with commas.
"""

from __future__ import annotations

import re

from isocompute.errors import InputError

__all__ = ["DecimalCommaError", "likely_separator", "separator_of"]

_SEPARATORS = (",", "\t", ";")
_LOOK = 50
"""Lines to look at."""
_DECIMAL_COMMA = re.compile(r"-?\d+,\d+")


class DecimalCommaError(InputError):
    """A table whose numbers are written with decimal commas."""


def separator_of(head: bytes, address: str) -> str:
    """What separates the first line's cells, from the first bytes of a table; decimal commas are an error.

    >>> separator_of(b"run;step;reward\\na;1;0.25\\n", "x.csv")
    ';'
    """
    lines = [line for line in head.decode("utf-8-sig", "replace").splitlines() if line.strip()][:_LOOK]
    separator = likely_separator(lines[0]) if lines else ","
    for line in lines[1:] if separator != "," else ():
        for cell in line.split(separator):
            if _DECIMAL_COMMA.fullmatch(cell.strip()):
                named = "tabs" if separator == "\t" else f"'{separator}'"
                raise DecimalCommaError(
                    f"{address}: separated by {named} with decimal commas ({cell.strip()}); save it with "
                    f"decimal points ({cell.strip().replace(',', '.')})."
                )
    return separator


def likely_separator(header: str) -> str:
    """What separates the cells of a first line."""
    return max(_SEPARATORS, key=header.count)
