"""Embeddings of many tokens from a small table, as a function that autograd knows.

PyTorch's gradient sorts the tokens first, some twenty kernels that take as long for a few tokens as for many. With a
small vocabulary every token's gradient can instead be multiplied by a row of zeros with a one at its place, which
never is in memory; sums are FP32 and their order is always the same.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from isocompute.rl.fast.attention import padded
from isocompute.rl.fast.sums import sum_parts
from isocompute.rl.fast.tiles import tiles_of, triton_type

__all__ = ["fits_look_up", "look_up"]

_LARGEST = 256
"""Vocabulary above which sorting is faster: the gradients are read once for every tile of it."""
_VOCABULARY, _CHANNELS, _TOKENS = 128, 64, 64
"""Of a tile: what a program adds up to, and how many tokens at a time."""
_PROGRAMS = 264
"""Two for each multiprocessor of a large GPU: more would only make more parts to add up."""
_BLOCK = 2048
"""Numbers that a program has at a time."""


def fits_look_up(weight_VD: Tensor) -> bool:
    """Whether the table is small enough."""
    return weight_VD.shape[-2] <= _LARGEST


def look_up(weight_VD: Tensor, tokens_N: Tensor) -> Tensor:
    """`_ND`: FP32 embeddings of tokens; with `_GVD`, those of a cell from its own table."""
    out_ND: Tensor = _LookUp.apply(weight_VD, tokens_N)  # type: ignore[no-untyped-call]  # torch's gap
    return out_ND


class _LookUp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight_VD: Tensor, tokens_N: Tensor) -> Tensor:
        from isocompute.rl.fast import embedding_kernels

        weight_VD, tokens_N = weight_VD.contiguous(), tokens_N.contiguous()
        vocabulary, width = weight_VD.shape[-2:]
        ctx.save_for_backward(weight_VD, tokens_N)
        count, rows = len(tokens_N), max(1, _BLOCK // padded(width))
        out_ND = weight_VD.new_empty((count, width), dtype=torch.float32)
        embedding_kernels.look_up[(tiles_of(count, rows),)](
            weight_VD,
            tokens_N,
            out_ND,
            count,
            count // (weight_VD.numel() // (vocabulary * width)),
            V=vocabulary,
            D=width,
            DP=padded(width),
            R=rows,
        )
        return out_ND

    @staticmethod
    def backward(ctx: Any, grad_ND: Tensor) -> tuple[Tensor, None]:
        from isocompute.rl.fast import embedding_kernels

        weight_VD, tokens_N = ctx.saved_tensors
        vocabulary, width = weight_VD.shape[-2:]
        cells = weight_VD.numel() // (vocabulary * width)
        high, wide, cell_rows = (
            min(_VOCABULARY, padded(vocabulary)),
            min(_CHANNELS, padded(width)),
            len(tokens_N) // cells,
        )
        tiles = (tiles_of(vocabulary, high), tiles_of(width, wide))
        chunk = _TOKENS * tiles_of(cell_rows, _TOKENS * max(1, _PROGRAMS // (cells * tiles[0] * tiles[1])))
        parts_GPVD = grad_ND.new_empty((cells, tiles_of(cell_rows, chunk), vocabulary, width))
        embedding_kernels.look_up_backward[(parts_GPVD.shape[1], tiles[0] * tiles[1], cells)](
            tokens_N,
            grad_ND.contiguous(),
            parts_GPVD,
            cell_rows,
            chunk,
            V=vocabulary,
            D=width,
            VT=high,
            DT=wide,
            NT=_TOKENS,
            TYPE=triton_type(weight_VD),
        )
        return sum_parts(parts_GPVD.flatten(2), weight_VD.dtype).view(weight_VD.shape), None
