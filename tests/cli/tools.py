"""Helpers for the tests of several commands."""

from __future__ import annotations

import re
from typing import Any

QUICK = ("--replicates", "50")
RUNS = ("easy-32x16", "easy-32x64", "easy-32x8")
INTERVALS = re.compile(r"interval$")


def check_intervals(value: Any) -> None:
    """Wherever there is an interval, it is a pair in order."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if INTERVALS.search(key) and inner is not None:
                low, high = inner
                assert low <= high, key
            check_intervals(inner)
    elif isinstance(value, list):
        for inner in value:
            check_intervals(inner)
