"""A plan as JSON: the keys are those of `isocompute plan --json` (docs/planning.md)."""

from __future__ import annotations

from typing import Any

from isocompute.core.allocation import Allocation
from isocompute.planner.advised_recipe import advise_recipe
from isocompute.planner.decision import LEVEL
from isocompute.planner.next_cells import Proposal
from isocompute.planner.planner import Option, Plan

__all__ = ["plan_to_json", "proposal_to_json"]


def plan_to_json(plan: Plan) -> dict[str, Any]:
    """One object with everything a trainer's config or another program needs."""
    law = plan.law
    return {
        **_option(plan, plan.chosen),
        "alternatives": [_option(plan, option) for option in plan.alternatives],
        "warnings": [{"code": w.code, "message": w.message} for w in plan.warnings],
        "cost": plan.prices.cost(plan.allocation),
        "law": {
            "name": law.name,
            "range": [law.first, law.last],
            "unit": law.unit,
            "metric": law.metric,
            "source": law.source,
            "setup": law.setup,
            "uncertainty": law.uncertainty,
            "seed_error": law.seed_error,
        },
        "budget": {
            "amount": plan.budget.amount,
            "unit": plan.budget.unit,
            "rollouts": plan.budget_rollouts,
            "used": plan.allocation.compute / plan.budget_rollouts,
        },
        "mode": plan.constraints.mode,
        "regime": {
            "regime": plan.regime.regime,
            "reason": plan.regime.reason,
            "findings": [] if plan.regime.diagnosis is None else plan.regime.diagnosis.to_json()["findings"],
        },
        "difficulty": plan.difficulty,
        "mix": None
        if plan.mix is None
        else {
            "problems": plan.mix.problems,
            "mean": plan.mix.mean,
            **plan.mix.shares,
            "zero_variance": plan.zero_variance,
            "zero_variance_behind": plan.zero_variance_behind,
        },
        "recipe": plan.recipe.recipe.model_dump(),
        "recipe_lines": [
            {"setting": line.setting, "value": line.value, "reason": line.reason, "source": line.source}
            for line in plan.recipe.lines
        ],
    }


def _option(plan: Plan, option: Option) -> dict[str, Any]:
    a, ranked = option.allocation, option.ranked
    advice = (
        plan.recipe
        if option is plan.chosen
        else advise_recipe(
            allocation=a,
            difficulty=plan.difficulty,
            anchor=plan.anchor,
            own=plan.law.recipe,
            runs=plan.law.runs_recipe,
        )
    )
    recipe = advice.recipe
    return {
        **_allocation(a),
        "epochs": plan.epochs(a),
        "learning_rate": advice.learning_rate,
        "warmup_steps": recipe.warmup_steps,
        "kl_coef": recipe.kl_coef,
        "entropy_coef": recipe.entropy_coef,
        "temperature": recipe.temperature,
        "expected": {
            "metric": plan.law.metric,
            "value": ranked.value,
            "interval": list(ranked.interval),
            "level": LEVEL,
        },
        "probability_best": ranked.probability_best,
        "regret": ranked.regret,
        "within_one_error": ranked.ties,
        "cheapest": option.cheapest,
        "falls": None
        if (fell := option.fallen) is None
        else {"runs": fell.runs, "fallen": fell.fallen, "share": fell.share, "interval": list(fell.interval())},
    }


def _allocation(a: Allocation) -> dict[str, Any]:
    return {
        "problems_per_batch": a.problems_per_batch,
        "rollouts_per_problem": a.rollouts_per_problem,
        "update_steps": a.update_steps,
        "batch_size": a.batch_size,
        "compute": a.compute,
    }


def proposal_to_json(proposal: Proposal) -> dict[str, Any]:
    """A cell of `plan --next`."""
    return {
        **_allocation(proposal.allocation),
        "gain": proposal.gain,
        "gain_per_million": proposal.gain_per_million,
    }
