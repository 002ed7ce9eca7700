"""Training with whole steps of fixed shape: the same run as `LmTraining`, with the device never asked between points.

On a GPU a step is captured as a CUDA graph at the first update (`replay`); elsewhere the same step is called.
Problems, random numbers and learning rates are those of the plain path, so in FP32 both sample the same tokens.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from dataclasses import fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from isocompute.core.arrays import Ints
from isocompute.core.recipe import Recipe, learning_rate
from isocompute.rl.config import DecoderConfig
from isocompute.rl.evaluation import Counts
from isocompute.rl.fast.generate import Generator, fits_kernels
from isocompute.rl.fast.replay import Replay
from isocompute.rl.fast.step import SUMMED, Part, PromptTable, Step, compile_decoder
from isocompute.rl.fast.weights import LayerWeights, join_weights
from isocompute.rl.sampler import Rollouts, SamplingSettings
from isocompute.rl.tasks import Task, Tasks
from isocompute.rl.training import MEANS, LmTraining
from isocompute.rl.update import UpdateStats, refuse_divergence
from isocompute.rl.verifiers import ChainVerifier
from isocompute.sweep.base import Cell

__all__ = ["FastTraining", "can_be_fast", "shape"]

_LOOK = 64
"""Updates between looks at the device: whether the numbers are still numbers, and not to run too far ahead of it."""


def can_be_fast(cell: Cell, config: DecoderConfig, tasks: Tasks, recipe: Recipe) -> bool:
    """Whether a cell's steps have fixed shapes that the kernels know, and a verifier that runs on the device."""
    return (
        fits_kernels(config, top_p=recipe.top_p, temperature=recipe.temperature)
        and recipe.fp32_head
        and recipe.advantage != "gae"
        and recipe.baseline_rollouts is None
        and recipe.no_positive_resampling is None
        and cell.problems_per_batch <= len(tasks.train)
        and all(isinstance(task.verify, ChainVerifier) for task in (tasks.train, tasks.validation))
    )


