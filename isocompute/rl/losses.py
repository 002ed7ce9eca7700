"""From hidden states to a loss: log-probs, advantages, losses and token weights; each cites its equation.

Shapes: `_P` problems, `_N` rollouts of a problem, `_B` sequences, `_T` tokens. `logprobs_BT` are the trainer's and
differentiable. `old_logprobs_BT` are the constant denominators of importance ratios: the sampler's log-probs, or the
trainer's before the first of several updates. `advantages_BT` may be `_B1`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from isocompute.core.errors import InputError
from isocompute.rl.model.decoder import head_logits, run_compiled

_EPSILON = 1e-6
_CHUNK = 2**27
"""Logits computed at a time on a GPU: half a gigabyte."""
_CPU_CHUNK = 2**22


def group_advantages(rewards_PN: Tensor, *, kind: str) -> Tensor:
    """Advantages of rollouts grouped by problem.

    - `group_std`: (r - mean) / (std + 1e-6) within the group, std with n - 1 (GRPO as the trainers compute it);
    - `group_mean`: r - mean (Dr. GRPO, arXiv 2503.20783 eq. 3: no division);
    - `batch_std`: (r - mean) / (std of r - mean over the batch + 1e-6) (ScaleRL section 3.2);
    - `none`: r (plain REINFORCE).

    A group with equal rewards has advantages of 0. A group of one rollout has no baseline and raises `InputError`.
    """
    if kind == "none":
        return rewards_PN.clone()
    if rewards_PN.shape[1] < 2:
        raise InputError("one rollout a problem has no group to compare with; use n >= 2 or advantage = 'none'.")
    # Equal rewards can differ from their mean by a rounding error, which dividing by their std would amplify.
    same_P1 = ~mixed_groups(rewards_PN)[:, None]
    centred_PN = (rewards_PN - rewards_PN.mean(dim=1, keepdim=True)).masked_fill(same_P1, 0.0)
    if kind == "group_mean":
        return centred_PN
    if kind == "group_std":
        return centred_PN / (rewards_PN.std(dim=1, keepdim=True) + _EPSILON)
    if kind == "batch_std":
        return centred_PN / (centred_PN.pow(2).mean().sqrt() + _EPSILON)
    raise InputError(f"advantage '{kind}' is not one of group_std, group_mean, batch_std, none.")


def mixed_groups(rewards_PN: Tensor) -> Tensor:
    """True for problems whose rollouts do not all have the same reward (equality, not a small float std)."""
    return (rewards_PN != rewards_PN[:, :1]).any(dim=1)


def decoupled_advantages(rewards_PN: Tensor, *, train: int, kind: str, seed: int) -> tuple[Tensor, Tensor]:
    """Advantages estimated on all n_est rollouts, for `train` of them drawn without replacement (appendix G).

    Returns the advantages and the indices of the drawn rollouts, both of shape problems × `train`.
    """
    problems, estimated = rewards_PN.shape
    if not 1 <= train <= estimated:
        raise InputError(
            f"cannot train on {train} of the {estimated} rollouts that estimate the baseline; use 1 to {estimated}."
        )
    generator = torch.Generator().manual_seed(seed)
    order_PN = torch.rand(problems, estimated, generator=generator).argsort(dim=1)[:, :train].to(rewards_PN.device)
    return group_advantages(rewards_PN, kind=kind).gather(1, order_PN), order_PN


def gae(
    rewards_BT: Tensor, values_BT: Tensor, mask_BT: Tensor, *, discount: float = 1.0, trace: float = 0.95
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation (Schulman et al. 2016 eq. 16) and the critic's targets, token by token.

    `values_BT` are the critic's at each response token; after the last token of a response the value is 0.
    """
    mask_BT = mask_BT.to(values_BT.dtype)
    values_BT = values_BT * mask_BT
    advantages_BT = torch.zeros_like(values_BT)
    carried_B = torch.zeros_like(values_BT[:, 0])
    following_B = torch.zeros_like(carried_B)
    for t in range(values_BT.shape[1] - 1, -1, -1):
        surprise_B = rewards_BT[:, t] + discount * following_B - values_BT[:, t]
        carried_B = (surprise_B + discount * trace * carried_B) * mask_BT[:, t]
        advantages_BT[:, t] = carried_B
        following_B = values_BT[:, t]
    return advantages_BT, (advantages_BT + values_BT) * mask_BT


def reinforce_loss(logprobs_BT: Tensor, advantages_BT: Tensor) -> Tensor:
    """REINFORCE (Williams 1992): -A log π."""
    return -advantages_BT * logprobs_BT


def clip_loss(
    logprobs_BT: Tensor, old_logprobs_BT: Tensor, advantages_BT: Tensor, *, low: float = 0.2, high: float = 0.2
) -> Tensor:
    """PPO's clipped surrogate (Schulman et al. 2017 eq. 7) with DAPO's own upper clip (arXiv 2503.14476 eq. 8)."""
    ratio_BT = (logprobs_BT - old_logprobs_BT).exp()
    clipped_BT = ratio_BT.clamp(1.0 - low, 1.0 + high)
    return -torch.minimum(ratio_BT * advantages_BT, clipped_BT * advantages_BT)


