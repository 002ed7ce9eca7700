"""`isocompute quickstart`: a sweep on the simulator, its law, the paper's rules, a plan and a report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isocompute.cli import options
from isocompute.cli.study import STOPPED
from isocompute.core.errors import InputError

if TYPE_CHECKING:
    from isocompute.law.frontier import Optimum, Slice
    from isocompute.law.law import Law
    from isocompute.sweep.folder import Progress, Report

_SPEC = """# The IsoCompute paper's grid (section 4) on the simulator; `isocompute study run` takes this file as it is.
engine = "sim"
seeds = [{seed}]

[problems]
set = "{set}"

[recipe]
name = "isocompute-{set}"

[grid]
problems_per_batch = [32, 64, 128, 256, 512, 1024]
rollouts_per_problem = [8, 16, 32, 64, 128, 256, 512, 1024, 2048]
max_batch = 65536

[budget]
rollouts = {budget}
"""
_SETS = ("easy", "hard")
_LEAST = 1_000_000
"""Fewest rollouts of a cell: 15 updates of the largest batch."""
_LEAST_PLANNED = 10_000
_MOST = 10**15
"""Most rollouts that `plan` plans for."""


def command(
    out: Annotated[str, typer.Option(help="Folder for the runs, the laws and the charts.")] = "quickstart",
    budget: Annotated[str, typer.Option(help="Rollouts of every cell, such as 2e6 or 2M; at least 1M.")] = "4e6",
    plan_for: Annotated[
        str | None, typer.Option(help="Budget to plan for, in rollouts, at least 10k; half of --budget by default.")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; all cores by default.")] = None,
    seed: options.Seed = 0,
    json: options.Json = False,
) -> None:
    """Sweep the simulator over the paper's grid on an easy and a hard set, and print the results."""
    from isocompute import api
    from isocompute.core import files
    from isocompute.data.loading import load
    from isocompute.law.store import write_law
    from isocompute.report.charts.commands import law_chart
    from isocompute.report.charts.style import save
    from isocompute.report.evidence import Evidence
    from isocompute.report.page import write_report

    rollouts = _rollouts("--budget", budget, least=_LEAST)
    spend = rollouts / 2 if plan_for is None else _rollouts("--plan-for", plan_for, least=_LEAST_PLANNED)
    if files.is_remote(out):
        raise InputError(f"--out {out}: the quickstart writes to a local folder; give a path.")
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--out {out}: this is a file; give another folder.")
    for name in _SETS:
        _sweep(folder / name, name, budget=rollouts, seed=seed, workers=workers, quiet=json)
    runs = replace(load([folder / name for name in _SETS]), source=str(folder))
    evidence = Evidence.of(runs, metric="exact/avg@4", seed=seed)
    laws: dict[tuple[str, str], Law] = {}
    for condition in evidence.conditions:
        name = str(condition.ingredient("problems"))
        laws[name, "avg@4"] = law = evidence.law(condition)
        for metric in ("best@4", "worst@4"):
            laws[name, metric] = api.fit(condition.runs, metric=f"exact/{metric}", replicates=300, seed=seed)
        write_law(law, folder / name / "law.json")
        for ending in ("png", "html"):
            save(law_chart(law), folder / name / f"law.{ending}")
    report = write_report(evidence, out=folder / "report.html", budget=spend)
    if json:
        options.print_json(_json(laws, spend) | {"report": str(report.path)})
        return
    _show(laws, spend, rollouts)
    typer.echo(f"\nwrote {folder}/easy and {folder}/hard: study.toml, the runs, law.json, law.png, law.html")
    typer.echo(f"wrote {report.path}: {len(report.figures)} figures, methods and runs; open it in a browser")
    typer.echo(f"next: isocompute fit {folder}/easy --metric exact/avg@4")


def _rollouts(option: str, text: str, *, least: int) -> int:
    """Parse an option in rollouts, as `plan` parses a budget."""
    from isocompute.planner.request import Budget, parse_budget

    try:
        asked = parse_budget(text)
    except InputError:
        asked = Budget(0.0, "rollouts")
    if asked.unit != "rollouts" or asked.amount < least:
        raise InputError(f"{option} {text}: give rollouts, at least {least:,}, such as 2e6 or 2M.")
    if asked.amount > _MOST:
        raise InputError(f"{option} {text}: this is too large; give at most {_MOST:,}, such as 2e6 or 2M.")
    return round(asked.amount)