class FastTraining(LmTraining):
    """`LmTraining` in steps of fixed shape, its own or those of a stack that it is in (`stack`)."""

    captured = True

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.fixed = self.cell.rollouts_per_problem
        self.on_gpu = self.model.device.type == "cuda"
        self.part = Part(
            self.decoder,
            self.model.decoder,
            self.optimizer,
            self.tasks.train,
            self.recipe,
            problems=self.cell.problems_per_batch,
        )
        self.share = 1.0
        """Share of the device that the cell has had since its counters were last fetched."""
        self._stack: tuple[Step, int] | None = None
        self._weights: list[LayerWeights] | None = None
        self._started: float | None = None
        self._unseen = 0
        """Updates that the device has summed up and nobody has looked at."""
        self._drawn_P: Ints | None = None
        self._measuring: dict[tuple[str, float], tuple[Generator, PromptTable, Replay[Rollouts]]] = {}

    def enter(self, step: Step, place: int, weights: list[LayerWeights]) -> None:
        """Be a part of a stack from now on, whose owner calls the step."""
        self._forget_places()
        self._stack, self._weights = (step, place), weights

    def stand_alone(self) -> None:
        """Be part of a stack no longer; one that did not fit memory may have moved the weights before it failed."""
        self._forget_places()
        self._stack = None

    def _forget_places(self) -> None:
        """The weights have moved: what was built on their old place, graphs of evaluations among it, is built anew."""
        self._weights = None
        self._measuring.clear()
        for built in ("step_of_own", "_replay", "_sampling"):
            self.__dict__.pop(built, None)

    @cached_property
    def step_of_own(self) -> Step:
        """The step of this cell alone."""
        if self.on_gpu:
            compile_decoder(self.decoder)
        return Step([self.part], self.decoder, micro_batch=self.sizes.micro_batch, weights=self.weights, **shape(self))

    @property
    def weights(self) -> list[LayerWeights]:
        """The decoder's weights as the kernels read them."""
        if self._weights is None:
            self._weights = join_weights(self.decoder)
        return self._weights

    def update(self) -> bool:
        """One batch; nothing is known of it until the next point."""
        self.begin_update()
        self.make_step()
        self.end_update()
        return True

    def begin_update(self) -> None:
        """Say what the next call of the step trains on; said again, it is the same."""
        if self._started is None:
            self._started = time.perf_counter()
        bp, n = self.cell.problems_per_batch, self.cell.rollouts_per_problem
        step, place = self._stack or (self.step_of_own, 0)
        if self._drawn_P is None:
            self._drawn_P = self.sampler.draw(bp, np.random.default_rng([self.cell.seed, self.step]))
        rate = learning_rate(self.recipe, batch_size=bp * n, step=self.step)
        step.prepare(place, self._drawn_P, rate=rate, first_row=self.rollouts, seed=self.cell.seed)

    def end_update(self) -> None:
        """Count what the step was told to do."""
        self._drawn_P = None
        self.step += 1
        self._unseen += 1
        self.rollouts += self.cell.batch_size
        if self.step % _LOOK == 0:
            self._pull()

    @cached_property
    def _replay(self) -> Replay[None]:
        return Replay(self.step_of_own.body, on_gpu=self.on_gpu, warm_up=self.step_of_own.warm_up)

    def make_step(self) -> None:
        """The step of this cell alone, with the largest micro-batch that fits: half of one that did not, and so on."""
        while True:
            try:
                return self._replay()
            except torch.OutOfMemoryError:
                tried = min(self.step_of_own.micro_batch, self.cell.batch_size)
                if tried == 1:
                    raise
            self.step_of_own.micro_batch = tried // 2
            self.sizes = replace(self.sizes, micro_batch=tried // 2)
            warnings.warn(f"{tried} rollouts at once do not fit memory; training on {tried // 2}.", stacklevel=2)
            torch.cuda.empty_cache()

    def evaluate(self) -> dict[str, Any]:
        """The point of this step."""
        self._pull()
        return super().evaluate()

    @cached_property
    def _sampling(self) -> Replay[Rollouts]:
        return Replay(self.step_of_own.generator.run, on_gpu=self.on_gpu)

    def sample_only(self, index_P: Ints) -> Rollouts:
        """Responses to these problems and nothing else, as a graph of its own on a GPU."""
        self.part.index_P.copy_(torch.from_numpy(index_P))
        self.step_of_own.fill()
        return self._sampling()

    def settle(self) -> None:
        """Fetch what the device has counted."""
        self._pull()

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Everything `restore` needs."""
        self._pull()
        return super().state()

    def _pull(self) -> None:
        """Fetch what the device has summed up since the last time, and refuse what no run should go on from."""
        part = self.part
        sums = dict(zip(SUMMED, part.sums.tolist(), strict=True))  # waits for the device
        if self._started is not None:
            self.seconds += (time.perf_counter() - self._started) * self.share
            self._started = None
        self._last = part.rollouts
        self._sums = self._sums + [sums[name] for name in MEANS]
        self._right_P = self._right_P + part.right_P.cpu().numpy()
        self._seen_P = self._seen_P + part.seen_P.cpu().numpy()
        self.tokens += int(part.tokens)
        for tensor in (part.sums, part.right_P, part.seen_P, part.tokens):
            tensor.zero_()
        updates, self._unseen = self._unseen, 0
        if updates:
            refuse_divergence(_mean_stats(sums, updates), self.decoder.config.vocab_size)

    def _count(self, task: Task, settings: SamplingSettings, *, seed: int) -> Counts:
        """Evaluation with the kernels: a fixed number of problems at a time, the last round filled up."""
        samples = self.evaluation.samples
        if settings.temperature == 0:
            return super()._count(task, settings, seed=seed)
        generator, table, run = self._generator(task, settings)
        device, at_once = self.model.device, generator.problems
        generator.seed.fill_(seed)
        correct_P = np.zeros(len(task), dtype=np.int64)
        length = truncated = 0.0
        for start in range(0, len(task), at_once):
            count = min(at_once, len(task) - start)
            index_P = (torch.arange(start, start + at_once, device=device)) % len(task)
            table.fill(generator, index_P)
            generator.first_row.fill_(start * samples)
            out = run()
            rewards_PN = task.verify(index_P.repeat_interleave(samples), out).view(at_once, samples)
            correct_P[start : start + count] = (rewards_PN[:count] > 0.5).sum(dim=1).cpu().numpy()
            length += float(out.lengths_B[: count * samples].sum())
            truncated += float((~out.stopped_B[: count * samples]).sum())
        total = len(task) * samples
        return Counts(correct_P, samples, length / total, truncated / total)

    def _generator(self, task: Task, settings: SamplingSettings) -> tuple[Generator, PromptTable, Replay[Rollouts]]:
        key = (task.name, settings.temperature)
        if key not in self._measuring:
            table = PromptTable(task, self.model.device)
            generator = Generator(
                self.decoder,
                problems=min(len(task), max(1, self.sizes.sample_batch // self.evaluation.samples)),
                per_prompt=self.evaluation.samples,
                prompt_slots=table.slots,
                new_slots=settings.max_new_tokens,
                stop_tokens=settings.stop_tokens,
                temperature=settings.temperature,
                weights=self.weights,
            )
            self._measuring[key] = generator, table, Replay(generator.run, on_gpu=self.on_gpu)
        return self._measuring[key]


def _mean_stats(sums: Mapping[str, float], updates: int) -> UpdateStats:
    """What one update saw, on average, from sums over this many of them."""
    return UpdateStats(**{field.name: sums[field.name] / updates for field in fields(UpdateStats)})


def shape(training: FastTraining) -> dict[str, Any]:
    """What fixes the shapes of a cell's step, beside its model, its prompts and the size of a batch."""
    return {
        "per_prompt": training.cell.rollouts_per_problem,
        "max_new_tokens": training.tasks.max_new_tokens,
        "stop_tokens": training.model.stop_tokens,
    }
