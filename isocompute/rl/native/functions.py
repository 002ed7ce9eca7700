"""Functions of a training pass on a CPU, with gradients, by the C library (train.c). All arrays are FP32 and flat."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isocompute.rl.native.build import call
from isocompute.rl.native.parallel import spread

__all__ = ["Layout", "attend", "choose", "normalise", "swiglu"]

_ROWS = 1024
"""Rows that are worth a thread of their own."""


def normalise(x_ND: Tensor, weight_D: Tensor, epsilon: float) -> Tensor:
    """w · x / √(mean x² + ε)."""
    out: Tensor = _Norm.apply(x_ND, weight_D, epsilon)  # type: ignore[no-untyped-call]  # torch's gap
    return out


def swiglu(both_NF: Tensor) -> Tensor:
    """silu(gate) · up of rows that hold gate and up side by side."""
    out: Tensor = _SwiGlu.apply(both_NF)  # type: ignore[no-untyped-call]  # torch's gap
    return out


def choose(logits_NV: Tensor, tokens_N: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probs of tokens and entropies of the distributions softmax(logits / temperature) that they come from."""
    both: tuple[Tensor, Tensor] = _Choice.apply(logits_NV, tokens_N, temperature)  # type: ignore[no-untyped-call]  # torch's gap
    return both


@dataclass(frozen=True)
class Layout:
    """Which tokens of a flat array belong together: problems one after the other, each its prompt, then responses."""

    prompt_P: Tensor
    """Where a problem's prompt starts, and its tokens."""
    length_P: Tensor
    first_P: Tensor
    """A problem's first response; one more entry than problems."""
    response_B: Tensor
    length_B: Tensor
    slots: int
    """The most tokens that a prompt and a response have together."""


def attend(
    qkv_NC: Tensor,
    norm_HK: Tensor | None,
    rotation: tuple[Tensor, Tensor],
    layout: Layout,
    *,
    heads: int,
    key_heads: int,
    epsilon: float,
) -> Tensor:
    """Attention of every token to its prompt and to what precedes it; q and k are normed and rotated here."""
    shape = heads, key_heads, qkv_NC.shape[1] // (heads + 2 * key_heads)
    out: Tensor = _Attention.apply(qkv_NC, norm_HK, rotation, layout, shape, epsilon)  # type: ignore[no-untyped-call]  # torch's gap
    return out


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_ND: Tensor, weight_D: Tensor, epsilon: float) -> Tensor:
        x_ND = x_ND.contiguous()
        y_ND, scale_N = torch.empty_like(x_ND), x_ND.new_empty(len(x_ND))

        def work(first: int, last: int) -> None:
            rows = slice(first, last)
            width = x_ND.shape[1]
            call("norm_forward", x_ND[rows], weight_D, last - first, width, epsilon, y_ND[rows], scale_N[rows])

        spread(work, len(x_ND), least=_ROWS)
        ctx.save_for_backward(x_ND, weight_D, scale_N)
        return y_ND

    @staticmethod
    def backward(ctx: Any, g_ND: Tensor) -> tuple[Tensor, Tensor, None]:
        x_ND, weight_D, scale_N = ctx.saved_tensors
        g_ND, dx_ND = g_ND.contiguous(), torch.empty_like(x_ND)

        def work(first: int, last: int) -> Tensor:
            rows, dw_D = slice(first, last), torch.zeros_like(weight_D)
            inputs = x_ND[rows], weight_D, scale_N[rows], g_ND[rows]
            call("norm_backward", *inputs, last - first, x_ND.shape[1], dx_ND[rows], dw_D)
            return dw_D

        return dx_ND, _sum(spread(work, len(x_ND), least=_ROWS)), None


class _SwiGlu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, both_NF: Tensor) -> Tensor:
        rows, inner = both_NF.shape[0], both_NF.shape[1] // 2
        both_NF, out_NF = both_NF.contiguous(), both_NF.new_empty(rows, inner)

        def work(first: int, last: int) -> None:
            call("swiglu_forward", both_NF[first:last], last - first, inner, out_NF[first:last])

        spread(work, rows, least=_ROWS)
        ctx.save_for_backward(both_NF)
        return out_NF

    @staticmethod
    def backward(ctx: Any, g_NF: Tensor) -> Tensor:
        (both_NF,) = ctx.saved_tensors
        g_NF, d_NF = g_NF.contiguous(), torch.empty_like(both_NF)

        def work(first: int, last: int) -> None:
            rows = slice(first, last)
            call("swiglu_backward", both_NF[rows], g_NF[rows], last - first, g_NF.shape[1], d_NF[rows])

        spread(work, len(both_NF), least=_ROWS)
        return d_NF


