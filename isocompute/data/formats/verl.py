"""veRL: its console, its `file` logger and its rollout dumps.

The console prints `step:N - key:value - key:value …`, one line per step, among whatever else the processes print. Logs
of a gigabyte are common, so lines with the keys of an earlier one are converted as a whole.

veRL before 01/2025 counts updates from 0: an update, and a validation after it, has the number of finished batches
before it, so that `step:9` is the end of the tenth batch. Its first versions print the base model's validation but do
not log it.
"""

from __future__ import annotations

import hashlib
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import PurePath
from typing import Any, ClassVar

from isocompute.core.formatting import plural
from isocompute.core.metric_names import is_validation
from isocompute.core.run import RunWarning
from isocompute.data.config import read_run_config
from isocompute.data.formats.jsonl import objects, read_rows
from isocompute.data.rows import NO_MATCH, Match, Rows, Sink
from isocompute.data.source import Log, Sample, as_float, as_number, flatten
from isocompute.trainers.config_files import ConfigWatch, strip

_STEP = re.compile(rb"step:(\d{1,15}) - ")
_PART_OF_KEY = {bytes([c]) for c in b"/_.@-abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"}
_WRAPPERS = (b"np.float64(", b"np.float32(", b"np.int64(", b"np.int32(", b"tensor(")
_KEY = re.compile(r"[A-Za-z_][^\s:=]*(?: [^\s:=]+){0,3}")
_LEADING_NUMBER = re.compile(r"[-+]?(?:\d{1,40}(?:\.\d*)?(?:[eE][-+]?\d+)?|\.\d+|nan|inf)")


class VerlConsole:
    """The `console` logger of veRL, 2024 to 0.9."""

    name: ClassVar[str] = "verl"
    marks: ClassVar[tuple[bytes, ...]] = (b"step:", b"actor_rollout_ref")
    looks_for: ClassVar[str] = "lines 'step:N - key:value - …'"

    def sniff(self, sample: Sample) -> Match:
        """A line with a step and at least one number."""
        layouts = _Layouts()
        rows = sum(1 for _, body in _records(sample.lines) if _pairs(body, layouts))
        if rows:
            return Match(0.95, rows)
        if any(b"actor_rollout_ref" in line for line in sample.lines):
            return Match(0.3, why="veRL's config is there, but no line 'step:N - key:value'")
        return NO_MATCH

    def read(self, log: Log, sink: Sink) -> None:
        """Step lines become rows; the other lines may hold the config."""
        run = _ConsoleRun(sink, log.name)
        layouts = _Layouts()
        for step, body in _records(log.lines(), run.line):
            run.row(step, _pairs(body, layouts))
        run.finish()


def _records(lines: Iterable[bytes], other: Callable[[bytes], None] | None = None) -> Iterator[tuple[int, bytes]]:
    """Each step and the rest of its line; all other lines go to `other`."""
    folded = _FoldedLine()
    for line in lines:
        found = _step_in(line) if b"step:" in line else None
        if folded.open and line:
            if found is None and folded.extend(line):
                continue
            yield folded.close()
        if found is not None:
            folded.begin(*found, width=len(line))
        elif other is not None:
            other(line)
    if folded.open:
        yield folded.close()


class _Layouts:
    """Keys of earlier lines, as bytes and as names; most lines have the keys of the line before."""

    def __init__(self) -> None:
        self._known: dict[tuple[bytes, ...], tuple[str, ...]] = {}
        self._last: tuple[list[bytes], tuple[str, ...]] = ([], ())

    def names(self, keys: list[bytes]) -> tuple[str, ...] | None:
        """The names of these keys; None where one is not a key or comes twice."""
        if keys == self._last[0]:
            return self._last[1]
        names = self._known.get(tuple(keys))
        if names is None:
            names = tuple(key.decode(errors="replace") for key in keys)
            if len(set(names)) < len(names) or not all(map(_KEY.fullmatch, names)):
                return None
            self._known[tuple(keys)] = names
        self._last = (keys, names)
        return names


