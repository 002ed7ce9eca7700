"""Batched sampling from a decoder, with a KV cache that shrinks as sequences finish; reproducible for each row.

Each token is drawn with a uniform number that is a hash of (seed, row number, position). A row therefore samples the
same tokens alone or in any batch, up to rounding in the matrix products.

Log-probs are those of the distribution that the token was drawn from, after temperature and top-p.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from isocompute.core.errors import InputError
from isocompute.rl.lengths import Interruption
from isocompute.rl.model.decoder import Cache, Decoder
from isocompute.rl.rollout.rollouts import Rollouts, left_padded

INTERRUPTION = -1
"""Position of the random number that decides when a row is interrupted."""
_KEEP = 0.75
"""Finished rows leave the cache once fewer than this share of its rows is active; removing them copies the others."""
_MASK = 2**64 - 1


@dataclass(frozen=True)
class SamplingSettings:
    """How tokens are drawn."""

    max_new_tokens: int
    temperature: float = 1.0
    """0 takes the most likely token."""
    top_p: float = 1.0
    stop_tokens: tuple[int, ...] = ()
    fp32_head: bool = True
    interruption: Interruption | None = None


def uniforms(seed: int, rows_B: Tensor, positions: Sequence[int]) -> Tensor:
    """`_TB`: a number in (0, 1) for each position and row, from a counter-based generator (SplitMix64's finaliser)."""
    return uniform_at(seed, rows_B, torch.tensor(list(positions), device=rows_B.device)[:, None])


def uniform_at(seed: int, rows_B: Tensor, positions: Tensor) -> Tensor:
    """The numbers of `uniforms` where rows and positions are broadcast against each other."""
    x = rows_B.to(torch.int64) * _signed(0x9E3779B97F4A7C15)
    x = x + (positions.to(torch.int64) * _signed(0xDA942042E4DD58B5) + _signed(seed * 0xD1342543DE82EF95))
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ _shifted(x, shift)) * _signed(factor)
    x = x ^ _shifted(x, 31)
    return (_shifted(x, 11).double() + 0.5) * 2.0**-53


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
    per_prompt: int = 1,
    row_numbers: Sequence[int] | Tensor | None = None,
) -> Rollouts:
    """Sample `per_prompt` consecutive responses to each prompt; the prompt is read only once.

    `row_numbers` identify the rows to the random numbers; by default 0, 1, 2, …
    """
    device, new = decoder.embed_tokens.weight.device, settings.max_new_tokens
    lengths = [len(prompt) for prompt in prompts]
    _check(decoder, lengths, settings)
    width, rows = max(lengths), len(prompts) * per_prompt
    numbers_B = torch.as_tensor(list(range(rows)) if row_numbers is None else row_numbers, device=device)
    uniform_TB = uniforms(seed, numbers_B, range(new))
    forcing = None if settings.interruption is None else _Forcing(settings, seed, numbers_B)
    stops = torch.tensor(settings.stop_tokens, dtype=torch.long, device=device)

    problem_B = torch.arange(len(prompts), device=device).repeat_interleave(per_prompt)
    prompts_PT = left_padded(prompts).to(device)
    responses_BT = torch.zeros((rows, new), dtype=torch.long, device=device)
    logprobs_BT = torch.zeros((rows, new), device=device)
    mask_BT = torch.zeros((rows, new), dtype=torch.bool, device=device)
    with torch.inference_mode():
        # Read each prompt once; its rows start from copies of its keys and values.
        padding_P = torch.tensor([width - n for n in lengths], device=device) if min(lengths) < width else None
        cache = Cache.empty(decoder.config, len(prompts), width + new, decoder.embed_tokens.weight)
        hidden_PTD = read_prompts(decoder, prompts_PT, padding_P, cache)
        logits_BV = decoder.logits(hidden_PTD[:, -1], fp32=settings.fp32_head)[problem_B]
        if per_prompt > 1:
            cache = cache.keep(problem_B)
        padding_B = None if padding_P is None else padding_P[problem_B]

        active: Tensor | slice = slice(None)  # rows in the cache
        going = torch.ones(rows, dtype=torch.bool, device=device)  # those of `active` that have not stopped
        for step in range(new):
            tokens_B, chosen_B = draw(logits_BV, settings, uniform_TB[step, active])
            if forcing is not None:
                tokens_B, chosen_B = forcing(step, active, going, tokens_B, chosen_B)
            responses_BT[active, step] = torch.where(going, tokens_B, 0)
            logprobs_BT[active, step] = torch.where(going, chosen_B, 0.0)
            mask_BT[active, step] = going
            going = going & ~torch.isin(tokens_B, stops)
            if forcing is not None:
                going = going & (step + 1 < forcing.limit_B[active])
            left = int(going.sum())
            if step + 1 == new or not left:
                break
            if left < _KEEP * len(going):
                rows_left = going.nonzero()[:, 0]
                active = rows_left if isinstance(active, slice) else active[rows_left]
                tokens_B, going = tokens_B[rows_left], going[rows_left]
                cache = cache.keep(rows_left)
            padding = None if padding_B is None else padding_B[active]
            hidden_B1D = read_next(decoder, tokens_B[:, None], padding, cache)
            logits_BV = decoder.logits(hidden_B1D[:, -1], fp32=settings.fp32_head)
    used = step + 1
    last_B = responses_BT.gather(1, mask_BT.sum(dim=1, keepdim=True) - 1)[:, 0]
    return Rollouts(
        prompts_PT[problem_B],
        torch.tensor(lengths, device=device)[problem_B],
        responses_BT[:, :used],
        logprobs_BT[:, :used],
        mask_BT[:, :used],
        torch.isin(last_B, stops),
        None if forcing is None else forcing.forced_BT[:, :used],
    )


