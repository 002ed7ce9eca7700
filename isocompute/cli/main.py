"""`isocompute`: the commands, their errors and exit codes (0 done, 1 the work failed, 2 the input is wrong)."""

from __future__ import annotations

import sys
import warnings

import typer

from isocompute import __version__
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
    ui,
)
from isocompute.errors import InputError

__all__ = ["app", "main"]

app = typer.Typer(
    help="How to spend compute on reinforcement learning of language models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("fit")(fit.command)
app.command("forecast")(forecast.command)
app.command("compare")(compare.command)
app.command("claims")(claims.command)
app.command("health")(health.command)
app.command("plan")(plan.command)
app.command("import")(import_.command)
app.command("quickstart")(quickstart.command)
app.command("report")(report.command)
app.command("export")(export.command)
app.command("explain")(explain.command)
app.command("ablate")(ablate.command)
app.command("split")(split.command)
app.command("train")(train.command)
app.command("ui")(ui.command)
app.add_typer(study.app, name="study")
app.add_typer(lm.app, name="lm")


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
        app(prog_name="isocompute")
    except InputError as error:
        print("error:", " ".join(str(error).split()), file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output has gone; nothing is left to say
        sys.exit(1)