def _step_in(line: bytes) -> tuple[int, bytes] | None:
    """The step on the line and what follows it; `timing_s/step:5` is not one."""
    match = _STEP.search(line)
    if (
        match
        and b"\x1b" in line
        and (line[match.start() - 1 : match.start()] == b"m" or b"\x1b" in line[match.end() :])
    ):
        line = strip(line)
        match = _STEP.search(line)
    while match:
        if line[match.start() - 1 : match.start()] not in _PART_OF_KEY or not match.start():
            return int(match[1]), line[match.end() :].strip()
        match = _STEP.search(line, match.end())
    return None


def _pairs(body: bytes, layouts: _Layouts) -> tuple[tuple[str, ...], list[float]] | None:
    """Names and values of a step line: at once where all values are plain numbers, else pair by pair."""
    if b"np." in body or b"tensor(" in body:
        body = _unwrapped(body)
    cells = body.replace(b" - ", b":").split(b":")
    if len(cells) % 2:
        return _pair_by_pair(body)
    try:
        values = list(map(float, cells[1::2]))
    except ValueError:
        return _pair_by_pair(body)
    names = layouts.names(cells[::2])
    return _pair_by_pair(body) if names is None else (names, values)


def _unwrapped(body: bytes) -> bytes:
    """`np.float64(0.5)` as `0.5`."""
    for wrapper in _WRAPPERS:
        if wrapper in body:
            first, *others = body.split(wrapper)
            body = first + b"".join(b"".join(other.split(b")", 1)) for other in others)
    return body


def _pair_by_pair(body: bytes) -> tuple[tuple[str, ...], list[float]] | None:
    """Names and values of the pairs with a number; other output may follow the last value directly."""
    found: dict[str, float] = {}
    pairs = body.decode(errors="replace").split(" - ")
    for i, pair in enumerate(pairs):
        key, colon, text = pair.rpartition(":")
        if i == len(pairs) - 1 and not (colon and as_float(text) is not None):
            key, colon, text = pair.partition(":")
            number = _LEADING_NUMBER.match(text)
            text = number[0] if number else ""
        value = as_float(text)
        if colon and value is not None and _KEY.fullmatch(key):
            found[key] = value
    return (tuple(found), list(found.values())) if found else None


# Step lines that a terminal has folded. A line continues the last one if both together are still
# `key:value - key:value - …`, the last pair perhaps not yet whole. Folding drops the blanks at the cut.

_FOLDED_KEY = rb"[A-Za-z_][^\s:]*"
_FOLDED_NUMBER = rb"(?:[a-z]{2,6}(?:\.\w+)?\()?[-+]?(?:\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|\.\d+|nan|inf|True|False)\)?"
_PAIR = re.compile(_FOLDED_KEY + rb":" + _FOLDED_NUMBER)
_PARTIAL_PAIR = re.compile(
    rb"(?:"
    + _FOLDED_KEY
    + rb"(?::(?:[a-z]{1,6}(?:\.\w{0,10})?\(?)?[-+]?\d*(?:\.\d*)?(?:[eE][-+]?\d*)?\)?)?)?|"
    + _PAIR.pattern
    + rb" ?-?"
)


class _FoldedLine:
    """The step line that is being read."""

    def __init__(self) -> None:
        self.open = False
        self._step = 0
        self._body = b""
        self._width = 0
        self._fold: int | None = None
        """The width at which this log is folded, once known."""

    def begin(self, step: int, body: bytes, *, width: int) -> None:
        """Start with a line that has a step, as wide as it was printed."""
        self.open, self._step, self._body, self._width = True, step, body, width

    def close(self) -> tuple[int, bytes]:
        """The step and all that follows it."""
        self.open = False
        return self._step, self._body

    def extend(self, line: bytes) -> bool:
        """Add a line if it continues the last one; False where it is something else."""
        if b"pid=" in line or len(line) > 10_000:
            return False
        piece = strip(line).strip()
        head, dash, cut = self._body.rpartition(b" - ")
        for glue in (b"", b" "):
            pairs = (cut + glue + piece).split(b" - ")
            if not (all(map(_PAIR.fullmatch, pairs[:-1])) and _PARTIAL_PAIR.fullmatch(pairs[-1])):
                continue
            # Any output may look like the end of a number: then the width must show that the last line was cut.
            at_fold = self._fold is not None and abs(self._width - self._fold) <= 2
            if len(pairs) == 1 and _PAIR.fullmatch(cut) and not at_fold:
                return False
            self._body = head + dash + b" - ".join(pairs)
            self._fold, self._width = max(self._width, self._fold or 0) if at_fold else self._width, len(line)
            return True
        return False


