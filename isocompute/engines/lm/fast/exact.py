"""The FP32 head on tensor cores: products of bf16 numbers, which an FP32 sum holds exactly.

FP32 matrix products run at a twelfth of the speed of bf16 ones. The head's inputs are bf16 numbers, so nothing is lost
in a bf16 product that adds up and answers in FP32. The gradient of the logits is FP32: it goes in as two bf16 numbers,
the second the rest of the first, sixteen bits of mantissa together.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["exact_linear"]

_ALIGNED = 8
"""Columns that a product's fast kernels want a multiple of."""


def exact_linear(x: Tensor, weight_VD: Tensor) -> Tensor:
    """x · weightᵀ of bf16 numbers as FP32 numbers; with `_GVD`, the rows of a cell by its own weights."""
    *cells, vocabulary, width = weight_VD.shape
    padded_VD = F.pad(weight_VD, (0, 0, 0, -vocabulary % _ALIGNED))
    out_NV: Tensor = _linear(x.reshape(*cells, -1, width), padded_VD)
    return out_NV[..., :vocabulary].reshape(*x.shape[:-1], vocabulary)


@torch.library.custom_op("isocompute::exact_product", mutates_args=())
def _product(a: Tensor, b: Tensor) -> Tensor:
    if a.is_cuda:
        return (torch.mm if a.ndim == 2 else torch.bmm)(a, b, out_dtype=torch.float32)
    return a.float() @ b.float()


@_product.register_fake
def _(a: Tensor, b: Tensor) -> Tensor:
    return a.new_empty((*a.shape[:-1], b.shape[-1]), dtype=torch.float32)


@torch.library.custom_op("isocompute::exact_linear", mutates_args=())
def _linear(x_ND: Tensor, weight_VD: Tensor) -> Tensor:
    out_NV: Tensor = _product(x_ND, weight_VD.mT)
    return out_NV


@_linear.register_fake
def _(x_ND: Tensor, weight_VD: Tensor) -> Tensor:
    return x_ND.new_empty((*x_ND.shape[:-1], weight_VD.shape[-2]), dtype=torch.float32)


def _setup(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:  # noqa: ARG001 - torch calls it by these names
    ctx.save_for_backward(*inputs)


def _gradients(ctx: Any, grad_NV: Tensor) -> tuple[Tensor, Tensor]:
    x_ND, weight_VD = ctx.saved_tensors
    high_NV = grad_NV.to(x_ND.dtype)
    low_NV = (grad_NV - high_NV.float()).to(x_ND.dtype)
    grad_ND = _product(high_NV, weight_VD) + _product(low_NV, weight_VD)
    grad_VD = _product(high_NV.mT, x_ND) + _product(low_NV.mT, x_ND)
    return grad_ND.to(x_ND.dtype), grad_VD.to(x_ND.dtype)


_linear.register_autograd(_gradients, setup_context=_setup)
