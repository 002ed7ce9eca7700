"""`isocompute export TRAINER PLAN`: a plan as a trainer's config."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isocompute.cli import options
from isocompute.core.errors import InputError

if TYPE_CHECKING:
    from isocompute.trainers import Exported, File, RunPlan


def command(
    trainer: Annotated[str, typer.Argument(help="verl, trl, openrlhf, prime-rl, nemo-rl or skyrl.")],
    plan: Annotated[str, typer.Argument(help="A plan: `isocompute plan --json`, a table with Bp, n and M, or - .")],
    out: Annotated[
        str | None, typer.Option(help="Folder for all files, or one file with the suffix of a config.")
    ] = None,
    gpus: Annotated[int, typer.Option(min=1, help="GPUs in all.")] = 8,
    gpus_per_node: Annotated[int, typer.Option(min=1, help="GPUs of one machine.")] = 8,
    per_device: Annotated[
        str | None, typer.Option(help="What a GPU trains on at once: sequences (8) or tokens (32768tok).")
    ] = None,
    model: Annotated[str | None, typer.Option(help="The model, if the plan does not name one.")] = None,
    json: options.Json = False,
) -> None:
    """Write a plan as a trainer's config: one update sees exactly Bp · n rollouts of the current policy."""
    from isocompute.trainers import TrainingHardware, export_plan, read_plan

    read = read_plan(plan)
    if model is not None:
        read = read.model_copy(update={"model": model})
    sequences, tokens = _per_device(per_device)
    hardware = TrainingHardware(gpus=gpus, gpus_per_node=gpus_per_node, max_sequences=sequences, max_tokens=tokens)
    made = export_plan(trainer=trainer, plan=read, hardware=hardware)
    written = {} if out is None else _write(made, out)
    if json:
        options.print_json(export_json(made, read, gpus, written))
        return
    if out is None:
        typer.echo(made.files[0].text, nl=False)
    _report(made, read, written)


def _per_device(text: str | None) -> tuple[int | None, int | None]:
    """Parse `8` as sequences and `32768tok` as tokens."""
    if text is None:
        return None, None
    match = re.fullmatch(r"(\d{1,12})(tok)?", text.strip())
    if match is None or int(match[1]) < 1:
        raise InputError(f"--per-device {text}: sequences as a number (8), or tokens (32768tok).")
    return (None, int(match[1])) if match[2] else (int(match[1]), None)


def _write(made: Exported, out: str) -> dict[str, Path]:
    """Write all files into a folder, or one file if `out` has its suffix."""
    from isocompute.core.files import write_atomically

    target = Path(out)
    if target.suffix and not target.is_dir():
        fitting: list[File] = [file for file in made.files if Path(file.name).suffix == target.suffix]
        if not fitting:
            names = ", ".join(file.name for file in made.files)
            raise InputError(
                f"--out {out}: {made.trainer} has no {target.suffix} file; it has {names}. Or name a folder."
            )
        paths = {fitting[0].name: target}
    else:
        paths = {file.name: target / file.name for file in made.files}
    for file in made.files:
        if file.name in paths:
            write_atomically(paths[file.name], file.text.encode())
    return paths


def export_json(made: Exported, plan: RunPlan, gpus: int, written: dict[str, Path]) -> dict[str, Any]:
    """The keys of `export --json` (docs/reference/budget.md)."""
    return {
        "trainer": made.trainer,
        "version": made.version,
        "problems_per_batch": plan.problems_per_batch,
        "rollouts_per_problem": plan.rollouts_per_problem,
        "update_steps": plan.update_steps,
        "batch_size": plan.batch_size,
        "compute": plan.compute,
        "gpus": gpus,
        "micro_batch": made.micro_batch,
        "accumulation": made.accumulation,
        "files": [
            {"name": file.name, "path": str(written[file.name]) if file.name in written else None, "text": file.text}
            for file in made.files
        ],
        "notes": [{"code": note.code, "message": note.message} for note in made.notes],
    }


def _report(made: Exported, plan: RunPlan, written: dict[str, Path]) -> None:
    """Print a summary on standard error, since the config may be on standard output."""
    typer.echo(
        f"{made.trainer} {made.version}: {plan.problems_per_batch} problems × {plan.rollouts_per_problem} rollouts × "
        f"{plan.update_steps} updates = {plan.compute:,} rollouts",
        err=True,
    )
    for path in written.values():
        typer.echo(f"wrote {path}", err=True)
    for note in made.notes:
        typer.echo(f"note ({note.code}): {note.message}", err=True)
