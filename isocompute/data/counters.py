"""Compute at each point of a log: rollouts that were sampled, and tokens of their responses.

Rollouts are steps × Bp · n where a trainer trains on all it samples. Some trainers drop zero-variance groups and refill
the batch; compute is then what was sampled, which each trainer logs in its own way:

| | keys | rollouts of a step |
| --- | --- | --- |
| prime-rl (07/2026 on) | `progress/rollouts` | as logged; `total_rollouts` lacks those of its own step |
| veRL's DAPO recipe | `train/num_gen_batches` | × `data.gen_batch_size` × n |
| veRL 0.9, `trainer_v1` | `training/…/evicted_samples`, `discarded_surplus_samples` | (Bp + these problems) × n |
| NeMo-RL | `train/dynamic_sampling_num_gen_batches` | × Bp · `grpo.batch_multiplier` × n |
| OpenRLHF | `dynamic_filtering_pass_rate` | Bp · n over the share that passed |

Tokens are those of responses everywhere here; trainers count them together with the prompts. They follow from the
rollouts and the mean response length, or from a trainer's total where the mean prompt length is logged too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from isocompute.core.arrays import Array
from isocompute.core.run import Run
from isocompute.data.source import as_number

LOWER_BOUND = (
    "groups that were dropped are sampled again, and the log does not say how many: compute is what was trained on, a "
    "lower bound of what was sampled"
)
TOKENS_WITH_PROMPTS = "tokens_with_prompts"
"""Our name for a trainer's own token counter."""


def with_rollouts(run: Run, config: Mapping[str, Any], *, steps_per_batch: Fraction) -> tuple[Run, list[str]]:
    """Add cumulative rollouts to points that lack them, and return notes; unchanged if they are unknown."""
    if "rollouts" in run.points.columns or "step" not in run.points.columns:
        return run, []
    bp, n = run.settings.problems_per_batch, run.settings.rollouts_per_problem
    trained = None
    if bp is not None and n is not None:
        trained = run.points["step"] * (bp * n * steps_per_batch.denominator)
        if steps_per_batch.numerator > 1:
            whole = (trained % steps_per_batch.numerator == 0).all()
            trained = trained // steps_per_batch.numerator if whole else trained / steps_per_batch.numerator
        trained = trained.alias("rollouts")
    found = sampled_rollouts(run.points, problems=bp, rollouts=n, config=config)
    notes = []
    if found is None:
        if (run.settings.recipe or {}).get("zero_variance_filter") == "refill":
            notes.append(LOWER_BOUND)
    elif trained is None or not (trained == found.rollouts).all():
        total = "" if trained is None else f", {found.rollouts[-1]:,}; {trained[-1]:,.0f} of them were trained on"
        notes.append(f"rollouts are all that were sampled ({' + '.join(found.keys)}){total}")
        if found.ambiguity:
            notes.append(found.ambiguity)
    rollouts = trained if found is None else found.rollouts
    if rollouts is None:
        return run, notes
    at = run.points.columns.index("step") + 1
    return replace(run, points=run.points.clone().insert_column(at, rollouts)), notes


# Rollouts that were sampled.

_AMBIGUOUS_PASS_RATE = (
    "the pass rate is read as percent of the problems; OpenRLHF from 04/2026 on logs n times that: if this is one, n "
    "times as many were sampled"
)


@dataclass(frozen=True)
class Sampled:
    """Rollouts sampled up to each point, and the keys that give them."""

    rollouts: pl.Series
    keys: tuple[str, ...]
    ambiguity: str = ""
    """What else the keys may mean."""


@dataclass(frozen=True)
class _Batch:
    """Bp and n, NaN where unknown, and the trainer's config."""

    problems: float
    rollouts: float
    config: Mapping[str, Any]

    def number(self, key: str, default: float) -> float:
        """A positive number of the config."""
        value = as_number(self.config.get(key))
        return default if value is None or value <= 0 else value


