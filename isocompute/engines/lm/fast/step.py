"""A whole training step as one CUDA graph: sampling, verification, advantages, loss, backward, clipping, AdamW.

`Step.body` is the step. It asks the device nothing and its shapes are fixed, so on a GPU it is captured once and
replayed; anywhere else it is simply called. What changes from step to step (problems, learning rate, numbers of the
rows) stands in device buffers. Sums for the metrics stay on the device until an evaluation asks for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from isocompute.arrays import Ints
from isocompute.engines.lm.advantages import mixed_groups
from isocompute.engines.lm.decoder import Block, Decoder
from isocompute.engines.lm.fast.generate import Generator
from isocompute.engines.lm.fast.shared import predicting, shared_block
from isocompute.engines.lm.fast.weights import LayerWeights
from isocompute.engines.lm.optimizer import Optimizer
from isocompute.engines.lm.sampler import Rollouts, left_padded
from isocompute.engines.lm.scoring import residual_scores
from isocompute.engines.lm.tasks import Task
from isocompute.engines.lm.training import MEANS
from isocompute.engines.lm.update import descend, make_batch, score_all
from isocompute.recipes import Recipe

__all__ = ["PromptTable", "Step", "capture", "capture_sampling", "compile_decoder"]


class PromptTable:
    """All prompts of a task on the device, left-padded to one width."""

    def __init__(self, task: Task, device: torch.device) -> None:
        self.prompts_PT = left_padded(task.prompts, 0).to(device)
        width = self.prompts_PT.shape[1]
        self.padding_P = torch.tensor([width - len(p) for p in task.prompts], dtype=torch.int32, device=device)

    def fill(self, generator: Generator, index_P: Tensor) -> None:
        """Put these problems' prompts before the generator."""
        generator.prompts_PT.copy_(self.prompts_PT[index_P])
        generator.padding_P.copy_(self.padding_P[index_P])