# The run that a console logs: its config, its last attempt, the base model's validation.

_TOTAL_STEPS = re.compile(rb"Total training steps: (\d{1,12})")
_INITIAL_VALIDATION = b"Initial validation metrics: {"
_PRINTED_PAIR = re.compile(r"'([^']{1,300})': *([^\s,}]{1,40})")
_MAX_PRINTED = 20_000
_CONFIG = b"actor_rollout_ref"
"""Part of the first line of a config, and of every command line."""
_MIN_UPDATES = 3
"""Updates that an attempt needs to replace an earlier, longer one."""
_BATCH = {"problems_per_batch": "Bp", "rollouts_per_problem": "n"}

Pairs = tuple[tuple[str, ...], list[float]]


class _ConsoleRun:
    """Gets the lines of a console in order and fills the rows of its run.

    A console may contain several attempts. Where updates begin again at the first one, what came before is left out
    together with its config. Where they continue from a later one, the run was resumed.
    """

    def __init__(self, sink: Sink, log: str) -> None:
        self._sink = sink
        self._log = log
        self._rows = sink.run()
        self._printed: Rows | None = self._rows
        """Collects a config printed since the last update; None where there is none."""
        self._watch: ConfigWatch | None = ConfigWatch(self._rows)
        self._initial: str | None = None
        """The printed validation of the base model, as far as it has been read."""
        self._validations: list[tuple[int, Pairs]] = []
        """Validations since the last update: of this attempt, or of one that begins."""
        self._is_update_row: dict[tuple[str, ...], bool] = {}
        self._first: int | None = None
        self._last = 0
        self._offset = 0
        """What is added to the logged step numbers."""
        self._attempts = self._left_out = 0
        """Attempts and points that were left out."""
        self._earlier: Rows | None = None
        """The last earlier attempt with at least `_MIN_UPDATES`, or the first one."""
        self._updates = 0
        """Of this attempt."""

    def line(self, line: bytes) -> None:
        """Any line without a step: a config and what follows it up to the next step are read."""
        if self._watch is None:
            if _CONFIG not in line:
                return
            self._printed = Rows() if self._printed is None else self._printed
            self._watch = ConfigWatch(self._printed)
        assert self._printed is not None
        self._watch.feed(line)
        total = _TOTAL_STEPS.search(line) if b"Total training steps" in line else None
        if total and int(total[1]) > 0:
            self._printed.settings.setdefault("update_steps", int(total[1]))
        if _INITIAL_VALIDATION in line:
            self._initial = strip(line).split(_INITIAL_VALIDATION, 1)[1].decode(errors="replace")
        elif self._initial is not None and "}" not in self._initial and len(self._initial) < _MAX_PRINTED:
            self._initial += strip(line).decode(errors="replace")

    def row(self, step: int, pairs: Pairs | None) -> None:
        """A line with a step; None for pairs that cannot be read."""
        self._watch = None
        if pairs is None:
            self._rows.skipped_lines += 1
        elif all(map(is_validation, pairs[0])):
            self._validations.append((step, pairs))  # before training or after it, the step is the number of batches
        else:
            if self._is_update(pairs[0]):
                self._update(step)
            self._add_validations()
            self._rows.add(step + self._offset, *pairs)

    def finish(self) -> None:
        """End of the log. A last attempt that has only begun does not replace a longer one before it."""
        self._add_validations()
        if self._earlier is not None and self._updates < _MIN_UPDATES and self._earlier.count_steps() > _MIN_UPDATES:
            points = self._rows.count_steps()
            self._earlier.notes.append(
                f"{plural(points, 'point')} of a last attempt in the same log left out: it has only begun"
            )
            self._sink.runs[self._earlier.name] = self._earlier

    def _add_validations(self) -> None:
        for step, pairs in self._validations:
            self._rows.add(step, *pairs)
        self._validations = []

    def _is_update(self, names: tuple[str, ...]) -> bool:
        """Whether a row is a training update: it has at least half of the names of the first one."""
        known = self._is_update_row.get(names)
        if known is None:
            first = next(iter(self._is_update_row), names)
            trained = any(name.startswith(("actor/", "critic/")) for name in names)
            known = trained and 2 * len({*first} & {*names}) >= len(first)
            if known or self._is_update_row:
                self._is_update_row[names] = known
        return known

    def _update(self, step: int) -> None:
        """Handle an update: the first one, the next one, or one with an earlier step."""
        if self._first is None:
            self._begin(step)
        elif step <= self._first and (self._last > self._first or self._printed is not None):
            self._restart(step)
        if self._printed is not None and self._printed is not self._rows:
            self._resume(step, self._printed)
        self._updates += 1
        self._last, self._printed, self._initial = step, None, None

    def _begin(self, step: int) -> None:
        """The first update of an attempt; its number shows whether steps count from 0."""
        self._first = step
        self._offset = 0 if step > 0 else 1
        if self._offset:
            self._rows.notes.append(
                "steps count finished batches: one more than the number this version of veRL prints"
            )
            if not self._validations:
                # `pprint` cuts a long text in two.
                text = re.sub(r'"\s*"', "", (self._initial or "").partition("}")[0])
                self._rows.add_mapping(0, dict(_PRINTED_PAIR.findall(text)))

    def _restart(self, step: int) -> None:
        """Leave out all that came before; its config is kept where this attempt prints no batch."""
        later = [validation for validation in self._validations if validation[0] <= step]
        self._validations = [validation for validation in self._validations if validation[0] > step]
        self._add_validations()
        self._validations = later
        before, own = self._rows, Rows() if self._printed is None else self._printed
        if self._earlier is None or self._updates >= _MIN_UPDATES:
            self._earlier = before
        self._updates = 0
        self._attempts += 1
        self._left_out += before.count_steps()
        self._rows = self._sink.restart(before.name)
        self._rows.skipped_lines = before.skipped_lines
        self._rows.config, self._rows.settings = own.config, own.settings
        if len(_batch(own)) < len(_BATCH):
            self._rows.add_config(before.config)
            self._rows.settings = {**before.settings, **own.settings}
        attempts = "an earlier attempt" if self._attempts == 1 else f"{self._attempts} earlier attempts"
        points = plural(self._left_out, "point")
        self._rows.notes.append(f"{points} of {attempts} in the same log left out: the run begins again")
        self._printed = None
        self._begin(step)

    def _resume(self, step: int, printed: Rows) -> None:
        """A config in the middle of a run replaces a missing one, and is compared with an existing one."""
        if not self._rows.config:
            self._rows.add_config(printed.config)
            return
        was, now = _batch(self._rows), _batch(printed)
        both = [key for key in _BATCH if key in was and key in now]
        changed = [f"{_BATCH[key]} = {now[key]} (it was {was[key]})" for key in both if now[key] != was[key]]
        if changed:
            warnings.warn(
                f"{self._log}: the run continues at step {step} with {' and '.join(changed)}; all of its rollouts are "
                "counted with the first values. Split the log there to import each half as a run.",
                RunWarning,
                stacklevel=2,
            )


