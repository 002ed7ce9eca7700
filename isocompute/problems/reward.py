"""Reward functions in a user's file: `my_rewards.py:score` instead of a verifier.

    def score(prompts, responses, answers, **columns):
        return [float(answer in response) for response, answer in zip(responses, answers)]

The function is called in a grading process, with all responses to a problem at once: lists of equal length of the
prompt, the responses, the answer and every other column of the problem's row. It may leave out arguments that it has
no use for. It returns a finite number for each response; above .5 counts as correct.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from isocompute.core.errors import InputError
from isocompute.problems.grading_client import GradingError, GradingProcess, LostError, TimedOutError, request
from isocompute.problems.problem_set import Problem

REWARD_SECONDS = 60.0
"""Default limit of wall time for a group of responses."""
_ARGUMENTS = ("prompts", "responses", "answers")
_SHOWN = 200
"""Characters of a response in a message."""


class RewardError(InputError):
    """A reward function gave no rewards for a group. `reason` is the part of the message that groups share."""

    def __init__(self, message: str, *, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True)
class RewardFunction:
    """A verifier that calls a user's function; raises `RewardError` where the function fails."""

    path: str
    """Absolute path of the file."""
    function: str
    seconds: float = REWARD_SECONDS
    """Limit of wall time for a group."""

    @property
    def name(self) -> str:
        """`my_rewards.py:score`."""
        return f"{Path(self.path).name}:{self.function}"

    def __call__(self, problem: Problem, responses: Sequence[str]) -> list[float]:
        """The rewards of a group; equal responses are not merged, since a function may compare them."""
        try:
            reply = self._ask(problem, responses, self.seconds)
        except TimedOutError as error:
            reply = {"failure": str(error), "detail": "make it faster or raise reward_seconds"}
        except LostError as error:
            reply = {"failure": str(error)}
        except GradingError as error:
            reply = {"failure": "cannot be called", "detail": str(error)}
        if "failure" not in reply:
            return [float(reward) for reward in reply["rewards"]]
        reason, detail = f"{self.name} {reply['failure']}", reply.get("detail")
        blamed = responses[reply["at"]] if "at" in reply else self._first_to_fail(problem, responses)
        shown = repr(blamed if len(blamed) <= _SHOWN else f"{blamed[:_SHOWN]}…")
        message = f"{reason}{f' ({detail})' if detail else ''}; problem {problem.id}, response {shown}"
        raise RewardError(" ".join(message.split()), reason=reason)

    def _ask(self, problem: Problem, responses: Sequence[str], seconds: float) -> dict[str, Any]:
        asked = {"prompt": problem.question, "answer": problem.answer, "columns": dict(problem.extra)}
        given = {"path": self.path, "function": self.function, "responses": list(responses), **asked}
        reply: dict[str, Any] = request("reward", library=self.path, wall_seconds=seconds, **given)
        return reply

    def _first_to_fail(self, problem: Problem, responses: Sequence[str]) -> str:
        """The first response that also fails alone, searched for no longer than a group may take; else the first."""
        tried = responses[0]
        try:
            request("load", library=self.path, name=self.path)  # a new process imports the file in its own time
            until = time.monotonic() + self.seconds
            for tried in responses:
                left = until - time.monotonic()
                if left <= 0:
                    break
                if "failure" in self._ask(problem, [tried], left):
                    return tried
        except GradingError:
            return tried
        return responses[0]


def load_reward(text: str, *, source: str, columns: Iterable[str], seconds: float = REWARD_SECONDS) -> RewardFunction:
    """The function that `FILE.py:FUNCTION` names, checked in a grading process against the columns of a source."""
    file, _, function = text.rpartition(":")
    path = Path(file).expanduser().absolute()
    if path.suffix != ".py" or not function.isidentifier():
        raise InputError(f"reward '{text}': write FILE.py:FUNCTION, such as my_rewards.py:score.")
    if not path.is_file():
        raise InputError(f"reward '{text}': there is no file {path}; paths start at the current folder, {Path.cwd()}.")
    try:
        _check(str(path), function, path.stat().st_mtime_ns, tuple(dict.fromkeys((*_ARGUMENTS, *columns))))
    except GradingError as error:
        raise InputError(f"{source}: reward '{text}': {' '.join(str(error).split())}.") from error
    return RewardFunction(str(path), function, seconds)


@lru_cache(maxsize=8)
def _check(path: str, function: str, _: int, columns: tuple[str, ...]) -> None:
    """Refuse a function that cannot be called; a new process looks, since an older one has the file as it was."""
    process = GradingProcess()
    try:
        wrong = process.request("check_reward", library=path, path=path, function=function, columns=columns)
    except LostError as error:
        raise GradingError(f"importing the file {error}") from error
    except GradingError as error:
        raise GradingError(f"the file cannot be imported ({error})") from error
    finally:
        process.end()
    if wrong:
        raise GradingError(wrong)