@dataclass(frozen=True)
class _Counter:
    """One way to count the rollouts of a step."""

    keys: tuple[str, ...]
    """Added up; a missing key counts as 0 if the step has any of the others."""
    rollouts: Callable[[Array, _Batch], Array]
    """The rollouts of each step, from these sums."""
    always: bool = True
    """Whether every step logs the keys; if not, a step without them has 0."""


def _generated(count_T: Array, batch: _Batch) -> Array:
    """Batches of veRL's generation size; by default that is the training batch's."""
    return count_T * batch.number("data.gen_batch_size", batch.problems) * batch.rollouts


def _multiplied(count_T: Array, batch: _Batch) -> Array:
    problems = float(np.floor(batch.problems * batch.number("grpo.batch_multiplier", 1.0)))
    return count_T * problems * batch.rollouts


def _evicted(count_T: Array, batch: _Batch) -> Array:
    return (batch.problems + count_T) * batch.rollouts


def _passed(rate_T: Array, batch: _Batch) -> Array:
    """Percent of the problems; OpenRLHF from 04/2026 on divides rollouts by problems, which is n times that."""
    of_rollouts = np.nanmax(rate_T, initial=0.0) > 100
    share_T = np.where(rate_T > 0, rate_T, np.nan) / (100.0 * (batch.rollouts if of_rollouts else 1))
    return batch.problems * batch.rollouts / share_T


_COUNTERS = (
    _Counter(("progress/rollouts",), lambda count_T, _: count_T),
    _Counter(("train/num_gen_batches",), _generated),
    _Counter(("train/dynamic_sampling_num_gen_batches",), _multiplied),
    _Counter(
        (
            "training/filter_groups/evicted_samples",
            "training/filter_groups/discarded_surplus_samples",
            "training/off_policy/evicted_samples",
        ),
        _evicted,
        always=False,
    ),
    _Counter(("dynamic_filtering_pass_rate",), _passed),
    _Counter(("train/dynamic_filtering_pass_rate",), _passed),
)


def sampled_rollouts(
    points: pl.DataFrame, *, problems: int | None, rollouts: int | None, config: Mapping[str, Any]
) -> Sampled | None:
    """Rollouts sampled up to each point; None if the trainer does not log them."""
    if "step" not in points.columns:
        return None
    step_T = points["step"].cast(pl.Float64).to_numpy()
    batch = _Batch(problems or np.nan, rollouts or np.nan, config)
    for counter in _COUNTERS:
        keys = tuple(key for key in counter.keys if key in points.columns)
        if not keys:
            continue
        logged_KT = np.stack([points[key].cast(pl.Float64).fill_null(np.nan).to_numpy() for key in keys])
        sum_T = np.where(np.isnan(logged_KT).all(axis=0), np.nan, np.nansum(logged_KT, axis=0))
        total_T = _sum_over_steps(step_T, counter.rollouts(sum_T if counter.always else np.nan_to_num(sum_T), batch))
        if total_T is not None:
            ambiguous = counter.rollouts is _passed and (rollouts or 1) > 1 and np.nanmax(sum_T) <= 100
            total = pl.Series("rollouts", np.rint(total_T).astype(np.int64))
            return Sampled(total, keys, _AMBIGUOUS_PASS_RATE if ambiguous else "")
    return None


def _sum_over_steps(step_T: Array, made_T: Array) -> Array | None:
    """Cumulative totals: a row counts for the steps since the previous row, the last one also for those after it."""
    known = np.flatnonzero(np.isfinite(made_T) & (made_T >= 0) & (step_T > 0))
    if not len(known):
        return None
    at, made = step_T[known], made_T[known]
    total = np.cumsum(np.diff(at, prepend=0.0) * made)
    if total[-1] > 2**53:
        return None  # a broken number, not a count
    begin = np.zeros(1)
    inside_T = np.interp(step_T, np.concatenate([begin, at]), np.concatenate([begin, total]))
    return np.asarray(inside_T + np.maximum(step_T - at[-1], 0.0) * made[-1], dtype=np.float64)


# Tokens of responses.

