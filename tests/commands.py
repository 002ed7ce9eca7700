"""Commands as a user runs them: what they print, and how they end."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

__all__ = ["Call", "Result", "fails"]


class Result(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one object on standard output; NaN and infinity are not JSON."""
        assert self.code == 0, self.err
        assert self.out.count("\n") == 1
        return json.loads(self.out, parse_constant=lambda name: pytest.fail(f"{name} in the output"))


Call = Callable[..., Result]


def fails(result: Result, message: str) -> None:
    """One line on standard error and code 2; nothing on standard output."""
    assert result.code == 2
    assert result.out == ""
    assert result.err.startswith("error: ")
    assert result.err.count("\n") == 1
    assert re.search(message, result.err), result.err
