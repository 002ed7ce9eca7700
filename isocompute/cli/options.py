"""Options that several commands share, and helpers that parse, load, warn and print."""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isocompute.core.errors import InputError

if TYPE_CHECKING:
    from isocompute.core.run import RunSet

Metric = Annotated[str | None, typer.Option(help="Metric to read, such as avg@4; found automatically if possible.")]
Unit = Annotated[str | None, typer.Option(help="Unit of compute: rollouts, tokens, gpu_hours or steps.")]
Columns = Annotated[
    list[str] | None, typer.Option(help="Columns of a foreign table: value=val_reward,rollouts=C,run=name,…")
]
Where = Annotated[list[str] | None, typer.Option(help="Keep the rows with this value: set=easy. May be repeated.")]
Without = Annotated[
    list[str] | None, typer.Option(metavar="RUN", help="Leave this run out: a name, or a pattern. May be repeated.")
]
Problems = Annotated[int | None, typer.Option("--problems-per-batch", min=1, help="Bp of runs that do not log it.")]
Rollouts = Annotated[int | None, typer.Option("--rollouts-per-problem", min=1, help="n of runs that do not log it.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Chart = Annotated[str | None, typer.Option(help="Write a chart: FILE.html, .png, .svg or .pdf.")]
Replicates = Annotated[int, typer.Option(min=50, max=100_000, help="Bootstrap replicates.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of the bootstrap.")]

RETIRED: dict[str, dict[str, str]] = {
    "plan": {
        "--lr-anchor": "it is now called --lr-reference: --lr-reference 1e-6@1024.",
        "--schedule": "it was removed: an n that grows during a run at best tied with the best fixed n; leave it out.",
    },
}
"""Options of earlier versions by command: what to use instead, or why they were removed."""


def refuse_retired(arguments: Sequence[str]) -> None:
    """Raise an error for an option of an earlier version, with what to use instead."""
    command = next((name for name in arguments if not name.startswith("-")), "")
    for argument in arguments:
        option = argument.partition("=")[0]
        if option in RETIRED.get(command, {}):
            raise InputError(f"{command} {option}: {RETIRED[command][option]}")


class Progress:
    """Says on the error stream how far a long step is: on one line of a terminal, else now and then on a new line."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._next, self._width = time.monotonic() + (0.5 if self._terminal else 30.0), 0

    def __call__(self, what: str, done: int, total: int) -> None:
        """Report that `done` of `total` problems are done."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + (0.5 if self._terminal else 30.0)
        text = f"{what}: {done:,} of {total:,} problems"
        if self._terminal:
            sys.stderr.write(f"\r{text:<{self._width}}")
            self._width = len(text)
        else:
            sys.stderr.write(f"{text}\n")
        sys.stderr.flush()

    def clear(self) -> None:
        """Remove what is on the line, before something else is printed."""
        if self._width:
            sys.stderr.write(f"\r{'':<{self._width}}\r")
            self._width = 0


def pairs(option: str, texts: Sequence[str] | None) -> dict[str, str]:
    """`a=b,c=d` given once or several times, as a dictionary. A comma inside a value stays if no `=` follows it."""
    out: dict[str, str] = {}
    for text in texts or []:
        key = ""
        for part in text.split(","):
            if "=" in part:
                key, _, value = part.partition("=")
                key = key.strip()
                out[key] = value.strip()
            elif key:
                out[key] += "," + part
            if not key:
                raise InputError(f"{option} {text}: give NAME=VALUE pairs, such as {option} value=reward.")
    return out


def plain_value(text: str) -> Any:
    """A TOML value, such as a number, true or a list; the text itself if it is none."""
    import tomllib

    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def load_runs(
    paths: Sequence[str],
    columns: Sequence[str] | None,
    where: Sequence[str] | None,
    problems_per_batch: int | None = None,
    rollouts_per_problem: int | None = None,
    *,
    without: Sequence[str] | None = None,
) -> RunSet:
    """Load the runs that a command was given."""
    from isocompute.data.loading import load

    return load(
        list(paths),
        columns=pairs("--columns", columns),
        where=pairs("--where", where),
        without=without or (),
        problems_per_batch=problems_per_batch,
        rollouts_per_problem=rollouts_per_problem,
    )


@contextmanager
def captured_warnings() -> Iterator[list[dict[str, str]]]:
    """Collect the warnings about runs raised inside, in the form of `--json`; they go to standard error too."""
    from isocompute.core.run import RunWarning

    caught: list[dict[str, str]] = []
    with warnings.catch_warnings():
        show = warnings.showwarning

        def keep(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
            if issubclass(category, RunWarning):
                caught.append({"code": "runs", "message": str(message)})
            show(message, category, *rest, **more)

        warnings.showwarning = keep
        yield caught


def print_json(data: dict[str, Any], *, caught: Sequence[dict[str, str]] = ()) -> None:
    """Print one JSON object, with the captured warnings added to its own."""
    if caught:
        data = data | {"warnings": [*data.get("warnings", ()), *caught]}
    typer.echo(json.dumps(data, allow_nan=False))
