"""Length control (ScaleRL sections 2 and A.10): forced interruption, length penalty; truncation is the sampler's own.

Interruption: each response is given a length, drawn from a window. If it is still thinking there, a phrase is put into
its mouth ("time is up …") and it has a fixed number of tokens left for its answer. The phrase's last word ends
thinking (`</think>`): where that is one token, a response that wrote it by itself is left alone. Forced tokens were
not chosen by the policy, so they are neither trained on nor part of any statistic of log-probs.
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
"""Share of a response's budget that is kept for the answer: ScaleRL's 2,048 of 14,336 tokens."""
_WINDOW = 5 / 6
"""Start of the window as a share of its end: ScaleRL's 10k and 12k."""
_TOLERANCE = 1 / 4
"""Share of the budget over which the length penalty grows; the summary gives no number, this one is ours."""


@dataclass(frozen=True)
class Interruption:
    """What is said, and when: the response's length before the phrase lies in `window`, both ends included."""

    phrase: tuple[int, ...]
    window: tuple[int, int]
    answer_tokens: int
    marker: int | None = None
    """The token that ends thinking; a response that wrote it is not interrupted."""

    def starts(self, uniform_B: Tensor) -> Tensor:
        """The length at which each response is interrupted, from one number in (0, 1) a row."""
        low, high = self.window
        return low + (uniform_B * (high - low + 1)).long().clamp(max=high - low)

    def force(self, tokens_B: Tensor, position_B: Tensor, start_B: Tensor, ended_B: Tensor) -> tuple[Tensor, Tensor]:
        """Replace the tokens where the phrase is being said; also which those are.

        `position_B` counts the response's tokens so far, `ended_B` says who has ended thinking alone.
        """
        phrase_F = torch.tensor(self.phrase, device=tokens_B.device)
        at_B = position_B - start_B
        forced_B = (at_B >= 0) & (at_B < len(self.phrase)) & ~ended_B
        return torch.where(forced_B, phrase_F[at_B.clamp(0, len(self.phrase) - 1)], tokens_B), forced_B

    def ends_thinking(self, tokens_B: Tensor, position_B: Tensor, start_B: Tensor) -> Tensor:
        """Which of the tokens end thinking before anyone interrupts."""
        if self.marker is None:
            return torch.zeros_like(position_B, dtype=torch.bool)
        return (tokens_B == self.marker) & (position_B < start_B)

    def limit(self, start_B: Tensor, ended_B: Tensor, budget: int) -> Tensor:
        """The most tokens a response may have: with an interruption, what is left for the answer counts from it."""
        return torch.where(ended_B, budget, start_B + len(self.phrase) + self.answer_tokens)


def plan_interruption(
    recipe: Recipe, phrase: tuple[int, ...], *, budget: int, marker: int | None = None
) -> Interruption:
    """The recipe's interruption inside a response budget; what the recipe leaves open follows ScaleRL's proportions."""
    answer = recipe.answer_tokens if recipe.answer_tokens is not None else _answer(budget)
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


def _answer(budget: int) -> int:
    return max(2, round(_ANSWER * budget))  # an answer and its end


def _window(latest: int) -> tuple[int, int]:
    return max(1, round(_WINDOW * latest)), latest


def budget_beyond(longest: int) -> int:
    """The smallest budget that leaves responses of up to this many tokens uninterrupted, and then unpenalised too,
    where nothing else is said.
    """
    budget = longest + 3
    while _window(budget - 1 - _answer(budget))[0] < longest:
        budget += 1
    return budget


def penalty_window(recipe: Recipe, *, budget: int) -> tuple[int, int]:
    """Lmax and Lcache of the length penalty."""
    longest = recipe.penalty_length if recipe.penalty_length is not None else budget
    tolerance = recipe.penalty_tolerance if recipe.penalty_tolerance is not None else round(_TOLERANCE * longest)
    if longest > budget:
        raise InputError(
            f"recipe.penalty_length: {longest} is longer than the response budget of {budget}, so nothing would ever "
            "be penalised; lower it, or raise problems.max_new_tokens."
        )
    return longest, max(1, tolerance)


def length_penalty(rewards: Tensor, lengths: Tensor, *, longest: int, tolerance: int) -> Tensor:
    """Rewards in [0, 1] less the penalty of long right responses (ScaleRL equation 9).

    The penalty, clip((Lmax - |y|) / Lcache - 1, -1, 0), is written for rewards of ±1, twice as far apart as ours: half
    of it is the same.
    """
    penalty = ((longest - lengths) / tolerance - 1.0).clamp(-1.0, 0.0)
    return torch.where(rewards > 0.5, rewards + 0.5 * penalty, rewards)


def make_interruption(
    recipe: Recipe, default_phrase: str, budget: int, folder: Path, stop_tokens: Sequence[int]
) -> Interruption:
    """The recipe's interruption in a model's own tokens."""
    phrase = recipe.interrupt_phrase or default_phrase
    if not phrase.strip():
        raise InputError("recipe.interrupt_phrase: it is empty; name a phrase that ends thinking.")
    tokens = phrase_tokens(phrase, folder, stop_tokens)
    last_word = phrase_tokens(phrase.split()[-1], folder, stop_tokens)
    marker = last_word[0] if len(last_word) == 1 and last_word[0] == tokens[-1] else None
    return plan_interruption(recipe, tokens, marker=marker, budget=budget)


def phrase_tokens(phrase: str, folder: Path, stop_tokens: Sequence[int]) -> tuple[int, ...]:
    """An interruption as token ids; refused where the tokenizer cannot write it."""
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
