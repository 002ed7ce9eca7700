"""Log-probs and entropies of responses under a decoder: the trainer's side of what the sampler recorded."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from isocompute.engines.lm.decoder import Decoder
from isocompute.engines.lm.losses import entropy
from isocompute.engines.lm.sampler import Rollouts

__all__ = ["micro_batches", "response_hidden", "score"]


def response_hidden(decoder: Decoder, rollouts: Rollouts) -> Tensor:
    """Hidden states from which the response's tokens are predicted, one row a real token, in the mask's order.

    Prompts and responses are moved together to the left, so attention is plainly causal and padding, all on the right,
    is seen by nobody.
    """
    prompts_BT, prompt_B, responses_BT = rollouts.prompts_BT, rollouts.prompt_lengths_B, rollouts.responses_BT
    width, new = prompts_BT.shape[1], responses_BT.shape[1]
    both_BT = torch.cat([prompts_BT, responses_BT], dim=1)
    shift_B1 = (width - prompt_B)[:, None]
    # The last token of a response predicts nothing, so the longest row ends one before the end.
    at_BT = torch.arange(width + new - 1, device=both_BT.device)[None] + shift_B1
    hidden_BTD = decoder(both_BT.gather(1, at_BT.clamp(max=width + new - 1)))
    rows_S, steps_S = rollouts.mask_BT.nonzero(as_tuple=True)
    out_SD: Tensor = hidden_BTD[rows_S, prompt_B[rows_S] - 1 + steps_S]
    return out_SD


def score(
    decoder: Decoder,
    rollouts: Rollouts,
    *,
    temperature: float = 1.0,
    fp32_head: bool = True,
    entropies: bool = True,
) -> tuple[Tensor, Tensor]:
    """Log-probs of the sampled tokens and entropies of their distributions, both zero outside the mask.

    The temperature is the sampler's, so that both sides speak of the distribution the tokens were drawn from.
    """
    logits_SV = decoder.logits(response_hidden(decoder, rollouts), fp32=fp32_head) / temperature
    tokens_S = rollouts.responses_BT[rollouts.mask_BT]
    logprobs_S = -F.cross_entropy(logits_SV, tokens_S, reduction="none")
    zeros_BT = torch.zeros(rollouts.mask_BT.shape, dtype=logprobs_S.dtype, device=logprobs_S.device)
    logprobs_BT = zeros_BT.masked_scatter(rollouts.mask_BT, logprobs_S)
    if not entropies:
        return logprobs_BT, zeros_BT
    return logprobs_BT, zeros_BT.masked_scatter(rollouts.mask_BT, entropy(logits_SV))


def micro_batches(rollouts: Rollouts, size: int) -> Iterator[Tensor]:
    """Rows in groups of `size` and of like length, so that little is padded."""
    order_B = torch.argsort(rollouts.prompt_lengths_B + rollouts.lengths_B, stable=True)
    yield from torch.split(order_B, size)
