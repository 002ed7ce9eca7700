"""Helpers to print results on a terminal: console, tables, headings and short names."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from isocompute.core.formatting import value

EXTRAPOLATED = "?: less than 80% of the rise to this ceiling is done; it depends on the form"
"""Explains the mark of `ceiling`."""


def console() -> Console:
    """A console on standard output, 120 columns wide if piped, without markup, which names of runs may contain."""
    width = None if sys.stdout.isatty() else 120
    return Console(highlight=False, markup=False, emoji=False, width=width)


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A plain table, with text columns aligned left and numbers right."""
    out = Table(box=None, pad_edge=False, header_style="dim")
    for i, name in enumerate(columns):
        text = i == 0 or all(not row[i][:1].isdigit() and row[i][:1] not in ".-≤≥" for row in rows)
        out.add_column(name, justify="left" if text else "right", no_wrap=True)
    for row in rows:
        out.add_row(*row)
    return out


def heading(text: str) -> Text:
    """A line above a table."""
    return Text(f"\n{text}", style="bold")


def ceiling(x: float | None, rise_done: float | None) -> str:
    """A fitted ceiling, with a mark if it is extrapolated."""
    from isocompute.law.fits import CEILING_SEEN

    return value(x) + ("?" if rise_done is not None and rise_done < CEILING_SEEN else "")


def short(name: str, most: int = 36) -> str:
    """A name shortened in the middle, since the names of a sweep differ at both ends."""
    half = most // 2
    return name if len(name) <= most else f"{name[:half]}…{name[-half + 1 :]}"
