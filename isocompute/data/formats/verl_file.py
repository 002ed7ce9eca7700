"""veRL's `file` logger: `{"step": N, "data": {…}}` a line."""

from __future__ import annotations

from typing import Any, ClassVar

from isocompute.data.formats.jsonl import read_rows
from isocompute.data.logs.base import NO_MATCH, Match
from isocompute.data.logs.collect import Sink
from isocompute.data.logs.literals import scalars
from isocompute.data.logs.source import Log, Sample

__all__ = ["VerlFile"]


class VerlFile:
    """`trainer.logger=['file']`."""

    name: ClassVar[str] = "verl-file"
    looks_for: ClassVar[str] = 'JSON lines {"step": N, "data": {…}}'

    def sniff(self, sample: Sample) -> Match:
        """Exactly these two keys."""
        rows = sum(1 for row in sample.objects if set(row) == {"step", "data"} and isinstance(row["data"], dict))
        return Match(0.95, rows) if rows else NO_MATCH

    def read(self, log: Log, sink: Sink) -> None:
        """The inner object holds the metrics."""
        read_rows(log, sink, _row)


def _row(value: dict[str, Any]) -> dict[str, Any]:
    data = value.get("data")
    return {**scalars(data), "step": value.get("step")} if isinstance(data, dict) else {}
