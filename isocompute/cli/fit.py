"""`isocompute fit RUNS`: curves, frontier, n*(C), trade-offs, the joint law; writes law.json."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from isocompute.cli import options
from isocompute.errors import InputError

if TYPE_CHECKING:
    from isocompute.law import Law
    from isocompute.law.optimum import Optimum

__all__ = ["command", "show"]


def command(
    runs: Annotated[list[str], typer.Argument(help="Run folders, a folder of runs, tables, or PATH::NAME.")],
    metric: options.Metric = None,
    unit: options.Unit = None,
    columns: options.Columns = None,
    where: options.Where = None,
    problems_per_batch: options.Problems = None,
    rollouts_per_problem: options.Rollouts = None,
    points: Annotated[str, typer.Option(help="Fit 'all' points, or only the paper's 'records'.")] = "all",
    bin_width: Annotated[float, typer.Option("--bin", help="Reward bin of record-breaking points.")] = 0.005,
    replicates: options.Replicates = 1000,
    seed: options.Seed = 0,
    out: Annotated[str | None, typer.Option(help="Write the law, with its uncertainty, for plan to read.")] = None,
    chart: options.Chart = None,
    json: options.Json = False,
) -> None:
    """Find the law of a set of runs: curves, frontier, n*(C), trade-offs, with an error on every number."""
    if points not in ("all", "records"):
        raise InputError(f"--points {points}: it is 'all' or 'records'.")
    if chart:
        from isocompute.report.style import check_format

        check_format(chart)
    from isocompute import api
    from isocompute.law import law_to_json, write_law

    loaded = options.load_runs(runs, columns, where, problems_per_batch, rollouts_per_problem)
    law = api.fit(
        loaded, metric=metric, unit=unit, points=points, bin_width=bin_width, replicates=replicates, seed=seed
    )
    if out:
        write_law(law, out)
    if chart:
        from isocompute.report.charts import law_chart
        from isocompute.report.style import save

        save(law_chart(law), chart)
    if json:
        options.print_json(law_to_json(law))
    else:
        show(law)
        for written in filter(None, (out, chart)):
            typer.echo(f"wrote {written}")


def show(law: Law) -> None:
    """The law on a terminal: the answer first, then what it rests on."""
    from isocompute.cli.show import console, count, heading, number, pair, table, value
    from isocompute.law.fits import SEEN

    screen = console()
    screen.print(_answer(law), style="bold")
    shown = sorted(law.runs, key=lambda r: (r.curve.problems_per_batch or 0, r.curve.rollouts_per_problem or 0))
    rows = [
        [
            run.curve.name,
            count(run.curve.problems_per_batch),
            count(run.curve.rollouts_per_problem),
            f"{run.fit.family.name} ({run.fit.weights[run.fit.family.name]:.0%})",
            value(run.fit.ceiling) + ("" if run.fit.rise_done >= SEEN else "?"),
            pair(run.fit.ceiling_interval()),
            f"{run.fit.rmse:.4f}",
            f"{len(run.curve.compute_C)}",
            f"{run.records}",
        ]
        for run in shown[:60]
    ]
    columns = ["run", "Bp", "n", "form", "ceiling", "95%", "rmse", "points", "records"]
    screen.print(heading(f"Curves of {law.metric}"))
    screen.print(table(columns, rows))
    if any(run.fit.rise_done < SEEN for run in law.runs):
        screen.print(f"?: less than {SEEN:.0%} of the rise to this ceiling is done; it hangs on the form", style="dim")
    if len(law.runs) > 60:
        screen.print(f"… and {len(law.runs) - 60} more; --json has all", style="dim")
    if law.joint.frontier.switches:
        steps = [
            [number(s.compute), _setting(law, s.before), _setting(law, s.after), value(s.value)]
            for s in law.joint.frontier.switches
        ]
        screen.print(heading(f"Switches on the frontier (compute in {law.unit})"))
        screen.print(table(["at", "from", "to", "value"], steps))
    for title, rows in (("at fixed problems per batch", _by_problems(law)), ("at fixed batch size", _by_batch(law))):
        if rows:
            axis = "C" if "problems" in title else "M"
            screen.print(heading(f"n* {title}"))
            screen.print(table([title[9:], "low " + axis, "high " + axis, "95%", "midpoint"], rows))
    _show_sensitivity(law)
    if law.surface is not None and law.surface.left_out:
        inner = [left for left in law.surface.left_out if not left.edge] or list(law.surface.left_out)
        error = sum(left.rmse for left in inner) / len(inner)
        screen.print(
            f"\nJoint law R(C; n, Bp): {law.surface.family.name}, rmse {law.surface.rmse:.4f}; "
            f"an n left out is predicted to {error:.4f}"
        )
    for note in law.notes:
        screen.print(f"note: {note}", style="yellow")


def _answer(law: Law) -> str:
    from isocompute.cli.show import number

    best = law.joint.rollouts
    if best is None:
        return f"{len(law.runs)} run(s); no n*(C): it needs runs with at least two known n"
    low, high = _low(best), _high(best)
    interval = f"95% {best.ceiling_interval[0]:.0f}–{best.ceiling_interval[1]:.0f}"
    if not best.rises:
        return f"n* does not rise with compute here: {high} throughout ({interval})"
    ends = "levels off inside the data" if best.saturates else "no levelling off inside the data"
    return f"n* rises from {low} to {high} ({interval}), half-way at {number(10**best.log10_C0)} {law.unit}; {ends}"


def _setting(law: Law, index: int) -> str:
    problems, rollouts = law.joint.fits[index].setting
    if rollouts is None:
        return law.joint.fits[index].curves[0].name
    return f"n = {rollouts}" if problems is None else f"{problems} × {rollouts}"


def _by_problems(law: Law) -> list[list[str]]:
    from isocompute.cli.show import number

    if len(law.by_problems) < 2:
        return []
    return [
        [
            f"Bp = {t.value}",
            _low(t.rollouts),
            _high(t.rollouts),
            f"{t.rollouts.ceiling_interval[0]:.0f}–{t.rollouts.ceiling_interval[1]:.0f}",
            number(10**t.rollouts.log10_C0),
        ]
        for t in law.by_problems
        if t.rollouts is not None
    ]


def _by_batch(law: Law) -> list[list[str]]:
    from isocompute.cli.show import number

    return [
        [
            f"B = {t.value}",
            _low(t.rollouts),
            _high(t.rollouts),
            f"{t.rollouts.ceiling_interval[0]:.0f}–{t.rollouts.ceiling_interval[1]:.0f}",
            f"{number(10**t.rollouts.log10_C0)} updates",
        ]
        for t in law.by_batch
        if t.rollouts is not None
    ]


def _low(best: Optimum) -> str:
    """n* at the small end, as a bound where it is one."""
    return f"≤ {best.smallest:.0f}" if best.floor_is_bound else f"{best.floor:.0f}"


def _high(best: Optimum) -> str:
    """n* at the large end, as a bound where it is one."""
    if best.ceiling <= best.smallest * 1.01:
        return f"≤ {best.smallest:.0f}"
    return f"≥ {best.largest:.0f}" if best.ceiling_is_bound else f"{best.ceiling:.0f}"


def _show_sensitivity(law: Law) -> None:
    from isocompute.cli.show import console, pair, value

    for varied, symbol, other in (("rollouts_per_problem", "n", "Bp"), ("problems_per_batch", "Bp", "n")):
        first = next((s for s in law.slices if s.varied == varied), None)
        if first is not None:
            at = "" if first.fixed is None else f" at {other} = {first.fixed}"
            console().print(
                f"\nSensitivity to {symbol}{at}: {value(first.range)} ({pair(first.range_interval)}) between "
                f"{symbol} = {first.settings[0]} and {first.settings[-1]}"
            )
