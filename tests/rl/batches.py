"""One batch of rollouts of a random model for the tests of updates: unequal lengths, and another policy's samples."""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
import transformers
from torch import Tensor

from isocompute.core.recipe import Recipe
from isocompute.rl.critic import Critic
from isocompute.rl.model.decoder import Decoder
from isocompute.rl.rollout.engine import Rollouts, SamplingSettings
from isocompute.rl.setup import Sizes
from isocompute.rl.update import Batch, Optimizer, make_batch, score_all
from tests.rl.models import eager, reference, requests

PROMPTS = [[5, 9, 2], [7, 1, 33, 80, 4, 6, 21], [50], [3, 3]]
N, NEW = 4, 10
REWARDS = torch.tensor([[1.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, 0.0], [0.5, 0.0, 1.0, 1.0], [0.0, 1.0, 0.0, 0.0]])
"""The second problem has no variance."""
RATE = 1e-3
CPU = torch.device("cpu")


def sharp_reference() -> transformers.PreTrainedModel:
    """Random weights whose head is large enough for a policy with opinions."""
    model = reference("qwen3")
    with torch.no_grad():
        model.lm_head.weight *= 4.0
    return model


def at_once(rows: int) -> Sizes:
    """At most so many rollouts in a pass."""
    return Sizes(tokens=4096, rows=16, most_rows=rows)


def off_policy_rollouts(start: Decoder) -> Rollouts:
    """Responses of unequal length, sampled by another policy than the one that is trained."""
    other = copy.deepcopy(start)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.02)
    out = eager(other, requests(PROMPTS, seed=4, per_prompt=N), SamplingSettings(NEW, stop_tokens=tuple(range(40, 60))))
    assert len(set(out.lengths_B.tolist())) > 4
    return out


def batch_for(recipe: Recipe, rollouts: Rollouts, base: Decoder, advantages_BT: Tensor | None = None) -> Batch:
    """As the trainer makes it; the base is not quite the policy, so that the KL term pulls."""
    batch = make_batch(recipe, rollouts, REWARDS, max_new_tokens=NEW, device=CPU, advantages_BT=advantages_BT)
    base_BT = score_all(base, rollouts, recipe, sizes=at_once(16)) - 0.1 * rollouts.mask_BT
    return replace(batch, base_logprobs_BT=base_BT) if recipe.kl_coef else batch


class Recorded(Optimizer):
    """Keeps the gradient of every step."""

    def __init__(self, module: Decoder | Critic, recipe: Recipe) -> None:
        super().__init__(list(module.parts()), recipe)
        self.gradients: list[Tensor] = []
        self.inner.register_step_pre_hook(
            lambda *_: self.gradients.append(torch.cat([m.grad.flatten() for m in self.masters if m.grad is not None]))
        )


def apart(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())
