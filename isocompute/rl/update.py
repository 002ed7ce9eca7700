"""From a batch of rollouts to new weights: log-probs under the policy, the objective, AdamW on FP32 masters.

The loss is a weighted sum over tokens. The weights are fixed for the whole batch (`losses.token_weights`), so any
split into micro-batches gives the same gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from isocompute.core.recipe import Recipe
from isocompute.rl import losses
from isocompute.rl.losses import group_advantages, head_scores, mixed_groups
from isocompute.rl.model.attention import PackedAttention
from isocompute.rl.model.decoder import Decoder, Part
from isocompute.rl.rollout.engine import Groups, Packed, Rollouts
from isocompute.rl.setup import Sizes


def passes(rollouts: Rollouts, sizes: Sizes) -> Iterator[Tensor]:
    """Row indices of training passes over a batch."""
    return rollouts.micro_batches(tokens=sizes.tokens, rows=sizes.most_rows)


def within_memory(sizes: Sizes, run: Callable[[], Tensor]) -> Tensor:
    """Run something that makes passes; where memory runs out, halve the passes and begin again."""
    while True:
        try:
            return run()
        except torch.OutOfMemoryError:
            if not sizes.halve():
                raise
        torch.cuda.empty_cache()


def response_hidden(decoder: Decoder, packed: Packed) -> Tensor:
    """Hidden states that predict the response tokens."""
    hidden_TD: Tensor = decoder(packed.tokens_T, packed.positions_T, PackedAttention(packed.packing))
    return hidden_TD.index_select(0, packed.predictor_S)


def score(
    decoder: Decoder, rollouts: Rollouts, recipe: Recipe, *, packed: Packed | None = None
) -> tuple[Tensor, Tensor]:
    """Log-probs of the sampled tokens and entropies of their distributions; zero where the policy chose no token.

    They are after the recipe's temperature, so that trainer and sampler score the same distribution.
    """
    packed = packed or rollouts.packed(decoder.device)
    both = head_scores(
        response_hidden(decoder, packed),
        decoder.lm_head.weight,
        packed.chosen_S,
        temperature=recipe.temperature,
        fp32=recipe.fp32_head,
    )
    logprobs_BT, entropies_BT = (packed.spread(values_S) for values_S in both)
    if rollouts.forced_BT is None:
        return logprobs_BT, entropies_BT
    chosen_BT = (~rollouts.forced_BT).to(decoder.device)
    return logprobs_BT * chosen_BT, entropies_BT * chosen_BT


@torch.no_grad()
def score_all(decoder: Decoder, rollouts: Rollouts, recipe: Recipe, *, sizes: Sizes) -> Tensor:
    """Log-probs of a whole batch, without gradients."""
    out_BT = torch.zeros(rollouts.responses_BT.shape, device=decoder.device)

    def run() -> Tensor:
        for rows in passes(rollouts, sizes):
            part = rollouts.take(rows)
            logprobs_BT, _ = score(decoder, part, recipe)
            out_BT[rows[0] : rows[-1] + 1, : logprobs_BT.shape[1]] = logprobs_BT
        return out_BT

    return within_memory(sizes, run)


class Optimizer:
    """AdamW or SGD on FP32 masters: accumulates gradients of micro-batches, clips and steps."""

    def __init__(self, parts: Sequence[Part], recipe: Recipe) -> None:
        self.parts = list(parts)
        """The weights it updates, as a checkpoint counts them."""
        self.parameters = list({id(part.parameter): part.parameter for part in parts}.values())
        self.grad_clip = recipe.grad_clip
        self.masters = [p if p.dtype == torch.float32 else nn.Parameter(p.detach().float()) for p in self.parameters]
        pairs = zip(self.parameters, self.masters, strict=True)
        self._cast = [(p, m) for p, m in pairs if p is not m]
        self.rate = torch.tensor(recipe.learning_rate, device=self.parameters[0].device)
        self.inner: torch.optim.Optimizer
        if recipe.optimizer == "sgd":
            self.inner = torch.optim.SGD(self.masters, lr=self.rate, fused=True)
        else:
            self.inner = torch.optim.AdamW(
                self.masters,
                lr=self.rate,
                betas=(recipe.beta1, recipe.beta2),
                eps=recipe.epsilon,
                weight_decay=recipe.weight_decay,
                fused=True,
            )

    def clear(self) -> None:
        """Forget gradients, also those of a pass that ran out of memory."""
        for parameter in (*self.parameters, *self.masters):
            parameter.grad = None

    def collect(self) -> None:
        """Add the gradients of a micro-batch to the masters; FP32 parameters are their own masters."""
        for parameter, master in self._cast:
            if parameter.grad is not None:
                master.grad = parameter.grad.float() if master.grad is None else master.grad.add_(parameter.grad)
                parameter.grad = None

    @torch.no_grad()
    def step(self) -> Tensor:
        """Take one step at the learning rate `rate` and return the gradient norm before clipping.

        If the norm is not finite, the step is skipped and the weights stay as they are.
        """
        norm = torch.nn.utils.get_total_norm([m.grad for m in self.masters if m.grad is not None])
        if self.grad_clip is not None:
            torch.nn.utils.clip_grads_with_norm_(self.masters, self.grad_clip, norm)
        # The fused optimisers skip the step where this is not 0, as with a gradient scaler.
        self.inner.found_inf = (~torch.isfinite(norm)).float()  # type: ignore[attr-defined]  # torch declares it late
        self.inner.grad_scale = None  # type: ignore[attr-defined]  # likewise
        self.inner.step()
        if self._cast:
            torch._foreach_copy_([p for p, _ in self._cast], [m for _, m in self._cast])
        self.inner.zero_grad(set_to_none=True)
        return norm

    def state(self, prefix: str) -> dict[str, np.ndarray]:
        """Weights and moments for a checkpoint, in the order of `parts`."""
        out: dict[str, np.ndarray] = {}
        masters = {id(p): m for p, m in zip(self.parameters, self.masters, strict=True)}
        for i, part in enumerate(self.parts):
            master = masters[id(part.parameter)]
            out[f"{prefix}{i}"] = _array(part.of(master))
            for name, value in self.inner.state[master].items():
                out[f"{prefix}{i}.{name}"] = _array(value if value.ndim == 0 else part.of(value))
        return out

    @torch.no_grad()
    def restore(self, arrays: Mapping[str, np.ndarray], prefix: str) -> None:
        """Resume from a checkpoint."""
        masters = {id(p): m for p, m in zip(self.parameters, self.masters, strict=True)}
        for i, part in enumerate(self.parts):
            master, start = masters[id(part.parameter)], f"{prefix}{i}."
            part.of(master).copy_(torch.from_numpy(arrays[f"{prefix}{i}"]))
            moments = self.inner.state[master]
            for name in (key.removeprefix(start) for key in arrays if key.startswith(start)):
                value = torch.from_numpy(arrays[start + name].copy()).to(master.device)
                if value.ndim == 0:
                    moments[name] = value
                else:
                    part.of(moments.setdefault(name, torch.zeros_like(master))).copy_(value)
        for parameter, master in self._cast:
            parameter.copy_(master)


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().cpu().numpy().copy()


# Gradient steps on a batch


@dataclass(frozen=True)
class Batch:
    """Rollouts with everything that stays constant during the gradient steps, which lies on the decoder's device."""

    rollouts: Rollouts
    sampled_BT: Tensor
    """True for tokens that the policy chose."""
    sampler_logprobs_BT: Tensor
    advantages_BT: Tensor
    """`_B1` where all tokens of a response share one advantage."""
    policy_weights_BT: Tensor
    extra_weights_BT: Tensor
    """Weights of the KL and entropy terms."""
    old_logprobs_BT: Tensor | None = None
    """The trainer's log-probs before the first step; None where there is only one step."""
    base_logprobs_BT: Tensor | None = None

    def take(self, rows: Tensor) -> Batch:
        """Consecutive rows, with the weights they have in the whole batch."""
        rollouts, some = self.rollouts.take(rows), slice(int(rows[0]), int(rows[-1]) + 1)
        used = rollouts.responses_BT.shape[1]
        tensors = {name: x for name, x in vars(self).items() if isinstance(x, Tensor)}
        return replace(self, rollouts=rollouts, **{name: x[some, :used] for name, x in tensors.items()})


