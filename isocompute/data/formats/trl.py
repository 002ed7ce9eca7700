"""TRL: `trainer_state.json`, and its console, which prints a dict every `logging_steps` between progress bars.

The printed dicts have no step. The training's progress bar gives it if bars and dicts alternate. If the two streams
were written separately (a redirected standard output is buffered), dicts and steps are counted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

from isocompute.core.errors import InputError
from isocompute.data.rows import NO_MATCH, Match, Rows, Sink
from isocompute.data.source import LiteralError, Log, Sample, as_number, flatten, parse
from isocompute.trainers.config_files import ConfigWatch, strip


class TrlState:
    """`trainer_state.json` of any Hugging Face trainer; the last checkpoint's file has the whole run."""

    name: ClassVar[str] = "trl"
    marks: ClassVar[tuple[bytes, ...]] = (b'"log_history"', b'"best_model_checkpoint"')
    looks_for: ClassVar[str] = "a JSON object with 'log_history'"

    def sniff(self, sample: Sample) -> Match:
        """An object that begins like a trainer's state."""
        if sample.head.lstrip()[:1] != b"{":
            return NO_MATCH
        if b'"log_history"' in sample.head:
            return Match(0.95, 1)
        begin = sample.head[:4096]
        return Match(0.9, 1) if b'"global_step"' in begin and b'"best_model_checkpoint"' in begin else NO_MATCH

    def read(self, log: Log, sink: Sink) -> None:
        """Each row of `log_history` is a mean over `logging_steps`."""
        try:
            state = json.loads(log.whole())
        except (ValueError, RecursionError) as error:
            raise InputError(f"{log.name}: not a whole JSON file ({error}); was it being written?") from error
        if not isinstance(state, dict) or not isinstance(state.get("log_history"), list):
            raise InputError(f"{log.name}: a trainer_state.json needs a list 'log_history'.")
        rows = sink.run()
        for row in state["log_history"]:
            step = as_number(row.get("step")) if isinstance(row, dict) else None
            if step is None or step < 0 or step != int(step):
                rows.skipped_lines += 1
            elif "train_runtime" not in row:  # the closing summary
                rows.add_mapping(step, {k: v for k, v in row.items() if k not in ("step", "total_flos")})
        if state.get("max_steps"):
            rows.add_config({"max_steps": state["max_steps"]})
        if isinstance(state.get("args"), dict):
            rows.add_config(state["args"])


# The console.

_START = re.compile(
    rb"\{\s*['\"](?:loss|reward|rewards?/[^'\"]+|kl|entropy|policy_loss|grad_norm|num_tokens|epoch|step|global_step[/\w]*"
    rb"|eval_\w+|train_\w+|completions?[_/]\w+|clip_ratio[/\w]*)['\"]\s*:"
)
_RL_KEYS = ("reward", "rewards/", "completion_length", "completions/", "kl", "eval_reward", "train/reward")
_TRAINER_KEYS = {"epoch", "learning_rate", "loss"}
_LONGEST_LINE = 200_000


class TrlConsole:
    """What the trainer's progress callback prints."""

    name: ClassVar[str] = "trl-console"
    marks: ClassVar[tuple[bytes, ...]] = (
        *(b"epoch'", b'epoch"', b"learning_rate'", b'learning_rate"', b"loss'", b'loss"'),
    )
    looks_for: ClassVar[str] = "printed dicts {'loss': …, 'reward': …, 'epoch': …}"

    def sniff(self, sample: Sample) -> Match:
        """Dicts with the keys of a trainer; without a reward they may be those of any training."""
        dicts = [row for line in sample.lines if (row := _dict_in(line)) and row.keys() & _TRAINER_KEYS]
        rows = sum(any(key.startswith(_RL_KEYS) for key in row) for row in dicts)
        if rows:
            return Match(0.9, rows)
        return Match(0.6, len(dicts), "dicts without a reward") if dicts else NO_MATCH

    def read(self, log: Log, sink: Sink) -> None:
        """Rows get their steps at the end of the log."""
        rows = sink.run()
        watch = ConfigWatch(rows)
        steps = _Steps()
        for line in log.lines():
            start = line.find(b"{")
            steps.add_bars(line if start < 0 else line[:start])
            if start < 0:
                if b" = " in line:
                    steps.add_announcement(line, rows)
                watch.feed(line)
                continue
            row = _dict_in(strip(line))
            if row is None:
                watch.feed(line)
                if _START.search(line):
                    rows.skipped_lines += 1
            elif "train_runtime" not in row and (
                row.keys() & _TRAINER_KEYS or any(key.startswith(_RL_KEYS) for key in row)
            ):
                step = _logged_step(row)
                if rows.add_mapping(len(rows), row):
                    is_evaluation = any(key.startswith("eval_") for key in row)
                    steps.add_row(step, as_number(row.get("epoch")), is_evaluation=is_evaluation)
            steps.add_bars(line[start:])
        rows.renumber(steps.of_rows(rows))
        if steps.total:
            rows.settings.setdefault("update_steps", steps.total)


