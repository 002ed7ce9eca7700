"""A decoder's weights as the kernels read them: q, k and v side by side, and gate and up.

The decoder keeps its parameters; they become views of these buffers, so that an update is seen by the kernels at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from isocompute.rl.decoder import Block, Decoder

__all__ = ["LayerWeights", "join_weights"]


@dataclass(frozen=True)
class LayerWeights:
    """What the kernels need of one layer beside the decoder's own parameters."""

    qkv: Tensor
    bias: Tensor | None
    gate_up: Tensor


def join_weights(decoder: Decoder) -> list[LayerWeights]:
    """Move weights that are read together into common buffers; the parameters stay the same objects. Those of a stack
    have a first axis of cells.
    """
    out = []
    for layer in decoder.layers:
        assert isinstance(layer, Block)
        attention, mlp = layer.self_attn, layer.mlp
        projections = [attention.q_proj, attention.k_proj, attention.v_proj]
        bias = _joined([p.bias for p in projections], axis=-1) if decoder.config.attention_bias else None
        gate_up = _joined([mlp.gate_proj.weight, mlp.up_proj.weight], axis=-2)
        out.append(LayerWeights(_joined([p.weight for p in projections], axis=-2), bias, gate_up))
    return out


def _joined(parameters: Sequence[Tensor], *, axis: int) -> Tensor:
    buffer = torch.cat([parameter.data for parameter in parameters], dim=axis)
    start = 0
    for parameter in parameters:
        size = parameter.shape[axis]
        parameter.data = buffer.narrow(axis, start, size)
        start += size
    return buffer
