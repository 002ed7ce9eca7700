"""Rows as they are read, and the points they make: one a step, the later line standing, in our names.

Values are kept in flat arrays: a million steps of fifty metrics are 400 MB, not the several gigabytes that as many
dictionaries would take.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from isocompute.core.arrays import Array, Bools, Ints
from isocompute.core.errors import InputError
from isocompute.core.run import POINT_COLUMNS
from isocompute.data.bookkeeping import is_bookkeeping
from isocompute.data.branches import left_behind
from isocompute.data.finite import with_marks
from isocompute.data.logs.literals import as_float
from isocompute.data.logs.measured import no_longer_numbers
from isocompute.data.logs.names import CUMULATIVE, PER_STEP, is_validation, our_names

__all__ = ["Rows", "Sink"]

_MOST_NAMES = 20_000
_MOST_STEP = 2**53
_FEW_CELLS = 1_000_000
_SPARSE = 50
"""Cells of the table for each value that was logged; real logs have two or three."""
_HELD = 1_000_000
"""Values that a block keeps before they become columns."""
_ODD = (0.0, math.nan, math.inf, -math.inf)
"""What may stand in the place of a finite value."""
_Piece = tuple[npt.NDArray[np.int64], Array]
_Names = frozenset[str]
_COMPARED = 16
"""Rows of one step that are compared with each other; trainers write a step in at most about eight."""


class _Block:
    """Rows with the same names, kept as they come and turned into columns some thousand at a time."""

    __slots__ = ("_rows", "_values", "names")

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self._rows = array("q")
        self._values = array("d")

    def add(self, row: int, values: Sequence[float]) -> bool:
        """Take in a row; True where it is time to hand the rows over."""
        self._rows.append(row)
        self._values.extend(values)
        return len(self._values) >= _HELD

    def flush(self, columns: dict[str, list[_Piece]]) -> None:
        """Hand the rows over to the columns."""
        if not self._rows:
            return
        rows = np.array(self._rows, dtype=np.int64)
        if rows[-1] - rows[0] == len(rows) - 1:
            rows = rows[:1]  # neighbours: the first one tells the others
        values_RC = np.array(self._values, dtype=np.float64).reshape(-1, len(self.names))
        for at, name in enumerate(self.names):
            columns[name].append((rows, values_RC[:, at].copy()))  # a view would keep all of them alive
        self._rows, self._values = array("q"), array("d")


def _dense(pieces: list[_Piece], count: int) -> tuple[Array, npt.NDArray[np.int8]]:
    """A column's finite values, NaN where a row has none; and the place in `_ODD` of what it has instead, or 0."""
    out, odd = np.full(count, np.nan), np.zeros(count, dtype=np.int8)
    for rows, values in pieces:
        at = rows if len(rows) == len(values) else slice(rows[0], rows[0] + len(values))
        out[at] = values
        odd[at] = np.isnan(values) + 2 * np.isposinf(values) + 3 * np.isneginf(values)
    out[odd > 0] = np.nan
    return out, odd