def _sweep(folder: Path, name: str, *, budget: int, seed: int, workers: int | None, quiet: bool) -> None:
    from isocompute import sweep as study
    from isocompute.core import files

    spec = folder.parent / f"{name}.toml"
    files.write_atomically(spec, _SPEC.format(set=name, seed=seed, budget=budget).encode())
    try:
        result = study.run(spec=spec, out=folder, workers=workers, report=_reporter(name, quiet=quiet))
    finally:
        spec.unlink()  # the study keeps its own copy
    if result.failed or result.unwritable:
        first = next(iter(result.failed.items()), ("", result.unwritable))
        typer.echo(f"error: the {name} sweep did not finish: {first[0]} {first[1]}; run the command again.", err=True)
        raise typer.Exit(1)
    if result.stopped or (result.interrupted and name != _SETS[-1]):
        typer.echo(f"stopped in the {name} sweep; the same command resumes from here.", err=True)
        raise typer.Exit(STOPPED)
    rate = result.new_rollouts / max(result.seconds, 1e-9)
    cells = f"{result.cells} cells" if not result.skipped else f"{result.cells} cells, {result.skipped} done before"
    if not quiet:
        typer.echo(f"{name}: {cells} of {budget:,} rollouts in {result.seconds:.0f} s, {rate / 1e6:.1f} M rollouts/s")


def _reporter(name: str, *, quiet: bool) -> Report:
    """A reporter that prints a line every ten seconds."""
    last = [0.0]

    def report(progress: Progress) -> None:
        if not quiet and progress.seconds - last[0] >= 10.0:
            last[0] = progress.seconds
            left = progress.seconds_left
            eta = "" if left is None else f", about {left:.0f} s left"
            typer.echo(f"{name}: {progress.finished} of {progress.cells} cells{eta}")

    return report


def _json(laws: dict[tuple[str, str], Law], plan_for: float) -> dict[str, Any]:
    """The keys of `quickstart --json` (docs/reference/start.md)."""
    return {
        "laws": [
            {"set": name, "metric": metric, "optimal_rollouts": law.to_json()["optimal_rollouts"]}
            for (name, metric), law in laws.items()
        ],
        "rules": [{"rule": rule, "holds": holds, "found": found} for rule, holds, found in _rules(laws)],
        "plans": [_plan(name, laws[name, "avg@4"], plan_for) for name in ("easy", "hard")],
    }


def _plan(name: str, law: Law, plan_for: float) -> dict[str, Any]:
    """The plan that `isocompute plan` makes from the same runs, as JSON."""
    from isocompute.api import plan

    found = plan(budget=plan_for, law=law)
    chosen, ranked = found.allocation, found.chosen.ranked
    other = found.alternatives[0] if found.alternatives else None
    return {
        "set": name,
        "problems_per_batch": chosen.problems_per_batch,
        "rollouts_per_problem": chosen.rollouts_per_problem,
        "update_steps": chosen.update_steps,
        "compute": chosen.compute,
        "expected": {"metric": "avg@4", "value": ranked.value, "interval": list(ranked.interval), "level": 0.8},
        "probability_best": ranked.probability_best,
        "answer": found.answer,
        "next": None
        if other is None
        else {
            "setting": [other.allocation.problems_per_batch, other.allocation.rollouts_per_problem],
            "regret": other.ranked.regret,
        },
    }


def _show(laws: dict[tuple[str, str], Law], plan_for: float, budget: int) -> None:
    from isocompute.cli.show import console, heading, table
    from isocompute.core.formatting import number

    screen = console()
    budgets = [c for c in (1e5, 3e5, 1e6, 3e6, 1e7, 3e7) if c <= budget]
    rows = []
    for (name, metric), law in laws.items():
        best = law.joint.rollouts
        if best is None:
            continue
        cells = [_at(best, compute) for compute in budgets]
        rows.append([f"{name} {metric}", *cells, _levels(best)])
    screen.print(heading("The best n at a budget (95% interval), among all Bp; exact pass rates on held-out problems"))
    screen.print(table(["", *[number(c) for c in budgets], "levels off"], rows))
    screen.print(heading("The paper's rules, and what was found here"))
    for rule, holds, found in _rules(laws):
        word = "undecided" if holds is None else "holds" if holds else "does not hold"
        screen.print(f" {word:13s}  {rule}: {found}")
    screen.print(heading(f"A plan for {number(plan_for)} rollouts"))
    for name in ("easy", "hard"):
        plan = _plan(name, laws[name, "avg@4"], plan_for)
        low, high = plan["expected"]["interval"]
        screen.print(
            f" {name}: {plan['problems_per_batch']} problems × {plan['rollouts_per_problem']} rollouts × "
            f"{plan['update_steps']} updates, expect avg@4 {plan['expected']['value']:.3f} ({low:.3f}–{high:.3f}); "
            f"{plan['answer']}"
        )