class _Forcing:
    """The interruptions of one batch: where each row is interrupted, its length limit and its forced tokens."""

    def __init__(self, settings: SamplingSettings, seed: int, numbers_B: Tensor) -> None:
        assert settings.interruption is not None
        self.interruption, self.budget = settings.interruption, settings.max_new_tokens
        self.start_B = self.interruption.starts(uniforms(seed, numbers_B, [INTERRUPTION])[0])
        self.ended_B = torch.zeros_like(self.start_B, dtype=torch.bool)
        self.limit_B = self.interruption.limit(self.start_B, self.ended_B, self.budget)
        shape = (len(numbers_B), settings.max_new_tokens)
        self.forced_BT = torch.zeros(shape, dtype=torch.bool, device=numbers_B.device)

    def __call__(
        self, step: int, active: Tensor | slice, going: Tensor, tokens_B: Tensor, chosen_B: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Tokens and log-probs of a step, with those of the phrase forced."""
        start_B, ended_B = self.start_B[active], self.ended_B[active]
        position_B = torch.full_like(start_B, step)
        tokens_B, forced_B = self.interruption.force(tokens_B, position_B, start_B, ended_B)
        self.forced_BT[active, step] = forced_B & going
        self.ended_B[active] = ended_B = ended_B | self.interruption.ends_thinking(tokens_B, position_B, start_B)
        self.limit_B[active] = self.interruption.limit(start_B, ended_B, self.budget)
        return tokens_B, torch.where(forced_B, 0.0, chosen_B)


def read_prompts(decoder: Decoder, prompts_PT: Tensor, padding_P: Tensor | None, cache: Cache) -> Tensor:
    """Hidden states of left-padded prompts, which fill the cache; `padding_P` is None if all have the same length."""
    if padding_P is None:
        return decoder.forward(prompts_PT, cache=cache)
    at = torch.arange(prompts_PT.shape[1], device=prompts_PT.device)
    visible_PTS = (at[None, None, :] <= at[None, :, None]) & (at >= padding_P[:, None])[:, None]
    # A padding token attends to itself, so that no row of the softmax is empty.
    visible_PTS = visible_PTS | torch.eye(len(at), dtype=torch.bool, device=at.device)
    positions_PT = (at[None] - padding_P[:, None]).clamp(min=0)
    return decoder.forward(prompts_PT, positions_BT=positions_PT, mask_BTS=visible_PTS, cache=cache)


def read_next(decoder: Decoder, tokens_BT: Tensor, padding_B: Tensor | None, cache: Cache) -> Tensor:
    """Hidden states of tokens that follow those in the cache, whose first `padding_B` slots are padding."""
    if padding_B is None:
        return decoder.forward(tokens_BT, cache=cache)
    slot_S = torch.arange(cache.length + tokens_BT.shape[1], device=tokens_BT.device)
    at_T = slot_S[cache.length :]
    visible_BTS = (slot_S <= at_T[:, None])[None] & (slot_S >= padding_B[:, None])[:, None]
    return decoder.forward(tokens_BT, positions_BT=at_T - padding_B[:, None], mask_BTS=visible_BTS, cache=cache)


def _check(decoder: Decoder, lengths: Sequence[int], settings: SamplingSettings) -> None:
    if not lengths:
        raise InputError("there are no prompts to sample from.")
    if min(lengths) < 1:
        raise InputError("a prompt is empty; give at least a start token.")
    if settings.max_new_tokens < 1:
        raise InputError(f"max_new_tokens: {settings.max_new_tokens} leaves no room for a response; set at least 1.")
    room = decoder.config.max_position_embeddings
    if max(lengths) + settings.max_new_tokens > room:
        raise InputError(
            f"a prompt of {max(lengths)} tokens and {settings.max_new_tokens} new ones do not fit the model's context "
            f"of {room}; shorten the prompts or max_new_tokens."
        )


def draw(logits_BV: Tensor, settings: SamplingSettings, uniform_B: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens by inverse transform sampling, and their log-probs under the distribution they are drawn from."""
    if settings.temperature == 0:
        logprobs_BV = torch.log_softmax(logits_BV, dim=-1)
        best = logprobs_BV.max(dim=-1)
        return best.indices, best.values
    logprobs_BV = torch.log_softmax(logits_BV / settings.temperature, dim=-1)
    if settings.top_p >= 1.0:
        cumulative_BV = logprobs_BV.exp().cumsum(dim=-1, dtype=torch.float64)
        tokens_B = _inverse_cdf(cumulative_BV, uniform_B)
        return tokens_B, logprobs_BV.gather(1, tokens_B[:, None])[:, 0]
    ordered, order_BV = logprobs_BV.sort(dim=-1, descending=True, stable=True)
    cumulative_BV = ordered.exp().cumsum(dim=-1, dtype=torch.float64)
    # The smallest set of most likely tokens whose probability reaches top_p; it always has the first.
    inside_BV = (cumulative_BV - ordered.exp().double()) < settings.top_p
    kept_B = inside_BV.sum(dim=-1).clamp(min=1)
    mass_B = cumulative_BV.gather(1, kept_B[:, None] - 1)[:, 0]
    place_B = _inverse_cdf(cumulative_BV, uniform_B * mass_B).minimum(kept_B - 1)
    tokens_B = order_BV.gather(1, place_B[:, None])[:, 0]
    return tokens_B, ordered.gather(1, place_B[:, None])[:, 0] - mass_B.log().float()


def _inverse_cdf(cumulative_BV: Tensor, uniform_B: Tensor) -> Tensor:
    """Index of the first entry whose cumulative probability exceeds the uniform number (scaled to the total)."""
    target_B1 = (uniform_B * cumulative_BV[:, -1])[:, None] if cumulative_BV.shape[1] else uniform_B[:, None]
    return torch.searchsorted(cumulative_BV, target_B1, right=True)[:, 0].clamp(max=cumulative_BV.shape[1] - 1)
