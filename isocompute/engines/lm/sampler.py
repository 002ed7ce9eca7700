"""Sampling from a decoder: batched, with a KV cache that shrinks as sequences finish, reproducible row by row.

Every token of every row is drawn with one uniform number that is a hash of (seed, row's own number, position): a row
samples the same tokens alone or in any batch, up to the floating-point order of the matrix products.

Log-probs are those of the distribution that the token was drawn from, after temperature and top-p.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from isocompute.engines.lm.decoder import Cache, Decoder
from isocompute.errors import InputError

__all__ = ["Rollouts", "SamplingSettings", "sample", "uniforms"]


@dataclass(frozen=True)
class SamplingSettings:
    """How tokens are drawn."""

    max_new_tokens: int
    temperature: float = 1.0
    """0 takes the most likely token."""
    top_p: float = 1.0
    stop_tokens: tuple[int, ...] = ()
    fp32_head: bool = True


@dataclass(frozen=True)
class Rollouts:
    """Prompts left-padded, responses right-padded; everything on the decoder's device."""

    prompts_BT: Tensor
    prompt_lengths_B: Tensor
    responses_BT: Tensor
    logprobs_BT: Tensor
    mask_BT: Tensor
    """True where the response has a token (its stop token included)."""
    stopped_B: Tensor
    """Whether the response ended by itself."""

    @property
    def lengths_B(self) -> Tensor:
        """Tokens of each response."""
        return self.mask_BT.sum(dim=1)


def uniforms(seed: int, rows_B: Tensor, position: int) -> Tensor:
    """One number in (0, 1) for each row at a position: a counter-based generator (SplitMix64's finaliser)."""
    x = rows_B.to(torch.int64) * _signed(0x9E3779B97F4A7C15)
    x = x + _signed((seed * 0xD1342543DE82EF95 + position * 0xDA942042E4DD58B5) & _MASK)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ _shifted(x, shift)) * _signed(factor)
    x = x ^ _shifted(x, 31)
    return (_shifted(x, 11).double() + 0.5) * 2.0**-53


_MASK = 2**64 - 1


def _signed(value: int) -> int:
    value &= _MASK
    return value - 2**64 if value >= 2**63 else value


