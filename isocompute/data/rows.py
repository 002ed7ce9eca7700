"""Rows as readers find them in logs, and the points that they become: one per step, with our names for the metrics.

Values are kept in flat arrays: a million steps of fifty metrics take 400 MB, not several gigabytes of dictionaries.

Many trainers log NaN for what they did not measure, from the start or between evaluations. So NaN or infinity counts
as a non-finite value only in a metric that was a number each of the first `NUMBERS_BEFORE` times it was logged.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt
import polars as pl

from isocompute.core.arrays import Array, Bools, Ints
from isocompute.core.errors import InputError
from isocompute.core.metric_names import CUMULATIVE, PER_STEP, is_validation, our_names
from isocompute.core.run import POINT_COLUMNS, with_marks
from isocompute.data.folder import abandoned_branch, is_bookkeeping
from isocompute.data.source import Log, Sample, as_float

NUMBERS_BEFORE = 5
_MAX_NAMES = 20_000
_MAX_STEP = 2**53
_BLOCK_VALUES = 1_000_000
"""Values that a block collects before they become columns."""
_KINDS = (0.0, math.nan, math.inf, -math.inf)
"""Kinds of values: the first one represents all finite values, the others are non-finite."""
_COMPARED = 16
"""Rows of one step that are compared with each other; trainers write a step in at most about eight."""
_Piece = tuple[npt.NDArray[np.int64], Array]
_Names = frozenset[str]


class _Block:
    """Rows with the same names, kept as they come and turned into columns many at a time."""

    __slots__ = ("_rows", "_values", "names")

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self._rows = array("q")
        self._values = array("d")

    def add(self, row: int, values: Sequence[float]) -> bool:
        """Add a row; True where the block is full."""
        self._rows.append(row)
        self._values.extend(values)
        return len(self._values) >= _BLOCK_VALUES

    def flush(self, columns: dict[str, list[_Piece]]) -> None:
        """Move the rows into the columns."""
        if not self._rows:
            return
        rows = np.array(self._rows, dtype=np.int64)
        if rows[-1] - rows[0] == len(rows) - 1:
            rows = rows[:1]  # consecutive rows: the first one is enough
        values_RC = np.array(self._values, dtype=np.float64).reshape(-1, len(self.names))
        for at, name in enumerate(self.names):
            columns[name].append((rows, values_RC[:, at].copy()))  # a view would keep all of them alive
        self._rows, self._values = array("q"), array("d")


def _dense(pieces: list[_Piece], count: int) -> tuple[Array, npt.NDArray[np.int8]]:
    """A column's finite values, NaN where a row has none; and the kind of each value, an index of `_KINDS`."""
    out, kinds = np.full(count, np.nan), np.zeros(count, dtype=np.int8)
    for rows, values in pieces:
        at = rows if len(rows) == len(values) else slice(rows[0], rows[0] + len(values))
        out[at] = values
        kinds[at] = np.isnan(values) + 2 * np.isposinf(values) + 3 * np.isneginf(values)
    out[kinds > 0] = np.nan
    return out, kinds


