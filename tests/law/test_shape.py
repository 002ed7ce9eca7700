"""The form of curves against closed forms, scipy's distributions and finite differences."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from isocompute.core.arrays import Array
from isocompute.law.shape import (
    LARGEST_TAIL,
    ONE,
    STAGES,
    TWO,
    Stage,
    effective_log_compute,
    form_names,
    growth,
    growth_and_slopes,
)
from tests.law.made_up import hill

X = np.geomspace(1e-3, 1e3, 61)
EXPONENTS = (0.5, 1.0, 2.2)


def g_at(exponent: float, tail: float, stage: Stage = ONE, x: Array = X) -> Array:
    """g at x for B = `exponent`; `tail` is log β, or logit w."""
    return growth(np.log(x), np.full(len(x), np.log(exponent)), np.full(len(x), tail), stage)


@pytest.mark.parametrize("exponent", EXPONENTS)
def test_a_tail_of_one_is_hills_curve(exponent: float) -> None:
    np.testing.assert_allclose(g_at(exponent, 0.0), hill(X, 0.0, 1.0, 1.0, exponent), rtol=1e-9)


@pytest.mark.parametrize("exponent", EXPONENTS)
def test_a_large_tail_is_a_stretched_exponential(exponent: float) -> None:
    np.testing.assert_allclose(g_at(exponent, LARGEST_TAIL), 1.0 - 2.0 ** -(X**exponent), atol=2e-3)


def test_a_large_tail_at_exponent_one_is_the_papers_exponential() -> None:
    scale = 1.0 / np.log(2.0)  # half of the rise at x = 1
    np.testing.assert_allclose(g_at(1.0, LARGEST_TAIL), stats.expon.cdf(X, scale=scale), atol=2e-3)


@pytest.mark.parametrize("power", [0.1, 0.3, 2.0])
def test_an_exponent_of_one_is_a_power_law(power: float) -> None:
    start = 1.0 / (2.0 ** (1.0 / power) - 1.0)
    np.testing.assert_allclose(g_at(1.0, np.log(power)), 1.0 - (1.0 + X / start) ** -power, rtol=1e-8)


@pytest.mark.parametrize("exponent", EXPONENTS)
@pytest.mark.parametrize("beta", [0.2, 1.0, 5.0])
def test_one_stage_is_the_burr_distribution(exponent: float, beta: float) -> None:
    scale = (2.0 ** (1.0 / beta) - 1.0) ** (-1.0 / exponent)
    wanted = stats.burr12.cdf(X, exponent, beta, scale=scale)
    np.testing.assert_allclose(g_at(exponent, np.log(beta)), wanted, rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("share", [0.05, 0.4])
def test_two_stages_are_a_fast_rise_and_hills_curve(share: float) -> None:
    wanted = share * stats.expon.cdf(X, scale=1 / 8) + (1.0 - share) * hill(X, 0.0, 1.0, 1.0, 1.5)
    np.testing.assert_allclose(g_at(1.5, np.log(share / (1.0 - share)), TWO), wanted, rtol=1e-9)


@given(st.floats(-1.5, 2.0), st.floats(-5.0, 9.0), st.sampled_from(STAGES))
def test_growth_is_monotone_from_nothing_to_one(exponent: float, tail: float, stage: Stage) -> None:
    x = np.concatenate([[1e-30], np.geomspace(1e-6, 1e9, 200), [1e30]])
    g = growth(np.log(x), np.full(len(x), exponent), np.full(len(x), tail), stage)
    assert np.isfinite(g).all() and g.min() >= 0.0 and g.max() <= 1.0
    assert (np.diff(g) >= -1e-12).all()


@given(st.floats(-1.5, 2.0), st.floats(-3.9, 5.9))
def test_the_midpoint_is_where_half_of_one_stage_is_done(exponent: float, tail: float) -> None:
    assert growth(np.zeros(1), np.array([exponent]), np.array([tail]), ONE)[0] == pytest.approx(0.5)


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
def test_slopes_match_finite_differences(stage: Stage) -> None:
    rng, step = np.random.default_rng(0), 1e-6
    at = rng.uniform([-3.0, -0.8, -2.0], [3.0, 0.8, 2.0], (40, 3)).T
    value, *slopes = growth_and_slopes(*at, stage)
    np.testing.assert_allclose(value, growth(*at, stage))
    for k, slope in enumerate(slopes):
        move = step * np.eye(3)[k][:, None]
        np.testing.assert_allclose(
            slope, (growth(*(at + move), stage) - growth(*(at - move), stage)) / (2 * step), atol=1e-7
        )


def test_warm_up_loses_updates_at_the_start_and_no_more() -> None:
    """M² / (M + d) of M updates count: nearly none of the first, all but d in the end."""
    batch, delay, updates = np.array(256.0), np.array(3.0), np.array([0.0, 0.1, 3.0, 1e6])
    counted = np.exp(effective_log_compute(updates * batch, batch, delay)) / batch
    np.testing.assert_allclose(counted[1:], updates[1:] ** 2 / (updates[1:] + delay))
    assert counted[0] < 1e-12 and updates[-1] - counted[-1] == pytest.approx(delay, rel=1e-4)


def test_compute_without_a_batch_size_has_no_warm_up() -> None:
    np.testing.assert_allclose(np.exp(effective_log_compute(X, np.array(np.nan), np.array(3.0))), X)


def test_samples_are_named_by_the_form_they_are_near() -> None:
    tails = {"hill": (0.0, 0), "exponential": (4.0, 0), "power": (-2.0, 0), "two_stage": (0.0, 1)}
    for name, (tail, stage) in tails.items():
        assert form_names(np.full(5, tail), np.full(5, stage))[name] == 1.0
    faint = form_names(np.array([-6.0]), np.array([1]))  # a first stage of a quarter of a percent is none
    assert faint["hill"] == 1.0 and sum(faint.values()) == 1.0
