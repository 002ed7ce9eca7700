"""Who is working here: a small file that names a live process, so that no folder is written by two.

A claim is held while its process lives. On the same host that is known exactly: the process id with its start time,
which no later process shares. From another host it is known by the file's age, since every holder touches its claims
every few seconds. A killed holder therefore needs no cleaning up, and `study status` needs nobody to answer.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import threading
import time
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from isocompute.engines.processes import start_of

__all__ = [
    "BEAT_SECONDS",
    "RUNNING",
    "STALE_SECONDS",
    "Claim",
    "HeldError",
    "Holder",
    "holder_of",
    "is_alive",
    "myself",
]

RUNNING = "running.json"
"""The claim of a cell, in its folder."""
BEAT_SECONDS = 10.0
STALE_SECONDS = 60.0
"""Six missed beats: far more than a slow file system delays, little against what a cell costs."""


@dataclass(frozen=True)
class Holder:
    """A process, told from every other one that ever ran on its host."""

    host: str
    pid: int
    started: str


class HeldError(Exception):
    """Another live process has the claim."""

    def __init__(self, holder: Holder) -> None:
        super().__init__(f"process {holder.pid} on {holder.host}")
        self.holder = holder


@cache
def _myself(pid: int) -> Holder:
    return Holder(socket.gethostname(), pid, start_of(pid) or "")


def myself() -> Holder:
    """This process."""
    return _myself(os.getpid())


def is_alive(holder: Holder, *, age: float) -> bool:
    """Whether the process lives; `age` is how long ago its claim was last touched, in seconds."""
    if holder.host != socket.gethostname():
        return age < STALE_SECONDS
    return start_of(holder.pid) == holder.started


def holder_of(data: bytes) -> Holder | None:
    """The holder named in a claim's bytes; None for an empty or torn one."""
    try:
        return Holder(**json.loads(data))
    except (ValueError, TypeError):
        return None


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
        while True:
            handle = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX)
                found = os.fstat(handle)
                if found.st_nlink == 0:
                    continue  # removed by its holder between our open and our lock
                holder = holder_of(os.read(handle, 4096))
                if holder is not None and holder != myself() and is_alive(holder, age=time.time() - found.st_mtime):
                    return holder
                os.ftruncate(handle, 0)
                os.pwrite(handle, json.dumps(asdict(myself())).encode(), 0)
                return None
            finally:
                os.close(handle)

    def release(self) -> None:
        """Give the claim up."""
        _heart.discard(self.path)
        self.path.unlink(missing_ok=True)


class _Heart:
    """Touches the claims of this process from a thread, so that an engine deep in a step still counts as alive."""

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
                    os.utime(path)
                except OSError:
                    continue  # just released, or the file system is away for a moment


_heart = _Heart()
