"""Weights in the order in which the kernel uses them, as addresses of words: a word is two numbers of bf16.

A tensor core multiplies 16 inputs by 8 columns; lane i of a warp has inputs 2 (i mod 4), 8 + 2 (i mod 4) and the next
of each, of column i // 4. For two such products a lane has four words, which lie side by side here. So a weight goes
from memory to a register without ever being looked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

import numpy as np
from torch import Tensor

from isocompute.core.arrays import Ints
from isocompute.rl.decoder import Block, Decoder
from isocompute.rl.fast.weights import LayerWeights
from isocompute.rl.fast.whole.shape import Shape

__all__ = ["word_addresses"]

_TILE, _INPUTS, _SLAB, _STAGE = 8, 32, 64, 64
_BYTES = 2


def _fragments(weight: Tensor, columns_C: Ints, inputs_I: Ints) -> Ints:
    """Addresses of a product's words, tile by tile of columns; -1 stands for a column or input of zeros."""
    lane, word = np.arange(32)[:, None], np.arange(4)
    column_TL = columns_C.reshape(-1, _TILE)[:, None, lane // 4]
    first_PLW = inputs_I.reshape(-1, _INPUTS)[:, 2 * (lane % 4) + 8 * word]
    out = weight.data_ptr() + _BYTES * (column_TL * weight.shape[1] + first_PLW)
    return np.where((column_TL < 0) | (first_PLW < 0), 0, out).ravel()


def _slabs(weight: Tensor, inputs_I: Ints) -> Iterator[Ints]:
    """A product whose stages have all columns and some inputs."""
    for first in range(0, len(inputs_I), _SLAB):
        yield _fragments(weight, np.arange(len(weight)), inputs_I[first : first + _SLAB])


def _padded(numbers: Ints, to: int) -> Ints:
    return np.pad(numbers, (0, -len(numbers) % to), constant_values=-1)


def _part(rank: int, size: int, first: int = 0) -> Ints:
    return np.arange(first + rank * size, first + (rank + 1) * size)


def _own_qkv(shape: Shape, rank: int) -> Ints:
    """A block's columns of q, k and v."""
    q, kv = shape.ranks * shape.own_q, shape.ranks * shape.own_kv
    return np.concatenate([_part(rank, shape.own_q), *(_part(rank, shape.own_kv, q + i * kv) for i in (0, 1))])


def _own(weight: Tensor, cell: int, cells: int) -> Tensor:
    """A cell's part of a stacked weight."""
    return weight[cell] if cells > 1 else weight


def _weights(decoder: Decoder, layers: Sequence[LayerWeights], shape: Shape, cell: int, rank: int) -> Iterator[Ints]:
    """All that a block reads for a token: the head, then layer by layer."""
    cells, width = decoder.cells, np.arange(decoder.config.hidden_size)
    yield _fragments(
        _own(decoder.lm_head.weight, cell, cells), _padded(np.arange(decoder.config.vocab_size), _TILE), width
    )
    inner = decoder.config.intermediate_size
    for layer, joined in zip(decoder.layers, layers, strict=True):
        assert isinstance(layer, Block)
        yield _fragments(_own(joined.qkv, cell, cells), _own_qkv(shape, rank), width)
        yield from _slabs(_own(layer.self_attn.o_proj.weight, cell, cells), _padded(_part(rank, shape.own_q), _INPUTS))
        gate_up = _own(joined.gate_up, cell, cells)
        gate_C = _part(rank, shape.own_inner)
        for first in range(0, len(gate_C), _STAGE):  # gate and up of the same columns in turn
            some_C = gate_C[first : first + _STAGE]
            yield _fragments(gate_up, some_C, width)
            yield _fragments(gate_up, inner + some_C, width)
        yield from _slabs(_own(layer.mlp.down_proj.weight, cell, cells), gate_C)


def _words(vector: Tensor, places: Ints | None = None) -> Ints:
    """Addresses of a vector's words, or of those that begin at some places."""
    return vector.data_ptr() + _BYTES * (np.arange(0, vector.numel(), 2) if places is None else places[::2])


def _norms(decoder: Decoder, cell: int) -> Iterator[Ints]:
    for layer in decoder.layers:
        assert isinstance(layer, Block)
        for norm in (layer.input_layernorm, layer.post_attention_layernorm):
            yield _words(_own(norm.weight, cell, decoder.cells))
    yield _words(_own(decoder.norm.weight, cell, decoder.cells))


def _head_norms(decoder: Decoder, cell: int) -> Iterator[Ints]:
    if decoder.config.qk_norm:
        for layer in decoder.layers:
            assert isinstance(layer, Block)
            for norm in (layer.self_attn.q_norm, layer.self_attn.k_norm):
                yield _words(_own(norm.weight, cell, decoder.cells))


def _biases(decoder: Decoder, layers: Sequence[LayerWeights], shape: Shape, cell: int) -> Iterator[Ints]:
    for rank in range(shape.ranks):
        for joined in layers:
            if joined.bias is not None:
                yield _words(_own(joined.bias, cell, decoder.cells), _own_qkv(shape, rank))


def word_addresses(decoder: Decoder, layers: Sequence[LayerWeights], shape: Shape) -> dict[str, Ints]:
    """Where the words of each of the kernel's arrays stand, cell after cell; 0 for a word of zeros. The decoder's
    parameters must stay where they are.
    """
    cells = range(decoder.cells)
    parts = {
        "weights": [_weights(decoder, layers, shape, cell, rank) for cell in cells for rank in range(shape.ranks)],
        "norms": [_norms(decoder, cell) for cell in cells],
        "head_norms": [_head_norms(decoder, cell) for cell in cells],
        "bias": [_biases(decoder, layers, shape, cell) for cell in cells],
    }
    none = np.zeros(0, dtype=np.int64)
    return {name: np.concatenate([none, *chain.from_iterable(of)]).astype(np.int64) for name, of in parts.items()}
