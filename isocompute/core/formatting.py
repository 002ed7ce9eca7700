"""Numbers in words, the same on the terminal, in charts and on pages: short, and a dash where there is none."""

from __future__ import annotations

import math
from collections.abc import Sequence

_LARGE = 1e4
"""No reward that is read to three places is so large."""
_SUFFIXES = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k"))
_PAST = 1e15
"""From here on the largest suffix would have four digits before it."""


def count(x: int | None) -> str:
    """A whole number as it is."""
    return "–" if x is None else f"{x}"


def plural(x: int, noun: str) -> str:
    """So many things.

    >>> plural(1, "run"), plural(2, "run")
    ('1 run', '2 runs')
    """
    return f"{x} {noun}" if x == 1 else f"{x} {noun}s"


def thousands(x: int, noun: str) -> str:
    """So many things where there may be many.

    >>> thousands(1, "problem"), thousands(6000, "problem")
    ('1 problem', '6,000 problems')
    """
    return f"{x:,} {noun}" if x == 1 else f"{x:,} {noun}s"


def number(x: float | None) -> str:
    """Compute with three digits and a suffix, or a power of ten where there is no suffix for it.

    >>> number(1_270_400), number(2.5e15)
    ('1.27M', '2.5e15')
    """
    if x is None:
        return "–"
    x = float(f"{x:.3g}")  # 999,600 is 1M
    if abs(x) >= _PAST:
        return f"{x:.3g}".replace("e+", "e")
    for size, suffix in _SUFFIXES:
        if abs(x) >= size:
            return f"{x / size:.3g}{suffix}"
    return f"{x:.3g}"


def value(x: float | None) -> str:
    """A reward: three places, no leading zero; from ten thousand on three digits and a suffix.

    >>> value(0.6184), value(-3.25), value(526780142884.8)
    ('.618', '-3.250', '527B')
    """
    if x is None or not math.isfinite(x):
        return "–"
    if abs(x) >= _LARGE:
        return number(x)
    text = f"{x:.3f}"
    return text.replace("0.", ".", 1) if abs(x) < 1 else text


def pair(interval: Sequence[float] | None) -> str:
    """An interval of rewards."""
    return "–" if interval is None else f"{value(interval[0])}–{value(interval[1])}"
