"""Verifiers that run math-verify and reasoning-gym in a grading process, and reasoning-gym tasks as problem sets.

A verifier works in any thread and process and never raises on a response: a response that cannot be graded in
`TIMEOUT_SECONDS` gets a reward of 0.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any
from urllib.parse import parse_qsl, urlencode

from isocompute.core.errors import InputError
from isocompute.problems.answers import LONGEST_RESPONSE
from isocompute.problems.grading_client import GradingError, LostError, request
from isocompute.problems.problem_set import Problem, ProblemSet, each_once, without_duplicates

TIMEOUT_SECONDS = 5.0
"""Limit of processor time for one response; wall time would make rewards depend on the load of the machine."""
_WALL_FACTOR = 20
"""A grading process that does not answer is killed after this many timeouts of wall time."""
_DEFAULT_SIZE = 1000
_MATH, _GYM = "math_verify", "reasoning_gym"


def require(module: str, *, what: str) -> None:
    """Raise `InputError` with the installation command if a library is missing."""
    if find_spec(module) is None:
        raise InputError(f"{what} needs {module.replace('_', '-')}: pip install 'isocompute[problems]'.")


# Verifiers


@dataclass(frozen=True)
class MathVerifier:
    """Gives 1 if math-verify finds the response's answer equal to the problem's, as numbers, sets or expressions."""

    name: str = "math"

    def __call__(self, problem: Problem, responses: Sequence[str]) -> list[float]:
        """The reward of each response."""
        return _grade("grade_math", _MATH, responses, answer=problem.answer)


@dataclass(frozen=True)
class GymVerifier:
    """The score of a reasoning-gym task, between 0 and 1. A problem's id ends with its index: `chain_sum-17`."""

    task: str
    params: tuple[tuple[str, Any], ...]
    seed: int
    size: int

    @property
    def name(self) -> str:
        """The source string of the same problems: `gym:chain_sum?max_terms=4&seed=0&size=500`."""
        params = {key: json.dumps(value) for key, value in self.params} | {"seed": self.seed, "size": self.size}
        return f"gym:{self.task}?{urlencode(params)}"

    @property
    def spec(self) -> str:
        """The JSON from which the grading process builds the task."""
        return json.dumps({"task": self.task, "params": dict(self.params), "seed": self.seed, "size": self.size})

    def __call__(self, problem: Problem, responses: Sequence[str]) -> list[float]:
        """The reward of each response."""
        index = int(problem.id.rsplit("-", 1)[1])
        return _grade("grade_gym", _GYM, responses, spec=self.spec, index=index)


def _grade(do: str, library: str, responses: Sequence[str], **arguments: Any) -> list[float]:
    """Rewards of responses, graded in one request; if the process is lost over it, in a request for each."""

    def grade(texts: Sequence[str]) -> list[float]:
        wall, limit = _WALL_FACTOR * TIMEOUT_SECONDS, TIMEOUT_SECONDS
        try:
            found = request(do, library=library, wall_seconds=wall, responses=texts, seconds=limit, **arguments)
        except LostError:
            return [0.0] if len(texts) == 1 else [reward for text in texts for reward in grade([text])]
        return [float(reward) for reward in found]

    return each_once([response[-LONGEST_RESPONSE:] for response in responses], grade)


# reasoning-gym tasks as problem sets: `gym:chain_sum`, `gym:chain_sum?min_terms=2&max_terms=4`


def parse_gym(source: str, *, size: int | None = None, seed: int = 0) -> GymVerifier:
    """Parse a source into a task and its settings; values are JSON (`true`, `3`, `["+","-"]`) or else text.

    >>> parse_gym("gym:chain_sum?max_terms=4", size=10)
    GymVerifier(task='chain_sum', params=(('max_terms', 4),), seed=0, size=10)
    """
    task, _, query = source.removeprefix("gym:").partition("?")
    try:
        params = {key: _json_or_text(text) for key, text in parse_qsl(query, strict_parsing=True)} if query else {}
    except ValueError as error:
        raise InputError(f"{source}: settings are written NAME=VALUE&NAME=VALUE ({error}).") from error
    own = {name: params.pop(name, given) for name, given in (("seed", seed), ("size", size or _DEFAULT_SIZE))}
    for name, value in own.items():
        if not isinstance(value, int) or value < (name == "size"):
            raise InputError(f"{source}: {name} = {value!r} is not a whole number of at least {int(name == 'size')}.")
    if size is not None:
        own["size"] = size
    return GymVerifier(task=task, params=tuple(params.items()), **own)


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def load_gym(source: str, *, size: int | None = None, seed: int = 0) -> ProblemSet:
    """Generate a set; the same source, size and seed give the same problems in every process."""
    require("reasoning_gym", what=source)
    verifier = parse_gym(source, size=size, seed=seed)
    fields = request("gym_fields", library=_GYM, task=verifier.task)
    if fields is None:
        tasks = request("gym_tasks", library=_GYM)
        close = difflib.get_close_matches(verifier.task, tasks, n=5, cutoff=0.5) or tasks[:8]
        raise InputError(f"{source}: reasoning-gym has no task '{verifier.task}'; there are {', '.join(close)}, …")
    unknown = [name for name, _ in verifier.params if name not in fields]
    if unknown:
        raise InputError(f"{source}: '{unknown[0]}' is no setting of {verifier.task}; there are {', '.join(fields)}.")
    try:
        rows = request("gym_problems", library=_GYM, spec=verifier.spec)
    except GradingError as error:
        raise InputError(f"{source}: reasoning-gym refuses these settings ({error}).") from error
    problems = (
        Problem(id=f"{verifier.task}-{i}", question=row["question"], answer=row["answer"], source=verifier.task)
        for i, row in enumerate(rows)
    )
    unique, duplicates = without_duplicates(problems, name=source)
    return ProblemSet(name=source, problems=unique, verifier=verifier, duplicates=duplicates)
