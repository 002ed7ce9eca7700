"""`isocompute quickstart`: the whole playbook on the simulator: sweep, fit, n*(C), the paper's rules, a plan, charts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from isocompute.cli import options
from isocompute.errors import InputError

if TYPE_CHECKING:
    from isocompute.law import Law
    from isocompute.law.optimum import Optimum
    from isocompute.study.progress import Progress, Report

__all__ = ["command"]

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
_METRICS = ("avg@4", "best@4", "worst@4")


def command(
    out: Annotated[str, typer.Option(help="Folder for the runs, the laws and the charts.")] = "quickstart",
    budget: Annotated[int, typer.Option(min=65_536, help="Rollouts of every cell.")] = 4_000_000,
    plan_for: Annotated[float, typer.Option(min=1e4, help="Budget to plan for, in rollouts.")] = 2e6,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; all cores by default.")] = None,
    seed: options.Seed = 0,
) -> None:
    """Sweep the simulator over the paper's grid on an easy and a hard set, and say what comes out."""
    from isocompute import api
    from isocompute.law import write_law
    from isocompute.report.charts import law_chart
    from isocompute.report.style import save
    from isocompute.runs import load

    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--out {out}: there is a file of that name; give another folder.")
    laws: dict[tuple[str, str], Law] = {}
    for name in ("easy", "hard"):
        _sweep(folder / name, name, budget=budget, seed=seed, workers=workers)
        runs = load(folder / name)
        for metric in _METRICS:
            replicates = 1000 if metric == "avg@4" else 300
            laws[name, metric] = api.fit(runs, metric=f"exact/{metric}", replicates=replicates, seed=seed)
        law = laws[name, "avg@4"]
        write_law(law, folder / name / "law.json")
        for ending in ("png", "html"):
            save(law_chart(law), folder / name / f"law.{ending}")
    _show(laws, plan_for)
    typer.echo(f"\nwrote {folder}/easy and {folder}/hard: study.toml, the runs, law.json, law.png, law.html")
    typer.echo(f"next: isocompute fit {folder}/easy --metric exact/avg@4")


def _sweep(folder: Path, name: str, *, budget: int, seed: int, workers: int | None) -> None:
    from isocompute import study

    folder.parent.mkdir(parents=True, exist_ok=True)
    spec = folder.parent / f"{name}.toml"
    spec.write_text(_SPEC.format(set=name, seed=seed, budget=budget))
    result = study.run(spec=spec, out=folder, workers=workers, report=_reporter(name))
    spec.unlink()  # the study keeps its own copy
    if result.failed or result.stopped or result.unwritable:
        first = next(iter(result.failed.items()), ("", result.unwritable or "it was stopped"))
        typer.echo(f"error: the {name} sweep did not finish: {first[0]} {first[1]}; run the command again.", err=True)
        raise typer.Exit(1)
    rate = result.new_rollouts / max(result.seconds, 1e-9)
    cells = f"{result.cells} cells" if not result.skipped else f"{result.cells} cells, {result.skipped} done before"
    typer.echo(f"{name}: {cells} of {budget:,} rollouts in {result.seconds:.0f} s, {rate / 1e6:.1f} M rollouts/s")


def _reporter(name: str) -> Report:
    """A line every few seconds."""
    last = [0.0]

    def report(progress: Progress) -> None:
        if progress.seconds - last[0] >= 10.0:
            last[0] = progress.seconds
            left = progress.seconds_left
            eta = "" if left is None else f", about {left:.0f} s left"
            typer.echo(f"{name}: {progress.finished} of {progress.cells} cells{eta}")

    return report


