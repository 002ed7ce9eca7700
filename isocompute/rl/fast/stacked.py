"""Several cells' decoders as one: parameters of one shape stacked along a first axis.

A study's cells of one shape (seeds, learning rates, problem sets, losses) differ in their weights alone. Stacked, each
product of all of them is one batched product, and everything between products sees one large batch (`products`). The
decoders keep their parameters, which become views of the stack: evaluation, checkpoints and optimisers of a cell know
nothing of the others.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from isocompute.rl.decoder import Decoder
from isocompute.rl.fast.weights import LayerWeights, join_weights

__all__ = ["Stack"]


class Stack(Decoder):
    """A decoder whose every parameter has a first axis of cells; only the functions that use `products` can run it."""

    def __init__(self, decoders: Sequence[Decoder]) -> None:
        with torch.device("meta"):
            super().__init__(decoders[0].config)
        self.cells = len(decoders)
        self.rope_speeds, self.rope_scale = decoders[0].rope_speeds, decoders[0].rope_scale
        made: dict[nn.Parameter, nn.Parameter] = {}  # a tied head is one parameter under two names
        self._parts: list[tuple[nn.Parameter, list[nn.Parameter]]] = []
        for name, module in self.named_modules():
            for key, _ in list(module.named_parameters(recurse=False)):
                parts = [decoder.get_submodule(name).get_parameter(key) for decoder in decoders]
                if parts[0] not in made:
                    made[parts[0]] = nn.Parameter(torch.stack([part.detach() for part in parts]))
                    self._parts.append((made[parts[0]], parts))
                setattr(module, key, made[parts[0]])
        self.weights = join_weights(self)
        for stacked, parts in self._parts:
            for part, own in zip(parts, stacked.data, strict=True):
                part.data = own

    def weights_of(self, cell: int) -> list[LayerWeights]:
        """A cell's weights as the kernels read them."""
        return [
            LayerWeights(layer.qkv[cell], None if layer.bias is None else layer.bias[cell], layer.gate_up[cell])
            for layer in self.weights
        ]

    def hand_out_gradients(self) -> list[Tensor]:
        """Give every cell its part of the gradients. What is returned has to live until all cells have read theirs:
        they may do that on several streams, and one of them may be that of the memory.
        """
        out = []
        for stacked, parts in self._parts:
            if stacked.grad is not None:
                for part, own in zip(parts, stacked.grad, strict=True):
                    part.grad = own
                out.append(stacked.grad)
                stacked.grad = None
        return out
