"""Folder locks: a small file names the process that writes to a folder, so that two never write to the same one.

A lock is valid while its process lives. On the same host, the process id and start time decide. On another host, which
may share the disk, the file's age decides, since owners refresh their locks every few seconds. A killed owner therefore
needs no clean-up, and `study status` need not contact any process. An owner that was silent for too long, for example
because its host slept, may lose its lock. It refreshes and removes the lock only if the lock still names it, and checks
before it writes (`isocompute.core.recorder`).

Kernel locks do not name their owner, and some shared disks lack them. At a remote address nothing is atomic: if two
processes take a lock within one second, both pass, and the first finds at its next write that it has lost the lock.
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
"""Six missed refreshes: longer than slow file systems delay, but short compared with a cell."""
_READS = 4
"""Attempts to read a remote lock, since an unreadable one may belong to another process."""


class LockedError(Exception):
    """Another live process has the lock."""

    def __init__(self, owner: Owner) -> None:
        super().__init__(f"process {owner.pid} on {owner.host}")


@contextmanager
def locked(address: str, *, patience: float = 0.0) -> Iterator[Callable[[], None]]:
    """Hold a lock file; yields a function that raises `LostError` if the lock no longer names this process.

    `patience` is the time in seconds to wait for another owner before raising `LockedError`.
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

    The error message says what another process is `doing` there and what to do `instead`.
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
    """Whether the owner is alive; `age` is the time since its lock was refreshed, in seconds."""
    if owner.host != socket.gethostname():
        return age < STALE_SECONDS
    return process_start(owner.pid) == owner.started


class _LocalFile:
    """A lock on a local or shared disk; its age is that of the file."""

    wait_seconds = 0.05

    def __init__(self, path: Path) -> None:
        self.path = path

    def owner(self) -> Owner | None:
        return read_owner(self.path)

    def take(self) -> Owner | None:
        """Take the lock, or return the live process that has it."""
        with self._open(os.O_CREAT) as handle:
            owner = parse_owner(os.read(handle, 4096))
            if owner is not None and owner != this_process() and _is_alive(owner, age=self._age(handle)):
                return owner
            os.ftruncate(handle, 0)
            os.pwrite(handle, json.dumps(asdict(this_process())).encode(), 0)
            return None

    def _age(self, handle: int) -> float:
        """Seconds since the lock was refreshed, by the clock of its disk, which may be shared."""
        with tempfile.TemporaryFile(dir=self.path.parent) as now:
            return os.fstat(now.fileno()).st_mtime - os.fstat(handle).st_mtime

    def refresh(self) -> None:
        os.utime(self.path)

    def release(self) -> None:
        """Remove the lock if it still names this process."""
        with suppress(FileNotFoundError), self._open() as handle:
            if parse_owner(os.read(handle, 4096)) == this_process():
                self.path.unlink()

    @contextmanager
    def _open(self, flags: int = 0) -> Iterator[int]:
        """Open the file under a kernel lock, so that reading and writing are atomic on this host."""
        while True:
            handle = os.open(self.path, os.O_RDWR | flags, 0o644)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX)
                if os.fstat(handle).st_nlink:  # otherwise its owner removed it between our open and lock
                    yield handle
                    return
            finally:
                os.close(handle)


class _RemoteFile:
    """A lock at an fsspec address; it contains the time of its last refresh, since some systems have no file times."""

    wait_seconds = 1.0
    _one_at_a_time = threading.Lock()
    """Not every system replaces files atomically; a partial refresh of our own must not look like another's lock."""

    def __init__(self, address: str) -> None:
        self.address = address

    def owner(self) -> Owner | None:
        return self.owner_and_age()[0]

    def owner_and_age(self) -> tuple[Owner | None, float]:
        """The owner of the lock and its age; no owner if there is no lock. Raises if the lock cannot be read."""
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
        """Take the lock, or return the live process that has it."""
        owner, age = self.owner_and_age()
        if owner is not None and owner != this_process() and _is_alive(owner, age=age):
            return owner
        self.refresh()
        return None

    def refresh(self) -> None:
        with self._one_at_a_time:
            remote.write(self.address, json.dumps({**asdict(this_process()), "beat": time.time()}).encode())

    def release(self) -> None:
        """Remove the lock if it still names this process."""
        if self.owner() == this_process():
            remote.remove(self.address)
