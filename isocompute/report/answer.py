"""The answers at the top of a report: for each condition a plan at a budget, or the forecast of its best run.

Each answer is a card on the page: the plan, its uncertainty, the alternatives, the recipe, and warnings.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from html import escape
from typing import Any

from isocompute.api import plan as make_plan
from isocompute.core.errors import InputError
from isocompute.core.formatting import number, pair, plural, value
from isocompute.data.compatible import Condition
from isocompute.diagnose.series import present_level
from isocompute.law.forecasting import Forecast
from isocompute.law.law import Law
from isocompute.planner.decide import Option, Plan
from isocompute.planner.law import planning_law
from isocompute.planner.request import Budget, parse_budget
from isocompute.report.charts.style import unit_name
from isocompute.report.evidence import Evidence
from isocompute.report.html import items, table, tag


@dataclass(frozen=True)
class Answer:
    """The plan or forecast from the runs of one condition."""

    condition: str
    runs: int
    """Runs with a curve."""
    left_out: int
    """Runs without one."""
    plan: Plan | None
    why_not: str | None
    """Why there is no plan."""
    best: str | None
    """The run at the highest level."""
    outlook: Forecast | None
    """The forecast of that run at twice its compute."""
    unit: str | None

    @property
    def headline(self) -> str:
        """The answer in one line."""
        if self.plan is not None:
            return f"Use {_spelled(self.plan.chosen)}"
        if self.outlook is not None:
            return f"Best so far: {self.best}, {self.outlook.verdict.replace('_', ' ')}"
        return "No plan and no forecast yet"

    @property
    def expectation(self) -> str:
        """The expected reward and its uncertainty, in a sentence or two."""
        if self.plan is not None:
            return self._planned(self.plan)
        if self.outlook is not None:
            o = self.outlook
            return (
                f"It is at {value(o.now)}; at twice its compute ({number(o.at)} {unit_name(self.unit)}) expect "
                f"{value(o.value)} ({o.level:.0%} {pair(o.interval)})."
            )
        if self.runs:
            return "These runs cannot be compared; the figures below show each of them."
        return "These runs give no learning curve; the figures below show what can be drawn."

    def _planned(self, plan: Plan) -> str:
        ranked = plan.chosen.ranked
        return (
            f"At {plan.budget}, expect {plan.law.metric} {value(ranked.value)} (80% {pair(ranked.interval)}); "
            f"{plan.answer}."
        )

    def to_json(self) -> dict[str, Any]:
        """The keys of `answers` in `report --json` (docs/reference/your-runs.md)."""
        keys = ("at", "value", "interval", "level", "verdict", "now")
        outlook = None if self.outlook is None else {key: getattr(self.outlook, key) for key in keys}
        if outlook is not None:
            outlook["interval"] = list(outlook["interval"])
        return {
            "condition": self.condition,
            "runs": self.runs,
            "headline": self.headline,
            "expectation": self.expectation,
            "plan": None if self.plan is None else self.plan.to_json(),
            "why_no_plan": self.why_not,
            "best_run": self.best,
            "outlook": outlook,
        }


def answers(evidence: Evidence, *, budget: str | float | None = None) -> tuple[Answer, ...]:
    """One answer for each condition. The budget defaults to the largest compute of its runs."""
    asked = None if budget is None else parse_budget(budget)
    return tuple(_answer(evidence, condition, asked) for condition in evidence.conditions)


def _answer(evidence: Evidence, condition: Condition, asked: Budget | None) -> Answer:
    plan, why_not = None, None
    comparable = evidence.comparable(condition)
    try:
        law = evidence.law(condition)
        if not comparable:
            raise InputError(
                "its runs lie on different scales; name their problem set and model (`problems`, `model` in run.json)."
            )
        if len(law.settings) < 2:
            raise InputError(
                "its runs share one Bp and n, so nothing is compared; `isocompute plan --next 3` proposes others."
            )
        plan = _plan(law, asked, condition.name or evidence.runs.source, evidence.seed)
    except InputError as error:
        why_not = re.sub(r"^--law .*?: ", "", str(error))  # an option that `report` does not have
    names = [run.name for run in condition.runs if run.name in evidence.curves]
    best = max(names, key=lambda name: present_level(evidence.curves[name])) if names and comparable else None
    return Answer(
        condition=condition.name,
        runs=len(names),
        left_out=len(condition.runs) - len(names),
        plan=plan,
        why_not=why_not,
        best=best,
        outlook=None if best is None else replace(evidence.outlook(best), now=present_level(evidence.curves[best])),
        unit=evidence.unit,
    )


def _spelled(option: Option) -> str:
    a = option.allocation
    return f"{a.problems_per_batch} problems × {a.rollouts_per_problem} rollouts × {a.update_steps:,} updates"


def _plan(law: Law, asked: Budget | None, name: str, seed: int) -> Plan:
    known = planning_law(
        law,
        name=name,
        source=f"fitted to {plural(len(law.runs), 'run')}",
    )
    return make_plan(budget=asked or Budget(known.last, known.unit), law=known, seed=seed)


# The card ------------------------------------------------------------------------------------------------------------


def answer_card(answer: Answer) -> str:
    """The HTML card of an answer."""
    of = f" of {answer.runs + answer.left_out}" if answer.left_out else ""
    count = f"{answer.runs}{of} run{'s' if of or answer.runs != 1 else ''}"
    inside = [
        tag("p", escape(" · ".join(filter(None, (answer.condition, count)))), class_="which"),
        tag("h3", escape(answer.headline)),
        tag("p", escape(answer.expectation)),
    ]
    if answer.plan is not None:
        inside += _plan_card(answer.plan, answer.condition)
    elif answer.why_not:
        inside.append(tag("p", tag("strong", "No plan: "), escape(answer.why_not), class_="warning"))
    return tag("article", *inside, class_="card")


def _plan_card(plan: Plan, condition: str) -> list[str]:
    options = [plan.chosen, *plan.alternatives][:6]
    recipe = plan.recipe.recipe
    on = [name for name, coefficient in (("KL", recipe.kl_coef), ("entropy", recipe.entropy_coef)) if coefficient]
    terms = f"with {' and '.join(on)} term{'s' if len(on) > 1 else ''}" if on else "without KL and entropy terms"
    out = [
        tag(
            "p",
            escape(
                f"Learning rate {plan.recipe.learning_rate:.2g} at a batch of {plan.allocation.batch_size:,}, "
                f"{recipe.warmup_steps} warm-up steps, {terms}."
            ),
        )
    ]
    if len(options) > 1:
        collapsed = any(option.collapses is not None and option.collapses.collapsed for option in options)
        columns = ["Bp × n × M", plan.law.metric, "80%", "P(best)", "loss", *(["collapsed runs"] if collapsed else [])]
        out.append(
            table(
                f"The best settings {condition and f'for {condition}'}".strip(),
                columns,
                [_row(option)[: len(columns)] for option in options],
            )
        )
    lines = [f"{line.setting} = {line.value}: {line.reason} ({line.source})" for line in plan.recipe.lines]
    out.append(tag("details", tag("summary", "The whole recipe, with reasons"), items(lines)))
    if plan.warnings:
        warnings = [warning.message for warning in plan.warnings]
        out.append(tag("div", tag("strong", "Warnings"), items(warnings), class_="warning"))
    return out


def _row(option: Option) -> list[str]:
    a, ranked = option.allocation, option.ranked
    return [
        f"{a.problems_per_batch} × {a.rollouts_per_problem} × {a.update_steps:,}",
        value(ranked.value),
        pair(ranked.interval),
        "–" if ranked.probability_best is None else value(ranked.probability_best),
        value(ranked.regret),
        str(option.collapses or "–"),
    ]
