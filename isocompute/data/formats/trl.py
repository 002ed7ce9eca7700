"""TRL's console: a printed dict every `logging_steps`, between progress bars; values sometimes quoted.

The dicts carry no step. It is taken from the progress bar where bars and dicts come in turn; where the two streams were
written apart (a redirected standard output is buffered), from the number of dicts and of steps (readers/trl_steps.py).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

from isocompute.core.errors import InputError
from isocompute.data.literals import LiteralError, as_number, flatten, parse
from isocompute.data.rows import NO_MATCH, Match, Rows, Sink
from isocompute.data.source import Log, Sample
from isocompute.trainers.printed import ConfigWatch, strip

__all__ = ["Clock", "TrlConsole", "TrlState", "add_history"]


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
    return flatten(value) if isinstance(value, dict) else None


# Which step a printed dict belongs to: from the progress bars before it, its epoch, or its place among all dicts.

_BAR = re.compile(rb"(\d{1,9})/(\d{1,9}) \[(?:\d+:)?\d+:\d+<")
_TOTAL = re.compile(rb"Total optimization steps = ([\d,]{1,15})")
_BATCH = re.compile(rb"Total train batch size \([^)]*\) = ([\d,]{1,15})")
_EPOCH = re.compile(rb"Num update steps per epoch = ([\d,]{1,15})")
_RATE = 60
"""Characters in which a bar says what it counts, and how fast."""
_MOST_TOTALS = 1000
"""Different progress bars of one log; more are nobody's."""


class _Bar(NamedTuple):
    """One drawing of a progress bar."""

    done: int
    total: int
    named: bool
    """Whether a description stands before it; the trainer's own bar has none."""


def _bars_in(line: bytes) -> Iterator[_Bar]:
    """The bars on a line, several where a copy has lost the carriage returns; data sets are counted in examples."""
    end = 0
    for match in _BAR.finditer(line):
        before = line[end : match.start()]
        percent = before.rfind(b"%|")
        described = before if percent < 0 else before[:percent].rstrip(b"0123456789")
        end = match.end()
        if b"example" not in line[end : end + _RATE].partition(b"]")[0]:
            yield _Bar(int(match[1]), int(match[2]), described.rstrip().endswith(b":"))


class _Series:
    """Where the bars of one total stood when rows were printed."""

    def __init__(self, place: int) -> None:
        self.first = self.last = place
        """Its places among all bars of the log."""
        self.furthest = 0
        self._done = 0
        self._stood: dict[int, int] = {}
        """Row → done, where the bar was drawn since the row before."""
        self._went_back: set[int] = set()

    def draw(self, done: int, *, row: int, place: int) -> None:
        """The bar is drawn before this row."""
        if done < self._done:
            self._went_back.add(row)
        self._done = self._stood[row] = done
        self.furthest = max(self.furthest, done)
        self.last = place

    def at(self, rows: int) -> list[int | None]:
        """What was done when each of this many rows was printed."""
        out: list[int | None] = []
        for row in range(rows):
            out.append(self._stood.get(row, out[-1] if out else None))
        return out

    def in_turn(self, training: list[int]) -> bool:
        """Whether the bar moves on between the rows of training, but for a resumed run's jumps back."""
        rare = len(training) // 20
        if not training or len(self._stood) < len(training) - rare:
            return False
        standing = self.at(training[-1] + 1)
        known = [(i, done) for i in training if (done := standing[i]) is not None]
        if len(known) < len(training) or known[0][1] < 1:
            return False
        still = jumps = 0
        for (i, a), (j, b) in pairwise(known):
            if b <= a:
                back = b < a or any(row in self._went_back for row in range(i + 1, j + 1))
                jumps, still = jumps + back, still + (not back)
        return jumps <= max(1, rare) and still <= rare