_PROMPT_LENGTH = "prompt_length/mean"
_UNKNOWN_TOKENS = (
    f"the trainer's count of tokens has the prompts in it and is kept as {TOKENS_WITH_PROMPTS}; tokens of responses "
    "are unknown: they need Bp, n and the response length from the first step on"
)


def with_tokens(points: pl.DataFrame) -> tuple[pl.DataFrame, list[str]]:
    """Add `tokens` to the points if they are known; a note if only a total with prompts is."""
    if "tokens" in points.columns:
        return points, []
    tokens_T = _tokens_from_lengths(points)
    if tokens_T is None:
        tokens_T = _tokens_from_total(points)
    if tokens_T is None:
        return points, [_UNKNOWN_TOKENS] if TOKENS_WITH_PROMPTS in points.columns else []
    place = 1 + max(points.columns.index(c) for c in ("step", "rollouts") if c in points.columns)
    return points.clone().insert_column(place, pl.Series("tokens", tokens_T, nan_to_null=True)), []


def _tokens_from_lengths(points: pl.DataFrame) -> Array | None:
    """The cumulative sum of the rollouts since the previous row times the mean length of their responses.

    This is exact if every step is logged, or if a row's length is the mean since the previous row. If steps and
    rollouts count from 0, a row has the length of the batch that follows it. None for a log that begins in the middle
    of a run.
    """
    rollouts_T, length_T = _column(points, "rollouts"), _column(points, "response_length")
    if rollouts_T is None or length_T is None:
        return None
    known = np.flatnonzero(np.isfinite(rollouts_T) & np.isfinite(length_T))
    made = np.diff(rollouts_T[known], prepend=0.0)
    if len(known) < 2 or made[0] < 0 or np.any(made[1:] <= 0):
        return None
    # The log begins late if its first row covers more than any later row. That is measured in steps where the rollouts
    # per step vary.
    step_T = _column(points, "step")
    adaptive = any(key in points.columns for counter in _COUNTERS for key in counter.keys)
    passed = np.diff(step_T[known], prepend=0.0) if step_T is not None and adaptive else made
    if passed[0] > passed[1:].max():
        return None
    length = length_T[known]
    before = made[0] == 0 and _counts_from_0(points, known)
    total = np.cumsum(made * (np.roll(length, 1) if before else length))
    # Rows without a length, such as an evaluation's, are interpolated; after the last length nothing is known.
    begin = np.zeros(1)
    at, counted = np.concatenate([begin, rollouts_T[known]]), np.concatenate([begin, total])
    return np.asarray(np.interp(rollouts_T, at, counted, right=np.nan), dtype=np.float64)


def _tokens_from_total(points: pl.DataFrame) -> Array | None:
    """The responses' share of a total that includes prompts, by the mean lengths of both; needs no batch size."""
    total_T, prompt_T = _column(points, TOKENS_WITH_PROMPTS), _column(points, _PROMPT_LENGTH)
    length_T = _column(points, "response_length")
    if "step" not in points.columns or total_T is None or prompt_T is None or length_T is None:
        return None
    made_T = np.diff(total_T, prepend=0.0)
    share_T = length_T / (prompt_T + length_T)
    if made_T[0] == 0 and _counts_from_0(points, np.arange(points.height)):
        share_T = np.roll(share_T, 1)
    added_T = np.where(made_T == 0, 0.0, made_T * share_T)
    return np.cumsum(added_T) if np.isfinite(added_T).all() else None


def _counts_from_0(points: pl.DataFrame, rows: npt.NDArray[np.int64]) -> bool:
    """Whether these rows are those of every step from 0 on."""
    step_T = _column(points, "step")
    return step_T is not None and np.array_equal(step_T[rows], np.arange(len(rows)))


def _column(points: pl.DataFrame, name: str) -> Array | None:
    series = points.get_column(name, default=None)
    if series is None or not series.dtype.is_numeric():
        return None
    return np.asarray(series.cast(pl.Float64).fill_null(np.nan).to_numpy(), dtype=np.float64)
