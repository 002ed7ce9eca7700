"""Training with whole steps of fixed shape: the same run as `LmTraining`, with the device never asked between points.

On a GPU a step is captured as a CUDA graph at the first update; elsewhere the same step is called. Problems, random
numbers and learning rates are those of the plain path, so in FP32 both sample the same tokens.
"""

from __future__ import annotations

import time
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from isocompute.arrays import Ints
from isocompute.engines.base import Cell
from isocompute.engines.lm.evaluation import Counts
from isocompute.engines.lm.fast.generate import Generator, fits_kernels
from isocompute.engines.lm.fast.step import PromptTable, Step, capture, capture_sampling, compile_decoder
from isocompute.engines.lm.fast.weights import join_weights
from isocompute.engines.lm.model import Model
from isocompute.engines.lm.sampler import Rollouts, SamplingSettings
from isocompute.engines.lm.tasks import Task, Tasks
from isocompute.engines.lm.training import LmTraining
from isocompute.engines.lm.update import UpdateStats, refuse_divergence
from isocompute.engines.lm.verifiers import ChainVerifier
from isocompute.recipes import Recipe, learning_rate

__all__ = ["FastTraining", "can_be_fast"]

_LOOK = 64
"""Updates between looks at the device: whether the numbers are still numbers, and not to run too far ahead of it."""


def can_be_fast(cell: Cell, model: Model, tasks: Tasks, recipe: Recipe) -> bool:
    """Whether a cell's steps have fixed shapes that the kernels know, and a verifier that runs on the device."""
    return (
        fits_kernels(model.decoder.config, top_p=recipe.top_p, temperature=recipe.temperature)
        and recipe.fp32_head
        and recipe.advantage != "gae"
        and recipe.baseline_rollouts is None
        and recipe.no_positive_resampling is None
        and cell.problems_per_batch <= len(tasks.train)
        and all(isinstance(task.verify, ChainVerifier) for task in (tasks.train, tasks.validation))
    )


