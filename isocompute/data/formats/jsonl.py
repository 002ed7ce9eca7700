"""Logs with one JSON object per line: shared functions, and the formats of prime-rl and Tinker."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

from isocompute.core.metric_names import STEP_NAMES
from isocompute.data.rows import NO_MATCH, Match, Sink
from isocompute.data.source import Log, Sample, as_number, flatten

_NOT_METRICS = {*STEP_NAMES, "time", "timestamp", "_timestamp", "epoch_time"}
_NOT_EVALUATIONS = {*_NOT_METRICS, "_runtime"}
_VERSION = re.compile(r"eval/[^/]+/policy_version")


def objects(log: Log) -> Iterator[dict[str, Any] | None]:
    """The object of each line that is not empty; None for a line that is not an object."""
    for line in log.lines():
        if line and not line.isspace():
            try:
                value = json.loads(line)
            except (ValueError, RecursionError):
                yield None
                continue
            yield value if isinstance(value, dict) else None


def step_of(row: Mapping[str, Any], names: tuple[str, ...] = STEP_NAMES) -> float | None:
    """The update that a row belongs to.

    prime-rl's evaluations log the batch in progress as their step; their policy's version counts finished batches.
    """
    version = next((name for name in row if _VERSION.fullmatch(name)), None)
    if version is not None and all(name.startswith("eval/") for name in row if name not in _NOT_EVALUATIONS):
        names = (version, *names)
    for name in names:
        step = as_number(row.get(name))
        if step is not None and step >= 0 and step == int(step):
            return step
    return None


def read_rows(log: Log, sink: Sink, row_of: Callable[[dict[str, Any]], dict[str, Any]] = flatten) -> None:
    """Add every object with a step and a number as a row."""
    rows = sink.run()
    for value in objects(log):
        row = row_of(value) if value is not None else {}
        step = step_of(row)
        metrics = {k: v for k, v in row.items() if k not in _NOT_METRICS}
        if step is None or not rows.add_mapping(step, metrics):
            rows.skipped_lines += 1


# prime-rl's file monitor, `metrics.jsonl`: several rows per step, from the orchestrator and from the trainer.

_KEYS = re.compile(
    r"(?:entropy|mismatch_kl)/(?:all/)?mean|progress/(?:rollouts|total_rollouts|total_samples|tasks|problems)"
    r"|off_policy/|(?:train|eval)/[^/]+/(?:all|effective)/|(?:reward|seq_len|is_truncated)/(?:all/)?mean"
    r"|perf/throughput_per_gpu|optim/grad_norm|time/wait_for_(?:batch|policy)|solve_(?:none|all)"
)


class PrimeRL:
    """Rows of `step`, `time` and the metrics of one process."""

    name: ClassVar[str] = "prime-rl"
    marks: ClassVar[tuple[bytes, ...]] = (b'"step"',)
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


# Tinker cookbook: `metrics.jsonl`, one row per step, with `config.json` beside it.


class Tinker:
    """`env/all/…` is training, `test/env/all/…` validation."""

    name: ClassVar[str] = "tinker"
    marks: ClassVar[tuple[bytes, ...]] = (b"progress/batch", b"env/")
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