def _logged_step(row: dict[str, Any]) -> float | None:
    """The step in a dict that has one, as in trainers built on TRL (ms-swift: `'5/200'`)."""
    for key in ("step", "global_step", "global_step/max_steps"):
        value = row.pop(key, None)
        number = as_number(value.split("/")[0] if isinstance(value, str) else value)
        if number is not None:
            return number
    return None


def _dict_in(line: bytes) -> dict[str, Any] | None:
    """The trainer's dict on a line, after any other output."""
    start = _START.search(line) if b"{" in line else None
    if not start or len(line) > _LONGEST_LINE:
        return None
    if line[: start.start()].rstrip().endswith((b":", b"=", b",", b"(", b"[", b"{")):  # part of another value
        return None
    try:
        value = parse(line[start.start() :].decode(errors="replace"))
    except LiteralError:
        return None
    return flatten(value) if isinstance(value, dict) else None


# The steps of printed dicts. A log has many progress bars: of data, weights, batches of an evaluation. The training's
# bar is the one that the trainer announces, or else the one that advances from dict to dict.

_BAR = re.compile(rb"(\d{1,9})/(\d{1,9}) \[(?:\d+:)?\d+:\d+<")
_TOTAL_STEPS = re.compile(rb"Total optimization steps = ([\d,]{1,15})")
_BATCH_SIZE = re.compile(rb"Total train batch size \([^)]*\) = ([\d,]{1,15})")
_STEPS_PER_EPOCH = re.compile(rb"Num update steps per epoch = ([\d,]{1,15})")
_MAX_BARS = 1000


class _Drawn(NamedTuple):
    """One drawing of a progress bar."""

    done: int
    total: int
    named: bool
    """Whether a description precedes the bar; the trainer's own bar has none."""


def _bars_in(line: bytes) -> Iterator[_Drawn]:
    """The bars on a line, several if a copy has lost the carriage returns; bars that count examples are left out."""
    end = 0
    for match in _BAR.finditer(line):
        before = line[end : match.start()]
        percent = before.rfind(b"%|")
        description = before if percent < 0 else before[:percent].rstrip(b"0123456789")
        end = match.end()
        unit = line[end : end + 60].partition(b"]")[0]
        if b"example" not in unit:
            yield _Drawn(int(match[1]), int(match[2]), description.rstrip().endswith(b":"))


class _Bar:
    """A progress bar over the rows of a log."""

    def __init__(self, place: int) -> None:
        self.first = self.last = place
        """Its places among all drawings of the log."""
        self.furthest = 0
        self._done = 0
        self._done_before: dict[int, int] = {}
        """Row → done, if the bar was drawn since the previous row."""
        self._went_back: set[int] = set()

    def draw(self, done: int, *, row: int, place: int) -> None:
        """The bar is drawn before this row."""
        if done < self._done:
            self._went_back.add(row)
        self._done = self._done_before[row] = done
        self.furthest = max(self.furthest, done)
        self.last = place

    def at_rows(self, count: int) -> list[int | None]:
        """What was done at each of the first rows."""
        out: list[int | None] = []
        for row in range(count):
            out.append(self._done_before.get(row, out[-1] if out else None))
        return out

    def alternates_with(self, training: list[int]) -> bool:
        """Whether the bar advances between the rows of training, except where a resumed run jumps back."""
        rare = len(training) // 20
        if not training or len(self._done_before) < len(training) - rare:
            return False
        at_rows = self.at_rows(training[-1] + 1)
        known = [(i, done) for i in training if (done := at_rows[i]) is not None]
        if len(known) < len(training) or known[0][1] < 1:
            return False
        still = jumps = 0
        for (i, a), (j, b) in pairwise(known):
            if b <= a:
                back = b < a or any(row in self._went_back for row in range(i + 1, j + 1))
                jumps, still = jumps + back, still + (not back)
        return jumps <= max(1, rare) and still <= rare


