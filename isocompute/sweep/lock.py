"""Locks of folders: a small file names the process that works there, so that two never write one folder.

A lock counts while its process lives. On the same host the process id with its start time decides. On another host,
which may share the disk, the file's age decides: owners refresh their locks every few seconds. So a killed owner needs
no cleaning up, and `study status` needs no answer from a process. An owner that was silent for too long, as on a host
that slept, may lose its lock: it refreshes and removes only what still names it, and checks before it writes
(`isocompute.core.recorder`).

The kernel's locks alone name no owner, and not every shared disk has them. At a remote address nothing is atomic: of
two processes that take a lock within one second both pass, and the first to write finds that it has lost it.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

from isocompute.core import files
from isocompute.core.errors import InputError
from isocompute.core.recorder import LostError, Owner, parse_owner, process_start, read_owner, this_process
from isocompute.sweep import remote

BEAT_SECONDS = 10.0
STALE_SECONDS = 60.0
"""Six missed refreshes: far more than a slow file system delays, little against what a cell costs."""
_READS = 4
"""Attempts to read a remote lock: one that cannot be read may be another process's."""


class LockedError(Exception):
    """Another live process has the lock."""

    def __init__(self, owner: Owner) -> None:
        super().__init__(f"process {owner.pid} on {owner.host}")


@contextmanager
def locked(address: str, *, patience: float = 0.0) -> Iterator[Callable[[], None]]:
    """Hold a lock file; yields a check that it still names this process.

    `patience`: seconds to wait for another owner to end, before `LockedError`.
    """
    file = _RemoteFile(address) if files.is_remote(address) else _LocalFile(Path(address))
    deadline = time.monotonic() + patience
    while (owner := file.take()) is not None:
        if time.monotonic() >= deadline:
            raise LockedError(owner)
        time.sleep(file.wait_seconds)
    ended = threading.Event()

    def refresh() -> None:  # in a thread, so that an engine deep in a step still counts as alive
        while not ended.wait(BEAT_SECONDS):
            with suppress(Exception):  # a remote system may raise anything; the next beat tries again
                if file.owner() == this_process():
                    file.refresh()

    def check() -> None:
        if (owner := file.owner()) != this_process():
            raise LostError(address, owner)

    thread = threading.Thread(target=refresh, name="lock", daemon=True)
    thread.start()
    try:
        yield check
    finally:
        ended.set()
        thread.join()
        file.release()


@contextmanager
def locked_folder(address: str, name: str, *, doing: str, instead: str) -> Iterator[None]:
    """Make a folder and hold the lock file `name` in it, or raise `InputError`.

    Its message says what another process is `doing` there, and what to do `instead`.
    """
    with ExitStack() as stack:
        try:
            if not files.is_remote(address):
                Path(address).mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(files.join(address, name)))
        except LockedError as error:
            raise InputError(f"{address}: {doing} by {error}; wait for it, stop it, or {instead}.") from error
        except OSError as error:
            raise InputError(f"{address}: cannot be written ({error.strerror}); give another --out.") from error
        yield


def is_locked(address: str) -> bool:
    """Whether a live process has the lock."""
    try:
        if files.is_remote(address):
            owner, age = _RemoteFile(address).owner_and_age()
        else:
            path = Path(address)
            owner, age = parse_owner(path.read_bytes()), time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return False
    return owner is not None and _is_alive(owner, age=age)


def _is_alive(owner: Owner, *, age: float) -> bool:
    """Whether the process lives; `age` is how long ago its lock was last refreshed, in seconds."""
    if owner.host != socket.gethostname():
        return age < STALE_SECONDS
    return process_start(owner.pid) == owner.started


class _LocalFile:
    """A lock on a disk; its age is that of the file."""

    wait_seconds = 0.05

    def __init__(self, path: Path) -> None:
        self.path = path

    def owner(self) -> Owner | None:
        return read_owner(self.path)

    def take(self) -> Owner | None:
        """Write our name, unless a live process has the lock: return that."""
        with self._open(os.O_CREAT) as handle:
            owner = parse_owner(os.read(handle, 4096))
            if owner is not None and owner != this_process() and _is_alive(owner, age=self._age(handle)):
                return owner
            os.ftruncate(handle, 0)
            os.pwrite(handle, json.dumps(asdict(this_process())).encode(), 0)
            return None

    def _age(self, handle: int) -> float:
        """Seconds since the lock was refreshed, by the clock of its times: a shared disk has its own."""
        with tempfile.TemporaryFile(dir=self.path.parent) as now:
            return os.fstat(now.fileno()).st_mtime - os.fstat(handle).st_mtime

    def refresh(self) -> None:
        os.utime(self.path)

    def release(self) -> None:
        """Remove the lock where it still names this process."""
        with suppress(FileNotFoundError), self._open() as handle:
            if parse_owner(os.read(handle, 4096)) == this_process():
                self.path.unlink()

    @contextmanager
    def _open(self, flags: int = 0) -> Iterator[int]:
        """The file with the kernel's lock on it, so that looking and writing are one step on this host."""
        while True:
            handle = os.open(self.path, os.O_RDWR | flags, 0o644)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX)
                if os.fstat(handle).st_nlink:  # else removed by its owner between our open and our lock
                    yield handle
                    return
            finally:
                os.close(handle)


class _RemoteFile:
    """A lock at an fsspec address. It has the time of its last refresh in it: not every system dates its files."""

    wait_seconds = 1.0
    _one_at_a_time = threading.Lock()
    """Not every system replaces a file whole: half a refresh of our own must not be read as another's lock."""

    def __init__(self, address: str) -> None:
        self.address = address

    def owner(self) -> Owner | None:
        return self.owner_and_age()[0]

    def owner_and_age(self) -> tuple[Owner | None, float]:
        """Who wrote the lock, and how long ago; no owner where there is none, an error where it cannot be read."""
        for attempt in range(_READS):
            try:
                with self._one_at_a_time:
                    data = files.read_bytes(self.address)
                return parse_owner(data), time.time() - json.loads(data)["beat"]
            except InputError as error:
                if isinstance(error.__cause__, FileNotFoundError):
                    break
                if attempt == _READS - 1:
                    raise
                time.sleep(self.wait_seconds)
            except (ValueError, TypeError, KeyError):  # torn
                break
        return None, float("inf")

    def take(self) -> Owner | None:
        """Write our name, unless a live process has the lock: return that."""
        owner, age = self.owner_and_age()
        if owner is not None and owner != this_process() and _is_alive(owner, age=age):
            return owner
        self.refresh()
        return None

    def refresh(self) -> None:
        with self._one_at_a_time:
            remote.write(self.address, json.dumps({**asdict(this_process()), "beat": time.time()}).encode())

    def release(self) -> None:
        """Remove the lock where it still names this process."""
        if self.owner() == this_process():
            remote.remove(self.address)
