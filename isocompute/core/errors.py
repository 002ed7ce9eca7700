"""The one error a user can cause: it says what is wrong, where, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError

__all__ = ["InputError", "first_wrong"]


class InputError(ValueError):
    """Wrong input. The command line prints it on one line and exits with code 2."""


def first_wrong(error: ValidationError, *, fields: Iterable[str] = ()) -> tuple[str, str]:
    """The first field that a table's check refuses, and why; a field that is not one of `fields` is told them all."""
    first = error.errors()[0]
    where, why = ".".join(map(str, first["loc"])), str(first["msg"]).removeprefix("Value error, ")
    known = ", ".join(fields)
    if first["type"] == "extra_forbidden" and known:
        why = f"there is no such field; fields are {known}"
    return where, why
