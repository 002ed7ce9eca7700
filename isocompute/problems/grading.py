"""The process that runs other people's graders: math-verify, and reasoning-gym's generators and scorers.

    python -m isocompute.problems.grading FD

Started by `grader.py` with one end of a pipe; a JSON request in, a JSON reply out. It is a process of its own since
both libraries hand model output to a computer algebra system, which can hang on a text as short as `9^{9^9}` inside one
long multiplication that no exception interrupts: only a process can be ended. The kernel ends it when a request has
used up its processor time. It runs with a fixed hash seed because several reasoning-gym tasks iterate over sets of
strings and would otherwise generate other problems in every process.
"""

from __future__ import annotations

import json
import logging
import os
import random
import resource
import signal
import sys
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any

from isocompute.problems.answers import another_amount, marked_answer, plain, same_answer, stated_answer

__all__ = ["serve"]

_MEMORY = 8 * 2**30
_TAIL = 4000
"""Characters of a response that has no marked answer in which math-verify looks for one: answers come last."""


def grade_math(*, answer: str, response: str) -> float:
    """Whether math-verify finds the response's answer equal to the problem's."""
    import math_verify

    found = marked_answer(response)
    if found is not None and same_answer(found, answer):
        return 1.0
    if another_amount(stated_answer(response) or "", answer):  # math-verify drops the words of `12 \text{ thousand}`
        return 0.0
    gold = _parsed(answer if "$" in answer or "\\boxed" in answer else f"${answer}$")
    said = math_verify.parse(f"\\boxed{{{found}}}" if found is not None else response[-_TAIL:], parsing_timeout=None)
    return float(bool(gold) and bool(said) and math_verify.verify(gold, said, timeout_seconds=None))


@lru_cache(maxsize=1024)
def _parsed(text: str) -> Any:
    import math_verify

    return math_verify.parse(text, parsing_timeout=None)


@lru_cache(maxsize=8)
def _dataset(spec: str) -> Any:
    import reasoning_gym

    asked = json.loads(spec)
    return reasoning_gym.create_dataset(asked["task"], seed=asked["seed"], size=asked["size"], **asked["params"])


@lru_cache(maxsize=4096)
def _entry(spec: str, index: int) -> Any:
    """One problem; the global generators are seeded too, for tasks that draw from these."""
    import numpy as np

    dataset = _dataset(spec)
    random.seed(index)
    np.random.seed(index % 2**32)
    return dataset[index]


def gym_problems(*, spec: str) -> list[dict[str, str]]:
    """Questions and answers of a reasoning-gym set; a task with many right answers may name none."""
    entries = [_entry(spec, index) for index in range(json.loads(spec)["size"])]
    return [
        {"question": str(e["question"]), "answer": "" if e["answer"] is None else str(e["answer"])} for e in entries
    ]


def gym_fields(*, task: str) -> list[str] | None:
    """The settings of a task; None where there is no such task."""
    from dataclasses import fields

    from reasoning_gym.factory import DATASETS

    if task not in DATASETS:
        return None
    return [field.name for field in fields(DATASETS[task][1])]


def gym_tasks() -> list[str]:
    """All tasks."""
    from reasoning_gym.factory import DATASETS

    return sorted(DATASETS)


def grade_gym(*, spec: str, index: int, response: str) -> float:
    """The task's own score of the response's final answer, or of the whole response where it names none.

    The better of the answer as it stands and without markup: tasks differ in whether a full stop belongs to it.
    """
    stated = stated_answer(response)
    answer = response.strip() if stated is None else stated
    dataset, entry = _dataset(spec), _entry(spec, index)
    return max(float(dataset.score_answer(text, entry)) for text in {answer, plain(answer)})


def load(*, library: str) -> None:
    """Import a library and what it imports on first use, so that the first response is graded like the others."""
    import_module(library)
    if library == "math_verify":
        grade_math(answer="x^2+2x+1", response=r"\boxed{(x+1)^2}")


_REQUESTS: dict[str, Callable[..., Any]] = {
    "grade_math": grade_math,
    "grade_gym": grade_gym,
    "gym_problems": gym_problems,
    "gym_fields": gym_fields,
    "gym_tasks": gym_tasks,
    "load": load,
}


def serve(pipe: Connection) -> None:
    """Answer requests until the other end is closed."""
    while True:
        try:
            request = json.loads(pipe.recv_bytes())
        except EOFError:
            return
        try:
            signal.setitimer(signal.ITIMER_PROF, request.pop("seconds") or 0)
            reply = {"value": _REQUESTS[request.pop("do")](**request)}
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {error}"}
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        pipe.send_bytes(json.dumps(reply).encode())


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))
    os.dup2(2, 1)  # what the libraries print belongs to nobody's output
    sys.setrecursionlimit(5000)
    serve(Connection(int(sys.argv[1])))
