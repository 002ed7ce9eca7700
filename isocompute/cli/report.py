"""`isocompute report STUDY|LOGS…`: one page with the answer, the papers' figures from these runs, methods and runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from isocompute.cli import options
from isocompute.core.errors import InputError

if TYPE_CHECKING:
    from isocompute.report.evidence import Evidence
    from isocompute.report.page import Report


def command(
    runs: Annotated[
        list[str] | None,
        typer.Argument(help="A study, run folders, tables or a trainer's logs; PATH::NAME is one run."),
    ] = None,
    out: Annotated[
        str | None, typer.Option(help="File to write: report.html, or with --figure any of .html, .png, .svg, .pdf.")
    ] = None,
    figure: Annotated[str | None, typer.Option(help="Draw only this figure; --figures lists them.")] = None,
    figures: Annotated[bool, typer.Option("--figures", help="List the figures.")] = False,
    budget: Annotated[
        str | None, typer.Option(help="Plan for 2e6 (rollouts), 3e9tok or 500h; the runs' own compute by default.")
    ] = None,
    metric: options.Metric = None,
    unit: options.Unit = None,
    columns: options.Columns = None,
    where: options.Where = None,
    without: options.Without = None,
    problems_per_batch: options.Problems = None,
    rollouts_per_problem: options.Rollouts = None,
    replicates: options.Replicates = 1000,
    seed: options.Seed = 0,
    json: options.Json = False,
) -> None:
    """Write a page about the runs: the answer, the two papers' figures from your data, methods, runs."""
    if figures:
        _list(json)
        return
    if not runs:
        raise InputError("no runs given; name a study, run folders, tables or a trainer's logs.")
    if figure is not None:
        from isocompute.report.charts.style import check_format
        from isocompute.report.figures import FIGURES

        if figure not in FIGURES:
            raise InputError(f"--figure {figure}: there is no such figure; figures are {', '.join(FIGURES)}.")
        if out is not None:
            check_format(out, "--out")
    from isocompute.report.evidence import Evidence
    from isocompute.report.page import check_page, write_report

    path = check_page(out or "report.html") if figure is None else None
    with options.captured_warnings() as caught:
        loaded = options.load_runs(runs, columns, where, problems_per_batch, rollouts_per_problem, without=without)
        evidence = Evidence.of(loaded, metric=metric, unit=unit, paths=runs, replicates=replicates, seed=seed)
    if path is None:
        _figure(evidence, figure or "", out, json=json, caught=caught)
        return
    report = write_report(evidence, out=path, budget=budget)
    if json:
        options.print_json(report.to_json(), caught=caught)
    else:
        _show(report, asked=budget is not None)


def _list(json: bool) -> None:
    from isocompute.cli.show import console
    from isocompute.report.figures import FIGURES

    rows = [spec.to_json() for spec in FIGURES.values()]
    if json:
        options.print_json({"figures": rows})
        return
    screen = console()
    for row in rows:
        screen.print(row["name"], style="bold")
        screen.print(f"  {row['description']} ({row['source']})")


def _figure(evidence: Evidence, name: str, out: str | None, *, json: bool, caught: list[dict[str, str]]) -> None:
    from isocompute.report.figures import Missing, draw

    drawn = draw(name, evidence)
    if isinstance(drawn, Missing):
        raise InputError(f"--figure {name}: {evidence.runs.source} does not support it; it needs {drawn.needs}")
    if out is not None or not json:
        drawn.save(out or f"{name}.png")
    if json:
        options.print_json(drawn.to_json(), caught=caught)
    else:
        typer.echo(drawn.caption)
        typer.echo(f"wrote {out or f'{name}.png'}")


def _show(report: Report, *, asked: bool) -> None:
    """Print the answers, with the reason if a plan was asked for and there is none."""
    from isocompute.cli.show import console

    screen = console()
    for answer in report.answers[:6]:
        which = f"{answer.condition}: " if answer.condition else ""
        screen.print(f"{which}{answer.headline}", style="bold")
        screen.print(f" {answer.expectation}")
        if asked and answer.why_not is not None:
            why = answer.why_not.replace(", or say --extrapolate", "")  # an option that `report` does not have
            screen.print(f" No plan: {why}", style="yellow", soft_wrap=True)
    if len(report.answers) > 6:
        screen.print(f"and {len(report.answers) - 6} more conditions")
    left_out = len(report.evidence.left_out)
    if left_out:
        screen.print(f"note: {left_out} of {len(report.evidence.runs)} runs give no curve; see Methods on the page")
    total = len(report.figures) + len(report.missing)
    screen.print(
        f"wrote {report.path} ({report.size / 1e6:.1f} MB): {len(report.figures)} of {total} figures; the page lists "
        "what the others need"
    )