class Rows:
    """One run while it is read."""

    def __init__(self, name: str | None = None) -> None:
        self.name = name
        self.config: dict[str, Any] = {}
        """What the log says of the run's settings, as the trainer spells it, flat with dots."""
        self.settings: dict[str, Any] = {}
        """Settings that the reader knows in our own names."""
        self.notes: list[str] = []
        self.skipped_lines = 0
        self.has_steps = True
        """False where the source has no step and rows are numbered as they come."""
        self.pass_rates: dict[tuple[int, str], list[int]] = {}
        """(step, problem) → [correct, samples], from rollout dumps."""
        self.pass_rates_set = "train"
        """The set these problems are of."""
        self._steps = array("q")
        self._sayings = array("l")
        self._said: dict[tuple[tuple[str, ...], tuple[str, ...]], int] = {}
        """Names of a row, and those of them that are not NaN."""
        self._known: dict[tuple[str, ...], int] = {}
        self._blocks: list[_Block] = []
        self._columns: dict[str, list[_Piece]] = {}

    def __len__(self) -> int:
        return len(self._steps)

    @property
    def last_step(self) -> int | None:
        """The step of the last row."""
        return self._steps[-1] if self._steps else None

    def count_steps(self) -> int:
        """How many different steps there are."""
        return len(set(self._steps))

    def add(self, step: float, names: tuple[str, ...], values: Sequence[float]) -> None:
        """Take in one row."""
        if not 0 <= step <= _MOST_STEP or not names:
            self.skipped_lines += 1
            return
        layout = self._known.get(names)
        if layout is None:
            layout = self._known[names] = len(self._known)
            self._blocks.append(_Block(names))
            for name in names:
                self._columns.setdefault(name, [])
            if len(self._columns) > _MOST_NAMES:
                raise InputError(f"more than {_MOST_NAMES} different metric names: this is no training log.")
        row = len(self._steps)
        self._steps.append(int(step))
        self._sayings.append(self._said.setdefault((names, self._numbers(names, values)), len(self._said)))
        if self._blocks[layout].add(row, values):
            self._blocks[layout].flush(self._columns)

    def _numbers(self, names: tuple[str, ...], values: Sequence[float]) -> tuple[str, ...]:
        """The names of what is not NaN."""
        if not math.isnan(sum(values)) or len(self._said) >= _MOST_NAMES:
            return names
        return tuple(name for name, value in zip(names, values, strict=True) if not math.isnan(value))

    def add_mapping(self, step: float, values: Mapping[str, Any]) -> bool:
        """Take in the numbers of a row, NaN and infinity among them; False where there is none."""
        numbers = {str(k): n for k, v in values.items() if (n := as_float(v)) is not None}
        if not numbers:
            return False
        self.add(step, tuple(numbers), list(numbers.values()))
        return True

    def found(self, config: Mapping[str, Any]) -> None:
        """Take in configuration; what was found first stands."""
        for key, value in config.items():
            self.config.setdefault(key, value)

    def renumber(self, steps: Sequence[int]) -> None:
        """Give the rows their steps, where a format only shows them in the end."""
        self._steps = array("q", steps)

    def points(self, *, samples: int = 1) -> tuple[pl.DataFrame, int]:
        """The points in our names, and how many of them a later line replaced. The rows are used up by it.

        `samples` is how many an evaluation takes of a problem where the names of its metrics do not say it.
        A step at which nothing is finite is a point where that is news, and else counts as skipped.
        """
        count = len(self._steps)
        if not count:
            return pl.DataFrame(), 0
        steps = np.frombuffer(self._steps, dtype=np.int64)
        order = None if np.all(np.diff(steps) > 0) else np.argsort(steps, kind="stable")
        sorted_steps = steps if order is None else steps[order]
        starts = np.flatnonzero(np.diff(sorted_steps, prepend=sorted_steps[0] - 1))
        dead, replaced = self._replaced(order, starts, count)
        left = self._left(steps, order, dead)
        for block in self._blocks:
            block.flush(self._columns)
        self._refuse_chaos(count)
        for name in [n for n, pieces in self._columns.items() if not any(np.isfinite(v).any() for _, v in pieces)]:
            del self._columns[name]  # never a number: not measured, and in nobody's way to a name of ours
        names = our_names(self._columns, samples=samples)
        data: dict[str, Array] = {}
        again: dict[str, Array] = {}
        odd: dict[str, npt.NDArray[np.int8]] = {}
        for name in list(self._columns):
            values, kinds = _dense(self._columns.pop(name), count)
            if order is not None:
                values = _last_of_each(values[order], starts, dead)
                kinds = np.maximum.reduceat(np.where(dead, 0, kinds[order]), starts)
            if name in names.again:
                again[name] = values
                continue
            ours = names.ours.get(name, name)
            if ours in data:
                ours = name
            data[ours] = values
            if kinds.any():
                odd[ours] = kinds
        for name, values in again.items():
            standing = data[names.again[name]]
            if np.any(~np.isnan(standing) & ~np.isnan(values)):
                data[name] = values  # both in one row: the other one stays to be looked at
            data[names.again[name]] = np.where(np.isnan(standing), values, standing)
        for metric, parts in names.means.items():
            data.setdefault(metric, np.mean([data[part] for part in parts], axis=0))
        _derive(data)
        point_steps = sorted_steps[starts]
        marks = {name: told for name, kinds in odd.items() if (told := _news(data[name], kinds)).count()}
        said = _said(data, marks, len(starts))
        if not said.all():
            self.skipped_lines += int((~said).sum()) - left
            point_steps = point_steps[said]
            data = {name: values[said] for name, values in data.items()}
            marks = {name: told.filter(pl.Series(said)) for name, told in marks.items()}
        counters = _counters(data, point_steps)
        table = {"step": pl.Series("step", point_steps, dtype=pl.Int64)}
        table |= {name: pl.Series(name, data.pop(name), nan_to_null=True) for name in list(data)}
        frame = pl.DataFrame([*table.values()])
        frame = frame.with_columns(pl.Series(n, v, nan_to_null=True) for n, v in counters.items() if n not in table)
        frame = _ordered(frame if self.has_steps else frame.drop("step"))
        return with_marks(frame, pl.DataFrame(marks)) if marks else frame, replaced

    def _left(self, steps: Ints, order: Any, dead: Bools) -> int:
        """Mark the rows beyond the end of a resumed run as dead too, with a note; the number of their steps."""
        left = None if order is None else left_behind(steps, self._of_training())
        if left is None:
            return 0
        dead |= left.rows_R[order]
        self.notes.append(left.note)
        return left.steps

    def _of_training(self) -> Bools:
        """The rows with the metric that most rows have, one on problems that are trained on if there is any."""
        sayings = np.frombuffer(self._sayings, dtype=np.dtype("l"))
        times = np.bincount(sayings, minlength=len(self._said))
        counts: dict[str, int] = {}
        for (_, numbers), rows in zip(self._said, times.tolist(), strict=True):
            for name in numbers:
                counts[name] = counts.get(name, 0) + rows
        measured = [name for name in counts if not is_bookkeeping(name)] or list(counts)
        trained = [name for name in measured if not is_validation(name)] or measured
        most = max(trained, key=counts.__getitem__, default=None)
        having = np.array([most in numbers for _, numbers in self._said], dtype=np.bool_)
        return having[sayings]

    def _refuse_chaos(self, count: int) -> None:
        """Rows whose names are all different make a table of holes that no memory holds."""
        given = sum(len(values) for pieces in self._columns.values() for _, values in pieces)
        if len(self._columns) * count > _FEW_CELLS + _SPARSE * given:
            raise InputError(
                f"{len(self._columns)} metric names, hardly one of them in more than a few of {count} rows."
            )

    def _replaced(self, order: Any, starts: Any, count: int) -> tuple[Any, int]:
        """Rows that a later row of their step stands for, and the number of such steps.

        Trainers write a step in several rows with different keys, so a repeated step alone is no sign. A row that
        shares half of the larger one's keys says the same thing again: the earlier one goes. One that shares half of
        the smaller one's (validation repeated after a resume) counts as replaced, and the other keys stay. Epoch and
        clocks, which stand in every row of a step, are no such keys. Nor are those that are NaN, where each of two rows
        has a number that the other has not: NaN is then what the other row was to say.
        """
        dead = np.zeros(count, dtype=bool)
        if order is None:
            return dead, 0
        sayings = [(measured := _measured(names), measured & frozenset(numbers)) for names, numbers in self._said]
        shares: dict[tuple[int, int], tuple[bool, bool]] = {}
        ends = np.append(starts[1:], count)
        again = 0
        for start, end in zip(starts[ends - starts > 1].tolist(), ends[ends - starts > 1].tolist(), strict=True):
            live: list[tuple[int, int]] = []
            repeated = False
            for place in range(start, end):
                saying = self._sayings[order[place]]
                for earlier, other in live[-_COMPARED:]:
                    pair = (other, saying)
                    if pair not in shares:
                        shares[pair] = _shared(sayings[other], sayings[saying])
                    most, some = shares[pair]
                    dead[earlier] |= most
                    repeated |= some
                live = [(p, o) for p, o in live[-_COMPARED:] if not dead[p]]
                live.append((place, saying))
            again += repeated
        return dead, again


