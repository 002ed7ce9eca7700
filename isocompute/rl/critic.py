"""PPO's critic: a second decoder with one number for a head, trained beside the policy."""

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
    """Starts as the policy's body with a head of zeros: at first every value is 0 and returns are rewards."""

    def __init__(self, policy: Decoder) -> None:
        super().__init__()
        self.body = copy.deepcopy(policy)
        width, like = policy.config.hidden_size, policy.embed_tokens.weight
        self.head = nn.Linear(width, 1, device=like.device, dtype=torch.float32)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def trained(self) -> list[nn.Parameter]:
        """All parameters but the language model's own head, unless it is the embedding."""
        own = self.body.lm_head.weight is not self.body.embed_tokens.weight
        return [p for name, p in self.named_parameters() if not (own and name == "body.lm_head.weight")]

    def forward(self, rollouts: Rollouts) -> Tensor:
        """A value before every response token, zero outside the mask."""
        values_S = self.head(response_hidden(self.body, rollouts).float())[:, 0]
        return torch.zeros(rollouts.mask_BT.shape, device=values_S.device).masked_scatter(rollouts.mask_BT, values_S)


@dataclass(frozen=True)
class Judgement:
    """What the critic made of a batch, before it was updated."""

    values_BT: Tensor
    advantages_BT: Tensor
    returns_BT: Tensor


@torch.no_grad()
def judge(critic: Critic, rollouts: Rollouts, rewards_B: Tensor, recipe: Recipe, *, micro_batch: int) -> Judgement:
    """GAE with the reward at the last token; advantages are whitened over the batch's tokens, as PPO trainers do."""
    values_BT = torch.zeros_like(rollouts.logprobs_BT)
    for rows in micro_batches(rollouts, micro_batch):
        part = critic(rollouts.take(rows))
        values_BT[rows, : part.shape[1]] = part
    rewards_BT = torch.zeros_like(values_BT).scatter(1, rollouts.lengths_B[:, None] - 1, rewards_B[:, None])
    advantages_BT, returns_BT = gae(
        rewards_BT, values_BT, rollouts.mask_BT, discount=recipe.gae_discount, trace=recipe.gae_lambda
    )
    inside = advantages_BT[rollouts.sampled_BT]
    advantages_BT = (advantages_BT - inside.mean()) / (inside.std(correction=0) + 1e-8)
    return Judgement(values_BT, advantages_BT, returns_BT)


def update_critic(
    critic: Critic,
    optimizer: Optimizer,
    rollouts: Rollouts,
    judgement: Judgement,
    recipe: Recipe,
    *,
    rate: float,
    micro_batch: int,
) -> None:
    """As many steps as the policy takes on the batch."""
    optimizer.rate.fill_(rate)
    weights_BT = token_weights(rollouts.sampled_BT, how="token")
    for _ in range(recipe.updates_per_batch):
        for rows in micro_batches(rollouts, micro_batch):
            part = rollouts.take(rows)
            used = part.mask_BT.shape[1]
            loss_BT = value_loss(
                critic(part),
                judgement.values_BT[rows, :used],
                judgement.returns_BT[rows, :used],
                clip=recipe.value_clip,
            )
            (loss_BT * weights_BT[rows, :used]).sum().backward()  # type: ignore[no-untyped-call]  # torch's own gap
            optimizer.collect()
        optimizer.step()
