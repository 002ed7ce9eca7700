"""Numbers as short text, the same on the terminal, in charts and on pages; a dash stands for a missing number."""

from __future__ import annotations

import math
from collections.abc import Sequence

_LARGE = 1e4
"""Rewards from here on are written like compute, with a suffix."""
_SUFFIXES = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k"))
_PAST = 1e15
"""From here on a power of ten replaces the suffix."""


def count(x: int | None) -> str:
    """A whole number without a suffix."""
    return "–" if x is None else f"{x}"


def plural(x: int, noun: str) -> str:
    """A count and its noun.

    >>> plural(1, "run"), plural(2, "run")
    ('1 run', '2 runs')
    """
    return f"{x} {noun}" if x == 1 else f"{x} {noun}s"


def thousands(x: int, noun: str) -> str:
    """A count with separators between thousands, and its noun.

    >>> thousands(1, "problem"), thousands(6000, "problem")
    ('1 problem', '6,000 problems')
    """
    return f"{x:,} {noun}" if x == 1 else f"{x:,} {noun}s"


def number(x: float | None) -> str:
    """Compute with three digits and a suffix, or a power of ten above the largest suffix.

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
    """A reward: three decimals without a leading zero, or three digits and a suffix from ten thousand on.

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
