"""W&B offline runs: `run-ID.wandb`, LevelDB log frames around `Record` messages (history, config, run).

Numbers of the fields in wandb 0.13 to 0.31:

- Record: history = 2, config = 5, run = 17
- HistoryRecord: item = 1, step = 2
- HistoryItem and ConfigItem: key = 1, nested_key = 2, value_json = 16
- RunRecord: config = 4, display_name = 8
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, BinaryIO, ClassVar

from isocompute.data.formats.jsonl import step_of
from isocompute.data.formats.tensorboard import fields
from isocompute.data.rows import NO_MATCH, Match, Rows, Sink
from isocompute.data.source import Log, Sample, flatten

_MAGIC = b":W&B"
_BLOCK = 32768
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_LARGEST = 1 << 26


class WandbOffline:
    """The transaction log of one run."""

    name: ClassVar[str] = "wandb"
    marks: ClassVar[tuple[bytes, ...]] = (_MAGIC,)
    looks_for: ClassVar[str] = "a W&B transaction log (':W&B')"

    def sniff(self, sample: Sample) -> Match:
        """The file's first bytes."""
        return Match(0.99, 1) if sample.head.startswith(_MAGIC) else NO_MATCH

    def read(self, log: Log, sink: Sink) -> None:
        """History records are rows; `_step` counts log calls, so a trainer's own step takes precedence."""
        rows = sink.run()
        with log.raw() as file:
            for record in _records(file):
                for number, value in fields(record):
                    if not isinstance(value, bytes):
                        continue
                    if number == 2:
                        _history(value, rows)
                    elif number == 5:
                        rows.add_config(_config(value))
                    elif number == 17:
                        _run(value, rows)


def _records(file: BinaryIO) -> Iterator[bytes]:
    """Complete records; an incomplete last one (the run is in progress) is left out."""
    record = bytearray()
    while block := file.read(_BLOCK):
        at = 7 if block.startswith(_MAGIC) else 0
        while at + 7 <= len(block):
            size, kind = int.from_bytes(block[at + 4 : at + 6], "little"), block[at + 6]
            data = block[at + 7 : at + 7 + size]
            at += 7 + size
            if kind == 0 or len(data) < size:
                break
            if kind == _FULL:
                yield data
            elif kind == _FIRST:
                record = bytearray(data)
            elif kind in (_MIDDLE, _LAST):
                record += data
                if kind == _LAST:
                    yield bytes(record)
                    record.clear()
                elif len(record) > _LARGEST:
                    record.clear()


def _items(data: bytes, wanted: int) -> Iterator[tuple[str, Any]]:
    """Key and value of each item."""
    for number, item in fields(data):
        if number != wanted or not isinstance(item, bytes):
            continue
        keys: list[str] = []
        text: bytes = b""
        for field, value in fields(item):
            if field in (1, 2) and isinstance(value, bytes) and value:
                keys.append(value.decode(errors="replace"))
            elif field == 16 and isinstance(value, bytes):
                text = value
        try:
            yield "/".join(keys), json.loads(text)
        except (ValueError, RecursionError):
            continue


def _history(data: bytes, rows: Rows) -> None:
    row = flatten(dict(_items(data, 1)))
    for number, step in fields(data):
        if number == 2 and isinstance(step, bytes):
            row.setdefault("_step", next((v for f, v in fields(step) if f == 1), 0))
    step_number = step_of(row)
    metrics = {k: v for k, v in row.items() if k not in ("_step", "_timestamp") and not k.endswith("global_step")}
    if step_number is None or not (set(metrics) - {"_runtime"}) or not rows.add_mapping(step_number, metrics):
        rows.skipped_lines += 1


def _config(data: bytes) -> dict[str, Any]:
    return flatten({key.replace("/", "."): value for key, value in _items(data, 1)}, separator=".")


def _run(data: bytes, rows: Rows) -> None:
    for number, value in fields(data):
        if number == 4 and isinstance(value, bytes):
            rows.add_config(_config(value))
        elif number == 8 and isinstance(value, bytes) and value and rows.name is None:
            rows.name = value.decode(errors="replace")
