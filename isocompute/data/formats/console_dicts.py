"""Consoles that print a step and a dict, which may span several lines.

OpenRLHF prints `Global step N: {…}`, SkyRL `Step N: {…}` and PipelineRL `Completed steps N: {…}`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

from isocompute.data.rows import NO_MATCH, Match, Sink
from isocompute.data.source import LiteralError, Log, Sample, depth_after, flatten, parse
from isocompute.trainers.config_files import ConfigWatch, process_of, strip

_MAX_LINES = 3000
_MAX_SIZE = 1 << 20


class _StepAndDict:
    """A line with a step, then a dict on it or on the next lines."""

    name: ClassVar[str]
    looks_for: ClassVar[str]
    marks: ClassVar[tuple[bytes, ...]]
    _line: ClassVar[re.Pattern[bytes]]
    _keys: ClassVar[re.Pattern[str]]

    def sniff(self, sample: Sample) -> Match:
        """Count dicts with the trainer's own keys."""
        rows = sum(
            1 for _, row in self._rows((line, line) for line in sample.lines) if row and any(map(self._keys.match, row))
        )
        return Match(0.9, rows) if rows else NO_MATCH

    def read(self, log: Log, sink: Sink) -> None:
        """Every dict is a row."""
        rows = sink.run()
        watch: ConfigWatch | None = ConfigWatch(rows)

        def cleaned() -> Iterator[tuple[bytes, bytes]]:
            for line in log.lines():
                if watch is not None:
                    watch.feed(line)
                yield line, strip(line)

        for step, row in self._rows(cleaned()):
            if row is None or not rows.add_mapping(step, row):
                rows.skipped_lines += 1
            else:
                watch = None

    def _rows(self, lines: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[int, dict[str, Any] | None]]:
        """Step and dict from (raw line, cleaned line); None for a dict that is incomplete or not readable."""
        step, depth, process = 0, 0, b""
        pieces: list[str] = []
        size = 0
        waiting = False  # whether the dict of the last step is still to come
        for raw, cleaned in lines:
            text = cleaned
            match = self._line.search(text) if self.marks[0] in text else None
            if match:
                if pieces:
                    yield step, None  # the next step begins before this dict ended
                pieces, depth, size = [], 0, 0
                step, process, waiting = int(match["step"]), process_of(raw), True
                text = text[match.end() :]
            elif not waiting or process_of(raw) != process:
                continue
            text = text.strip()
            if not text:
                continue
            if not pieces:
                if not text.startswith(b"{"):
                    waiting = not match and waiting and text.startswith(b"\\")
                    continue
            elif b"step" in text[:40].lower() and b"{" not in text and depth <= 0:
                waiting = False
                continue
            elif not text.startswith((b"'", b'"', b"}", b"]", b")")):
                continue  # other output between the lines of a dict
            piece = text.decode(errors="replace")
            pieces.append(piece)
            size += len(piece)
            depth = depth_after(max(depth, 0), piece)
            if depth == -1:
                yield step, _dict("\n".join(pieces))
                pieces, waiting = [], False
            elif len(pieces) > _MAX_LINES or size > _MAX_SIZE:
                yield step, None
                pieces, waiting = [], False
        if pieces:
            yield step, None


def _dict(text: str) -> dict[str, Any] | None:
    try:
        value = parse(text)
    except LiteralError:
        return None
    return flatten(value) if isinstance(value, dict) else None


class OpenRLHF(_StepAndDict):
    """OpenRLHF 0.5 to 0.11, training and evaluation lines."""

    name: ClassVar[str] = "openrlhf"
    looks_for: ClassVar[str] = "lines 'Global step N: {…}'"
    marks: ClassVar[tuple[bytes, ...]] = (b"lobal",)
    _line = re.compile(rb"[Gg]lobal[ _]step (?P<step>\d{1,15})(?::|, eval_metrics:) ?")
    _keys = re.compile(
        r"policy_loss|act_loss|actor_lr|rollout/|reward|return|response_length|eval_|entropy_loss|timing/"
    )


class SkyRL(_StepAndDict):
    """SkyRL's `console` logger, which prints floats as text. A `Global step` is OpenRLHF's."""

    name: ClassVar[str] = "skyrl"
    looks_for: ClassVar[str] = "'Step N:' and a dict with keys such as 'reward/avg_raw_reward' after it"
    marks: ClassVar[tuple[bytes, ...]] = (b"tep ",)
    _line = re.compile(rb"(?<![\w'])(?<![Gg]lobal )[Ss]tep (?P<step>\d{1,15}): ?(?=\s*(?:\{|$|\\))")
    _keys = re.compile(r"reward/|loss/|policy/|generate/|trainer/|timing/|eval/")


class PipelineRL(_StepAndDict):
    """PipelineRL's finetune log."""

    name: ClassVar[str] = "pipelinerl"
    looks_for: ClassVar[str] = "lines 'Completed steps N: {…}'"
    marks: ClassVar[tuple[bytes, ...]] = (b"ompleted steps",)
    _line = re.compile(rb"Completed steps (?P<step>\d{1,15}): ?")
    _keys = re.compile(r"stats/|rl/|throughput/|loss|dataset_")
