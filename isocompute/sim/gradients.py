"""Advantages and policy gradients on counts: exact, because rollouts of one problem are exchangeable.

n rollouts of a problem are one multinomial draw of counts over its K responses. Every advantage and loss below is a
function of these counts, so n = 2048 costs what n = 8 costs. A response is one action, so token, sequence and prompt
aggregation coincide here, and GSPO's sequence ratio is the ratio.

Gradients are ascent directions of the objective with respect to the logits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from isocompute.core.arrays import Array, Bools, Ints
from isocompute.core.recipe import Recipe

__all__ = ["Batch", "advantages", "logit_gradient", "subsample"]


@dataclass(frozen=True)
class Batch:
    """Rollouts of a batch of problems, as counts."""

    counts_PK: Ints
    correct_P: Ints
    sampler_PK: Array
    """Probabilities under the policy that sampled."""
    advantage_right_P: Array
    advantage_wrong_P: Array
    mixed_P: Bools
    """Problems whose rollouts do not all score the same."""


def advantages(recipe: Recipe, right_P: Ints, rollouts: int) -> tuple[Array, Array]:
    """Advantage of a right and of a wrong rollout of each problem, from how many of its rollouts are right.

    `group_std`: (r - mean) / std within the group (GRPO); `group_mean`: r - mean (Dr. GRPO); `batch_std`: r - mean over
    the standard deviation of that over the batch (ScaleRL); `none`: r.
    """
    mean_P = right_P / rollouts
    if recipe.advantage == "none":
        return np.ones_like(mean_P), np.zeros_like(mean_P)
    right, wrong = 1.0 - mean_P, -mean_P
    variance_P = mean_P * (1.0 - mean_P)
    if recipe.advantage == "group_std":
        # Sample standard deviation, as the trainers compute it; an even group has no gradient either way.
        scale_P = np.sqrt(variance_P * (rollouts / max(rollouts - 1, 1)))
        scale_P = np.where(scale_P > 0, scale_P, 1.0)
    elif recipe.advantage == "batch_std":
        spread = float(np.sqrt(variance_P.mean()))
        scale_P = np.full_like(mean_P, spread if spread > 0 else 1.0)
    else:
        return right, wrong
    return right / scale_P, wrong / scale_P


def subsample(counts_PK: Ints, keep: int, rng: np.random.Generator) -> Ints:
    """`keep` of each problem's rollouts without replacement (IsoCompute appendix G)."""
    out_PK = np.empty_like(counts_PK)
    left_P = counts_PK.sum(axis=1)
    keep_P = np.full(len(counts_PK), keep)
    for k in range(counts_PK.shape[1]):
        here_P = counts_PK[:, k]
        taken_P = rng.hypergeometric(here_P, left_P - here_P, keep_P)
        out_PK[:, k] = taken_P
        left_P, keep_P = left_P - here_P, keep_P - taken_P
    return out_PK


def logit_gradient(recipe: Recipe, batch: Batch, policy_PK: Array, base_log_PK: Array) -> Array:
    """Gradient of the objective by the logits of the present policy.

    Policy term: Σ_k counts_k A_k f(ρ_k) ∇log π_k / n averaged over problems, with ρ the ratio to the sampler's policy
    and f: 1 (REINFORCE), ρ where the clip does not bind (PPO, GRPO, DAPO, GSPO), min(ρ, cap) (CISPO, ScaleRL eq. 4).
    """
    rows = np.arange(len(batch.correct_P))
    advantage_PK = np.repeat(batch.advantage_wrong_P[:, None], policy_PK.shape[1], axis=1)
    advantage_PK[rows, batch.correct_P] = batch.advantage_right_P
    weight_PK = advantage_PK
    if recipe.loss != "reinforce" and recipe.updates_per_batch > 1:
        # With one update a batch the policy is the sampler's, and every ratio is 1.
        ratio_PK = policy_PK / np.maximum(batch.sampler_PK, 1e-300)
        if recipe.loss == "cispo":
            weight_PK = advantage_PK * np.minimum(ratio_PK, recipe.ratio_cap)
        else:
            silenced = ((advantage_PK > 0) & (ratio_PK > 1 + recipe.clip_high)) | (
                (advantage_PK < 0) & (ratio_PK < 1 - recipe.clip_low)
            )
            weight_PK = np.where(silenced, 0.0, advantage_PK * ratio_PK)
    share_PK = batch.counts_PK * weight_PK
    rollouts = int(batch.counts_PK[0].sum())
    gradient_PK = share_PK - policy_PK * share_PK.sum(axis=1, keepdims=True)
    problems = len(rows)
    kept = int(batch.mixed_P.sum()) if recipe.zero_variance_filter != "off" else problems
    gradient_PK /= rollouts * max(kept, 1)
    if recipe.kl_coef or recipe.entropy_coef:
        gradient_PK += _regularisers(recipe, batch, policy_PK, base_log_PK)
    return np.asarray(gradient_PK)


def _regularisers(recipe: Recipe, batch: Batch, policy_PK: Array, base_log_PK: Array) -> Array:
    """Ascent directions of -kl_coef · KL(π || base) and entropy_coef · H(π), averaged over problems."""
    log_PK = np.log(np.maximum(policy_PK, 1e-300))
    lean_PK = -(recipe.kl_coef + recipe.entropy_coef) * log_PK
    if recipe.kl_coef:
        lean_PK += recipe.kl_coef * base_log_PK
    out_PK = policy_PK * (lean_PK - (policy_PK * lean_PK).sum(axis=1, keepdims=True))
    if recipe.zero_variance_filter == "all":
        out_PK *= batch.mixed_P[:, None]
        return np.asarray(out_PK / max(int(batch.mixed_P.sum()), 1))
    return np.asarray(out_PK / len(out_PK))
