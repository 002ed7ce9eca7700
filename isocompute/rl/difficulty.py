"""How many of m samples of each problem a model gets right: the measurement behind `isocompute split`."""

from __future__ import annotations

import torch

from isocompute.core.arrays import Ints
from isocompute.rl.evaluation import count_right
from isocompute.rl.memory import memory_budget, sampling_rows
from isocompute.rl.model import load_model
from isocompute.rl.sampler import SamplingSettings
from isocompute.rl.spec import EngineSpec
from isocompute.rl.tasks import ProblemsSpec, whole_task

__all__ = ["count_correct"]


def count_correct(
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
    """Ids of all problems of a source and, of `samples` samples of each, how many are right.

    The temperature is the paper's for sampling (table 1): a pass rate belongs to the policy that training starts from.
    The problems are those of `load_problems(problems, size=size, seed=seed)`, none held out.
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
    counts = count_right(loaded.decoder, task, settings, samples=samples, seed=seed, rows=rows)
    return list(task.ids), counts.correct_P
