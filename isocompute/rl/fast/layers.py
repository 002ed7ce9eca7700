"""A decoder's layers with a library's matrix products and the kernels of `between`: for prompts, and for decoding many
rows or a wide model. What attends is the caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from isocompute.rl.decoder import Block, Decoder
from isocompute.rl.fast.passes import launch_add_and_norm, launch_swiglu
from isocompute.rl.fast.products import product
from isocompute.rl.fast.weights import LayerWeights

__all__ = ["through_layers"]


def through_layers(
    decoder: Decoder, weights: Sequence[LayerWeights], x_ND: Tensor, attend: Callable[[int, Tensor], Tensor]
) -> None:
    """Take the residual stream through all layers, in place; `attend` makes attention's output of q, k and v."""
    epsilon = decoder.config.rms_norm_eps
    pending: Tensor | None = None  # what the last layer adds
    for index, (layer, joined) in enumerate(zip(decoder.layers, weights, strict=True)):
        assert isinstance(layer, Block)
        normed_ND = launch_add_and_norm(x_ND, pending, x_ND, layer.input_layernorm.weight, epsilon)
        attended_NC = attend(index, product(normed_ND, joined.qkv, joined.bias))
        added_ND = product(attended_NC, layer.self_attn.o_proj.weight)
        normed_ND = launch_add_and_norm(x_ND, added_ND, x_ND, layer.post_attention_layernorm.weight, epsilon)
        pending = product(launch_swiglu(product(normed_ND, joined.gate_up)), layer.mlp.down_proj.weight)
    if pending is not None:
        x_ND += pending
