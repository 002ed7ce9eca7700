"""Points of abandoned branches: logged before a resume, and not reached again."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from isocompute.data import RunWarning
from isocompute.data.folder import abandoned_branch, read_run
from isocompute.data.rows import Rows


def gone(steps: list[int]) -> list[int]:
    """Steps of rows of one kind that are left out."""
    left = abandoned_branch(np.array(steps), np.ones(len(steps), dtype=bool))
    return [] if left is None else np.array(steps)[left.rows_R].tolist()


TO_10 = [*range(1, 11)]
BEHIND = [step for k in range(3, 50) for step in (k, k - 2)]
BURSTS = [k + j for k in range(1, 50, 4) for _ in range(2) for j in range(4)]


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([*TO_10, 6, 7, 8], [9, 10]),
        ([*TO_10, 1, 2, 3], [4, 5, 6, 7, 8, 9, 10]),
        ([*TO_10, 6, 7, 8, 7, 8], [9, 10]),
        ([*TO_10, 6, 7, 8, 9, 8], [10]),
        ([*TO_10, 4, 5, 6, 7, 3, 4, 5], [6, 7, 8, 9, 10, 6, 7]),
        ([10, 20, 30, 40, 50, 60, 30, 40, 50], [60]),
    ],
)
def test_rows_beyond_the_last_step_since_a_restart_go(steps: list[int], expected: list[int]) -> None:
    assert gone(steps) == expected


@pytest.mark.parametrize(
    "steps",
    [
        TO_10,
        [*TO_10, 6],  # one row says nothing yet
        [*TO_10, 8, 9],  # nor do two, which may be late
        [*TO_10, 6, 7, 8, 9, 10, 11],
        TO_10[::-1],
        [9, 10, 2, 3],
        [*range(100, 111), *range(1, 50)],  # an older part of the log behind the newer one
        [1, 3, 5, 7, 9, 2, 4, 6, 8],
        BEHIND,  # two processes, one of them two steps behind
        BEHIND[:-1],
        BURSTS,
        BURSTS[:-2],
    ],
)
def test_rows_in_another_order_are_no_restart(steps: list[int]) -> None:
    assert gone(steps) == []


def test_imports_leave_a_branch_with_all_its_rows() -> None:
    """Training rows tell; evaluations of the branch that was left go with them, those that come late stay."""
    rows = Rows()
    for start, end in ((1, 100), (61, 80)):
        for step in range(start, end + 1):
            rows.add(step, ("reward", "kl"), (step / 100 + start, 0.1))
            if step % 20 == 10:  # ten steps late
                rows.add(step - 10, ("val_reward",), (step / 100 + start,))
            if step % 20 == 0:
                rows.add(step, ("eval_seconds",), (1.0,))
    points, replaced = rows.points()
    assert (points["step"].max(), points.height, replaced, rows.skipped_lines) == (80, 81, 21, 0)
    assert rows.notes == [
        "20 points beyond step 80 left out: the run was resumed from an earlier checkpoint and has not reached them "
        "again"
    ]


def test_evaluations_that_come_late_are_no_restart() -> None:
    rows = Rows()
    for step in range(1, 101):
        rows.add(step, ("reward", "kl"), (0.1, 0.1))
    for step in (20, 40, 60):
        rows.add(step, ("val_reward",), (0.5,))
    assert (rows.points()[0].height, rows.notes) == (100, [])


def test_run_folders_leave_it_too(tmp_path: Path) -> None:
    steps = [*range(10, 101, 10), 60, 70, 80]
    lines = [json.dumps({"step": step, "avg@4": 0.1 + at / 100}) + "\n" for at, step in enumerate(steps)]
    (tmp_path / "points.jsonl").write_text("".join(lines))
    with pytest.warns(RunWarning, match=r"points.jsonl: 2 points beyond step 80 left out"):
        run = read_run(str(tmp_path))
    assert run.points["step"].to_list() == [10, 20, 30, 40, 50, 60, 70, 80]
    assert run.points["avg@4"][-1] == pytest.approx(0.22)
    assert [run.place(row) for row in (0, 7)] == ["row 1", "step 80"]


def test_a_log_with_the_newest_row_first_has_no_restarts() -> None:
    assert abandoned_branch(np.arange(300_000)[::-1].copy(), np.ones(300_000, dtype=bool)) is None


@pytest.mark.parametrize("steps", [[1e30, 1e30, 1.0], [1.5, 2.5, 3.5, 4.5, 1.5, 2.5, 3.5]])
def test_steps_that_count_nothing_are_left_as_they_are(tmp_path: Path, steps: list[float]) -> None:
    rows = [{"step": step, "avg@4": 0.1 * i} for i, step in enumerate(steps)]
    (tmp_path / "points.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert read_run(str(tmp_path)).points["step"].max() == max(steps)
