"""Problem sets: reading and generating them, verifying responses, difficulty, subsets and mixtures.

Names load on first use. Nothing here imports torch or polars.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isocompute.problems.difficulty import fit_difficulty
    from isocompute.problems.load import load_problems
    from isocompute.problems.model import Problem, ProblemSet, ProblemWarning
    from isocompute.problems.sides import three_way
    from isocompute.problems.subsets import mixture

_HOMES = {
    "Problem": "isocompute.problems.model",
    "ProblemSet": "isocompute.problems.model",
    "ProblemWarning": "isocompute.problems.model",
    "fit_difficulty": "isocompute.problems.difficulty",
    "load_problems": "isocompute.problems.load",
    "mixture": "isocompute.problems.subsets",
    "three_way": "isocompute.problems.sides",
}

__all__ = ["Problem", "ProblemSet", "ProblemWarning", "fit_difficulty", "load_problems", "mixture", "three_way"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'isocompute.problems' has no attribute '{name}'")
