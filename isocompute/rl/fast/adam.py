"""AdamW of a small model: one kernel over all weights, gradients and moments, which stand one after the other.

PyTorch's fused AdamW gives a block 65,536 numbers, so that a small model keeps a fifth of a large GPU busy: 150 µs for
1.8M parameters, against the few that reading and writing them takes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor, nn

from isocompute.core.recipe import Recipe
from isocompute.rl.fast.tiles import tiles_of

__all__ = ["FlatAdamW"]

_ALIGNED = 64
"""Numbers of which every parameter begins at a multiple: copies of several at a time want that."""
_BLOCK = 1024
"""Numbers of a program."""


class FlatAdamW(torch.optim.Optimizer):
    """`torch.optim.AdamW` for FP32 parameters that all have a gradient at every step; its state has the same names.

    The parameters' data move into one array. Their gradients belong to the places that `rooms` has for them, and
    `step_within` takes the place of `step`, which knows of no norm.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], rate: Tensor, recipe: Recipe) -> None:
        super().__init__(list(parameters), {"lr": rate})
        self.rate, self.recipe = rate, recipe
        *firsts, total = accumulate((-(-p.numel() // _ALIGNED) * _ALIGNED for p in parameters), initial=0)
        self._all = weights, grads, means, squares = [torch.zeros(total, device=rate.device) for _ in range(4)]
        self._steps = torch.zeros((), device=rate.device)
        self.rooms: dict[nn.Parameter, Tensor] = {}
        for parameter, first in zip(parameters, firsts, strict=True):
            own = slice(first, first + parameter.numel())
            weight, grad, mean, square = (x[own].view(parameter.shape) for x in (weights, grads, means, squares))
            weight.copy_(parameter.data)
            parameter.data, self.rooms[parameter] = weight, grad
            self.state[parameter] = {"step": self._steps, "exp_avg": mean, "exp_avg_sq": square}

    @torch.no_grad()
    def step_within(self, norm: Tensor, clip: float | None) -> None:
        """A step by gradients of this norm, clipped where it is larger; one that is not a number changes nothing."""
        from isocompute.rl.fast import adam_kernels

        assert all(parameter.grad is room for parameter, room in self.rooms.items()), "a gradient is not in its place"
        recipe, count = self.recipe, self._all[0].numel()
        self._steps += norm < math.inf
        adam_kernels.adamw[(tiles_of(count, _BLOCK),)](
            *self._all,
            self.rate,
            self._steps,
            norm,
            count,
            recipe.epsilon,
            recipe.weight_decay,
            math.inf if clip is None else clip,
            BETA1=recipe.beta1,
            BETA2=recipe.beta2,
            LOG1=math.log(recipe.beta1) if recipe.beta1 else -math.inf,
            LOG2=math.log(recipe.beta2) if recipe.beta2 else -math.inf,
            N=_BLOCK,
        )
