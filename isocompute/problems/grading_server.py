"""A grading process: answers requests to grade responses and to generate problems, until its pipe is closed.

The kernel kills the process when one response has used up its processor time.
"""

from __future__ import annotations

import inspect
import json
import logging
import math
import random
import resource
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from isocompute.problems.answers import another_amount, marked_answer, plain, same_answer, stated_answer

_MEMORY = 8 * 2**30
"""Limit of the libraries; user code has none."""
_TAIL = 4000
"""math-verify searches this many last characters of a response without a marked answer."""


def serve(handle: int) -> None:
    """Answer JSON requests on a pipe until its other end is closed."""
    logging.disable(logging.CRITICAL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that asks
    sys.setrecursionlimit(5000)
    given, most = resource.getrlimit(resource.RLIMIT_AS)
    limit = _MEMORY if most == resource.RLIM_INFINITY else min(_MEMORY, most)
    pipe = Connection(handle)
    while True:
        try:
            request = json.loads(pipe.recv_bytes())
        except EOFError:
            return
        try:
            resource.setrlimit(resource.RLIMIT_AS, (given if _is_file(request["library"]) else limit, most))
            reply = {"value": _REQUESTS[request["do"]](**request["arguments"])}
        except Exception as error:
            reply = {"error": f"{type(error).__name__}{_line_of(error, request['library'])}: {error}"}
        pipe.send_bytes(json.dumps(reply).encode())


def _is_file(library: str) -> bool:
    return library.endswith(".py")


def _load(*, name: str) -> None:
    """Import a library and its lazy imports, so that they do not count in the time of the first response."""
    if _is_file(name):
        _user_module(name)
        return
    import_module(name)
    if name == "math_verify":
        _score_math("x^2+2x+1", r"\boxed{(x+1)^2}")


def _score_each(score: Callable[[str], float], responses: Sequence[str], seconds: float) -> list[float]:
    """The score of each response; 0 where it raises. The kernel kills the process at one that takes too long."""
    scores = []
    for response in responses:
        signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            scores.append(float(score(response)))
        except Exception:
            scores.append(0.0)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
    return scores


# math-verify


def _grade_math(*, answer: str, responses: Sequence[str], seconds: float) -> list[float]:
    return _score_each(lambda response: _score_math(answer, response), responses, seconds)


def _score_math(answer: str, response: str) -> float:
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


# reasoning-gym


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


def _grade_gym(*, spec: str, index: int, responses: Sequence[str], seconds: float) -> list[float]:
    return _score_each(lambda response: _score_gym(spec, index, response), responses, seconds)


def _score_gym(spec: str, index: int, response: str) -> float:
    """The task's score of the response's final answer, or of the whole response if it states none.

    The higher score of the answer with and without markup counts, since tasks differ in how they treat a full stop.
    """
    stated = stated_answer(response)
    answer = response.strip() if stated is None else stated
    dataset, entry = _dataset(spec), _entry(spec, index)
    return max(float(dataset.score_answer(text, entry)) for text in {answer, plain(answer)})


# Reward functions in a user's file


@lru_cache(maxsize=8)
def _user_module(path: str) -> Any:
    """Import a file by its path; it may import its neighbours, as a script may."""
    folder, name = str(Path(path).parent), Path(path).stem
    if folder not in sys.path:
        sys.path.insert(0, folder)
    spec = spec_from_file_location(name if name not in sys.modules else f"_{name}", path)
    assert spec is not None, path
    assert spec.loader is not None, path
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # where pickle and dataclasses look it up
    spec.loader.exec_module(module)
    return module


def _check_reward(*, path: str, function: str, columns: Sequence[str]) -> str | None:
    """What is wrong with a reward function; None if it can be called with these columns."""
    module = _user_module(path)
    score = getattr(module, function, None)
    if score is None:
        defined = [name for name, value in vars(module).items() if inspect.isfunction(value)]
        return f"the file has no function '{function}'; it has {', '.join(defined) or 'none'}"
    if not callable(score):
        return f"'{function}' is not a function, but {type(score).__name__}"
    try:
        inspect.signature(score).bind(**_accepted(score, dict.fromkeys(columns)))
    except TypeError as error:
        return f"'{function}' cannot be called ({error}); its arguments may be {', '.join(columns)}"
    return None


def _reward(
    *, path: str, function: str, prompt: str, answer: str, columns: Mapping[str, Any], responses: Sequence[str]
) -> dict[str, Any]:
    """The rewards of a group; or why there are none, in which detail, and which response is to blame if known."""
    score, n = getattr(_user_module(path), function), len(responses)
    given = {name: [value] * n for name, value in columns.items()}
    given |= {"prompts": [prompt] * n, "responses": list(responses), "answers": [answer] * n}
    try:
        found = score(**_accepted(score, given))
        values = list(found) if isinstance(found, Iterable) else None
    except (Exception, SystemExit) as error:
        return {"failure": f"raises {type(error).__name__}{_line_of(error, path)}", "detail": str(error)}
    if values is None:
        return {"failure": f"returns {type(found).__name__}, not a list of numbers"}
    if len(values) != n:
        return {"failure": "returns a list of another length than the responses", "detail": f"{len(values)} for {n}"}
    rewards = [_finite(value) for value in values]
    if None in rewards:
        at = rewards.index(None)
        return {"failure": "returns a reward that is not a finite number", "detail": repr(values[at]), "at": at}
    return {"rewards": rewards}


def _accepted(score: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that a function accepts."""
    parameters = inspect.signature(score).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return dict(given)
    return {name: value for name, value in given.items() if name in parameters}


def _finite(value: Any) -> float | None:
    """The value as a finite number; None if it is none. Numbers of NumPy and PyTorch are numbers, text is not."""
    try:
        number = math.nan if isinstance(value, str | bytes) else float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _line_of(error: BaseException, path: str) -> str:
    """` in line 12`, where a user's file raised or called what raised."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    return f" in line {lines[-1]}" if lines else ""


_REQUESTS: dict[str, Callable[..., Any]] = {
    "load": _load,
    "grade_math": _grade_math,
    "grade_gym": _grade_gym,
    "gym_problems": _gym_problems,
    "gym_fields": _gym_fields,
    "gym_tasks": _gym_tasks,
    "check_reward": _check_reward,
    "reward": _reward,
}
