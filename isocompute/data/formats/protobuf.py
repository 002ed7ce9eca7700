"""The wire format of protocol buffers, as much as event files need: fields by number, without a schema."""

from __future__ import annotations

from collections.abc import Iterator

__all__ = ["fields"]

_MOST_SHIFT = 63


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(number, value) of each field: whole numbers for varints, bytes for everything else.

    Stops at the first thing that cannot be: a torn message gives what is there.
    """
    at, end = 0, len(data)
    while at < end:
        tag, at = _varint(data, at)
        kind = tag & 7
        if tag == 0 or at > end:
            return
        if kind == 0:
            value, at = _varint(data, at)
            if at > end:
                return
            yield tag >> 3, value
            continue
        if kind == 1:
            size = 8
        elif kind == 5:
            size = 4
        elif kind == 2:
            size, at = _varint(data, at)
        else:
            return
        if at + size > end:
            return
        yield tag >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A varint and where it ends; an end beyond the data where it is torn."""
    value = shift = 0
    while at < len(data) and shift <= _MOST_SHIFT:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    return 0, len(data) + 1