def _show(laws: dict[tuple[str, str], Law], plan_for: float) -> None:
    from isocompute.cli.show import console, heading, number, table
    from isocompute.law.choice import choose

    screen = console()
    rows = []
    for (name, metric), law in laws.items():
        best = law.joint.rollouts
        if best is None:
            continue
        cells = [_at(best, compute) for compute in (1e5, 3e5, 1e6, 3e6)]
        rows.append([f"{name} {metric}", *cells, _levels(best)])
    screen.print(
        heading("The best n at a budget (95% interval), all Bp competing; exact pass rates, held-out problems")
    )
    screen.print(table(["", "100k", "300k", "1M", "3M", "levels off"], rows))
    screen.print(heading("The paper's rules, and what was found here"))
    for rule, holds, found in _rules(laws):
        screen.print(f" {'holds ' if holds else 'does not hold'}  {rule}: {found}")
    screen.print(heading(f"A plan for {number(plan_for)} rollouts"))
    for name in ("easy", "hard"):
        choice = choose(laws[name, "avg@4"].settings, plan_for)
        bp, n = choice.fit.setting
        updates = int(plan_for // ((bp or 1) * (n or 1)))
        other = choice.runner_up
        next_best = "" if other is None else f"; next {other.setting[0]} × {other.setting[1]}, −{choice.regret:.4f}"
        screen.print(
            f" {name}: {bp} problems × {n} rollouts × {updates} updates, expect avg@4 {choice.value:.3f} "
            f"({choice.interval[0]:.3f}–{choice.interval[1]:.3f}), best of the grid with probability "
            f"{choice.probability:.2f}{next_best}"
        )


def _at(best: Optimum, compute: float) -> str:
    import numpy as np

    i = int(np.clip(np.searchsorted(best.x_C, compute), 0, len(best.x_C) - 1))
    low, high = best.interval_C2[i]
    n = best.estimate_C[i]
    sign = "≤ " if n == best.smallest else ("≥ " if n == best.largest else "")
    return f"{sign}{n:.0f} ({low:.0f}–{high:.0f})"


def _levels(best: Optimum) -> str:
    if not best.rises:
        return "does not rise"
    return f"at {best.ceiling:.0f}" if best.saturates else "not inside the data"


def _rules(laws: dict[tuple[str, str], Law]) -> list[tuple[str, bool, str]]:
    """The three rules of the abstract and the metric rule of figure 8, each with the numbers it rests on."""
    easy, hard = (laws[name, "avg@4"].joint.rollouts for name in ("easy", "hard"))
    best, worst = (laws["easy", metric].joint.rollouts for metric in ("best@4", "worst@4"))
    assert easy is not None and hard is not None and best is not None and worst is not None
    out = [
        (
            "the best n rises with compute and levels off",
            easy.rises and hard.rises and easy.saturates and hard.saturates,
            "; ".join(
                f"{name} {'rises to' if o.rises else 'stays at'} {o.ceiling:.0f} "
                f"({o.ceiling_interval[0]:.0f}–{o.ceiling_interval[1]:.0f}), {_levels(o)}"
                for name, o in (("easy", easy), ("hard", hard))
            ),
        ),
        (
            "the hard set levels off at a smaller n",
            hard.ceiling < easy.ceiling,
            f"hard {hard.ceiling:.0f}, easy {easy.ceiling:.0f}",
        ),
    ]
    for name in ("easy", "hard"):
        spans = {}
        for varied in ("rollouts_per_problem", "problems_per_batch"):
            found = [s for s in laws[name, "avg@4"].slices if s.varied == varied]
            spans[varied] = max(found, key=lambda s: len(s.settings)).range if found else float("nan")
        out.append(
            (
                f"Bp matters less than n ({name})",
                spans["problems_per_batch"] < spans["rollouts_per_problem"],
                f"range {spans['problems_per_batch']:.3f} over Bp, {spans['rollouts_per_problem']:.3f} over n",
            )
        )
    out.append(
        (
            "on the easy set worst@4 wants a larger n than best@4",
            worst.ceiling > best.ceiling,
            f"worst@4 {worst.ceiling:.0f} ({worst.ceiling_interval[0]:.0f}–{worst.ceiling_interval[1]:.0f}), "
            f"best@4 {best.ceiling:.0f} ({best.ceiling_interval[0]:.0f}–{best.ceiling_interval[1]:.0f})",
        )
    )
    return out
