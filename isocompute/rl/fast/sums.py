"""Sums over the parts that programs of a kernel leave behind: of the gradients of weights, which all rows share.

PyTorch's sum over a first axis is two nodes of a graph, of which the one that clears its counter takes longer than
these sums; and the order of additions here is always the same.
"""

from __future__ import annotations

import torch
from torch import Tensor

from isocompute.rl.fast.tiles import tiles_of, triton_type

__all__ = ["sum_parts"]

_ROWS, _COLUMNS = 256, 32
"""Of a program's tile."""


def sum_parts(parts_GPD: Tensor, dtype: torch.dtype) -> Tensor:
    """`_GD`: FP32 parts added up, cell by cell."""
    from isocompute.rl.fast import between

    while True:
        cells, parts, width = parts_GPD.shape
        left = tiles_of(parts, _ROWS)
        out_GPD = parts_GPD.new_empty((cells, left, width), dtype=dtype if left == 1 else torch.float32)
        between.sum_rows[(left, tiles_of(width, _COLUMNS), cells)](
            parts_GPD, out_GPD, parts, width, R=_ROWS, C=_COLUMNS, TYPE=triton_type(out_GPD)
        )
        if left == 1:
            return out_GPD[:, 0]
        parts_GPD = out_GPD
