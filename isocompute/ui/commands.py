"""The command line that gives what a page shows. Every answer of the API carries the one that prints the same JSON."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

__all__ = ["command_line", "named_run"]

Value = str | float | bool | tuple[int, ...] | None


def command_line(*words: str, options: Mapping[str, Value] | None = None) -> str:
    """A command as a shell takes it; options that are None or False are left out, several values joined by commas.

    >>> command_line("plan", options={"budget": "$2000", "n": (8, 16), "extrapolate": True, "gpus": None})
    "isocompute plan --budget '$2000' --n 8,16 --extrapolate"
    """
    out = ["isocompute", *words]
    for name, value in (options or {}).items():
        if value is None or value is False:
            continue
        out.append(f"--{name.replace('_', '-')}")
        if isinstance(value, tuple):
            out.append(",".join(map(str, value)))
        elif value is not True:
            out.append(f"{value:.12g}" if isinstance(value, float) else str(value))
    return shlex.join(out)


def named_run(address: str, run: str) -> str:
    """One run of a folder or table, as commands take it."""
    return f"{address}::{run}"