class Clock:
    """Fed with a log's bars, headlines and rows as they come, it tells in the end which step each row belongs to."""

    def __init__(self) -> None:
        self.total: int | None = None
        """Steps of the training, as announced; after `steps`, as its bar says."""
        self._announced: set[int] = set()
        self._per_epoch: int | None = None
        self._series: dict[tuple[bool, int], _Series] = {}
        self._together = _Series(0)
        """Bars of all totals that may be the training's: a run that was resumed for more steps has two."""
        self._drawn = 0
        self._own: list[float | None] = []
        self._epochs: list[float | None] = []
        self._evaluation: list[bool] = []

    def bars(self, text: bytes) -> None:
        """Progress bars on a line, or a part of one."""
        if b"<" not in text or b"/" not in text or b" [" not in text:
            return
        for bar in _bars_in(text):
            key = (bar.named, bar.total)
            if (self._announced and bar.total not in self._announced) or (
                key not in self._series and len(self._series) >= _MOST_TOTALS
            ):
                continue
            self._drawn += 1
            series = self._series.setdefault(key, _Series(self._drawn))
            for drawn in (series,) if bar.named else (series, self._together):
                drawn.draw(bar.done, row=len(self._own), place=self._drawn)

    def headline(self, line: bytes, rows: Rows) -> None:
        """What the trainer announces before it begins."""
        if match := _TOTAL.search(line):
            self.total = int(match[1].replace(b",", b"") or 0) or None
            self._announced |= {self.total} if self.total else set()
        elif match := _EPOCH.search(line):
            self._per_epoch = int(match[1].replace(b",", b"") or 0) or None
        elif match := _BATCH.search(line):
            rows.found({"total_train_batch_size": int(match[1].replace(b",", b"") or 0)})

    def row(self, step: float | None, epoch: float | None, *, evaluation: bool) -> None:
        """A row was read."""
        self._own.append(step)
        self._epochs.append(epoch)
        self._evaluation.append(evaluation)

    def steps(self, rows: Rows) -> list[int]:
        """A step for every row; an evaluation's is that of the bar, of its epoch, or of the training row before it."""
        count = len(self._own)
        training = [i for i, e in enumerate(self._evaluation) if not e] or list(range(count))
        bar = self._training_bar(training)
        standing: list[int | None] = [None] * count if bar is None else bar.at(count)
        by_row = dict(zip(training, self._of_training(training, standing, rows), strict=True))
        ahead = _next_of(by_row, count)
        rate = self._steps_per_epoch(by_row)
        out: list[int] = []
        last, last_epoch = 0, None
        for i, own in enumerate(self._own):
            done, epoch = standing[i], self._epochs[i]
            if i in by_row:
                last, last_epoch = by_row[i], epoch
            elif own is not None and own >= 0:
                last = int(own)
            elif done is not None and _fits(done, last, ahead[i]):
                last = done
            elif epoch is not None and epoch != last_epoch and rate is not None:
                last = _kept_between(round(epoch * rate), last, ahead[i])
            out.append(last)
        return out

    def _training_bar(self, training: list[int]) -> _Series | None:
        """The bar that comes in turn with the dicts, None where none does; `total` becomes its."""
        plain = self._of_totals(named=False) or self._of_totals(named=True)
        moving = [total for total, series in plain.items() if series.in_turn(training)]
        if moving:
            total = max(moving, key=lambda t: plain[t].furthest)
            self.total = self.total or total
            return plain[total]
        if self._together.in_turn(training):
            self.total = self.total or max(plain, key=lambda t: plain[t].last)
            return self._together
        lasting = self._longest_bar()
        if lasting is not None:
            self.total = self.total or lasting
        return None

    def _of_totals(self, *, named: bool) -> dict[int, _Series]:
        return {total: series for (has_name, total), series in self._series.items() if has_name == named}

    def _longest_bar(self) -> int | None:
        """The total of the bar that is drawn over most of the log: others are drawn before it and in between."""
        plain = self._of_totals(named=False)
        return max(plain, key=lambda total: plain[total].last - plain[total].first, default=None)

    def _of_training(self, training: list[int], standing: list[int | None], rows: Rows) -> list[int]:
        own = [step for i in training if (step := self._own[i]) is not None and step >= 0 and step == int(step)]
        if len(own) == len(training):
            return [int(step) for step in own]
        done = [done for i in training if (done := standing[i]) is not None]
        if len(done) == len(training):
            return done
        count = len(training)
        bar = self._series.get((False, self.total or 0))
        reached = (bar.furthest if bar else 0) or self.total or count
        every = reached // count if count and reached >= count else 1
        epochs = [epoch for i in training if (epoch := self._epochs[i]) is not None]
        if self._per_epoch and count and len(epochs) == count:
            exact = [round(epoch * self._per_epoch) for epoch in epochs]
            if all(b > a for a, b in pairwise(exact)) and exact[0] > 0:
                return exact
        if count > 1 or every > 1:
            rows.notes.append(f"steps are counted: {count} dicts, one every {every} of {reached} steps")
        return [every * (i + 1) for i in range(count)]

    def _steps_per_epoch(self, by_row: dict[int, int]) -> float | None:
        """As announced, or as the last row of training says."""
        if self._per_epoch:
            return self._per_epoch
        said = [(step, epoch) for i, step in by_row.items() if (epoch := self._epochs[i]) is not None and epoch > 0]
        return said[-1][0] / said[-1][1] if said else None


