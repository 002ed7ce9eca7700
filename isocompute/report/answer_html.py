"""An answer as a card: the plan, how sure it is, what is nearly as good, the recipe, what to be careful about."""

from __future__ import annotations

from html import escape

from isocompute.core.formatting import pair, value
from isocompute.planner.comparing import OWN_AND_COMPARED
from isocompute.planner.planner import Option, Plan
from isocompute.report.answer import Answer
from isocompute.report.html import items, table, tag

__all__ = ["answer_card"]

_SHOWN = 6


def answer_card(answer: Answer) -> str:
    """One card."""
    of = f" of {answer.runs + answer.left_out}" if answer.left_out else ""
    count = f"{answer.runs}{of} run{'s' if of or answer.runs != 1 else ''}"
    inside = [
        tag("p", escape(" · ".join(filter(None, (answer.condition, count)))), class_="which"),
        tag("h3", escape(answer.headline)),
        tag("p", escape(answer.expectation)),
    ]
    if answer.plan is not None:
        inside += _plan(answer.plan, answer.condition)
    elif answer.why_not:
        inside.append(tag("p", tag("strong", "No plan: "), escape(answer.why_not), class_="careful"))
    return tag("article", *inside, class_="card")


def _plan(plan: Plan, condition: str) -> list[str]:
    options = [plan.chosen, *plan.alternatives][:_SHOWN]
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
        fell = any(option.fallen is not None and option.fallen.fallen for option in options)
        columns = ["Bp × n × M", plan.law.metric, "80%", "best", "regret", *(["runs that fell"] if fell else [])]
        out.append(
            table(
                f"The best settings {condition and f'for {condition}'}".strip(),
                columns,
                [_row(option) + ([str(option.fallen or "–")] if fell else []) for option in options],
            )
        )
        if plan.compared_AB is not None:
            out.append(tag("p", escape(f"{OWN_AND_COMPARED.capitalize()}."), class_="note"))
    lines = [f"{line.setting} = {line.value}: {line.reason} ({line.source})" for line in plan.recipe.lines]
    out.append(tag("details", tag("summary", "The whole recipe, and why"), items(lines)))
    if plan.warnings:
        careful = [warning.message for warning in plan.warnings]
        out.append(tag("div", tag("strong", "Careful"), items(careful), class_="careful"))
    return out


def _row(option: Option) -> list[str]:
    a, ranked = option.allocation, option.ranked
    return [
        f"{a.problems_per_batch} × {a.rollouts_per_problem} × {a.update_steps:,}",
        value(ranked.value),
        pair(ranked.interval),
        value(ranked.probability_best),
        value(ranked.regret),
    ]