class Sink:
    """The runs of one log."""

    def __init__(self) -> None:
        self.runs: dict[str | None, Rows] = {}

    def run(self, name: str | None = None) -> Rows:
        """The run of this name, begun if it is new; None where the log does not name it."""
        if name not in self.runs:
            if len(self.runs) >= _MOST_NAMES:
                raise InputError(f"more than {_MOST_NAMES} different run names: is that column the run's name?")
            self.runs[name] = Rows(name)
        return self.runs[name]

    def begin_again(self, name: str | None) -> Rows:
        """The run of this name without anything that was read of it."""
        self.runs[name] = Rows(name)
        return self.runs[name]


def _measured(names: tuple[str, ...]) -> frozenset[str]:
    """What a row is compared by: its names without bookkeeping, all of them where there is nothing else."""
    return frozenset(name for name in names if not is_bookkeeping(name)) or frozenset(names)


def _shared(first: tuple[_Names, _Names], second: tuple[_Names, _Names]) -> tuple[bool, bool]:
    """Whether two rows (names, and those that are not NaN) share half of the larger, and of the smaller one."""
    (names, numbers), (later_names, later_numbers) = first, second
    apart = numbers - later_numbers and later_numbers - numbers
    a, b = (numbers, later_numbers) if apart else (names, later_names)
    common = 2 * len(a & b)
    return common >= max(len(a), len(b)), common >= min(len(a), len(b))


