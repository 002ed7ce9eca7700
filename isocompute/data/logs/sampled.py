"""Rollouts that were sampled, where a trainer drops some of them and fills its batches up: more than it trains on.

Compute is what was sampled. A row of `_TOLD` is one trainer's way to say it, once a step:

| | keys | rollouts of a step |
| --- | --- | --- |
| prime-rl (07/2026 on) | `progress/rollouts` | all that arrived, as it is; `total_rollouts` lacks the step's own |
| veRL's DAPO recipe | `train/num_gen_batches` | × `data.gen_batch_size` × n |
| veRL 0.9, `trainer_v1` | `training/…/evicted_samples`, `discarded_surplus_samples` | (Bp + these problems) × n |
| NeMo-RL | `train/dynamic_sampling_num_gen_batches` | × Bp · `grpo.batch_multiplier` × n |
| OpenRLHF | `dynamic_filtering_pass_rate` | Bp · n over the share that passed |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from isocompute.core.arrays import Array
from isocompute.data.logs.literals import as_number

__all__ = ["LOWER_BOUND", "Sampled", "counts_sampled", "sampled"]

LOWER_BOUND = (
    "groups that were dropped are sampled again, and the log does not say how many: compute is what was trained on, a "
    "lower bound of what was sampled"
)

_MOST = 2**53
"""More is a broken number, not a count."""
_EITHER = (
    "the pass rate is read as percent of the problems; OpenRLHF from 04/2026 on logs n times that: if this is one, n "
    "times as many were sampled"
)


@dataclass(frozen=True)
class Sampled:
    """Rollouts at each point, and the keys that told them."""

    rollouts: pl.Series
    keys: tuple[str, ...]
    doubt: str = ""
    """What else the keys may mean."""


@dataclass(frozen=True)
class _Batch:
    """What a step trains on; None where it is unknown."""

    problems: int | None
    rollouts: int | None
    config: Mapping[str, Any]

    @property
    def size(self) -> float:
        """Bp · n, NaN where one of them is unknown."""
        return float(self.problems * self.rollouts) if self.problems and self.rollouts else np.nan

    def number(self, key: str, default: float) -> float:
        """A positive number of the config."""
        value = as_number(self.config.get(key))
        return default if value is None or value <= 0 else float(value)


@dataclass(frozen=True)
class _Told:
    """One way to tell the rollouts of a step."""

    keys: tuple[str, ...]
    """Summed up; a step that has some of them has 0 of the others."""
    rollouts: Callable[[Array, _Batch], Array]
    """Of each step, from the sums."""
    always: bool = True
    """Whether every step has the keys: one without them counts like the next that has; else it had nothing to count."""


def _generated(said_T: Array, batch: _Batch) -> Array:
    """Batches of veRL's own generation size; where that is not said, it is the training batch's."""
    return said_T * batch.number("data.gen_batch_size", batch.problems or np.nan) * (batch.rollouts or np.nan)


def _multiplied(said_T: Array, batch: _Batch) -> Array:
    problems = int((batch.problems or 0) * batch.number("grpo.batch_multiplier", 1.0))
    return said_T * (problems or np.nan) * (batch.rollouts or np.nan)


def _evicted(said_T: Array, batch: _Batch) -> Array:
    return batch.size + said_T * (batch.rollouts or np.nan)


def _passed(said_T: Array, batch: _Batch) -> Array:
    """Percent of the problems; from 04/2026 on OpenRLHF divides rollouts by problems, which makes it n times that."""
    of_rollouts = np.nanmax(said_T, initial=0.0) > 100
    share_T = np.where(said_T > 0, said_T, np.nan) / (100.0 * ((batch.rollouts or np.nan) if of_rollouts else 1))
    return batch.size / share_T


_TOLD = (
    _Told(("progress/rollouts",), lambda said_T, _: said_T),
    _Told(("train/num_gen_batches",), _generated),
    _Told(("train/dynamic_sampling_num_gen_batches",), _multiplied),
    _Told(
        (
            "training/filter_groups/evicted_samples",
            "training/filter_groups/discarded_surplus_samples",
            "training/off_policy/evicted_samples",
        ),
        _evicted,
        always=False,
    ),
    _Told(("dynamic_filtering_pass_rate",), _passed),
    _Told(("train/dynamic_filtering_pass_rate",), _passed),
)


def counts_sampled(points: pl.DataFrame) -> bool:
    """Whether a trainer says of these points how many rollouts were sampled for each."""
    return any(key in points.columns for told in _TOLD for key in told.keys)


def sampled(
    points: pl.DataFrame, *, problems: int | None, rollouts: int | None, config: Mapping[str, Any]
) -> Sampled | None:
    """Rollouts sampled up to each point, where the points tell them; Bp and n where they are known."""
    if "step" not in points.columns:
        return None
    step_T = points["step"].cast(pl.Float64).to_numpy()
    batch = _Batch(problems, rollouts, config)
    for told in _TOLD:
        keys = tuple(key for key in told.keys if key in points.columns)
        if keys:
            said_T = _sum(points, keys)
            total_T = _total(step_T, told.rollouts(said_T if told.always else np.nan_to_num(said_T), batch))
            if total_T is not None:
                either = told.rollouts is _passed and (rollouts or 1) > 1 and np.nanmax(said_T) <= 100
                return Sampled(
                    pl.Series("rollouts", np.rint(total_T).astype(np.int64)), keys, _EITHER if either else ""
                )
    return None


def _sum(points: pl.DataFrame, keys: tuple[str, ...]) -> Array:
    """What a step's keys say together, NaN where it has none of them."""
    said_KT = np.stack([points[key].cast(pl.Float64).fill_null(np.nan).to_numpy() for key in keys])
    return np.where(np.isnan(said_KT).all(axis=0), np.nan, np.nansum(said_KT, axis=0))


def _total(step_T: Array, made_T: Array) -> Array | None:
    """Summed up over all steps: a row stands for those since the row before, the last one also for what follows it."""
    known = np.flatnonzero(np.isfinite(made_T) & (made_T >= 0) & (step_T > 0))
    if not len(known):
        return None
    at, made = step_T[known], made_T[known]
    total = np.cumsum(np.diff(at, prepend=0.0) * made)
    if total[-1] > _MOST:
        return None
    begin = np.zeros(1)
    inside_T = np.interp(step_T, np.concatenate([begin, at]), np.concatenate([begin, total]))
    return np.asarray(inside_T + np.maximum(step_T - at[-1], 0.0) * made[-1], dtype=np.float64)
