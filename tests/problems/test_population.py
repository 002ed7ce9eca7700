"""The pass rates behind measured ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from isocompute.problems.pass_rates import infer_samples, latent_pass_rates


def measured(rates_P: np.ndarray, samples: int = 16, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).binomial(samples, rates_P) / samples


@given(samples=st.integers(4, 64), digits=st.sampled_from([3, 4, 6, 15]), seed=st.integers(0, 1000))
@settings(deadline=None)
def test_the_number_of_samples_is_seen_in_the_rates(samples: int, digits: int, seed: int) -> None:
    rates_P = np.concatenate([[0.0, 1.0 / samples], measured(np.linspace(0.1, 0.9, 200), samples, seed)])
    assert infer_samples(np.round(rates_P, digits)) == samples


def test_rates_of_two_digits_are_those_of_sixteen_samples() -> None:
    assert infer_samples(np.round(measured(np.linspace(0, 1, 400)), 2)) == 16
    assert infer_samples(np.arange(101) / 100) is None, "percent"


@pytest.mark.parametrize(
    "rates_P",
    [
        np.linspace(0.3, 0.6, 200),
        np.random.default_rng(0).beta(0.5, 2, 500),
        np.array([0.25, 0.5]),
        np.ones(3) / 7,
        np.linspace(1e-4, 4e-4, 50),
    ],
    ids=["even", "drawn", "two", "three", "tiny"],
)
def test_rates_that_are_no_shares_of_few_samples_stay(rates_P: np.ndarray) -> None:
    assert infer_samples(rates_P) is None
    assert latent_pass_rates(rates_P) is rates_P


@pytest.mark.parametrize(
    "kind",
    [stats.uniform(0, 0.0625), stats.uniform(0.3, 0.3), stats.beta(0.5, 1.5), stats.beta(5, 0.7)],
    ids=["hard", "easy", "skewed", "very easy"],
)
@pytest.mark.parametrize("seed", [1, 2])
def test_they_are_nearer_to_the_truth_than_the_measured_ones(kind: stats.rv_continuous, seed: int) -> None:
    """By the largest distance between distributions, and by what the simulator takes from them."""
    true_P = kind.rvs(size=3000, random_state=seed)
    seen_P = measured(true_P, seed=seed)
    behind_P = latent_pass_rates(seen_P)
    assert len(behind_P) == 3000 and behind_P.min() >= 0 and behind_P.max() <= 1
    far, near = (stats.ks_2samp(of_P, true_P).statistic for of_P in (seen_P, behind_P))
    assert near < 0.5 * far
    assert behind_P.mean() == pytest.approx(seen_P.mean(), abs=0.005), "samples are right on average"
    spreads = [float(np.sqrt(rates_P * (1.0 - rates_P)).mean()) for rates_P in (behind_P, true_P)]
    assert spreads[0] == pytest.approx(spreads[1], rel=0.05)


@pytest.mark.parametrize("kind", [stats.uniform(0, 1), stats.beta(0.4, 1.2)], ids=["even", "skewed"])
@pytest.mark.parametrize("kept", [(5, 9), (0, 1), (2, 16)], ids=["easy", "hard", "solved"])
def test_a_set_that_was_filtered_by_its_counts(kind: stats.rv_continuous, kept: tuple[int, int]) -> None:
    """As the paper's sets are: what passed the filter spreads further than the filter, not less."""
    every_P = kind.rvs(size=20_000, random_state=3)
    counts_P = np.random.default_rng(3).binomial(16, every_P)
    passed_P = (counts_P >= kept[0]) & (counts_P <= kept[1])
    true_P, seen_P = every_P[passed_P], counts_P[passed_P] / 16
    behind_P = latent_pass_rates(seen_P)
    assert stats.wasserstein_distance(behind_P, true_P) < 0.8 * stats.wasserstein_distance(seen_P, true_P)
    low, high = np.quantile(true_P, [0.1, 0.9])
    assert np.quantile(behind_P, [0.1, 0.9]) == pytest.approx([low, high], abs=0.04)


@pytest.mark.parametrize(
    "rates_P",
    [np.zeros(50), np.full(50, 0.5), np.repeat([0.0, 1.0], 30), np.full(100, 0.25), np.repeat([0.1, 0.2], 50)],
    ids=["none", "halves", "single", "one", "two"],
)
def test_rates_of_a_sample_or_two_say_too_little(rates_P: np.ndarray) -> None:
    assert latent_pass_rates(rates_P) is rates_P


def test_problems_that_nobody_solves_are_kept_as_such() -> None:
    """Half of the set at 0, half at .5: no count lies between, and neither does a rate."""
    behind_P = latent_pass_rates(measured(np.repeat([0.0, 0.5], 500)))
    assert (behind_P < 0.005).mean() == pytest.approx(0.5, abs=0.03)
    assert ((behind_P > 0.4) & (behind_P < 0.6)).mean() == pytest.approx(0.5, abs=0.05)


def test_the_same_rates_give_the_same_numbers() -> None:
    seen_P = measured(np.linspace(0, 0.3, 300))
    assert (latent_pass_rates(seen_P) == latent_pass_rates(seen_P)).all()
    assert (latent_pass_rates(seen_P[::-1]) == latent_pass_rates(seen_P)).all(), "whatever their order"
