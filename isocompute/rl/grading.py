"""Grades complete groups in threads, each with a grading process of its own, while the model decodes others."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for

from isocompute.core.allocation import ignore
from isocompute.core.errors import InputError
from isocompute.problems.grading_client import stop_with
from isocompute.problems.problem_set import ProblemWarning
from isocompute.problems.reward import RewardError

_MOST_FAILED = 0.05
"""Share of groups without rewards above which a run stops."""
_WAIT_SECONDS = 0.2
_FEWEST_GROUPS = 20
"""Groups after which that share is looked at."""


class GradingPool:
    """Grades groups in as many threads as there are cores but one, which start as they are needed.

    A group whose reward function fails has no rewards. The first failure of each kind gives a warning; more than 5% of
    at least 20 groups are an error. Methods are for one thread.
    """

    def __init__(self) -> None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self._closed = threading.Event()
        self._threads = ThreadPoolExecutor(max(1, cores - 1), "grading", stop_with, (self._closed,))
        self._futures: dict[int, Future[list[float]]] = {}
        self._reasons: set[str] = set()
        self.groups = self.failed = 0
        """Groups collected, and those of them without rewards."""
        self.last_failure = ""
        self.on_wait: Callable[[], None] = ignore
        """Called now and then while somebody waits for a group; may raise."""

    def submit(self, key: int, grade: Callable[[], list[float]], *, inline: bool = False) -> None:
        """Grade a group; `inline` does it at once, without a thread, which suits graders that are `cheap`."""
        if key in self._futures:
            raise ValueError(f"group {key} is being graded already")
        if not inline:
            self._futures[key] = self._threads.submit(grade)
            return
        self._futures[key] = Future()
        try:
            self._futures[key].set_result(grade())
        except Exception as error:  # raised where the group is collected, as for a thread
            self._futures[key].set_exception(error)

    def get(self, key: int) -> list[float] | None:
        """The rewards of a group, when they are there; None where the reward function failed."""
        future, rewards = self._futures[key], None
        while not wait_for([future], timeout=_WAIT_SECONDS).done:
            self.on_wait()
        try:
            rewards = future.result()
        except RewardError as error:
            self.failed, self.last_failure = self.failed + 1, str(error)
            if error.reason not in self._reasons:
                self._reasons.add(error.reason)
                warnings.warn(f"A group is dropped: {error}.", ProblemWarning, stacklevel=2)
        del self._futures[key]
        self.groups += 1
        if self.groups >= _FEWEST_GROUPS and self.failed > _MOST_FAILED * self.groups:
            raise InputError(
                f"problems.reward: no rewards for {self.failed} of {self.groups} groups, more than {_MOST_FAILED:.0%}; "
                f"last: {self.last_failure}. Fix the function and start again."
            )
        return rewards

    def close(self) -> None:
        """Stop: groups that wait are dropped, and processes that still grade are killed."""
        self._closed.set()
        self._threads.shutdown(cancel_futures=True)
        self._futures.clear()
