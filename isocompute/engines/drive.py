"""The loop that every native engine runs in: update, evaluate when due, checkpoint now and then, stop when asked."""

from __future__ import annotations

import time
from typing import Any, Protocol

import numpy as np

from isocompute.arrays import Ints
from isocompute.engines.base import Control, Recorder

__all__ = ["Training", "drive", "schedule"]


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


def drive(training: Training, recorder: Recorder, control: Control, *, pulse: int, seconds: float) -> bool:
    """Update and evaluate until the end (True) or until asked to stop (False).

    The runner is asked every `pulse` updates; checkpoints are at least `seconds` apart.
    """
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
        if not training.update():
            # Every problem is retired: the run ends here, with a last look at what it became.
            if training.step > training.last_evaluated:
                recorder.append(training.evaluate())
            control.advanced(training.rollouts - reported)
            return True
