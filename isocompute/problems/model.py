"""A problem with its answer, and a set of them with the verifier that rewards responses."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from isocompute.core.errors import InputError

__all__ = ["Problem", "ProblemSet", "ProblemWarning", "Verifier", "draw", "question_key", "without_duplicates"]


class ProblemWarning(UserWarning):
    """Something in a problem set that was mended and that the user should know of."""


@dataclass(frozen=True)
class Problem:
    """One problem."""

    id: str
    question: str
    """Plain text: what the model is asked."""
    answer: str
    messages: tuple[Mapping[str, str], ...] | None = None
    """The chat prompt where the file gives one (veRL's `prompt` column)."""
    source: str = ""
    """Where it comes from: veRL's `data_source`, the name of a reasoning-gym task, …"""
    pass_rate: float | None = None
    """A model's pass rate where the file says it, as measured."""


Verifier = Callable[[Problem, str], float]
"""The reward of a response."""


@dataclass(frozen=True)
class ProblemSet:
    """Problems with distinct questions, and how their responses are rewarded."""

    name: str
    problems: tuple[Problem, ...]
    verify: Verifier
    duplicates: int = 0
    """How many problems were dropped because their question was there already."""

    def __len__(self) -> int:
        return len(self.problems)


def question_key(question: str, *, seed: int = 0) -> int:
    """A number in [0, 2^64) that depends on the words of a question alone: not on spacing, file, row or neighbours.

    >>> question_key("2 + 2 = ?") == question_key(" 2 + 2  = ?")
    True
    """
    words = " ".join(question.split())
    return int.from_bytes(hashlib.blake2b(f"{seed}\n{words}".encode(), digest_size=8).digest())


def without_duplicates(problems: Iterable[Problem], *, name: str) -> tuple[tuple[Problem, ...], int]:
    """The first problem of each question, and how many were dropped. A repeated id is an error: counts go by id."""
    first: dict[str, Problem] = {}
    ids: dict[str, str] = {}
    dropped = other = 0
    for problem in problems:
        words = " ".join(problem.question.split())
        known = first.setdefault(words, problem)
        if known is not problem:
            dropped += 1
            other += known.answer != problem.answer
        elif ids.setdefault(problem.id, words) is not words:
            raise InputError(
                f"{name}: two different questions have the id '{problem.id}'; make the ids unique or leave them out."
            )
    if dropped:
        differ = f", {other} of them with another answer (the first stands)" if other else ""
        warnings.warn(
            f"{name}: {dropped} repeated questions dropped{differ}; {len(first)} problems are left.",
            ProblemWarning,
            stacklevel=2,
        )
    return tuple(first.values()), dropped


def draw(problems: Iterable[Problem], size: int, *, seed: int) -> tuple[Problem, ...]:
    """`size` of the problems in their own order, the same ones wherever they stand; a larger draw holds a smaller."""
    ranked = sorted(enumerate(problems), key=lambda pair: question_key(pair[1].question, seed=seed))
    return tuple(problem for _, problem in sorted(ranked[:size], key=lambda pair: pair[0]))
