"""The fitted distribution of pass rates, against scipy's optimisers and against what the theory says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import logsumexp, softmax
from scipy.stats import binom

from isocompute.core.arrays import Array
from isocompute.core.errors import InputError
from isocompute.problems.pass_rates import Mixing, fit_mixing, log_kernel, rate_grid, tabulate

COUNTS = st.lists(st.integers(0, 12), min_size=1, max_size=60)


def fitted(correct: list[int], samples: int) -> tuple[Array, Array, Mixing]:
    cells = tabulate(correct, samples)
    rate_K = rate_grid(samples)
    kernel_DK = np.exp(log_kernel(cells, rate_K))
    return kernel_DK, cells.problems_D.astype(np.float64), fit_mixing(kernel_DK, cells.problems_D.astype(float), rate_K)


def likelihood(kernel_DK: Array, number_D: Array, weight_K: Array) -> float:
    return float(number_D @ np.log(kernel_DK @ weight_K))


def test_kernel_is_scipys_binomial() -> None:
    cells = tabulate([0, 3, 16, 5, 5], [16, 16, 16, 7, 9])
    rate_K = rate_grid(16)
    expected = binom.pmf(cells.correct_D[:, None], cells.samples_D[:, None], rate_K)
    np.testing.assert_allclose(np.exp(log_kernel(cells, rate_K)), expected, rtol=1e-10, atol=1e-300)


@pytest.mark.parametrize("samples", [4, 16, 128])
@pytest.mark.parametrize("shape", [(0.5, 0.5), (6, 2), (1, 8)])
def test_likelihood_is_scipys(samples: int, shape: tuple[float, float]) -> None:
    """L-BFGS over the logits of the weights finds no more than ours; ours finds no less."""
    rng = np.random.default_rng(samples)
    correct = rng.binomial(samples, np.where(rng.random(400) < 0.2, 0.0, rng.beta(*shape, 400)))
    kernel_DK, number_D, found = fitted(correct.tolist(), samples)

    def negative(logit_K: Array) -> tuple[float, Array]:
        log_weight_K = logit_K - logsumexp(logit_K)
        marginal_D = kernel_DK @ np.exp(log_weight_K)
        gradient_K = np.exp(log_weight_K) * ((number_D / marginal_D) @ kernel_DK - number_D.sum())
        return -float(number_D @ np.log(marginal_D)), -gradient_K

    scipys = minimize(negative, np.zeros(kernel_DK.shape[1]), jac=True, method="L-BFGS-B", options={"maxiter": 3000})
    assert found.log_likelihood >= -scipys.fun - 1e-3
    assert found.log_likelihood == pytest.approx(likelihood(kernel_DK, number_D, found.weight_K))
    assert found.log_likelihood <= -scipys.fun + 0.5
    assert found.gap <= 1e-3


@given(COUNTS)
def test_a_maximum_and_a_distribution(correct: list[int]) -> None:
    """Weights are a distribution, and by concavity no other one on the grid is better by more than the gap."""
    kernel_DK, number_D, found = fitted(correct, 12)
    assert (found.weight_K >= 0).all()
    assert found.weight_K.sum() == pytest.approx(1)
    assert 0 <= found.gap < 1e-3
    rng = np.random.default_rng(len(correct))
    for logits_K in rng.normal(scale=5, size=(20, found.rate_K.size)):
        assert likelihood(kernel_DK, number_D, softmax(logits_K)) <= found.log_likelihood + found.gap + 1e-9
    em_K = found.weight_K * ((number_D / number_D.sum() / (kernel_DK @ found.weight_K)) @ kernel_DK)
    assert likelihood(kernel_DK, number_D, em_K) <= found.log_likelihood + found.gap + 1e-9


@given(COUNTS, st.integers(0, 10_000))
def test_likelihood_never_falls(correct: list[int], seed: int) -> None:
    kernel_DK, number_D, found = fitted(correct, 12)
    start_K = np.random.default_rng(seed).dirichlet(np.full(found.rate_K.size, 0.3))
    again = fit_mixing(kernel_DK, number_D, found.rate_K, start_K=start_K)
    assert again.log_likelihood >= likelihood(kernel_DK, number_D, 0.99 * start_K + 0.01 / start_K.size)
    assert again.log_likelihood == pytest.approx(found.log_likelihood, abs=2e-3)


def test_degenerate_counts() -> None:
    _, _, none = fitted([0] * 30, 16)
    assert none.weight_K[0] == pytest.approx(1, abs=1e-6)
    _, _, every = fitted([16] * 30, 16)
    assert every.weight_K[-1] == pytest.approx(1, abs=1e-6)
    _, _, single = fitted([8], 16)
    assert single.rate_K @ single.weight_K == pytest.approx(0.5, abs=0.02)


def test_filter_everything_is_no_filter() -> None:
    cells = tabulate([0, 3, 16, 5, 5], [16, 16, 16, 7, 9])
    rate_K = rate_grid(16)
    np.testing.assert_allclose(log_kernel(cells, rate_K, kept=(0, 1)), log_kernel(cells, rate_K), atol=1e-9)


def test_filtered_kernel_sums_to_one() -> None:
    cells = tabulate(np.arange(2, 10), 16)
    chance_DK = np.exp(log_kernel(cells, rate_grid(16)[1:-1], kept=(2 / 16, 9 / 16)))
    np.testing.assert_allclose(chance_DK.sum(axis=0), 1)


@pytest.mark.parametrize(
    ("correct", "samples", "message"),
    [
        ([], 16, "at least one"),
        ([17], 16, "problem 1 has 17 correct of 16"),
        ([1, -1], 16, "problem 2"),
        ([0.5], 16, "whole numbers"),
        ([0], 0, "at least one sample"),
        ([float("nan")], 16, "whole numbers"),
    ],
)
def test_wrong_counts(correct: list[float], samples: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        tabulate(correct, samples)
