"""The `isocompute` program: its commands, errors and exit codes (0 done, 1 failed, 2 wrong input)."""

from __future__ import annotations

import sys
import warnings
from collections import UserDict
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from isocompute._version import __version__
from isocompute.cli.options import refuse_retired
from isocompute.core.errors import InputError

_SECTIONS = {
    "Start": {
        "quickstart": "The paper's sweep on the simulator, its law and a plan.",
        "web": "A study in the browser: plan, figures, runs, claims.",
    },
    "Your runs": {
        "import": "Logs of veRL, TRL and others into run folders.",
        "fit": "The scaling law of runs: curves, frontier, n*(C).",
        "forecast": "The future reward of runs, with an interval.",
        "compare": "How two recipes differ: in their ceiling, or in speed.",
        "health": "Problems of a run, and since when.",
        "claims": "The papers' claims, judged on these runs.",
        "report": "A page with the answer, figures, methods and runs.",
    },
    "Spend a budget": {
        "plan": "Problems, rollouts, updates and a recipe, with error bars.",
        "export": "A plan as a trainer's config.",
        "explain": "The Bp, n, M and C of a trainer's config.",
    },
    "Make runs": {
        "study": "Run a sweep, show its progress, list its runs.",
        "train": "Train one model by reinforcement learning.",
        "ablate": "A recipe against the same without each of its parts.",
        "split": "Split a problem set by difficulty.",
        "lm": "Base models and measurements of the engine.",
    },
}
"""Sections of the help, with a short description of each command."""
_MODULES = {name: name for section in _SECTIONS.values() for name in section} | {"import": "import_", "ui": "web"}
"""The module of each command in this folder; `ui` is what `web` was called in 0.1."""
_EXTRAS = dict.fromkeys(("torch", "safetensors", "tokenizers", "transformers"), "rl")
_EXTRAS |= {"fastapi": "web", "uvicorn": "web"}
"""The extra that installs each package."""


class _Commands(UserDict[str, Any]):
    """Commands by name; a module is imported when its command is looked up."""

    def __init__(self) -> None:
        super().__init__(dict.fromkeys(_MODULES))

    def __getitem__(self, name: str) -> TyperCommand | TyperGroup:
        if self.data[name] is None:
            module = import_module(f"isocompute.cli.{_MODULES[name]}")
            alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
            if hasattr(module, "app"):
                alone.add_typer(module.app, name=name)
                self.data[name] = typer.main.get_group(alone).commands[name]
            else:
                alone.command(name)(module.command)
                self.data[name] = typer.main.get_command(alone)
            self.data[name].hidden = name == "ui"
        found: TyperCommand | TyperGroup = self.data[name]
        return found


class _Program(TyperGroup):
    """The program's group; its help lists the commands in sections, as plain text, without importing any of them."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = _Commands()

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write a section for each panel, with all names in one column."""
        del ctx
        width = max(len(name) for section in _SECTIONS.values() for name in section)
        for title, section in _SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), line) for name, line in section.items()])


app = typer.Typer(
    cls=_Program,
    help="How to spend compute on reinforcement learning of language models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


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
