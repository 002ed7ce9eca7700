"""Fields of a `config.json`, checked as they are read: what is wrong is said with its file and its name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from isocompute.core.errors import InputError

__all__ = ["Fields"]


class Fields:
    """A table of numbers and flags; `null` counts as not there, as it does in transformers."""

    def __init__(self, table: Mapping[str, Any], where: str) -> None:
        self.table, self.where = table, where

    def has(self, name: str) -> bool:
        """Whether a value is given."""
        return self.table.get(name) is not None

    def whole(self, name: str, default: int | None = None) -> int:
        """A number of things, at least one; without a default it has to be there."""
        value = self._value(name, default)
        if not _is_number(value) or value != int(value) or value < 1:
            raise self._wrong(name, value, "a whole number above 0")
        return int(value)

    def number(self, name: str, default: float | None = None) -> float:
        """A number above 0; without a default it has to be there."""
        value = self._value(name, default)
        if not _is_number(value) or value <= 0:
            raise self._wrong(name, value, "a number above 0")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        value = self._value(name, default)
        if not isinstance(value, bool):
            raise self._wrong(name, value, "true or false")
        return value

    def part(self, name: str) -> dict[str, Any]:
        """A table in the table; empty where it is not there."""
        value = self._value(name, {})
        if not isinstance(value, dict):
            raise self._wrong(name, value, "a table")
        return value

    def _value(self, name: str, default: Any) -> Any:
        value = self.table.get(name)
        if value is not None:
            return value
        if default is None:
            raise InputError(f"{self.where}: '{name}' is missing; take the file of the whole checkpoint.")
        return default

    def _wrong(self, name: str, value: Any, wanted: str) -> InputError:
        shown = repr(value) if len(repr(value)) <= 40 else f"{repr(value)[:40]}…"
        return InputError(f"{self.where}: '{name}' is {shown}, not {wanted}; take the checkpoint's own value.")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
