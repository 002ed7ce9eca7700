"""`isocompute forecast RUNS --to 4x`: the future reward of runs; `--backtest` tests forecasts on finished runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from isocompute.cli import options

if TYPE_CHECKING:
    from collections.abc import Callable

    from isocompute.law.forecasting import Backtest, Forecast

_TO = "2x"
_REASONS = 10
"""Most reasons for leaving runs out that are shown."""


def command(
    runs: Annotated[list[str], typer.Argument(help="A run, a folder of runs, a table, or PATH::NAME.")],
    to: Annotated[
        str | None,
        typer.Option(help="Compute to forecast: a number, or a factor of the last fitted one (2x by default)."),
    ] = None,
    fit_until: Annotated[
        float | None, typer.Option(help="Use only the points up to this share (at most 1) or compute.")
    ] = None,
    backtest: Annotated[
        bool, typer.Option("--backtest", help="Forecast each run's last tenth from its first half.")
    ] = False,
    level: Annotated[float, typer.Option(min=0.05, max=0.99, help="Level of the interval.")] = 0.8,
    metric: options.Metric = None,
    unit: options.Unit = None,
    columns: options.Columns = None,
    where: options.Where = None,
    without: options.Without = None,
    problems_per_batch: options.Problems = None,
    rollouts_per_problem: options.Rollouts = None,
    chart: options.Chart = None,
    json: options.Json = False,
) -> None:
    """Forecast runs, with an interval and a verdict: improving, flat, declining or too_early."""
    from isocompute import api
    from isocompute.core.errors import InputError

    if chart:
        from isocompute.report.charts.style import check_format

        check_format(chart)
    if backtest:
        _check_backtest({"--to": to, "--fit-until": fit_until, "--chart": chart})
    to = to or _TO
    with options.captured_warnings() as caught:
        loaded = options.load_runs(runs, columns, where, problems_per_batch, rollouts_per_problem, without=without)
        if chart and len(loaded) > 1:
            raise InputError(f"--chart draws one run, these are {len(loaded)}; name one as PATH::NAME.")
        show_it: Callable[[dict[str, Any]], None]
        if backtest:
            data, show_it = backtest_json(*api.backtest(loaded, metric=metric, unit=unit, level=level)), _show_backtest
        elif len(loaded) > 1:
            found = api.forecast_all(loaded, to=to, fit_until=fit_until, metric=metric, unit=unit, level=level)
            data, show_it = forecasts_json(*found), _show_all
        else:
            made = api.forecast(loaded, to=to, fit_until=fit_until, metric=metric, unit=unit, level=level)
            data, show_it = made.to_json(), lambda _: show(made)
    if chart:
        draw(made, chart)
    if json:
        options.print_json(data, caught=caught)
    else:
        show_it(data)
        if chart:
            typer.echo(f"wrote {chart}")


def _check_backtest(options: dict[str, str | float | None]) -> None:
    """Refuse options that do not apply to a backtest."""
    from isocompute.core.errors import InputError

    for option, value in options.items():
        if value is not None:
            why = (
                "draws one forecast"
                if option == "--chart"
                else "does not apply to a backtest, which goes from half of a run to its end"
            )
            raise InputError(f"{option} {why}; leave it out with --backtest.")


def forecasts_json(made: dict[str, Forecast], left_out: dict[str, str]) -> dict[str, Any]:
    """The keys of `forecast --json` for several runs."""
    rows = [{"run": name, "metric": f.metric, "unit": f.unit, **f.to_json()} for name, f in made.items()]
    return {"runs": rows, "left_out": left_out}


def backtest_json(tests: list[Backtest], skipped: list[str]) -> dict[str, Any]:
    """The keys of `forecast --backtest --json`."""
    import numpy as np

    runs = [
        {
            "run": t.run,
            "target": t.target,
            "forecast": t.forecast.value,
            "interval": list(t.forecast.interval),
            "error": abs(t.forecast.value - t.target),
            "last_three_error": abs(t.last_three - t.target),
            "hill_error": abs(t.hill - t.target),
            "covered": t.covered,
            "verdict": t.forecast.verdict,
        }
        for t in tests
    ]
    out: dict[str, Any] = {"runs": runs, "skipped": skipped, "level": tests[0].forecast.level}
    for prefix in ("", "last_three_", "hill_"):
        errors = np.array([run[f"{prefix}error"] for run in runs], dtype=np.float64)
        out[f"{prefix}median_error"] = float(np.median(errors))
        out[f"{prefix}mean_error"] = float(errors.mean())
    out["coverage"] = float(np.mean([t.covered for t in tests]))
    return out


def show(made: Forecast) -> None:
    """Print the forecast."""
    from isocompute.cli.show import EXTRAPOLATED, ceiling, console
    from isocompute.core.formatting import number, pair, value

    screen = console()
    screen.print(
        f"{made.verdict}: {made.metric} {value(made.value)} at {number(made.at)} {made.unit} ({made.level:.0%}: "
        f"{pair(made.interval)}); now {value(made.now)}",
        style="bold",
    )
    screen.print(made.reason)
    if made.asymptote is not None:
        highest = ceiling(made.asymptote, made.rise_done)
        above = "; the forecast averages several forms and may lie above one's" if made.value > made.asymptote else ""
        screen.print(f"ceiling {highest} (95%: {pair(made.asymptote_interval)}), form {made.form}{above}")
        if "?" in highest:
            screen.print(EXTRAPOLATED, style="dim")
    shares = ", ".join(f"{name} {weight:.0%}" for name, weight in made.weights.items() if weight >= 0.005)
    screen.print(f"from {made.fitted_points} points up to {number(made.fitted_until)}; weights: {shares}", style="dim")


def _show_all(data: dict[str, Any]) -> None:
    """Print a table of runs, and why runs are left out."""
    from isocompute.cli.show import EXTRAPOLATED, ceiling, console, heading, short, table
    from isocompute.core.formatting import number, pair, plural, value
    from isocompute.core.run import listing
    from isocompute.law.forecasting import VERDICTS

    screen = console()
    runs = data["runs"]
    counts = [(sum(r["verdict"] == verdict for r in runs), verdict) for verdict in VERDICTS]
    counted = ", ".join(f"{count} {verdict}" for count, verdict in counts if count)
    screen.print(f"{plural(len(runs), 'run')}: {counted}", style="bold")
    metrics, units = ({r[key] for r in runs} for key in ("metric", "unit"))
    rows = [
        [
            short(r["run"]),
            r["verdict"],
            *([r["metric"]] if len(metrics) > 1 else []),
            value(r["now"]),
            value(r["value"]),
            pair(r["interval"]),
            number(r["at"]) + (f" {r['unit']}" if len(units) > 1 else ""),
            ceiling(r["asymptote"], r["rise_done"]),
        ]
        for r in runs
    ]
    columns = ["run", "verdict", *(["metric"] if len(metrics) > 1 else []), "now", "forecast"]
    columns += [f"{runs[0]['level']:.0%}", "at", "ceiling"]
    of = f" of {next(iter(metrics))}" if len(metrics) == 1 else ""
    screen.print(heading(f"Forecasts{of}" + (f", compute in {next(iter(units))}" if len(units) == 1 else "")))
    screen.print(table(columns, rows))
    if any(row[-1].endswith("?") for row in rows):
        screen.print(EXTRAPOLATED, style="dim")
    reasons: dict[str, list[str]] = {}
    for name, why in data["left_out"].items():
        reasons.setdefault(why, []).append(name)
    for why, names in list(reasons.items())[:_REASONS]:
        screen.print(f"left out: {listing(names, 3)}: {why}", style="yellow", soft_wrap=True)
    if len(reasons) > _REASONS:
        screen.print(f"… and {len(reasons) - _REASONS} other reasons; --json has all", style="dim")


def _show_backtest(data: dict[str, Any]) -> None:
    from isocompute.cli.show import console, heading, table
    from isocompute.core.formatting import pair, plural, value

    screen = console()
    rows = [
        [
            r["run"],
            value(r["target"]),
            value(r["forecast"]),
            pair(r["interval"]),
            value(r["error"]),
            value(r["last_three_error"]),
            value(r["hill_error"]),
            r["verdict"],
        ]
        for r in data["runs"]
    ]
    columns = ["run", "reached", "forecast", f"{data['level']:.0%}", "error", "last three", "Hill", "verdict"]
    screen.print(heading("First half in, mean of the last tenth out"))
    screen.print(table(columns, rows))
    summary = [
        [name, f"{data[f'{key}median_error']:.4f}", f"{data[f'{key}mean_error']:.4f}"]
        for name, key in (("isocompute", ""), ("mean of the last three", "last_three_"), ("Hill fit", "hill_"))
    ]
    screen.print(heading("Absolute error"))
    screen.print(table(["forecaster", "median", "mean"], summary))
    screen.print(f"\n{data['level']:.0%} intervals hold {data['coverage']:.0%} of {plural(len(rows), 'run')}")
    if data["skipped"]:
        screen.print(f"too short and skipped: {', '.join(data['skipped'][:10])}", style="dim")


def draw(made: Forecast, chart: str) -> None:
    """Save the chart of a run's forecast, with the later points if there are any."""
    from dataclasses import replace

    from isocompute.report.charts.commands import forecast_chart
    from isocompute.report.charts.style import save

    curve, end = made.curve, made.fitted_points
    later = None
    if end < len(curve.compute_C):
        later = replace(curve, compute_C=curve.compute_C[end:], values_C=curve.values_C[end:])
    save(forecast_chart(curve.until(end), made, metric=made.metric, unit=made.unit, later=later), chart)
