"""Verifiers that run math-verify and reasoning-gym in a separate grading process.

Both libraries pass model output to a computer algebra system. It can hang on a text as short as `9^{9^9}`, inside a
multiplication that no exception interrupts, so only killing a process helps. The kernel kills it when a request has
used up its processor time. A verifier works in any thread and process, uses no signals and never raises on a response:
a response that cannot be graded in `TIMEOUT_SECONDS` gets a reward of 0. Each thread has its own grading process, so
that a pool of threads grades in parallel.
"""

from __future__ import annotations

import difflib
import json
import logging
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any
from urllib.parse import parse_qsl, urlencode

from isocompute.core.errors import InputError
from isocompute.problems.answers import (
    LONGEST_RESPONSE,
    another_amount,
    marked_answer,
    plain,
    same_answer,
    stated_answer,
)
from isocompute.problems.problem_set import Problem, ProblemSet, without_duplicates

TIMEOUT_SECONDS = 5.0
"""Limit of processor time for one response; wall time would make rewards depend on the load of the machine."""
_WALL_FACTOR = 20
"""A grading process that does not answer is killed after this many timeouts of wall time."""
_MEMORY = 8 * 2**30
_TAIL = 4000
"""math-verify searches this many last characters of a response without a marked answer."""
_DEFAULT_SIZE = 1000
_START = "import sys; from isocompute.problems.graders import serve; serve(int(sys.argv[1]))"


class _GradingError(Exception):
    """The grader refused a request."""


class _LostError(_GradingError):
    """The grading process hangs or has ended."""


def require(module: str, *, what: str) -> None:
    """Raise `InputError` with the installation command if a library is missing."""
    if find_spec(module) is None:
        raise InputError(f"{what} needs {module.replace('_', '-')}: pip install 'isocompute[problems]'.")


# Verifiers


@dataclass(frozen=True)
class MathVerifier:
    """Gives 1 if math-verify finds the response's answer equal to the problem's, as numbers, sets or expressions."""

    name: str = "math"

    def __call__(self, problem: Problem, response: str) -> float:
        """The reward of a response."""
        return _reward("grade_math", answer=problem.answer, response=response[-LONGEST_RESPONSE:])


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

    def __call__(self, problem: Problem, response: str) -> float:
        """The reward of a response."""
        index = int(problem.id.rsplit("-", 1)[1])
        return _reward("grade_gym", spec=self.spec, index=index, response=response[-LONGEST_RESPONSE:])


def _reward(do: str, **request: Any) -> float:
    try:
        return float(_request(do, seconds=TIMEOUT_SECONDS, **request))
    except _GradingError:
        return 0.0


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
    verify = parse_gym(source, size=size, seed=seed)
    fields = _request("gym_fields", task=verify.task)
    if fields is None:
        tasks = _request("gym_tasks")
        close = difflib.get_close_matches(verify.task, tasks, n=5, cutoff=0.5) or tasks[:8]
        raise InputError(f"{source}: reasoning-gym has no task '{verify.task}'; there are {', '.join(close)}, …")
    unknown = [name for name, _ in verify.params if name not in fields]
    if unknown:
        raise InputError(f"{source}: '{unknown[0]}' is no setting of {verify.task}; there are {', '.join(fields)}.")
    try:
        rows = _request("gym_problems", spec=verify.spec)
    except _GradingError as error:
        raise InputError(f"{source}: reasoning-gym refuses these settings ({error}).") from error
    problems = (
        Problem(id=f"{verify.task}-{i}", question=row["question"], answer=row["answer"], source=verify.task)
        for i, row in enumerate(rows)
    )
    unique, duplicates = without_duplicates(problems, name=source)
    return ProblemSet(name=source, problems=unique, verify=verify, duplicates=duplicates)


# The caller's side of the pipe


