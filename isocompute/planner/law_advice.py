"""How far a law is from the user's setup: its difficulty, its recipe, and the command that finds out more."""

from __future__ import annotations

import difflib

import numpy as np

from isocompute.planner.advice import Warned
from isocompute.planner.curves import Curves
from isocompute.planner.model import OptimumOnly, PlanningLaw
from isocompute.planner.published import published, siblings
from isocompute.planner.reach import FAR

__all__ = ["law_advice", "way_to_find_out"]


_OTHER_BASE = 0.05
"""A base model that is this much better or worse at the set is not the law's."""


def law_advice(
    law: PlanningLaw, *, difficulty: str | None, anchor_given: bool, mean_rate: float | None = None
) -> list[Warned]:
    """A law of another difficulty or base than the user's; a learning rate that is not of the law's runs."""
    out = []
    base = _base(law)
    if mean_rate is not None and base is not None and abs(mean_rate - base) > _OTHER_BASE:
        out.append(
            Warned(
                "base_differs",
                f"the expectation is of the law's own set, where the base model is at {base:.2f}; at yours it is at "
                f"{mean_rate:.2f}: take the allocation, not the reward",
            )
        )
    if law.difficulty and difficulty and law.difficulty != difficulty:
        near = _sibling(law.name, difficulty)
        use = f"use --law {near}" if near else f"none of {law.name.partition('/')[0]}'s laws is of a {difficulty} set"
        out.append(
            Warned(
                "difficulty_differs",
                f"the law is of {_a(law.difficulty)} set, yours is {difficulty}: n* and the reward differ between the "
                f"two; {use}",
            )
        )
    runs = law.runs_recipe
    if runs is not None and "learning_rate" not in runs.fields and not anchor_given:
        out.append(
            Warned(
                "anchor_unknown",
                "the learning rate is scaled from the paper's 1e-06 at a batch of 1,024 (Qwen2.5-7B-Instruct); "
                f"{runs.why_not('learning_rate')}: say --lr-anchor RATE@BATCH",
            )
        )
    return out


def _base(law: PlanningLaw) -> float | None:
    """The reward before training of a published law's set; None for a law of the user's runs."""
    if law.runs_recipe is not None or not law.metric.startswith("avg@"):
        return None
    if isinstance(law.model, OptimumOnly):
        return law.model.base
    return float(np.median([fit.base for fit in law.model.fits])) if isinstance(law.model, Curves) else None


def way_to_find_out(law: PlanningLaw, rollouts: float) -> str:
    """How to see whether a published law holds elsewhere; one of a single setting has no run to propose."""
    known = law.model.settings()
    if len(known) == 1:
        bp, n = known[0]
        return f"it knows {bp} × {n} alone; run other n or Bp on yours (`isocompute study`) and plan with --law RUNS"
    return f"run a few of its settings on yours; {_next_command(law, rollouts)} says which it is least sure of"


def _next_command(law: PlanningLaw, rollouts: float) -> str:
    """A command that proposes runs, as it is typed; in rollouts, so that it needs no throughput."""
    name = law.name
    if law.runs_recipe is not None:
        return "this command with --next 4"
    if not isinstance(law.model, Curves):  # it knows n* alone: a law of curves proposes runs
        curves = [s for s in siblings(name, law.difficulty) if isinstance(published(s, replicates=2).model, Curves)]
        name = difflib.get_close_matches(name, curves, n=1, cutoff=0.0)[0]
        law = published(name, replicates=2)
    within = law.outside(rollouts * (law.gpu_hours_per_rollout or 1.0 if law.unit == "gpu_hours" else 1.0))
    far = " --extrapolate" if not 1 / FAR < within < FAR else ""
    return f"`isocompute plan --budget {int(rollouts)} --law {name} --next 4{far}`"


def _sibling(name: str, difficulty: str) -> str | None:
    """The published law of the other difficulty that is most like this one."""
    wanted = name.replace("easy", difficulty).replace("hard", difficulty)
    return next(iter(difflib.get_close_matches(wanted, siblings(name, difficulty), n=1, cutoff=0.0)), None)


def _a(word: str) -> str:
    return f"an {word}" if word[0] in "aeiou" else f"a {word}"
