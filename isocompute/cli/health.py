"""`isocompute health RUN…`: findings with their evidence, and an exit code for CI."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from isocompute.cli import options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from isocompute.core.run import RunSet
    from isocompute.diagnose.health import Finding, Health

_STYLES = {"healthy": "green", "unknown": "cyan", "warning": "yellow", "problem": "bold red"}
"""Verdict → colour, from best to worst."""


def command(
    paths: Annotated[
        list[str], typer.Argument(metavar="RUN|LOG…", help="Runs, folders of runs, tables, or trainers' logs.")
    ],
    follow: Annotated[
        bool, typer.Option("--follow", help="Print findings as the run grows; stop with Ctrl-C.")
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="End with code 1 on warnings too, and where nothing could be checked.")
    ] = False,
    problems_per_batch: options.Problems = None,
    rollouts_per_problem: options.Rollouts = None,
    json: options.Json = False,
) -> None:
    """Check runs: entropy, length, truncation, KL, gradients, reward. Code 1 where there is a problem."""
    from isocompute import api
    from isocompute.core.errors import quiet
    from isocompute.core.run import NonFiniteWarning

    if follow:
        checked = _follow(paths, problems_per_batch, rollouts_per_problem, json=json)
    else:
        with quiet(NonFiniteWarning):  # the check `non_finite` reports it
            runs = options.load_runs(paths, None, None, problems_per_batch, rollouts_per_problem)
        checked = api.check_health(runs, paths=paths)
        if json:
            options.print_json(_json(checked))
        else:
            _show(checked)
    bad = ("problem", "warning", "unknown") if strict else ("problem",)
    if any(health.verdict in bad for health in checked):
        raise typer.Exit(1)


def _follow(
    paths: list[str], problems_per_batch: int | None, rollouts_per_problem: int | None, *, json: bool
) -> Sequence[Health]:
    """Print each new finding as a line of text or JSON, until Ctrl-C."""
    from isocompute import api
    from isocompute.core.errors import quiet
    from isocompute.core.run import RunWarning
    from isocompute.data import watch as follow

    printed: set[tuple[str, str, str, int | None]] = set()
    last: list[Health] = []

    def read() -> RunSet:
        with quiet(RunWarning):  # half-written lines, and cells that have no points yet
            return options.load_runs(paths, None, None, problems_per_batch, rollouts_per_problem)

    def changed(runs: RunSet) -> None:
        last[:] = api.check_health(runs, paths=paths)
        for health in last:
            for finding in health.findings:
                key = (health.run, finding.code, finding.severity, finding.since_step)
                if key in printed:
                    continue
                printed.add(key)
                if json:
                    options.print_json({"run": health.run, **finding.to_json()})
                else:
                    typer.echo(f"{health.run}: {_line(finding)}")

    follow.watch([path.split("::", 1)[0] for path in paths], read=read, changed=changed)  # PATH::NAME is one run
    return last


def _json(checked: Sequence[Health]) -> dict[str, Any]:
    """The keys of `health --json` (docs/reference/your-runs.md)."""
    from isocompute.diagnose.health import Verdict

    worst = max((health.verdict for health in checked), key=get_args(Verdict).index)
    return {"verdict": worst, "runs": [health.to_json() for health in checked]}


def _line(finding: Finding) -> str:
    at = "" if finding.since_step is None else f"step {finding.since_step}: "
    return f"{finding.severity}: {at}{finding.code}: {finding.evidence}"


def _show(checked: Sequence[Health]) -> None:
    from isocompute.cli.show import console

    screen = console()
    unknown = [health for health in checked if health.verdict == "unknown"]
    for health in checked:
        if len(unknown) > 1 and health.verdict == "unknown":
            continue
        ran = f" ({_ran(health)})" if len(checked) > 1 else ""
        screen.print(f"{health.verdict:8} {health.run}{ran}", style=_STYLES[health.verdict], soft_wrap=True)
        for finding in health.findings:
            screen.print(f"  {_line(finding)}", soft_wrap=True)
            screen.print(f"    {finding.advice} [{finding.source}]", style="dim", soft_wrap=True)
    if len(unknown) > 1:
        _show_unknown(screen, unknown)
    if len(checked) == 1:
        _show_missing(screen, checked[0])
    else:
        counts = {verdict: sum(health.verdict == verdict for health in checked) for verdict in _STYLES}
        shown = [f"{count} {verdict}" for verdict, count in counts.items() if count or verdict != "unknown"]
        screen.print(f"\n{len(checked)} runs: {', '.join(shown)}")


def _show_unknown(screen: Console, unknown: Sequence[Health]) -> None:
    """Print the runs on which no check ran as one line, with the first metric to log."""
    from isocompute.core.run import listing

    names = listing([health.run for health in unknown], 3)
    needs = next(check.needs for check in unknown[0].checks if check.code == "reward_fall")
    text = f"unknown  {len(unknown)} runs with nothing to check: {names}; log {needs}"
    screen.print(text, style=_STYLES["unknown"], soft_wrap=True)


def _show_missing(screen: Console, health: Health) -> None:
    """Print how many checks ran, and what the others need."""
    screen.print(f"{_ran(health)} ran", style="dim")
    missing = [f"{check.code} (log {check.needs})" for check in health.checks if not check.ran]
    if missing:
        screen.print(f"not run: {'; '.join(missing)}", style="dim", soft_wrap=True)


def _ran(health: Health) -> str:
    return f"{sum(check.ran for check in health.checks)} of {len(health.checks)} checks"
