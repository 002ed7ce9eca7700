"""A decoder's layers with a library's matrix products and the kernels of `between`: for prompts, and for decoding many
rows or a wide model. What attends is the caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from isocompute.engines.lm.decoder import Block, Decoder
from isocompute.engines.lm.fast.attention import padded
from isocompute.engines.lm.fast.products import product
from isocompute.engines.lm.fast.tiles import tiles_of, triton_type
from isocompute.engines.lm.fast.weights import LayerWeights

__all__ = ["through_layers"]

_BLOCK = 2048
"""Numbers that a program of `between` has."""


def through_layers(
    decoder: Decoder, weights: Sequence[LayerWeights], x_ND: Tensor, attend: Callable[[int, Tensor], Tensor]
) -> None:
    """Take the residual stream through all layers, in place; `attend` makes attention's output of q, k and v."""
    epsilon = decoder.config.rms_norm_eps
    pending: Tensor | None = None  # what the last layer adds
    for index, (layer, joined) in enumerate(zip(decoder.layers, weights, strict=True)):
        assert isinstance(layer, Block)
        normed_ND = _add_and_norm(x_ND, pending, layer.input_layernorm.weight, epsilon)
        attended_NC = attend(index, product(normed_ND, joined.qkv, joined.bias))
        added_ND = product(attended_NC, layer.self_attn.o_proj.weight)
        normed_ND = _add_and_norm(x_ND, added_ND, layer.post_attention_layernorm.weight, epsilon)
        pending = product(_swiglu(product(normed_ND, joined.gate_up)), layer.mlp.down_proj.weight)
    if pending is not None:
        x_ND += pending


def _add_and_norm(x_ND: Tensor, y_ND: Tensor | None, norm_D: Tensor, epsilon: float) -> Tensor:
    """Add to the residual stream, in place, and take its norm; a stack's weights are `_GD`."""
    from isocompute.engines.lm.fast import between

    count, width = x_ND.shape
    rows = max(1, _BLOCK // padded(width))
    out_ND = norm_D.new_empty(x_ND.shape)
    between.add_and_norm[(tiles_of(count, rows),)](
        x_ND,
        x_ND if y_ND is None else y_ND,
        norm_D,
        out_ND,
        count,
        count // (norm_D.numel() // width),
        epsilon,
        D=width,
        DP=padded(width),
        R=rows,
        ADD=y_ND is not None,
        CELLS=norm_D.ndim == 2,
        TYPE=triton_type(out_ND),
    )
    return out_ND


def _swiglu(both_NF: Tensor) -> Tensor:
    """silu(gate) · up of rows that hold gate and up side by side."""
    from isocompute.engines.lm.fast import between

    inner = both_NF.shape[1] // 2
    out_NF = both_NF.new_empty(len(both_NF), inner)
    grid = (tiles_of(out_NF.numel(), _BLOCK),)
    between.swiglu[grid](both_NF, out_NF, out_NF.numel(), F=inner, N=_BLOCK, TYPE=triton_type(both_NF))
    return out_NF
