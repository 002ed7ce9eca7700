"""What stands between the cells of a text table.

Where a comma is the decimal sign, spreadsheets write `;` between cells, and some also the numbers with commas.
"""

from __future__ import annotations

import re

from isocompute.errors import InputError

__all__ = ["separator_of"]

_SEPARATORS = (",", "\t", ";")
_LOOK = 50
"""Lines to look at."""
_DECIMAL_COMMA = re.compile(r"-?\d+,\d+")


def separator_of(head: bytes, address: str) -> str:
    """What separates the first line's cells, from the first bytes of a table; decimal commas are an error.

    >>> separator_of(b"run;step;reward\\na;1;0.25\\n", "x.csv")
    ';'
    """
    lines = [line for line in head.decode("utf-8-sig", "replace").splitlines() if line.strip()][:_LOOK]
    separator = max(_SEPARATORS, key=lines[0].count) if lines else ","
    for line in lines[1:] if separator != "," else ():
        for cell in line.split(separator):
            if _DECIMAL_COMMA.fullmatch(cell.strip()):
                named = "tabs" if separator == "\t" else f"'{separator}'"
                raise InputError(
                    f"{address}: separated by {named} with decimal commas ({cell.strip()}); save it with "
                    f"decimal points ({cell.strip().replace(',', '.')})."
                )
    return separator
