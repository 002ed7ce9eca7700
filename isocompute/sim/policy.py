"""The policy, the exact gradients of its update rules, and the metrics of a point.

The policy is a softmax over responses whose logits are the base's plus learned weights. Rollouts of one problem are
exchangeable: n of them are one multinomial draw of counts over its K responses. Every advantage and loss below is a
function of these counts, so n = 2048 costs the same as n = 8. A response is one action: token, sequence and prompt
aggregation coincide, and GSPO's sequence ratio equals the token ratio.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from isocompute.core.arrays import Array, Bools, Ints
from isocompute.core.metrics import avg_at_k, best_at_k, mean_with_error, worst_at_k
from isocompute.core.recipe import Recipe
from isocompute.sim.world import Problems, World, WorldSpec, right_share, softmax


class Policy:
    """Shared weights (features × responses) and, if `interference` is below 1, separate weights for each problem.

    Problems outside the training set use only the shared weights.
    """

    def __init__(self, spec: WorldSpec, problems: int, recipe: Recipe) -> None:
        self.shared_scale = np.sqrt(spec.interference * spec.features)  # feature vectors have length about 1
        self.own_scale = np.sqrt((1.0 - spec.interference) * spec.features)
        self.recipe = recipe
        self.steps = 0
        self.shared_FK = np.zeros((spec.features, spec.responses))
        self.moments_2FK = np.zeros((2, spec.features, spec.responses))
        own = (problems if self.own_scale > 0 else 0, spec.responses)
        self.own_PK = np.zeros(own)
        self.own_moments_2PK = np.zeros((2, *own))

    def probabilities(self, features_PF: Array, base_PK: Array, index_P: Ints | None = None) -> Array:
        """π for problems; `index_P` holds their indices in the training set and is None for held-out problems."""
        logits_PK = (self.shared_scale * features_PF) @ self.shared_FK
        logits_PK += base_PK
        if index_P is not None and self.own_scale > 0:
            logits_PK += self.own_scale * self.own_PK[index_P]
        return softmax(logits_PK)

    def ascend(self, features_PF: Array, gradient_PK: Array, index_P: Ints, rate: float) -> float:
        """Take one step along the gradient of the logits; returns the gradient norm before clipping."""
        recipe = self.recipe
        shared_FK = (self.shared_scale * features_PF).T @ gradient_PK
        norm = float(np.sqrt((shared_FK * shared_FK).sum()))
        own_PK = self.own_scale * gradient_PK if self.own_scale > 0 else None
        if own_PK is not None:
            norm = float(np.hypot(norm, np.linalg.norm(own_PK)))
        scale = 1.0 if recipe.grad_clip is None or norm <= recipe.grad_clip else recipe.grad_clip / norm
        self.steps += 1
        _step(self.shared_FK, self.moments_2FK, shared_FK * scale, recipe, rate, self.steps)
        if own_PK is not None:
            # Only the rows of this batch move, as an embedding's do under a sparse optimiser.
            rows_PK, moments_2PK = self.own_PK[index_P], self.own_moments_2PK[:, index_P]
            _step(rows_PK, moments_2PK, own_PK * scale, recipe, rate, self.steps)
            self.own_PK[index_P], self.own_moments_2PK[:, index_P] = rows_PK, moments_2PK
        return norm

    def copy(self) -> Policy:
        """A policy with the same weights, for comparison after a step."""
        out = object.__new__(Policy)
        out.__dict__.update(self.__dict__)
        out.shared_FK, out.own_PK = self.shared_FK.copy(), self.own_PK.copy()
        return out

    def state(self) -> dict[str, np.ndarray]:
        """Arrays of a checkpoint."""
        return {
            "shared": self.shared_FK,
            "moments": self.moments_2FK,
            "own": self.own_PK,
            "own_moments": self.own_moments_2PK,
        }

    def restore(self, arrays: dict[str, np.ndarray], steps: int) -> None:
        """Resume from a checkpoint."""
        self.shared_FK, self.moments_2FK = arrays["shared"].copy(), arrays["moments"].copy()
        self.own_PK, self.own_moments_2PK = arrays["own"].copy(), arrays["own_moments"].copy()
        self.steps = steps


def _step(weights: Array, moments_2: Array, gradient: Array, recipe: Recipe, rate: float, step: int) -> None:
    """Ascend in place by AdamW (Loshchilov & Hutter 2019) or plain SGD."""
    if recipe.optimizer == "sgd":
        weights += rate * gradient
        return
    first, second = moments_2
    first *= recipe.beta1
    first += (1.0 - recipe.beta1) * gradient
    second *= recipe.beta2
    second += (1.0 - recipe.beta2) * gradient * gradient
    correction = np.sqrt(1.0 - recipe.beta2**step) / (1.0 - recipe.beta1**step)
    if recipe.weight_decay:
        weights *= 1.0 - rate * recipe.weight_decay
    weights += (rate * correction) * first / (np.sqrt(second) + recipe.epsilon)


# Advantages and policy gradients on counts. Gradients are ascent directions with respect to the logits.


@dataclass(frozen=True)
class CountBatch:
    """Rollouts of a batch of problems, as counts."""

    counts_PK: Ints
    correct_P: Ints
    sampler_PK: Array
    """Probabilities under the policy that sampled the batch."""
    advantage_right_P: Array
    advantage_wrong_P: Array
    mixed_P: Bools
    """Problems whose rollouts do not all score the same."""


def advantages(recipe: Recipe, right_P: Ints, rollouts: int) -> tuple[Array, Array]:
    """Advantages of a right and of a wrong rollout of each problem, from its number of right rollouts.

    `group_std`: (r - mean) / std within the group (GRPO); `group_mean`: r - mean (Dr. GRPO); `batch_std`: r - mean,
    divided by its standard deviation over the batch (ScaleRL); `none`: r.
    """
    mean_P = right_P / rollouts
    if recipe.advantage == "none":
        return np.ones_like(mean_P), np.zeros_like(mean_P)
    right, wrong = 1.0 - mean_P, -mean_P
    variance_P = mean_P * (1.0 - mean_P)
    if recipe.advantage == "group_std":
        # Sample standard deviation, as the trainers compute it; a zero-variance group has no gradient either way.
        scale_P = np.sqrt(variance_P * (rollouts / max(rollouts - 1, 1)))
        scale_P = np.where(scale_P > 0, scale_P, 1.0)
    elif recipe.advantage == "batch_std":
        std = float(np.sqrt(variance_P.mean()))
        scale_P = np.full_like(mean_P, std if std > 0 else 1.0)
    else:
        return right, wrong
    return right / scale_P, wrong / scale_P


def subsample(counts_PK: Ints, keep: int, rng: np.random.Generator) -> Ints:
    """Keep `keep` rollouts of each problem, drawn without replacement (IsoCompute appendix G)."""
    out_PK = np.empty_like(counts_PK)
    left_P = counts_PK.sum(axis=1)
    keep_P = np.full(len(counts_PK), keep)
    for k in range(counts_PK.shape[1]):
        here_P = counts_PK[:, k]
        taken_P = rng.hypergeometric(here_P, left_P - here_P, keep_P)
        out_PK[:, k] = taken_P
        left_P, keep_P = left_P - here_P, keep_P - taken_P
    return out_PK


def logit_gradient(recipe: Recipe, batch: CountBatch, policy_PK: Array, base_log_PK: Array) -> Array:
    """Gradient of the objective with respect to the logits of the current policy.

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
            clipped = ((advantage_PK > 0) & (ratio_PK > 1 + recipe.clip_high)) | (
                (advantage_PK < 0) & (ratio_PK < 1 - recipe.clip_low)
            )
            weight_PK = np.where(clipped, 0.0, advantage_PK * ratio_PK)
    share_PK = batch.counts_PK * weight_PK
    rollouts = int(batch.counts_PK[0].sum())
    gradient_PK = share_PK - policy_PK * share_PK.sum(axis=1, keepdims=True)
    problems = len(rows)
    kept = int(batch.mixed_P.sum()) if recipe.zero_variance_filter != "off" else problems
    gradient_PK /= rollouts * max(kept, 1)
    if recipe.kl_coef or recipe.entropy_coef:
        gradient_PK += _regularisers(recipe, batch, policy_PK, base_log_PK)
    return np.asarray(gradient_PK)


