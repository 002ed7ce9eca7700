"""How compute is spent, C = Bp · n · M (IsoCompute eq. 1): an allocation, the grid of a sweep, the cells of a study."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from isocompute.core.arrays import Ints
from isocompute.core.errors import InputError, first_wrong
from isocompute.core.recipe import Recipe, sampled_per_problem


class Spending:
    """Batch size and compute of anything that has Bp, n and M."""

    problems_per_batch: int
    rollouts_per_problem: int
    update_steps: int

    @property
    def batch_size(self) -> int:
        """B = Bp · n."""
        return self.problems_per_batch * self.rollouts_per_problem

    @property
    def compute(self) -> int:
        """C = Bp · n · M, in rollouts."""
        return self.batch_size * self.update_steps


@dataclass(frozen=True, order=True)
class Allocation(Spending):
    """How a budget of rollouts is spent."""

    problems_per_batch: int
    rollouts_per_problem: int
    update_steps: int


def grid(
    *,
    problems_per_batch: Sequence[int],
    rollouts_per_problem: Sequence[int],
    budget: int,
    max_batch: int | None = None,
) -> list[Allocation]:
    """Every (Bp, n) with Bp · n <= `max_batch`, with as many updates as the budget allows.

    >>> [a.update_steps for a in grid(problems_per_batch=[32], rollouts_per_problem=[8, 16], budget=5000)]
    [19, 9]
    """
    out = [
        Allocation(bp, n, budget // (bp * n))
        for bp in sorted(set(problems_per_batch))
        for n in sorted(set(rollouts_per_problem))
        if max_batch is None or bp * n <= max_batch
    ]
    if not out:
        smallest = min(problems_per_batch) * min(rollouts_per_problem)
        raise InputError(
            f"max_batch = {max_batch} leaves no cell: the smallest batch of the grid is {smallest}; "
            "raise max_batch or add smaller values."
        )
    short = [a for a in out if a.update_steps < 1]
    if short:
        raise InputError(
            f"budget = {budget} is under one batch of {short[0].problems_per_batch} × "
            f"{short[0].rollouts_per_problem} = {short[0].batch_size}; raise the budget or set max_batch."
        )
    return out


SPEED_ONLY = ("micro_batch", "sample_batch", "threads", "rollout", "recompute", "memory_gib", "fast", "together")
"""Engine options that change only speed and memory, so a run may resume with other values of them.

`fast` and `together` are found in studies stored by version 0.1."""


@dataclass(frozen=True)
class Cell(Spending):
    """One run of a study as plain data: the allocation, and the tables of the study's spec that apply to it."""

    name: str
    """Folder of the run inside the study, such as `easy/32x8-s0`."""
    problems_per_batch: int
    rollouts_per_problem: int
    update_steps: int
    seed: int
    problems: Mapping[str, Any] = field(default_factory=dict)
    recipe: Mapping[str, Any] = field(default_factory=dict)
    evaluation: Mapping[str, Any] = field(default_factory=dict)
    engine: Mapping[str, Any] = field(default_factory=dict)

    @property
    def rollouts_per_update(self) -> int:
        """Rollouts sampled for each update: Bp · n, or more with a decoupled baseline."""
        n = sampled_per_problem(self.recipe, rollouts_per_problem=self.rollouts_per_problem)
        return self.problems_per_batch * n

    @property
    def compute(self) -> int:
        """C, in rollouts, including those sampled only for a decoupled baseline."""
        return self.rollouts_per_update * self.update_steps


def ignore(*_: Any) -> None:
    """A callback for those who want none."""


class Control(Protocol):
    """How a running cell talks to its runner."""

    def stopping(self) -> bool:
        """Whether the cell should write a checkpoint and return."""
        ...

    def advanced(self, rollouts: int) -> None:
        """Report that this many more rollouts are done."""
        ...


class Engine(Protocol):
    """Makes the run of a cell. Engines are stateless: all state is in the cell's folder."""

    def check(self, cell: Cell) -> None:
        """Raise `InputError` for a cell this engine cannot run, before anything is started."""
        ...

    def run(self, cell: Cell, folder: Path, control: Control) -> bool:
        """Run the cell, from its checkpoint where there is one; False if it was asked to stop before the end."""
        ...


@dataclass(frozen=True)
class Measures:
    """Metrics and units of compute that the points of a cell will have."""

    metrics: frozenset[str]
    units: frozenset[str]
    """Units of compute in which the points can be counted."""


@runtime_checkable
class MeasuringEngine(Engine, Protocol):
    """An engine that knows a cell's metrics and units before it runs the cell."""

    def measures(self, cell: Cell) -> Measures:
        """Every metric and unit of the cell's points."""
        ...


class Evaluation(BaseModel):
    """The `[evaluation]` table of a study: when and how its runs are evaluated."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    points: int = Field(default=40, ge=2, description="evaluations, log-spaced in compute")
    samples: int = Field(default=16, ge=1, description="samples per problem")
    k: list[int] = Field(default=[4], min_length=1, description="k of avg@k, best@k and worst@k")

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> Self:
        """Parse the table; errors name the field."""
        try:
            out = cls(**table)
        except ValidationError as error:
            where, why = first_wrong(error, fields=cls.model_fields)
            raise InputError(f"evaluation.{where}: {why}.") from error
        if max(out.k) > out.samples or min(out.k) < 1:
            raise InputError(f"evaluation.k: {out.k} must lie between 1 and samples = {out.samples}.")
        return out


def evaluation_steps(update_steps: int, points: int) -> Ints:
    """Update steps to evaluate at: 0, then log-spaced up to the last."""
    return np.unique(np.concatenate([[0], np.geomspace(1, update_steps, points).round()]).astype(np.int64))


def metric_names(ks: Iterable[int], prefixes: Iterable[str]) -> set[str]:
    """Names of avg@k, best@k and worst@k for every k and problem-set prefix, and of their standard errors."""
    plain = [f"{prefix}{name}@{k}" for prefix in prefixes for name in ("avg", "best", "worst") for k in ks]
    return {*plain, *(f"{name}/error" for name in plain)}


def all_retired(step: int, update_steps: int, recipe: Recipe) -> str:
    """Why a run ended before its last update."""
    return (
        f"every problem is retired after {step} of {update_steps} updates: all have reached a pass rate of "
        f"{recipe.no_positive_resampling}"
    )
