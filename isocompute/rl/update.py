"""From a batch of rollouts to new weights: log-probs under the policy, the objective, AdamW on FP32 masters.

The loss is a weighted sum over tokens. The weights are fixed for the whole batch (`losses.token_weights`), so any
split into micro-batches gives the same gradient.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from isocompute.core.recipe import Recipe
from isocompute.rl import losses
from isocompute.rl.losses import entropy, group_advantages, mixed_groups
from isocompute.rl.model.decoder import Decoder, head_logits
from isocompute.rl.rollout.rollouts import Rollouts


def response_hidden(decoder: Decoder, rollouts: Rollouts) -> Tensor:
    """Hidden states that predict the response tokens, flattened in the order of the mask.

    Shifting each prompt and response to the left makes attention purely causal: no token attends to padding.
    """
    prompts_BT, prompt_B, responses_BT = rollouts.prompts_BT, rollouts.prompt_lengths_B, rollouts.responses_BT
    width, new = prompts_BT.shape[1], responses_BT.shape[1]
    both_BT = torch.cat([prompts_BT, responses_BT], dim=1)
    at_BT = torch.arange(width + new - 1, device=both_BT.device)[None] + (width - prompt_B)[:, None]
    hidden_BTD = decoder(both_BT.gather(1, at_BT.clamp(max=width + new - 1)))
    rows_S, steps_S = rollouts.mask_BT.nonzero(as_tuple=True)
    out_SD: Tensor = hidden_BTD[rows_S, prompt_B[rows_S] - 1 + steps_S]
    return out_SD


def score(
    decoder: Decoder, rollouts: Rollouts, *, temperature: float = 1.0, fp32_head: bool = True
) -> tuple[Tensor, Tensor]:
    """Log-probs of the sampled tokens and entropies of their distributions; zero where the policy chose no token.

    `temperature` is the sampler's, so that trainer and sampler score the same distribution.
    """
    mask_BT = rollouts.mask_BT
    both_S = head_scores(
        response_hidden(decoder, rollouts),
        decoder.lm_head.weight,
        rollouts.responses_BT[mask_BT],
        temperature,
        fp32_head,
    )
    zeros_BT = torch.zeros(mask_BT.shape, dtype=both_S[0].dtype, device=mask_BT.device)
    logprobs_BT, entropies_BT = (zeros_BT.masked_scatter(mask_BT, x_S) for x_S in both_S)
    if rollouts.forced_BT is None:
        return logprobs_BT, entropies_BT
    return logprobs_BT * ~rollouts.forced_BT, entropies_BT * ~rollouts.forced_BT


@torch.no_grad()
def score_all(decoder: Decoder, rollouts: Rollouts, recipe: Recipe, *, micro_batch: int) -> Tensor:
    """Log-probs of a whole batch, without gradients."""
    out_BT = torch.zeros_like(rollouts.logprobs_BT)
    for rows in micro_batches(rollouts, micro_batch):
        part = rollouts.take(rows)
        logprobs_BT, _ = score(decoder, part, temperature=recipe.temperature, fp32_head=recipe.fp32_head)
        out_BT[rows, : logprobs_BT.shape[1]] = logprobs_BT
    return out_BT


def head_scores(
    hidden_SD: Tensor, weight_VD: Tensor, tokens_S: Tensor, temperature: float, fp32_head: bool
) -> tuple[Tensor, Tensor]:
    """Log-probs of tokens and entropies from hidden states."""
    logits_SV = head_logits(hidden_SD, weight_VD, fp32=fp32_head)
    if temperature != 1.0:
        logits_SV = logits_SV / temperature
    logprobs_SV = torch.log_softmax(logits_SV, dim=-1)
    return logprobs_SV.gather(-1, tokens_S[..., None])[..., 0], entropy(logprobs_SV)


def micro_batches(rollouts: Rollouts, size: int) -> Iterator[Tensor]:
    """Row indices in groups of `size` and similar length, to limit padding."""
    lengths_B = rollouts.prompt_lengths_B + rollouts.lengths_B
    yield from torch.split(torch.argsort(lengths_B, stable=True), size)


class Optimizer:
    """AdamW or SGD on FP32 masters: accumulates gradients of micro-batches, clips and steps."""

    def __init__(self, parameters: Sequence[nn.Parameter], recipe: Recipe) -> None:
        self.parameters = list(parameters)
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

    def collect(self) -> None:
        """Add the gradients of a micro-batch to the masters; FP32 parameters are their own masters."""
        for parameter, master in self._cast:
            if parameter.grad is not None:
                gradient = parameter.grad.float()
                master.grad = gradient if master.grad is None else master.grad.add_(gradient)
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
        """Weights and moments for a checkpoint."""
        out: dict[str, np.ndarray] = {}
        for i, master in enumerate(self.masters):
            out[f"{prefix}{i}"] = _array(master)
            for name, value in self.inner.state[master].items():
                out[f"{prefix}{i}.{name}"] = _array(value)
        return out

    @torch.no_grad()
    def restore(self, arrays: Mapping[str, np.ndarray], prefix: str) -> None:
        """Resume from a checkpoint."""
        for i, (parameter, master) in enumerate(zip(self.parameters, self.masters, strict=True)):
            master.copy_(torch.from_numpy(arrays[f"{prefix}{i}"]))
            if parameter is not master:
                parameter.copy_(master)
            start, moments = f"{prefix}{i}.", self.inner.state[master]
            for name in (key.removeprefix(start) for key in arrays if key.startswith(start)):
                moments[name] = torch.from_numpy(arrays[start + name].copy()).to(master.device)


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().cpu().numpy().copy()


# Gradient steps on a batch


@dataclass(frozen=True)
class Batch:
    """Rollouts with everything that stays constant during the gradient steps; rows of a problem are consecutive."""

    rollouts: Rollouts
    advantages_BT: Tensor
    """`_B1` where all tokens of a response share one advantage."""
    policy_weights_BT: Tensor
    extra_weights_BT: Tensor
    """Weights of the KL and entropy terms."""
    old_logprobs_BT: Tensor | None = None
    """The trainer's log-probs before the first step; None where there is only one step."""
    base_logprobs_BT: Tensor | None = None

    def take(self, rows: Tensor) -> Batch:
        """Some of the rows, with the weights they have in the whole batch."""
        rollouts = self.rollouts.take(rows)
        used = rollouts.mask_BT.shape[1]

        def part(x_BT: Tensor) -> Tensor:
            return x_BT[rows, :used]

        return Batch(
            rollouts,
            part(self.advantages_BT),
            part(self.policy_weights_BT),
            part(self.extra_weights_BT),
            None if self.old_logprobs_BT is None else part(self.old_logprobs_BT),
            None if self.base_logprobs_BT is None else part(self.base_logprobs_BT),
        )


