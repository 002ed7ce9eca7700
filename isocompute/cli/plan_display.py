"""Printing plans, proposals, published laws and tests of plans on a terminal."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from isocompute.cli.show import console, heading, table
from isocompute.core.errors import InputError
from isocompute.core.formatting import number, pair, plural, thousands, value
from isocompute.planner.backtest import AHEAD

if TYPE_CHECKING:
    from isocompute.core.allocation import Allocation
    from isocompute.planner.backtest import PlanTest, Reached
    from isocompute.planner.decide import Plan
    from isocompute.planner.next_runs import Proposal
    from isocompute.planner.published import Entry


def show(plan: Plan) -> None:
    """Print the plan: the answer first, then alternatives, recipe, law and warnings."""
    screen = console()
    a, ranked = plan.allocation, plan.chosen.ranked
    screen.print(
        f" Use  {plural(a.problems_per_batch, 'problem')} × {plural(a.rollouts_per_problem, 'rollout')} × "
        f"{plural(a.update_steps, 'update')}   ({thousands(a.compute, 'rollout')})",
        style="bold",
    )
    screen.print(f" Expect {plan.law.metric} {value(ranked.value)} ({pair(ranked.interval)}, 80%)")
    screen.print(f" {plan.answer}")
    for line in _recipe(plan):
        screen.print(f" {line}")
    if (epochs := plan.epochs(a)) is not None and plan.problems is not None:
        each = number(a.compute / plan.problems)
        each += " rollout" if each == "1" else " rollouts"
        screen.print(f" Passes over {thousands(plan.problems, 'problem')}: {number(epochs)} ({each} of each)")
    for line in _cost(plan):
        screen.print(f" {line}")
    ties = [plan.chosen, *(o for o in plan.alternatives if o.ranked.ties)]
    inside = ranked.probability_best is not None
    if len(ties) > 1:
        collapsed = any(o.collapses is not None and o.collapses.collapsed for o in ties)
        rows = [
            [
                _cell(o.allocation),
                value(o.ranked.value),
                pair(o.ranked.interval),
                *([value(o.ranked.probability_best)] if inside else []),
                value(o.ranked.regret),
                *([str(o.collapses or "")] if collapsed else []),
                "cheapest to run" if o.cheapest else "",
            ]
            for o in ties
        ]
        screen.print(heading("Allocations that tie"))
        heads = ["Bp × n × M", plan.law.metric, "80%", *(["P(best)"] if inside else []), "loss"]
        heads += [*(["collapsed runs"] if collapsed else []), ""]
        screen.print(table(heads, rows))
    screen.print(heading("Recipe"))
    for part in plan.recipe.lines:
        screen.print(f" {part.setting} = {part.value}: {part.reason} ({part.source})")
    screen.print(heading(f"Law: {plan.law.name} ({plan.law.source})"))
    screen.print(f" intervals: {plan.law.uncertainty}")
    limit = plan.regime.regime or "none"
    screen.print(f" limit {'found' if plan.regime.diagnosis else 'assumed'}: {limit} ({plan.regime.reason})")
    for line in _mix(plan):
        screen.print(f" {line}")
    for warning in plan.warnings:
        screen.print(f" Warning: {warning.message}", style="yellow")


def _cell(a: Allocation) -> str:
    return f"{a.problems_per_batch} × {a.rollouts_per_problem} × {a.update_steps}"


def _recipe(plan: Plan) -> list[str]:
    recipe, b = plan.recipe.recipe, plan.allocation.batch_size
    scaled = f" = {recipe.learning_rate:g} × √({b}/{recipe.lr_reference_batch})" if recipe.lr_scaling == "sqrt" else ""
    kind = f"{plan.difficulty} set" if plan.difficulty else "difficulty unknown"
    kl, entropy = ("on" if coefficient else "off" for coefficient in (recipe.kl_coef, recipe.entropy_coef))
    terms = f"KL and entropy {kl}" if kl == entropy else f"KL {kl}, entropy {entropy}"
    return [
        f"Learning rate {plan.recipe.learning_rate:.2g}{scaled}, {plural(recipe.warmup_steps, 'warm-up step')} · "
        f"{terms} ({kind})"
    ]


def _mix(plan: Plan) -> list[str]:
    """Lines on the pass rates that were given: bands of difficulty, and zero-variance groups."""
    mix = plan.mix
    if mix is None or plan.zero_variance is None:
        return []
    unsolved = f" (never solved: {mix.shares['unsolved']:.0%} of the set)" if mix.shares["unsolved"] else ""
    bands = [
        f"{share:.0%} {name.replace('_', ' ')}{unsolved if name == 'hard' else ''}"
        for name, share in mix.shares.items()
        if name != "unsolved"
    ]
    measured, latent = (f"{share:.0%}" for share in plan.zero_variance)
    fewer = "" if latent == measured else f", {latent} by the rates behind these samples"
    return [
        f"your {thousands(mix.problems, 'problem')}: mean pass rate {value(mix.mean)}; {', '.join(bands)}",
        f"zero-variance groups at n = {plan.allocation.rollouts_per_problem}: {measured} at the start{fewer}",
    ]


def _cost(plan: Plan) -> list[str]:
    cost = plan.prices.cost(plan.allocation)
    parts = []
    if cost["seconds"] is not None:
        parts.append(f"{number(cost['seconds'] / 3600)} h on {cost['gpus']} GPU{'s' if cost['gpus'] > 1 else ''}")
    if cost["gpu_hours"] is not None:
        parts.append(f"{number(cost['gpu_hours'])} GPU-hours")
    if cost["money"] is not None:
        parts.append(f"${cost['money']:,.0f}")
    if cost["tokens"] is not None:
        parts.append(f"{number(cost['tokens'])} tokens")
    if not parts:
        return []
    source = f"; throughput: {cost['source']}" if cost["source"] else ""
    bound = f"; a step is bound by {str(cost['bound']).replace('_', ' ')}" if cost.get("bound") else ""
    assumed = cost["prompt_source"] == "assumed"
    prompts = f"; prompts of {cost['prompt_tokens']:g} tokens assumed (--prompt-tokens)" if assumed else ""
    return [f"Costs {', '.join(parts)}{source}{bound}{prompts}"]


def show_next(proposals: list[Proposal], out: str, *, asked: int) -> None:
    """The cells of `--next`, and why they are fewer than were asked for."""
    screen = console()
    if not proposals:
        screen.print("\nNo run of the law's settings up to this budget would change the decision, if the law holds.")
        screen.print(f"{out} is not written.")
        return
    rows = [
        [
            _cell(p.allocation),
            number(p.allocation.compute),
            f"{p.gain:.4f}",
            f"{p.gain_per_million:.4f}",
        ]
        for p in proposals
    ]
    screen.print(heading("What to run next"))
    screen.print(table(["Bp × n × M", "rollouts", "expected gain", "for each 1M rollouts"], rows))
    if len(proposals) < asked:
        why = "no other n of this Bp may well be the best (in a tenth of the law's draws) and tell more"
        screen.print(f" {len(proposals)} of {asked}: {why}", style="dim")
    screen.print(f"wrote {out}: isocompute study run {out}")


def show_laws(entries: list[Entry]) -> None:
    """The published laws with source and range."""
    screen = console()
    for e in entries:
        unit = e.unit.replace("gpu_hours", "GPU-hours")
        screen.print(e.name, style="bold")
        screen.print(f"  {e.title}; {e.metric}, {number(e.range[0])}–{number(e.range[1])} {unit}")
        screen.print(f"  {e.setup}; {e.source}", style="dim")
    screen.print("\nThe papers print no intervals; `--laws --json` says how each was estimated here.")


def budget_of(text: str | None) -> float | None:
    """Parse `--budget` for a backtest, in rollouts."""
    if text is None:
        return None
    try:
        rollouts = float(text)
    except ValueError:
        rollouts = 0.0
    if not 0 < rollouts < float("inf"):
        raise InputError(f"--budget {text}: with --backtest give rollouts that the runs have used, such as 2e5.")
    return rollouts


def tests_to_json(tests: list[PlanTest], *, law: str, metric: str) -> dict[str, Any]:
    """The keys of `plan --backtest --json` (docs/reference/budget.md)."""
    return {
        "law": law,
        "metric": metric,
        "ahead": AHEAD,
        "tests": [
            {
                "budget": test.budget,
                "settings": [asdict(one) for one in test.settings],
                "left_out": [list(one) for one in test.left_out],
                "best": asdict(test.best),
                "planned": {
                    "problems_per_batch": test.planned_setting[0],
                    "rollouts_per_problem": test.planned_setting[1],
                    "value": None if test.planned is None else test.planned.value,
                    "regret": None if test.planned is None else test.planned.regret,
                    "error": test.error,
                },
                "leader": asdict(test.leader),
            }
            for test in tests
        ],
    }


def show_tests(tests: list[PlanTest], *, law: str, metric: str) -> None:
    """Print a row for every budget, and the regret of plans against that of following the leader."""
    screen = console()
    screen.print(heading(f"Plans from an eighth of the compute, on {law} ({metric})"))
    rows = [
        [
            number(test.budget),
            f"{len(test.settings)} of {len(test.settings) + len(test.left_out)}",
            _setting(test.best),
            value(test.best.value),
            " × ".join(map(str, test.planned_setting)),
            _lost(test.planned) + ("" if test.error is None else f" ± {test.error:.4f}"),
            _setting(test.leader),
            _lost(test.leader),
        ]
        for test in tests
    ]
    columns = ["C", "settings", "best at C", metric, "planned", "lost", "leader at C/8", "lost"]
    screen.print(table(columns, rows))
    judged = [(test.planned.regret, test.leader.regret) for test in tests if test.planned is not None]
    for name, lost in zip(("Plans", "Leaders at C/8"), zip(*judged, strict=True), strict=False):
        screen.print(f"{name} lost {np.mean(lost):.4f} on average, {max(lost):.4f} at most.")
    gone = sorted({one for test in tests for one in test.left_out})
    if gone:
        listed = ", ".join(" × ".join(map(str, one)) for one in gone)
        screen.print(f"Not compared if more than a quarter of the runs end before C: {listed}.")


def _setting(reached: Reached) -> str:
    return f"{reached.problems_per_batch} × {reached.rollouts_per_problem}"


def _lost(reached: Reached | None) -> str:
    return "not run" if reached is None else f"{reached.regret:.4f}"
