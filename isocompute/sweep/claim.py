"""Who is working here: a small file that names a live process, so that no folder is written by two.

A claim is held while its process lives. On the same host that is known exactly: the process id with its start time,
which no later process shares. From another host it is known by the file's age, since every holder touches its claims
every few seconds. A killed holder therefore needs no cleaning up, and `study status` needs nobody to answer.

A holder that was silent for too long, as on a host that slept, may find its claim taken over. It touches and removes
only what still names it, and its engine looks before it writes (`isocompute.core.lock`).
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

from isocompute.core.errors import InputError
from isocompute.core.lock import RUNNING, Holder, LostError, holder_at, holder_of, myself, start_of

__all__ = [
    "BEAT_SECONDS",
    "RUNNING",
    "STALE_SECONDS",
    "Claim",
    "HeldError",
    "Holder",
    "LostError",
    "claimed",
    "holder_of",
    "is_alive",
    "myself",
]

BEAT_SECONDS = 10.0
STALE_SECONDS = 60.0
"""Six missed beats: far more than a slow file system delays, little against what a cell costs."""


class HeldError(Exception):
    """Another live process has the claim."""

    def __init__(self, holder: Holder) -> None:
        super().__init__(f"process {holder.pid} on {holder.host}")
        self.holder = holder


def is_alive(holder: Holder, *, age: float) -> bool:
    """Whether the process lives; `age` is how long ago its claim was last touched, in seconds."""
    if holder.host != socket.gethostname():
        return age < STALE_SECONDS
    return start_of(holder.pid) == holder.started


class Claim:
    """The right to write a folder, as a file in it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def take(self, *, patience: float = 0.0) -> None:
        """Take the claim, waiting `patience` seconds for a holder to end; HeldError if it does not."""
        deadline = time.monotonic() + patience
        while (holder := self._try()) is not None:
            if time.monotonic() >= deadline:
                raise HeldError(holder)
            time.sleep(0.05)
        _heart.add(self.path)

    def _try(self) -> Holder | None:
        """Write my name unless a live process has it. The kernel's lock makes looking and writing one step."""
        with _locked(self.path, os.O_CREAT) as handle:
            holder = holder_of(os.read(handle, 4096))
            if holder is not None and holder != myself() and is_alive(holder, age=self._age(handle)):
                return holder
            os.ftruncate(handle, 0)
            os.pwrite(handle, json.dumps(asdict(myself())).encode(), 0)
            return None

    def _age(self, handle: int) -> float:
        """Seconds since the claim was touched, by the clock that its times are of: a shared disk has its own."""
        with tempfile.TemporaryFile(dir=self.path.parent) as now:
            return os.fstat(now.fileno()).st_mtime - os.fstat(handle).st_mtime

    def release(self) -> None:
        """Give the claim up; `LostError` where another has it by now, whose it stays."""
        _heart.discard(self.path)
        try:
            with _locked(self.path) as handle:
                holder = holder_of(os.read(handle, 4096))
                if holder == myself():
                    self.path.unlink()
                    return
        except FileNotFoundError:
            holder = None
        raise LostError(self.path, holder)


@contextmanager
def claimed(path: Path, *, doing: str, instead: str) -> Iterator[None]:
    """Hold the folder of a claim, which is made where there is none; it is refused at the door where another process
    has it (what that is `doing`, and what to do `instead`) or nothing can be written there.
    """
    claim, folder = Claim(path), path.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        claim.take()
    except HeldError as error:
        raise InputError(f"{folder}: {doing} by {error}; wait for it, stop it, or {instead}.") from error
    except OSError as error:
        raise InputError(f"{folder}: cannot be written ({error.strerror}); give another --out.") from error
    try:
        yield
    finally:
        with suppress(LostError):  # what was taken over has said so where it was written
            claim.release()


@contextmanager
def _locked(path: Path, flags: int = 0) -> Iterator[int]:
    """A claim's file, open and locked, so that nobody takes or gives it up meanwhile."""
    while True:
        handle = os.open(path, os.O_RDWR | flags, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            if os.fstat(handle).st_nlink:  # else removed by its holder between our open and our lock
                yield handle
                return
        finally:
            os.close(handle)


class _Heart:
    """Touches the claims of this process from a thread, so that an engine deep in a step still counts as alive; one
    that another has taken over is the other's to touch.
    """

    def __init__(self) -> None:
        self._paths: set[Path] = set()
        self._thread: threading.Thread | None = None

    def add(self, path: Path) -> None:
        self._paths.add(path)
        if self._thread is None:
            self._thread = threading.Thread(target=self._beat, name="claims", daemon=True)
            self._thread.start()

    def discard(self, path: Path) -> None:
        self._paths.discard(path)

    def _beat(self) -> None:
        while True:
            time.sleep(BEAT_SECONDS)
            for path in list(self._paths):
                try:
                    if holder_at(path) == myself():
                        os.utime(path)
                except OSError:
                    continue  # just released, or the file system is away for a moment


_heart = _Heart()