def decoupled(groups: Groups, recipe: Recipe, *, train: int, seed: int) -> tuple[Rollouts, Tensor]:
    """The `train` rollouts of each group to train on under a decoupled baseline, and their advantages."""
    rewards_PN = groups.rewards_PN
    advantages_PN, places_PN = losses.decoupled_advantages(rewards_PN, train=train, kind=recipe.advantage, seed=seed)
    first_P1 = torch.arange(len(rewards_PN))[:, None] * rewards_PN.shape[1]
    return groups.rollouts.take((first_P1 + places_PN).reshape(-1)), advantages_PN.reshape(-1, 1)


def make_batch(
    recipe: Recipe,
    rollouts: Rollouts,
    rewards_PN: Tensor,
    *,
    max_new_tokens: int,
    device: torch.device,
    advantages_BT: Tensor | None = None,
) -> Batch:
    """Compute advantages, unless a critic or a decoupled baseline gives them, and token weights.

    `rewards_PN` holds the rewards of all sampled rollouts; under a decoupled baseline `rollouts` are fewer.
    """
    if advantages_BT is None:
        advantages_BT = group_advantages(rewards_PN, kind=recipe.advantage).reshape(-1, 1)
    n = len(rollouts) // len(rewards_PN)
    mixed_B = mixed_groups(rewards_PN).repeat_interleave(n)
    counted_B = rollouts.stopped_B if recipe.mask_truncated else torch.ones_like(rollouts.stopped_B)

    def weights(*, filtered: bool) -> Tensor:
        return losses.token_weights(
            rollouts.sampled_BT,
            how=recipe.aggregation,
            rollouts_per_problem=n,
            length=max_new_tokens,
            keep_B=counted_B & mixed_B if filtered else counted_B,
        ).to(device)

    return Batch(
        rollouts,
        rollouts.sampled_BT.to(device),
        rollouts.logprobs_BT.to(device),
        advantages_BT.to(device),
        weights(filtered=recipe.zero_variance_filter != "off"),
        weights(filtered=recipe.zero_variance_filter in ("all", "refill")),
    )


