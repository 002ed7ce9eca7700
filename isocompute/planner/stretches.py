"""Timed stretches of a run: so many rollouts in so many seconds, at some response length.

A stretch lies between two points of a run that logs `seconds`. Logs with the phases of a step and no time of the whole
(veRL of 2024) give one stretch a step: the sum of its phases, evaluations and checkpoints left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from isocompute.core.arrays import Array

if TYPE_CHECKING:
    from isocompute.core.run import Run

__all__ = ["Stretch", "lacking", "response_lengths", "stretches", "updates_per_batch", "with_reference"]

_PREFIXES = ("timing/", "timing_s/")
_ALWAYS = ("gen", "update_actor")
_PHASES = (*_ALWAYS, "reward", "old_log_prob", "ref", "values", "adv", "update_critic")
"""veRL's phases that follow one another in a step; others of its timings are parts of these."""


@dataclass(frozen=True)
class Stretch:
    """What happened between two points of a run."""

    rollouts: float
    seconds: float
    response_tokens: float | None


def stretches(run: Run) -> Iterator[Stretch]:
    """Stretches with a clock that went on; a resumed run's clock may start again."""
    seconds, rollouts = _column(run, "seconds"), _rollouts(run)
    if seconds is None:
        yield from _steps(run)
        return
    if rollouts is None:
        return
    tokens, length = _column(run, "tokens"), _column(run, "response_length")
    there = np.flatnonzero(np.isfinite(seconds) & np.isfinite(rollouts))
    for i, j in pairwise(there.tolist()):
        passed, made = float(seconds[j] - seconds[i]), float(rollouts[j] - rollouts[i])
        if passed <= 0 or made <= 0:
            continue
        words = None
        if length is not None and np.isfinite(length[j]):
            words = float(length[j])
        elif tokens is not None and np.isfinite(tokens[j] - tokens[i]):
            words = float(tokens[j] - tokens[i]) / made
        yield Stretch(made, passed, words if words is None or words > 0 else None)


def _steps(run: Run) -> Iterator[Stretch]:
    """A stretch a step, from its phases."""
    batch, phases = _batch_size(run), _phases(run)
    if batch is None or not phases:
        return
    seconds_T = np.sum(phases, axis=0)
    length = _column(run, "response_length")
    for i in np.flatnonzero(np.isfinite(seconds_T) & (seconds_T > 0)).tolist():
        known = length is not None and np.isfinite(length[i]) and length[i] > 0
        yield Stretch(float(batch), float(seconds_T[i]), float(length[i]) if length is not None and known else None)


def _phases(run: Run) -> list[Array]:
    for prefix in _PREFIXES:
        found = {name: _column(run, prefix + name) for name in _PHASES}
        if all(found[name] is not None for name in _ALWAYS):
            return [column for column in found.values() if column is not None]
    return []


def lacking(run: Run) -> str:
    """Which of the columns that stretches need a run does not log."""
    if _column(run, "seconds") is None and not _phases(run):
        return "it logs no 'seconds'"
    if (_rollouts(run) if _column(run, "seconds") is not None else _batch_size(run)) is None:
        return "it logs 'seconds' but no 'rollouts', and does not say its Bp and n"
    return "no two points have 'seconds' and 'rollouts'"


def response_lengths(run: Run) -> Array:
    """Tokens of a response at every point that logs them."""
    length = _column(run, "response_length")
    return np.empty(0) if length is None else length[np.isfinite(length) & (length > 0)]


def with_reference(run: Run) -> bool:
    """Whether a reference model scored the batches: the recipe has a KL term, or the log times such a pass."""
    kl = (run.settings.recipe or {}).get("kl_coef")
    return bool(kl) or any(_column(run, prefix + "ref") is not None for prefix in _PREFIXES)


def updates_per_batch(run: Run) -> int:
    """Updates on each batch, all of it every time, as this project's engines make them; 1 where a run does not say."""
    said = (run.settings.recipe or {}).get("updates_per_batch")
    return said if isinstance(said, int) and said > 1 else 1


def _column(run: Run, name: str) -> Array | None:
    series = run.points.get_column(name, default=None)
    if series is None or not series.dtype.is_numeric() or not series.count():
        return None
    return np.asarray(series.cast(float).fill_null(float("nan")).to_numpy(), dtype=np.float64)


def _batch_size(run: Run) -> int | None:
    s = run.settings
    return s.problems_per_batch * s.rollouts_per_problem if s.problems_per_batch and s.rollouts_per_problem else None


def _rollouts(run: Run) -> Array | None:
    rollouts, step, batch = _column(run, "rollouts"), _column(run, "step"), _batch_size(run)
    return step * batch if rollouts is None and step is not None and batch else rollouts
