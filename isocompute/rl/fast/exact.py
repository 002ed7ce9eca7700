"""The FP32 head on tensor cores: products of bf16 numbers, which an FP32 sum holds exactly.

FP32 matrix products run at a twelfth of the speed of bf16 ones. The head's inputs are bf16 numbers, so nothing is lost
in a bf16 product that adds up and answers in FP32. The gradient of the logits is FP32: it goes in as two bf16 numbers
side by side, the second the rest of the first, sixteen bits of mantissa together; the product with both is one.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["aligned", "exact_linear", "exact_product", "gradients_of_two"]

_ALIGNED = 8
"""Columns that a product's fast kernels want a multiple of."""


def exact_linear(x: Tensor, weight_VD: Tensor) -> Tensor:
    """x · weightᵀ of bf16 numbers as FP32 numbers; with `_GVD`, the rows of a cell by its own weights."""
    *cells, vocabulary, width = weight_VD.shape
    out_NV: Tensor = _ExactLinear.apply(x.reshape(*cells, -1, width), aligned(weight_VD))  # type: ignore[no-untyped-call]  # torch's gap
    return out_NV[..., :vocabulary].reshape(*x.shape[:-1], vocabulary)


def aligned(weight_VD: Tensor) -> Tensor:
    """The weights with as many rows as products like; themselves where they have."""
    missing = -weight_VD.shape[-2] % _ALIGNED
    return F.pad(weight_VD, (0, 0, 0, missing)) if missing else weight_VD


def exact_product(a: Tensor, b: Tensor) -> Tensor:
    """a · b of bf16 numbers as FP32 numbers."""
    if a.is_cuda:
        return (torch.mm if a.ndim == 2 else torch.bmm)(a, b, out_dtype=torch.float32)
    return a.float() @ b.float()


def gradients_of_two(both_NV: Tensor, x_ND: Tensor, weight_VD: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of x and of the weights of x · weightᵀ, where that of the product is two bf16 numbers side by side."""
    grad_ND = both_NV @ torch.cat([weight_VD, weight_VD], dim=-2)
    grad_VD, rest_VD = exact_product(both_NV.mT, x_ND).chunk(2, dim=-2)
    return grad_ND, (grad_VD + rest_VD).to(weight_VD.dtype)


class _ExactLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_ND: Tensor, weight_VD: Tensor) -> Tensor:
        ctx.save_for_backward(x_ND, weight_VD)
        return exact_product(x_ND, weight_VD.mT)

    @staticmethod
    def backward(ctx: Any, grad_NV: Tensor) -> tuple[Tensor, Tensor]:
        x_ND, weight_VD = ctx.saved_tensors
        high_NV = grad_NV.to(x_ND.dtype)
        rest_NV = (grad_NV - high_NV.float()).to(x_ND.dtype)
        return gradients_of_two(torch.cat([high_NV, rest_NV], dim=-1), x_ND, weight_VD)
