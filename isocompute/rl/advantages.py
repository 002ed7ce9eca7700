"""Advantages: what a rollout is worth compared with the others. Pure functions of rewards.

Shapes: `_P` problems, `_N` rollouts of a problem, `_B` sequences, `_T` tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from isocompute.core.errors import InputError

__all__ = ["decoupled_advantages", "gae", "group_advantages", "mixed_groups"]

_EPSILON = 1e-6


def group_advantages(rewards_PN: Tensor, *, kind: str) -> Tensor:
    """Advantages of rollouts grouped by problem.

    - `group_std`: (r - mean) / (std + 1e-6) within the group, std with n - 1 (GRPO as the trainers compute it);
    - `group_mean`: r - mean (Dr. GRPO, arXiv 2503.20783 eq. 3: no division);
    - `batch_std`: (r - mean) / (std of r - mean over the batch + 1e-6) (ScaleRL section 3.2);
    - `none`: r (plain REINFORCE).

    Equal rewards of a group are worth 0. A group of one has no mean to compare with and is refused.
    """
    if kind == "none":
        return rewards_PN.clone()
    if rewards_PN.shape[1] < 2:
        raise InputError("one rollout a problem has no group to compare with; use n >= 2 or advantage = 'none'.")
    # Equal fractions can lie a rounding error off their mean, which a division by their std would blow up.
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

    Returns the advantages and the places of the drawn rollouts, both problems × `train`.
    """
    problems, estimated = rewards_PN.shape
    if not 1 <= train <= estimated:
        raise InputError(f"{train} rollouts to train on of {estimated} that estimate the baseline; it must be fewer.")
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
