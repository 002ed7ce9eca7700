"""Evaluation of a policy: sample each problem, count the correct responses, compute avg@k, best@k and worst@k."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from pydantic import Field

from isocompute.core.allocation import Evaluation
from isocompute.core.arrays import Ints
from isocompute.core.metrics import avg_at_k, best_at_k, mean_with_error, worst_at_k
from isocompute.rl.model.checkpoint import load_model
from isocompute.rl.model.decoder import Decoder
from isocompute.rl.rollout.eager import SamplingSettings, sample
from isocompute.rl.setup import EngineSpec, memory_budget, sampling_rows
from isocompute.rl.tasks import ProblemsSpec, Task, Tasks, whole_task


class EvaluationSpec(Evaluation):
    """The `[evaluation]` table of this engine."""

    temperature: float | None = Field(default=None, ge=0, description="of evaluation; the recipe's if not set")


@dataclass(frozen=True)
class PassCounts:
    """Correct responses among `samples` of each problem; length and truncation are means over all responses."""

    correct_P: Ints
    samples: int
    response_length: float
    truncated: float


def count_correct(
    decoder: Decoder, task: Task, settings: SamplingSettings, *, samples: int, seed: int, rows: int
) -> PassCounts:
    """Sample each problem of a task, about `rows` sequences at a time."""
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
        correct_P[start : start + len(index_P)] = (rewards_B > 0.5).view(-1, samples).sum(dim=1).cpu().numpy()
        length += float(out.lengths_B.sum())
        truncated += float((~out.stopped_B).sum())
    total = len(task) * samples
    return PassCounts(correct_P, samples, length / total, truncated / total)


def measure(
    decoder: Decoder, tasks: Tasks, settings: SamplingSettings, *, samples: int, ks: Sequence[int], seed: int, rows: int
) -> tuple[dict[str, float], dict[str, PassCounts]]:
    """Metrics of the validation and out-of-distribution sets, and the per-problem counts of each set."""
    counts = {
        prefix: count_correct(decoder, task, settings, samples=samples, seed=seed, rows=rows)
        for prefix, task in tasks.measured.items()
    }
    metrics: dict[str, float] = {}
    for prefix, found in counts.items():
        metrics |= metrics_of(found, ks, prefix=prefix)
    validation = counts[""]
    metrics |= {"val/response_length": validation.response_length, "val/truncated": validation.truncated}
    metrics["val/zero_pass"] = float((validation.correct_P == 0).mean())
    for name, where in tasks.subsets.items():
        metrics |= metrics_of(replace(validation, correct_P=validation.correct_P[where]), ks, prefix=f"{name}/")
    return metrics, {tasks.measured[prefix].name: found for prefix, found in counts.items()}


def metrics_of(counts: PassCounts, ks: Sequence[int], *, prefix: str = "") -> dict[str, float]:
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


def measure_pass_rates(
    *,
    problems: str,
    model: str,
    samples: int,
    seed: int = 0,
    size: int | None = None,
    question: str | None = None,
    answer: str | None = None,
    verifier: str | None = None,
    temperature: float = 0.6,
    max_new_tokens: int | None = None,
    device: str = "auto",
) -> tuple[list[str], Ints]:
    """The ids of all problems of a source, and how many of `samples` responses to each are correct.

    The default temperature is the paper's for sampling (table 1), since pass rates describe the policy that training
    starts from. The problems are those of `load_problems(problems, size=size, seed=seed)`, with none held out.
    """
    engine = EngineSpec.of({"model": model, "device": device})
    spec = ProblemsSpec.of(
        {
            "source": problems,
            "size": size,
            "seed": seed,
            "question": question,
            "answer": answer,
            "verifier": verifier,
            "max_new_tokens": max_new_tokens,
        }
    )
    loaded = load_model(engine.model, dtype=engine.torch_dtype, device=engine.where)
    task, budget = whole_task(spec, loaded.folder, torch.device(engine.where))
    rows = sampling_rows(
        loaded.decoder.config,
        tokens=max(map(len, task.prompts)) + budget,
        dtype=engine.torch_dtype,
        budget=memory_budget(loaded.device),
    )
    settings = SamplingSettings(
        max_new_tokens=budget, temperature=temperature, top_p=1.0, stop_tokens=loaded.stop_tokens
    )
    counts = count_correct(loaded.decoder, task, settings, samples=samples, seed=seed, rows=rows)
    return list(task.ids), counts.correct_P