def objective(recipe: Recipe, batch: Batch, logprobs_BT: Tensor, entropies_BT: Tensor) -> Tensor:
    """The loss of a batch, or the part that a micro-batch adds to it."""
    sampler_BT, advantages_BT = batch.sampler_logprobs_BT, batch.advantages_BT
    old_BT = logprobs_BT.detach() if batch.old_logprobs_BT is None else batch.old_logprobs_BT
    reference_BT = sampler_BT if recipe.ratio_reference == "sampler" else old_BT
    if recipe.loss == "reinforce":
        loss_BT = losses.reinforce_loss(logprobs_BT, advantages_BT)
    elif recipe.loss == "clip":
        loss_BT = losses.clip_loss(logprobs_BT, reference_BT, advantages_BT, low=recipe.clip_low, high=recipe.clip_high)
    elif recipe.loss == "gspo":
        loss_BT = losses.gspo_loss(
            logprobs_BT,
            reference_BT,
            advantages_BT,
            batch.sampled_BT,
            low=recipe.clip_low,
            high=recipe.clip_high,
        )
    else:
        loss_BT = losses.cispo_loss(logprobs_BT, reference_BT, advantages_BT, cap=recipe.ratio_cap)
    if recipe.tis_cap is not None:
        loss_BT = loss_BT * losses.truncated_importance(old_BT, sampler_BT, cap=recipe.tis_cap)
    total = (loss_BT * batch.policy_weights_BT).sum()
    if batch.base_logprobs_BT is not None and recipe.kl_coef:
        kl_BT = losses.kl_to_base(logprobs_BT, batch.base_logprobs_BT)
        total = total + recipe.kl_coef * (kl_BT * batch.extra_weights_BT).sum()
    if recipe.entropy_coef:
        total = total - recipe.entropy_coef * (entropies_BT * batch.extra_weights_BT).sum()
    return total


@dataclass(frozen=True)
class UpdateStats:
    """Statistics of the first gradient step on a batch, as means over its tokens."""

    loss: float
    grad_norm: float
    entropy: float
    logprob_gap: float
    """Mean absolute difference between the trainer's and the sampler's log-probs."""


def update(
    decoder: Decoder, optimizer: Optimizer, batch: Batch, recipe: Recipe, *, rate: float, sizes: Sizes
) -> UpdateStats:
    """Take the recipe's gradient steps on one batch; raises `DivergedError` if numbers are not finite."""
    rollouts = batch.rollouts
    optimizer.rate.fill_(rate)
    if recipe.updates_per_batch > 1 and batch.old_logprobs_BT is None:
        batch = replace(batch, old_logprobs_BT=score_all(decoder, rollouts, recipe, sizes=sizes))
    tokens = int(rollouts.sampled_BT.sum())
    first: Tensor | None = None
    for _ in range(recipe.updates_per_batch):
        sums_3 = within_memory(sizes, partial(_accumulate, decoder, optimizer, batch, recipe, sizes)) / tokens
        norm = optimizer.step()
        if first is None:
            first = torch.stack([sums_3[0] * tokens, norm, sums_3[1], sums_3[2]])
        else:
            first[1] = torch.where(torch.isfinite(norm), first[1], norm)  # report if a later step is not finite
    assert first is not None
    stats = UpdateStats(*first.tolist())
    refuse_divergence(stats, decoder.config.vocab_size)
    return stats


