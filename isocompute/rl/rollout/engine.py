"""Rollouts, and the interface behind which every way to generate them sits, with what its implementations share.

Each token is drawn with a uniform number that is a hash of the row's stream and the position. A row therefore samples
the same tokens alone or beside any others, up to rounding in the matrix products. Log-probs are those of the
distribution that the token was drawn from, after temperature and top-p.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from isocompute.core.arrays import Ints
from isocompute.core.errors import InputError
from isocompute.rl.lengths import Interruption
from isocompute.rl.model.attention import Packing
from isocompute.rl.model.decoder import Decoder

INTERRUPTION = -1
"""Position of the random number that decides when a row is interrupted."""
_MASK = 2**64 - 1


@dataclass(frozen=True)
class Packed:
    """Sequences as the tokens of one pass, on the device; `_S` are the tokens of the responses."""

    tokens_T: Tensor
    positions_T: Tensor
    predictor_S: Tensor
    """The token of the pass that predicts each response token."""
    chosen_S: Tensor
    """The response tokens."""
    place_S: Tensor
    """Where each of them is in the flat array of rows × steps."""
    packing: Packing
    shape: tuple[int, ...]
    """Rows × steps."""

    def spread(self, values_S: Tensor) -> Tensor:
        """Values of response tokens as an array of rows × steps, with zeros elsewhere."""
        flat = torch.zeros(math.prod(self.shape), dtype=values_S.dtype, device=values_S.device)
        return flat.scatter(0, self.place_S, values_S).view(self.shape)


@dataclass(frozen=True)
class Rollouts:
    """Prompts, and the responses to them, padded on the right with zeros; the rows of a prompt are consecutive."""

    prompts: Sequence[Sequence[int]]
    prompt_B: Tensor
    """The prompt of each response; never decreasing."""
    responses_BT: Tensor
    logprobs_BT: Tensor
    lengths_B: Tensor
    """Tokens of each response, its stop token included."""
    stopped_B: Tensor
    """Whether the response ended by itself: with a stop token or string."""
    forced_BT: Tensor | None = None
    """True for tokens that an interruption forced; None if there are none."""
    versions_BT: Tensor | None = None
    """The number of updates made when each token was sampled; None if the batch is on-policy."""

    @cached_property
    def mask_BT(self) -> Tensor:
        """True where the response has a token."""
        return torch.arange(self.responses_BT.shape[1]) < self.lengths_B[:, None]

    @property
    def sampled_BT(self) -> Tensor:
        """True for tokens that the policy chose; losses and statistics average over these."""
        return self.mask_BT if self.forced_BT is None else self.mask_BT & ~self.forced_BT

    @property
    def interrupted_B(self) -> Tensor:
        """Which responses were interrupted."""
        return torch.zeros_like(self.stopped_B) if self.forced_BT is None else self.forced_BT.any(dim=1)

    def __len__(self) -> int:
        return len(self.responses_BT)

    def staleness(self, step: int) -> tuple[float, int]:
        """Updates since the tokens were sampled, before update `step`: the mean and the largest."""
        if self.versions_BT is None:
            return 0.0, 0
        age_BT = (step - self.versions_BT) * self.sampled_BT
        return float(age_BT.sum() / self.sampled_BT.sum()), int(age_BT.max())

    def take(self, rows: Tensor) -> Rollouts:
        """Some of the rows, without the padding that none of them needs; rows of a prompt must stay together."""
        asked, prompt_B = torch.unique(self.prompt_B[rows], return_inverse=True)
        lengths_B = self.lengths_B[rows]
        used = int(lengths_B.max()) if len(rows) else 0
        return Rollouts(
            [self.prompts[i] for i in asked.tolist()],
            prompt_B,
            self.responses_BT[rows, :used],
            self.logprobs_BT[rows, :used],
            lengths_B,
            self.stopped_B[rows],
            None if self.forced_BT is None else self.forced_BT[rows, :used],
            None if self.versions_BT is None else self.versions_BT[rows, :used],
        )

    @classmethod
    def join(cls, parts: Sequence[Rollouts]) -> Rollouts:
        """Several batches as one, padded to a common width."""
        if len(parts) == 1:
            return parts[0]
        width = max(part.responses_BT.shape[1] for part in parts)
        before = np.cumsum([0, *(len(part.prompts) for part in parts)])

        def wide(name: str) -> Tensor:
            return torch.cat([F.pad(x, (0, width - x.shape[1])) for x in (getattr(part, name) for part in parts)])

        return cls(
            [prompt for part in parts for prompt in part.prompts],
            torch.cat([part.prompt_B + int(start) for part, start in zip(parts, before[:-1], strict=True)]),
            wide("responses_BT"),
            wide("logprobs_BT"),
            torch.cat([part.lengths_B for part in parts]),
            torch.cat([part.stopped_B for part in parts]),
            None if parts[0].forced_BT is None else wide("forced_BT"),
            None if parts[0].versions_BT is None else wide("versions_BT"),
        )

    def stored(self) -> dict[str, Tensor]:
        """What a checkpoint keeps; prompts are read from the problems again."""
        names = ("responses_BT", "logprobs_BT", "lengths_B", "stopped_B", "forced_BT", "versions_BT")
        tensors = {name: getattr(self, name) for name in names}
        return {name: x for name, x in tensors.items() if x is not None}

    def packed(self, device: torch.device) -> Packed:
        """The tokens of one pass over all sequences.

        The last token of a response predicts nothing that is needed, so the pass leaves it out.
        """
        lengths_B, prompt_B, responses_BT = (x.numpy() for x in (self.lengths_B, self.prompt_B, self.responses_BT))
        read_B, width = np.maximum(lengths_B - 1, 0), responses_BT.shape[1]
        packing = Packing.of([len(prompt) for prompt in self.prompts], read_B, prompt_B, device)
        inside_BT = np.arange(width) < lengths_B[:, None]
        place_S = np.flatnonzero(inside_BT)
        rows_S, steps_S = np.divmod(place_S, width) if width else (place_S, place_S)
        chosen_S = responses_BT[inside_BT]
        first, last = packing.prompt_tokens, packing.tokens
        tokens = np.zeros(last + packing.padding, dtype=np.int64)
        tokens[:first] = np.concatenate([np.asarray(prompt) for prompt in self.prompts])
        tokens[first:last] = chosen_S[steps_S < read_B[rows_S]]
        first_S = packing.last_of_prompt_P[prompt_B[rows_S]]
        predictor_S = np.where(steps_S == 0, first_S, packing.starts_B[rows_S] + steps_S - 1)
        sent = torch.from_numpy(np.concatenate([tokens, packing.positions, predictor_S, chosen_S, place_S])).to(device)
        count, read = len(place_S), len(tokens)
        own_T, position_T, predictor, chosen, place = torch.split(sent, [read, read, count, count, count])
        return Packed(own_T, position_T, predictor, chosen, place, packing, responses_BT.shape)

    def micro_batches(self, *, tokens: int, rows: int | None = None) -> Iterator[Tensor]:
        """Consecutive rows whose packed pass has at most about this many tokens, and at most so many rows."""
        own_B = self.lengths_B.tolist()
        start = used = 0
        last = -1
        for row, prompt in enumerate(self.prompt_B.tolist()):
            more = own_B[row] + (len(self.prompts[prompt]) if prompt != last or row == start else 0)
            if row > start and (used + more > tokens or (rows is not None and row - start == rows)):
                yield torch.arange(start, row)
                start, used = row, 0
                more = own_B[row] + len(self.prompts[prompt])
            used, last = used + more, prompt
        yield torch.arange(start, len(self))


@dataclass(frozen=True)
class Groups:
    """Rollouts of a batch of problems; the n rows of a problem are consecutive."""

    index_P: Ints
    rollouts: Rollouts
    scores_PN: Tensor
    """Scores of the verifier."""
    rewards_PN: Tensor
    """Rewards to train on: the scores after length control."""
    dropped: float = 0.0
    """Groups that a refill dropped, per group kept."""
    dropped_score: float = 0.0
    """Mean score of the dropped groups."""

    def __len__(self) -> int:
        return len(self.index_P)

    @classmethod
    def join(cls, parts: Sequence[Groups]) -> Groups:
        """Several batches as one; `dropped` and `dropped_score` are those of the first."""
        return replace(
            parts[0],
            index_P=np.concatenate([part.index_P for part in parts]),
            rollouts=Rollouts.join([part.rollouts for part in parts]),
            scores_PN=torch.cat([part.scores_PN for part in parts]),
            rewards_PN=torch.cat([part.rewards_PN for part in parts]),
        )


# Requests, and the engines that answer them


@dataclass(frozen=True)
class SamplingSettings:
    """What all rows of an engine share."""

    max_new_tokens: int
    top_p: float = 1.0
    stop_tokens: tuple[int, ...] = ()
    stop_strings: tuple[str, ...] = ()
    text: Callable[[Sequence[int]], str] | None = None
    """Decodes tokens; needed for stop strings."""
    fp32_head: bool = True
    interruption: Interruption | None = None
    keep_versions: bool = False
    """Whether to record the version of the weights that sampled each token."""


@dataclass(frozen=True)
class PromptGroup:
    """A request: sample one response to the prompt for each of the random streams."""

    key: int
    """Names the group to whoever submitted it."""
    prompt: Sequence[int]
    streams: Ints
    temperature: float = 1.0
    """0 takes the most likely token."""


@dataclass(frozen=True)
class FinishedGroup:
    """The responses to a request, in the order of its streams."""

    key: int
    rollouts: Rollouts


class RolloutEngine(Protocol):
    """Samples responses. Groups may be submitted at any time; those that do not fit yet wait."""

    settings: SamplingSettings
    name: str
    """Which engine this is, for the header of a run."""

    @property
    def busy(self) -> int:
        """Rows in flight or waiting."""
        ...

    def take_use(self) -> tuple[int, int]:
        """Rows in flight, summed over decode steps, and these steps, since the last call."""
        ...

    def submit(self, group: PromptGroup) -> None:
        """Add a group."""
        ...

    def step(self) -> list[FinishedGroup]:
        """Sample a few tokens for the rows in flight; returns the groups that are complete."""
        ...

    def load(self, weights: Decoder, version: int) -> None:
        """Use these weights from the next token on; rows in flight keep their keys and values."""
        ...


def streams(seed: int, rows: Ints) -> Ints:
    """The random streams of row numbers under a seed."""
    with np.errstate(over="ignore"):
        out = rows.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(seed * 0xD1342543DE82EF95 & _MASK)
    return out.astype(np.int64)


def uniform_at(streams_B: Tensor, positions: Tensor) -> Tensor:
    """A number in (0, 1) for each stream and position, from a counter-based generator (SplitMix64's finaliser)."""
    x = streams_B + positions.to(torch.int64) * _signed(0xDA942042E4DD58B5)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ _shifted(x, shift)) * _signed(factor)
    x = x ^ _shifted(x, 31)
    return (_shifted(x, 41).float() + 0.5) * 2.0**-23


