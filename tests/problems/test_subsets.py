"""Bands and mixtures: exact and deterministic."""

from __future__ import annotations

import doctest
from importlib import import_module

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isocompute.core.errors import InputError
from isocompute.problems import Problem, mixture
from isocompute.problems.difficulty import BANDS


def problems(count: int, start: int = 0) -> tuple[Problem, ...]:
    return tuple(Problem(str(i), f"{i} + 1 =", str(i + 1), source="ab"[i % 2]) for i in range(start, start + count))


def test_bands_are_the_papers() -> None:
    rates = np.arange(17) / 16
    assert np.flatnonzero(BANDS["easy"].contains(rates)).tolist() == [5, 6, 7, 8, 9]
    assert np.flatnonzero(BANDS["hard"].contains(rates)).tolist() == [0, 1]
    assert np.flatnonzero(BANDS["very-easy"].contains(rates)).tolist() == [10, 11, 12, 13, 14]
    assert np.flatnonzero(BANDS["extremely-hard"].contains(rates)).tolist() == [0]
    tenths = np.arange(11) / 10
    assert np.flatnonzero(BANDS["easy"].contains(tenths)).tolist() == [3, 4, 5, 6]
    assert np.flatnonzero(BANDS["very-easy"].contains(tenths)).tolist() == [7, 8, 9]


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


@pytest.mark.parametrize("name", ["answers", "chain", "difficulty", "graders", "pass_rates", "problem_set"])
def test_docstring_examples(name: str) -> None:
    result = doctest.testmod(import_module(f"isocompute.problems.{name}"))
    assert result.attempted > 0
    assert result.failed == 0