def _batch(rows: Rows) -> dict[str, Any]:
    settings = read_run_config(rows.config, trainer="verl").settings
    return {key: settings[key] for key in _BATCH if key in settings}


# The `file` logger: `{"step": N, "data": {…}}` per line.


class VerlFile:
    """`trainer.logger=['file']`."""

    name: ClassVar[str] = "verl-file"
    marks: ClassVar[tuple[bytes, ...]] = (b'"data"',)
    looks_for: ClassVar[str] = 'JSON lines {"step": N, "data": {…}}'

    def sniff(self, sample: Sample) -> Match:
        """Count lines with exactly the keys `step` and `data`."""
        rows = sum(1 for row in sample.objects if set(row) == {"step", "data"} and isinstance(row["data"], dict))
        return Match(0.95, rows) if rows else NO_MATCH

    def read(self, log: Log, sink: Sink) -> None:
        """The inner object holds the metrics."""
        read_rows(log, sink, _row)


def _row(value: dict[str, Any]) -> dict[str, Any]:
    data = value.get("data")
    return {**flatten(data), "step": value.get("step")} if isinstance(data, dict) else {}


# Rollout dumps, `{dir}/{step}.jsonl`: one sampled response per line; they give pass rates of each problem.

_IDS = ("problem_id", "id", "index", "task_id", "question_id")  # not `uid`: veRL draws a new one every step
_VALIDATION = re.compile(r"val|eval|test")
_CORRECT = 0.5


