"""`isocompute import PATH…`: any trainer's logs as run folders; the format is recognised by content."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from isocompute.cli import options

if TYPE_CHECKING:
    from isocompute.data.importing import Imports


def command(
    paths: Annotated[list[str], typer.Argument(help="Logs: files, folders, globs, - for standard input.")],
    format: Annotated[
        str | None, typer.Option(help="The format, such as verl, trl-console, wandb, table; recognised if not given.")
    ] = None,
    out: Annotated[
        str | None, typer.Option(help="Folder for the run folders; runs/ if not given. With --json only if given.")
    ] = None,
    problems_per_batch: options.Problems = None,
    rollouts_per_problem: options.Rollouts = None,
    follow: Annotated[bool, typer.Option("--follow", help="Read again as the logs grow; stop with Ctrl-C.")] = False,
    json: options.Json = False,
) -> None:
    """Read trainers' logs into run folders: veRL, TRL, prime-rl, OpenRLHF, SkyRL, NeMo-RL, trackers, tables."""
    from isocompute.data.importing import import_logs, summary, warn_of_differing_names, write_runs
    from isocompute.data.watch import watch

    folder = None if json and out is None else Path(out or "runs")
    given = {"problems_per_batch": problems_per_batch, "rollouts_per_problem": rollouts_per_problem}

    def read() -> Imports:
        return import_logs(paths, format=format, **given)

    def report(imports: Imports) -> None:
        warn_of_differing_names({item.run.name: item.ignored_name for item in imports}, given)
        written = write_runs(imports, folder) if folder is not None else []
        if json:
            options.print_json({"runs": [summary(item) for item in imports], "left_out": list(imports.left_out)})
        else:
            _show(imports, written, folder)

    if follow:
        watch(paths, read=read, changed=report)
    else:
        report(read())


def _show(imports: Imports, written: list[Path], folder: Path | None) -> None:
    from isocompute.cli.show import console, short, table
    from isocompute.core.formatting import count, plural

    screen = console()
    rows = []
    for item in imports:
        settings = item.run.settings
        again = f"{item.replaced} replaced" if item.replaced else ""
        skipped = f"{plural(item.skipped_lines, 'line')} skipped" if item.skipped_lines else ""
        rows.append(
            [
                short(item.run.name),
                item.format,
                f"{item.run.points.height}",
                f"{item.validation_points}",
                count(settings.problems_per_batch),
                count(settings.rollouts_per_problem),
                ", ".join(_main(item.run.metrics)),
                ", ".join(filter(None, (again, skipped))),
            ]
        )
    columns = ["run", "format", "points", "held out", "Bp", "n", "metrics", ""]
    screen.print(table(columns, rows))
    for note in _notes(imports):
        screen.print(f"note: {note}", style="dim", soft_wrap=True)
    for left_out in imports.left_out[:10]:
        reason = left_out.split(". Looked for", 1)[0]
        screen.print(f"left out: {reason}", style="dim", soft_wrap=True)
    if len(imports.left_out) > 10:
        screen.print(f"left out: {len(imports.left_out) - 10} more", style="dim")
    if folder is not None:
        screen.print(f"wrote {plural(len(written), 'run')} to {folder}/", soft_wrap=True)


def _notes(imports: Imports) -> list[str]:
    """A line for each note with its run; values that come from the names of several runs share one line."""
    from isocompute.data.importing import FROM_NAME

    by_note: dict[str, list[str]] = {}
    in_names: dict[str, list[int]] = {}
    for item in imports:
        for note in item.notes:
            by_note.setdefault(note, []).append(item.run.name)
            what, _, value = note.removesuffix(FROM_NAME).partition(" = ")
            if note.endswith(FROM_NAME):
                in_names.setdefault(what, []).append(int(value))
    folded = {what: values for what, values in in_names.items() if len(values) > 1}
    lines = [
        f"{what} = {', '.join(map(str, sorted(set(values))))} from the names of {len(values)} runs"
        for what, values in folded.items()
    ]
    for note, runs in by_note.items():
        if not (note.endswith(FROM_NAME) and note.partition(" = ")[0] in folded):
            whose = "" if len(runs) == len(imports) else f"{runs[0]}: " if len(runs) == 1 else f"{len(runs)} runs: "
            lines.append(f"{whose}{note}")
    return lines


def _main(metrics: list[str]) -> list[str]:
    """The most important metrics, those with a standard name first."""
    ours = ("avg@", "best@", "train/avg", "value", "entropy", "kl", "response_length")
    named = [m for prefix in ours for m in metrics if (m.startswith(prefix) if "@" in prefix else m == prefix)]
    shown = list(dict.fromkeys(m for m in named if m.count("/") <= (m == "train/avg")))[:2] or metrics[:1]
    return [*shown, *(["…"] if len(metrics) > len(shown) else [])]
