"""A whole training step as one CUDA graph: sampling, verification, advantages, loss, backward, clipping, AdamW.

`Step.body` is the step. It asks the device nothing and its shapes are fixed, so on a GPU it is captured once and
replayed; anywhere else it is simply called. What changes from step to step (problems, learning rate, numbers of the
rows) stands in device buffers. Sums for the metrics stay on the device until an evaluation asks for them.

A step is that of one cell, or of several of one shape whose weights are stacked (`stacked`): sampling and both passes
of training are then one for all of them, verification, advantages, losses and optimisers are each cell's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import cache, partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from isocompute.core.arrays import Ints
from isocompute.core.errors import InputError
from isocompute.core.recipe import Recipe
from isocompute.rl.advantages import mixed_groups
from isocompute.rl.decoder import Block, Decoder
from isocompute.rl.fast.branches import Branches
from isocompute.rl.fast.generate import Generator
from isocompute.rl.fast.stacked import Stack
from isocompute.rl.fast.stacked_update import descend_stack
from isocompute.rl.fast.weights import LayerWeights
from isocompute.rl.optimizer import Optimizer
from isocompute.rl.sampler import Rollouts, left_padded
from isocompute.rl.tasks import Task
from isocompute.rl.update import Batch, UpdateStats, descend, make_batch, score_all

__all__ = ["SUMMED", "Part", "PromptTable", "Step", "compile_decoder"]

Result = TypeVar("Result")

_OF_BATCH = ("train/avg", "zero_variance", "response_length", "truncated")
"""Of `MEANS` those that are known before the update."""
SUMMED = (*_OF_BATCH, *(field.name for field in fields(UpdateStats)))
"""`MEANS` in the order in which the device sums them up."""


class PromptTable:
    """All prompts of a task on the device, left-padded to one width."""

    def __init__(self, task: Task, device: torch.device) -> None:
        if not all(task.prompts):
            raise InputError("a prompt is empty; give at least a start token.")
        self.prompts_PT = left_padded(task.prompts, 0).to(device)
        width = self.prompts_PT.shape[1]
        self.padding_P = torch.tensor([width - len(p) for p in task.prompts], dtype=torch.int32, device=device)

    @property
    def slots(self) -> int:
        """Tokens of the longest prompt."""
        return self.prompts_PT.shape[1]

    def fill(self, generator: Generator, index_P: Tensor, *, first: int = 0) -> None:
        """Put these problems' prompts before the generator, from place `first` on."""
        places = slice(first, first + len(index_P))
        generator.prompts_PT[places].copy_(self.prompts_PT[index_P])
        generator.padding_P[places].copy_(self.padding_P[index_P])


class Part:
    """A cell's part of a step: what it trains on and with, and what is summed up of it."""

    def __init__(
        self, decoder: Decoder, base: Decoder, optimizer: Optimizer, task: Task, recipe: Recipe, *, problems: int
    ) -> None:
        self.decoder, self.base, self.optimizer, self.recipe, self.task = decoder, base, optimizer, recipe, task
        device = decoder.embed_tokens.weight.device
        self.table = PromptTable(task, device)
        self.index_P = torch.zeros(problems, dtype=torch.long, device=device)
        self.sums = torch.zeros(len(SUMMED), dtype=torch.float64, device=device)
        self.tokens = torch.zeros((), dtype=torch.long, device=device)
        self.right_P = torch.zeros(len(task), dtype=torch.long, device=device)
        self.seen_P = torch.zeros_like(self.right_P)
        self.rollouts: Rollouts | None = None
        """Those of the last step."""

    def judge(self, rollouts: Rollouts, per_prompt: int, max_new_tokens: int) -> tuple[Batch, Tensor]:
        """What the update holds constant, and the means of the batch that do not depend on it; sums up what became of
        the problems.
        """
        problem_B, lengths_B = self.index_P.repeat_interleave(per_prompt), rollouts.lengths_B
        rewards_PN = self.task.verify(problem_B, rollouts).view(-1, per_prompt)
        means = {
            "train/avg": rewards_PN.mean(),
            "zero_variance": 1.0 - mixed_groups(rewards_PN).float().mean(),
            "response_length": lengths_B.float().mean(),
            "truncated": 1.0 - rollouts.stopped_B.float().mean(),
        }
        self.tokens += lengths_B.sum()
        self.right_P.index_add_(0, self.index_P, (rewards_PN > 0.5).sum(dim=1))
        self.seen_P.index_add_(0, self.index_P, torch.full_like(self.index_P, per_prompt))
        self.rollouts = rollouts
        batch = make_batch(self.recipe, rollouts, rewards_PN, max_new_tokens=max_new_tokens)
        return batch, torch.stack([means[name] for name in _OF_BATCH])

    def tally(self, of_batch: Tensor, of_update: Tensor) -> None:
        """Add up what `judge` and the update found."""
        self.sums += torch.cat([of_batch, of_update])

    def state(self) -> list[Tensor]:
        """Everything that a step changes."""
        optimizer = self.optimizer
        moments = [v for s in optimizer.inner.state.values() for v in s.values() if isinstance(v, Tensor)]
        sums = [self.sums, self.tokens, self.right_P, self.seen_P]
        return [*optimizer.parameters, *optimizer.masters, *moments, *sums]


