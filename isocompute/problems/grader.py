"""Verifiers that run in a process of their own: `math` (math-verify) and `gym` (reasoning-gym's scorers).

They work in any thread and any worker process, use no signals, and never raise on a response: what cannot be graded in
`TIMEOUT_SECONDS` has a reward of 0. Each thread that grades has its own grading process, so that a pool of threads
grades in parallel; a forked process starts its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import weakref
from dataclasses import dataclass
from importlib.util import find_spec
from multiprocessing import Pipe
from typing import Any
from urllib.parse import urlencode

from isocompute.core.errors import InputError
from isocompute.problems.answers import LONGEST_RESPONSE
from isocompute.problems.model import Problem

__all__ = ["TIMEOUT_SECONDS", "GradingError", "GymVerifier", "MathVerifier", "ask", "needs"]

TIMEOUT_SECONDS = 5.0
"""Of processor time for one response, so that rewards do not depend on how busy a machine is."""
_PATIENCE = 20
"""Waits for an answer end after this many times that, should the grading process sleep for ever."""


class GradingError(Exception):
    """The grader refused a request."""


class _LostError(GradingError):
    """The grading process hangs or has ended."""


def needs(module: str, *, what: str) -> None:
    """Say how to install a library that is not there."""
    if find_spec(module) is None:
        raise InputError(f"{what} needs {module.replace('_', '-')}: pip install 'isocompute[problems]'.")


class _Process:
    """A grading process and our end of the pipe to it; ended when nobody holds it."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self.ready: set[str] = set()
        self.pipe, theirs = Pipe()
        environment = os.environ | {"PYTHONHASHSEED": "0", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "isocompute.problems.grading", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        theirs.close()
        self.end = weakref.finalize(self, _end, self.process, self.owner)

    def ask(self, request: dict[str, Any], seconds: float | None) -> Any:
        try:
            self.pipe.send_bytes(json.dumps(request | {"seconds": seconds}).encode())
            if not self.pipe.poll(None if seconds is None else _PATIENCE * seconds):
                raise _LostError("the grading process does not answer")
            reply = json.loads(self.pipe.recv_bytes())
        except (OSError, EOFError) as error:
            raise _LostError("the grading process ended") from error
        if "error" in reply:
            raise GradingError(reply["error"])
        return reply["value"]


def _end(process: subprocess.Popen[bytes], owner: int) -> None:
    if os.getpid() == owner:
        process.kill()
        process.wait()


_here = threading.local()
_LIBRARIES = {
    "grade_math": "math_verify",
    "grade_gym": "reasoning_gym",
    "gym_fields": "reasoning_gym",
    "gym_problems": "reasoning_gym",
    "gym_tasks": "reasoning_gym",
}


def ask(do: str, *, seconds: float | None = None, **request: Any) -> Any:
    """Send a request to this thread's grading process. One that fails to answer is ended; the next call starts anew."""
    process: _Process | None = getattr(_here, "process", None)
    if process is None or process.owner != os.getpid():
        process = _here.process = _Process()
    try:
        if do not in process.ready:
            process.ask({"do": "load", "library": _LIBRARIES[do]}, None)  # loading a library is not grading
            process.ready.add(do)
        return process.ask({"do": do, **request}, seconds)
    except _LostError:
        process.end()
        _here.process = None
        raise


@dataclass(frozen=True)
class MathVerifier:
    """1 where math-verify finds the response's answer equal to the problem's, as numbers, sets or expressions."""

    name: str = "math"

    def __call__(self, problem: Problem, response: str) -> float:
        """The reward of a response."""
        return _reward("grade_math", answer=problem.answer, response=response[-LONGEST_RESPONSE:])


@dataclass(frozen=True)
class GymVerifier:
    """The score of a reasoning-gym task, between 0 and 1. A problem's id ends on its index: `chain_sum-17`."""

    task: str
    params: tuple[tuple[str, Any], ...]
    seed: int
    size: int

    @property
    def name(self) -> str:
        """The source that names the same problems: `gym:chain_sum?max_terms=4&seed=0&size=500`."""
        params = {key: json.dumps(value) for key, value in self.params} | {"seed": self.seed, "size": self.size}
        return f"gym:{self.task}?{urlencode(params)}"

    @property
    def spec(self) -> str:
        """What the grading process builds the task from."""
        return json.dumps({"task": self.task, "params": dict(self.params), "seed": self.seed, "size": self.size})

    def __call__(self, problem: Problem, response: str) -> float:
        """The reward of a response."""
        index = int(problem.id.rsplit("-", 1)[1])
        return _reward("grade_gym", spec=self.spec, index=index, response=response[-LONGEST_RESPONSE:])


def _reward(do: str, **request: Any) -> float:
    try:
        return float(ask(do, seconds=TIMEOUT_SECONDS, **request))
    except GradingError:
        return 0.0
