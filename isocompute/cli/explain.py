"""`isocompute explain CONFIG`: the allocation and settings that a trainer's config amounts to."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isocompute.cli import options

if TYPE_CHECKING:
    from isocompute.trainers import Explanation


def command(
    config: Annotated[str, typer.Argument(help="A config, script or argument list of any trainer that export knows.")],
    gpus: Annotated[int | None, typer.Option(min=1, help="GPUs it runs on, if the config does not set them.")] = None,
    problems: Annotated[int | None, typer.Option(min=1, help="Problems in its data, if it counts epochs.")] = None,
    json: options.Json = False,
) -> None:
    """Show the Bp, n, M, B and C of a config, whether it is on-policy, and what is unusual about it."""
    from isocompute.trainers import explain

    found = explain(config, gpus=gpus, problems=problems)
    if json:
        options.print_json(explain_json(found))
    else:
        typer.echo(found.text)


def explain_json(found: Explanation) -> dict[str, Any]:
    """The keys of `explain --json` (docs/reference/budget.md)."""
    setup = found.setup
    fields = asdict(setup)
    assumed = fields.pop("assumed")
    return {
        **fields,
        "batch_size": setup.batch_size,
        "compute": setup.compute,
        "on_policy": setup.on_policy,
        "form": found.form,
        "assumed": list(assumed),
        "odd": [{"code": note.code, "message": note.message} for note in found.warnings],
        "unknown": [{"key": key, "meant": meant} for key, meant in found.unknown.items()],
        "text": found.text,
    }