def _signed(value: int) -> int:
    value &= _MASK
    return value - 2**64 if value >= 2**63 else value


def _shifted(x: Tensor, bits: int) -> Tensor:
    """Logical right shift of 64-bit integers (torch's own is arithmetic)."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def draw(logits_BV: Tensor, temperature_B: Tensor, uniform_B: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens by inverse transform sampling, and their log-probs under the distribution they are drawn from."""
    greedy_B = temperature_B == 0
    scale_B = torch.where(greedy_B, 1.0, temperature_B)
    logprobs_BV = torch.log_softmax(logits_BV / scale_B[:, None], dim=-1)
    cumulative_BV = logprobs_BV.exp().cumsum(dim=-1)
    tokens_B = torch.searchsorted(cumulative_BV, (uniform_B * cumulative_BV[:, -1])[:, None], right=True)[:, 0]
    tokens_B = tokens_B.clamp(max=logits_BV.shape[1] - 1)
    if bool(greedy_B.any()):
        tokens_B = torch.where(greedy_B, logprobs_BV.argmax(dim=-1), tokens_B)
    return tokens_B, logprobs_BV.gather(1, tokens_B[:, None])[:, 0]


def nucleus(logits_BV: Tensor, temperature_B: Tensor, top_p: float) -> Tensor:
    """Logits with all but the smallest set of most likely tokens whose probability reaches top_p at minus infinity."""
    scale_B1 = torch.where(temperature_B == 0, 1.0, temperature_B)[:, None]
    ordered_BV, order_BV = (logits_BV / scale_B1).softmax(dim=-1).sort(dim=-1, descending=True, stable=True)
    outside_BV = ordered_BV.cumsum(dim=-1) - ordered_BV >= top_p
    outside_BV[:, 0] = False
    return logits_BV.masked_fill(torch.zeros_like(outside_BV).scatter(1, order_BV, outside_BV), -torch.inf)


