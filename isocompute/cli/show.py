"""How results look on a terminal: tables in rich, numbers short."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

__all__ = ["console", "count", "heading", "number", "pair", "table", "value"]


def console() -> Console:
    """Standard output, with room for a table where it is not a terminal. A run's name is text, whatever is in it."""
    width = None if sys.stdout.isatty() else 120
    return Console(highlight=False, markup=False, emoji=False, width=width)


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A plain table: text columns left, the others right."""
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


def count(x: int | None) -> str:
    """A whole number as it is."""
    return "–" if x is None else f"{x}"


def number(x: float | None) -> str:
    """Compute with three digits and a suffix: 1.27M."""
    if x is None:
        return "–"
    x = float(f"{x:.3g}")  # 999,600 is 1M
    for size, suffix in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(x) >= size:
            return f"{x / size:.3g}{suffix}"
    return f"{x:.3g}"


def value(x: float | None) -> str:
    """A reward: three places, no leading zero."""
    if x is None or not math.isfinite(x):
        return "–"
    text = f"{x:.3f}"
    return text.replace("0.", ".", 1) if abs(x) < 1 else text


def pair(interval: Sequence[float] | None) -> str:
    """An interval of rewards."""
    return "–" if interval is None else f"{value(interval[0])}–{value(interval[1])}"