def _next_of(by_row: dict[int, int], count: int) -> list[int | None]:
    """For each row the step of the next row of training."""
    out: list[int | None] = [None] * count
    ahead: int | None = None
    for i in range(count - 1, -1, -1):
        out[i] = ahead
        ahead = by_row.get(i, ahead)
    return out


def _fits(step: int, last: int, ahead: int | None) -> bool:
    """Whether a step lies between the rows around it; where the next one jumps back, anything may."""
    return ahead is None or ahead <= last or last <= step <= ahead


def _kept_between(step: int, last: int, ahead: int | None) -> int:
    """The nearest step that lies behind the row before and before the next."""
    return max(last, step if ahead is None or ahead <= last else min(step, ahead - 1))


# TRL (any Hugging Face trainer): `trainer_state.json`, whose `log_history` holds a row every `logging_steps`.


class TrlState:
    """The file of a checkpoint; the last one holds the whole run."""

    name: ClassVar[str] = "trl"
    looks_for: ClassVar[str] = "a JSON object with 'log_history'"

    def sniff(self, sample: Sample) -> Match:
        """An object that begins like a trainer's state."""
        start = sample.head.lstrip()[:1]
        if start == b"{" and b'"log_history"' in sample.head:
            return Match(0.95, 1)
        if (
            start == b"{"
            and b'"global_step"' in sample.head[:4096]
            and b'"best_model_checkpoint"' in sample.head[:4096]
        ):
            return Match(0.9, 1)
        return NO_MATCH

    def read(self, log: Log, sink: Sink) -> None:
        """Each row is a mean over `logging_steps`."""
        try:
            state = json.loads(log.whole())
        except (ValueError, RecursionError) as error:
            raise InputError(f"{log.name}: not a whole JSON file ({error}); was it being written?") from error
        if not isinstance(state, dict) or not isinstance(state.get("log_history"), list):
            raise InputError(f"{log.name}: a trainer_state.json needs a list 'log_history'.")
        add_history(state, sink)


def add_history(state: dict[str, Any], sink: Sink) -> None:
    """The rows of a `log_history`, and the settings that a state holds."""
    rows = sink.run()
    for row in state["log_history"]:
        step = as_number(row.get("step")) if isinstance(row, dict) else None
        if step is None or step < 0 or step != int(step):
            rows.skipped_lines += 1
        elif "train_runtime" not in row:  # the summary of the whole training is no point
            rows.add_mapping(step, {k: v for k, v in row.items() if k not in ("step", "total_flos")})
    args = state.get("args")
    rows.found({k: v for k in ("max_steps",) if (v := state.get(k))} | (args if isinstance(args, dict) else {}))
