"""A problem, a set of them with the verifier that rewards responses, and how batches are drawn from a set."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from isocompute.core.arrays import Ints
from isocompute.core.errors import InputError

_ROUNDING = 1e-9
"""Tolerance for rounding: 55 correct of 100 reach a pass rate of .55."""


class ProblemWarning(UserWarning):
    """A problem set was repaired, or its counts or verifier may not be what the user expects."""


@dataclass(frozen=True)
class Problem:
    """A question with its answer."""

    id: str
    question: str
    """Plain text: what the model is asked."""
    answer: str
    messages: tuple[Mapping[str, str], ...] | None = None
    """The chat prompt, if the file has one (veRL's `prompt` column)."""
    source: str = ""
    """Origin of the problem: veRL's `data_source`, the name of a reasoning-gym task, …"""
    pass_rate: float | None = None
    """A model's measured pass rate, if the file has one."""
    extra: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """The other columns of the file, as far as JSON can hold them; reward functions take them as arguments."""


Verifier = Callable[[Problem, Sequence[str]], list[float]]
"""The rewards of responses to one problem."""


@dataclass(frozen=True)
class ProblemSet:
    """Problems with distinct questions, and how their responses are rewarded."""

    name: str
    problems: tuple[Problem, ...]
    verifier: Verifier
    duplicates: int = 0
    """Number of problems dropped because they repeat an earlier question."""

    def __len__(self) -> int:
        return len(self.problems)

    def grade(self, problem: Problem, responses: Sequence[str]) -> list[float]:
        """The rewards of responses to one problem."""
        return self.verifier(problem, responses)

    def verify(self, problem: Problem, response: str) -> float:
        """The reward of a response."""
        return self.grade(problem, [response])[0]


def each_once(responses: Sequence[str], grade: Callable[[list[str]], list[float]]) -> list[float]:
    """Rewards of responses, of which equal ones are graded once."""
    distinct = list(dict.fromkeys(responses))
    rewards = dict(zip(distinct, grade(distinct), strict=True))
    return [rewards[response] for response in responses]


def question_key(question: str, *, seed: int = 0) -> int:
    """A number in [0, 2^64) that depends only on the words of a question, not on its spacing, file or row.

    >>> question_key("2 + 2 = ?") == question_key(" 2 + 2  = ?")
    True
    """
    words = " ".join(question.split())
    return int.from_bytes(hashlib.blake2b(f"{seed}\n{words}".encode(), digest_size=8).digest())


def without_duplicates(problems: Iterable[Problem], *, name: str) -> tuple[tuple[Problem, ...], int]:
    """The first problem of each question, and the number dropped; two questions with one id are an error."""
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
        differ = f", {other} of them with another answer (the first is kept)" if other else ""
        warnings.warn(
            f"{name}: {dropped} repeated questions dropped{differ}; {len(first)} problems are left.",
            ProblemWarning,
            stacklevel=2,
        )
    return tuple(first.values()), dropped


def draw(problems: Iterable[Problem], size: int, *, seed: int) -> tuple[Problem, ...]:
    """`size` problems in original order, chosen by the hash of their question; larger draws contain smaller ones."""
    ranked = sorted(enumerate(problems), key=lambda pair: question_key(pair[1].question, seed=seed))
    return tuple(problem for _, problem in sorted(ranked[:size], key=lambda pair: pair[0]))


class ProblemSampler:
    """Draws batches without replacement within an epoch, in a new order each epoch.

    A problem whose pass rate over all its rollouts reaches `retire_at` is never drawn again (ScaleRL's
    no-positive-resampling).
    """

    def __init__(self, problems: int, retire_at: float | None) -> None:
        self.retire_at = retire_at
        self.order_P = np.empty(0, dtype=np.int64)
        self.at = 0
        self.right_P = np.zeros(problems, dtype=np.int64)
        self.seen_P = np.zeros(problems, dtype=np.int64)
        self.active_P = np.ones(problems, dtype=np.bool_)

    @property
    def retired(self) -> int:
        """Problems that will not be drawn again."""
        return int((~self.active_P).sum())

    def draw(self, count: int, rng: np.random.Generator) -> Ints:
        """The next batch; smaller if fewer problems are left, and empty if none is."""
        left = self.order_P[self.at : self.at + count]
        self.at += len(left)
        if len(left) == count:
            return left
        order_P = rng.permutation(np.flatnonzero(self.active_P))
        # A batch that spans two epochs has no problem twice.
        fresh = order_P[~np.isin(order_P, left)][: count - len(left)] if len(left) else order_P[: count - len(left)]
        rest = order_P[~np.isin(order_P, fresh)] if len(left) else order_P[len(fresh) :]
        self.order_P, self.at = rest, 0
        return np.concatenate([left, fresh])

    def record(self, index_P: Ints, right_P: Ints, rollouts: int) -> None:
        """Count right rollouts, and retire problems that reach `retire_at`."""
        if self.retire_at is None:
            return
        np.add.at(self.right_P, index_P, right_P)  # a problem may occur twice
        np.add.at(self.seen_P, index_P, rollouts)
        done_P = self.right_P[index_P] >= self.retire_at * self.seen_P[index_P] - _ROUNDING
        if done_P.any():
            self.active_P[index_P[done_P]] = False
            rest = self.order_P[self.at :]
            self.order_P, self.at = rest[self.active_P[rest]], 0

    def state(self) -> dict[str, np.ndarray]:
        """Arrays of a checkpoint."""
        return {"order": self.order_P, "right": self.right_P, "seen": self.seen_P, "active": self.active_P}

    def restore(self, arrays: dict[str, np.ndarray], at: int) -> None:
        """Resume from a checkpoint."""
        self.order_P, self.at = arrays["order"].copy(), at
        self.right_P, self.seen_P = arrays["right"].copy(), arrays["seen"].copy()
        self.active_P = arrays["active"].copy()