def _regularisers(recipe: Recipe, batch: CountBatch, policy_PK: Array, base_log_PK: Array) -> Array:
    """Ascent directions of -kl_coef · KL(π || base) and entropy_coef · H(π), averaged over problems."""
    log_PK = np.log(np.maximum(policy_PK, 1e-300))
    logit_PK = -(recipe.kl_coef + recipe.entropy_coef) * log_PK
    if recipe.kl_coef:
        logit_PK += recipe.kl_coef * base_log_PK
    out_PK = policy_PK * (logit_PK - (policy_PK * logit_PK).sum(axis=1, keepdims=True))
    if recipe.zero_variance_filter == "all":
        out_PK *= batch.mixed_P[:, None]
        return np.asarray(out_PK / max(int(batch.mixed_P.sum()), 1))
    return np.asarray(out_PK / len(out_PK))


# The metrics of a point: exact and sampled pass rates, their histogram, interference.

_HISTOGRAM_BINS = 20
_PROBES = 256
_NEVER = 0.01
"""A problem counts as never solved below this pass rate."""


def evaluate(
    policy: Policy,
    world: World,
    base_log_PK: Array,
    *,
    samples: int,
    ks: Sequence[int],
    rng: np.random.Generator,
) -> dict[str, Any]:
    """Metrics on the validation set: sampled ones under their plain names, exact ones under `exact/`.

    `ood/` has the exact metrics out of distribution. Entropy, KL to the base and a histogram of pass rates are of the
    training set.
    """

    def pass_rates(problems: Problems) -> Array:
        return right_share(policy.probabilities(problems.features_PF, problems.base_PK), problems.correct_P)

    rates_P = pass_rates(world.validation)
    correct_P = rng.binomial(samples, rates_P)
    samples_P = np.full(len(rates_P), samples)
    out: dict[str, Any] = {}
    for k in ks:
        for name, metric in (("avg", avg_at_k), ("best", best_at_k), ("worst", worst_at_k)):
            estimate = mean_with_error(metric(correct_P, samples_P, k=k))
            out[f"{name}@{k}"] = estimate.value
            if name == "avg" and np.isfinite(estimate.standard_error):
                out[f"{name}@{k}/error"] = estimate.standard_error
        out |= {f"exact/{name}@{k}": value for name, value in _exact(rates_P, k).items()}
        if len(world.out_of_distribution):
            outside_P = pass_rates(world.out_of_distribution)
            out |= {f"ood/{name}@{k}": value for name, value in _exact(outside_P, k).items()}
    train = world.train
    policy_PK = policy.probabilities(train.features_PF, train.base_PK, np.arange(len(train)))
    log_PK = np.log(np.maximum(policy_PK, 1e-300))
    out["entropy"] = -float((policy_PK * log_PK).sum()) / len(train)
    out["kl"] = float(np.maximum(0.0, (policy_PK * (log_PK - base_log_PK)).sum() / len(train)))
    train_P = right_share(policy_PK, train.correct_P)
    out["train/exact"] = float(train_P.mean())
    out["train/zero_pass"] = float((train_P < _NEVER).mean())
    out["train/pass_rates"] = np.histogram(train_P, bins=_HISTOGRAM_BINS, range=(0.0, 1.0))[0].tolist()
    return out


def _exact(rates_P: Array, k: int) -> dict[str, float]:
    return {
        "avg": float(rates_P.mean()),
        "best": float((1.0 - (1.0 - rates_P) ** k).mean()),
        "worst": float((rates_P**k).mean()),
    }


def interference(before: Policy, after: Policy, train: Problems, index_P: Ints) -> float:
    """How much one update changed the pass rates of problems outside its batch, relative to those inside it.

    0: updates affect only the problems in their batch; 1: they affect all problems equally.
    """
    outside_P = np.setdiff1d(np.arange(min(len(train), _PROBES + len(index_P))), index_P)[:_PROBES]
    if not len(outside_P):
        return float("nan")

    def moved(places_P: Ints) -> float:
        part = train.take(places_P)
        rates = [
            right_share(policy.probabilities(part.features_PF, part.base_PK, places_P), part.correct_P)
            for policy in (before, after)
        ]
        return float(np.abs(rates[1] - rates[0]).mean())

    inside = moved(index_P)
    return moved(outside_P) / inside if inside > 1e-6 else float("nan")
