"""TRL's console: a printed dict every `logging_steps`, between progress bars; values sometimes quoted.

The dicts carry no step. It is taken from the progress bar where bars and dicts come in turn; where the two streams were
written apart (a redirected standard output is buffered), from the number of dicts and of steps (readers/trl_steps.py).
"""

from __future__ import annotations

import re
from typing import Any, ClassVar

from isocompute.data.formats.trl_steps import Clock
from isocompute.data.logs.base import NO_MATCH, Match
from isocompute.data.logs.collect import Sink
from isocompute.data.logs.literals import LiteralError, as_number, parse, scalars
from isocompute.data.logs.source import Log, Sample, strip
from isocompute.trainers.printed import ConfigWatch

__all__ = ["TrlConsole"]

_START = re.compile(
    rb"\{\s*['\"](?:loss|reward|rewards?/[^'\"]+|kl|entropy|policy_loss|grad_norm|num_tokens|epoch|step|global_step[/\w]*"
    rb"|eval_\w+|train_\w+|completions?[_/]\w+|clip_ratio[/\w]*)['\"]\s*:"
)
_RL = ("reward", "rewards/", "completion_length", "completions/", "kl", "eval_reward", "train/reward")
_LONGEST = 200_000


class TrlConsole:
    """What the trainer's progress callback prints."""

    name: ClassVar[str] = "trl-console"
    looks_for: ClassVar[str] = "printed dicts {'loss': …, 'reward': …, 'epoch': …}"

    def sniff(self, sample: Sample) -> Match:
        """Dicts with the keys of a trainer; without a reward they may be anybody's."""
        rows = plain = 0
        for line in sample.lines:
            found = _dict_in(line)
            if found and ("epoch" in found or "learning_rate" in found or "loss" in found):
                plain += 1
                rows += any(key.startswith(_RL) for key in found)
        if rows:
            return Match(0.9, rows)
        return Match(0.6, plain, "dicts without a reward") if plain else NO_MATCH

    def read(self, log: Log, sink: Sink) -> None:
        """Rows first, their steps in the end."""
        rows = sink.run()
        watch = ConfigWatch(rows)
        clock = Clock()
        for line in log.lines():
            start = line.find(b"{")
            clock.bars(line if start < 0 else line[:start])
            if start < 0:
                if b" = " in line:
                    clock.headline(line, rows)
                watch.feed(line)
                continue
            found = _dict_in(strip(line))
            if found is None:
                watch.feed(line)
                if _START.search(line):
                    rows.skipped_lines += 1
            elif "train_runtime" not in found and _is_row(found):
                step = _own_step(found)
                if rows.add_mapping(len(rows), found):
                    clock.row(step, as_number(found.get("epoch")), evaluation=any(k.startswith("eval_") for k in found))
            clock.bars(line[start:])
        rows.renumber(clock.steps(rows))
        if clock.total:
            rows.settings.setdefault("update_steps", clock.total)


def _own_step(found: dict[str, Any]) -> float | None:
    """The step in a dict that has one, as those of trainers built on TRL do (ms-swift: `'5/200'`)."""
    for key in ("step", "global_step", "global_step/max_steps"):
        value = found.pop(key, None)
        number = as_number(value.split("/")[0] if isinstance(value, str) else value)
        if number is not None:
            return number
    return None


def _is_row(found: dict[str, Any]) -> bool:
    return any(k in found for k in ("epoch", "loss", "learning_rate")) or any(k.startswith(_RL) for k in found)


def _dict_in(line: bytes) -> dict[str, Any] | None:
    """The trainer's dict on a line, whatever stands before it."""
    start = _START.search(line) if b"{" in line else None
    if not start or len(line) > _LONGEST:
        return None
    before = line[: start.start()].rstrip()
    if before.endswith((b":", b"=", b",", b"(", b"[", b"{")):  # part of somebody else's line
        return None
    try:
        value = parse(line[start.start() :].decode(errors="replace"))
    except LiteralError:
        return None
    return scalars(value) if isinstance(value, dict) else None