def stop_string_at(tokens: Sequence[int], settings: SamplingSettings, *, checked: int) -> int | None:
    """How many of the tokens to keep if a stop string ends among those after the first `checked`."""
    if not settings.stop_strings:
        return None
    assert settings.text is not None
    # A character has at least one token, unless it is one of several bytes.
    start = max(0, checked - 4 * max(map(len, settings.stop_strings)))
    if not any(stop in settings.text(tokens[start:]) for stop in settings.stop_strings):
        return None
    for end in range(checked + 1, len(tokens)):
        text = settings.text(tokens[start:end])
        if any(stop in text for stop in settings.stop_strings):
            return end
    return len(tokens)


def check_request(decoder: Decoder, group: PromptGroup, settings: SamplingSettings) -> None:
    """Refuse what no engine can sample."""
    if not len(group.prompt):
        raise InputError("a prompt is empty; give at least a start token.")
    if settings.max_new_tokens < 1:
        raise InputError(f"max_new_tokens: {settings.max_new_tokens} leaves no room for a response; set at least 1.")
    room = decoder.config.max_position_embeddings
    if len(group.prompt) + settings.max_new_tokens > room:
        raise InputError(
            f"a prompt of {len(group.prompt)} tokens and {settings.max_new_tokens} new ones do not fit the model's "
            f"context of {room}; shorten the prompts or max_new_tokens."
        )


def sample(engine: RolloutEngine, groups: Sequence[PromptGroup]) -> Rollouts:
    """Sample groups to their end, as one batch in their order; their keys are 0, 1, 2, …"""
    for group in groups:
        engine.submit(group)
    done: dict[int, Rollouts] = {}
    while engine.busy:
        done |= {finished.key: finished.rollouts for finished in engine.step()}
    return Rollouts.join([done[group.key] for group in groups])
