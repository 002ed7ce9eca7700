"""Losses, token by token, and the weights that average them. Pure functions; each cites its equation.

`logprobs_BT` are the trainer's and differentiable, `old_logprobs_BT` those that ratios are taken against (the
sampler's, or the trainer's own before the first of several updates), constant. `advantages_BT` broadcasts from `_B1`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from isocompute.core.errors import InputError

__all__ = [
    "cispo_loss",
    "clip_loss",
    "entropy",
    "gspo_loss",
    "kl_to_base",
    "reinforce_loss",
    "token_weights",
    "truncated_importance",
    "value_loss",
]


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

    Every token of a sequence carries the sequence's term; aggregated by `sequence` that is the paper's mean.
    """
    mask_BT = mask_BT.to(logprobs_BT.dtype)
    lengths_B1 = mask_BT.sum(dim=1, keepdim=True).clamp(min=1.0)
    log_ratio_B1 = ((logprobs_BT - old_logprobs_BT) * mask_BT).sum(dim=1, keepdim=True) / lengths_B1
    ratio_BT = log_ratio_B1.exp().expand_as(logprobs_BT)
    clipped_BT = ratio_BT.clamp(1.0 - low, 1.0 + high)
    return -torch.minimum(ratio_BT * advantages_BT, clipped_BT * advantages_BT)


def cispo_loss(logprobs_BT: Tensor, old_logprobs_BT: Tensor, advantages_BT: Tensor, *, cap: float = 5.0) -> Tensor:
    """CISPO, ScaleRL eq. 4: REINFORCE whose importance ratio is truncated at `cap` and held constant.

    Unlike a PPO clip, a truncated ratio still passes gradient, so no token is ever silenced.
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
    """The weight of every token in the batch's loss; the loss is the weighted sum, so micro-batches just add up.

    - `token`: mean over all tokens of the batch (DAPO eq. 8);
    - `sequence`: mean over each response's tokens, then over responses (GRPO, DeepSeekMath eq. 3);
    - `prompt`: mean over all tokens of a problem's responses, then over problems (ScaleRL section 3.2);
    - `fixed`: sum over tokens divided by a fixed `length`, then mean over responses (Dr. GRPO).

    Rows of a problem stand together. Rows outside `keep_B` (a zero-variance filter) count neither above nor below; a
    response or problem without a token counts as zero.
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
        problems = (rows / rollouts_per_problem).clamp(min=1.0)
        return mask_BT / (tokens_P.repeat_interleave(rollouts_per_problem) * problems)[:, None]
    if how == "fixed":
        if length is None:
            raise InputError("aggregation 'fixed' needs the length to divide by, usually the largest response length.")
        return mask_BT / (length * rows)
    raise InputError(f"aggregation '{how}' is not one of token, sequence, prompt, fixed.")
