"""Warnings silenced or kept, by one thread at a time: Python has one list of filters for all of them.

Two threads that change it side by side leave each other's changes behind; so whoever may run in the web app's threads
catches warnings with these.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["quiet", "recorded"]

_one_at_a_time = threading.RLock()


@contextmanager
def quiet(category: type[Warning] = Warning) -> Iterator[None]:
    """Without warnings of this category, which are said elsewhere."""
    with _one_at_a_time, warnings.catch_warnings():
        warnings.simplefilter("ignore", category)
        yield


@contextmanager
def recorded(category: type[Warning] = Warning) -> Iterator[list[warnings.WarningMessage]]:
    """All warnings of this category that are given inside, instead of on standard error."""
    with _one_at_a_time, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", category)
        yield caught
