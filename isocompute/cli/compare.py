"""`isocompute compare A B`: which of two recipes scales better: ceiling, efficiency and overtakings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from isocompute.cli import options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from isocompute.core.run import RunSet
    from isocompute.law.comparison import Comparison


def command(
    a: Annotated[str, typer.Argument(help="One recipe: a run, a folder of its seeds, a table, or PATH::NAME.")],
    b: Annotated[str, typer.Argument(help="The other recipe.")],
    metric: options.Metric = None,
    unit: options.Unit = None,
    columns: options.Columns = None,
    where: options.Where = None,
    without: options.Without = None,
    replicates: options.Replicates = 1000,
    seed: options.Seed = 0,
    chart: options.Chart = None,
    json: options.Json = False,
) -> None:
    """Compare two recipes: do they differ in their ceiling, or only in how fast they reach it?"""
    from isocompute import api

    if chart:
        from isocompute.report.charts.style import check_format

        check_format(chart)
    with options.captured_warnings() as caught:
        sides = _without([options.load_runs([side], columns, where) for side in (a, b)], without or ())
        result = api.compare(sides[0], sides[1], metric=metric, unit=unit, replicates=replicates, seed=seed)
    names = _names(a, b)
    if chart:
        from isocompute.report.charts.commands import comparison_chart
        from isocompute.report.charts.style import save

        save(comparison_chart(result, metric=result.metric, unit=result.unit, names=names), chart)
    if json:
        options.print_json(result.to_json(), caught=caught)
    else:
        _show(result, *names)
        if chart:
            typer.echo(f"wrote {chart}")


def _without(sides: list[RunSet], without: Sequence[str]) -> list[RunSet]:
    """Both sides without the runs of --without, which may all be on one side."""
    from dataclasses import replace

    from isocompute.core.errors import InputError
    from isocompute.data.loading import excluded_runs

    gone = excluded_runs([run.name for side in sides for run in side], without)
    for side in sides:
        if gone.issuperset(run.name for run in side):
            raise InputError(f"--without {without[0]}: no run of {side.source} remains; leave fewer out.")
    return [replace(side, runs=tuple(run for run in side if run.name not in gone)) for side in sides]


def _names(a: str, b: str) -> tuple[str, str]:
    """Names of the sides: the last part of each address, marked first and second if they are the same."""
    name_a, name_b = (side.rsplit("::", maxsplit=1)[-1].rstrip("/").rsplit("/", 1)[-1] for side in (a, b))
    return (f"{name_a} (first)", f"{name_b} (second)") if name_a == name_b else (name_a, name_b)


def _show(result: Comparison, name_a: str, name_b: str) -> None:
    from isocompute.cli.show import console, heading, table
    from isocompute.core.formatting import number, pair, value

    names = {"a": name_a, "b": name_b}
    screen = console()
    low, high = result.interval
    ahead = (-high, -low) if result.higher == "b" else (low, high)
    far = min(((result.a, name_a), (result.b, name_b)), key=lambda side: side[0].rise_done)
    ceiling = (
        f"which ceiling is higher is undecided: {names[result.unrisen]} was run for less and has not begun to rise"
        if result.unrisen is not None
        else f"which ceiling is higher is undecided: {far[1]} has done {far[0].rise_done:.0%} of the rise to its "
        "fitted ceiling; run it longer"
        if result.higher == "undecided"
        else f"the ceilings do not differ by more than the error ({low:+.3f} to {high:+.3f}, {result.error_rule})"
        if result.higher == "same"
        else f"{names[result.higher]} has the higher ceiling, by {abs(result.difference):.3f} "
        f"({ahead[0]:+.3f} to {ahead[1]:+.3f}, {result.error_rule})"
    )
    fast_low, fast_high = result.speed_ratio_interval
    speed = (
        "which is faster is undecided: a midpoint lies outside the data"
        if result.faster == "undecided"
        else f"neither is faster to half of the rise to the common ceiling ({fast_low:.2f}–{fast_high:.2f}×)"
        if result.faster == "same"
        else f"{names[result.faster]} needs less compute for half of the rise to the common ceiling "
        f"({name_b} / {name_a}: {result.speed_ratio:.2f}×, {fast_low:.2f}–{fast_high:.2f})"
    )
    screen.print(f"{ceiling};\n{speed}", style="bold")
    rows = [
        [
            name,
            fit.form,
            value(fit.ceiling),
            pair(fit.ceiling_interval()),
            f"{e.efficiency:.2f}",
            f"{e.efficiency_interval[0]:.2f}–{e.efficiency_interval[1]:.2f}",
            number(e.midpoint),
            f"{number(e.midpoint_interval[0])}–{number(e.midpoint_interval[1])}",
        ]
        for name, fit, e in (
            (name_a, result.a, result.efficiency_a),
            (name_b, result.b, result.efficiency_b),
        )
    ]
    columns = ["recipe", "form", "ceiling A", "95%", "efficiency B", "95%", "midpoint", "95%"]
    screen.print(heading(f"B and midpoint at the common ceiling {value(result.common_ceiling)}"))
    screen.print(table(columns, rows))
    for collapse in result.collapses:
        run = "" if collapse.run == names[collapse.side] else f" (run '{collapse.run}')"
        screen.print(
            f"{names[collapse.side]}{run} collapsed after {number(collapse.after)} and is at "
            f"{value(collapse.value)}: all of this but who is ahead now is about what came before",
            style="yellow",
        )
    if result.collapses:
        now = {"same": "neither is ahead now"}.get(result.ahead_now, f"{names.get(result.ahead_now)} is ahead now")
        screen.print(now, style="yellow")
    for o in result.overtakings:
        beyond = " (beyond the data)" if o.extrapolated else ""
        screen.print(
            f"{names[o.winner]} overtakes at {number(o.compute)}{beyond}, 95% {number(o.interval[0])}–"
            f"{number(o.interval[1])}, in {o.probability:.0%} of replicates"
        )
    if not result.overtakings:
        screen.print("no overtaking up to four times the compute seen")