class _GradingProcess:
    """A grading process and our end of the pipe to it; it is killed when this object is collected.

    It has a fixed hash seed, since some reasoning-gym tasks iterate over sets of strings. Otherwise they would generate
    other problems in each process.
    """

    def __init__(self) -> None:
        self.owner = os.getpid()
        self.loaded: set[str] = set()
        self.pipe, theirs = Pipe()
        environment = os.environ | {"PYTHONHASHSEED": "0", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", _START, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        theirs.close()
        self.end = weakref.finalize(self, _kill, self.process, self.owner)

    def ask(self, request: dict[str, Any], seconds: float | None) -> Any:
        try:
            self.pipe.send_bytes(json.dumps(request | {"seconds": seconds}).encode())
            if not self.pipe.poll(None if seconds is None else _WALL_FACTOR * seconds):
                raise _LostError("the grading process does not answer")
            reply = json.loads(self.pipe.recv_bytes())
        except (OSError, EOFError) as error:
            raise _LostError("the grading process ended") from error
        if "error" in reply:
            raise _GradingError(reply["error"])
        return reply["value"]


def _kill(process: subprocess.Popen[bytes], owner: int) -> None:
    if os.getpid() == owner:
        process.kill()
        process.wait()


_thread = threading.local()


def _request(do: str, *, seconds: float | None = None, **request: Any) -> Any:
    """Ask this thread's grading process; if it does not answer, it is killed and the next request starts another."""
    process: _GradingProcess | None = getattr(_thread, "process", None)
    if process is None or process.owner != os.getpid():
        process = _thread.process = _GradingProcess()
    library = "math_verify" if do == "grade_math" else "reasoning_gym"
    try:
        if library not in process.loaded:
            process.ask({"do": "load", "library": library}, None)  # loading a library is not grading
            process.loaded.add(library)
        return process.ask({"do": do, **request}, seconds)
    except _LostError:
        process.end()
        _thread.process = None
        raise


# The grading process's side of the pipe


def serve(handle: int) -> None:
    """Answer JSON requests on a pipe until its other end is closed."""
    logging.disable(logging.CRITICAL)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))
    sys.setrecursionlimit(5000)
    pipe = Connection(handle)
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


def _load(*, library: str) -> None:
    """Import a library and its lazy imports, so that they do not count in the time of the first response."""
    import_module(library)
    if library == "math_verify":
        _grade_math(answer="x^2+2x+1", response=r"\boxed{(x+1)^2}")


def _grade_math(*, answer: str, response: str) -> float:
    import math_verify

    found = marked_answer(response)
    if found is not None and same_answer(found, answer):
        return 1.0
    if another_amount(stated_answer(response) or "", answer):  # math-verify drops the words of `12 \text{ thousand}`
        return 0.0
    gold = _parsed(answer if "$" in answer or "\\boxed" in answer else f"${answer}$")
    text = f"\\boxed{{{found}}}" if found is not None else response[-_TAIL:]
    given = math_verify.parse(text, parsing_timeout=None)
    return float(bool(gold) and bool(given) and math_verify.verify(gold, given, timeout_seconds=None))


@lru_cache(maxsize=1024)
def _parsed(text: str) -> Any:
    import math_verify

    return math_verify.parse(text, parsing_timeout=None)


@lru_cache(maxsize=8)
def _dataset(spec: str) -> Any:
    import reasoning_gym

    given = json.loads(spec)
    return reasoning_gym.create_dataset(given["task"], seed=given["seed"], size=given["size"], **given["params"])


@lru_cache(maxsize=4096)
def _entry(spec: str, index: int) -> Any:
    """One problem; seeds the global generators too, since some tasks use them."""
    import numpy as np

    dataset = _dataset(spec)
    random.seed(index)
    np.random.seed(index % 2**32)
    return dataset[index]


def _gym_problems(*, spec: str) -> list[dict[str, str]]:
    """Questions and answers of a set; a task with many right answers may give none."""
    entries = [_entry(spec, index) for index in range(json.loads(spec)["size"])]
    return [
        {"question": str(e["question"]), "answer": "" if e["answer"] is None else str(e["answer"])} for e in entries
    ]


def _gym_fields(*, task: str) -> list[str] | None:
    """The settings of a task; None if there is no such task."""
    from dataclasses import fields

    from reasoning_gym.factory import DATASETS

    return [field.name for field in fields(DATASETS[task][1])] if task in DATASETS else None


def _gym_tasks() -> list[str]:
    from reasoning_gym.factory import DATASETS

    return sorted(DATASETS)


def _grade_gym(*, spec: str, index: int, response: str) -> float:
    """The task's score of the response's final answer, or of the whole response if it states none.

    The higher score of the answer with and without markup counts, since tasks differ in how they treat a full stop.
    """
    stated = stated_answer(response)
    answer = response.strip() if stated is None else stated
    dataset, entry = _dataset(spec), _entry(spec, index)
    return max(float(dataset.score_answer(text, entry)) for text in {answer, plain(answer)})


_REQUESTS: dict[str, Callable[..., Any]] = {
    "load": _load,
    "grade_math": _grade_math,
    "grade_gym": _grade_gym,
    "gym_problems": _gym_problems,
    "gym_fields": _gym_fields,
    "gym_tasks": _gym_tasks,
}
