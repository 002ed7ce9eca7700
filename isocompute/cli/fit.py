"""`isocompute fit RUNS`: curves, frontier, n*(C), trade-offs, the joint law; writes law.json."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from isocompute.cli import options
from isocompute.core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from isocompute.law.frontier import Optimum
    from isocompute.law.law import Law, Tradeoff


def command(
    runs: Annotated[list[str], typer.Argument(help="Run folders, a folder of runs, tables, or PATH::NAME.")],
    metric: options.Metric = None,
    unit: options.Unit = None,
    columns: options.Columns = None,
    where: options.Where = None,
    without: options.Without = None,
    problems_per_batch: options.Problems = None,
    rollouts_per_problem: options.Rollouts = None,
    points: Annotated[str, typer.Option(help="Fit 'all' points, or only the paper's 'records'.")] = "all",
    bin_width: Annotated[
        float, typer.Option("--bin", help="Bin of record-breaking points, as a share of the scale.")
    ] = 0.005,
    replicates: options.Replicates = 1000,
    seed: options.Seed = 0,
    out: Annotated[str | None, typer.Option(help="Write the law, with its uncertainty, for plan to read.")] = None,
    chart: options.Chart = None,
    json: options.Json = False,
) -> None:
    """Fit the scaling law of a set of runs: curves, frontier, n*(C), trade-offs, with intervals."""
    if points not in ("all", "records"):
        raise InputError(f"--points {points}: it is 'all' or 'records'.")
    if chart:
        from isocompute.report.charts.style import check_format

        check_format(chart)
    from isocompute import api
    from isocompute.law.store import check_out, write_law

    if out:
        check_out(out)  # before the fit, which takes a while
    with options.captured_warnings() as caught:
        loaded = options.load_runs(runs, columns, where, problems_per_batch, rollouts_per_problem, without=without)
        law = api.fit(
            loaded, metric=metric, unit=unit, points=points, bin_width=bin_width, replicates=replicates, seed=seed
        )
    if chart:
        from isocompute.report.charts.commands import law_chart
        from isocompute.report.charts.style import save

        save(law_chart(law), chart)  # before the law, so that nothing is written if it fails
    if out:
        write_law(law, out)
    if json:
        options.print_json(law.to_json(), caught=caught)
    else:
        show(law)
        for written in filter(None, (out, chart)):
            typer.echo(f"wrote {written}")


def show(law: Law) -> None:
    """Print the law: the answer first, then curves, switches and optima."""
    from isocompute.cli.show import EXTRAPOLATED, ceiling, console, heading, table
    from isocompute.core.formatting import count, number, pair, value

    screen = console()
    screen.print(_answer(law), style="bold")
    shown = sorted(law.runs, key=lambda r: (r.curve.problems_per_batch or 0, r.curve.rollouts_per_problem or 0))
    rows = [
        [
            run.curve.name,
            count(run.curve.problems_per_batch),
            count(run.curve.rollouts_per_problem),
            f"{run.fit.form} ({run.fit.form_weights[run.fit.form]:.0%})",
            ceiling(run.fit.ceiling, run.fit.rise_done),
            pair(run.fit.ceiling_interval()),
            f"{run.fit.rmse:.4f}",
            f"{run.points}",
            f"{run.records}",
        ]
        for run in shown[:60]
    ]
    columns = ["run", "Bp", "n", "form", "ceiling", "95%", "rmse", "points", "records"]
    screen.print(heading(f"Curves of {law.metric}"))
    screen.print(table(columns, rows))
    if any("?" in row[4] for row in rows):
        screen.print(EXTRAPOLATED, style="dim")
    if len(law.runs) > 60:
        screen.print(f"… and {len(law.runs) - 60} more; --json has all", style="dim")
    if law.joint.frontier.switches:
        steps = [
            [
                number(s.compute),
                _setting(law, s.before),
                _setting(law, s.after),
                value(s.value),
                "overtakes" if s.crosses else "starts or continues alone",
            ]
            for s in law.joint.frontier.switches
        ]
        screen.print(heading(f"Switches on the frontier (compute in {law.unit})"))
        screen.print(table(["at", "from", "to", "value", "the new one"], steps))
    for title, rows in (
        ("at fixed problems per batch", _optima(law.by_problems, "Bp") if len(law.by_problems) > 1 else []),
        ("at fixed batch size", _optima(law.by_batch, "B", " updates")),
    ):
        if rows:
            axis = "C" if "problems" in title else "M"
            screen.print(heading(f"n* {title}"))
            screen.print(table([title[9:], "low " + axis, "high " + axis, "95%", "midpoint"], rows))
    _show_sensitivity(law)
    if law.surface is not None and law.surface.left_out:
        inner = [left for left in law.surface.left_out if not left.edge] or list(law.surface.left_out)
        error = sum(left.rmse for left in inner) / len(inner)
        screen.print(
            f"\nJoint law R(C; n, Bp): {law.surface.form}, rmse {law.surface.rmse:.4f}; "
            f"an n left out is predicted to {error:.3g}"
        )
    for note in law.notes:
        if "no n*(C)" not in note:  # that is the answer, above
            screen.print(f"note: {note}", style="yellow")


def _answer(law: Law) -> str:
    from isocompute.core.formatting import number, pair, plural, value

    best = law.joint.rollouts
    if best is None:
        why = next((note for note in law.notes if "no n*(C)" in note), None)
        missing = "no n*(C): it needs runs with at least two known n over the same compute"
        return f"{plural(len(law.runs), 'run')}; {why or missing}"
    low, high = _low(best), _high(best)
    moved, interval = best.movement, f"95% {best.ceiling_interval[0]:.0f}–{best.ceiling_interval[1]:.0f}"
    if best.direction in ("flat", "unclear"):
        values = sorted(set(best.estimate_C.tolist()))
        if len(values) == 1:
            return f"n* is {high if low == high else format(values[0], '.0f')} at every budget ({interval})"
        spread = f"between {values[0]:.0f} and {values[-1]:.0f}"
        undecided = f"whether it rises with compute is undecided ({_p_value(moved.rises)})"
        why = "without a trend" if best.direction == "flat" else undecided
        return f"n* moves {spread}; {why} ({interval} at the end)"
    ends = "levels off inside the data" if best.saturates else "no levelling off inside the data"
    return (
        f"n* {best.direction} from {low} to {high} ({interval}), half-way at {number(best.halfway)} {law.unit}"
        + (f"; {ends}" if best.rises else "")
        + f"\nAt the end it leads the n that led before by {value(moved.lead)} ({pair(moved.lead_interval)}); "
        f"{_p_value(min(moved.rises, moved.falls))}"
    )


def _p_value(p: float) -> str:
    return "p < .01" if p < 0.01 else "p = " + f"{p:.2f}".removeprefix("0")


def _setting(law: Law, index: int) -> str:
    problems, rollouts = law.joint.fits[index].setting
    if rollouts is None:
        return law.joint.fits[index].curves[0].name
    return f"n = {rollouts}" if problems is None else f"{problems} × {rollouts}"


def _optima(tradeoffs: Sequence[Tradeoff], symbol: str, unit: str = "") -> list[list[str]]:
    """A row for each trade-off: its fixed value, and where n* starts, ends and is half-way."""
    return [
        [
            f"{symbol} = {t.value}",
            _low(t.rollouts),
            _high(t.rollouts),
            f"{t.rollouts.ceiling_interval[0]:.0f}–{t.rollouts.ceiling_interval[1]:.0f}",
            f"{_middle(t.rollouts)}{unit}",
        ]
        for t in tradeoffs
        if t.rollouts is not None
    ]


def _low(best: Optimum) -> str:
    from isocompute.law.frontier import at_end

    return at_end(best.floor, best.floor_bound)


def _high(best: Optimum) -> str:
    from isocompute.law.frontier import at_end

    return at_end(best.ceiling, best.ceiling_bound)


def _middle(best: Optimum) -> str:
    from isocompute.core.formatting import number

    return number(best.halfway) if best.direction in ("rises", "falls") else "–"


def _show_sensitivity(law: Law) -> None:
    from isocompute.cli.show import console
    from isocompute.core.formatting import number, pair, value

    for varied, symbol, other in (("rollouts_per_problem", "n", "Bp"), ("problems_per_batch", "Bp", "n")):
        first = next((s for s in law.slices if s.varied == varied), None)
        if first is not None:
            at = "" if first.fixed is None else f" at {other} = {first.fixed}"
            order = sorted(zip(first.values, first.settings, strict=True))
            console().print(
                f"\nSensitivity to {symbol}{at}, {number(first.compute)} {law.unit}: {value(first.range)} "
                f"({pair(first.range_interval)}) from {symbol} = {order[0][1]} to {symbol} = {order[-1][1]}"
            )
