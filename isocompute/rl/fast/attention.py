"""Attention of a training pass in which the rollouts of a problem share their prompt, as a function autograd knows.

Tokens stand in one flat array: all responses, row by row, then all prompts, left-padded; of several cells one cell
after the other. What comes in is the output of
the joined product for q, k and v; norms and RoPE are part of the kernels (`attention_kernels`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from isocompute.rl.fast.sums import sum_parts
from isocompute.rl.fast.tiles import triton_type

__all__ = ["Layout", "attend_shared", "fits_attention", "padded"]

_LONGEST = 128
"""Tokens of a prompt, or of a response, that one program holds."""


class Layout(NamedTuple):
    """Which tokens belong together: prompts of `slots` tokens, and `per_prompt` responses of `tokens` to each.

    The problems are those of all `cells`, as many of each.
    """

    problems: int
    per_prompt: int
    slots: int
    tokens: int
    cells: int = 1

    @property
    def responses(self) -> int:
        """Rows of the batch."""
        return self.problems * self.per_prompt

    @property
    def flat(self) -> int:
        """Tokens in all."""
        return self.responses * self.tokens + self.problems * self.slots


def fits_attention(*, slots: int, tokens: int, head_dim: int) -> bool:
    """Whether a sequence is short enough for one program."""
    return max(slots, tokens, head_dim) <= _LONGEST


def attend_shared(
    qkv_NC: Tensor,
    q_norm_K: Tensor | None,
    k_norm_K: Tensor | None,
    cos_TE: Tensor,
    sin_TE: Tensor,
    padding_P: Tensor,
    layout: Layout,
    *,
    heads: int,
    groups: int,
    epsilon: float,
) -> Tensor:
    """What every token attends to, heads side by side. `cos_TE` and `sin_TE` are RoPE's, by position."""
    inputs = (qkv_NC, q_norm_K, k_norm_K, cos_TE, sin_TE, padding_P)
    out_NC: Tensor = _Attend.apply(*inputs, layout, (heads, groups), epsilon)  # type: ignore[no-untyped-call]  # torch's gap
    return out_NC


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        from isocompute.rl.fast import attention_kernels

        qkv_NC, *others, ctx.layout, ctx.heads, ctx.epsilon = inputs
        tensors = [qkv_NC.contiguous(), *others]
        ctx.save_for_backward(*tensors)
        out_NC = _like_output(tensors[0], ctx.heads)
        for launch in _launches(ctx.layout, ctx.heads, tensors):
            attention_kernels.attend_sequences[launch.grid](
                *launch.tensors, out_NC, *launch.numbers, ctx.epsilon, **launch.constants
            )
        return out_NC

    @staticmethod
    def backward(ctx: Any, grad_NC: Tensor) -> tuple[Tensor | None, ...]:
        from isocompute.rl.fast import attention_kernels

        tensors, shape, heads = ctx.saved_tensors, ctx.layout, ctx.heads
        qkv_NC, q_norm_K, *_ = tensors
        out_NC, norms_RG2K = torch.empty_like(qkv_NC), _like_norms(qkv_NC, shape, heads)
        size = qkv_NC.shape[1] // (heads[0] + 2 * heads[1])
        prefix_BGSK = qkv_NC.new_empty((shape.responses, heads[1], shape.slots, 2 * size), dtype=torch.float32)
        for launch in _launches(shape, heads, tensors):
            attention_kernels.attend_sequences_backward[launch.grid](
                *launch.tensors,
                grad_NC.contiguous(),
                out_NC,
                prefix_BGSK,
                norms_RG2K,
                *launch.numbers,
                ctx.epsilon,
                **launch.constants,
            )
        q_grad, k_grad = None, None
        if q_norm_K is not None:
            sums_GC = sum_parts(norms_RG2K.view(shape.cells, -1, 2 * size), q_norm_K.dtype)
            q_grad, k_grad = (part_GK.reshape(q_norm_K.shape) for part_GK in sums_GC.chunk(2, dim=1))
        return out_NC, q_grad, k_grad, None, None, None, None, None, None


def _like_output(qkv_NC: Tensor, heads: tuple[int, int]) -> Tensor:
    size = qkv_NC.shape[1] // (heads[0] + 2 * heads[1])
    return qkv_NC.new_empty((qkv_NC.shape[0], heads[0] * size))


def _like_norms(qkv_NC: Tensor, layout: Layout, heads: tuple[int, int]) -> Tensor:
    """Room for each program's part of the gradients of the norms' weights: of a cell's responses, then its prompts."""
    size = qkv_NC.shape[1] // (heads[0] + 2 * heads[1])
    rows = layout.responses * (layout.tokens > 0) + layout.problems
    return qkv_NC.new_empty((rows, heads[1], 2, size), dtype=torch.float32)


class _Launch(NamedTuple):
    grid: tuple[int, int]
    tensors: list[Tensor]
    numbers: tuple[int, int, int, int, int]
    constants: dict[str, Any]


def _launches(layout: Layout, heads: tuple[int, int], inputs: Sequence[Tensor | None]) -> list[_Launch]:
    """The kernel's calls: responses behind their prompts, then the prompts themselves."""
    qkv_NC, _, _, cos_TE, *_ = inputs
    assert qkv_NC is not None
    assert cos_TE is not None
    half = cos_TE.shape[1]
    constants = {
        "H": heads[0],
        "G": heads[1],
        "E": half,
        "EP": padded(half),
        "QK_NORM": inputs[1] is not None,
        "TYPE": triton_type(qkv_NC),
    }
    tensors = [cos_TE if tensor is None else tensor for tensor in inputs]
    problems = layout.problems // layout.cells
    first_prompt = problems * layout.per_prompt * layout.tokens
    out = []
    for prefix, rows, tokens in ((True, layout.responses, layout.tokens), (False, layout.problems, layout.slots)):
        if not tokens:
            continue
        own = padded(tokens)
        sizes = {"TP": own, "SP": padded(layout.slots), "PREFIX": prefix, "num_warps": 8 if own > 64 else 4}
        numbers = (tokens, first_prompt, layout.per_prompt if layout.tokens else 0, layout.slots, problems)
        out.append(_Launch((rows, heads[1]), tensors, numbers, {**constants, **sizes}))
    return out


def padded(size: int) -> int:
    """The next power of two that a matrix product takes."""
    return max(16, 1 << (size - 1).bit_length())