def _at(best: Optimum, compute: float) -> str:
    import numpy as np

    i = int(np.clip(np.searchsorted(best.x_C, compute), 0, len(best.x_C) - 1))
    low, high = best.interval_C2[i]
    sign = {"<=": "≤ ", ">=": "≥ ", None: ""}[best.bound_C[i]]
    return f"{sign}{best.estimate_C[i]:.0f} ({low:.0f}–{high:.0f})"


def _levels(best: Optimum) -> str:
    if not best.rises:
        return {"falls": "falls", "unclear": "undecided"}.get(best.direction, "does not rise")
    return f"at {best.ceiling:.0f}" if best.saturates else "not inside the data"


def _rules(laws: dict[tuple[str, str], Law]) -> list[tuple[str, bool | None, str]]:
    """The rules of the abstract and of figure 8: text, whether it holds (None: undecided), and the numbers."""
    easy, hard = (laws[name, "avg@4"].joint.rollouts for name in ("easy", "hard"))
    if easy is None or hard is None:
        return []
    out: list[tuple[str, bool | None, str]] = [
        (
            "the best n rises with compute and levels off",
            _rise_and_level(easy, hard),
            "; ".join(
                f"{name} {_moves(o)} {_ceiling(o)}, {_levels(o)}" for name, o in (("easy", easy), ("hard", hard))
            ),
        ),
        (
            "the hard set levels off at a smaller n",
            _above(easy.ceiling_interval, hard.ceiling_interval) if hard.saturates and easy.saturates else None,
            f"hard {_ceiling(hard)}, easy {_ceiling(easy)}; {_levels(hard)} and {_levels(easy)}",
        ),
    ]
    for name in ("easy", "hard"):
        over_bp, over_n = (_widest(laws[name, "avg@4"], key) for key in ("problems_per_batch", "rollouts_per_problem"))
        if over_bp is not None and over_n is not None:
            out.append(
                (
                    f"Bp matters less than n ({name})",
                    _above(over_n.range_interval, over_bp.range_interval),
                    f"range {over_bp.range:.3f} over Bp, {over_n.range:.3f} over n",
                )
            )
    for name, larger, smaller in (("easy", "worst@4", "best@4"), ("hard", "best@4", "worst@4")):
        wants, other = (laws[name, metric].joint.rollouts for metric in (larger, smaller))
        if wants is not None and other is not None:
            out.append(
                (
                    f"on the {name} set {larger} wants a larger n than {smaller}",
                    _above(wants.ceiling_interval, other.ceiling_interval),
                    f"{larger} {_ceiling(wants)}, {smaller} {_ceiling(other)}",
                )
            )
    return out


def _widest(law: Law, varied: str) -> Slice | None:
    """The slice along `varied` with the most settings."""
    return max((s for s in law.slices if s.varied == varied), key=lambda s: len(s.settings), default=None)


def _above(a: tuple[float, float], b: tuple[float, float]) -> bool | None:
    """Whether interval a lies above b; None if they overlap."""
    if a[0] > b[1]:
        return True
    return False if a[1] < b[0] else None


def _rise_and_level(*optima: Optimum) -> bool | None:
    """Whether all rise and level off; None if one is undecided or has not levelled off yet."""
    if any(best.direction in ("flat", "falls") for best in optima):
        return False
    return True if all(best.rises and best.saturates for best in optima) else None


def _moves(best: Optimum) -> str:
    return {"rises": "rises to", "falls": "falls to", "flat": "stays at"}.get(best.direction, "ends at")


def _ceiling(best: Optimum) -> str:
    from isocompute.law.frontier import at_end

    low, high = best.ceiling_interval
    return f"{at_end(best.ceiling, best.ceiling_bound)} ({low:.0f}–{high:.0f})"
