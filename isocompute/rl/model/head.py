"""Log-probs of tokens and entropies of their distributions from hidden states, without the logits in memory.

The vocabulary's logits exist for one chunk of tokens at a time, in FP32; the backward pass computes them again.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from isocompute.rl.model.decoder import head_logits, run_compiled

_CHUNK = 2**27
"""Logits computed at a time on a GPU: half a gigabyte."""
_CPU_CHUNK = 2**22


def head_scores(
    hidden_SD: Tensor, weight_VD: Tensor, tokens_S: Tensor, *, temperature: float = 1.0, fp32: bool = True
) -> tuple[Tensor, Tensor]:
    """Log-probs of the tokens and entropies, after temperature."""
    out: tuple[Tensor, Tensor] = _Scores.apply(hidden_SD, weight_VD, tokens_S, temperature, fp32)  # type: ignore[no-untyped-call]
    return out


def _chunk(hidden_SD: Tensor, weight_VD: Tensor) -> int:
    return max(1, (_CHUNK if hidden_SD.is_cuda else _CPU_CHUNK) // len(weight_VD))


def _forward(logits_SV: Tensor, tokens_S: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probs, entropies and log-sum-exps."""
    scaled_SV = logits_SV / temperature
    total_S = scaled_SV.logsumexp(dim=-1)
    mean_S = ((scaled_SV - total_S[:, None]).exp() * scaled_SV).sum(dim=-1)
    return scaled_SV.gather(1, tokens_S[:, None])[:, 0] - total_S, total_S - mean_S, total_S


def _backward(
    logits_SV: Tensor,
    tokens_S: Tensor,
    total_S: Tensor,
    entropy_S: Tensor,
    logprob_grad_S: Tensor,
    entropy_grad_S: Tensor,
    temperature: float,
    dtype: torch.dtype,
) -> Tensor:
    """The gradient with respect to the logits."""
    logprobs_SV = logits_SV / temperature - total_S[:, None]
    chosen_SV = torch.arange(logits_SV.shape[1], device=logits_SV.device) == tokens_S[:, None]
    pull_SV = logprob_grad_S[:, None] + entropy_grad_S[:, None] * (logprobs_SV + entropy_S[:, None])
    grad_SV = logprob_grad_S[:, None] * chosen_SV - logprobs_SV.exp() * pull_SV
    return (grad_SV / temperature).to(dtype)


class _Scores(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden_SD: Tensor, weight_VD: Tensor, tokens_S: Tensor, temperature: float, fp32: bool
    ) -> tuple[Tensor, Tensor]:
        scores = partial(run_compiled, _forward, 2) if hidden_SD.is_cuda else _forward
        size = _chunk(hidden_SD, weight_VD)
        parts = [
            scores(head_logits(hidden, weight_VD, fp32=fp32), tokens, temperature)
            for hidden, tokens in zip(torch.split(hidden_SD, size), torch.split(tokens_S, size), strict=True)
        ]
        logprobs_S, entropies_S, totals_S = (torch.cat(column) for column in zip(*parts, strict=True))
        ctx.save_for_backward(hidden_SD, weight_VD, tokens_S, totals_S, entropies_S)
        ctx.temperature, ctx.fp32 = temperature, fp32
        return logprobs_S, entropies_S

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden_SD, weight_VD, tokens_S, totals_S, entropies_S = ctx.saved_tensors
        gradient = partial(run_compiled, _backward, 6) if hidden_SD.is_cuda else _backward
        wide = torch.float32 if hidden_SD.dtype == torch.bfloat16 else hidden_SD.dtype
        exact = not hidden_SD.is_cuda and ctx.fp32  # on a GPU, products of bf16 numbers with FP32 sums
        dtype = wide if exact else hidden_SD.dtype
        hidden_grad_SD = torch.empty_like(hidden_SD)
        needs_weight = ctx.needs_input_grad[1]
        weight_grad_VD = torch.zeros(weight_VD.shape, dtype=wide, device=weight_VD.device) if needs_weight else None
        size = _chunk(hidden_SD, weight_VD)
        for start in range(0, len(hidden_SD), size):
            some = slice(start, start + size)
            logits_SV = head_logits(hidden_SD[some], weight_VD, fp32=ctx.fp32)
            kept = (totals_S[some], entropies_S[some], grads[0][some], grads[1][some])
            grad_SV = gradient(logits_SV, tokens_S[some], *kept, ctx.temperature, dtype)
            hidden_grad_SD[some] = grad_SV @ weight_VD.to(dtype)
            if weight_grad_VD is not None:
                hidden = hidden_SD[some].to(dtype)
                if hidden.is_cuda and dtype != wide:
                    weight_grad_VD += torch.mm(grad_SV.T, hidden, out_dtype=wide)
                else:
                    weight_grad_VD += grad_SV.T @ hidden
        return hidden_grad_SD, None if weight_grad_VD is None else weight_grad_VD.to(weight_VD.dtype), None, None, None