class Step:
    """One training step of fixed shape."""

    def __init__(
        self,
        decoder: Decoder,
        base: Decoder,
        optimizer: Optimizer,
        task: Task,
        recipe: Recipe,
        *,
        problems: int,
        per_prompt: int,
        max_new_tokens: int,
        stop_tokens: tuple[int, ...],
        micro_batch: int,
        weights: list[LayerWeights] | None = None,
    ) -> None:
        self.decoder, self.base, self.optimizer, self.recipe, self.task = decoder, base, optimizer, recipe, task
        self.micro_batch, self.max_new_tokens = micro_batch, max_new_tokens
        device = decoder.embed_tokens.weight.device
        self.table = PromptTable(task, device)
        self.generator = Generator(
            decoder,
            problems=problems,
            per_prompt=per_prompt,
            prompt_slots=self.table.prompts_PT.shape[1],
            new_slots=max_new_tokens,
            stop_tokens=stop_tokens,
            temperature=recipe.temperature,
            weights=weights,
        )
        self.index_P = torch.zeros(problems, dtype=torch.long, device=device)
        self.sums = torch.zeros(len(MEANS), dtype=torch.float64, device=device)
        self.tokens = torch.zeros((), dtype=torch.long, device=device)
        self.right_P, self.seen_P = (torch.zeros(len(task), dtype=torch.long, device=device) for _ in "ab")
        self.rollouts: Rollouts | None = None
        """Those of the last step."""

    def body(self) -> None:
        """Sample, verify, compare, update."""
        recipe, generator = self.recipe, self.generator
        self.table.fill(generator, self.index_P)
        rollouts = generator.run()
        n = generator.per_prompt
        rewards_PN = self.task.verify(self.index_P.repeat_interleave(n), rollouts).view(-1, n)
        batch = make_batch(recipe, rollouts, rewards_PN, max_new_tokens=self.max_new_tokens)
        if recipe.kl_coef:
            base_BT = score_all(self.base, rollouts, recipe, micro_batch=self.micro_batch, fixed=n)
            batch = replace(batch, base_logprobs_BT=base_BT)
        stats = descend(self.decoder, self.optimizer, batch, recipe, micro_batch=self.micro_batch, fixed=n)
        lengths_B = rollouts.lengths_B
        means = [  # in the order of MEANS
            rewards_PN.mean(),
            1.0 - mixed_groups(rewards_PN).float().mean(),
            stats[1],
            stats[2],
            stats[3],
            lengths_B.float().mean(),
            1.0 - rollouts.stopped_B.float().mean(),
            stats[0],
        ]
        self.sums += torch.stack(means).double()
        self.tokens += lengths_B.sum()
        self.right_P.index_add_(0, self.index_P, (rewards_PN > 0.5).sum(dim=1))
        self.seen_P.index_add_(0, self.index_P, torch.full_like(self.index_P, n))
        self.rollouts = rollouts

    def prepare(self, index_P: Ints, *, rate: float, first_row: int, seed: int) -> None:
        """What the next call of `body` trains on, how fast, and the numbers of its rows."""
        self.index_P.copy_(torch.from_numpy(index_P), non_blocking=True)
        self.optimizer.rate.fill_(rate)
        self.generator.first_row.fill_(first_row)
        self.generator.seed.fill_(seed)

    # Capturing needs a few real steps first (kernels are compiled, moments are made); nothing of them may stay.

    def remember(self) -> list[tuple[Tensor, Tensor]]:
        """Everything that a step changes, and what it was."""
        state: list[Tensor] = [*self.optimizer.parameters, *self.optimizer.masters]
        state += [v for s in self.optimizer.inner.state.values() for v in s.values() if isinstance(v, Tensor)]
        state += [self.sums, self.tokens, self.right_P, self.seen_P]
        return [(tensor, tensor.detach().clone()) for tensor in state]

    @torch.no_grad()
    def warm_up(self) -> None:
        """Run the body and undo it."""
        before = self.remember()
        fresh = not self.optimizer.inner.state
        try:
            for _ in range(2):
                self.body()
        finally:
            for tensor, value in before:
                tensor.copy_(value)
            for parameter in (*self.optimizer.parameters, *self.optimizer.masters):
                parameter.grad = None
            if fresh:  # moments and counts that did not exist before start from zero
                for state in self.optimizer.inner.state.values():
                    for value in state.values():
                        value.zero_()


def capture(steps: Sequence[Step]) -> Any:
    """One CUDA graph for several steps side by side, each on a stream of its own; `replay()` runs them all.

    Cells of a study that are too small to fill a GPU alone share it this way, each with exactly its own kernels.
    """
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch's own annotation is missing
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for step in steps:
            step.warm_up()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()  # the graph has memory of its own
    graph = torch.cuda.CUDAGraph()
    streams = [torch.cuda.Stream() for _ in steps[1:]]  # type: ignore[no-untyped-call]  # likewise
    with torch.cuda.graph(graph):
        main = torch.cuda.current_stream()
        for step, side in zip(steps[1:], streams, strict=True):
            side.wait_stream(main)
            with torch.cuda.stream(side):
                step.body()
        steps[0].body()
        for side in streams:
            main.wait_stream(side)
    return graph


def capture_sampling(step: Step) -> tuple[Any, Rollouts]:
    """A CUDA graph of a step's sampling alone, and the rollouts it leaves."""
    step.generator.run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        rollouts = step.generator.run()
    return graph, rollouts


_SHAPES = 128


def compile_decoder(decoder: Decoder) -> None:
    """Fuse what surrounds the matrix products of training; rounding stays where the plain path has it."""
    options: dict[str, Any] = {"emulate_precision_casts": True}
    # Every shape is compiled by itself (a block twice: the first has no sum to make up for), and a worker may meet many
    # in its cells; beyond the limit nothing is compiled.
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, _SHAPES)
    for function in (Block.forward, shared_block, predicting, residual_scores):
        decoder.compiled[function] = torch.compile(function, dynamic=False, options=options)
