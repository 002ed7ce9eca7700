"""All that follows the last norm of a training pass: logits, log-probs of the sampled tokens, entropies.

No softmax is ever in memory: the logits are, and in the backward pass their gradient, once.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from isocompute.rl.fast.exact import aligned, exact_product, gradients_of_two
from isocompute.rl.fast.tiles import tiles_of, triton_type

__all__ = ["head_scores_fused"]

_BLOCK, _COLUMNS = 2048, 4096
"""Logits that a program has at a time where several rows fit, and columns of a single one."""


def head_scores_fused(
    hidden_ND: Tensor, weight_VD: Tensor, tokens_N: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """Log-probs of tokens and entropies from hidden states, by an FP32 head; with `_GVD`, the rows of a cell by its own
    weights.
    """
    out: tuple[Tensor, Tensor] = _HeadScores.apply(hidden_ND, weight_VD, tokens_N, temperature)  # type: ignore[no-untyped-call]  # torch's gap
    return out


class _Shape(NamedTuple):
    """How the kernels see logits: rows, columns that are tokens, and columns in all."""

    rows: int
    vocabulary: int
    width: int

    @property
    def constants(self) -> dict[str, int]:
        columns = min(_COLUMNS, 1 << (self.width - 1).bit_length())
        return {"VOCABULARY": self.vocabulary, "WIDTH": self.width, "R": max(1, _BLOCK // columns), "V": columns}

    @property
    def grid(self) -> tuple[int]:
        return (tiles_of(self.rows, self.constants["R"]),)


class _HeadScores(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden_ND: Tensor, weight_VD: Tensor, tokens_N: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor]:
        from isocompute.rl.fast import head_kernels

        *cells, vocabulary, width = weight_VD.shape
        x_ND, weight_VD = hidden_ND.reshape(*cells, -1, width), aligned(weight_VD)
        logits_NV = exact_product(x_ND, weight_VD.mT) if _two(x_ND) else x_ND @ weight_VD.mT
        ctx.shape = shape = _Shape(tokens_N.numel(), vocabulary, logits_NV.shape[-1])
        logprobs_N, entropies_N, tops_N, logs_N = (logits_NV.new_empty(shape.rows) for _ in range(4))
        out = (logprobs_N, entropies_N, tops_N, logs_N)
        tokens_N, ctx.temperature = tokens_N.reshape(-1).contiguous(), temperature
        head_kernels.score_rows[shape.grid](logits_NV, tokens_N, *out, shape.rows, temperature, **shape.constants)
        ctx.save_for_backward(x_ND, weight_VD, logits_NV, tokens_N, entropies_N, tops_N, logs_N)
        return logprobs_N, entropies_N

    @staticmethod
    def backward(ctx: Any, logprobs_grad_N: Tensor, entropies_grad_N: Tensor) -> tuple[Tensor, Tensor, None, None]:
        from isocompute.rl.fast import head_kernels

        x_ND, weight_VD, logits_NV, *of_rows = ctx.saved_tensors
        shape: _Shape = ctx.shape
        out_NV = x_ND.new_empty(*x_ND.shape[:-1], shape.width * (2 if _two(x_ND) else 1))
        head_kernels.score_rows_backward[shape.grid](
            logits_NV,
            *of_rows,
            logprobs_grad_N.contiguous(),
            entropies_grad_N.contiguous(),
            out_NV,
            shape.rows,
            ctx.temperature,
            **shape.constants,
            REST=_two(x_ND),
            TYPE=triton_type(out_NV),
        )
        if _two(x_ND):
            grad_ND, grad_VD = gradients_of_two(out_NV, x_ND, weight_VD)
        else:
            grad_ND, grad_VD = out_NV @ weight_VD, out_NV.mT @ x_ND
        return grad_ND.view(-1, x_ND.shape[-1]), grad_VD[..., : shape.vocabulary, :], None, None


def _two(x_ND: Tensor) -> bool:
    """Whether the gradient of a logit is two numbers: of bf16 ones one would be too few."""
    return x_ND.dtype == torch.bfloat16