def warm_up(decoder: Decoder, optimizer: Optimizer, recipe: Recipe) -> None:
    """Compile what passes run, where the decoder is compiled, so that no update waits for it."""
    if not decoder.compiled:
        return
    tokens = torch.zeros((1, 4), dtype=torch.long)
    some = (torch.zeros(1, dtype=torch.long), tokens, tokens.float(), torch.tensor([4]), torch.tensor([True]))
    for grad in (False, True):
        with torch.set_grad_enabled(grad):
            logprobs_BT, _ = score(decoder, Rollouts([[0, 0]], *some), recipe)
    logprobs_BT.sum().backward()  # type: ignore[no-untyped-call]  # torch's own annotation is missing
    optimizer.clear()


def _accumulate(decoder: Decoder, optimizer: Optimizer, batch: Batch, recipe: Recipe, sizes: Sizes) -> Tensor:
    """The gradient of a batch, pass by pass; returns the loss, and the sums of entropies and log-prob gaps."""
    optimizer.clear()
    sums_3 = torch.zeros(3, device=decoder.device)
    parts = [batch.take(rows) for rows in passes(batch.rollouts, sizes)]
    # Sending waits for the device, so everything is sent before the first pass begins.
    packed = [part.rollouts.packed(decoder.device) for part in parts]
    for part, tokens in zip(parts, packed, strict=True):
        with torch.enable_grad():
            logprobs_BT, entropies_BT = score(decoder, part.rollouts, recipe, packed=tokens)
            loss = objective(recipe, part, logprobs_BT, entropies_BT)
            loss.backward()  # type: ignore[no-untyped-call]  # torch's own annotation is missing
        optimizer.collect()
        gap_BT = (logprobs_BT.detach() - part.sampler_logprobs_BT).abs() * part.sampled_BT
        sums_3 += torch.stack([loss.detach(), entropies_BT.detach().sum(), gap_BT.sum()])
    return sums_3


# Divergence

_UNIFORM = 0.98
"""Share of the maximum entropy above which a policy counts as uniform noise."""
_COLLAPSE = 20.0
"""KL per token, in nats, above which a policy counts as collapsed; healthy runs stay below 1."""


class DivergedError(Exception):
    """Numbers are not finite, or the policy has become uniform noise or has collapsed."""

    def __init__(self, reason: str, *, point: dict[str, Any] | None = None) -> None:
        super().__init__(reason)
        self.point = point
        """The evaluation that showed the divergence, if one did."""


def refuse_divergence(stats: UpdateStats, vocabulary: int) -> None:
    """Raise `DivergedError` if a batch's numbers are not finite or its policy is uniform noise."""
    if not all(map(math.isfinite, (stats.loss, stats.grad_norm, stats.entropy))):
        raise DivergedError(f"loss {stats.loss:.3g}, gradient norm {stats.grad_norm:.3g}")
    if stats.entropy > _UNIFORM * math.log(vocabulary):
        raise DivergedError(f"the policy has become uniform noise (entropy {stats.entropy:.2f})")


@torch.no_grad()
def refuse_unsound(decoder: Decoder, rollouts: Rollouts, recipe: Recipe, *, sizes: Sizes) -> None:
    """Raise `DivergedError` if the last update has broken the weights, judged on a micro-batch of its rollouts.

    An update only checks the weights it starts from, but a checkpoint holds those it ends with.
    """
    part = rollouts.take(next(passes(rollouts, sizes)))
    logprobs_BT, entropies_BT = score(decoder, part, recipe)
    tokens = int(part.sampled_BT.sum())
    moved = float((part.logprobs_BT.sum() - logprobs_BT.sum().cpu()) / tokens)
    refuse_divergence(UpdateStats(moved, 0.0, float(entropies_BT.sum() / tokens), 0.0), decoder.config.vocab_size)
    refuse_collapse(moved, "since the last update")


def refuse_collapse(kl: float, to: str, *, point: dict[str, Any] | None = None) -> None:
    """Raise `DivergedError` if the KL shows that the policy has collapsed; `point` is the evaluation that shows it."""
    if not kl < _COLLAPSE:
        raise DivergedError(f"the policy has collapsed (KL {to} {kl:.3g} a token)", point=point)
