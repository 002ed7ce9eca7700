"""`isocompute import PATH…`: any trainer's logs as runs; the format is found by content."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isocompute.cli import options

if TYPE_CHECKING:
    from isocompute.data.logs import Imports

__all__ = ["command"]


def command(
    paths: Annotated[list[str], typer.Argument(help="Logs: files, folders, globs, - for standard input.")],
    format: Annotated[
        str | None, typer.Option(help="Insist on a format, such as verl, trl-console, wandb, table.")
    ] = None,
    out: Annotated[
        str | None, typer.Option(help="Folder for the run folders; runs/ if not given. With --json only if given.")
    ] = None,
    problems_per_batch: options.Problems = None,
    rollouts_per_problem: options.Rollouts = None,
    follow: Annotated[bool, typer.Option("--follow", help="Go on as the logs grow; stop with Ctrl-C.")] = False,
    json: options.Json = False,
) -> None:
    """Read trainers' logs into run folders: veRL, TRL, prime-rl, OpenRLHF, SkyRL, NeMo-RL, trackers, tables."""
    from isocompute.data.logs import import_logs
    from isocompute.data.logs.follow import follow as go_on
    from isocompute.data.logs.importing import warn_of_names
    from isocompute.data.logs.write import write

    folder = None if json and out is None else Path(out or "runs")

    def report(imports: Imports) -> None:
        fill = {"problems_per_batch": problems_per_batch, "rollouts_per_problem": rollouts_per_problem}
        warn_of_names({item.run.name: item.overruled for item in imports}, fill)
        written = write(imports, folder) if folder is not None else []
        if json:
            options.print_json(_json(imports))
        else:
            _show(imports, written, folder)

    how: dict[str, Any] = {
        "format": format,
        "problems_per_batch": problems_per_batch,
        "rollouts_per_problem": rollouts_per_problem,
    }
    if follow:
        go_on(paths, **how, changed=report)
    else:
        report(import_logs(paths, **how))


def _json(imports: Imports) -> dict[str, Any]:
    """The keys of `import --json` (docs/import.md)."""
    from isocompute.data.logs.write import summary

    return {"runs": [summary(item) for item in imports], "left_out": list(imports.left_out)}


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
        screen.print(f"left out: {_first_sentence(left_out)}", style="dim", soft_wrap=True)
    if len(imports.left_out) > 10:
        screen.print(f"left out: {len(imports.left_out) - 10} more", style="dim")
    if folder is not None:
        screen.print(f"wrote {plural(len(written), 'run')} to {folder}/", soft_wrap=True)


def _notes(imports: Imports) -> list[str]:
    """A line a note, with whose it is; what the names of several runs say is one line, whatever they say."""
    from isocompute.data.logs.importing import FROM_NAME

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


def _first_sentence(text: str) -> str:
    return text.split(". Looked for", 1)[0]


def _main(metrics: list[str]) -> list[str]:
    """The metrics worth a place on the screen: ours, the validation first."""
    ours = ("avg@", "best@", "train/avg", "value", "entropy", "kl", "response_length")
    named = [m for prefix in ours for m in metrics if (m.startswith(prefix) if "@" in prefix else m == prefix)]
    shown = list(dict.fromkeys(m for m in named if m.count("/") <= (m == "train/avg")))[:2] or metrics[:1]
    return [*shown, *(["…"] if len(metrics) > len(shown) else [])]
