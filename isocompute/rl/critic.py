"""PPO's critic: a second decoder with a scalar value head, trained beside the policy."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from isocompute.core.recipe import Recipe
from isocompute.rl.losses import gae, token_weights, value_loss
from isocompute.rl.model.decoder import Decoder, Part
from isocompute.rl.rollout.engine import Rollouts
from isocompute.rl.setup import Sizes
from isocompute.rl.update import Optimizer, passes, response_hidden, within_memory

_CRITIC_RATE = 10.0
"""A critic's learning rate relative to the policy's, unless the recipe sets one."""


class Critic(nn.Module):
    """A copy of the policy with a value head of zeros, so that every value is 0 before the first update."""

    def __init__(self, policy: Decoder) -> None:
        super().__init__()
        self.body = policy.merged().requires_grad_(True)
        self.head = nn.Linear(policy.config.hidden_size, 1, device=policy.device, dtype=torch.float32)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def parts(self) -> list[Part]:
        """All weights except the language-model head, which is kept only if it is tied to the embedding."""
        body = [part for part in self.body.parts() if part.name != "lm_head.weight"]
        return [*body, *(Part(f"head.{name}", p, 0, len(p)) for name, p in self.head.named_parameters())]

    def forward(self, rollouts: Rollouts) -> Tensor:
        """The value of the state before each response token; zero outside the mask."""
        packed = rollouts.packed(self.body.device)
        return packed.spread(self.head(response_hidden(self.body, packed).float())[:, 0])


@dataclass(frozen=True)
class CriticEstimates:
    """Values, advantages and returns of a batch, from the critic before it is updated."""

    values_BT: Tensor
    advantages_BT: Tensor
    returns_BT: Tensor


@torch.no_grad()
def estimate_advantages(
    critic: Critic, rollouts: Rollouts, rewards_B: Tensor, recipe: Recipe, *, sizes: Sizes
) -> CriticEstimates:
    """GAE with the reward at the last token; advantages are whitened over the batch's tokens, as PPO trainers do."""
    device = critic.body.device
    values_BT = torch.zeros(rollouts.responses_BT.shape, device=device)

    def value() -> Tensor:
        for rows in passes(rollouts, sizes):
            part = critic(rollouts.take(rows))
            values_BT[rows[0] : rows[-1] + 1, : part.shape[1]] = part
        return values_BT

    within_memory(sizes, value)
    lengths_B, sampled_BT = rollouts.lengths_B.to(device), rollouts.sampled_BT.to(device)
    rewards_BT = torch.zeros_like(values_BT).scatter(1, lengths_B[:, None] - 1, rewards_B.to(device)[:, None])
    advantages_BT, returns_BT = gae(
        rewards_BT, values_BT, rollouts.mask_BT.to(device), discount=recipe.gae_discount, trace=recipe.gae_lambda
    )
    sampled = advantages_BT[sampled_BT]
    advantages_BT = (advantages_BT - sampled.mean()) / (sampled.std(correction=0) + 1e-8)
    return CriticEstimates(values_BT, advantages_BT, returns_BT)


def update_critic(
    critic: Critic,
    optimizer: Optimizer,
    rollouts: Rollouts,
    estimates: CriticEstimates,
    recipe: Recipe,
    *,
    policy_rate: float,
    sizes: Sizes,
) -> None:
    """Train the critic on a batch, for as many gradient steps as the policy takes."""
    own = recipe.critic_learning_rate
    optimizer.rate.fill_(policy_rate * (_CRITIC_RATE if own is None else own / recipe.learning_rate))
    weights_BT = token_weights(rollouts.sampled_BT, how="token").to(critic.body.device)

    def accumulate() -> Tensor:
        optimizer.clear()
        for rows in passes(rollouts, sizes):
            part = rollouts.take(rows)
            some, used = slice(int(rows[0]), int(rows[-1]) + 1), part.responses_BT.shape[1]
            loss_BT = value_loss(
                critic(part),
                estimates.values_BT[some, :used],
                estimates.returns_BT[some, :used],
                clip=recipe.value_clip,
            )
            (loss_BT * weights_BT[some, :used]).sum().backward()  # type: ignore[no-untyped-call]  # torch's own gap
            optimizer.collect()
        return weights_BT

    for _ in range(recipe.updates_per_batch):
        within_memory(sizes, accumulate)
        optimizer.step()
