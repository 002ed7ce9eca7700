"""The update of a stack: one forward and one backward pass for all cells, a loss and an optimiser for each.

The loss of a cell is a function of its log-probs and entropies alone. Its gradient with respect to them is each cell's
own small matter; carried on through the decoder they are one large one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from isocompute.core.recipe import Recipe
from isocompute.rl.fast.branches import Branches
from isocompute.rl.fast.stacked import Stack
from isocompute.rl.optimizer import Optimizer
from isocompute.rl.sampler import Rollouts
from isocompute.rl.scoring import score
from isocompute.rl.update import Batch, objective, score_all

__all__ = ["descend_stack"]


def descend_stack(
    stack: Stack,
    optimizers: Sequence[Optimizer],
    rollouts: Rollouts,
    batches: Sequence[Batch],
    recipes: Sequence[Recipe],
    *,
    fixed: int,
    branches: Branches,
    ready: Callable[[], None] = lambda: None,
) -> list[Tensor]:
    """`update.descend` of every cell; recipes may differ in all but temperature, head and updates a batch."""
    common, rows = recipes[0], len(rollouts) // stack.cells
    if common.updates_per_batch > 1:
        old_BT = score_all(stack, rollouts, common, micro_batch=len(rollouts), fixed=fixed)
        batches = [replace(b, old_logprobs_BT=own) for b, own in zip(batches, torch.split(old_BT, rows), strict=True)]
    firsts: list[Tensor] = []
    for _ in range(common.updates_per_batch):
        with torch.enable_grad():
            both = score(stack, rollouts, temperature=common.temperature, fp32_head=common.fp32_head, fixed=fixed)
        ready()
        parts = zip(batches, recipes, *(torch.split(x_BT.detach(), rows) for x_BT in both), strict=True)
        found = branches.each([partial(_of_cell, *part) for part in parts])
        torch.autograd.backward(both, [torch.cat(grads) for grads in zip(*(grads for _, grads in found), strict=True)])
        shared = stack.hand_out_gradients()
        norms = branches.each([partial(_stepped, optimizer) for optimizer in optimizers])
        del shared
        if not firsts:
            firsts = [torch.stack([s[0], norm, s[1], s[2]]) for (s, _), norm in zip(found, norms, strict=True)]
        else:
            for first, norm in zip(firsts, norms, strict=True):  # a later step that left the numbers shows too
                first[1] = torch.where(torch.isfinite(norm), first[1], norm)
    return firsts


def _stepped(optimizer: Optimizer) -> Tensor:
    """A step on the gradients that were handed out; their norm."""
    optimizer.collect()
    return optimizer.step()


def _of_cell(batch: Batch, recipe: Recipe, logprobs_BT: Tensor, entropies_BT: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Loss, entropy and gap of a cell as `update.descend` has them, and the loss's gradients."""
    inputs = [x_BT.clone().requires_grad_() for x_BT in (logprobs_BT, entropies_BT)]
    with torch.enable_grad():
        loss = objective(recipe, batch, *inputs)
        grads = torch.autograd.grad(loss, inputs, allow_unused=True, materialize_grads=True)
    tokens = batch.rollouts.sampled_BT.sum()
    gap_BT = (logprobs_BT - batch.rollouts.logprobs_BT).abs()
    return torch.stack([loss.detach(), entropies_BT.sum() / tokens, gap_BT.sum() / tokens]), list(grads)
