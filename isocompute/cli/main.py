"""The `isocompute` program: its commands, errors and exit codes (0 done, 1 failed, 2 wrong input)."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import typer
from typer.core import TyperGroup

from isocompute._version import __version__
from isocompute.cli import (
    ablate,
    claims,
    compare,
    explain,
    export,
    fit,
    forecast,
    health,
    import_,
    lm,
    plan,
    quickstart,
    report,
    split,
    study,
    train,
    web,
)
from isocompute.cli.options import refuse_retired
from isocompute.core.errors import InputError


class _Sections(TyperGroup):
    """A group whose help lists commands in sections, by their `rich_help_panel`, as plain text."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write a section for each panel, with all names in one column."""
        names = [name for name in self.list_commands(ctx) if not self.commands[name].hidden]
        width = max(map(len, names))
        sections: dict[str, list[tuple[str, str]]] = {}
        for name in names:
            command = self.commands[name]
            row = (name.ljust(width), command.get_short_help_str(formatter.width - width - 6))
            sections.setdefault(getattr(command, "rich_help_panel", None) or "Commands", []).append(row)
        for title, rows in sections.items():
            with formatter.section(title):
                formatter.write_dl(rows)


_COMMANDS: dict[str, dict[str, tuple[Any, str]]] = {
    "Start": {
        "quickstart": (quickstart, "The paper's sweep on the simulator, its law and a plan."),
        "web": (web, "A study in the browser: plan, figures, runs, claims."),
    },
    "Your runs": {
        "import": (import_, "Logs of veRL, TRL and others into run folders."),
        "fit": (fit, "The scaling law of runs: curves, frontier, n*(C)."),
        "forecast": (forecast, "The future reward of runs, with an interval."),
        "compare": (compare, "How two recipes differ: in their ceiling, or in speed."),
        "health": (health, "Problems of a run, and since when."),
        "claims": (claims, "The papers' claims, judged on these runs."),
        "report": (report, "A page with the answer, figures, methods and runs."),
    },
    "Spend a budget": {
        "plan": (plan, "Problems, rollouts, updates and a recipe, with error bars."),
        "export": (export, "A plan as a trainer's config."),
        "explain": (explain, "The Bp, n, M and C of a trainer's config."),
    },
    "Make runs": {
        "study": (study, "Run a sweep, show its progress, list its runs."),
        "train": (train, "Train one model by reinforcement learning."),
        "ablate": (ablate, "A recipe against the same without each of its parts."),
        "split": (split, "Split a problem set by difficulty."),
        "lm": (lm, "Base models and measurements of the engine."),
    },
}
"""Sections of the help, with the module and a short description of each command."""
_EXTRAS = dict.fromkeys(("torch", "safetensors", "tokenizers", "transformers"), "rl")
_EXTRAS |= {"fastapi": "web", "uvicorn": "web"}
"""The extra that installs each package."""


def _with_commands() -> typer.Typer:
    out = typer.Typer(
        cls=_Sections,
        help="How to spend compute on reinforcement learning of language models.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    for panel, commands in _COMMANDS.items():
        for name, (module, line) in commands.items():
            if hasattr(module, "app"):
                out.add_typer(module.app, name=name, short_help=line, rich_help_panel=panel)
            else:
                out.command(name, short_help=line, rich_help_panel=panel)(module.command)
    out.command("ui", hidden=True)(web.command)  # its name in 0.1
    return out


app = _with_commands()


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"isocompute {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """How to spend compute on reinforcement learning of language models."""


def _warn(message: Warning | str, *_: object, **__: object) -> None:
    print(f"warning: {message}", file=sys.stderr)


def main() -> None:
    """Entry point: user errors are one line and code 2, never a traceback."""
    warnings.showwarning = _warn
    try:
        refuse_retired(sys.argv[1:])
        app(prog_name="isocompute")
    except InputError as error:
        print("error:", " ".join(str(error).split()), file=sys.stderr)
        sys.exit(2)
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get(str(error.name).partition(".")[0])
        if extra is None:
            raise
        print(f"error: this needs {error.name}; pip install 'isocompute[{extra}]'.", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of standard output is gone
        sys.exit(1)
