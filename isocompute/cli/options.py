"""Options that several commands share, and how their text becomes values."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isocompute.core.errors import InputError

if TYPE_CHECKING:
    from isocompute.core.run import RunSet

Metric = Annotated[str | None, typer.Option(help="Metric to read, such as avg@4; found by itself where it can be.")]
Unit = Annotated[str | None, typer.Option(help="Unit of compute: rollouts, tokens, gpu_hours or steps.")]
Columns = Annotated[
    list[str] | None, typer.Option(help="Columns of a foreign table: value=val_reward,rollouts=C,run=name,…")
]
Where = Annotated[list[str] | None, typer.Option(help="Keep the rows with this value: set=easy. May be repeated.")]
Without = Annotated[
    list[str] | None, typer.Option(metavar="RUN", help="Leave this run out: a name, or a pattern. May be repeated.")
]
Problems = Annotated[
    int | None, typer.Option("--problems-per-batch", min=1, help="Bp of runs whose data do not say it.")
]
Rollouts = Annotated[
    int | None, typer.Option("--rollouts-per-problem", min=1, help="n of runs whose data do not say it.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Chart = Annotated[str | None, typer.Option(help="Write a chart: FILE.html, .png, .svg or .pdf.")]
Replicates = Annotated[int, typer.Option(min=50, max=100_000, help="Bootstrap replicates.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of the bootstrap.")]

RETIRED: dict[str, dict[str, str]] = {
    "plan": {
        "--lr-anchor": "it is now called --lr-reference: --lr-reference 1e-6@1024.",
        "--schedule": "it is gone: an n that grows during a run tied with the best fixed n at best; leave it out.",
    },
}
"""Options of earlier versions by command: what to use instead, or why they are gone."""


def refuse_retired(arguments: Sequence[str]) -> None:
    """Name the successor of an option that an earlier version had, in one line."""
    command = next((name for name in arguments if not name.startswith("-")), "")
    for argument in arguments:
        option = argument.partition("=")[0]
        if option in RETIRED.get(command, {}):
            raise InputError(f"{command} {option}: {RETIRED[command][option]}")


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
    """Text as TOML would read it: a number, true or false, a list; else the text itself."""
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
    """Read the runs a command was given."""
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
    """Warnings about runs that are raised inside, as `--json` prints them; standard error has them too."""
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
    """One JSON object on standard output; captured warnings are added to its own."""
    if caught:
        data = data | {"warnings": [*data.get("warnings", ()), *caught]}
    typer.echo(json.dumps(data, allow_nan=False))
