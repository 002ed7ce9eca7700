"""Log-probs and entropies of responses under a decoder: the trainer's side of what the sampler recorded."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from isocompute.rl.decoder import Decoder, Prefix, head_logits
from isocompute.rl.fast.head import head_scores_fused
from isocompute.rl.fast.passes import add_and_norm
from isocompute.rl.fast.shared import fits_shared, shared_hidden
from isocompute.rl.losses import entropy
from isocompute.rl.native.functions import choose
from isocompute.rl.native.scoring import fits_native, native_hidden, short_enough
from isocompute.rl.sampler import Rollouts, read_behind, read_prompts

__all__ = ["head_scores", "micro_batches", "response_hidden", "score"]


def hidden_states(decoder: Decoder, rollouts: Rollouts) -> Tensor:
    """Hidden states of prompts and responses, up to the last token but one, as `_moved_left` has them."""
    out_BTD: Tensor = decoder(_moved_left(rollouts))
    return out_BTD


def _moved_left(rollouts: Rollouts) -> Tensor:
    """Prompts and responses moved together to the left, without the last token.

    Attention is plainly causal then, and padding, all on the right, is seen by nobody.
    """
    prompts_BT, prompt_B, responses_BT = rollouts.prompts_BT, rollouts.prompt_lengths_B, rollouts.responses_BT
    width, new = prompts_BT.shape[1], responses_BT.shape[1]
    both_BT = torch.cat([prompts_BT, responses_BT], dim=1)
    at_BT = torch.arange(width + new - 1, device=both_BT.device)[None] + (width - prompt_B)[:, None]
    return both_BT.gather(1, at_BT.clamp(max=width + new - 1))


def response_hidden(decoder: Decoder, rollouts: Rollouts) -> Tensor:
    """Hidden states from which the response's tokens are predicted, one row a real token, in the mask's order."""
    if fits_native(decoder) and short_enough(rollouts):
        return native_hidden(decoder, rollouts)
    rows_S, steps_S = rollouts.mask_BT.nonzero(as_tuple=True)
    if rollouts.mask_BT.device.type == "cpu":  # elsewhere plain causal attention has the better kernels
        _, first, prompt_B = np.unique(_named(rollouts), axis=0, return_index=True, return_inverse=True)
        if (len(rollouts) - len(first)) * rollouts.prompts_BT.shape[1] >= _SHARED:
            return _behind(decoder, rollouts, torch.from_numpy(first), torch.from_numpy(prompt_B))[rows_S, steps_S]
    return hidden_states(decoder, rollouts)[rows_S, rollouts.prompt_lengths_B[rows_S] - 1 + steps_S]


_SHARED = 1024
"""Tokens to be saved above which prompts are read on their own: two passes cost more calls than one."""


def _named(rollouts: Rollouts) -> np.ndarray:
    """Prompts with their lengths, which tell apart what looks alike with its padding."""
    return torch.cat([rollouts.prompts_BT, rollouts.prompt_lengths_B[:, None]], dim=1).numpy()


def _behind(decoder: Decoder, rollouts: Rollouts, first_P: Tensor, prompt_B: Tensor) -> Tensor:
    """Hidden states from the prompt's last token to the response's last but one.

    Each prompt is read once, on its first row, for all the rows whose prompt it is.
    """
    padding_B = rollouts.prompts_BT.shape[1] - rollouts.prompt_lengths_B
    padded, prefix = bool(padding_B.any()), Prefix()
    prompts_PT = rollouts.prompts_BT[first_P]
    last_P1D = read_prompts(decoder, prompts_PT, padding_B[first_P] if padded else None, prefix)[:, -1:]
    last_B1D = last_P1D.index_select(0, prompt_B)
    tokens_BT = rollouts.responses_BT[:, :-1]
    if not tokens_BT.shape[1]:
        return last_B1D
    prefix.share(prompt_B)
    return torch.cat([last_B1D, read_behind(decoder, tokens_BT, padding_B if padded else None, prefix)], dim=1)


def score(
    decoder: Decoder,
    rollouts: Rollouts,
    *,
    temperature: float = 1.0,
    fp32_head: bool = True,
    fixed: int = 0,
) -> tuple[Tensor, Tensor]:
    """Log-probs of the sampled tokens and entropies of their distributions, both zero outside the mask.

    The temperature is the sampler's, so that both sides speak of the distribution the tokens were drawn from. `fixed`
    says how many rows of a problem stand together; padding is scored too then, and forgotten, so that no shape depends
    on what was sampled; its head is an FP32 one.
    """
    mask_BT, tokens_BT = rollouts.mask_BT, rollouts.responses_BT
    if fixed:
        hidden_ND = _fixed_hidden(decoder, rollouts, per_prompt=1 if len(rollouts) % fixed else fixed).flatten(0, 1)
        both = head_scores_fused(hidden_ND, decoder.lm_head.weight, tokens_BT, temperature)
        return both[0].view_as(mask_BT) * mask_BT, both[1].view_as(mask_BT) * mask_BT
    hidden_SD, tokens_S = response_hidden(decoder, rollouts), tokens_BT[mask_BT]
    if fits_native(decoder):
        logprobs_S, entropies_S = choose(decoder.logits(hidden_SD), tokens_S, temperature)
    else:
        logprobs_S, entropies_S = head_scores(hidden_SD, decoder.lm_head.weight, tokens_S, temperature, fp32_head)
    zeros_BT = torch.zeros(mask_BT.shape, dtype=logprobs_S.dtype, device=logprobs_S.device)
    return zeros_BT.masked_scatter(mask_BT, logprobs_S), zeros_BT.masked_scatter(mask_BT, entropies_S)


def _fixed_hidden(decoder: Decoder, rollouts: Rollouts, *, per_prompt: int) -> Tensor:
    """`response_hidden` of every token, padding among them."""
    if fits_shared(decoder, rollouts):
        return shared_hidden(decoder, rollouts, per_prompt=per_prompt)
    steps_T = torch.arange(rollouts.mask_BT.shape[1], device=rollouts.mask_BT.device)
    steps_BT = rollouts.prompt_lengths_B[:, None] - 1 + steps_T
    residual_BTD = decoder.residual(_moved_left(rollouts))
    chosen_BTD = residual_BTD.gather(1, steps_BT[..., None].expand(-1, -1, residual_BTD.shape[-1]))
    _, hidden_ND = add_and_norm(chosen_BTD.flatten(0, 1), None, decoder.norm.weight, decoder.norm.epsilon)
    return hidden_ND.view(chosen_BTD.shape)


def head_scores(
    hidden_BTD: Tensor, weight_VD: Tensor, tokens_BT: Tensor, temperature: float, fp32_head: bool
) -> tuple[Tensor, Tensor]:
    """Log-probs of tokens and entropies from hidden states."""
    logits_BTV = head_logits(hidden_BTD, weight_VD, fp32=fp32_head)
    if temperature != 1.0:
        logits_BTV = logits_BTV / temperature
    logprobs_BTV = torch.log_softmax(logits_BTV, dim=-1)
    return logprobs_BTV.gather(-1, tokens_BT[..., None])[..., 0], entropy(logprobs_BTV)


def micro_batches(rollouts: Rollouts, size: int, *, fixed: int = 0) -> Iterator[Tensor | None]:
    """Rows in groups of `size`; None is all of them as they are.

    Groups are of like length, so that little is padded, unless `fixed`: then they are simply the next rows, whole
    problems of this many where that fits.
    """
    if len(rollouts) <= size and fixed:
        yield None
        return
    lengths_B = rollouts.prompt_lengths_B + rollouts.lengths_B
    order_B = torch.arange(len(lengths_B), device=lengths_B.device) if fixed else torch.argsort(lengths_B, stable=True)
    if fixed and size >= fixed:
        size = fixed * _even(len(lengths_B) // fixed, size // fixed)
    yield from torch.split(order_B, size)


def _even(total: int, most: int) -> int:
    """At most this many at a time, and always as many where that takes no more than twice the turns: of long sequences
    one shape is one compiled pass.
    """
    return next((part for part in range(most, most // 2, -1) if total % part == 0), most)
