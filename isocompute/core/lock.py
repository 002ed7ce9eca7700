"""Whether a process still lives: its id with its start time, which no later process shares."""

from __future__ import annotations

import errno
import json
import os
import socket
from dataclasses import dataclass
from functools import cache
from pathlib import Path

__all__ = ["Holder", "Holding", "LostError", "RUNNING", "holder_at", "holder_of", "myself", "start_of"]


def start_of(pid: int) -> str | None:
    """When a process started, in ticks since boot; None where it is dead, '' where the system does not say when."""
    try:
        state, *_, start = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:20]
    except OSError:
        return None if Path("/proc/self/stat").exists() else _asked(pid)
    return None if state == "Z" else start


def _asked(pid: int) -> str | None:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return ""


# Whose folder it is: the process that a study's claim names, and whether that is still this one.

_GONE = "its claim is gone: another process took it over and ended, or somebody removed it"
RUNNING = "running.json"
"""The claim of a cell, in its folder."""


@dataclass(frozen=True)
class Holder:
    """A process, told from every other one that ever ran on its host."""

    host: str
    pid: int
    started: str


class LostError(OSError):
    """A claim of this process is another's by now; an `OSError`, as of any folder that can no longer be written."""

    def __init__(self, path: str | Path, holder: Holder | None) -> None:
        why = f"taken over by process {holder.pid} on {holder.host} while this one was silent" if holder else _GONE
        super().__init__(errno.ESTALE, why, str(path))


@cache
def _myself(pid: int) -> Holder:
    return Holder(socket.gethostname(), pid, start_of(pid) or "")


def myself() -> Holder:
    """This process."""
    return _myself(os.getpid())


def holder_of(data: bytes) -> Holder | None:
    """The holder named in a claim's bytes; None for an empty or torn one."""
    try:
        return Holder(**json.loads(data))
    except (ValueError, TypeError):
        return None


def holder_at(path: Path) -> Holder | None:
    """The holder named in a claim's file; None where there is none."""
    try:
        return holder_of(path.read_bytes())
    except FileNotFoundError:
        return None


class Holding:
    """A folder, and whether it is still this process's where it was so in the beginning. One without a claim is."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / RUNNING
        self._claimed = holder_at(self._path) == myself()

    def lasts(self) -> bool:
        """Whether no other process has the folder."""
        return not self._claimed or holder_at(self._path) == myself()

    def check(self) -> None:
        """Raise `LostError` where another has it: what is there now is not to be written."""
        if self._claimed and (holder := holder_at(self._path)) != myself():
            raise LostError(self._path, holder)
