"""TensorBoard event files, and the wire format of protocol buffers, which W&B files use too."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import BinaryIO, ClassVar

from isocompute.data.rows import NO_MATCH, Match, Sink
from isocompute.data.source import Log, Sample

# Protocol buffers, as far as event files need them: fields by number, without a schema.

_MOST_SHIFT = 63


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(number, value) of each field: whole numbers for varints, bytes for everything else.

    Stops at the first invalid byte, so that a truncated message gives its complete fields.
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
    """A varint and the position after it, which is past the end of the data if the varint is truncated."""
    value = shift = 0
    while at < len(data) and shift <= _MOST_SHIFT:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    return 0, len(data) + 1


# Event files: TFRecord frames around `Event` messages, with scalars in their old and new form.

_LARGEST = 1 << 26
_POLYNOMIAL = 0x82F63B78
_MONITOR = re.compile(r"ray/(?:node\.\d+\.|(?:ray/)?ray_step$)")
"""NeMo-RL's monitor of the GPUs, whose step is the seconds since it began."""
_MONITORED = "NeMo-RL's GPU monitoring (ray/…) left out: it counts seconds, not steps"


class TensorBoard:
    """Event files; those of one folder are one run."""

    name: ClassVar[str] = "tensorboard"
    marks: ClassVar[tuple[bytes, ...]] = (b"\0",)  # lengths are 64-bit numbers
    looks_for: ClassVar[str] = "TensorBoard event records"

    def sniff(self, sample: Sample) -> Match:
        """The checksum of the first frame's length."""
        return Match(0.99, 1) if is_event_file(sample.head) else NO_MATCH

    def read(self, log: Log, sink: Sink) -> None:
        """Scalars of one step make one row."""
        rows = sink.run()
        started: float | None = None
        step = -1
        row: dict[str, float] = {}
        monitored = False
        with log.raw() as file:
            for event in _frames(file):
                time, at, scalars = _event(event)
                started = time if started is None else started
                if any(map(_MONITOR.match, scalars)):
                    scalars = {name: value for name, value in scalars.items() if not _MONITOR.match(name)}
                    monitored = True
                if not scalars:
                    continue
                if at != step or any(name in row for name in scalars):
                    rows.add_mapping(step, row)
                    step, row = at, {}
                row |= scalars
        rows.add_mapping(step, row)
        if monitored:
            rows.notes.append(_MONITORED)


def is_event_file(head: bytes) -> bool:
    """Whether a file begins with a frame of event records."""
    if len(head) < 16:
        return False
    length, check = struct.unpack("<QI", head[:12])
    return (
        length < _LARGEST
        and check == _masked(_crc32c(head[:8]))
        and head[12:13] in (b"\x09", b"\x1a", b"\x10", b"\x2a")
    )


def _frames(file: BinaryIO) -> Iterator[bytes]:
    while len(header := file.read(12)) == 12:
        (length,) = struct.unpack("<Q", header[:8])
        if length > _LARGEST:
            return
        data = file.read(length)
        if len(data) < length or len(file.read(4)) < 4:
            return
        yield data


def _event(data: bytes) -> tuple[float, int, dict[str, float]]:
    """Wall time, step and scalars of an `Event` (wall_time = 1, step = 2, summary = 5)."""
    time, step = 0.0, 0
    scalars: dict[str, float] = {}
    for number, value in fields(data):
        if number == 1 and isinstance(value, bytes) and len(value) == 8:
            (time,) = struct.unpack("<d", value)
        elif number == 2 and isinstance(value, int):
            step = value
        elif number == 5 and isinstance(value, bytes):
            for inner, summary in fields(value):
                if inner == 1 and isinstance(summary, bytes):
                    scalars |= _value(summary)
    return time, step, scalars


def _value(data: bytes) -> dict[str, float]:
    """`Summary.Value`: tag = 1, simple_value = 2, tensor = 8 (of one element)."""
    tag, number = "", None
    for field, value in fields(data):
        if field == 1 and isinstance(value, bytes):
            tag = value.decode(errors="replace")
        elif field == 2 and isinstance(value, bytes) and len(value) == 4:
            (number,) = struct.unpack("<f", value)
        elif field == 8 and isinstance(value, bytes):
            number = _tensor(value)
    return {tag: number} if tag and number is not None else {}


def _tensor(data: bytes) -> float | None:
    """`TensorProto`: dtype = 1 (1 float, 2 double), tensor_content = 4, float_val = 5, double_val = 6."""
    kind = 0
    for field, value in fields(data):
        if field == 1 and isinstance(value, int):
            kind = value
        elif field in (4, 5, 6) and isinstance(value, bytes):
            if len(value) == 4 and kind in (0, 1):
                return float(struct.unpack("<f", value)[0])
            if len(value) == 8 and kind in (0, 2):
                return float(struct.unpack("<d", value)[0])
    return None


def _crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (_POLYNOMIAL if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def _masked(crc: int) -> int:
    """The TFRecord rotation of a checksum."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
