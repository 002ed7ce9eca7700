"""Tokens of responses, which is what `tokens` counts everywhere here: trainers count them together with the prompts.

They follow from the mean length of a response and the rollouts so far, or from a trainer's total where the log has the
mean length of a prompt beside it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from isocompute.core.arrays import Array
from isocompute.data.logs.sampled import counts_sampled

__all__ = ["WITH_PROMPTS", "with_tokens"]

WITH_PROMPTS = "tokens_with_prompts"
"""Our name of a trainer's own counter."""
_PROMPT = "prompt_length/mean"
_UNKNOWN = (
    f"the trainer's count of tokens has the prompts in it and is kept as {WITH_PROMPTS}; tokens of responses are "
    "unknown: they take the response length from the start on, Bp and n"
)


def with_tokens(points: pl.DataFrame) -> tuple[pl.DataFrame, list[str]]:
    """The points with `tokens` where they can be told, and a note where a total with prompts is all there is."""
    if "tokens" in points.columns:
        return points, []
    tokens_T = _from_lengths(points)
    if tokens_T is None:
        tokens_T = _from_total(points)
    if tokens_T is None:
        return points, [_UNKNOWN] if WITH_PROMPTS in points.columns else []
    place = 1 + max(points.columns.index(c) for c in ("step", "rollouts") if c in points.columns)
    return points.clone().insert_column(place, pl.Series("tokens", tokens_T, nan_to_null=True)), []


def _from_lengths(points: pl.DataFrame) -> Array | None:
    """Rollouts since the length before, each as long as the mean that was logged after them, summed up.

    That is exact where every step is logged, or a mean over the steps since the row before. Where steps and rollouts
    count from 0, a row tells of the batch that comes after its rollouts. A log that begins in the middle of a run does
    not know what came before.
    """
    rollouts_T, length_T = _column(points, "rollouts"), _column(points, "response_length")
    if rollouts_T is None or length_T is None:
        return None
    known = np.flatnonzero(np.isfinite(rollouts_T) & np.isfinite(length_T))
    made = np.diff(rollouts_T[known], prepend=0.0)
    if len(known) < 2 or made[0] < 0 or np.any(made[1:] <= 0) or _begins_late(points, known, made):
        return None
    length = length_T[known]
    before = made[0] == 0 and _counts_from_0(points, known)
    total = np.cumsum(made * (np.roll(length, 1) if before else length))
    # Rows without a length, such as an evaluation's, lie between their neighbours; behind the last nothing is known.
    begin = np.zeros(1)
    at, counted = np.concatenate([begin, rollouts_T[known]]), np.concatenate([begin, total])
    return np.asarray(np.interp(rollouts_T, at, counted, right=np.nan), dtype=np.float64)


def _begins_late(points: pl.DataFrame, rows: npt.NDArray[np.int64], made: Array) -> bool:
    """Whether the first of these rows stands for more than any later one: in steps where each samples as it needs."""
    step_T = _column(points, "step")
    passed = np.diff(step_T[rows], prepend=0.0) if step_T is not None and counts_sampled(points) else made
    return bool(passed[0] > passed[1:].max())


def _from_total(points: pl.DataFrame) -> Array | None:
    """The responses' share of a total with prompts, by the mean lengths of both: it takes no batch size."""
    total_T, prompt_T = _column(points, WITH_PROMPTS), _column(points, _PROMPT)
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
    """Whether these rows, which tell of a batch each, are those of every step from 0 on."""
    step_T = _column(points, "step")
    return step_T is not None and np.array_equal(step_T[rows], np.arange(len(rows)))


def _column(points: pl.DataFrame, name: str) -> Array | None:
    series = points.get_column(name, default=None)
    if series is None or not series.dtype.is_numeric():
        return None
    return np.asarray(series.cast(pl.Float64).fill_null(np.nan).to_numpy(), dtype=np.float64)
