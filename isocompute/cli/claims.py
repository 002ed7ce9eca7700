"""`isocompute claims STUDY|LOGS…`: the two papers' claims, judged on these runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from isocompute.cli import options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from isocompute.core.run import RunSet
    from isocompute.diagnose.verdicts import Claim


def command(
    paths: Annotated[
        list[str], typer.Argument(metavar="STUDY|LOGS…", help="Studies, runs, tables, or trainers' logs.")
    ],
    metric: options.Metric = None,
    columns: options.Columns = None,
    where: options.Where = None,
    without: options.Without = None,
    problems_per_batch: options.Problems = None,
    rollouts_per_problem: options.Rollouts = None,
    all_: Annotated[bool, typer.Option("--all", help="List what each claim without runs needs.")] = False,
    json: options.Json = False,
) -> None:
    """Judge the papers' claims on these runs: each holds, fails, or is undecided with the runs it needs."""
    from isocompute import api
    from isocompute.diagnose.claims import metric_of

    with options.captured_warnings() as caught:
        runs = options.load_runs(paths, columns, where, problems_per_batch, rollouts_per_problem, without=without)
        _warn_of_end_points(runs)
        chosen = metric_of(runs, metric)
        claims = api.judge_claims(runs, metric=chosen)
    if json:
        options.print_json({"claims": [claim.to_json() for claim in claims]}, caught=caught)
    else:
        _show(claims, chosen, needs=all_)


def _warn_of_end_points(runs: RunSet) -> None:
    """Warn if no run counts compute, which every claim needs."""
    import warnings
    from dataclasses import replace

    from isocompute.core.curve import choose_unit
    from isocompute.core.errors import InputError
    from isocompute.core.run import RunWarning

    for run in runs:
        try:
            choose_unit(replace(runs, runs=(run,)))
        except InputError as error:
            why = error
        else:
            return
    warnings.warn(f"{why} Claims are about curves; end points decide none.", RunWarning, stacklevel=2)


def _show(claims: Sequence[Claim], metric: str, *, needs: bool) -> None:
    from isocompute.cli.show import console, heading
    from isocompute.core.formatting import number, plural

    screen = console()
    counts = [f"{sum(c.verdict == v for c in claims)} {v}" for v in ("holds", "fails", "undecided")]
    screen.print(f"{', '.join(counts)}; metric: {metric}", style="bold")
    styles = {"holds": "green", "fails": "red", "undecided": "yellow"}
    judged = [claim for claim in claims if claim.runs]
    for claim in judged:
        where = claim.code.partition("/")[2]
        screen.print()
        screen.print(
            f"{claim.verdict:9} {claim.statement}{f' ({where})' if where else ''}", style=styles[claim.verdict]
        )
        value = claim.statistic.get("value")
        if isinstance(value, float) and claim.interval is not None:
            low, high = (number(x) for x in claim.interval)
            screen.print(
                f"          {number(value)} (95% {low} to {high}) {claim.statistic.get('unit', '')}", soft_wrap=True
            )
        if claim.needs:
            screen.print(f"          needs {claim.needs}", soft_wrap=True)
        screen.print(f"          {plural(len(claim.runs), 'run')} · {claim.source}", style="dim")
    missing = [claim for claim in claims if not claim.runs]
    if not missing:
        return
    screen.print(heading("Undecided for lack of runs" + ("" if needs else "; --all lists what each needs")))
    if not needs:
        screen.print(", ".join(claim.code for claim in missing))
        return
    for claim in missing:
        screen.print(f"{claim.statement} [{claim.source}]", soft_wrap=True)
        screen.print(f"  needs {claim.needs}", style="dim", soft_wrap=True)