def _shifted(x: Tensor, bits: int) -> Tensor:
    """Logical right shift of 64-bit integers (torch's own is arithmetic)."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


@torch.no_grad()
def sample(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    settings: SamplingSettings,
    *,
    seed: int,
    row_numbers: Sequence[int] | None = None,
    pad_token: int = 0,
) -> Rollouts:
    """One response to every prompt. `row_numbers` name the rows for the random numbers; by default 0, 1, 2, …"""
    device = decoder.embed_tokens.weight.device
    lengths = [len(prompt) for prompt in prompts]
    _check(decoder, lengths, settings)
    batch, width, new = len(prompts), max(lengths), settings.max_new_tokens
    prompts_BT = torch.full((batch, width), pad_token, dtype=torch.long)
    for row, prompt in enumerate(prompts):
        prompts_BT[row, width - len(prompt) :] = torch.tensor(list(prompt), dtype=torch.long)
    prompts_BT = prompts_BT.to(device)
    padding_B = torch.tensor([width - n for n in lengths], device=device)
    numbers_B = torch.tensor(list(row_numbers) if row_numbers is not None else range(batch), device=device)
    responses_BT = torch.full((batch, new), pad_token, dtype=torch.long, device=device)
    logprobs_BT = torch.zeros((batch, new), device=device)
    mask_BT = torch.zeros((batch, new), dtype=torch.bool, device=device)
    stops = torch.tensor(settings.stop_tokens, dtype=torch.long, device=device)

    cache = Cache.empty(decoder.config, batch, width + new, decoder.embed_tokens.weight)
    slots = torch.arange(width + new, device=device)
    visible_BTS = (slots[None, None, :width] <= slots[None, :width, None]) & (slots[:width] >= padding_B[:, None])[
        :, None
    ]
    # A padding token sees nothing; let it see itself, so that no row of the softmax is empty.
    visible_BTS = visible_BTS | torch.eye(width, dtype=torch.bool, device=device)
    positions_BT = (slots[None, :width] - padding_B[:, None]).clamp(min=0)
    hidden_BTD = decoder(prompts_BT, positions_BT=positions_BT, mask_BTS=visible_BTS, cache=cache)
    logits_BV = decoder.logits(hidden_BTD[:, -1], fp32=settings.fp32_head)
    active = torch.arange(batch, device=device)
    for step in range(new):
        tokens_B, chosen_B = _draw(logits_BV, settings, uniforms(seed, numbers_B[active], step))
        responses_BT[active, step], logprobs_BT[active, step], mask_BT[active, step] = tokens_B, chosen_B, True
        going = ~torch.isin(tokens_B, stops) if len(stops) else torch.ones_like(tokens_B, dtype=torch.bool)
        if step + 1 == new or not bool(going.any()):
            break
        if not bool(going.all()):
            rows = going.nonzero()[:, 0]
            active, tokens_B, cache = active[rows], tokens_B[rows], cache.keep(rows)
        seen_B1S = (slots[: cache.length + 1] >= padding_B[active, None])[:, None]
        positions_B1 = cache.length - padding_B[active, None]
        hidden_B1D = decoder(tokens_B[:, None], positions_BT=positions_B1, mask_BTS=seen_B1S, cache=cache)
        logits_BV = decoder.logits(hidden_B1D[:, -1], fp32=settings.fp32_head)
    last_B = responses_BT.gather(1, (mask_BT.sum(dim=1, keepdim=True) - 1).clamp(min=0))[:, 0]
    stopped_B = torch.isin(last_B, stops) if len(stops) else torch.zeros(batch, dtype=torch.bool, device=device)
    used = int(mask_BT.any(dim=0).sum())
    return Rollouts(
        prompts_BT,
        torch.tensor(lengths, device=device),
        responses_BT[:, :used],
        logprobs_BT[:, :used],
        mask_BT[:, :used],
        stopped_B,
    )


def _check(decoder: Decoder, lengths: Sequence[int], settings: SamplingSettings) -> None:
    if not lengths:
        raise InputError("there are no prompts to sample from.")
    if min(lengths) < 1:
        raise InputError("a prompt is empty; give at least a start token.")
    room = decoder.config.max_position_embeddings
    if max(lengths) + settings.max_new_tokens > room:
        raise InputError(
            f"a prompt of {max(lengths)} tokens and {settings.max_new_tokens} new ones do not fit the model's context "
            f"of {room}; shorten the prompts or max_new_tokens."
        )


def _draw(logits_BV: Tensor, settings: SamplingSettings, uniform_B: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens by inverse transform, and their log-probs under the distribution they were drawn from."""
    if settings.temperature == 0:
        logprobs_BV = torch.log_softmax(logits_BV, dim=-1)
        best = logprobs_BV.max(dim=-1)
        return best.indices, best.values
    logprobs_BV = torch.log_softmax(logits_BV / settings.temperature, dim=-1)
    if settings.top_p >= 1.0:
        cumulative_BV = logprobs_BV.exp().cumsum(dim=-1, dtype=torch.float64)
        tokens_B = _place(cumulative_BV, uniform_B)
        return tokens_B, logprobs_BV.gather(1, tokens_B[:, None])[:, 0]
    ordered, order_BV = logprobs_BV.sort(dim=-1, descending=True, stable=True)
    cumulative_BV = ordered.exp().cumsum(dim=-1, dtype=torch.float64)
    # The smallest set of most likely tokens whose probability reaches top_p, as everywhere: the first is always in.
    inside_BV = (cumulative_BV - ordered.exp().double()) < settings.top_p
    kept_B = inside_BV.sum(dim=-1)
    mass_B = cumulative_BV.gather(1, kept_B[:, None] - 1)[:, 0]
    place_B = _place(cumulative_BV, uniform_B * mass_B).minimum(kept_B - 1)
    tokens_B = order_BV.gather(1, place_B[:, None])[:, 0]
    return tokens_B, ordered.gather(1, place_B[:, None])[:, 0] - mass_B.log().float()


def _place(cumulative_BV: Tensor, uniform_B: Tensor) -> Tensor:
    """Index of the first entry whose cumulative probability exceeds the uniform number (scaled to the total)."""
    target_B1 = (uniform_B * cumulative_BV[:, -1])[:, None] if cumulative_BV.shape[1] else uniform_B[:, None]
    return torch.searchsorted(cumulative_BV, target_B1, right=True)[:, 0].clamp(max=cumulative_BV.shape[1] - 1)
