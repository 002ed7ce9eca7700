"""Branches that a resumed run left: what it had logged beyond the checkpoint it went back to."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from isocompute.core.arrays import Bools, Ints
from isocompute.core.formatting import plural

__all__ = ["Left", "left_behind"]

_GOES_ON = 3
"""Rows again of steps that were there before: fewer may be late, or another process's."""

_MOST_RESTARTS = 100
"""A log that goes back more often is in another order, such as the newest row first."""


@dataclass(frozen=True)
class Left:
    """Rows of a branch that was left and lie beyond the end of what came after it."""

    rows_R: Bools
    end: int
    """The last step of the run as it went on."""
    steps: int
    """How many steps these are; the run has not come to any of them again."""

    @property
    def note(self) -> str:
        """For whoever reads the run."""
        return (
            f"{plural(self.steps, 'point')} beyond step {self.end} left out, taken for a branch that the run went back "
            "from when it was resumed"
        )


def left_behind(step_R: Ints, trained_R: Bools) -> Left | None:
    """The rows, in order of their writing, that a restart left beyond the last step since; None where there are none.

    A restart is where the rows that train (`trained_R`: those of one kind) go back and go on from there, through steps
    that they were at before. Rows in another order, late ones and those of evaluations are none; nor are the rows of
    several processes, which say nearly every step more than once and not only those since a checkpoint.

    >>> left = left_behind(np.array([1, 2, 3, 4, 5, 6, 2, 3, 4]), np.ones(9, dtype=bool))
    >>> left.rows_R.tolist(), left.end, left.steps
    ([False, False, False, False, True, True, False, False, False], 4, 2)
    """
    if len(step_R) < 2:
        return None
    end_R = np.maximum.accumulate(step_R[::-1])[::-1]
    before_R = np.maximum.accumulate(step_R)
    at = np.flatnonzero(trained_R)
    back = at[1:][(np.diff(step_R[at]) < 0) & (before_R[at[:-1]] > end_R[at[1:]])]
    if len(back) > _MOST_RESTARTS:
        return None
    rows_R = np.zeros(len(step_R), dtype=np.bool_)
    for row in back.tolist():
        if _is_restart(step_R[at[at < row]], step_R[at[at >= row]]):
            rows_R[:row] |= step_R[:row] > end_R[row]
    if not rows_R.any():
        return None
    return Left(rows_R, int(step_R[~rows_R].max()), len(np.unique(step_R[rows_R])))


def _is_restart(before: Ints, after: Ints) -> bool:
    """Whether steps begin anew among those before, most of which up to there were said once."""
    turns = np.flatnonzero(np.diff(after) < 0)
    first = after[: turns[0] + 1] if len(turns) else after
    steps, times = np.unique(before[before < first[0]], return_counts=True)
    several = 2 * np.count_nonzero(times > 1) > len(steps)
    return np.isin(np.unique(first), before).sum() >= _GOES_ON and not several
