"""Fields of a model's `config.json`: whole numbers and lists; what is missing or wrong is named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

from isocompute.core.errors import InputError

__all__ = ["ConfigReader"]

_MOST = 10**9
"""No count of a model is larger; with larger ones costs would no longer be numbers."""


class ConfigReader:
    """A config by key."""

    def __init__(self, config: Mapping[str, Any], where: str) -> None:
        self.config, self.where = config, where

    def maybe(self, key: str) -> int | None:
        """A whole number of at least 0, or None where there is none."""
        value = self.config.get(key)
        return None if value is None else self._whole(key, value)

    def __call__(self, key: str) -> int:
        """A whole number of at least 1 that has to be there."""
        if self.config.get(key) is None:
            raise InputError(f"{self.where}: the key '{key}' is missing; give the whole config.json of the checkpoint.")
        value = self._whole(key, self.config[key])
        if value < 1:
            raise InputError(f"{self.where}: {key} = {value}; it must be at least 1.")
        return value

    def listed(self, key: str) -> Sequence[Any]:
        """A list; empty where there is none."""
        value = self.config.get(key)
        if value is not None and not isinstance(value, list | tuple):
            raise InputError(f"{self.where}: {key} = {value!r}; it must be a list.")
        return value or ()

    def _whole(self, key: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < inf or int(value) != value:
            raise InputError(f"{self.where}: {key} = {value!r}; it must be a whole number.")
        if value > _MOST:
            raise InputError(f"{self.where}: {key} is over {_MOST:,}, more than any model has; fix it.")
        return int(value)