def _last_of_each(values: Array, starts: Any, dead: Any) -> Array:
    """The last value of each step that is there and not replaced."""
    valid = ~np.isnan(values) & ~dead
    last = np.maximum.reduceat(np.where(valid, np.arange(len(values)), -1), starts)
    return np.where(last >= starts, values[last], np.nan)


def _news(values_T: Array, kinds_T: npt.NDArray[np.int8]) -> pl.Series:
    """What stands where a metric was a number before and is none any more; null elsewhere."""
    rows = no_longer_numbers(values_T, np.flatnonzero((kinds_T > 0) & np.isnan(values_T)))
    told = pl.Series([None], dtype=pl.Float64).new_from_index(0, len(values_T))
    return told.scatter(rows, np.array(_ODD)[kinds_T[rows]]) if len(rows) else told


def _said(data: Mapping[str, Array], marks: Mapping[str, pl.Series], count: int) -> npt.NDArray[np.bool_]:
    """Which points have a finite value, or news of one that is none any more."""
    said = np.zeros(count, dtype=np.bool_)
    for values in data.values():
        said |= ~np.isnan(values)
    for told in marks.values():
        said |= told.is_not_null().to_numpy()
    return said


def _ordered(frame: pl.DataFrame) -> pl.DataFrame:
    """Compute first, then metrics on held-out problems, then the others, without empty ones."""
    first = [c for c in POINT_COLUMNS if c in frame.columns]
    kept = [c for c in frame.columns if c not in first and frame[c].null_count() < frame.height]
    return frame.select(first + sorted(kept, key=lambda name: not is_validation(name)))


def _derive(data: dict[str, Array]) -> None:
    """Zero-variance groups where a trainer logs their complement or their parts."""
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
    if passed is not None and not np.any(passed > 100):  # else rollouts over problems (logs/sampled.py)
        data["zero_variance"] = 1 - passed / 100


def _counters(data: Mapping[str, Array], steps: Any) -> dict[str, Array]:
    """Compute counted in seconds and tokens: counters as logged, or sums where no step is missing."""
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
            if steps[0] == 0 and not after and not np.isnan(found[0]):  # a row stands before its own batch
                out[ours] -= found
    return out
