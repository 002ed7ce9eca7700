"""`isocompute plan --law RUNS --backtest`: what plans from an eighth of the compute would have been worth."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from isocompute.cli.show import console, heading, table
from isocompute.core.errors import InputError
from isocompute.core.formatting import number, value
from isocompute.planner.backtest import AHEAD

if TYPE_CHECKING:
    from isocompute.planner.backtest import PlanTest, Reached

__all__ = ["budget_of", "show_tests", "tests_to_json"]


def budget_of(text: str | None) -> float | None:
    """`--budget`, which here is in the rollouts that the runs have used."""
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
    """The keys of `plan --backtest --json` (docs/planning.md)."""
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
    """A line for every budget, and what plans lost beside what following the leader would have."""
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
        screen.print(f"{name} lost {np.mean(lost):.4f} in the mean, {max(lost):.4f} at most.")
    gone = sorted({one for test in tests for one in test.left_out})
    if gone:
        listed = ", ".join(" × ".join(map(str, one)) for one in gone)
        screen.print(f"More than a quarter of the runs of {listed} end before the larger C: not compared there.")


def _setting(reached: Reached) -> str:
    return f"{reached.problems_per_batch} × {reached.rollouts_per_problem}"


def _lost(reached: Reached | None) -> str:
    return "not run" if reached is None else f"{reached.regret:.4f}"
