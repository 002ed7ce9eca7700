"""Tinker cookbook: `metrics.jsonl`, one row a step, with `config.json` beside it."""

from __future__ import annotations

from typing import ClassVar

from isocompute.data.formats.jsonl import read_rows
from isocompute.data.logs.base import NO_MATCH, Match
from isocompute.data.logs.collect import Sink
from isocompute.data.logs.source import Log, Sample

__all__ = ["Tinker"]


class Tinker:
    """`env/all/…` is training, `test/env/all/…` validation."""

    name: ClassVar[str] = "tinker"
    looks_for: ClassVar[str] = "JSON lines with 'progress/batch' or 'env/all/reward/total'"

    def sniff(self, sample: Sample) -> Match:
        """Keys that only the cookbook writes."""
        rows = sum(
            1
            for row in sample.objects
            if "progress/batch" in row or any(k.startswith(("env/all/", "test/env/")) for k in row)
        )
        return Match(0.95, rows) if rows else NO_MATCH

    def read(self, log: Log, sink: Sink) -> None:
        """The step counts batches from 0."""
        read_rows(log, sink)
