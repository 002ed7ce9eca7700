"""What reading runs has to say, kept for the pages: a console is no place for it while a browser is looked at."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from isocompute.core.caught import recorded

__all__ = ["heard"]


@contextmanager
def heard() -> Iterator[list[str]]:
    """The warnings that are given inside, each once, when it is over."""
    said: list[str] = []
    with recorded() as caught:
        yield said
        said += dict.fromkeys(str(warning.message) for warning in caught)
