"""Forecasts: verdicts, weights, intervals and baselines."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from isocompute.core.curve import Curve
from isocompute.core.errors import InputError
from isocompute.diagnose.series import present_level
from isocompute.law.forecasting import backtest, damped_trend, forecast, origins, path
from tests.law.made_up import hill, noisy

COMPUTE = np.arange(1.0, 41.0)


def test_verdicts() -> None:
    rising = noisy("rising", COMPUTE, hill(COMPUTE, 0.3, 0.7, 25.0, 1.4), noise=0.005, seed=0)
    flat = [noisy("flat", COMPUTE, np.full(40, 0.5), noise=0.01, seed=seed) for seed in range(30)]
    fall = np.where(COMPUTE < 22, hill(COMPUTE, 0.3, 0.6, 5.0, 1.5), np.maximum(0.05, 0.55 - 0.07 * (COMPUTE - 22)))
    collapse = noisy("collapse", COMPUTE, fall, noise=0.01, seed=2)
    assert forecast(rising, 80.0).verdict == "improving"
    assert sum(forecast(curve, 80.0).verdict == "flat" for curve in flat) >= 25
    assert forecast(collapse, 80.0).verdict == "declining"
    assert forecast(rising.until(6), 80.0).verdict == "too_early"


def test_a_run_that_has_just_fallen_is_not_improving() -> None:
    climbing = noisy("climbing", COMPUTE, hill(COMPUTE, 0.3, 0.75, 10.0, 1.4), noise=0.005, seed=0)
    for last, verdict in (([0.05, 0.04], "declining"), ([0.04], "too_early")):
        values_C = climbing.values_C.copy()
        values_C[-len(last) :] = last
        made = forecast(replace(climbing, values_C=values_C), 80.0)
        assert made.verdict == verdict and "fell" in made.reason
    fell = replace(climbing, values_C=np.append(climbing.values_C[:-2], [0.05, 0.04]))
    assert forecast(fell, 80.0).value == forecast(fell, 80.0).now == pytest.approx(0.045)


def test_a_question_too_far_ahead_is_not_answered_with_flat() -> None:
    rising = noisy("rising", COMPUTE, hill(COMPUTE, 0.3, 0.7, 25.0, 1.4), noise=0.02, seed=0)
    assert forecast(rising, 80.0).verdict == "improving"
    far = forecast(rising, 40_000.0)
    assert far.verdict == "too_early" and "2x" in far.reason


def test_percent_stay_within_a_hundred() -> None:
    percent = noisy("percent", COMPUTE, 100 * hill(COMPUTE, 0.3, 0.98, 8.0, 1.6), noise=2.0, seed=1)
    low, high = forecast(percent, 160.0).interval
    assert 0.0 <= low < high <= 100.0


def test_a_slow_decline_is_seen() -> None:
    slow = noisy("slow", COMPUTE, 0.6 - 0.05 * np.log(COMPUTE), noise=0.004, seed=3)
    made = forecast(slow, 80.0)
    assert made.verdict == "declining"
    assert made.value < slow.values_C[:10].mean()


def test_scalerl_curve_is_extrapolated() -> None:
    """The curve ScaleRL drew for its 8B run (R0 .4017, A .6446, Cmid 10.92k, B 1.682), seen up to half of it."""
    compute = np.linspace(1.3, 90.0, 60)
    truth = hill(compute, 0.4017, 0.6446, 10.92, 1.682)
    curve = noisy("8b", compute, truth, noise=0.003, seed=0)
    half = curve.until(30)
    errors = [forecast(half, float(c)).value - t for c, t in zip(compute[32::6], truth[32::6], strict=True)]
    assert np.abs(errors).mean() < 0.01
    assert forecast(half, 90.0).asymptote == pytest.approx(0.6446, abs=0.02)


def test_intervals_hold_what_comes_about_as_often_as_they_say() -> None:
    rng = np.random.default_rng(0)
    inside = []
    for i in range(60):
        truth = hill(COMPUTE, 0.2, rng.uniform(0.5, 0.8), rng.uniform(3, 25), rng.uniform(0.8, 2.0))
        inside.append(backtest(noisy(f"{i}", COMPUTE, truth, noise=0.015, seed=i)).covered)
    assert 0.65 <= np.mean(inside) <= 0.98


def test_beats_the_baselines_on_made_up_runs_with_a_jump() -> None:
    """A format jump at the start, then a slow climb: one Hill fit to everything misreads it."""
    ours, last_three, one_hill = [], [], []
    rng = np.random.default_rng(1)
    for i in range(20):
        climb = 0.45 + rng.uniform(0.03, 0.06) * np.log(COMPUTE)
        climb[0] = 0.05
        test = backtest(noisy(f"{i}", COMPUTE, climb, noise=0.012, seed=i))
        ours.append(abs(test.forecast.value - test.target))
        last_three.append(abs(test.last_three - test.target))
        one_hill.append(abs(test.hill - test.target))
    assert np.mean(ours) < np.mean(last_three)
    assert np.mean(ours) < np.mean(one_hill)


def test_weights_sum_to_one_and_favour_what_predicted_the_past() -> None:
    rising = noisy("rising", COMPUTE, hill(COMPUTE, 0.3, 0.7, 25.0, 1.4), noise=0.003, seed=0)
    made = forecast(rising, 80.0)
    assert sum(made.weights.values()) == pytest.approx(1.0)
    assert made.weights["flat"] < 0.06  # one of eleven forecasters, and the worst on a climbing run


def test_far_forecasts_are_less_sure() -> None:
    rising = noisy("rising", COMPUTE, hill(COMPUTE, 0.3, 0.7, 25.0, 1.4), noise=0.005, seed=0)
    near, far = forecast(rising, 80.0), forecast(rising, 1600.0)
    assert np.ptp(far.interval) > 1.5 * np.ptp(near.interval)
    assert 0.0 <= far.interval[0] <= far.value <= far.interval[1] <= 1.0


def test_values_may_leave_the_unit_interval() -> None:
    score = noisy("score", COMPUTE, 40 * hill(COMPUTE, -0.3, 0.7, 10.0, 1.4), noise=0.2, seed=0)
    made = forecast(score, 80.0)
    assert made.value == pytest.approx(40 * hill(np.array(80.0), -0.3, 0.7, 10.0, 1.4), abs=2.5)


def test_no_member_promises_the_sky() -> None:
    rng = np.random.default_rng(0)
    for _ in range(30):
        values = 20 + 3 * rng.standard_normal(9)
        made = forecast(Curve("noise", COMPUTE[:9], values), 18.0)
        smooth = np.convolve(values, np.ones(3) / 3, mode="valid")
        assert smooth.min() - np.ptp(smooth) - 1e-9 <= made.value <= smooth.max() + np.ptp(smooth) + 1e-9


def test_bad_questions() -> None:
    curve = Curve("x", COMPUTE, hill(COMPUTE, 0.3, 0.7, 25.0, 1.4))
    with pytest.raises(InputError, match="not beyond its last point"):
        forecast(curve, 30.0)
    with pytest.raises(InputError, match="needs 4"):
        forecast(curve.until(3), 30.0)


def log_spaced(middle: float, *, noise: float = 0.004, seed: int = 0) -> Curve:
    """A run evaluated at log-spaced compute, from a hundred-thousandth of its budget on, as studies do."""
    compute_C = np.geomspace(1e2, 1e6, 24)
    rng = np.random.default_rng(seed)
    return Curve("log", compute_C, 0.3 + 0.5 / (1 + (middle / compute_C) ** 1.2) + noise * rng.standard_normal(24))


def test_the_trend_is_that_of_the_last_three_quarters_of_the_compute() -> None:
    compute_C = np.geomspace(1e2, 1e6, 24)
    risen = Curve("risen", compute_C, np.where(compute_C < 2e4, 0.2, 0.7))  # long flat, by compute
    assert damped_trend(risen, 4e6) == pytest.approx(0.7)
    linear_C = np.linspace(1, 40, 40)
    line = Curve("line", linear_C, 0.2 + 0.1 * np.log(linear_C))
    assert damped_trend(line, 80.0) == pytest.approx(line.values_C[-1] + 0.7 * 0.1 * np.log(2))


def test_a_far_question_is_asked_of_the_past_as_far_ahead() -> None:
    curve = log_spaced(2e4)
    ends_O, ats_O, _ = origins(curve, 8e6)
    ratios = ats_O / curve.compute_C[ends_O - 1]
    assert ratios.max() == pytest.approx(8, rel=0.4)
    assert len(ends_O) == len(set(ends_O.tolist())) >= 6


def test_far_forecasts_of_log_spaced_runs_are_near_and_their_intervals_not_wide() -> None:
    tests = [backtest(log_spaced(middle, seed=seed), ahead=8) for seed, middle in enumerate([2e3, 5e3, 1e4, 2e4] * 5)]
    errors = np.array([abs(test.forecast.value - test.target) for test in tests])
    widths = np.array([test.forecast.interval[1] - test.forecast.interval[0] for test in tests])
    assert np.median(errors) < np.median([abs(test.last_three - test.target) for test in tests])
    assert np.mean([test.covered for test in tests]) >= 0.7
    assert np.median(widths) < 0.3


def test_nothing_rises_ahead_of_a_run_that_broke() -> None:
    """Its evaluations rise, and then are NaN."""
    rng = np.random.default_rng(0)
    compute_C = np.arange(1.0, 41.0)
    rising = Curve("broke", compute_C, 0.3 + 0.01 * compute_C + 0.03 * rng.standard_normal(40))
    assert forecast(rising, 80.0).value > 0.75
    broke = replace(rising, ends_non_finite=True)
    made = forecast(broke, 80.0)
    assert made.verdict == "declining" and made.asymptote is None
    assert made.value == pytest.approx(made.now) == pytest.approx(present_level(broke))
    assert made.weights["flat"] == pytest.approx(1.0)
    assert {round(value, 9) for _, value, _, _ in path(broke, 80.0)} == {round(made.now, 9)}


def test_one_low_value_before_a_run_breaks_is_where_it_is() -> None:
    values_C = np.append(0.3 + 0.01 * np.arange(40.0), 0.05)
    broke = Curve("broke", np.arange(1.0, 42.0), values_C, ends_non_finite=True)
    made = forecast(broke, 80.0)
    assert made.value == made.now == present_level(broke) == pytest.approx(0.05)
