"""Chains of arithmetic modulo a prime: `7 + 3 * 5 =` is answered step by step, `10 4 <eos>` modulo 23.

Operations apply from left to right. A response writes each intermediate result; its last number is the answer.
Numbers are single tokens, so verifying compares one token. Longer chains are more difficult,
since a model may err in each step.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from isocompute.core.arrays import Ints
from isocompute.core.errors import InputError
from isocompute.problems.problem_set import Problem, ProblemSet

OPERATIONS = "+-*"
SPECIAL = ("<pad>", "<eos>", "=")
LEVELS = {"very-easy": (1, 2), "easy": (3, 5), "hard": (8, 10), "extremely-hard": (14, 16), "all": (1, 16)}
"""The fewest and most operations of the chains of a level."""
DEFAULT_SIZE = 2000
MOST_STEPS = 1000
LARGEST_MODULUS = 2**16
"""Each number is a token, and a product of two must not overflow."""
_MOST_NUMBERS = 2**27
"""Numbers drawn at once: 1 GiB per array."""
_STEPS = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?")
_MODULUS = re.compile(r"modulus=(\d{1,18})")


@dataclass(frozen=True)
class ChainSpec:
    """The modulus and the numbers of operations of a set of chains."""

    modulus: int = 23
    shortest: int = 1
    longest: int = 16

    def __post_init__(self) -> None:
        if self.modulus > LARGEST_MODULUS:
            raise InputError(f"chain: modulus {self.modulus} is above {LARGEST_MODULUS:,}; try 23 or 97.")
        if self.modulus < 3 or any(self.modulus % d == 0 for d in range(2, int(self.modulus**0.5) + 1)):
            raise InputError(f"chain: modulus {self.modulus} is not a prime of at least 3; try 23 or 97.")
        if not 1 <= self.shortest <= self.longest:
            raise InputError(f"chain: steps {self.shortest}-{self.longest}; give the shorter first, at least 1.")
        if self.longest > MOST_STEPS:
            raise InputError(f"chain: steps {self.shortest}-{self.longest}; give at most {MOST_STEPS:,}.")


@dataclass(frozen=True)
class Chains:
    """Problems as arrays; rows shorter than the longest are padded with -1 on the right."""

    spec: ChainSpec
    operands_PS: Ints
    """The first number, then one for each operation."""
    operations_PS: Ints
    """Indices into `OPERATIONS`."""
    results_PS: Ints
    """The result of each operation; the last one of a row is the answer."""
    steps_P: Ints

    def __len__(self) -> int:
        return len(self.steps_P)

    @property
    def answers_P(self) -> Ints:
        """The answer of each problem."""
        return np.asarray(self.results_PS[np.arange(len(self)), self.steps_P - 1])

    def take(self, rows: Ints) -> Chains:
        """Some of the problems."""
        parts = (a[rows] for a in (self.operands_PS, self.operations_PS, self.results_PS, self.steps_P))
        return Chains(self.spec, *parts)

    def question(self, row: int) -> str:
        """The text of a problem."""
        words = [str(self.operands_PS[row, 0])]
        for s in range(int(self.steps_P[row])):
            words += [OPERATIONS[self.operations_PS[row, s]], str(self.operands_PS[row, s + 1])]
        return " ".join([*words, "="])


def parse_chain(source: str) -> ChainSpec:
    """The chains that a source names: `chain:easy`, `chain:8-10`, `chain:easy?modulus=97`.

    >>> parse_chain("chain:8-10?modulus=97")
    ChainSpec(modulus=97, shortest=8, longest=10)
    """
    text, _, options = source.removeprefix("chain").removeprefix(":").partition("?")
    spec = ChainSpec()
    for option in filter(None, options.split("&")):
        modulus = _MODULUS.fullmatch(option)
        if modulus is None:
            raise InputError(f"{source}: '{option}' is not an option of chain; there is modulus=PRIME.")
        spec = replace(spec, modulus=int(modulus[1]))
    level = text or "all"
    if level in LEVELS:
        shortest, longest = LEVELS[level]
    else:
        steps = _STEPS.fullmatch(level)
        if steps is None:
            raise InputError(f"{source}: '{level}' is not one of {', '.join(LEVELS)} nor a range of steps such as 3-5.")
        shortest, longest = int(steps[1]), int(steps[2] or steps[1])
    return replace(spec, shortest=shortest, longest=longest)


def vocabulary(modulus: int) -> list[str]:
    """The words of the language, in the order of their ids."""
    return [*SPECIAL, *OPERATIONS, *(str(i) for i in range(modulus))]


def apply(operation: Ints, left: Ints, right: Ints, modulus: int) -> Ints:
    """Apply operations elementwise."""
    return np.asarray(np.choose(operation, [left + right, left - right, left * right]) % modulus)


def make_chains(spec: ChainSpec, size: int, *, seed: int) -> Chains:
    """Random chains with uniform lengths in the spec's range; short chains may repeat."""
    rng = np.random.default_rng([seed, spec.modulus, spec.shortest, spec.longest])
    steps_P = rng.integers(spec.shortest, spec.longest + 1, size)
    operands_PS = rng.integers(0, spec.modulus, (size, spec.longest + 1))
    operations_PS = rng.integers(0, len(OPERATIONS), (size, spec.longest))
    results_PS = np.empty_like(operations_PS)
    value_P = operands_PS[:, 0]
    for s in range(spec.longest):
        value_P = apply(operations_PS[:, s], value_P, operands_PS[:, s + 1], spec.modulus)
        results_PS[:, s] = value_P
    past_PS = np.arange(spec.longest) >= steps_P[:, None]
    operations_PS[past_PS] = results_PS[past_PS] = -1
    operands_PS[:, 1:][past_PS] = -1
    return Chains(spec, operands_PS, operations_PS, results_PS, steps_P)


def distinct_chains(spec: ChainSpec, size: int, *, seed: int, without: Sequence[Chains] = ()) -> Chains:
    """`size` distinct chains, none of them in `without`."""
    draws = 4 * size + 64
    if draws * spec.longest > _MOST_NUMBERS:
        raise InputError(f"chain: {size:,} problems of up to {spec.longest} steps are too many to draw; ask for fewer.")
    taken = {chains.question(i) for chains in without for i in range(len(chains))}
    drawn = make_chains(spec, draws, seed=seed)
    rows: list[int] = []
    for row in range(len(drawn)):
        question = drawn.question(row)
        if question not in taken:
            taken.add(question)
            rows.append(row)
        if len(rows) == size:
            return drawn.take(np.array(rows))
    raise InputError(
        f"chain: there are not {size} different problems of {spec.shortest} to {spec.longest} steps modulo "
        f"{spec.modulus}; ask for fewer or for longer ones."
    )


def load_chain(source: str, *, size: int | None = None, seed: int = 0) -> ProblemSet:
    """A chain set as text problems; the engine uses the arrays instead."""
    chains = distinct_chains(parse_chain(source), size or DEFAULT_SIZE, seed=seed)
    answers_P = chains.answers_P
    problems = tuple(
        Problem(id=f"chain-{i}", question=chains.question(i), answer=str(answers_P[i]), source=source)
        for i in range(len(chains))
    )
    return ProblemSet(name=source, problems=problems, verifier=_last_numbers)


def _last_numbers(problem: Problem, responses: Sequence[str]) -> list[float]:
    words = [response.replace("<eos>", "").split() for response in responses]
    return [float(bool(row) and row[-1] == problem.answer) for row in words]