class Rows:
    """One run while it is read."""

    def __init__(self, name: str | None = None) -> None:
        self.name = name
        self.config: dict[str, Any] = {}
        """The run's settings in the trainer's own keys, flat with dots."""
        self.settings: dict[str, Any] = {}
        """Settings in our names that the log gives directly."""
        self.notes: list[str] = []
        self.skipped_lines = 0
        self.has_steps = True
        """False where the source has no step and rows are numbered as they come."""
        self.pass_rates: dict[tuple[int, str], list[int]] = {}
        """(step, problem) → [correct, samples], from rollout dumps."""
        self.pass_rates_set = "train"
        """Whether these problems are trained on (`train`) or held out (`validation`)."""
        self._steps = array("q")
        self._layouts = array("l")
        self._layout_ids: dict[tuple[tuple[str, ...], tuple[str, ...]], int] = {}
        """Numbers of the distinct layouts: a row's names, and those whose values are not NaN."""
        self._block_ids: dict[tuple[str, ...], int] = {}
        self._blocks: list[_Block] = []
        self._columns: dict[str, list[_Piece]] = {}

    def __len__(self) -> int:
        return len(self._steps)

    def count_steps(self) -> int:
        """The number of distinct steps."""
        return len(set(self._steps))

    def add(self, step: float, names: tuple[str, ...], values: Sequence[float]) -> None:
        """Add one row."""
        if not 0 <= step <= _MAX_STEP or not names:
            self.skipped_lines += 1
            return
        block = self._block_ids.get(names)
        if block is None:
            block = self._block_ids[names] = len(self._block_ids)
            self._blocks.append(_Block(names))
            for name in names:
                self._columns.setdefault(name, [])
            if len(self._columns) > _MAX_NAMES:
                raise InputError(f"more than {_MAX_NAMES} different metric names: this is not a training log.")
        row = len(self._steps)
        self._steps.append(int(step))
        self._layouts.append(self._layout_ids.setdefault((names, self._numbers(names, values)), len(self._layout_ids)))
        if self._blocks[block].add(row, values):
            self._blocks[block].flush(self._columns)

    def _numbers(self, names: tuple[str, ...], values: Sequence[float]) -> tuple[str, ...]:
        """The names whose values are not NaN."""
        if not math.isnan(sum(values)) or len(self._layout_ids) >= _MAX_NAMES:
            return names
        return tuple(name for name, value in zip(names, values, strict=True) if not math.isnan(value))

    def add_mapping(self, step: float, values: Mapping[str, Any]) -> bool:
        """Add the numbers of a row, NaN and infinity among them; False where there is none."""
        numbers = {str(k): n for k, v in values.items() if (n := as_float(v)) is not None}
        if not numbers:
            return False
        self.add(step, tuple(numbers), list(numbers.values()))
        return True

    def add_config(self, config: Mapping[str, Any]) -> None:
        """Add settings of the run in the trainer's keys; earlier ones take precedence."""
        for key, value in config.items():
            self.config.setdefault(key, value)

    def renumber(self, steps: Sequence[int]) -> None:
        """Set the rows' steps, where a format gives them only at the end."""
        self._steps = array("q", steps)

    def points(self, *, samples: int = 1) -> tuple[pl.DataFrame, int]:
        """The points in our names, and how many of them a later line replaced. This consumes the rows.

        `samples` is the number of samples per problem in an evaluation whose metrics' names do not give it.
        A step without a finite value is a point only if one of its metrics has just become non-finite.
        """
        count = len(self._steps)
        if not count:
            return pl.DataFrame(), 0
        steps = np.frombuffer(self._steps, dtype=np.int64)
        order = None if np.all(np.diff(steps) > 0) else np.argsort(steps, kind="stable")
        sorted_steps = steps if order is None else steps[order]
        starts = np.flatnonzero(np.diff(sorted_steps, prepend=sorted_steps[0] - 1))
        dropped, replaced = self._replaced(order, starts, count)
        abandoned = self._drop_abandoned(steps, order, dropped)
        data, kinds_of = self._merged_columns(order, starts, dropped, samples)
        point_steps = sorted_steps[starts]
        marks = {name: mark for name, kinds in kinds_of.items() if (mark := _non_finite(data[name], kinds)).count()}
        kept = np.zeros(len(starts), dtype=np.bool_)
        for values in data.values():
            kept |= ~np.isnan(values)
        for mark in marks.values():
            kept |= mark.is_not_null().to_numpy()
        if not kept.all():
            self.skipped_lines += int((~kept).sum()) - abandoned
            point_steps = point_steps[kept]
            data = {name: values[kept] for name, values in data.items()}
            marks = {name: mark.filter(pl.Series(kept)) for name, mark in marks.items()}
        counters = _counters(data, point_steps)
        table = {"step": pl.Series("step", point_steps, dtype=pl.Int64)}
        table |= {name: pl.Series(name, data.pop(name), nan_to_null=True) for name in list(data)}
        frame = pl.DataFrame([*table.values()])
        frame = frame.with_columns(pl.Series(n, v, nan_to_null=True) for n, v in counters.items() if n not in table)
        frame = _ordered(frame if self.has_steps else frame.drop("step"))
        return with_marks(frame, pl.DataFrame(marks)) if marks else frame, replaced

    def _merged_columns(
        self, order: Any, starts: Any, dropped: Bools, samples: int
    ) -> tuple[dict[str, Array], dict[str, npt.NDArray[np.int8]]]:
        """A value per step for each metric, by our name; and the kinds of values of metrics with non-finite ones."""
        count = len(self._steps)
        for block in self._blocks:
            block.flush(self._columns)
        self._refuse_sparse(count)
        for name in [n for n, pieces in self._columns.items() if not any(np.isfinite(v).any() for _, v in pieces)]:
            del self._columns[name]  # never a number: not measured
        names = our_names(self._columns, samples=samples)
        data: dict[str, Array] = {}
        others: dict[str, Array] = {}
        kinds_of: dict[str, npt.NDArray[np.int8]] = {}
        for name in list(self._columns):
            values, kinds = _dense(self._columns.pop(name), count)
            if order is not None:
                values = _last_of_each(values[order], starts, dropped)
                kinds = np.maximum.reduceat(np.where(dropped, 0, kinds[order]), starts)
            if name in names.alternatives:
                others[name] = values
                continue
            ours = names.ours.get(name, name)
            if ours in data:
                ours = name
            data[ours] = values
            if kinds.any():
                kinds_of[ours] = kinds
        for name, values in others.items():
            first = data[names.alternatives[name]]
            if np.any(~np.isnan(first) & ~np.isnan(values)):
                data[name] = values  # both in one row: keep the other one too
            data[names.alternatives[name]] = np.where(np.isnan(first), values, first)
        for metric, subsets in names.means.items():
            data.setdefault(metric, np.mean([data[subset] for subset in subsets], axis=0))
        _derive_zero_variance(data)
        return data, kinds_of

    def _drop_abandoned(self, steps: Ints, order: Any, dropped: Bools) -> int:
        """Drop the rows of an abandoned branch, with a note; the number of their steps."""
        branch = None if order is None else abandoned_branch(steps, self._of_training())
        if branch is None:
            return 0
        dropped |= branch.rows_R[order]
        self.notes.append(branch.note)
        return branch.steps

    def _of_training(self) -> Bools:
        """Whether each row has the most frequent metric, on training problems if there is one."""
        layouts = np.frombuffer(self._layouts, dtype=np.dtype("l"))
        times = np.bincount(layouts, minlength=len(self._layout_ids))
        counts: dict[str, int] = {}
        for (_, numbers), rows in zip(self._layout_ids, times.tolist(), strict=True):
            for name in numbers:
                counts[name] = counts.get(name, 0) + rows
        measured = [name for name in counts if not is_bookkeeping(name)] or list(counts)
        trained = [name for name in measured if not is_validation(name)] or measured
        most = max(trained, key=counts.__getitem__, default=None)
        having = np.array([most in numbers for _, numbers in self._layout_ids], dtype=np.bool_)
        return having[layouts]

    def _refuse_sparse(self, count: int) -> None:
        """Refuse rows whose names are all different: their table would not fit in memory."""
        logged = sum(len(values) for pieces in self._columns.values() for _, values in pieces)
        if len(self._columns) * count > 1_000_000 + 50 * logged:  # real logs have two or three cells per value
            raise InputError(
                f"{len(self._columns)} metric names, hardly one of them in more than a few of {count} rows."
            )

    def _replaced(self, order: Any, starts: Any, count: int) -> tuple[Any, int]:
        """Rows that a later row of their step replaces, and the number of steps that were logged again.

        Trainers write a step in several rows with different keys, so a repeated step alone means nothing. A later row
        that shares half of the larger row's keys replaces the earlier row. A row that shares half of the smaller row's
        keys (validation repeated after a resume) counts as logged again, and the other keys stay. Epochs and clocks,
        which every row of a step has, are ignored. So is NaN if each of two rows has a number that the other lacks.
        """
        dropped = np.zeros(count, dtype=bool)
        if order is None:
            return dropped, 0
        layouts = []
        for names, numbers in self._layout_ids:
            measured = frozenset(name for name in names if not is_bookkeeping(name)) or frozenset(names)
            layouts.append((measured, measured & frozenset(numbers)))
        shares: dict[tuple[int, int], tuple[bool, bool]] = {}
        ends = np.append(starts[1:], count)
        again = 0
        for start, end in zip(starts[ends - starts > 1].tolist(), ends[ends - starts > 1].tolist(), strict=True):
            kept: list[tuple[int, int]] = []
            repeated = False
            for place in range(start, end):
                layout = self._layouts[order[place]]
                for earlier, other in kept[-_COMPARED:]:
                    if (other, layout) not in shares:
                        shares[other, layout] = _shared(layouts[other], layouts[layout])
                    of_larger, of_smaller = shares[other, layout]
                    dropped[earlier] |= of_larger
                    repeated |= of_smaller
                kept = [(p, o) for p, o in kept[-_COMPARED:] if not dropped[p]]
                kept.append((place, layout))
            again += repeated
        return dropped, again


