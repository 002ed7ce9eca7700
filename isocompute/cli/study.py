"""`isocompute study run|status|runs`: a sweep, resumable at any moment."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isocompute.cli import options
from isocompute.core.formatting import number

if TYPE_CHECKING:
    from rich.console import Console

    from isocompute.sweep import CellStatus, Result
    from isocompute.sweep.folder import Progress, Report

STOPPED = 130
"""Exit code after Ctrl-C, as in shells."""
_SHOWN_ERRORS = 5
_EVERY_SECONDS = 5.0

app = typer.Typer(help="Run a sweep, show its progress, list its runs.", no_args_is_help=True, rich_markup_mode=None)
Folder = Annotated[str, typer.Argument(help="The study's folder, or its fsspec address.")]


@app.command("run")
def run(
    spec: Annotated[str, typer.Argument(metavar="SPEC.toml", help="The study's spec (docs/reference/study-toml.md).")],
    out: Annotated[str | None, typer.Option(help="The study's folder; by default the spec's name.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Worker processes; by default one per core.")] = None,
    on: Annotated[str, typer.Option(help="Where cells run: local, ray, or ray=ADDRESS.")] = "local",
    fork: Annotated[bool, typer.Option("--fork", help="Start a new folder NAME-2, NAME-3, …")] = False,
    json: options.Json = False,
) -> None:
    """Run the remaining cells of a study; the same command resumes after a stop, a crash or a kill."""
    import isocompute.sweep as study

    with watched(quiet=json) as report:
        result = study.run(spec=spec, out=out, workers=workers, on=on, fork=fork, report=report)
    end(result, json=json)


@contextmanager
def watched(*, quiet: bool) -> Iterator[Report]:
    """Report the progress of a study on standard error; a second Ctrl-C ends it with one line.

    Progress is a bar on a terminal, else, or if `quiet`, a plain line every few seconds.
    """
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bars

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    last, reported_stop = time.monotonic(), False

    def write(progress: Progress) -> None:
        nonlocal last, reported_stop
        _show_failure(console, progress)
        now = time.monotonic()
        if now - last >= _EVERY_SECONDS or progress.stopping > reported_stop:
            last, reported_stop = now, progress.stopping
            console.print(_line(progress), markup=False)

    try:
        if not console.is_terminal or quiet:
            yield write
            return
        with Bars(BarColumn(), TextColumn("{task.description}", markup=False), console=console, transient=True) as bars:
            task = bars.add_task("starting")

            def draw(progress: Progress) -> None:
                _show_failure(console, progress)
                bars.update(
                    task, total=progress.total_rollouts, completed=progress.rollouts, description=_line(progress)
                )

            yield draw
    except KeyboardInterrupt:
        typer.echo("stopped at once; the same command resumes from the last checkpoints.", err=True)
        raise typer.Exit(STOPPED) from None


def _show_failure(console: Console, progress: Progress) -> None:
    if progress.failure is not None:
        first = (progress.failure.error.splitlines() or [""])[0]
        console.print(f"failed: {progress.failure.name}: {first}", markup=False)


def _line(progress: Progress) -> str:
    """`12/78 cells, 2 running, 1 failed · 3.1M rollouts/s · 40 s left`."""
    cells = f"{progress.finished}/{progress.cells} cells"
    if progress.running:
        cells += f", {progress.running} running"
    if progress.failed:
        cells += f", {progress.failed} failed"
    left = progress.seconds_left
    parts = [cells, f"{number(progress.rate)} rollouts/s"]
    if progress.stopping:
        parts.append("stopping, Ctrl-C again stops at once")
    elif left is not None:
        parts.append(f"{duration(left)} left")
    return " · ".join(parts)


def duration(seconds: float) -> str:
    """Seconds as text.

    >>> duration(42.0), duration(3 * 60 + 5), duration(30 * 3600)
    ('42 s', '3 min 05 s', '30 h 00 min')
    """
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def end(result: Result, *, json: bool) -> None:
    """Print how a study ended, and exit with a code if it is not finished."""
    if json:
        options.print_json(run_json(result))
    else:
        _show_result(result)
    if result.unwritable:
        typer.echo(f"error: {result.unwritable}; what is written is kept; fix this and run the same command.", err=True)
    if result.stopped:
        raise typer.Exit(STOPPED)
    if result.unwritable or result.failed:
        raise typer.Exit(1)


def run_json(result: Result) -> dict[str, Any]:
    """The keys of `study run --json` (docs/reference/make-runs.md)."""
    return {
        "folder": result.folder,
        "cells": result.cells,
        "finished": result.finished,
        "skipped": result.skipped,
        "failed": [{"cell": name, "error": error} for name, error in result.failed.items()],
        "stopped": result.stopped,
        "unwritable": result.unwritable,
        "seconds": result.seconds,
        "rollouts": result.new_rollouts,
    }


def _show_result(result: Result) -> None:
    from isocompute.core.formatting import plural

    skipped = f" ({result.skipped} of them earlier)" if result.skipped else ""
    typer.echo(
        f"{result.folder}: {result.finished} of {plural(result.cells, 'cell')} finished{skipped}, "
        f"{number(result.new_rollouts)} rollouts in {duration(result.seconds)}"
    )
    if result.failed:
        typer.echo(f"{len(result.failed)} failed; the same command tries them again:")
        _show_errors(list(result.failed.items()))
    if result.stopped:
        typer.echo("stopped; the same command resumes from here.")


def _show_errors(errors: list[tuple[str, str]]) -> None:
    from isocompute.sweep.execute import headline

    for name, error in errors[:_SHOWN_ERRORS]:
        first, *rest = headline(error).splitlines() or [""]
        typer.echo(f"  {name}: {first}")
        for line in rest:
            typer.echo(f"    {line}")
    if len(errors) > _SHOWN_ERRORS:
        typer.echo(f"  … and {len(errors) - _SHOWN_ERRORS} more; `isocompute study runs` lists all.")


@app.command("status")
def status(folder: Folder, json: options.Json = False) -> None:
    """Show the progress of a study, running or not, from any terminal."""
    import isocompute.sweep as study
    from isocompute.core.formatting import plural

    data = study.status_to_json(folder, study.status(folder=folder))
    if json:
        options.print_json(data)
        return
    counts = ", ".join(f"{data[state]} {state}" for state in study.STATES if data[state])
    share = data["rollouts"] / data["total_rollouts"] if data["total_rollouts"] else 1.0
    typer.echo(f"{folder}: {plural(data['cells'], 'cell')}: {counts}")
    typer.echo(f"{number(data['rollouts'])} of {number(data['total_rollouts'])} rollouts ({share:.1%})")
    if data["errors"]:
        typer.echo("failed:")
        _show_errors([(error["cell"], error["error"]) for error in data["errors"]])


@app.command("runs")
def runs(folder: Folder, json: options.Json = False) -> None:
    """List a study's runs: allocation, state and last evaluation of each."""
    import isocompute.sweep as study

    cells = study.StudyFolder(folder).status(points=True)
    if json:
        options.print_json({"folder": folder, "runs": [cell.to_json() for cell in cells]})
        return
    from isocompute.cli.show import console, table
    from isocompute.core.formatting import value

    metric = _shown_metric(cells)
    rows = [
        [
            cell.cell.name,
            str(cell.cell.problems_per_batch),
            str(cell.rollouts_per_problem or "–"),
            str(cell.update_steps),
            cell.state,
            f"{number(cell.rollouts)} of {number(cell.total)}",
            value((cell.last or {}).get(metric)),
        ]
        for cell in cells
    ]
    console().print(table(["run", "Bp", "n", "updates", "state", "rollouts", metric or "value"], rows))


def _shown_metric(cells: list[CellStatus]) -> str:
    """The metric of the table's last column: the first avg@k that a run has."""
    names = (name for cell in cells for name in cell.last or {})
    return next((name for name in names if name.startswith("avg@")), "")
