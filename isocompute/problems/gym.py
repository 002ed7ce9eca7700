"""Any reasoning-gym task as a problem set: `gym:chain_sum`, `gym:chain_sum?min_terms=2&max_terms=4`."""

from __future__ import annotations

import difflib
import json
from typing import Any
from urllib.parse import parse_qsl

from isocompute.core.errors import InputError
from isocompute.problems.grader import GradingError, GymVerifier, ask, needs
from isocompute.problems.model import Problem, ProblemSet, without_duplicates

__all__ = ["load_gym", "parse_gym"]

DEFAULT_SIZE = 1000


def parse_gym(source: str, *, size: int | None = None, seed: int = 0) -> GymVerifier:
    """Task and settings. Values are JSON (`true`, `3`, `["+","-"]`); anything else is text.

    >>> parse_gym("gym:chain_sum?max_terms=4", size=10)
    GymVerifier(task='chain_sum', params=(('max_terms', 4),), seed=0, size=10)
    """
    task, _, query = source.removeprefix("gym:").partition("?")
    try:
        params = {key: _value(text) for key, text in parse_qsl(query, strict_parsing=True)} if query else {}
    except ValueError as error:
        raise InputError(f"{source}: settings are written NAME=VALUE&NAME=VALUE ({error}).") from error
    own = {name: params.pop(name, given) for name, given in (("seed", seed), ("size", size or DEFAULT_SIZE))}
    for name, value in own.items():
        if not isinstance(value, int) or value < (name == "size"):
            raise InputError(f"{source}: {name} = {value!r} is not a whole number of at least {int(name == 'size')}.")
    if size is not None:
        own["size"] = size
    return GymVerifier(task=task, params=tuple(params.items()), **own)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def load_gym(source: str, *, size: int | None = None, seed: int = 0) -> ProblemSet:
    """Generate a set; the same source, size and seed give the same problems in every process."""
    needs("reasoning_gym", what=source)
    verify = parse_gym(source, size=size, seed=seed)
    fields = ask("gym_fields", task=verify.task)
    if fields is None:
        tasks = ask("gym_tasks")
        close = difflib.get_close_matches(verify.task, tasks, n=5, cutoff=0.5) or tasks[:8]
        raise InputError(f"{source}: reasoning-gym has no task '{verify.task}'; there are {', '.join(close)}, …")
    unknown = [name for name, _ in verify.params if name not in fields]
    if unknown:
        raise InputError(f"{source}: '{unknown[0]}' is no setting of {verify.task}; there are {', '.join(fields)}.")
    try:
        made = ask("gym_problems", spec=verify.spec)
    except GradingError as error:
        raise InputError(f"{source}: reasoning-gym refuses these settings ({error}).") from error
    problems = (
        Problem(id=f"{verify.task}-{i}", question=row["question"], answer=row["answer"], source=verify.task)
        for i, row in enumerate(made)
    )
    unique, duplicates = without_duplicates(problems, name=source)
    return ProblemSet(name=source, problems=unique, verify=verify, duplicates=duplicates)