class _Steps:
    """Collects a log's bars, announcements and rows in order, and then gives each row its step."""

    def __init__(self) -> None:
        self.total: int | None = None
        """Steps of the training: as announced, or as its bar shows."""
        self._announced: set[int] = set()
        self._per_epoch: int | None = None
        self._bars: dict[tuple[bool, int], _Bar] = {}
        """By whether it is named, and its total."""
        self._unnamed = _Bar(0)
        """All unnamed bars as one: a run that was resumed for more steps has two totals."""
        self._drawn = 0
        self._logged: list[float | None] = []
        self._epochs: list[float | None] = []
        self._is_evaluation: list[bool] = []

    def add_bars(self, text: bytes) -> None:
        """Progress bars on a line, or on a piece of one."""
        if b"<" not in text or b"/" not in text or b" [" not in text:
            return
        for drawn in _bars_in(text):
            key = (drawn.named, drawn.total)
            if (self._announced and drawn.total not in self._announced) or (
                key not in self._bars and len(self._bars) >= _MAX_BARS
            ):
                continue
            self._drawn += 1
            bar = self._bars.setdefault(key, _Bar(self._drawn))
            for each in (bar,) if drawn.named else (bar, self._unnamed):
                each.draw(drawn.done, row=len(self._logged), place=self._drawn)

    def add_announcement(self, line: bytes, rows: Rows) -> None:
        """A line that the trainer prints before it begins."""
        if match := _TOTAL_STEPS.search(line):
            self.total = _count(match) or None
            self._announced |= {self.total} if self.total else set()
        elif match := _STEPS_PER_EPOCH.search(line):
            self._per_epoch = _count(match) or None
        elif match := _BATCH_SIZE.search(line):
            rows.add_config({"total_train_batch_size": _count(match)})

    def add_row(self, step: float | None, epoch: float | None, *, is_evaluation: bool) -> None:
        """A row, with the step and epoch that it logs."""
        self._logged.append(step)
        self._epochs.append(epoch)
        self._is_evaluation.append(is_evaluation)

    def of_rows(self, rows: Rows) -> list[int]:
        """The step of every row; an evaluation's comes from the bar, its epoch, or the training row before it."""
        count = len(self._logged)
        training = [i for i, evaluation in enumerate(self._is_evaluation) if not evaluation] or list(range(count))
        bar = self._training_bar(training)
        done_at: list[int | None] = [None] * count if bar is None else bar.at_rows(count)
        by_row = dict(zip(training, self._of_training(training, done_at, rows), strict=True))
        steps_per_epoch: float | None = self._per_epoch
        if not steps_per_epoch:  # as the last row of training has it
            known = [step / epoch for i, step in by_row.items() if (epoch := self._epochs[i]) is not None and epoch > 0]
            steps_per_epoch = known[-1] if known else None
        next_step: list[int | None] = [None] * count  # of training
        for i in range(count - 2, -1, -1):
            next_step[i] = by_row.get(i + 1, next_step[i + 1])
        out: list[int] = []
        last, last_epoch = 0, None
        for i, (logged, done, epoch, following) in enumerate(
            zip(self._logged, done_at, self._epochs, next_step, strict=True)
        ):
            jumps_back = following is None or following <= last  # then any step may be right
            if i in by_row:
                last, last_epoch = by_row[i], epoch
            elif logged is not None and logged >= 0:
                last = int(logged)
            elif done is not None and (jumps_back or last <= done <= (following or 0)):
                last = done
            elif epoch is not None and epoch != last_epoch and steps_per_epoch is not None:
                step = round(epoch * steps_per_epoch)
                last = max(last, step if jumps_back else min(step, (following or 0) - 1))
            out.append(last)
        return out

    def _training_bar(self, training: list[int]) -> _Bar | None:
        """The bar that alternates with the dicts, None if none does; sets `total`."""
        unnamed = {total: bar for (named, total), bar in self._bars.items() if not named}
        bars = unnamed or {total: bar for (_, total), bar in self._bars.items()}
        moving = [total for total, bar in bars.items() if bar.alternates_with(training)]
        if moving:
            total = max(moving, key=lambda t: bars[t].furthest)
            self.total = self.total or total
            return bars[total]
        if self._unnamed.alternates_with(training):
            self.total = self.total or max(bars, key=lambda t: bars[t].last)
            return self._unnamed
        if unnamed:  # the training's is drawn over most of the log
            self.total = self.total or max(unnamed, key=lambda t: unnamed[t].last - unnamed[t].first)
        return None

    def _of_training(self, training: list[int], done_at: list[int | None], rows: Rows) -> list[int]:
        """The steps of the training rows: as logged, from the bar, from the epoch, or counted."""
        logged = [step for i in training if (step := self._logged[i]) is not None and step >= 0 and step == int(step)]
        if len(logged) == len(training):
            return [int(step) for step in logged]
        done = [done for i in training if (done := done_at[i]) is not None]
        if len(done) == len(training):
            return done
        count = len(training)
        epochs = [epoch for i in training if (epoch := self._epochs[i]) is not None]
        if self._per_epoch and count and len(epochs) == count:
            exact = [round(epoch * self._per_epoch) for epoch in epochs]
            if all(b > a for a, b in pairwise(exact)) and exact[0] > 0:
                return exact
        bar = self._bars.get((False, self.total or 0))
        reached = (bar.furthest if bar else 0) or self.total or count
        every = reached // count if count and reached >= count else 1
        if count > 1 or every > 1:
            rows.notes.append(f"steps are counted: {count} dicts, one every {every} of {reached} steps")
        return [every * (i + 1) for i in range(count)]


def _count(match: re.Match[bytes]) -> int:
    return int(match[1].replace(b",", b"") or 0)