class Sink:
    """What a reader fills: the runs of one log by name; the name is None if the log does not give it."""

    def __init__(self) -> None:
        self.runs: dict[str | None, Rows] = {}

    def run(self, name: str | None = None) -> Rows:
        """The run of this name, created if it is new."""
        if name not in self.runs:
            if len(self.runs) >= _MAX_NAMES:
                raise InputError(f"more than {_MAX_NAMES} different run names: is that column the run's name?")
            self.runs[name] = Rows(name)
        return self.runs[name]

    def restart(self, name: str | None) -> Rows:
        """Start the run of this name over."""
        self.runs[name] = Rows(name)
        return self.runs[name]


def _shared(first: tuple[_Names, _Names], second: tuple[_Names, _Names]) -> tuple[bool, bool]:
    """Whether two rows share half of the larger, and of the smaller one; each is (names, those that are not NaN)."""
    (names, numbers), (later_names, later_numbers) = first, second
    disjoint = numbers - later_numbers and later_numbers - numbers
    a, b = (numbers, later_numbers) if disjoint else (names, later_names)
    common = 2 * len(a & b)
    return common >= max(len(a), len(b)), common >= min(len(a), len(b))


def _last_of_each(values: Array, starts: Any, dropped: Any) -> Array:
    """The last value of each step in the rows that were not dropped."""
    valid = ~np.isnan(values) & ~dropped
    last = np.maximum.reduceat(np.where(valid, np.arange(len(values)), -1), starts)
    return np.where(last >= starts, values[last], np.nan)


