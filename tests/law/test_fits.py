"""Fits with uncertainty: the form, the intervals, the seeds, glitches and collapses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isocompute.core.curve import Curve, median, noise_level
from isocompute.core.errors import InputError
from isocompute.law.curves import collapse_start, record_points, usable_mask, usable_points
from isocompute.law.fits import fit_groups
from isocompute.law.posterior import percentiles
from tests.law.made_up import exponential, hill, noisy

COMPUTE = np.linspace(1.0, 60.0, 60)


def test_names_the_true_form() -> None:
    steep = noisy("hill", COMPUTE, hill(COMPUTE, 0.3, 0.65, 15.0, 4.0), noise=0.004, seed=0)
    soft = noisy("exponential", COMPUTE, exponential(COMPUTE, 0.65, 0.35, 10.0), noise=0.002, seed=1)
    slow = Curve("power", COMPUTE, 0.7 - 0.4 * (1 + COMPUTE / COMPUTE[0]) ** -0.25)
    fits = fit_groups([[steep], [soft], [slow]], replicates=100)
    assert [fit.form for fit in fits] == ["hill", "exponential", "power"]
    assert all(sum(fit.form_weights.values()) == pytest.approx(1.0) for fit in fits)


def test_intervals_cover_the_ceiling() -> None:
    """A small version of benchmarks/coverage.py; 95% intervals over 120 draws of each of two designs.

    Ceilings are skewed upwards, so an exponential that is nearly done is held less often.
    """
    for truth in (hill(COMPUTE, 0.4, 0.65, 12.0, 1.7), exponential(COMPUTE, 0.65, 0.35, 15.0)):
        curves = [noisy(f"{i}", COMPUTE, truth, noise=0.01, seed=i) for i in range(120)]
        fits = fit_groups([[c] for c in curves], replicates=200, upper=1.0, with_seeds=False)
        inside = [low <= 0.65 <= high for low, high in (fit.ceiling_interval() for fit in fits)]
        assert 0.8 <= np.mean(inside) <= 1.0
        assert np.median([np.ptp(fit.ceiling_interval()) for fit in fits]) < 0.15


def test_seeds_widen_the_interval() -> None:
    """Runs that agree within noise but differ in level: pooling must see the spread between them."""
    levels = (-0.03, 0.0, 0.03)
    curves = [
        noisy(f"{i}", COMPUTE, hill(COMPUTE, 0.3, 0.6, 8.0, 2.0) + level, noise=0.004, seed=i)
        for i, level in enumerate(levels)
    ]
    (pooled,), (alone,) = (
        fit_groups([curves], replicates=400),
        fit_groups([[curves[1]]], replicates=400, with_seeds=False),
    )
    assert pooled.ceiling == pytest.approx(0.6, abs=0.015)
    spread = 0.03 / np.sqrt(3)  # standard error of the mean of three levels
    width = float(np.std(pooled.draws_at(COMPUTE[-1:])[0]))
    assert 0.5 * spread < width < 2.0 * spread
    assert width > 3 * float(np.std(alone.draws_at(COMPUTE[-1:])[0]))


def test_one_glitch_does_not_bend_the_curve() -> None:
    clean = noisy("clean", COMPUTE, hill(COMPUTE, 0.3, 0.6, 12.0, 1.5), noise=0.005, seed=0)
    values = clean.values_C.copy()
    values[40] = 0.05
    before, after = fit_groups([[clean], [Curve("glitch", COMPUTE, values)]], replicates=100)
    values[40] = 1.0
    (above,) = fit_groups([[Curve("glitch", COMPUTE, values)]], replicates=100)
    assert above.ceiling == pytest.approx(before.ceiling, abs=0.01)
    assert after.ceiling == pytest.approx(before.ceiling, abs=0.01)


def test_equal_values_do_not_fake_certainty() -> None:
    """Three zeros after one value: the median residual is 0, the doubt is not."""
    fit = fit_groups(
        [[Curve("fell", np.array([0.0, 3.0, 7.0, 11.0]), np.array([0.03, 0.0, 0.0, 0.0]))]], replicates=200
    )[0]
    low, high = fit.ceiling_interval()
    assert high - low > 0.01


def test_a_collapse_is_data() -> None:
    rise = hill(COMPUTE[:40], 0.3, 0.6, 8.0, 2.0)
    fall = np.maximum(0.05, rise[-1] - 0.08 * np.arange(1, 21))
    curve = noisy("collapse", COMPUTE, np.concatenate([rise, fall]), noise=0.005, seed=0)
    start = collapse_start(curve.values_C)
    assert start is not None and 38 <= start <= 43
    fit = fit_groups([[usable_points(curve)]], replicates=100)[0]
    assert fit.last <= COMPUTE[43]
    assert fit.ceiling == pytest.approx(0.6, abs=0.03)


@pytest.mark.parametrize("last", [[0.05], [0.31, 0.06]])
def test_a_run_that_collapsed_at_its_very_end_is_fitted_up_to_there(last: list[float]) -> None:
    curve = noisy("late", COMPUTE, hill(COMPUTE, 0.3, 0.9, 8.0, 2.0), noise=0.005, seed=0)
    values_C = np.concatenate([curve.values_C[: -len(last)], last])
    collapsed = replace(curve, values_C=values_C)
    assert collapse_start(values_C) == len(values_C) - len(last)
    assert collapse_start(values_C, deep=3) is None
    (whole,), (before,) = (
        fit_groups([[c]], replicates=50) for c in (usable_points(collapsed), collapsed.until(-len(last)))
    )
    assert whole.ceiling == pytest.approx(before.ceiling, abs=1e-9) and whole.rmse < 0.01


def test_a_slide_that_ends_in_a_collapse_begins_where_the_slide_does() -> None:
    curve = noisy("slide", COMPUTE, hill(COMPUTE, 0.3, 0.9, 8.0, 2.0), noise=0.005, seed=0)
    assert collapse_start(np.concatenate([curve.values_C[:-2], [0.70, 0.2]])) == len(COMPUTE) - 2


def test_a_wild_run_that_ends_below_where_it_began_has_fallen() -> None:
    """Half of its steps are jumps, which passes for noise; from a run of the language model."""
    values = [0.26, 0.26, 0.27, 0.3, 0.32, 0.39, 0.46, 0.58, 0.54, 0.71, 0.44, 0.85, 0.84, 0.63, 0.08, 0.06]
    assert collapse_start(np.array(values)) == 14
    assert collapse_start(np.array(values[:-1])) is None


@pytest.mark.parametrize("dip", [[30], [30, 31, 32], [10, 44]])
def test_evaluations_far_below_those_around_them_are_not_fitted(dip: list[int]) -> None:
    curve = noisy("dip", COMPUTE, hill(COMPUTE, 0.3, 0.9, 8.0, 2.0), noise=0.005, seed=0)
    values_C = curve.values_C.copy()
    values_C[dip] = 0.1
    assert np.flatnonzero(~usable_mask(values_C)).tolist() == dip
    assert usable_mask(curve.values_C).all()
    whole, dipped = fit_groups([[curve], [usable_points(replace(curve, values_C=values_C))]], replicates=50)
    assert dipped.ceiling == pytest.approx(whole.ceiling, abs=0.003)


@pytest.mark.parametrize(
    "values",
    [
        [2 / 30] * 9 + [1 / 30] + [2 / 30] * 8 + [1 / 30, 2 / 30],
        [1.0] * 12 + [0.999] + [1.0] * 7,
        [0.30, 0.20, 0.22, 0.25, 0.28, *np.linspace(0.32, 0.7, 15)],
    ],
)
def test_steps_of_a_small_set_and_a_warm_up_are_no_dips(values: list[float]) -> None:
    assert usable_mask(np.array(values)).all()


def test_a_collapse_of_a_curve_that_moves_in_large_steps_is_one() -> None:
    assert collapse_start(np.array([0.1] * 4 + [0.8] * 4 + [0.0] * 4)) == 8


def test_a_run_that_goes_up_and_down_all_the_time_is_fitted_as_it_is() -> None:
    values_C = hill(COMPUTE, 0.3, 0.9, 8.0, 2.0)
    values_C[5::3] = 0.1
    assert usable_mask(values_C).all()


@pytest.mark.parametrize("last", [[0.80], [0.72, 0.74]])
def test_a_dip_at_the_end_is_data(last: list[float]) -> None:
    curve = noisy("dip", COMPUTE, hill(COMPUTE, 0.3, 0.9, 8.0, 2.0), noise=0.005, seed=0)
    assert collapse_start(np.concatenate([curve.values_C[: -len(last)], last])) is None


@pytest.mark.parametrize("solved", [[3, 3, 3, 4, 4, 4, 4, 4, 4, 3], [9, 9, 9, 10, 10, 11, 11, 11, 10, 10, 10, 10]])
def test_a_problem_more_or_less_of_a_small_set_is_no_fall(solved: list[int]) -> None:
    """Greedy evaluations of thirty problems move in steps, between which they have no noise at all."""
    assert collapse_start(np.array(solved) / 30) is None
    assert collapse_start(np.array([*solved, 0, 0, 0]) / 30) == len(solved)


@pytest.mark.parametrize("values", [[0.5, 0.51, 0.53, 0.54], [0.1, 0.2, 0.35, 0.5], [0.5, 0.48, 0.52, 0.5, 0.53]])
@pytest.mark.parametrize("collapsed", [1, 2, 3])
def test_a_collapse_of_a_short_curve_does_not_pass_for_its_noise(values: list[float], collapsed: int) -> None:
    assert collapse_start(np.array([*values, *[0.01] * collapsed])) == len(values)
    assert collapse_start(np.array(values)) is None


@pytest.mark.parametrize("seed", range(20))
def test_noise_alone_is_no_fall(seed: int) -> None:
    assert (
        collapse_start(noisy("x", COMPUTE, hill(COMPUTE, 0.3, 0.6, 8.0, 2.0), noise=0.01, seed=seed).values_C) is None
    )
    assert collapse_start(noisy("flat", COMPUTE, np.full_like(COMPUTE, 0.3), noise=0.02, seed=seed).values_C) is None


def test_noise_level_ignores_the_curve() -> None:
    curve = noisy("x", np.linspace(1, 60, 400), hill(np.linspace(1, 60, 400), 0.3, 0.6, 8.0, 2.0), noise=0.02, seed=0)
    assert noise_level(curve.values_C) == pytest.approx(0.02, rel=0.2)


def test_long_runs_are_thinned_and_keep_the_base_model() -> None:
    compute = np.arange(10_001.0)
    curve = noisy("long", compute, hill(compute + 1e-9, 0.3, 0.6, 900.0, 1.5), noise=0.05, seed=0)
    thin = usable_points(curve)
    assert len(thin.compute_C) == 256
    assert thin.compute_C[0] == 0.0 and thin.values_C[0] == curve.values_C[0]
    fit = fit_groups([[thin]], replicates=100)[0]
    assert fit.ceiling == pytest.approx(0.6, abs=0.02)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 30), st.floats(0, 1)), min_size=1, max_size=30), st.floats(0.001, 0.2))
def test_records_match_the_definition(points: list[tuple[int, float]], width: float) -> None:
    compute = np.array([float(c) for c, _ in points])
    values = np.array([v for _, v in points])
    bins = np.floor(values / width + 1e-9)
    expected = {
        i for i in range(len(points)) if all(bins[i] > bins[j] for j in range(len(points)) if compute[j] < compute[i])
    }
    assert set(record_points(compute, values, bin_width=width).tolist()) == expected


def test_records_of_a_noisy_plateau_are_few() -> None:
    values = np.array([0.30, 0.40, 0.404, 0.39, 0.41, 0.409, 0.45])
    assert record_points(np.arange(7.0), values).tolist() == [0, 1, 4, 6]
    with pytest.raises(InputError, match="bin"):
        record_points(np.arange(7.0), values, bin_width=0.0)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=40), st.floats(0.5, 0.99))
def test_percentiles_and_medians_are_numpys(values: list[float], level: float) -> None:
    expected = np.percentile(values, [50.0 * (1.0 - level), 50.0 * (1.0 + level)])
    np.testing.assert_allclose(percentiles(np.array(values), level), expected, rtol=1e-9, atol=1e-9)
    assert median(np.array(values)) == pytest.approx(float(np.median(values)), rel=1e-12)
