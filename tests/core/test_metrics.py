from __future__ import annotations

import doctest
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isocompute import InputError
from isocompute.core import metrics
from isocompute.core.metrics import Estimate, avg_at_k, best_at_k, mean_with_error, worst_at_k


@st.composite
def counts(draw: st.DrawFn) -> tuple[int, int, int]:
    samples = draw(st.integers(1, 8))
    return draw(st.integers(0, samples)), samples, draw(st.integers(1, samples))


@given(counts())
def test_equals_the_mean_over_all_subsets(drawn: tuple[int, int, int]) -> None:
    correct, samples, k = drawn
    right = [1] * correct + [0] * (samples - correct)
    subsets = list(combinations(right, k))
    for metric, of_subset in ((avg_at_k, np.mean), (best_at_k, max), (worst_at_k, min)):
        (value,) = metric([correct], [samples], k=k)
        assert value == pytest.approx(np.mean([of_subset(subset) for subset in subsets]), abs=1e-12)


@pytest.mark.parametrize("k", [1, 2, 7])
def test_all_right_and_none_right_are_exact(k: int) -> None:
    for metric in (avg_at_k, best_at_k, worst_at_k):
        assert metric([7, 0], [7, 7], k=k).tolist() == [1.0, 0.0]


def test_k_of_one_is_the_share_for_all_three() -> None:
    for metric in (avg_at_k, best_at_k, worst_at_k):
        assert metric([1, 3, 0], [4, 5, 2], k=1).tolist() == pytest.approx([0.25, 0.6, 0.0])


def test_k_of_all_samples() -> None:
    assert best_at_k([1, 0, 5], [5, 5, 5], k=5).tolist() == [1.0, 0.0, 1.0]
    assert worst_at_k([4, 0, 5], [5, 5, 5], k=5).tolist() == [0.0, 0.0, 1.0]


def test_problems_may_have_different_numbers_of_samples() -> None:
    together = best_at_k([1, 1, 2], [2, 4, 100], k=2)
    apart = [best_at_k([c], [m], k=2)[0] for c, m in ((1, 2), (1, 4), (2, 100))]
    assert together.tolist() == apart
    assert together.tolist() == pytest.approx([1.0, 0.5, 1 - 98 * 97 / (100 * 99)])


def test_one_number_of_samples_for_all_problems() -> None:
    assert worst_at_k([1, 3], 4, k=2).tolist() == worst_at_k([1, 3], [4, 4], k=2).tolist() == [0.0, 0.5]


def test_large_counts_neither_overflow_nor_lose_digits() -> None:
    # 1 right of 100,000: any k samples hold it with chance k / m, exactly.
    assert best_at_k([1], [100_000], k=50_000)[0] == pytest.approx(0.5, rel=1e-9)
    assert worst_at_k([99_999], [100_000], k=50_000)[0] == pytest.approx(0.5, rel=1e-9)


def test_more_than_the_samples_names_the_problem_and_the_fix() -> None:
    for metric in (avg_at_k, best_at_k, worst_at_k):
        with pytest.raises(InputError, match=r"k = 5, but problem 1 has only 4 samples; take at least 5 samples"):
            metric([1, 1], [8, 4], k=5)


@pytest.mark.parametrize(
    ("correct", "samples", "k", "message"),
    [
        ([0.5], [4], 2, "correct_P has a value that is not a whole number"),
        ([np.nan], [4], 2, "correct_P has a value that is not a whole number"),
        ([1], [np.inf], 2, "samples_P has a value that is not a whole number"),
        ([5], [4], 2, "problem 0 has 5 correct of 4 samples"),
        ([1, -1], [4, 4], 2, "problem 1 has -1 correct of 4 samples"),
        ([1], [4], 0, "k = 0; k must be a whole number of at least 1"),
        ([1], [4], 1.5, "k = 1.5; k must be a whole number"),
        ([1], [4], float("nan"), "k = nan; k must be a whole number"),
        ([1, 2], [4, 4, 4], 2, "correct_P has the shape"),
        (["x"], [4], 2, "correct_P"),
    ],
)
def test_wrong_counts(correct: list[float], samples: list[float], k: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        best_at_k(correct, samples, k=k)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=20))
def test_mean_with_error_is_numpys(values: list[float]) -> None:
    estimate = mean_with_error(values)
    assert estimate.value == pytest.approx(np.mean(values))
    assert estimate.standard_error == pytest.approx(np.std(values, ddof=1) / np.sqrt(len(values)))
    assert estimate.problems == len(values)


def test_one_problem_has_no_error() -> None:
    estimate = mean_with_error([0.25])
    assert (estimate.value, estimate.problems) == (0.25, 1)
    assert np.isnan(estimate.standard_error)


@pytest.mark.parametrize(
    ("values", "message"), [([], "at least one"), ([[1.0]], "shape"), ([1.0, float("nan")], "NaN")]
)
def test_wrong_values(values: list[float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        mean_with_error(values)


def test_error_shrinks_with_problems() -> None:
    few, many = mean_with_error([0.0, 1.0] * 8), mean_with_error([0.0, 1.0] * 800)
    assert isinstance(few, Estimate)
    assert few.standard_error / many.standard_error == pytest.approx(10.0, rel=0.05)


def test_docstring_examples() -> None:
    result = doctest.testmod(metrics, optionflags=doctest.ELLIPSIS)
    assert result.attempted >= 4
    assert result.failed == 0
