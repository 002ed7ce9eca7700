"""A decoder's weights as the C library reads them, and arrays as it takes them."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from isocompute.rl.native.build import loaded

if TYPE_CHECKING:
    from isocompute.rl.decoder import Block, Decoder

__all__ = ["POINTER", "Packed", "address", "pack", "padded"]

POINTER = ctypes.c_void_p


class _Model(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("layers", "width", "heads", "groups", "size", "inner", "vocabulary")),
        ("qk_norm", ctypes.c_int64),
        ("epsilon", ctypes.c_float),
        ("temperature", ctypes.c_float),
        *((name, POINTER) for name in ("embedding_VD", "norm_D", "head_DV", "cos_PK", "sin_PK", "layer")),
    )


@dataclass(frozen=True)
class Packed:
    """The C structure of a model, and the arrays it points to, which must outlive it."""

    table: ctypes.Structure
    kept: list[Any]


def pack(decoder: Decoder, *, temperature: float, positions: int) -> Packed:
    """The weights as they are now; for sequences of at most this many positions."""
    config = decoder.config
    kept: list[Any] = []
    cos_1PK, sin_1PK = decoder.rotation(torch.arange(positions)[None])
    layers = [address(x, kept) for layer in decoder.layers for x in _layer(cast("Block", layer))]
    pointers = (POINTER * len(layers))(*layers)
    kept.append(pointers)
    table = _Model(
        config.num_hidden_layers,
        config.hidden_size,
        config.num_attention_heads,
        config.num_key_value_heads,
        config.head_dim,
        config.intermediate_size,
        config.vocab_size,
        int(config.qk_norm),
        config.rms_norm_eps,
        temperature,
        address(padded(decoder.embed_tokens.weight), kept),
        address(padded(decoder.norm.weight), kept),
        address(_packed(decoder.lm_head.weight), kept),
        address(cos_1PK[0], kept),
        address(sin_1PK[0], kept),
        ctypes.cast(pointers, POINTER),
    )
    return Packed(table, kept)


def _layer(block: Block) -> tuple[Tensor, ...]:
    """A layer's arrays in the order of the enumeration in generate.c."""
    weight, bias, norm_HK = block.self_attn.joined()
    return (
        padded(block.input_layernorm.weight),
        _packed(weight),
        torch.zeros(len(weight)) if bias is None else bias,
        torch.ones(1) if norm_HK is None else norm_HK,
        _packed(block.self_attn.o_proj.weight),
        padded(block.post_attention_layernorm.weight),
        _packed(block.mlp.gate_proj.weight),
        _packed(block.mlp.up_proj.weight),
        _packed(block.mlp.down_proj.weight),
    )


def address(x: Tensor, kept: list[Any]) -> int:
    """Where an array's numbers stand; `kept` keeps them there."""
    kept.append(x := x.detach().contiguous())
    return x.data_ptr()


def padded(x: Tensor) -> Tensor:
    """The last axis with zeros up to whole vectors."""
    return F.pad(x.detach(), (0, -x.shape[-1] % _lanes()))


def _packed(weight_NK: Tensor) -> Tensor:
    """A product's weights in panels of columns, the columns of one input side by side, the last panel narrower."""
    lanes = _lanes()
    panel = lanes * int(loaded().wide())
    padded_NK = F.pad(weight_NK.detach(), (0, 0, 0, -len(weight_NK) % lanes))
    whole = len(padded_NK) // panel * panel
    first = padded_NK[:whole].view(-1, panel, padded_NK.shape[1]).transpose(1, 2)
    return torch.cat([first.reshape(-1), padded_NK[whole:].t().reshape(-1)])


def _lanes() -> int:
    return int(loaded().lanes())
