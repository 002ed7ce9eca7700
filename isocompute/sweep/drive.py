"""The loop that every native engine runs in: update, evaluate when due, checkpoint now and then, stop when asked."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping
from typing import Any, Protocol, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from isocompute.core.arrays import Ints
from isocompute.core.errors import InputError, first_wrong
from isocompute.core.recipe import Recipe
from isocompute.sweep.base import Control, Recorder

__all__ = ["Evaluation", "Training", "Turns", "all_retired", "drive", "make_turns", "schedule", "turns"]


class Evaluation(BaseModel):
    """The `[evaluation]` table."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    points: int = Field(default=40, ge=2, description="evaluations, log-spaced in compute")
    samples: int = Field(default=16, ge=1, description="samples a problem")
    k: list[int] = Field(default=[4], min_length=1, description="k of avg@k, best@k and worst@k")

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> Self:
        """From a table; errors name the field."""
        try:
            out = cls(**table)
        except ValidationError as error:
            where, why = first_wrong(error, fields=cls.model_fields)
            raise InputError(f"evaluation.{where}: {why}.") from error
        if max(out.k) > out.samples or min(out.k) < 1:
            raise InputError(f"evaluation.k: {out.k} must lie between 1 and samples = {out.samples}.")
        return out


class Training(Protocol):
    """The state of one cell and the two things done with it."""

    step: int
    rollouts: int
    last_evaluated: int

    @property
    def update_steps(self) -> int:
        """Updates of the whole run."""
        ...

    def due(self) -> bool:
        """Whether this step is on the evaluation grid and not evaluated yet."""
        ...

    def evaluate(self) -> dict[str, Any]:
        """The point of this step."""
        ...

    def update(self) -> bool:
        """One batch and its updates; False when no problem is left to train on."""
        ...

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Arrays and meta of a checkpoint."""
        ...


def schedule(update_steps: int, points: int) -> Ints:
    """Update steps to evaluate at: 0, then log-spaced up to the last."""
    return np.unique(np.concatenate([[0], np.geomspace(1, update_steps, points).round()]).astype(np.int64))


Turns = Generator[None, bool, bool]
"""A run between its updates: it yields where one is due, is sent whether there was one, and returns whether it came to
its end."""


def all_retired(step: int, update_steps: int, recipe: Recipe) -> str:
    """Why a run ended before its last update."""
    return (
        f"every problem is retired after {step} of {update_steps} updates: all have reached a pass rate of "
        f"{recipe.no_positive_resampling}"
    )


def drive(training: Training, recorder: Recorder, control: Control, *, pulse: int, seconds: float) -> bool:
    """Update and evaluate until the end (True) or until asked to stop (False).

    The runner is asked every `pulse` updates; checkpoints are at least `seconds` apart.
    """
    return make_turns(turns(training, recorder, control, pulse=pulse, seconds=seconds), training.update)


def make_turns(between: Turns, update: Callable[[], bool]) -> bool:
    """Make the updates that a run asks for; what an update raises is the run's to deal with."""
    try:
        next(between)
        while True:
            try:
                there_was_one = update()
            except Exception as error:  # a divergence ends a run well, all else leaves it
                between.throw(error)
            else:
                between.send(there_was_one)
    except StopIteration as end:
        return bool(end.value)


def turns(training: Training, recorder: Recorder, control: Control, *, pulse: int, seconds: float) -> Turns:
    """`drive` without its updates, which are the caller's to make: several runs may make theirs together."""
    last_saved = time.monotonic()
    reported = training.rollouts
    while True:
        if training.due():
            recorder.append(training.evaluate())
        if training.step >= training.update_steps:
            control.advanced(training.rollouts - reported)
            return True
        if training.step % pulse == 0:
            control.advanced(training.rollouts - reported)
            reported = training.rollouts
            if control.stopping():
                return False
            if time.monotonic() - last_saved > seconds:
                recorder.checkpoint(*training.state())
                last_saved = time.monotonic()
        if not (yield):
            # Every problem is retired: the run ends here, with a last look at what it became.
            if training.step > training.last_evaluated:
                recorder.append(training.evaluate())
            control.advanced(training.rollouts - reported)
            return True
