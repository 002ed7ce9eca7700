"""Length control (ScaleRL sections 2 and A.10): forced interruption and length penalty; the sampler truncates.

Each response has an interruption length, drawn from a window. A response that is still thinking at that length gets a
forced phrase ("time is up …") and then a fixed number of tokens for its answer. The phrase's last word ends thinking
(`</think>`). If that word is one token, a response that wrote it before is not interrupted. The policy did not choose
the forced tokens, so they are excluded from the loss and from all statistics of log-probs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from isocompute.core.errors import InputError
from isocompute.core.recipe import Recipe
from isocompute.rl.model.checkpoint import check_vocabulary, read_tokenizer

_ANSWER = 1 / 7
"""Share of the response budget reserved for the answer: ScaleRL uses 2,048 of 14,336 tokens."""
_WINDOW = 5 / 6
"""Start of the window as a share of its end: ScaleRL uses 10k and 12k."""
_TOLERANCE = 1 / 4
"""Share of the budget over which the length penalty grows; ScaleRL gives no number, so this is our choice."""


@dataclass(frozen=True)
class Interruption:
    """A forced phrase; the response's length before it lies in `window`, both ends included."""

    phrase: tuple[int, ...]
    window: tuple[int, int]
    answer_tokens: int
    marker: int | None = None
    """The token that ends thinking; a response that has written it is not interrupted."""

    def starts(self, uniform_B: Tensor) -> Tensor:
        """The length at which each response is interrupted, from one uniform number in (0, 1) per response."""
        low, high = self.window
        return low + (uniform_B * (high - low + 1)).long().clamp(max=high - low)

    def force(self, tokens_B: Tensor, position_B: Tensor, start_B: Tensor, ended_B: Tensor) -> tuple[Tensor, Tensor]:
        """Replace tokens by those of the phrase where it applies; returns the tokens and which of them are forced.

        `position_B` counts each response's tokens so far. `ended_B` marks responses that ended thinking themselves.
        """
        phrase_F = torch.tensor(self.phrase, device=tokens_B.device)
        at_B = position_B - start_B
        forced_B = (at_B >= 0) & (at_B < len(self.phrase)) & ~ended_B
        return torch.where(forced_B, phrase_F[at_B.clamp(0, len(self.phrase) - 1)], tokens_B), forced_B

    def ends_thinking(self, tokens_B: Tensor, position_B: Tensor, start_B: Tensor) -> Tensor:
        """Which of the tokens end thinking before the interruption."""
        if self.marker is None:
            return torch.zeros_like(position_B, dtype=torch.bool)
        return (tokens_B == self.marker) & (position_B < start_B)


def make_interruption(
    recipe: Recipe, default_phrase: str, budget: int, folder: Path, stop_tokens: Sequence[int]
) -> Interruption:
    """The recipe's interruption in the tokens of the model in `folder`."""
    phrase = recipe.interrupt_phrase or default_phrase
    if not phrase.strip():
        raise InputError("recipe.interrupt_phrase: it is empty; name a phrase that ends thinking.")
    tokens = phrase_tokens(phrase, folder, stop_tokens)
    last_word = phrase_tokens(phrase.split()[-1], folder, stop_tokens)
    marker = last_word[0] if len(last_word) == 1 and last_word[0] == tokens[-1] else None
    return plan_interruption(recipe, tokens, marker=marker, budget=budget)


def phrase_tokens(phrase: str, folder: Path, stop_tokens: Sequence[int]) -> tuple[int, ...]:
    """The phrase as token ids; raises `InputError` if the tokenizer cannot represent it."""
    tokenizer = read_tokenizer(folder)
    ids = tokenizer.encode(phrase, add_special_tokens=False).ids
    written = tokenizer.decode(ids, skip_special_tokens=False)
    if "".join(written.split()) != "".join(phrase.split()):
        raise InputError(
            f"recipe.interrupt_phrase: the tokenizer of {folder.name} cannot write {phrase!r} (it gives {written!r}); "
            "use words that it knows."
        )
    if set(ids) & set(stop_tokens):
        raise InputError(f"recipe.interrupt_phrase: {phrase!r} holds a stop token; nothing could follow it.")
    check_vocabulary(ids, folder, f"recipe.interrupt_phrase: {phrase!r}")
    return tuple(ids)


def plan_interruption(
    recipe: Recipe, phrase: tuple[int, ...], *, budget: int, marker: int | None = None
) -> Interruption:
    """The recipe's interruption within a response budget; fields that the recipe leaves unset get ScaleRL's shares."""
    answer = recipe.answer_tokens if recipe.answer_tokens is not None else _answer_tokens(budget)
    latest = budget - len(phrase) - answer
    if recipe.interrupt_window is not None:
        low, high = recipe.interrupt_window
        if high > latest:
            raise InputError(
                f"recipe.interrupt_window: an interruption at {high}, a phrase of {len(phrase)} tokens and {answer} "
                f"for the answer need {high + len(phrase) + answer} tokens, the response budget is {budget}; end the "
                f"window at {max(latest, 0)}, or raise problems.max_new_tokens."
            )
    else:
        low, high = _window(latest)
    if high < 1 or low > high:
        raise InputError(
            f"recipe.length_control: a response budget of {budget} tokens has no room for thinking, a phrase of "
            f"{len(phrase)} and an answer of {answer}; raise problems.max_new_tokens, or use 'truncate'."
        )
    return Interruption(phrase, (low, high), answer, marker)


def _answer_tokens(budget: int) -> int:
    return max(2, round(_ANSWER * budget))  # at least the answer and a stop token


def _window(latest: int) -> tuple[int, int]:
    return max(1, round(_WINDOW * latest)), latest


def uninterrupted_budget(longest: int) -> int:
    """The smallest budget under which responses of up to `longest` tokens are never interrupted by default.

    The default length penalty does not reach them either.
    """
    budget = longest + 3
    while _window(budget - 1 - _answer_tokens(budget))[0] < longest:
        budget += 1
    return budget


def penalty_window(recipe: Recipe, *, budget: int) -> tuple[int, int]:
    """Lmax and Lcache of the length penalty (ScaleRL equation 9)."""
    longest = recipe.penalty_length if recipe.penalty_length is not None else budget
    tolerance = recipe.penalty_tolerance if recipe.penalty_tolerance is not None else round(_TOLERANCE * longest)
    if longest > budget:
        raise InputError(
            f"recipe.penalty_length: {longest} is longer than the response budget of {budget}, so nothing would ever "
            "be penalised; lower it, or raise problems.max_new_tokens."
        )
    return longest, max(1, tolerance)


def length_penalty(rewards: Tensor, lengths: Tensor, *, longest: int, tolerance: int) -> Tensor:
    """Rewards in [0, 1], with long correct responses penalised (ScaleRL equation 9).

    The equation's penalty, clip((Lmax - |y|) / Lcache - 1, -1, 0), is for rewards of ±1. Rewards of 0 and 1 are half as
    far apart, so half the penalty is subtracted.
    """
    penalty = ((longest - lengths) / tolerance - 1.0).clamp(-1.0, 0.0)
    return torch.where(rewards > 0.5, rewards + 0.5 * penalty, rewards)
