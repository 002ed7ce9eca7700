"""The interruption of a recipe in a model's own tokens."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from isocompute.core.errors import InputError
from isocompute.core.recipe import Recipe
from isocompute.rl.lengths import Interruption, plan_interruption
from isocompute.rl.model import check_vocabulary, read_tokenizer
from isocompute.rl.tasks import Tasks

__all__ = ["interruption_of", "phrase_tokens"]


def interruption_of(recipe: Recipe, tasks: Tasks, folder: Path, stop_tokens: Sequence[int]) -> Interruption | None:
    """What is said to responses of these problems, and when; None where the recipe does not interrupt."""
    if recipe.length_control != "interrupt":
        return None
    phrase = recipe.interrupt_phrase or tasks.phrase
    if not phrase.strip():
        raise InputError("recipe.interrupt_phrase: there is nothing to say; name a phrase that ends thinking.")
    tokens = phrase_tokens(phrase, folder, stop_tokens)
    last_word = phrase_tokens(phrase.split()[-1], folder, stop_tokens)
    marker = last_word[0] if len(last_word) == 1 and last_word[0] == tokens[-1] else None
    return plan_interruption(recipe, tokens, marker=marker, budget=tasks.max_new_tokens)


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