class _Choice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits_NV: Tensor, tokens_N: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        rows, vocabulary = logits_NV.shape
        logits_NV, tokens_N = logits_NV.contiguous(), tokens_N.contiguous()
        logprobs_N, entropies_N, log_sums_N = (logits_NV.new_empty(rows) for _ in range(3))

        def work(first: int, last: int) -> None:
            part = slice(first, last)
            inputs = logits_NV[part], tokens_N[part], last - first, vocabulary, temperature
            call("choice_forward", *inputs, logprobs_N[part], entropies_N[part], log_sums_N[part])

        spread(work, rows, least=_ROWS)
        ctx.save_for_backward(logits_NV, tokens_N, log_sums_N, entropies_N)
        ctx.temperature = temperature
        return logprobs_N, entropies_N

    @staticmethod
    def backward(ctx: Any, a_N: Tensor, b_N: Tensor) -> tuple[Tensor, None, None]:
        logits_NV, tokens_N, log_sums_N, entropies_N = ctx.saved_tensors
        a_N, b_N, d_NV = a_N.contiguous(), b_N.contiguous(), torch.empty_like(logits_NV)

        def work(first: int, last: int) -> None:
            part = slice(first, last)
            inputs = (x[part] for x in (logits_NV, tokens_N, log_sums_N, entropies_N, a_N, b_N))
            call("choice_backward", *inputs, last - first, logits_NV.shape[1], ctx.temperature, d_NV[part])

        spread(work, len(logits_NV), least=_ROWS)
        return d_NV, None, None


class _Shape(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("heads", "groups", "size", "problems", "slots")),
        *((name, ctypes.c_void_p) for name in ("prompt_P", "length_P", "first_P", "response_B", "length_B")),
        *((name, ctypes.c_void_p) for name in ("cos_PK", "sin_PK", "norm_HK")),
        ("epsilon", ctypes.c_float),
    )


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        qkv_NC: Tensor,
        norm_HK: Tensor | None,
        rotation: tuple[Tensor, Tensor],
        layout: Layout,
        sizes: tuple[int, int, int],
        epsilon: float,
    ) -> Tensor:
        heads, _, size = sizes
        qkv_NC, norm_HK = qkv_NC.contiguous(), None if norm_HK is None else norm_HK.contiguous()
        ctx.rest = rotation, layout, sizes, epsilon
        shape = _shape(norm_HK, *ctx.rest)
        out_NA, normalisers_NH = qkv_NC.new_empty(len(qkv_NC), heads * size), qkv_NC.new_empty(len(qkv_NC), heads)

        def work(first: int, last: int) -> None:
            call("attention_forward", ctypes.byref(shape), qkv_NC, first, last, out_NA, normalisers_NH)

        spread(work, len(layout.prompt_P), least=_problems(layout))
        ctx.save_for_backward(qkv_NC, norm_HK, out_NA, normalisers_NH)
        return out_NA

    @staticmethod
    def backward(ctx: Any, g_NA: Tensor) -> tuple[Tensor | None, ...]:
        qkv_NC, norm_HK, out_NA, normalisers_NH = ctx.saved_tensors
        layout, shape = ctx.rest[1], _shape(norm_HK, *ctx.rest)
        g_NA, d_NC = g_NA.contiguous(), torch.empty_like(qkv_NC)

        def work(first: int, last: int) -> Tensor:
            dw_HK = torch.zeros(1) if norm_HK is None else torch.zeros_like(norm_HK)
            inputs = ctypes.byref(shape), qkv_NC, first, last, out_NA, normalisers_NH, g_NA
            call("attention_backward", *inputs, d_NC, dw_HK)
            return dw_HK

        dw_HK = _sum(spread(work, len(layout.prompt_P), least=_problems(layout)))
        return d_NC, None if norm_HK is None else dw_HK, None, None, None, None


def _problems(layout: Layout) -> int:
    """Problems that are worth a thread of their own."""
    tokens = int(layout.length_P.sum() + layout.length_B.sum())
    return max(1, _ROWS * len(layout.prompt_P) // max(1, tokens))


def _shape(
    norm_HK: Tensor | None,
    rotation: tuple[Tensor, Tensor],
    layout: Layout,
    sizes: tuple[int, int, int],
    epsilon: float,
) -> _Shape:
    arrays = layout.prompt_P, layout.length_P, layout.first_P, layout.response_B, layout.length_B, *rotation
    norm = None if norm_HK is None else norm_HK.data_ptr()
    return _Shape(*sizes, len(layout.prompt_P), layout.slots, *(x.data_ptr() for x in arrays), norm, epsilon)


def _sum(parts: list[Tensor]) -> Tensor:
    """In the parts' order, so that a run can be repeated."""
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total
