"""Log-probs and entropies of responses under a decoder: the trainer's side of what the sampler recorded."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from isocompute.core.recipe import Recipe
from isocompute.rl.losses import entropy
from isocompute.rl.model.decoder import Decoder, head_logits
from isocompute.rl.rollout.rollouts import Rollouts

__all__ = ["head_scores", "micro_batches", "response_hidden", "score", "score_all"]


def response_hidden(decoder: Decoder, rollouts: Rollouts) -> Tensor:
    """Hidden states from which the response's tokens are predicted, one row a token, in the mask's order.

    Prompts and responses are moved together to the left, so that attention is plainly causal and no token sees padding.
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
    """Log-probs of the sampled tokens and entropies of their distributions; zero where the policy chose nothing.

    The temperature is the sampler's, so that both sides speak of the distribution the tokens were drawn from.
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
    """Log-probs of a whole batch, without gradient."""
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
    """Rows in groups of `size` and of like length, so that little is padded."""
    lengths_B = rollouts.prompt_lengths_B + rollouts.lengths_B
    yield from torch.split(torch.argsort(lengths_B, stable=True), size)
