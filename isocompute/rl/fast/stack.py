"""Cells of one shape that take their steps together (`stacked` has their weights)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch

from isocompute.rl.fast.attention import fits_attention
from isocompute.rl.fast.replay import Replay
from isocompute.rl.fast.stacked import Stack
from isocompute.rl.fast.step import Step
from isocompute.rl.fast.training import FastTraining, shape

__all__ = ["StackedTrainings", "stacks_with"]


def stacks_with(training: FastTraining) -> Hashable:
    """What two trainings must have in common to be stacked; None: nothing stacks with this one.

    Seeds, learning rates, problems, losses, advantages, filters and optimisers may differ; what the shared passes see
    may not. A batch that is trained on in parts fills the device by itself.
    """
    cell, recipe, table = training.cell, training.recipe, training.part.table
    tokens, config = training.tasks.max_new_tokens, training.decoder.config
    short = fits_attention(slots=table.slots, tokens=tokens - 1, head_dim=config.head_dim)
    if not short or cell.batch_size > training.sizes.micro_batch:
        return None
    weights = training.model.decoder.embed_tokens.weight
    return (
        training.model.folder,
        weights.dtype,
        weights.device,
        cell.problems_per_batch,
        tuple(shape(training).items()),
        table.slots,
        recipe.temperature,
        recipe.updates_per_batch,
        recipe.kl_coef > 0,
    )


class StackedTrainings:
    """Trainings that make every update together. One that has ended stays in the stack and stands still."""

    def __init__(self, trainings: Sequence[FastTraining]) -> None:
        self.trainings, first = list(trainings), trainings[0]
        stack = Stack([training.decoder for training in trainings])
        parts, rows = [training.part for training in trainings], len(trainings) * first.cell.batch_size
        self.step = Step(parts, stack, micro_batch=rows, weights=stack.weights, **shape(first))
        for place, training in enumerate(trainings):
            training.enter(self.step, place, stack.weights_of(place))
        self._replay = Replay(self.step.body, on_gpu=first.on_gpu, warm_up=self.step.warm_up)

    def make_step(self) -> None:
        """The step of all of them, between `begin_update` and `end_update` of each that is still going."""
        self._replay()

    def leave(self, training: FastTraining) -> None:
        """A training has ended: its weights must not move any more."""
        with torch.no_grad():
            training.optimizer.rate.zero_()