class FastTraining(LmTraining):
    """`LmTraining` in steps of fixed shape."""

    fixed = True

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._weights = join_weights(self.decoder)
        self._on_gpu = self.model.device.type == "cuda"
        if self._on_gpu:
            compile_decoder(self.decoder)
        self._step = Step(
            self.decoder,
            self.model.decoder,
            self.optimizer,
            self.tasks.train,
            self.recipe,
            problems=self.cell.problems_per_batch,
            per_prompt=self.cell.rollouts_per_problem,
            max_new_tokens=self.tasks.max_new_tokens,
            stop_tokens=self.model.stop_tokens,
            micro_batch=self.sizes.micro_batch,
            weights=self._weights,
        )
        self._graph: Any = None
        self._sampling: tuple[Any, Rollouts] | None = None
        self._started: float | None = None
        self._measuring: dict[tuple[str, float], tuple[Generator, PromptTable]] = {}

    def update(self) -> bool:
        """One batch; nothing is known of it until the next point."""
        if self._started is None:
            self._started = time.perf_counter()
        bp, n = self.cell.problems_per_batch, self.cell.rollouts_per_problem
        index_P = self.sampler.draw(bp, np.random.default_rng([self.cell.seed, self.step]))
        rate = learning_rate(self.recipe, batch_size=bp * n, step=self.step)
        self._step.prepare(index_P, rate=rate, first_row=self.rollouts, seed=self.cell.seed)
        if not self._on_gpu:
            self._step.body()
        else:
            if self._graph is None:
                self._graph = self._captured()
            self._graph.replay()
        self.step += 1
        self.rollouts += bp * n
        if self.step % _LOOK == 0:
            self._pull()
        return True

    def _captured(self) -> Any:
        """The step as a graph, with the largest micro-batch that fits: half of one that did not, and so on."""
        while True:
            try:
                return capture([self._step])
            except torch.OutOfMemoryError:
                tried = min(self._step.micro_batch, self.cell.batch_size)
                if tried == 1:
                    raise
            self._step.micro_batch = tried // 2
            self.sizes = replace(self.sizes, micro_batch=tried // 2)
            warnings.warn(f"{tried} rollouts at once do not fit memory; training on {tried // 2}.", stacklevel=2)
            torch.cuda.empty_cache()

    def evaluate(self) -> dict[str, Any]:
        """The point of this step."""
        self._pull()
        return super().evaluate()

    def sample_only(self, index_P: Ints) -> Rollouts:
        """Responses to these problems and nothing else, as a graph of its own on a GPU."""
        self._step.index_P.copy_(torch.from_numpy(index_P))
        self._step.table.fill(self._step.generator, self._step.index_P)
        if not self._on_gpu:
            return self._step.generator.run()
        if self._sampling is None:
            self._sampling = capture_sampling(self._step)
        graph, rollouts = self._sampling
        graph.replay()
        return rollouts

    def settle(self) -> None:
        """Fetch what the device has counted."""
        self._pull()

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Everything `restore` needs."""
        self._pull()
        return super().state()

    def _pull(self) -> None:
        """Fetch what the device has summed up."""
        step = self._step
        sums = step.sums.cpu().numpy()  # waits for the device
        if self._started is not None:
            self.seconds += time.perf_counter() - self._started
            self._started = None
        self._last = step.rollouts
        self._sums = self._sums + sums
        self._right_P = self._right_P + step.right_P.cpu().numpy()
        self._seen_P = self._seen_P + step.seen_P.cpu().numpy()
        self.tokens += int(step.tokens)
        for tensor in (step.sums, step.right_P, step.seen_P, step.tokens):
            tensor.zero_()
        if sums.any():
            norm, entropy, gap, loss = sums[2], sums[3], sums[4], sums[7]
            updates = max(1, self.step - max(self.last_evaluated, 0))
            refuse_divergence(UpdateStats(loss, norm, entropy / updates, gap), self.decoder.config.vocab_size)

    def _count(self, task: Task, settings: SamplingSettings, *, seed: int) -> Counts:
        """Evaluation with the kernels: a fixed number of problems at a time, the last round filled up."""
        samples = self.evaluation.samples
        if settings.temperature == 0:
            return super()._count(task, settings, seed=seed)
        generator, table = self._generator(task, settings)
        device, at_once = self.model.device, generator.problems
        generator.seed.fill_(seed)
        correct_P = np.zeros(len(task), dtype=np.int64)
        length = truncated = 0.0
        for start in range(0, len(task), at_once):
            count = min(at_once, len(task) - start)
            index_P = (torch.arange(start, start + at_once, device=device)) % len(task)
            table.fill(generator, index_P)
            generator.first_row.fill_(start * samples)
            out = generator.run()
            rewards_PN = task.verify(index_P.repeat_interleave(samples), out).view(at_once, samples)
            correct_P[start : start + count] = (rewards_PN[:count] > 0.5).sum(dim=1).cpu().numpy()
            length += float(out.lengths_B[: count * samples].sum())
            truncated += float((~out.stopped_B[: count * samples]).sum())
        total = len(task) * samples
        return Counts(correct_P, samples, length / total, truncated / total)

    def _generator(self, task: Task, settings: SamplingSettings) -> tuple[Generator, PromptTable]:
        key = (task.name, settings.temperature)
        if key not in self._measuring:
            table = PromptTable(task, self.model.device)
            generator = Generator(
                self.decoder,
                problems=min(len(task), max(1, self.sizes.sample_batch // self.evaluation.samples)),
                per_prompt=self.evaluation.samples,
                prompt_slots=table.prompts_PT.shape[1],
                new_slots=settings.max_new_tokens,
                stop_tokens=settings.stop_tokens,
                temperature=settings.temperature,
                weights=self._weights,
            )
            self._measuring[key] = generator, table
        return self._measuring[key]
