"""Measuring a policy: m samples of every problem, counts of right ones, and the metrics that follow from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from pydantic import Field

from isocompute.core.arrays import Ints
from isocompute.core.cell import Evaluation
from isocompute.core.metrics import avg_at_k, best_at_k, mean_with_error, worst_at_k
from isocompute.rl.decoder import Decoder
from isocompute.rl.sampler import SamplingSettings, sample
from isocompute.rl.tasks import Task

__all__ = ["Counts", "EvaluationSpec", "count_right", "metrics_of"]


class EvaluationSpec(Evaluation):
    """The `[evaluation]` table of this engine."""

    temperature: float | None = Field(default=None, ge=0, description="of evaluation; the recipe's if not set")


@dataclass(frozen=True)
class Counts:
    """Right ones of `samples` samples of every problem; length and truncation over all of them."""

    correct_P: Ints
    samples: int
    response_length: float
    truncated: float


def count_right(
    decoder: Decoder, task: Task, settings: SamplingSettings, *, samples: int, seed: int, rows: int
) -> Counts:
    """Sample every problem of a task, about `rows` sequences at a time."""
    device = decoder.embed_tokens.weight.device
    correct_P = np.zeros(len(task), dtype=np.int64)
    length = truncated = 0.0
    per_round = max(1, rows // samples)
    for start in range(0, len(task), per_round):
        index_P = torch.arange(start, min(start + per_round, len(task)), device=device)
        numbers_B = torch.arange(start * samples, (start + len(index_P)) * samples)
        prompts = [task.prompts[i] for i in index_P.tolist()]
        out = sample(decoder, prompts, settings, seed=seed, per_prompt=samples, row_numbers=numbers_B)
        rewards_B = task.verify(index_P.repeat_interleave(samples), out)
        right_PN = (rewards_B > 0.5).view(-1, samples)
        correct_P[start : start + len(index_P)] = right_PN.sum(dim=1).cpu().numpy()
        length += float(out.lengths_B.sum())
        truncated += float((~out.stopped_B).sum())
    total = len(task) * samples
    return Counts(correct_P, samples, length / total, truncated / total)


def metrics_of(counts: Counts, ks: Sequence[int], *, prefix: str = "") -> dict[str, float]:
    """avg@k, best@k and worst@k with their standard errors over problems."""
    samples_P = np.full(len(counts.correct_P), counts.samples)
    out: dict[str, float] = {}
    for k in ks:
        for name, metric in (("avg", avg_at_k), ("best", best_at_k), ("worst", worst_at_k)):
            estimate = mean_with_error(metric(counts.correct_P, samples_P, k=k))
            out[f"{prefix}{name}@{k}"] = estimate.value
            if np.isfinite(estimate.standard_error):
                out[f"{prefix}{name}@{k}/error"] = estimate.standard_error
    return out
