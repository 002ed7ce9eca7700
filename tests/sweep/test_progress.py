"""The time that a study has left."""

from __future__ import annotations

import pytest

from isocompute.sweep.folder import Progress


@pytest.mark.parametrize(
    ("rollouts", "new", "left"),
    [(0, 0, None), (9, 9, None), (20, 20, 490.0), (500, 20, 250.0), (503, 3, None), (1000, 500, 0.0)],
)
def test_the_time_left_is_known_once_a_hundredth_of_the_work_is_done(rollouts: int, new: int, left: float | None):
    """Of 1,000 rollouts in ten seconds; work that an earlier start had done says nothing of this one's speed."""
    left_now = Progress(2, 0, 0, 1, rollouts, total_rollouts=1000, new_rollouts=new, seconds=10.0).seconds_left
    assert left_now == (None if left is None else pytest.approx(left))
