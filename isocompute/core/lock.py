"""Which process writes a run folder: a lock file names it by host, process id and start time.

A host that sleeps for longer than a lock lasts finds, on waking, that another process has taken the folder over. So
whatever writes to a locked folder checks first that the lock still names this process. `isocompute.sweep.lock` takes
and refreshes locks; this module needs no library, since runs are also written where only the training's are installed.
"""

from __future__ import annotations

import errno
import json
import os
import socket
from dataclasses import dataclass
from functools import cache
from pathlib import Path

__all__ = ["RUNNING", "LockGuard", "LostError", "Owner", "parse_owner", "process_start", "read_owner", "this_process"]

RUNNING = "running.json"
"""The lock of a run, in its folder."""


@dataclass(frozen=True)
class Owner:
    """A process that has a lock. No later process of its host has the same id and start time."""

    host: str
    pid: int
    started: str


class LostError(OSError):
    """Another process has this process's lock by now; an `OSError`, as of any folder that cannot be written."""

    def __init__(self, path: str | Path, owner: Owner | None) -> None:
        if owner is None:
            why = "its lock is gone: another process took it over and ended, or somebody removed it"
        else:
            why = f"taken over by process {owner.pid} on {owner.host} while this one was silent"
        super().__init__(errno.ESTALE, why, str(path))


def process_start(pid: int) -> str | None:
    """When a process started, in ticks since boot, which no change of the clock moves; None where it is dead.

    Empty where the system has no /proc: then only the process id counts.
    """
    try:
        state, *_, start = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:20]
    except OSError:
        if Path("/proc/self/stat").exists():
            return None
    else:
        return None if state == "Z" else start
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return ""


@cache
def _owner(pid: int) -> Owner:
    return Owner(socket.gethostname(), pid, process_start(pid) or "")


def this_process() -> Owner:
    """This process, as a lock names it."""
    return _owner(os.getpid())


def parse_owner(data: bytes) -> Owner | None:
    """The process that a lock file names; None for an empty or torn one."""
    try:
        table = json.loads(data)
        return Owner(table["host"], table["pid"], table["started"])
    except (ValueError, TypeError, KeyError):
        return None


def read_owner(path: Path) -> Owner | None:
    """The process that the lock file at a path names; None where there is none."""
    try:
        return parse_owner(path.read_bytes())
    except FileNotFoundError:
        return None


class LockGuard:
    """Whether a folder that this process had locked is still its own; a folder without a lock always is."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / RUNNING
        self._locked = read_owner(self._path) == this_process()

    def is_ours(self) -> bool:
        """Whether no other process has the folder."""
        return not self._locked or read_owner(self._path) == this_process()

    def check(self) -> None:
        """Raise `LostError` where another process has the folder: what is there now must not be written."""
        if self._locked and (owner := read_owner(self._path)) != this_process():
            raise LostError(self._path, owner)
