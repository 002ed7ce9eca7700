"""Logs of one JSON object a line: how they are read, whoever wrote them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from isocompute.data.logs.collect import Sink
from isocompute.data.logs.literals import as_number, scalars
from isocompute.data.logs.names import STEP_NAMES
from isocompute.data.logs.source import Log

__all__ = ["objects", "read_rows", "step_of"]

_NOT_METRICS = {*STEP_NAMES, "time", "timestamp", "_timestamp", "epoch_time"}
_BESIDES = {*_NOT_METRICS, "_runtime"}
_VERSION = re.compile(r"eval/[^/]+/policy_version")


def objects(log: Log) -> Iterator[dict[str, Any] | None]:
    """The object of each line that is not empty, None for a line that is none."""
    for line in log.lines():
        if line and not line.isspace():
            try:
                value = json.loads(line)
            except (ValueError, RecursionError):
                yield None
                continue
            yield value if isinstance(value, dict) else None


def step_of(row: Mapping[str, Any], names: tuple[str, ...] = STEP_NAMES) -> float | None:
    """The update a row belongs to.

    prime-rl's evaluations have the number of the batch under way; their policy's version is the batches that are over.
    """
    version = next((name for name in row if _VERSION.fullmatch(name)), None)
    if version is not None and all(name.startswith("eval/") for name in row if name not in _BESIDES):
        names = (version, *names)
    for name in names:
        step = as_number(row.get(name))
        if step is not None and step >= 0 and step == int(step):
            return step
    return None


def read_rows(log: Log, sink: Sink, row_of: Callable[[dict[str, Any]], dict[str, Any]] = scalars) -> None:
    """Every object with a step and a number is a row."""
    rows = sink.run()
    for value in objects(log):
        row = row_of(value) if value is not None else {}
        step = step_of(row)
        metrics = {k: v for k, v in row.items() if k not in _NOT_METRICS}
        if step is None or not rows.add_mapping(step, metrics):
            rows.skipped_lines += 1