def is_rollout_dump(name: str) -> bool:
    """Whether a file is named like a dump, by its step."""
    return re.fullmatch(r"\d+\.jsonl", name) is not None


class VerlRollouts:
    """`trainer.rollout_data_dir` and `trainer.validation_data_dir`; the files of one folder are one run."""

    name: ClassVar[str] = "verl-rollouts"
    marks: ClassVar[tuple[bytes, ...]] = (b'"score"',)
    looks_for: ClassVar[str] = "JSON lines with 'input', 'output' and 'score'"

    def sniff(self, sample: Sample) -> Match:
        """Count responses with a score."""
        rows = sum(1 for row in sample.objects if {"input", "output", "score"} <= set(row))
        return Match(0.95, rows) if rows else NO_MATCH

    def read(self, log: Log, sink: Sink) -> None:
        """Counts for each problem; for each step the mean score and the share of zero-variance groups."""
        rows = sink.run()
        stem = PurePath(log.filename).stem
        groups: dict[int, dict[str, list[float]]] = {}
        for value in objects(log):
            score = _score(value) if value else None
            if value is None or score is None or "input" not in value:
                rows.skipped_lines += 1
                continue
            step = as_number(value.get("step"))
            if step is None:
                step = float(stem) if stem.isdigit() else None
            if step is None or not 0 <= step < 2**53:
                rows.skipped_lines += 1
                continue
            groups.setdefault(int(step), {}).setdefault(_problem(value), []).append(score)
        held_out = _VALIDATION.search(PurePath(log.name).parent.name.lower()) is not None
        if held_out:
            rows.pass_rates_set = "validation"
        for step, scores in groups.items():
            _point(rows, step, scores, held_out)


def _score(row: dict[str, Any]) -> float | None:
    """Whether the response is right: `acc`, which some write as true or false, else `score`."""
    for key in ("acc", "score"):
        value = row.get(key)
        number = float(value) if isinstance(value, bool) else as_number(value)
        if number is not None:
            return number
    return None


def _problem(row: dict[str, Any]) -> str:
    """The problem's id; where the dump has none, a hash of the prompt, which is the same in every step."""
    for key in _IDS:
        if isinstance(row.get(key), str | int) and not isinstance(row[key], bool):
            return str(row[key])
    extra = row.get("extra_info")
    if isinstance(extra, dict) and isinstance(extra.get("index"), str | int):
        return str(extra["index"])
    return hashlib.blake2b(str(row["input"]).encode(errors="replace"), digest_size=8).hexdigest()


def _point(rows: Rows, step: int, scores: dict[str, list[float]], held_out: bool) -> None:
    values = [s for group in scores.values() for s in group]
    same = sum(1 for group in scores.values() if min(group) == max(group))
    sizes = {len(group) for group in scores.values()}
    n = sizes.pop() if len(sizes) == 1 else None
    mean = f"avg@{n or 1}" if held_out else "train/avg"
    point = {mean: sum(values) / len(values), "problems": len(scores), "samples": len(values)}
    if len(values) > len(scores) and not held_out:
        point["zero_variance"] = same / len(scores)
    rows.add_mapping(step, point)
    for problem, group in scores.items():
        rows.pass_rates[step, problem] = [sum(s > _CORRECT for s in group), len(group)]
    if not held_out:
        for key, seen in (("problems_per_batch", len(scores)), ("rollouts_per_problem", n)):
            if rows.settings.setdefault(key, seen) != seen:  # what every dump agrees on is the batch
                rows.settings[key] = None
