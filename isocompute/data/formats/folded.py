"""Step lines that a terminal has folded: which of the following lines still belong to them.

A line goes on where the last one was cut if the two together are still `key:value - key:value - …`, the last pair
perhaps not yet whole. Folding eats the spaces at the cut, so both a join without and one with a space are tried.
"""

from __future__ import annotations

import re

from isocompute.data.logs.source import strip

__all__ = ["Folded"]

_KEY = rb"[A-Za-z_][^\s:]*"
_NUMBER = rb"(?:[a-z]{2,6}(?:\.\w+)?\()?[-+]?(?:\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|\.\d+|nan|inf|True|False)\)?"
_PAIR = re.compile(_KEY + rb":" + _NUMBER)
_BEGUN = re.compile(
    rb"(?:"
    + _KEY
    + rb"(?::(?:[a-z]{1,6}(?:\.\w{0,10})?\(?)?[-+]?\d*(?:\.\d*)?(?:[eE][-+]?\d*)?\)?)?)?|"
    + _PAIR.pattern
    + rb" ?-?"
)
_LONGEST = 10_000
_NEAR = 2
"""Characters by which the width of a fold may differ: spaces at the cut get lost."""


class Folded:
    """One step line under way."""

    def __init__(self) -> None:
        self.open = False
        self._step = 0
        self._body = b""
        self._width = 0
        self._fold: int | None = None
        """How wide the lines of this log are folded, once that was seen."""

    def begin(self, step: int, body: bytes, *, width: int) -> None:
        """A line with a step, as wide as it was printed."""
        self.open, self._step, self._body, self._width = True, step, body, width

    def close(self) -> tuple[int, bytes]:
        """The step and the whole of what follows it."""
        self.open = False
        return self._step, self._body

    def extend(self, line: bytes) -> bool:
        """Take a line in if it goes on where the last one was cut; False where it is something else."""
        if b"pid=" in line or len(line) > _LONGEST:
            return False
        piece = strip(line).strip()
        head, dash, cut = self._body.rpartition(b" - ")
        for glue in (b"", b" "):
            parts = (cut + glue + piece).split(b" - ")
            if not (all(map(_PAIR.fullmatch, parts[:-1])) and _BEGUN.fullmatch(parts[-1])):
                continue
            # The end of a number could be anybody's line: there the width must show that the last one was cut.
            seen = self._fold is not None and abs(self._width - self._fold) <= _NEAR
            if len(parts) == 1 and _PAIR.fullmatch(cut) and not seen:
                return False
            self._body = head + dash + b" - ".join(parts)
            self._fold, self._width = max(self._width, self._fold or 0) if seen else self._width, len(line)
            return True
        return False
