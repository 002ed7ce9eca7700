"""Whether a process still lives: its id with its start time, which no later process shares."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["start_of"]


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
