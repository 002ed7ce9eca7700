"""A small training set caps n: IsoCompute figure 13.

On the paper's 6,000 easy problems the frontier goes on to n = 512; on 500 of them it ends at n = 256 and n = 512
overfits. A law that was published for thousands of problems knows nothing of that, so its larger n are left out on a
small set; runs of one's own have seen what their set does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from isocompute.planner.advice import SMALL_SET, SMALL_SET_ROLLOUTS, Warned
from isocompute.planner.candidates import Constraints
from isocompute.planner.model import OWN, PlanningLaw

__all__ = ["hold_to_set"]

LARGE_SET = 5000
"""A law of this many problems was not measured on a small set."""


def hold_to_set(
    law: PlanningLaw, held: Constraints, settings: Sequence[tuple[int, int]]
) -> tuple[Constraints, list[Warned]]:
    """The constraints with the largest n that the set allows, and the warning that names what is left out.

    n that are asked for by name stay, and so does everything where a smaller n is in none of the `settings` left.
    """
    foreign = law.setup != OWN and (law.problems or 0) >= LARGE_SET
    small = held.problems is not None and held.problems <= SMALL_SET
    able = {n for bp, n in settings if not held.broken_by(bp, n)}
    dropped = {n for n in able if n > SMALL_SET_ROLLOUTS}
    if not (foreign and small and dropped and able - dropped) or held.rollouts_per_problem is not None:
        return held, []
    warned = Warned(
        "small_set",
        f"{held.problems:,} problems: n above {SMALL_SET_ROLLOUTS} is left out, since on 500 the paper's frontier ends "
        f"there and n = 512 overfits (figure 13); ask for it with --n {max(able)}",
    )
    return replace(held, most_rollouts=SMALL_SET_ROLLOUTS), [warned]
