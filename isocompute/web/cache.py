"""Results that are slow to make, kept until the files they rest on change.

A study that is running changes every second, and a law takes longer than that. So the last result is answered, marked
as stale, while the next one is made; only a result that was never made is waited for.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")
_WORKERS = 2
"""Results in the making at one time."""


@dataclass(frozen=True)
class CachedResult(Generic[T]):
    """A result, the version of the files that it rests on, and whether they are still the same."""

    value: T
    version: str
    fresh: bool


@dataclass(frozen=True)
class _Task:
    version: str
    future: Future[Any]


class ResultCache:
    """The latest result of each key, least recently used keys dropped beyond `size`."""

    def __init__(self, *, size: int = 256) -> None:
        self._size = size
        self._tasks: OrderedDict[Hashable, list[_Task]] = OrderedDict()
        """Of each key the latest finished task and the one under way, oldest first."""
        self._lock = threading.Lock()
        self._workers = threading.Semaphore(_WORKERS)

    def get(self, key: Hashable, version: str, make: Callable[[], T]) -> CachedResult[T]:
        """The result of `make` for this version of the files; the last one while a new one is made.

        An error is a result too: it is kept, and raised to everyone who asks for this version. `make` must not ask
        this cache for anything, since all workers could then wait for each other.
        """
        with self._lock:
            tasks = self._tasks.setdefault(key, [])
            self._tasks.move_to_end(key)
            while len(self._tasks) > self._size:
                self._tasks.popitem(last=False)
            if not tasks or (tasks[-1].version != version and tasks[-1].future.done()):
                tasks.append(_Task(version, self._start(make)))
            succeeded = [task for task in tasks if task.future.done() and task.future.exception() is None]
            task = tasks[-1] if tasks[-1].future.done() or not succeeded else succeeded[-1]
            del tasks[: tasks.index(task)]
        return CachedResult(task.future.result(), task.version, task.version == version)

    def _start(self, make: Callable[[], Any]) -> Future[Any]:
        """Run on a daemon thread, so that the program can end before it is done."""
        future: Future[Any] = Future()

        def work() -> None:
            with self._workers:
                try:
                    future.set_result(make())
                except BaseException as error:
                    future.set_exception(error)

        threading.Thread(target=work, name="result", daemon=True).start()
        return future