def make_batch(
    recipe: Recipe, rollouts: Rollouts, rewards_PN: Tensor, *, max_new_tokens: int, advantages_BT: Tensor | None = None
) -> Batch:
    """Compute advantages, unless a critic or a decoupled baseline gives them, and token weights.

    `rewards_PN` holds the rewards of all sampled rollouts; under a decoupled baseline `rollouts` are fewer.
    """
    if advantages_BT is None:
        advantages_BT = group_advantages(rewards_PN, kind=recipe.advantage).reshape(-1, 1)
    n = len(rollouts) // len(rewards_PN)
    mixed_B = mixed_groups(rewards_PN).repeat_interleave(n)

    def weights(*, filtered: bool) -> Tensor:
        return losses.token_weights(
            rollouts.sampled_BT,
            how=recipe.aggregation,
            rollouts_per_problem=n,
            length=max_new_tokens,
            keep_B=mixed_B if filtered else None,
        )

    policy_weights_BT = weights(filtered=recipe.zero_variance_filter != "off")
    extra_weights_BT = weights(filtered=recipe.zero_variance_filter in ("all", "refill"))
    return Batch(rollouts, advantages_BT, policy_weights_BT, extra_weights_BT)


def objective(recipe: Recipe, batch: Batch, logprobs_BT: Tensor, entropies_BT: Tensor) -> Tensor:
    """The loss of a batch, or the part that a micro-batch adds to it."""
    sampled_BT, advantages_BT = batch.rollouts.logprobs_BT, batch.advantages_BT
    old_BT = logprobs_BT.detach() if batch.old_logprobs_BT is None else batch.old_logprobs_BT
    reference_BT = sampled_BT if recipe.ratio_reference == "sampler" else old_BT
    if recipe.loss == "reinforce":
        loss_BT = losses.reinforce_loss(logprobs_BT, advantages_BT)
    elif recipe.loss == "clip":
        loss_BT = losses.clip_loss(logprobs_BT, reference_BT, advantages_BT, low=recipe.clip_low, high=recipe.clip_high)
    elif recipe.loss == "gspo":
        loss_BT = losses.gspo_loss(
            logprobs_BT,
            reference_BT,
            advantages_BT,
            batch.rollouts.sampled_BT,
            low=recipe.clip_low,
            high=recipe.clip_high,
        )
    else:
        loss_BT = losses.cispo_loss(logprobs_BT, reference_BT, advantages_BT, cap=recipe.ratio_cap)
    if recipe.tis_cap is not None:
        loss_BT = loss_BT * losses.truncated_importance(old_BT, sampled_BT, cap=recipe.tis_cap)
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
    decoder: Decoder, optimizer: Optimizer, batch: Batch, recipe: Recipe, *, rate: float, micro_batch: int
) -> UpdateStats:
    """Take the recipe's gradient steps on one batch; raises `DivergedError` if numbers are not finite."""
    rollouts = batch.rollouts
    optimizer.rate.fill_(rate)
    if recipe.updates_per_batch > 1 and batch.old_logprobs_BT is None:
        batch = replace(batch, old_logprobs_BT=score_all(decoder, rollouts, recipe, micro_batch=micro_batch))
    tokens = rollouts.sampled_BT.sum()
    first: Tensor | None = None
    for _ in range(recipe.updates_per_batch):
        sums_3 = torch.zeros(3, device=rollouts.mask_BT.device)  # loss, entropy, log-prob gap
        for rows in micro_batches(rollouts, micro_batch):
            part = batch.take(rows)
            with torch.enable_grad():
                logprobs_BT, entropies_BT = score(
                    decoder, part.rollouts, temperature=recipe.temperature, fp32_head=recipe.fp32_head
                )
                loss = objective(recipe, part, logprobs_BT, entropies_BT)
                loss.backward()  # type: ignore[no-untyped-call]  # torch's own annotation is missing
            optimizer.collect()
            gap_BT = (logprobs_BT.detach() - part.rollouts.logprobs_BT).abs()
            sums_3 += torch.stack([loss.detach(), entropies_BT.detach().sum() / tokens, gap_BT.sum() / tokens])
        norm = optimizer.step()
        if first is None:
            first = torch.stack([sums_3[0], norm, sums_3[1], sums_3[2]])
        else:
            first[1] = torch.where(torch.isfinite(norm), first[1], norm)  # report if a later step is not finite
    assert first is not None
    stats = UpdateStats(*first.tolist())
    refuse_divergence(stats, decoder.config.vocab_size)
    return stats


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
def refuse_unsound(decoder: Decoder, rollouts: Rollouts, recipe: Recipe, *, micro_batch: int) -> None:
    """Raise `DivergedError` if the last update has broken the weights, judged on a micro-batch of its rollouts.

    An update only checks the weights it starts from, but a checkpoint holds those it ends with.
    """
    part = rollouts.take(next(micro_batches(rollouts, micro_batch)))
    logprobs_BT, entropies_BT = score(decoder, part, temperature=recipe.temperature, fp32_head=recipe.fp32_head)
    tokens = part.sampled_BT.sum()
    moved = float((part.logprobs_BT - logprobs_BT).sum() / tokens)
    refuse_divergence(UpdateStats(moved, 0.0, float(entropies_BT.sum() / tokens), 0.0), decoder.config.vocab_size)
    refuse_collapse(moved, "since the last update")


def refuse_collapse(kl: float, to: str, *, point: dict[str, Any] | None = None) -> None:
    """Raise `DivergedError` if the KL shows that the policy has collapsed; `point` is the evaluation that shows it."""
    if not kl < _COLLAPSE:
        raise DivergedError(f"the policy has collapsed (KL {to} {kl:.3g} a token)", point=point)
