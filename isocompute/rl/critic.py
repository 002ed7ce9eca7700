"""PPO's critic: a second decoder with a scalar value head, trained beside the policy."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from isocompute.core.recipe import Recipe
from isocompute.rl.losses import gae, token_weights, value_loss
from isocompute.rl.model.decoder import Decoder
from isocompute.rl.rollout.rollouts import Rollouts
from isocompute.rl.update import Optimizer, micro_batches, response_hidden


class Critic(nn.Module):
    """A copy of the policy with a value head of zeros, so that every value is 0 before the first update."""

    def __init__(self, policy: Decoder) -> None:
        super().__init__()
        self.body = copy.deepcopy(policy)
        width, like = policy.config.hidden_size, policy.embed_tokens.weight
        self.head = nn.Linear(width, 1, device=like.device, dtype=torch.float32)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def trained(self) -> list[nn.Parameter]:
        """All parameters except the language-model head, which is kept only if it is tied to the embedding."""
        untied = self.body.lm_head.weight is not self.body.embed_tokens.weight
        return [p for name, p in self.named_parameters() if not (untied and name == "body.lm_head.weight")]

    def forward(self, rollouts: Rollouts) -> Tensor:
        """The value of the state before each response token; zero outside the mask."""
        values_S = self.head(response_hidden(self.body, rollouts).float())[:, 0]
        return torch.zeros(rollouts.mask_BT.shape, device=values_S.device).masked_scatter(rollouts.mask_BT, values_S)


@dataclass(frozen=True)
class CriticEstimates:
    """Values, advantages and returns of a batch, from the critic before it is updated."""

    values_BT: Tensor
    advantages_BT: Tensor
    returns_BT: Tensor


@torch.no_grad()
def estimate_advantages(
    critic: Critic, rollouts: Rollouts, rewards_B: Tensor, recipe: Recipe, *, micro_batch: int
) -> CriticEstimates:
    """GAE with the reward at the last token; advantages are whitened over the batch's tokens, as PPO trainers do."""
    values_BT = torch.zeros_like(rollouts.logprobs_BT)
    for rows in micro_batches(rollouts, micro_batch):
        part = critic(rollouts.take(rows))
        values_BT[rows, : part.shape[1]] = part
    rewards_BT = torch.zeros_like(values_BT).scatter(1, rollouts.lengths_B[:, None] - 1, rewards_B[:, None])
    advantages_BT, returns_BT = gae(
        rewards_BT, values_BT, rollouts.mask_BT, discount=recipe.gae_discount, trace=recipe.gae_lambda
    )
    sampled = advantages_BT[rollouts.sampled_BT]
    advantages_BT = (advantages_BT - sampled.mean()) / (sampled.std(correction=0) + 1e-8)
    return CriticEstimates(values_BT, advantages_BT, returns_BT)


def update_critic(
    critic: Critic,
    optimizer: Optimizer,
    rollouts: Rollouts,
    estimates: CriticEstimates,
    recipe: Recipe,
    *,
    rate: float,
    micro_batch: int,
) -> None:
    """Train the critic on a batch, for as many gradient steps as the policy takes."""
    optimizer.rate.fill_(rate)
    weights_BT = token_weights(rollouts.sampled_BT, how="token")
    for _ in range(recipe.updates_per_batch):
        for rows in micro_batches(rollouts, micro_batch):
            part = rollouts.take(rows)
            used = part.mask_BT.shape[1]
            loss_BT = value_loss(
                critic(part),
                estimates.values_BT[rows, :used],
                estimates.returns_BT[rows, :used],
                clip=recipe.value_clip,
            )
            (loss_BT * weights_BT[rows, :used]).sum().backward()  # type: ignore[no-untyped-call]  # torch's own gap
            optimizer.collect()
        optimizer.step()
