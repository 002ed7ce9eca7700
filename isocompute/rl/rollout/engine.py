"""The interface behind which every way to generate sits, and what its implementations share.

Each token is drawn with a uniform number that is a hash of the row's stream and the position. A row therefore samples
the same tokens alone or beside any others, up to rounding in the matrix products. Log-probs are those of the
distribution that the token was drawn from, after temperature and top-p.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from isocompute.core.arrays import Ints
from isocompute.core.errors import InputError
from isocompute.rl.lengths import Interruption
from isocompute.rl.model.decoder import Decoder
from isocompute.rl.rollout.rollouts import Rollouts

INTERRUPTION = -1
"""Position of the random number that decides when a row is interrupted."""
LOOK = 8
"""Decode steps between two looks at which rows have ended."""
_MASK = 2**64 - 1


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

    def prepare(self) -> None:
        """Do what only the first steps would have to wait for."""
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
