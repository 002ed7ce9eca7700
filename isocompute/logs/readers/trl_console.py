"""TRL's console: a printed dict every `logging_steps`, between progress bars; values sometimes quoted.

The dicts carry no step. It is taken from the progress bar where bars and dicts come in turn; where the two streams were
written apart (a redirected standard output is buffered), from the number of dicts and of steps.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any, ClassVar

from isocompute.logs.base import NO_MATCH, Match
from isocompute.logs.collect import Rows, Sink
from isocompute.logs.dumps import ConfigWatch
from isocompute.logs.literals import LiteralError, as_number, parse, scalars
from isocompute.logs.source import Log, Sample, strip

__all__ = ["TrlConsole"]

_START = re.compile(
    rb"\{\s*['\"](?:loss|reward|rewards?/[^'\"]+|kl|entropy|policy_loss|grad_norm|num_tokens|epoch|step|global_step[/\w]*"
    rb"|eval_\w+|train_\w+|completions?[_/]\w+|clip_ratio[/\w]*)['\"]\s*:"
)
_BAR = re.compile(rb"(\d{1,9})/(\d{1,9}) \[(?:\d+:)?\d+:\d+<")
_TOTAL = re.compile(rb"Total optimization steps = ([\d,]{1,15})")
_BATCH = re.compile(rb"Total train batch size \([^)]*\) = ([\d,]{1,15})")
_EPOCH = re.compile(rb"Num update steps per epoch = ([\d,]{1,15})")
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
        clock = _Clock()
        for line in log.lines():
            if b"[" in line and (bar := None if b"<" not in line else _BAR.search(line)):
                clock.bar(int(bar[1]), int(bar[2]))
            if b"{" not in line:
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


class _Clock:
    """Which step each row belongs to."""

    def __init__(self) -> None:
        self.total: int | None = None
        self._per_epoch: int | None = None
        self._bar: int | None = None
        self._furthest = 0
        self._bars: list[int | None] = []
        self._own: list[float | None] = []
        self._epochs: list[float | None] = []
        self._evaluation: list[bool] = []

    def bar(self, done: int, total: int) -> None:
        """A progress bar; of several the training's is the one with the announced or the largest total."""
        if self.total is None or total >= self.total:
            self.total = total
            self._bar = done
            self._furthest = max(self._furthest, done)

    def headline(self, line: bytes, rows: Rows) -> None:
        """What the trainer announces before it begins."""
        if match := _TOTAL.search(line):
            self.total = int(match[1].replace(b",", b"") or 0) or None
        elif match := _EPOCH.search(line):
            self._per_epoch = int(match[1].replace(b",", b"") or 0) or None
        elif match := _BATCH.search(line):
            rows.found({"total_train_batch_size": int(match[1].replace(b",", b"") or 0)})

    def row(self, step: float | None, epoch: float | None, *, evaluation: bool) -> None:
        """A row was read."""
        self._bars.append(self._bar)
        self._own.append(step)
        self._epochs.append(epoch)
        self._evaluation.append(evaluation)

    def steps(self, rows: Rows) -> list[int]:
        """A step for every row; an evaluation has that of the training row before it."""
        training = [i for i, e in enumerate(self._evaluation) if not e]
        if not training:
            training, self._evaluation = list(range(len(self._own))), [False] * len(self._own)
        numbers = self._of_training(training, rows)
        by_row = dict(zip(training, numbers, strict=True))
        out: list[int] = []
        last = 0
        for i in range(len(self._own)):
            own = self._own[i]
            last = by_row.get(i, int(own) if own is not None and own >= 0 else last)
            out.append(last)
        return out

    def _of_training(self, training: list[int], rows: Rows) -> list[int]:
        own = [self._own[i] for i in training]
        if own and all(step is not None and step >= 0 and step == int(step) for step in own):
            return [int(step) for step in own if step is not None]
        bars = [self._bars[i] for i in training]
        known = [b for b in bars if b is not None]
        if len(known) == len(bars) > 0 and _in_turn(known):
            return known
        count = len(training)
        reached = self._furthest or self.total or count
        every = reached // count if count and reached >= count else 1
        epochs = [self._epochs[i] for i in training]
        if self._per_epoch and count and all(e is not None for e in epochs):
            exact = [round(e * self._per_epoch) for e in epochs if e is not None]
            if all(b > a for a, b in pairwise(exact)) and exact[0] > 0:
                return exact
        if count > 1 or every > 1:
            rows.notes.append(f"steps are counted: {count} dicts, one every {every} of {reached} steps")
        return [every * (i + 1) for i in range(count)]


def _in_turn(bars: list[int]) -> bool:
    """Whether the bars move on between the dicts, but for a resumed run's jump back."""
    back = sum(b <= a for a, b in pairwise(bars))
    return back <= len(bars) // 20 and bars[0] > 0