class Step:
    """One training step of fixed shape, for one cell or a stack of them."""

    def __init__(
        self,
        parts: Sequence[Part],
        decoder: Decoder,
        *,
        per_prompt: int,
        max_new_tokens: int,
        stop_tokens: tuple[int, ...],
        micro_batch: int,
        weights: list[LayerWeights] | None = None,
    ) -> None:
        self.parts, self.decoder = list(parts), decoder
        self.micro_batch, self.max_new_tokens = micro_batch, max_new_tokens
        first = parts[0]
        self.branches = Branches(len(parts), first.index_P.device)
        """Where cells do what is each one's own."""
        self.generator = Generator(
            decoder,
            problems=len(first.index_P),
            per_prompt=per_prompt,
            prompt_slots=first.table.slots,
            new_slots=max_new_tokens,
            stop_tokens=stop_tokens,
            temperature=first.recipe.temperature,
            weights=weights,
        )

    def prepare(self, place: int, index_P: Ints, *, rate: float, first_row: int, seed: int) -> None:
        """What the next call of `body` trains a cell on, how fast, and the numbers of its rows."""
        part, generator = self.parts[place], self.generator
        part.index_P.copy_(torch.from_numpy(index_P), non_blocking=True)
        part.optimizer.rate.fill_(rate)
        # Filled, not assigned: an assignment copies a number from the host, and waits for the device to take it.
        generator.first_row[place : place + 1].fill_(first_row)
        generator.seed[place : place + 1].fill_(seed)

    def fill(self) -> None:
        """Put the chosen problems before the generator."""
        firsts = range(0, len(self.parts) * self.generator.problems, self.generator.problems)
        self._each(lambda part, first: part.table.fill(self.generator, part.index_P, first=first), firsts)

    def body(self) -> None:
        """Sample, verify, compare, update."""
        self.fill()
        rollouts = self.generator.run()
        n, rows = self.generator.per_prompt, self.generator.cell_rows
        own = [rollouts.rows(start, start + rows) for start in range(0, len(rollouts), rows)]
        judging = self._of_each(lambda part, of_cell: part.judge(of_cell, n, self.max_new_tokens), own)
        with self.branches.beside(judging) as judged:  # the forward pass needs none of it
            batches, means = ([pair[i] for pair in judged.results] for i in (0, 1))
            stats = self._update(rollouts, batches, judged.wait)
            self._each(Part.tally, means, stats)

    def _update(self, rollouts: Rollouts, batches: list[Batch], ready: Callable[[], None]) -> list[Tensor]:
        """The update of every cell. `ready` is called before anything of the batches is read but their rollouts."""
        n, rows, recipe = self.generator.per_prompt, self.generator.cell_rows, self.parts[0].recipe
        if recipe.kl_coef:
            base_BT = score_all(self.parts[0].base, rollouts, recipe, micro_batch=self.micro_batch, fixed=n)
            pairs = zip(batches, torch.split(base_BT, rows), strict=True)
            batches = [replace(batch, base_logprobs_BT=of_cell) for batch, of_cell in pairs]
        if isinstance(self.decoder, Stack):
            recipes, optimizers = [part.recipe for part in self.parts], [part.optimizer for part in self.parts]
            return descend_stack(
                self.decoder, optimizers, rollouts, batches, recipes, fixed=n, branches=self.branches, ready=ready
            )
        optimizer, size = self.parts[0].optimizer, self.micro_batch
        return [descend(self.decoder, optimizer, batches[0], recipe, micro_batch=size, fixed=n, ready=ready)]

    def _of_each(self, do: Callable[..., Result], *inputs: Sequence[Any]) -> list[Callable[[], Result]]:
        """The same for every part, given its own of each input."""
        return [partial(do, *own) for own in zip(self.parts, *inputs, strict=True)]

    def _each(self, do: Callable[..., Result], *inputs: Sequence[Any]) -> list[Result]:
        """Do the same with every part, given its own of each input."""
        return self.branches.each(self._of_each(do, *inputs))

    @torch.no_grad()
    def warm_up(self) -> None:
        """Run the body and undo it: capturing needs a few real steps first (kernels are compiled, moments are made), of
        which nothing may stay.
        """
        before = [(tensor, tensor.detach().clone()) for part in self.parts for tensor in part.state()]
        optimizers = [part.optimizer for part in self.parts]
        fresh = [optimizer for optimizer in optimizers if not any(optimizer.inner.state.values())]
        try:
            for _ in range(2):
                self.body()
        finally:
            for tensor, value in before:
                tensor.copy_(value)
            for optimizer in optimizers:
                for parameter in (*optimizer.parameters, *optimizer.masters):
                    parameter.grad = None
            for optimizer in fresh:  # moments and counts that did not exist before start from zero
                for state in optimizer.inner.state.values():
                    for value in state.values():
                        value.zero_()


_SHAPES = 128


def compile_decoder(decoder: Decoder) -> None:
    """Fuse what surrounds the products of sequences too long for `shared`; rounding stays where the plain path has it.

    What is short has kernels for that, and needs no compiling for a new shape: nothing is compiled, or loaded that
    compiles, before it is called.
    """
    decoder.block = _compiled_block


def _compiled_block(*inputs: Any) -> Tensor:
    """`Block.forward`, compiled when it is first called."""
    out: Tensor = _compile_block()(*inputs)
    return out


@cache
def _compile_block() -> Callable[..., Tensor]:
    # Every shape is compiled by itself, and a worker may meet many; beyond the limit nothing is compiled.
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, _SHAPES)
    return torch.compile(Block.forward, dynamic=False, options={"emulate_precision_casts": True})
