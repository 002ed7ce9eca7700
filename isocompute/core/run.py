"""`Run` and `RunSet`: what an engine or a log leaves behind and what the law reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from isocompute.core.errors import InputError
from isocompute.core.run_settings import RunSettings
from isocompute.data.finite import non_finite

__all__ = ["POINT_COLUMNS", "NonFiniteWarning", "Run", "RunSet", "RunSettings", "RunWarning"]

POINT_COLUMNS = ("step", "rollouts", "tokens", "seconds", "gpu_hours")
"""Columns of a point that count compute; every other numeric column is a metric."""


class RunWarning(UserWarning):
    """Something in the data was repaired or left out; the result is still sound."""


class NonFiniteWarning(RunWarning):
    """Values that are NaN or infinite were left out."""


@dataclass(frozen=True)
class Run:
    """Settings and points of one training run; one row a point, in order of step, at most one row a step."""

    name: str
    settings: RunSettings
    points: pl.DataFrame
    rows: pl.Series | None = field(default=None, compare=False, repr=False)
    """Row of each point in the file that it was read from, from 1; null where several rows are one point. None: the
    points are the file's rows, or of no file."""

    def place(self, row: int) -> str:
        """A point in words, as its file has it: its row, or its step where that is several rows."""
        at = row + 1 if self.rows is None else self.rows[row]
        return f"step {self.points['step'][row]}" if at is None else f"row {at}"

    @property
    def metrics(self) -> list[str]:
        """Names of the numeric columns that do not count compute and are not empty.

        A metric that was never a finite number is not empty: whoever asks for it is to hear of it.
        """
        names = [
            name
            for name, kind in self.points.schema.items()
            if name not in POINT_COLUMNS and (kind.is_numeric() or kind == pl.Boolean)
        ]
        empty = {name for name in names if not self.points[name].count()}
        if empty:
            empty -= non_finite(self.points).keys()
        return [name for name in names if name not in empty]


@dataclass(frozen=True)
class RunSet(Sequence[Run]):
    """Runs with distinct names."""

    runs: tuple[Run, ...]
    source: str = "runs"
    value_column: str | None = field(default=None)
    """The column that the user named as the value, where they did."""

    def __post_init__(self) -> None:
        seen: dict[str, Run] = {}
        for run in self.runs:
            if run.name in seen:
                raise InputError(
                    f"{self.source}: two different runs are named '{run.name}'; rename one, or keep one with --where."
                )
            seen[run.name] = run

    def __len__(self) -> int:
        return len(self.runs)

    def __iter__(self) -> Iterator[Run]:
        return iter(self.runs)

    def __getitem__(self, index: Any) -> Any:
        """A run by position or by name; a slice gives a tuple of runs."""
        if isinstance(index, str):
            return self.named(index)
        return self.runs[index]

    def named(self, name: str) -> Run:
        """The run with this name."""
        for run in self.runs:
            if run.name == name:
                return run
        raise InputError(f"{self.source}: there is no run '{name}'; there are {listing([r.name for r in self.runs])}.")


def listing(names: Sequence[str], most: int = 8) -> str:
    """Names for an error message, cut to a readable number."""
    shown = ", ".join(f"'{name}'" for name in names[:most])
    return shown + (f" and {len(names) - most} more" if len(names) > most else "") if names else "none"
