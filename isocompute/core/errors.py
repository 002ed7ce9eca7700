"""The error for wrong input, and capturing warnings in a program with threads."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError


class InputError(ValueError):
    """Wrong input: what is wrong, where, and what to do. The command line prints it on one line and exits with 2."""


def first_wrong(error: ValidationError, *, fields: Iterable[str] = ()) -> tuple[str, str]:
    """Location and reason of the first validation error; for an unknown field, the reason lists the known `fields`."""
    first = error.errors()[0]
    where, why = ".".join(map(str, first["loc"])), str(first["msg"]).removeprefix("Value error, ")
    known = ", ".join(fields)
    if first["type"] == "extra_forbidden" and known:
        why = f"there is no such field; fields are {known}"
    return where, why


# Python has one list of warning filters for all threads, and the web app fits laws in threads.
_one_at_a_time = threading.RLock()


@contextmanager
def quiet(category: type[Warning] = Warning) -> Iterator[None]:
    """Silence warnings of this category."""
    with _one_at_a_time, warnings.catch_warnings():
        warnings.simplefilter("ignore", category)
        yield


@contextmanager
def recorded(category: type[Warning] = Warning) -> Iterator[list[warnings.WarningMessage]]:
    """Capture all warnings of this category instead of printing them."""
    with _one_at_a_time, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", category)
        yield caught
