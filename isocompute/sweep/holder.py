"""Whose folder it is: the process that a study's claim names, and whether that is still this one.

A host that sleeps for longer than a claim holds finds, on waking, that another has taken its cell over. Whatever writes
to a claimed folder therefore looks before it writes. Between the look and the write lie milliseconds in which a claim
could still change hands; a holder that was silent for a minute before is the only one whose claim does.
"""

from __future__ import annotations

import errno
import json
import os
import socket
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from isocompute.sweep.processes import start_of

__all__ = ["RUNNING", "Holder", "Holding", "LostError", "holder_at", "holder_of", "myself"]

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
