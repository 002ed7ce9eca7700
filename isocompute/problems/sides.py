"""Train, validation and out-of-distribution problems, so that a problem never changes sides.

The side follows from the words of the question and the seed alone. Adding, removing or reordering problems moves none
of the others, and a question that is in two files falls on the same side in both. The price is that a share is met on
average and not to the problem: 5% of 6,000 problems are 300 ± 17.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from isocompute.core.errors import InputError
from isocompute.problems.model import Problem, ProblemSet, question_key

__all__ = ["Sides", "three_way"]


@dataclass(frozen=True)
class Sides:
    """One problem set in three."""

    train: ProblemSet
    validation: ProblemSet
    out_of_distribution: ProblemSet
    """Empty unless sources were held out."""


def three_way(
    problems: ProblemSet, *, validation: float, out_of_distribution: Collection[str] = (), seed: int = 0
) -> Sides:
    """Split by question; problems of the sources in `out_of_distribution` are held out whole.

    `validation` is the share of the other problems that is held out.
    """
    if not 0 <= validation < 1:
        raise InputError(f"validation = {validation:g}: give the share of problems to hold out, such as 0.05.")
    sources = {problem.source for problem in problems.problems}
    unknown = sorted(set(out_of_distribution) - sources)
    if unknown:
        raise InputError(
            f"{problems.name}: no problem has the source '{unknown[0]}' that is to be held out; "
            f"there are {', '.join(sorted(map(repr, sources))[:8])}."
        )
    parts: dict[str, list[Problem]] = {"train": [], "validation": [], "out_of_distribution": []}
    threshold = validation * 2**64
    for problem in problems.problems:
        if problem.source in out_of_distribution:
            side = "out_of_distribution"
        else:
            side = "validation" if question_key(problem.question, seed=seed) < threshold else "train"
        parts[side].append(problem)
    wanted = {"train": True, "validation": validation > 0}
    for side, needed in wanted.items():
        if needed and not parts[side]:
            raise InputError(
                f"{problems.name}: no problem is left for {side} with validation = {validation:g} of "
                f"{len(problems)} problems; give more problems or another share."
            )
    named = {
        side: replace(problems, name=f"{problems.name} ({side.replace('_', ' ')})", problems=tuple(part), duplicates=0)
        for side, part in parts.items()
    }
    return Sides(**named)
