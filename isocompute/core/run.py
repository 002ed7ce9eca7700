"""`Run` and `RunSet`: what an engine or a trainer's log leaves behind and what the law reads.

Engines also run on machines without polars, so this module needs it only where a run's points are looked at.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from isocompute.core.errors import InputError
from isocompute.core.recipe import current_names

if TYPE_CHECKING:
    import polars as pl

__all__ = [
    "LARGEST",
    "NON_FINITE",
    "POINT_COLUMNS",
    "NonFiniteWarning",
    "Run",
    "RunSet",
    "RunSettings",
    "RunWarning",
    "listing",
    "marks_in",
]

POINT_COLUMNS = ("step", "rollouts", "tokens", "seconds", "gpu_hours")
"""Columns of a point that count compute; every other numeric column is a metric."""
NON_FINITE = "non_finite"
"""The column that names metrics which were NaN or infinite at a point, as a JSON object: `{"loss": "nan"}`."""
LARGEST = 1e100
"""Values beyond it count as infinite: their squares are."""
_NOT_COMPARED = {
    *("problems_per_batch", "rollouts_per_problem", "update_steps", "seed", "gpus", "versions"),
    *("device", "micro_batch", "sample_batch", "threads", "together", "workers"),
    *("host", "hostname", "user", "pid", "date", "time", "timestamp", "created", "started", "finished"),
}
"""Keys of `run.json` for a run's allocation and seed, and for where, when and how fast it ran."""


class RunWarning(UserWarning):
    """Something in the data was repaired or left out; the result is still sound."""


class NonFiniteWarning(RunWarning):
    """Values that are NaN or infinite were left out."""


class RunSettings(BaseModel):
    """`run.json`: how a run was made. Unknown values are None; further keys are kept as they are."""

    model_config = ConfigDict(extra="allow")

    problems_per_batch: int | None = Field(default=None, ge=1, description="Bp: problems in a batch")
    rollouts_per_problem: int | None = Field(default=None, ge=1, description="n: rollouts of each problem")
    update_steps: int | None = Field(default=None, ge=1, description="M: updates planned")
    seed: int | None = Field(default=None, description="seed of the run; runs that differ only in it are repetitions")
    gpus: int | None = Field(default=None, ge=1, description="accelerators, to count GPU-hours from seconds")
    engine: str | None = Field(default=None, description="what made the run: sim, lm, or a trainer's name")
    model: str | None = Field(default=None, description="base model")
    problems: str | None = Field(default=None, description="problem set")
    recipe: dict[str, Any] | None = Field(default=None, description="the recipe's fields")
    versions: dict[str, str] | None = Field(default=None, description="software that made the run")

    @property
    def compared(self) -> dict[str, Any]:
        """All settings but allocation, seed and circumstances: runs that differ in nothing else are repetitions."""
        return self.model_dump(exclude=_NOT_COMPARED, exclude_none=True)

    def filled(self, **defaults: int | None) -> RunSettings:
        """The settings with these values where they are None."""
        missing = {k: v for k, v in defaults.items() if v is not None and getattr(self, k) is None}
        return self.model_copy(update=missing) if missing else self

    @field_validator("recipe", mode="before")
    @classmethod
    def _current_names(cls, recipe: Any) -> Any:
        """Runs of version 0.1 have older names of some fields."""
        return current_names(recipe) if isinstance(recipe, Mapping) else recipe


@dataclass(frozen=True)
class Run:
    """Settings and points of one training run; one row per point, in order of step, at most one row per step."""

    name: str
    settings: RunSettings
    points: pl.DataFrame
    rows: pl.Series | None = field(default=None, compare=False, repr=False)
    """Row of each point in its file, from 1; null where several rows are one point. None: row i is point i."""

    def place(self, row: int) -> str:
        """Where a point stands in its file: its row, or its step where several rows are one point."""
        at = row + 1 if self.rows is None else self.rows[row]
        return f"step {self.points['step'][row]}" if at is None else f"row {at}"

    @property
    def metrics(self) -> list[str]:
        """Names of the numeric columns that do not count compute and are not empty.

        A metric that was never finite is not empty: asking for it should say so.
        """
        import polars as pl

        names = [
            name
            for name, kind in self.points.schema.items()
            if name not in POINT_COLUMNS and (kind.is_numeric() or kind == pl.Boolean)
        ]
        empty = {name for name in names if not self.points[name].count()}
        if empty and self.points.schema.get(NON_FINITE) == pl.String:
            for cell in self.points[NON_FINITE].drop_nulls().unique():
                empty -= marks_in(cell).keys()
        return [name for name in names if name not in empty]


@dataclass(frozen=True)
class RunSet(Sequence[Run]):
    """Runs with distinct names."""

    runs: tuple[Run, ...]
    source: str = "runs"
    value_column: str | None = field(default=None)
    """The column that the user named as the value, where they did."""

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for run in self.runs:
            if run.name in seen:
                raise InputError(
                    f"{self.source}: two different runs are named '{run.name}'; rename one, or keep one with --where."
                )
            seen.add(run.name)

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


def marks_in(cell: str) -> dict[str, float]:
    """The metrics that a cell of `non_finite` names and their values; empty where it is other text."""
    try:
        values = json.loads(cell)
        marks = {name: float(value) for name, value in values.items() if isinstance(value, str)}
    except (ValueError, AttributeError, RecursionError):
        return {}
    return {name: value for name, value in marks.items() if not math.fabs(value) <= LARGEST}


def listing(names: Sequence[str], most: int = 8) -> str:
    """Names for an error message, cut to a readable number."""
    shown = ", ".join(f"'{name}'" for name in names[:most])
    return shown + (f" and {len(names) - most} more" if len(names) > most else "") if names else "none"
