"""The runs that one plan can be made of: one model on one problem set, with one recipe.

A law compares settings that differ in their allocation alone. Of runs on two problem sets the easier one would win, of
two models the better one; that is refused. Of several recipes the one that reached highest is what one would go on
with, and the plan is of its runs alone.
"""

from __future__ import annotations

import numpy as np

from isocompute.core.errors import InputError
from isocompute.core.run import RunSet
from isocompute.data.compatible import Condition, conditions_of

__all__ = ["one_condition"]

_SHOWN = 4
_LAST = 3


def one_condition(runs: RunSet, *, metric: str) -> tuple[RunSet, str]:
    """The runs to plan with, and what was left out in words; empty where nothing was."""
    found = conditions_of(runs)
    if len(found) < 2:
        return runs, ""
    if any(not key.startswith("recipe.") for condition in found for key in condition.labels):
        names = [f"'{c.name}' ({len(c.runs)})" for c in found[:_SHOWN]]
        more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        key = next(key for condition in found for key in condition.labels if not key.startswith("recipe."))
        raise InputError(
            f"--law {runs.source}: its runs are of {len(found)} conditions, {', '.join(names)}{more}, whose rewards do "
            f"not compare; name one: its own folder, or --where {key}=…"
        )
    best = max(found, key=lambda condition: _reached(condition, metric))
    return best.runs, f" with {best.recipe_name}, which reached highest of {len(found)} recipes"


def _reached(condition: Condition, metric: str) -> float:
    """The highest end of a run."""
    ends = [run.points[metric].drop_nulls().tail(_LAST) for run in condition.runs if metric in run.points.columns]
    return max((float(np.mean(end.to_numpy())) for end in ends if len(end)), default=-np.inf)
