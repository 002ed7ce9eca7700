"""Sides, bands and mixtures: exact, deterministic, and stable when a set grows."""

from __future__ import annotations

import doctest
from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isocompute.core.errors import InputError
from isocompute.problems import Problem, ProblemSet, mixture, three_way
from isocompute.problems.answers import ExactVerifier
from isocompute.problems.subsets import BANDS


def problems(count: int, start: int = 0) -> tuple[Problem, ...]:
    return tuple(Problem(str(i), f"{i} + 1 =", str(i + 1), source="ab"[i % 2]) for i in range(start, start + count))


def problem_set(count: int) -> ProblemSet:
    return ProblemSet("set", problems(count), ExactVerifier())


@given(st.integers(20, 200), st.integers(0, 5))
def test_no_problem_changes_sides(count: int, seed: int) -> None:
    small = three_way(problem_set(count), validation=0.3, seed=seed)
    grown = ProblemSet("set", tuple(replace(p, id=f"new-{p.id}") for p in problems(400)[::-1]), ExactVerifier())
    large = three_way(grown, validation=0.3, seed=seed)
    questions = {p.question for p in large.validation.problems}
    assert {p.question for p in small.validation.problems} <= questions
    assert not {p.question for p in small.train.problems} & questions
    assert len(small.train) + len(small.validation) == count


def test_shares_and_sources() -> None:
    sides = three_way(problem_set(6000), validation=0.05, out_of_distribution=["b"])
    assert len(sides.out_of_distribution) == 3000
    assert {p.source for p in sides.train.problems + sides.validation.problems} == {"a"}
    assert len(sides.validation) == pytest.approx(150, abs=50)
    other = three_way(problem_set(6000), validation=0.05, seed=1)
    assert {p.id for p in other.validation.problems} != {p.id for p in sides.validation.problems}


def test_wrong_sides() -> None:
    with pytest.raises(InputError, match=r"validation = 1\.5"):
        three_way(problem_set(10), validation=1.5)
    with pytest.raises(InputError, match=r"no problem has the source 'c'.*'a', 'b'"):
        three_way(problem_set(10), validation=0.5, out_of_distribution=["c"])
    with pytest.raises(InputError, match="no problem is left for validation"):
        three_way(problem_set(10), validation=1e-9)


def test_bands_are_the_papers() -> None:
    rates = np.arange(17) / 16
    assert np.flatnonzero(BANDS["easy"].holds(rates)).tolist() == [5, 6, 7, 8, 9]
    assert np.flatnonzero(BANDS["hard"].holds(rates)).tolist() == [0, 1]
    assert np.flatnonzero(BANDS["very-easy"].holds(rates)).tolist() == [10, 11, 12, 13, 14]
    assert np.flatnonzero(BANDS["extremely-hard"].holds(rates)).tolist() == [0]
    tenths = np.arange(11) / 10
    assert np.flatnonzero(BANDS["easy"].holds(tenths)).tolist() == [3, 4, 5, 6]
    assert np.flatnonzero(BANDS["very-easy"].holds(tenths)).tolist() == [7, 8, 9]


@given(st.integers(1, 60), st.integers(1, 60), st.floats(0.05, 0.95), st.integers(0, 3))
def test_largest_mixture(easy: int, hard: int, share: float, seed: int) -> None:
    subsets = {"easy": problems(easy), "hard": problems(hard, 1000)}
    shares = {"easy": share, "hard": 1 - share}
    try:
        mixed = mixture(subsets, shares, seed=seed)
    except InputError:
        return
    ids = [p.id for p in mixed]
    assert len(set(ids)) == len(ids)
    from_easy = sum(int(i) < 1000 for i in ids)
    assert abs(from_easy - share * len(ids)) < 1
    assert mixed == mixture(subsets, shares, seed=seed, size=len(ids))


def test_a_problem_of_two_subsets_is_taken_once() -> None:
    hard = problems(40)
    mixed = mixture({"hard": hard, "extremely-hard": hard[:10]}, {"hard": 0.75, "extremely-hard": 0.25})
    assert len(mixed) == len({p.id for p in mixed}) == 40
    assert {p.id for p in mixed[-10:]} == {p.id for p in hard[:10]}


def test_wrong_mixtures() -> None:
    subsets = {"easy": problems(10), "hard": problems(2, 100), "very-easy": ()}
    with pytest.raises(InputError, match=r"10 problems with 0\.5 hard need 5 of them, and 2 are there"):
        mixture(subsets, {"easy": 0.5, "hard": 0.5}, size=10)
    with pytest.raises(InputError, match=r"sum to 0\.9"):
        mixture(subsets, {"easy": 0.5, "hard": 0.4})
    with pytest.raises(InputError, match="no subset 'simple'; there are easy, hard"):
        mixture(subsets, {"simple": 1})
    with pytest.raises(InputError, match="share of easy is -1"):
        mixture(subsets, {"easy": -1, "hard": 2})
    with pytest.raises(InputError, match="very-easy has 0 problems"):
        mixture(subsets, {"easy": 0.5, "very-easy": 0.5})


@pytest.mark.parametrize("name", ["answers", "difficulty", "gym", "model", "subsets"])
def test_docstring_examples(name: str) -> None:
    result = doctest.testmod(import_module(f"isocompute.problems.{name}"))
    assert result.attempted > 0
    assert result.failed == 0
