"""prime-rl's file monitor, `metrics.jsonl`: several rows a step, from the orchestrator and from the trainer."""

from __future__ import annotations

import re
from typing import ClassVar

from isocompute.data.formats.jsonl import read_rows
from isocompute.data.logs.base import NO_MATCH, Match
from isocompute.data.logs.collect import Sink
from isocompute.data.logs.source import Log, Sample

__all__ = ["PrimeRL"]

_KEYS = re.compile(
    r"(?:entropy|mismatch_kl)/(?:all/)?mean|progress/(?:rollouts|total_rollouts|total_samples|tasks|problems)"
    r"|off_policy/|(?:train|eval)/[^/]+/(?:all|effective)/|(?:reward|seq_len|is_truncated)/(?:all/)?mean"
    r"|perf/throughput_per_gpu|optim/grad_norm|time/wait_for_(?:batch|policy)|solve_(?:none|all)"
)


class PrimeRL:
    """Rows of `step`, `time` and one process's metrics."""

    name: ClassVar[str] = "prime-rl"
    looks_for: ClassVar[str] = "JSON lines with 'step' and keys such as 'entropy/all/mean', 'progress/rollouts'"

    def sniff(self, sample: Sample) -> Match:
        """Keys that only prime-rl writes."""
        rows = sum(
            1
            for row in sample.objects
            if "step" in row and any(map(_KEYS.match, row)) and not any(k.startswith("env/") for k in row)
        )
        return Match(0.9, rows) if rows else NO_MATCH

    def read(self, log: Log, sink: Sink) -> None:
        """Rows of one step have different keys and make one point."""
        read_rows(log, sink)
