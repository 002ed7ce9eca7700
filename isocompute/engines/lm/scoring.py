"""Log-probs and entropies of responses under a decoder: the trainer's side of what the sampler recorded."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from isocompute.engines.lm.decoder import Decoder, head_logits
from isocompute.engines.lm.losses import entropy
from isocompute.engines.lm.sampler import Rollouts

__all__ = ["head_scores", "micro_batches", "response_hidden", "score"]


def hidden_states(decoder: Decoder, rollouts: Rollouts) -> Tensor:
    """Hidden states of prompts and responses, moved together to the left, up to the last token but one.

    Attention is plainly causal then, and padding, all on the right, is seen by nobody.
    """
    prompts_BT, prompt_B, responses_BT = rollouts.prompts_BT, rollouts.prompt_lengths_B, rollouts.responses_BT
    width, new = prompts_BT.shape[1], responses_BT.shape[1]
    both_BT = torch.cat([prompts_BT, responses_BT], dim=1)
    at_BT = torch.arange(width + new - 1, device=both_BT.device)[None] + (width - prompt_B)[:, None]
    out_BTD: Tensor = decoder(both_BT.gather(1, at_BT.clamp(max=width + new - 1)))
    return out_BTD


def response_hidden(decoder: Decoder, rollouts: Rollouts) -> Tensor:
    """Hidden states from which the response's tokens are predicted, one row a real token, in the mask's order."""
    rows_S, steps_S = rollouts.mask_BT.nonzero(as_tuple=True)
    return hidden_states(decoder, rollouts)[rows_S, rollouts.prompt_lengths_B[rows_S] - 1 + steps_S]


def score(
    decoder: Decoder,
    rollouts: Rollouts,
    *,
    temperature: float = 1.0,
    fp32_head: bool = True,
    entropies: bool = True,
    fixed: bool = False,
) -> tuple[Tensor, Tensor]:
    """Log-probs of the sampled tokens and entropies of their distributions, both zero outside the mask.

    The temperature is the sampler's, so that both sides speak of the distribution the tokens were drawn from. `fixed`
    scores padding too, and forgets it, so that no shape depends on what was sampled.
    """
    mask_BT, tokens_BT = rollouts.mask_BT, rollouts.responses_BT
    if fixed:
        hidden_BTD = hidden_states(decoder, rollouts)
        steps_BT = rollouts.prompt_lengths_B[:, None] - 1 + torch.arange(mask_BT.shape[1], device=mask_BT.device)
        rows_B1 = torch.arange(len(mask_BT), device=mask_BT.device)[:, None]
        head = decoder.head_scores or head_scores
        weight = decoder.lm_head.weight
        logprobs_BT, entropies_BT = head(hidden_BTD[rows_B1, steps_BT], weight, tokens_BT, temperature, fp32_head)
        return logprobs_BT * mask_BT, entropies_BT * mask_BT
    logits_SV = decoder.logits(response_hidden(decoder, rollouts), fp32=fp32_head) / temperature
    logprobs_S = -F.cross_entropy(logits_SV, tokens_BT[mask_BT], reduction="none")
    zeros_BT = torch.zeros(mask_BT.shape, dtype=logprobs_S.dtype, device=logprobs_S.device)
    logprobs_BT = zeros_BT.masked_scatter(mask_BT, logprobs_S)
    if not entropies:
        return logprobs_BT, zeros_BT
    return logprobs_BT, zeros_BT.masked_scatter(mask_BT, entropy(logits_SV))


def head_scores(
    hidden_BTD: Tensor, weight_VD: Tensor, tokens_BT: Tensor, temperature: float, fp32_head: bool
) -> tuple[Tensor, Tensor]:
    """Log-probs of tokens and entropies from hidden states; a function of its own so that it can be compiled."""
    logits_BTV = head_logits(hidden_BTD, weight_VD, fp32=fp32_head) / temperature
    logprobs_BTV = torch.log_softmax(logits_BTV, dim=-1)
    entropies_BT = -(logprobs_BTV.exp() * logprobs_BTV).sum(dim=-1)
    return logprobs_BTV.gather(2, tokens_BT[..., None])[..., 0], entropies_BT


def micro_batches(rollouts: Rollouts, size: int, *, fixed: bool = False) -> Iterator[Tensor | None]:
    """Rows in groups of `size`; None is all of them as they are.

    Groups are of like length, so that little is padded, unless `fixed`: then they are simply the next rows.
    """
    if len(rollouts) <= size and fixed:
        yield None
        return
    lengths_B = rollouts.prompt_lengths_B + rollouts.lengths_B
    order_B = torch.arange(len(lengths_B), device=lengths_B.device) if fixed else torch.argsort(lengths_B, stable=True)
    yield from torch.split(order_B, size)
