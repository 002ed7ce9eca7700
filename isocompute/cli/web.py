"""`isocompute web STUDY`: the study in a browser, served to this machine only."""

from __future__ import annotations

from typing import Annotated

import typer

from isocompute.cli import options


def command(
    study: Annotated[str, typer.Argument(help="A study's folder, a folder of runs or of logs, or a table.")],
    columns: options.Columns = None,
    where: options.Where = None,
    without: options.Without = None,
    problems_per_batch: options.Problems = None,
    rollouts_per_problem: options.Rollouts = None,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Port; by default 8321 or the next that is free.")
    ] = None,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Do not open a browser.")] = False,
    json: options.Json = False,
) -> None:
    """Open a study in the browser: plan, figures, runs, claims and comparisons, live while it runs."""
    from isocompute.web.server import bind, serve
    from isocompute.web.source import LoadOptions

    served = bind(
        study,
        port=port,
        options=LoadOptions(
            where=options.pairs("--where", where),
            problems_per_batch=problems_per_batch,
            rollouts_per_problem=rollouts_per_problem,
            columns=options.pairs("--columns", columns),
            without=tuple(without or ()),
        ),
    )
    if json:
        options.print_json({"url": served.url, "study": study})
    else:
        typer.echo(f"{study} is at {served.url} (this machine only); Ctrl-C ends")
    serve(served, browser=not no_browser)
