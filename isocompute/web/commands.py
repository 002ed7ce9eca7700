"""The command line that gives what a page shows. Every answer of the API carries the one that prints the same JSON."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from isocompute.web.reading import Reading

__all__ = ["command_line", "named_run", "reading_command"]

Value = str | float | bool | tuple[int, ...] | list[str] | None

_TOLD = {"columns", "where", "without", "problems_per_batch", "rollouts_per_problem"}
_TAKES = {
    "fit": _TOLD,
    "report": _TOLD,
    "claims": _TOLD,
    "forecast": _TOLD,
    "compare": {"columns", "where"},
    "health": {"problems_per_batch", "rollouts_per_problem"},
    "plan": {"where", "without"},
}
"""Which options of `Reading` each command has; those of `plan` that are called the same mean something else."""


def command_line(*words: str, options: Mapping[str, Value] | None = None) -> str:
    """A command as a shell takes it; options that are None or False are left out, several values joined by commas, and
    an option of a list is given as often.

    >>> command_line("plan", options={"budget": "$2000", "n": (8, 16), "extrapolate": True, "gpus": None})
    "isocompute plan --budget '$2000' --n 8,16 --extrapolate"
    >>> command_line("fit", "runs", options={"without": ["n8", "debug*"]})
    "isocompute fit runs --without n8 --without 'debug*'"
    """
    out = ["isocompute", *words]
    for name, value in (options or {}).items():
        if value is None or value is False:
            continue
        for one in value if isinstance(value, list) else [value]:
            out.append(f"--{name.replace('_', '-')}")
            if isinstance(one, tuple):
                out.append(",".join(map(str, one)))
            elif one is not True:
                out.append(f"{one:.12g}" if isinstance(one, float) else str(one))
    return shlex.join(out)


def reading_command(
    reading: Reading, command: str, *words: str, options: Mapping[str, Value] | None = None
) -> str | None:
    """A command on runs that are read as the app reads them; None where the command cannot be told to.

    >>> reading_command(Reading(rollouts_per_problem=8), "fit", "logs", options={"unit": "tokens"})
    'isocompute fit logs --rollouts-per-problem 8 --unit tokens'
    """
    if not reading.options.keys() <= _TAKES[command]:
        return None
    return command_line(command, *words, options={**reading.options, **(options or {})})


def named_run(address: str, run: str) -> str:
    """One run of a folder or table, as commands take it."""
    return f"{address}::{run}"
