"""What a point of a run holds: metrics of training, and avg@k, best@k and worst@k of the policy on problem sets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from isocompute.core.allocation import ignore
from isocompute.core.arrays import Ints
from isocompute.core.metrics import avg_at_k, best_at_k, mean_with_error, worst_at_k
from isocompute.rl.grading import GradingPool
from isocompute.rl.model.checkpoint import load_model
from isocompute.rl.rollout.engine import FinishedGroup, PromptGroup, RolloutEngine, Rollouts, SamplingSettings, streams
from isocompute.rl.rollout.source import submit_grading
from isocompute.rl.setup import MOST_ROWS, EngineSpec, free_bytes, make_engine, row_bytes
from isocompute.rl.tasks import ProblemsSpec, Task, Tasks, whole_task

MEANS = (
    *("train/avg", "zero_variance", "grad_norm", "entropy", "logprob_gap"),
    *("response_length", "truncated", "loss", "interrupted", "staleness"),
)
"""Metrics that a point averages over the updates since the previous point."""
METRICS = (
    *MEANS,
    *("kl", "val/response_length", "val/truncated", "val/zero_pass", "val/ungraded", "retired", "dropped_groups"),
    *("ungraded_groups", "sampler_busy", "learning_rate", "rollouts_per_second", "tokens_per_second"),
)
"""Metrics of a point besides those of the problem sets; some are logged only under certain recipes."""


@dataclass(frozen=True)
class Reports:
    """Whom a run tells about its evaluations."""

    rates: Callable[[Mapping[str, Any]], None] = ignore
    """The per-problem counts."""
    samples: Callable[[Mapping[str, Any]], None] = ignore
    """Some responses."""
    progress: Callable[[str, int, int], None] = ignore
    """What is going on, the problems done and all of them."""

    def counted(self, step: int, counts: Mapping[str, PassCounts]) -> None:
        """Pass on the counts and samples of an evaluation."""
        for name, found in counts.items():
            row = {"step": step, "set": name}
            self.rates({**row, "samples": found.samples, "correct": found.correct_P.tolist()})
            for kept in found.kept:
                self.samples({**row, **kept})


@dataclass(frozen=True)
class PassCounts:
    """Correct responses among `samples` of each problem; length and truncation are means over all responses."""

    correct_P: Ints
    samples: int
    response_length: float
    truncated: float
    kept: list[dict[str, Any]]
    """Some responses with their problems and rewards, for people to read."""
    ungraded: int = 0
    """Problems whose reward function failed; their responses count as wrong."""


@dataclass
class Evaluator:
    """Samples problems with an engine that may have groups of others in flight, and grades them beside it."""

    engine: RolloutEngine
    pool: GradingPool
    pass_on: Callable[[FinishedGroup], None] = ignore
    """Receives groups that others submitted."""
    on_step: Callable[[int, int], None] = ignore
    """Called between the engine's steps with the problems sampled so far; may raise to end the evaluation."""

    def count(self, task: Task, *, samples: int, seed: int, temperature: float, keep: int = 0) -> PassCounts:
        """Sample each problem of a task; a response is correct with a reward above one half."""
        for problem, prompt in enumerate(task.prompts):
            rows = np.arange(problem * samples, (problem + 1) * samples)
            self.engine.submit(PromptGroup(_key(problem), prompt, streams(seed, rows), temperature))
        done: dict[int, Rollouts] = {}
        while len(done) < len(task):
            self.on_step(len(done), len(task))
            for finished in self.engine.step():
                if finished.key >= 0:
                    self.pass_on(finished)
                    continue
                problem = _key(finished.key)
                done[problem] = finished.rollouts
                submit_grading(self.pool, finished.key, task, problem, finished.rollouts)
        correct_P, kept, ungraded = np.zeros(len(task), dtype=np.int64), [], 0
        shown = set(np.linspace(0, len(task) - 1, min(keep, len(task))).astype(int).tolist())
        for problem in range(len(task)):
            rewards = self.pool.get(_key(problem))
            ungraded += rewards is None
            rewards = rewards or [0.0] * samples
            correct_P[problem] = sum(reward > 0.5 for reward in rewards)
            if problem in shown:
                kept.append(_readable(task, problem, done[problem], rewards[0]))
        lengths = np.concatenate([rollouts.lengths_B.numpy() for rollouts in done.values()])
        stopped = np.concatenate([rollouts.stopped_B.numpy() for rollouts in done.values()])
        return PassCounts(correct_P, samples, float(lengths.mean()), float(1 - stopped.mean()), kept, ungraded)

    def measure(
        self, tasks: Tasks, *, samples: int, ks: Sequence[int], seed: int, temperature: float, keep: int = 0
    ) -> tuple[dict[str, float], dict[str, PassCounts]]:
        """Metrics of the validation and out-of-distribution sets, and the per-problem counts of each set."""
        counts = {
            prefix: self.count(task, samples=samples, seed=seed, temperature=temperature, keep=keep)
            for prefix, task in tasks.measured.items()
        }
        metrics: dict[str, float] = {}
        for prefix, found in counts.items():
            metrics |= metrics_of(found, ks, prefix=prefix)
        validation = counts[""]
        metrics |= {"val/response_length": validation.response_length, "val/truncated": validation.truncated}
        metrics["val/zero_pass"] = float((validation.correct_P == 0).mean())
        if ungraded := sum(found.ungraded for found in counts.values()):
            metrics["val/ungraded"] = ungraded
        for name, where in tasks.subsets.items():
            metrics |= metrics_of(replace(validation, correct_P=validation.correct_P[where]), ks, prefix=f"{name}/")
        return metrics, {tasks.measured[prefix].name: found for prefix, found in counts.items()}