def gspo_loss(
    logprobs_BT: Tensor,
    old_logprobs_BT: Tensor,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    *,
    low: float = 3e-4,
    high: float = 4e-4,
) -> Tensor:
    """GSPO (arXiv 2507.18071 eq. 5 and 7): the ratio of whole sequences, to the power 1 / length, clipped.

    All tokens of a sequence share its term; aggregation by `sequence` then gives the paper's mean.
    """
    mask_BT = mask_BT.to(logprobs_BT.dtype)
    lengths_B1 = mask_BT.sum(dim=1, keepdim=True).clamp(min=1.0)
    log_ratio_B1 = ((logprobs_BT - old_logprobs_BT) * mask_BT).sum(dim=1, keepdim=True) / lengths_B1
    ratio_BT = log_ratio_B1.exp().expand_as(logprobs_BT)
    clipped_BT = ratio_BT.clamp(1.0 - low, 1.0 + high)
    return -torch.minimum(ratio_BT * advantages_BT, clipped_BT * advantages_BT)


def cispo_loss(logprobs_BT: Tensor, old_logprobs_BT: Tensor, advantages_BT: Tensor, *, cap: float = 5.0) -> Tensor:
    """CISPO, ScaleRL eq. 4: REINFORCE whose importance ratio is truncated at `cap` and held constant.

    Unlike a PPO clip, a truncated ratio still passes gradient, so no token is ignored.
    """
    ratio_BT = (logprobs_BT - old_logprobs_BT).exp().detach().clamp(max=cap)
    return -ratio_BT * advantages_BT * logprobs_BT


def truncated_importance(trainer_logprobs_BT: Tensor, sampler_logprobs_BT: Tensor, *, cap: float = 2.0) -> Tensor:
    """Truncated importance weights min(π_trainer / π_sampler, cap), constant (Yao et al. 2025, TIS).

    They correct for a sampler whose numerics differ from the trainer's; multiply the policy term by them.
    """
    return (trainer_logprobs_BT.detach() - sampler_logprobs_BT).exp().clamp(max=cap)


def kl_to_base(logprobs_BT: Tensor, base_logprobs_BT: Tensor) -> Tensor:
    """The k3 estimate of KL(π || base) (Schulman 2020): r - 1 - log r with r = base / π; never negative."""
    log_ratio_BT = base_logprobs_BT - logprobs_BT
    return torch.expm1(log_ratio_BT) - log_ratio_BT


def entropy(logprobs_BTV: Tensor) -> Tensor:
    """Entropy of the next-token distribution, from its log-probs."""
    return -(logprobs_BTV.exp() * logprobs_BTV).sum(dim=-1)


def value_loss(values_BT: Tensor, old_values_BT: Tensor, returns_BT: Tensor, *, clip: float = 0.2) -> Tensor:
    """PPO's clipped critic loss: half the larger of the two squared errors."""
    near_BT = old_values_BT + (values_BT - old_values_BT).clamp(-clip, clip)
    return 0.5 * torch.maximum((values_BT - returns_BT) ** 2, (near_BT - returns_BT) ** 2)


def token_weights(
    mask_BT: Tensor, *, how: str, rollouts_per_problem: int = 1, length: int | None = None, keep_B: Tensor | None = None
) -> Tensor:
    """The weight of each token in the batch's loss; the loss is their weighted sum, so micro-batches add up.

    - `token`: mean over all tokens of the batch (DAPO eq. 8);
    - `sequence`: mean over each response's tokens, then over responses (GRPO, DeepSeekMath eq. 3);
    - `prompt`: mean over all tokens of a problem's responses, then over problems (ScaleRL section 3.2);
    - `fixed`: sum over tokens divided by a fixed `length`, then mean over responses (Dr. GRPO).

    Rows of a problem are consecutive. Rows outside `keep_B` (a zero-variance filter) count in neither numerator nor
    denominator. A response or problem without tokens counts as zero.
    """
    mask_BT = mask_BT if mask_BT.is_floating_point() else mask_BT.to(torch.float32)
    keep_B = torch.ones_like(mask_BT[:, 0]) if keep_B is None else keep_B.to(mask_BT.dtype)
    mask_BT = mask_BT * keep_B[:, None]
    tokens_B = mask_BT.sum(dim=1)
    if how == "token":
        return mask_BT / tokens_B.sum().clamp(min=1.0)
    rows = keep_B.sum().clamp(min=1.0)
    if how == "sequence":
        return mask_BT / (tokens_B.clamp(min=1.0) * rows)[:, None]
    if how == "prompt":
        tokens_P = tokens_B.view(-1, rollouts_per_problem).sum(dim=1).clamp(min=1.0)
        problems = keep_B.view(-1, rollouts_per_problem).amax(dim=1).sum().clamp(min=1.0)
        return mask_BT / (tokens_P.repeat_interleave(rollouts_per_problem) * problems)[:, None]
    if how == "fixed":
        if length is None:
            raise InputError("aggregation 'fixed' needs the length to divide by, usually the largest response length.")
        return mask_BT / (length * rows)
    raise InputError(f"aggregation '{how}' is not one of token, sequence, prompt, fixed.")


# Log-probs and entropies, without the logits in memory: these exist for one chunk of tokens at a time, in FP32, and the
# backward pass computes them again.


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
