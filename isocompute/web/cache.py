"""Results that are slow to make, kept until the files they rest on change.

A study that is running changes every second, and a law takes longer than that. So a result that is out of date is
still given out, marked as such, while the next one is made behind it; only a result that was never made is waited for,
and where there is a rough one that is sooner had, that one is given out meanwhile.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future, wait
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

__all__ = ["Cache", "Found", "PendingError"]

T = TypeVar("T")
_AT_ONCE = 2
"""Slow results in the making at one time; what is kept or quick never queues behind them."""


class PendingError(Exception):
    """A result that is being made and is not there yet."""


@dataclass(frozen=True)
class Found(Generic[T]):
    """A result, the version of the files that it rests on, and whether they are still the same."""

    value: T
    version: str
    fresh: bool


@dataclass(frozen=True)
class _Making:
    """A result in the making, and a rough one that comes before it, where there is such."""

    full: Future[Any]
    rough: Future[Any] | None = None

    def soonest(self, patience: float) -> Any:
        """The full result if it is there, else the rough one; what the rough one lacks, the full one may have."""
        end = time.monotonic() + patience
        if self.rough is not None and not self.full.done():
            wait([self.rough], timeout=patience)
            if not self.rough.done():
                raise FutureTimeoutError
            if self.rough.exception() is None and self.rough.result() is not None and not self.full.done():
                return self.rough.result()
        return self.full.result(max(0.0, end - time.monotonic()))


@dataclass
class _Entry:
    version: str
    made: _Making
    next: tuple[str, _Making] | None = None

    def refresh(self, version: str, begin: Callable[[bool], _Making]) -> None:
        """Take over what was made behind the last result, and begin on this version if nobody has: as for the first
        time where there is nothing to show meanwhile.
        """
        if self.next is not None and self.next[1].full.done():
            (self.version, self.made), self.next = self.next, None
        if self.version == version or self.next is not None or not self.made.full.done():
            return
        if self.made.full.exception() is not None:
            self.version, self.made = version, begin(True)
        else:
            self.next = (version, begin(False))


class Cache:
    """Keeps the latest result of each key. `patience`: seconds that a caller waits for one that was never made."""

    def __init__(self, *, patience: float, size: int = 256) -> None:
        self._patience, self._size = patience, size
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()
        self._lock = threading.Lock()
        self._turn = threading.Semaphore(_AT_ONCE)

    def get(
        self,
        key: Hashable,
        version: str,
        make: Callable[[], T],
        *,
        what: str,
        quick: bool = False,
        rough: Callable[[], T | None] | None = None,
        final: bool = False,
    ) -> Found[T]:
        """The result of `make` for this version of the files; the last one while a new one is made.

        An error is a result too: it is kept, and raised to everyone who asks. `what` says what is being waited for.
        A `quick` one takes a moment: it needs no turn, and its last result is never given out for a new one. `rough`
        makes one that stands in for the first, before it, or None where that is not worth it; who asks for the `final`
        one waits for that. `make` and `rough` must not ask this cache for anything: those that wait for a turn would
        wait for each other.
        """
        turn: AbstractContextManager[object] = nullcontext() if quick else self._turn
        with self._lock:
            entry = self._entries.get(key)
            if entry is None or (quick and entry.version != version):
                entry = self._entries[key] = _Entry(version, _begin(make, turn, rough))
                while len(self._entries) > self._size:
                    self._entries.popitem(last=False)
            self._entries.move_to_end(key)
            entry.refresh(version, lambda first: _begin(make, turn, rough if first else None))
            made, made_for = entry.made, entry.version
        try:
            value = made.full.result(self._patience) if final else made.soonest(self._patience)
        except FutureTimeoutError as error:
            if made.full.done():
                raise  # of the making, not of the waiting
            raise PendingError(what) from error
        return Found(value, made_for, made_for == version)


def _begin(
    make: Callable[[], Any], turn: AbstractContextManager[object], rough: Callable[[], Any] | None = None
) -> _Making:
    """On threads that do not keep the program from ending. The rough one is quick and needs no turn."""
    making = _Making(Future(), None if rough is None else Future())

    def work() -> None:
        if rough is not None and making.rough is not None:
            _settle(making.rough, rough)
        with turn:
            _settle(making.full, make)

    threading.Thread(target=work, name="result", daemon=True).start()
    return making


def _settle(future: Future[Any], make: Callable[[], Any]) -> None:
    try:
        future.set_result(make())
    except BaseException as error:
        future.set_exception(error)
