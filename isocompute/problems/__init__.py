"""Problem sets: reading and generating them, grading responses, difficulty, subsets and mixtures.

The public names load on first use, so that a worker that draws batches loads neither SciPy nor the graders.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isocompute.problems.difficulty import fit_difficulty, mixture
    from isocompute.problems.load import load_problems
    from isocompute.problems.problem_set import Problem, ProblemSet, ProblemWarning

_MODULES = {"fit_difficulty": "difficulty", "load_problems": "load", "mixture": "difficulty"}

__all__ = ["Problem", "ProblemSet", "ProblemWarning", "fit_difficulty", "load_problems", "mixture"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'isocompute.problems' has no attribute '{name}'")
    return getattr(import_module(f"isocompute.problems.{_MODULES.get(name, 'problem_set')}"), name)
