"""Groups graded in threads: order, failures of reward functions, and stopping while one hangs."""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from isocompute.core.errors import InputError
from isocompute.problems import Problem, ProblemWarning
from isocompute.problems.reward import RewardError, load_reward
from isocompute.rl.grading import GradingPool

PROBLEM = Problem("p0", "1 + 1?", "2")


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[GradingPool]:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(4)), raising=False)
    made = GradingPool()
    yield made
    made.close()


def failing(reason: str, detail: str = "") -> Callable[[], list[float]]:
    def grade() -> list[float]:
        raise RewardError(f"{reason} {detail}".strip(), reason=reason)

    return grade


def test_a_group_is_graded_while_others_wait(pool: GradingPool) -> None:
    first, second = threading.Event(), threading.Event()
    pool.submit(7, lambda: [float(first.wait())])
    pool.submit(3, lambda: [float(second.wait()), 0.5])
    second.set()
    assert pool.get(3) == [1.0, 0.5]
    first.set()
    assert pool.get(7) == [1.0]


def test_whoever_waits_may_be_told_to_stop(pool: GradingPool) -> None:
    release = threading.Event()
    pool.submit(0, lambda: [float(release.wait())])

    def stop() -> None:
        raise KeyboardInterrupt

    pool.on_wait = stop
    with pytest.raises(KeyboardInterrupt):
        pool.get(0)
    release.set()
    assert pool.get(0) == [1.0]


def test_all_cores_but_one_grade_at_once(pool: GradingPool) -> None:
    together = threading.Barrier(3)
    for key in range(3):
        pool.submit(key, lambda: [float(together.wait() >= 0)])
    assert [pool.get(key) for key in range(3)] == [[1.0]] * 3


def test_a_key_is_used_once_at_a_time(pool: GradingPool) -> None:
    pool.submit(1, lambda: [1.0])
    with pytest.raises(ValueError, match="group 1 is being graded already"):
        pool.submit(1, lambda: [0.0])
    pool.get(1)
    pool.submit(1, lambda: [0.0])
    assert pool.get(1) == [0.0]


@pytest.mark.parametrize("inline", [False, True])
def test_a_fault_of_a_grader_is_raised(pool: GradingPool, inline: bool) -> None:
    pool.submit(1, lambda: [1 / 0], inline=inline)
    with pytest.raises(ZeroDivisionError):
        pool.get(1)


@pytest.mark.parametrize("inline", [False, True])
def test_each_kind_of_failure_gives_one_warning(pool: GradingPool, inline: bool) -> None:
    grades = [failing("raises KeyError", "'a'"), failing("raises KeyError", "'b'"), failing("hangs"), lambda: [1.0]]
    for key, grade in enumerate(grades):
        pool.submit(key, grade, inline=inline)
    with pytest.warns(ProblemWarning) as caught:
        assert [pool.get(key) for key in range(4)] == [None, None, None, [1.0]]
    assert pool.last_failure == "hangs"
    assert len(caught) == 2
    assert (pool.groups, pool.failed) == (4, 3)


@pytest.mark.filterwarnings("ignore::isocompute.problems.ProblemWarning")
def test_many_failures_stop_the_run(pool: GradingPool) -> None:
    for key in range(19):
        pool.submit(key, failing("raises KeyError", str(key)) if key in (4, 11) else lambda: [0.0], inline=True)
    assert sum(pool.get(key) is None for key in range(19)) == 2
    pool.submit(19, lambda: [1.0])
    with pytest.raises(
        InputError, match=r"no rewards for 2 of 20 groups, more than 5%; last: raises KeyError 11\. Fix"
    ):
        pool.get(19)


@pytest.mark.filterwarnings("ignore::isocompute.problems.ProblemWarning")
def test_a_few_failures_do_not(pool: GradingPool) -> None:
    for key in range(100):
        pool.submit(key, failing("raises KeyError") if key % 20 == 19 else lambda: [0.0])
        pool.get(key)
    assert (pool.groups, pool.failed) == (100, 5)


REWARDS = """
import pathlib, time
def score(responses, answers):
    if "hang" in responses:
        pathlib.Path(__file__).with_name("hangs").touch()
        time.sleep(600)
    return [float("nan") if response == "nan" else response == answer for response, answer in zip(responses, answers)]
"""


def test_reward_functions(pool: GradingPool, tmp_path: Path) -> None:
    (tmp_path / "r.py").write_text(REWARDS)
    score = load_reward(f"{tmp_path / 'r.py'}:score", source="mine", columns=(), seconds=1)
    groups = [["2", "3"], ["2", "nan"], ["hang", "2"], ["4", "2"]]
    for key, responses in enumerate(groups):
        pool.submit(key, partial(score, PROBLEM, responses))
    assert pool.get(0) == [1.0, 0.0]
    with pytest.warns(ProblemWarning, match="A group is dropped: r.py:score"):
        assert pool.get(1) is None
    assert pool.last_failure == (
        "r.py:score returns a reward that is not a finite number (nan); problem p0, response 'nan'"
    )
    with pytest.warns(ProblemWarning, match="does not answer within 1 s"):
        assert pool.get(2) is None
    assert pool.last_failure.endswith("problem p0, response 'hang'")
    assert pool.get(3) == [0.0, 1.0]


def test_close_ends_what_hangs(tmp_path: Path) -> None:
    (tmp_path / "r.py").write_text(REWARDS)
    score = load_reward(f"{tmp_path / 'r.py'}:score", source="mine", columns=())
    before = {thread.name for thread in threading.enumerate()}
    pool = GradingPool()
    for key in range(20):
        pool.submit(key, partial(score, PROBLEM, ["hang"]))
    while not (tmp_path / "hangs").exists():
        time.sleep(0.01)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pool.close()
    assert {thread.name for thread in threading.enumerate()} == before
