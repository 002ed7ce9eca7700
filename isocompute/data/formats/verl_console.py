"""veRL's console: `step:N - key:value - key:value …`, one line a step, in whatever else the processes print.

Built for a gigabyte: a line is looked at only where it holds `step:`, and lines with the keys of an earlier one are
converted as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import ClassVar

from isocompute.data.formats.folded import Folded
from isocompute.data.formats.verl_run import VerlRun
from isocompute.data.logs.base import NO_MATCH, Match
from isocompute.data.logs.collect import Sink
from isocompute.data.logs.literals import as_float
from isocompute.data.logs.source import Log, Sample, strip

__all__ = ["VerlConsole"]

_STEP = re.compile(rb"step:(\d{1,15}) - ")
_PART_OF_KEY = {bytes([c]) for c in b"/_.@-abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"}
_WRAPPERS = (b"np.float64(", b"np.float32(", b"np.int64(", b"np.int32(", b"tensor(")
_KEY = re.compile(r"[A-Za-z_][^\s:=]*(?: [^\s:=]+){0,3}")
_LEADING_NUMBER = re.compile(r"[-+]?(?:\d{1,40}(?:\.\d*)?(?:[eE][-+]?\d+)?|\.\d+|nan|inf)")


class VerlConsole:
    """The `console` logger of veRL, 2024 to 0.9."""

    name: ClassVar[str] = "verl"
    looks_for: ClassVar[str] = "lines 'step:N - key:value - …'"

    def sniff(self, sample: Sample) -> Match:
        """A line with a step and at least one number."""
        layouts = _Layouts()
        rows = sum(1 for _, body in _records(sample.lines) if _pairs(body, layouts))
        if rows:
            return Match(0.95, rows)
        if any(b"actor_rollout_ref" in line for line in sample.lines):
            return Match(0.3, why="veRL's config is there, but no line 'step:N - key:value'")
        return NO_MATCH

    def read(self, log: Log, sink: Sink) -> None:
        """Step lines become rows; configs are looked for in between."""
        run = VerlRun(sink, log.name)
        layouts = _Layouts()
        for step, body in _records(log.lines(), run.line):
            run.row(step, _pairs(body, layouts))
        run.finish()


def _records(lines: Iterable[bytes], other: Callable[[bytes], None] | None = None) -> Iterator[tuple[int, bytes]]:
    """The steps and what their lines say; all other lines go to `other`."""
    folded = Folded()
    for line in lines:
        found = _step_in(line) if b"step:" in line else None
        if folded.open and line:
            if found is None and folded.extend(line):
                continue
            yield folded.close()
        if found is not None:
            folded.begin(*found, width=len(line))
        elif other is not None:
            other(line)
    if folded.open:
        yield folded.close()


class _Layouts:
    """Keys that were seen together, as bytes and as names; most lines have those of the line before."""

    def __init__(self) -> None:
        self._known: dict[tuple[bytes, ...], tuple[str, ...]] = {}
        self._last: tuple[list[bytes], tuple[str, ...]] = ([], ())

    def names(self, keys: list[bytes]) -> tuple[str, ...] | None:
        """The names of these keys; None where some are no keys, or one comes twice."""
        if keys == self._last[0]:
            return self._last[1]
        names = self._known.get(tuple(keys))
        if names is None:
            names = tuple(key.decode(errors="replace") for key in keys)
            if len(set(names)) < len(names) or not all(map(_KEY.fullmatch, names)):
                return None
            self._known[tuple(keys)] = names
        self._last = (keys, names)
        return names


def _step_in(line: bytes) -> tuple[int, bytes] | None:
    """The step on the line and what follows it; `timing_s/step:5` is none."""
    match = _STEP.search(line)
    if (
        match
        and b"\x1b" in line
        and (line[match.start() - 1 : match.start()] == b"m" or b"\x1b" in line[match.end() :])
    ):
        line = strip(line)
        match = _STEP.search(line)
    while match:
        if line[match.start() - 1 : match.start()] not in _PART_OF_KEY or not match.start():
            return int(match[1]), line[match.end() :].strip()
        match = _STEP.search(line, match.end())
    return None


def _pairs(body: bytes, layouts: _Layouts) -> tuple[tuple[str, ...], list[float]] | None:
    """Names and values of a step line; at once where all values are plain numbers, else pair by pair."""
    if b"np." in body or b"tensor(" in body:
        body = _unwrapped(body)
    cells = body.replace(b" - ", b":").split(b":")
    if len(cells) % 2:
        return _slowly(body)
    try:
        values = list(map(float, cells[1::2]))
    except ValueError:
        return _slowly(body)
    names = layouts.names(cells[::2])
    return _slowly(body) if names is None else (names, values)


def _unwrapped(body: bytes) -> bytes:
    """`np.float64(0.5)` as `0.5`."""
    for wrapper in _WRAPPERS:
        if wrapper in body:
            first, *others = body.split(wrapper)
            body = first + b"".join(b"".join(other.split(b")", 1)) for other in others)
    return body


def _slowly(body: bytes) -> tuple[tuple[str, ...], list[float]] | None:
    """Pair by pair, dropping what is not a number; the last value may have something printed right behind it."""
    found: dict[str, float] = {}
    parts = body.decode(errors="replace").split(" - ")
    for i, part in enumerate(parts):
        key, colon, text = part.rpartition(":")
        if i == len(parts) - 1 and not (colon and as_float(text) is not None):
            key, colon, text = part.partition(":")
            number = _LEADING_NUMBER.match(text)
            text = number[0] if number else ""
        value = as_float(text)
        if colon and value is not None and _KEY.fullmatch(key):
            found[key] = value
    return (tuple(found), list(found.values())) if found else None
