"""`isocompute ablate SPEC`: run a recipe without each of its parts, and compare."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from isocompute.cli import options
from isocompute.cli.study import end, watched

if TYPE_CHECKING:
    from isocompute.api import Ablated
    from isocompute.law.comparison import AblatedPart, Ablation


def command(
    spec: Annotated[str, typer.Argument(metavar="SPEC.toml", help="A study's spec, with or without [variants].")],
    out: Annotated[str | None, typer.Option(help="The study's folder; by default the spec's name.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Worker processes; by default one per core.")] = None,
    metric: options.Metric = None,
    unit: options.Unit = None,
    fit_share: Annotated[float, typer.Option(help="Share of the compute to fit; the rest is predicted.")] = 0.5,
    replicates: options.Replicates = 1000,
    seed: options.Seed = 0,
    json: options.Json = False,
) -> None:
    """Run a recipe, and the recipe without each of its parts; fit half of the compute, predict the rest, compare."""
    from isocompute.api import IncompleteError, ablate

    try:
        with watched(quiet=json) as report:
            found = ablate(
                spec=spec,
                out=out,
                workers=workers,
                metric=metric,
                unit=unit,
                share=fit_share,
                replicates=replicates,
                seed=seed,
                report=report,
            )
    except IncompleteError as error:
        end(error.result, json=json)
    else:
        if json:
            options.print_json(ablated_json(found))
        else:
            _show(found)


def ablated_json(found: Ablated) -> dict[str, Any]:
    """The keys of `ablate --json` (docs/reference/make-runs.md)."""
    return {
        "folder": found.folder,
        "metric": found.metric,
        "unit": found.unit,
        **_ablation_json(found.ablation),
        "tasks": {name: _ablation_json(ablation) for name, ablation in found.tasks.items()},
    }


def _ablation_json(ablation: Ablation) -> dict[str, Any]:
    return {
        "fit_share": ablation.share,
        "recipe": _part_json(ablation.whole),
        "parts": [_part_json(part) for part in ablation.parts],
    }


def _part_json(part: AblatedPart) -> dict[str, Any]:
    return {
        "name": part.name or "whole",
        "seeds": len(part.fit.curves),
        "asymptote": part.fit.ceiling,
        "asymptote_interval": list(part.fit.ceiling_interval()),
        "asymptote_of_first_part": part.half.ceiling,
        "predicted": part.predicted,
        "predicted_interval": list(part.predicted_interval),
        "reached": part.reached,
        "verdict": part.verdict,
        "comparison": None if part.comparison is None else part.comparison.to_json(),
    }


def _show(found: Ablated) -> None:
    from isocompute.cli.show import console, heading

    screen = console()
    tables = {found.metric: found.ablation, **{f"{n}/{found.metric}": a for n, a in found.tasks.items()}}
    for metric, ablation in tables.items():
        screen.print(
            heading(f"{metric} against {found.unit.replace('_', '-')}; fitted on the first {ablation.share:.0%}")
        )
        _show_table(screen, ablation)
    typer.echo(f"runs: {found.folder}")


def _show_table(screen: Any, ablation: Ablation) -> None:
    from isocompute.cli.show import table
    from isocompute.core.formatting import pair, value

    rows = []
    for part in (ablation.whole, *ablation.parts):
        against = part.comparison
        both = "–"
        if against is not None:
            both = f"{against.efficiency_b.efficiency:.2f} / {against.efficiency_a.efficiency:.2f}"
        rows.append(
            [
                part.name or "the recipe",
                f"{value(part.fit.ceiling)} ({pair(part.fit.ceiling_interval())})",
                both,
                "–" if against is None else f"{against.speed_ratio:.2f}×",
                f"{value(part.predicted)} ({pair(part.predicted_interval)})",
                value(part.reached),
                part.verdict,
            ]
        )
    columns = ["without", "ceiling A (95%)", "B / recipe's", "slower", "predicted (95%)", "reached", "the part"]
    screen.print(table(columns, rows))
    errors = [abs(error) for error in ablation.errors]
    mean = value(sum(errors) / len(errors))
    typer.echo(f"the end, predicted from the first {ablation.share:.0%} of the compute: off by {mean} on average")
