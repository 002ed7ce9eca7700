"""What reading runs has to say, kept for the pages: a console is no place for it while a browser is looked at."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["heard"]

_one_at_a_time = threading.RLock()
"""Python has one way to catch warnings for all threads."""


@contextmanager
def heard() -> Iterator[list[str]]:
    """The warnings that are given inside, each once, when it is over."""
    said: list[str] = []
    with _one_at_a_time, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield said
        said += dict.fromkeys(str(warning.message) for warning in caught)