def _key(problem: int) -> int:
    """The key of a problem of an evaluation, and back; training has the keys from 0."""
    return -1 - problem


def _readable(task: Task, problem: int, rollouts: Rollouts, reward: float) -> dict[str, Any]:
    length = int(rollouts.lengths_B[0])
    return {
        "problem": task.ids[problem],
        "question": task.questions[problem],
        "response": task.text(rollouts.responses_BT[0, :length].tolist()),
        "reward": reward,
        "tokens": length,
        "stopped": bool(rollouts.stopped_B[0]),
    }


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
    on_step: Callable[[int, int], None] = ignore,
) -> tuple[list[str], Ints]:
    """The ids of all problems of a source, and how many of `samples` responses to each are correct.

    The default temperature is the paper's for sampling (table 1), since pass rates describe the policy that training
    starts from. The problems are those of `load_problems(problems, size=size, seed=seed)`, with none held out.
    """
    engine = EngineSpec.of({"model": model, "device": device})
    table = {"source": problems, "size": size, "seed": seed, "question": question, "answer": answer}
    spec = ProblemsSpec.of({**table, "verifier": verifier, "max_new_tokens": max_new_tokens})
    loaded = load_model(engine.model, dtype=engine.torch_dtype, device=engine.where)
    task, budget = whole_task(spec, loaded.folder)
    config, longest = loaded.decoder.config, max(map(len, task.prompts))
    row = row_bytes(config, engine.torch_dtype, prompt_tokens=longest, new_tokens=budget)
    rows = max(1, min(MOST_ROWS, len(task) * samples, free_bytes(loaded.device) // 2 // row))
    settings = SamplingSettings(max_new_tokens=budget, stop_tokens=loaded.stop_tokens)
    sampler = make_engine(engine, loaded.decoder, settings, rows=rows, prompt_tokens=longest)
    pool = GradingPool()
    try:
        counts = Evaluator(sampler, pool, on_step=on_step).count(
            task, samples=samples, seed=seed, temperature=temperature
        )
    finally:
        pool.close()
    return list(task.ids), counts.correct_P
