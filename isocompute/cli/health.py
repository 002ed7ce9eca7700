"""`isocompute health RUN…`: is this run healthy? Findings with their evidence, and an exit code for CI."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from isocompute.cli import options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from isocompute.health import Health
    from isocompute.runs import RunSet

__all__ = ["command"]


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
    """Look runs over: entropy, length, truncation, KL, gradients, reward. Code 1 where there is a problem."""
    import warnings

    from isocompute import api
    from isocompute.runs.model import NonFiniteWarning

    if follow:
        checked = _follow(paths, problems_per_batch, rollouts_per_problem, json=json)
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NonFiniteWarning)  # a finding of its own
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
    """Findings as they come, each once: a line each, or an object a line."""
    import warnings

    from isocompute import api
    from isocompute.logs import follow
    from isocompute.runs import RunWarning

    said: set[tuple[str, str, str, int | None]] = set()
    last: list[Health] = []

    def read() -> RunSet:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RunWarning)  # a line half written, a cell without a point: they will come
            return options.load_runs(paths, None, None, problems_per_batch, rollouts_per_problem)

    def changed(runs: RunSet) -> None:
        last[:] = api.check_health(runs, paths=paths)
        for health in last:
            for finding in health.findings:
                key = (health.run, finding.code, finding.severity, finding.since_step)
                if key in said:
                    continue
                said.add(key)
                if json:
                    options.print_json({"run": health.run, **finding.to_json()})
                else:
                    at = "" if finding.since_step is None else f"step {finding.since_step}: "
                    typer.echo(f"{health.run}: {finding.severity}: {at}{finding.code}: {finding.evidence}")

    follow.watch([path.split("::", 1)[0] for path in paths], read=read, changed=changed)  # PATH::NAME is one run
    return last


def _json(checked: Sequence[Health]) -> dict[str, Any]:
    """The keys of `health --json` (docs/health.md)."""
    from isocompute.health.model import Verdict

    worst = max((health.verdict for health in checked), key=get_args(Verdict).index)
    return {"verdict": worst, "runs": [health.to_json() for health in checked]}


def _show(checked: Sequence[Health]) -> None:
    from isocompute.cli.show import console
    from isocompute.health.model import Verdict

    screen = console()
    styles = {"healthy": "green", "unknown": "cyan", "warning": "yellow", "problem": "bold red"}
    for health in checked:
        screen.print(f"{health.verdict:8} {health.run}", style=styles[health.verdict], soft_wrap=True)
        for finding in health.findings:
            at = "" if finding.since_step is None else f"step {finding.since_step}: "
            screen.print(f"  {finding.severity}: {at}{finding.code}: {finding.evidence}", soft_wrap=True)
            screen.print(f"    {finding.advice} [{finding.source}]", style="dim", soft_wrap=True)
    if len(checked) == 1:
        missing = [f"{check.code} (log {check.needs})" for check in checked[0].checks if not check.ran]
        ran = len(checked[0].checks) - len(missing)
        screen.print(f"{ran} of {len(checked[0].checks)} checks could run", style="dim")
        if missing:
            screen.print(f"not run: {'; '.join(missing)}", style="dim", soft_wrap=True)
    else:
        counts = {verdict: sum(health.verdict == verdict for health in checked) for verdict in get_args(Verdict)}
        told = [f"{count} {verdict}" for verdict, count in counts.items() if count or verdict != "unknown"]
        screen.print(f"\n{len(checked)} runs: {', '.join(told)}")
