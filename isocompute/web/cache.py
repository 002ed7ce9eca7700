"""A cache of slow results that is valid until the files change.

A running study changes every second, and a law takes longer than that. So a request gets the last result, marked as
stale, while the next one is computed; it waits only if there is no result yet.
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
"""Results that are computed at the same time."""


@dataclass(frozen=True)
class CachedResult(Generic[T]):
    """A result, the version of its files, and whether that is the current one."""

    value: T
    version: str
    fresh: bool


@dataclass(frozen=True)
class _Task:
    version: str
    future: Future[Any]


class ResultCache:
    """The latest result for each key; of more than `size` keys the least recently used are dropped."""

    def __init__(self, *, size: int = 256) -> None:
        self._size = size
        self._tasks: OrderedDict[Hashable, list[_Task]] = OrderedDict()
        """The latest finished task and the running one of each key, oldest first."""
        self._lock = threading.Lock()
        self._workers = threading.Semaphore(_WORKERS)

    def get(self, key: Hashable, version: str, make: Callable[[], T]) -> CachedResult[T]:
        """The result of `make` for this version of the files, or the last one while a new one is computed.

        An error is cached too, and raised for every request of this version. `make` must not use this cache, since all
        workers could then wait for each other.
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
        """Run in a daemon thread, so that the program can exit before it finishes."""
        future: Future[Any] = Future()

        def work() -> None:
            with self._workers:
                try:
                    future.set_result(make())
                except BaseException as error:
                    future.set_exception(error)

        threading.Thread(target=work, name="result", daemon=True).start()
        return future