def _non_finite(values_T: Array, kinds_T: npt.NDArray[np.int8]) -> pl.Series:
    """The non-finite values of a metric that was finite before; null elsewhere."""
    rows = np.flatnonzero((kinds_T > 0) & np.isnan(values_T))
    marks = pl.Series([None], dtype=pl.Float64).new_from_index(0, len(values_T))
    if not len(rows) or np.isfinite(values_T[: rows[0]]).sum() < NUMBERS_BEFORE:
        return marks
    return marks.scatter(rows, np.array(_KINDS)[kinds_T[rows]])


def _ordered(frame: pl.DataFrame) -> pl.DataFrame:
    """Order columns: compute, metrics on held-out problems, other metrics; empty columns are dropped."""
    first = [c for c in POINT_COLUMNS if c in frame.columns]
    kept = [c for c in frame.columns if c not in first and frame[c].null_count() < frame.height]
    return frame.select(first + sorted(kept, key=lambda name: not is_validation(name)))


def _derive_zero_variance(data: dict[str, Array]) -> None:
    """The share of zero-variance groups, where a trainer logs its complement or its summands."""
    if "zero_variance" in data:
        return
    mixed = data.get("env/all/by_group/frac_mixed")
    if mixed is not None:
        data["zero_variance"] = 1 - mixed
        return
    for name, nothing in data.items():
        everything = data.get(name.removesuffix("none") + "all")
        if name.startswith("train/") and name.endswith("/solved_none") and everything is not None:
            data["zero_variance"] = nothing + everything
            return
    passed = data.get("dynamic_filtering_pass_rate")
    if passed is not None and not np.any(passed > 100):  # else rollouts over problems (data/counters.py)
        data["zero_variance"] = 1 - passed / 100


def _counters(data: Mapping[str, Array], steps: Any) -> dict[str, Array]:
    """Cumulative seconds and tokens: as logged, or as a sum if no step is missing."""
    out: dict[str, Array] = {}
    for ours, names in CUMULATIVE.items():
        found = next((data[name] for name in names if name in data), None)
        if found is not None and np.all(np.diff(found[~np.isnan(found)]) >= 0):
            out[ours] = found
    whole = len(steps) > 1 and steps[0] <= 1 and steps[-1] - steps[0] == len(steps) - 1
    for ours, names in PER_STEP.items():
        found = next((data[name] for name in names if name in data), None)
        # The base model's validation (step 0) has no training step to be timed.
        if whole and ours not in out and found is not None and not np.isnan(found[1:]).any() and np.nanmin(found) >= 0:
            out[ours] = np.cumsum(np.nan_to_num(found))
            made = data.get("rollouts")
            after = made is not None and made[0] > 0
            if steps[0] == 0 and not after and not np.isnan(found[0]):  # a row is logged before its own batch
                out[ours] -= found
    return out


# A reader of one log format: judges samples, and reads a log into a sink.


@dataclass(frozen=True)
class Match:
    """How well a sample fits a format."""

    score: float
    """0: no match; up to .7: the file can be read as this format; from .8 on: it is this format and no other."""
    rows: int = 0
    """Rows of metrics seen in the sample, to weigh two formats in one file."""
    why: str = ""
    """What is missing, if the score is low."""
    other: bool = False
    """True for a file that is certainly not a log; `why` says what it is."""

    @property
    def clear(self) -> bool:
        """Whether it can be no other format."""
        return self.score >= 0.8


NO_MATCH = Match(0.0)


class Reader(Protocol):
    """One format."""

    name: ClassVar[str]
    """For `--format` and the report."""
    marks: ClassVar[tuple[bytes, ...]]
    """Every log of the format contains one of these; empty if there are none."""
    looks_for: ClassVar[str]
    """What its files contain, for the error about a file that no reader knows."""

    def sniff(self, sample: Sample) -> Match:
        """Judge a sample: cheap, and never raises."""
        ...

    def read(self, log: Log, sink: Sink) -> None:
        """Put every row of the log into the sink."""
        ...
