"""What touches weights, for one cell or for several stacked ones (`stacked`): products, norms, embeddings.

Rows of several cells stand one cell after the other, as many of each; a stack's weights have a first axis of cells. So
everything that has no weights (attention, losses, sums) need not know of cells at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

if TYPE_CHECKING:  # the decoder's head is made of these
    from isocompute.rl.decoder import Decoder, Norm

__all__ = ["embedded", "normed", "product"]


def _by_cell(x: Tensor, cells: int) -> Tensor:
    """`_GND`: the rows of each cell."""
    return x.reshape(cells, -1, x.shape[-1])


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x · weightᵀ (+ bias), the rows of a cell by its own weights."""
    if weight.ndim == 2:
        return F.linear(x, weight, bias)
    x_GND, weight_GDC = _by_cell(x, len(weight)), weight.transpose(1, 2)
    out_GNC = torch.bmm(x_GND, weight_GDC) if bias is None else torch.baddbmm(bias[:, None], x_GND, weight_GDC)
    return out_GNC.view(*x.shape[:-1], weight.shape[1])


def normed(x: Tensor, norm: Norm) -> Tensor:
    """A norm of each row, with its cell's weights."""
    if norm.weight.ndim == 1:
        out: Tensor = norm(x)
        return out
    return norm.normalise(_by_cell(x, len(norm.weight)), norm.weight[:, None]).view(x.shape)


def embedded(decoder: Decoder, tokens: Tensor) -> Tensor:
    """Embeddings of tokens as FP32 numbers, each from its cell's table."""
    weight = decoder.embed_tokens.weight
    if weight.ndim == 2:
        out: Tensor = decoder.embed_tokens(tokens).float()
        return out
    cells, vocabulary, width = weight.shape
    first_G1 = torch.arange(0, cells * vocabulary, vocabulary, device=tokens.device)[:, None]
    places = (tokens.reshape(cells, -1) + first_G1).view(tokens.shape)
    return F.embedding(places, weight.view(cells * vocabulary, width)).float()
