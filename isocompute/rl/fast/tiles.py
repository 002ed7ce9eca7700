"""Sizes of the decode kernels' tiles, chosen by the number of rows and the model's width."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

__all__ = ["Tiles", "tiles_for", "tiles_of", "triton_type"]


@dataclass(frozen=True)
class Tiles:
    """Rows, columns and inputs of a product, slots of the cache, warps of a product."""

    rows: int = 0
    columns: int = 0
    inputs: int = 0
    slots: int = 16
    warps: int = 4
    stages: int = 2
    overlap: bool = True
    """Whether a kernel is launched while the one before it ends; pays where it has weights to read meanwhile."""
    library: bool = False
    """Products by PyTorch's library, norms and SwiGLU between them: no tiles but attention's."""


def tiles_for(rows: int, width: int, *, cells: int = 1) -> Tiles:
    """Small tiles while that is what fills the GPU, all inputs at once; a library's products for many rows, a wide
    model, or several cells.
    """
    if rows > 1024 or width > 256 or cells > 1:
        return Tiles(overlap=False, library=True)
    if rows > 512:
        return Tiles(rows=64, columns=64, inputs=256)
    return Tiles(rows=16, columns=32, inputs=256, warps=2)


def tiles_of(size: int, tile: int) -> int:
    """How many tiles cover a size."""
    return -(-size // tile)


def triton_type(tensor: Tensor) -> Any:
    """What the kernels call a tensor's numbers."""
    import triton.language as tl

    return tl.bfloat16 if tensor.dtype == torch.bfloat16 else tl.float32
