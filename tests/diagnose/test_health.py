"""Health checks find what was done to a run, soon after it began, and do not find noise."""

from __future__ import annotations

import dataclasses
import doctest

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isocompute.data import RunSettings
from isocompute.diagnose import health as checks
from isocompute.diagnose.health import Finding, Health, check
from isocompute.diagnose.series import binomial_scale
from tests.diagnose.synthetic_runs import rising, run_of


def _codes(health: Health) -> list[str]:
    return [finding.code for finding in health.findings]


def test_noise_is_healthy() -> None:
    flagged = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        length = int(rng.integers(8, 120))
        run = run_of(
            avg_at_1=rising(rng, length, noise=float(rng.uniform(0.005, 0.04))),
            train_avg=np.clip(rising(rng, length, noise=float(rng.uniform(0.02, 0.2))), 0, 1),
            entropy=0.5 * np.exp(-2.0 * np.arange(length) / length + 0.1 * rng.normal(size=length)),
            response_length=400 * np.exp(0.15 * rng.normal(size=length)),
            grad_norm=np.exp(0.3 * rng.normal(size=length)),
            kl=0.01 * np.arange(length),
            truncated=np.full(length, 0.02),
        )
        flagged += check(run).verdict != "healthy"
    assert flagged <= 10


def test_a_fall_is_seen_before_half_of_it() -> None:
    early = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        values = rising(rng, 60, noise=0.015)
        values[40:] -= np.linspace(0.03, 0.6, 20)
        found = [f for f in check(run_of(avg_at_1=values)).findings if f.code == "reward_fall"]
        assert found
        early += 40 <= (found[0].since_step or 0) < 50
    assert early >= 98


@pytest.mark.parametrize("name", ["avg@32", "avg@8/aime", "aime/avg@8"])
def test_a_fall_on_one_of_several_held_out_sets_is_seen_and_named(name: str) -> None:
    rng = np.random.default_rng(0)
    falling = rising(rng, 31, noise=0.005, low=0.1, high=0.16)
    falling[15:] -= np.linspace(0.01, 0.09, 16)
    run = run_of(avg_at_4=rising(rng, 31, noise=0.01, high=0.6))
    assert check(run).verdict == "healthy"
    health = check(dataclasses.replace(run, points=run.points.with_columns(pl.Series(name, falling))))
    (found,) = health.findings
    assert (health.verdict, found.code) == ("warning", "reward_fall")
    assert found.evidence.startswith(f"{name} fell from 0.1")
    metrics = {c.code: c.metrics for c in health.checks}
    assert metrics["reward_fall"] == ("avg@4", name)
    assert metrics["no_progress"] == ("avg@4",)  # that one set stands still says nothing of the run


@pytest.mark.parametrize("name", ["avg@4/error", "exact/avg@4", "train/avg@4", "best@4", "worst@4"])
def test_other_readings_of_one_evaluation_are_no_other_set(name: str) -> None:
    """An evaluation that sharpens loses best@k, and its standard error falls."""
    falling = np.concatenate([np.linspace(0.2, 0.5, 20), np.linspace(0.5, 0.1, 20)])
    run = run_of(avg_at_4=rising(np.random.default_rng(0), 40, noise=0.005))
    assert (
        check(dataclasses.replace(run, points=run.points.with_columns(pl.Series(name, falling)))).verdict == "healthy"
    )


@pytest.mark.parametrize("k", [1, 8])
def test_small_sets_of_problems_raise_few_false_alarms(k: int) -> None:
    """Five sets of thirty problems beside a large one, all without a fall."""
    flagged = 0
    for seed in range(100):
        rng = np.random.default_rng([k, seed])
        length = int(rng.integers(8, 60))
        small = {
            f"avg@{k}/{i}": rng.binomial(30 * k, rising(rng, length, noise=0.0, low=low, high=1.5 * low)) / (30.0 * k)
            for i, low in enumerate((0.05, 0.1, 0.2, 0.4, 0.6))
        }
        run = run_of(**{f"avg@{k}": rising(rng, length, noise=0.01)}, **small)
        flagged += any(f.code == "reward_fall" for f in check(run).findings)
    assert flagged <= 4


def test_a_rise_of_the_reward_pays_for_entropy() -> None:
    """Entropy that falls tenfold while the reward rises is healthy; the same fall on a flat reward is not."""
    steps = np.arange(40)
    entropy = 0.6 * np.exp(-steps / 15.0)
    quiet = 0.002 * np.sin(steps * 1.7)
    assert check(run_of(avg_at_1=0.2 + 0.01 * steps + quiet, entropy=entropy)).verdict == "healthy"
    assert "entropy_collapse" in _codes(check(run_of(avg_at_1=0.5 - 0.002 * steps + quiet, entropy=entropy)))


@pytest.mark.parametrize(
    ("metric", "end", "code"),
    [
        ("entropy", 5.0, "entropy_explosion"),
        ("response_length", 9.0, "length_explosion"),
        ("response_length", 0.1, "length_collapse"),
    ],
)
def test_drift_without_gain(metric: str, end: float, code: str) -> None:
    change = np.concatenate([np.ones(20), np.geomspace(1.0, end, 20)])
    reward = np.concatenate([np.linspace(0.2, 0.5, 20), np.linspace(0.5, 0.45, 20)])
    health = check(run_of(avg_at_1=reward, **{metric: 0.5 * change}))
    assert health.verdict == "problem"
    assert code in _codes(health)


def test_truncation_is_told_at_each_mark_and_a_setting_is_no_problem() -> None:
    rising_share = check(run_of(truncated=np.linspace(0.0, 0.3, 60), train_avg=np.linspace(0.4, 0.6, 60)))
    assert [f.severity for f in rising_share.findings] == ["warning", "warning", "problem"]
    constant = check(run_of(truncated=np.full(60, 0.3), train_avg=np.linspace(0.4, 0.6, 60)))
    assert [(f.code, f.severity) for f in constant.findings] == [("truncation", "warning")]


def test_spikes_of_the_gradient() -> None:
    norms = np.exp(0.2 * np.random.default_rng(0).normal(size=80))
    norms[30] = 60.0
    assert check(run_of(grad_norm=norms)).findings == ()
    norms[[36, 41]] = 60.0
    assert [(f.code, f.since_step) for f in check(run_of(grad_norm=norms)).findings] == [("grad_norm_spikes", 41)]


def test_sampler_and_trainer_disagree() -> None:
    assert _codes(check(run_of(logprob_gap=np.full(20, 0.3)))) == ["logprob_gap"]
    assert _codes(check(run_of(logprob_gap=np.full(20, 1e-6)))) == []
    tinker = RunSettings(engine="tinker")
    assert _codes(check(run_of(tinker, kl=np.full(20, 0.05)))) == ["logprob_gap"]


def test_training_goes_on_where_validation_falls() -> None:
    validation = np.concatenate([np.linspace(0.3, 0.6, 30), np.linspace(0.6, 0.53, 30)])
    health = check(run_of(avg_at_1=validation, train_avg=np.linspace(0.3, 0.95, 60)))
    assert "train_validation_gap" in _codes(health)


def _histogram(rates: np.ndarray) -> list[int]:
    return [int(count) for count in np.histogram(rates, bins=20, range=(0, 1))[0]]


def test_problems_given_up() -> None:
    rng = np.random.default_rng(0)
    even = [_histogram(np.clip(rng.normal(0.4 + 0.02 * t, 0.05, 1000), 0, 1)) for t in range(15)]
    split = [_histogram(np.where(np.arange(1000) < 20 * t, 0.01, np.clip(0.45 + 0.04 * t, 0, 1))) for t in range(15)]
    for rows, expected in ((even, []), (split, ["polarisation"])):
        run = run_of(train_avg=np.full(15, 0.5))
        run = dataclasses.replace(run, points=run.points.with_columns(pl.Series("train/pass_rates", rows)))
        assert _codes(check(run)) == expected


def test_groups_without_signal_against_what_the_pass_rates_predict() -> None:
    """Problems at a pass rate of .5 give a group of 8 all the same in 2 of 256 cases."""
    rows = [_histogram(np.full(500, 0.51))] * 15
    for share, expected in ((0.02, []), (0.4, ["zero_variance"])):
        run = run_of(zero_variance=np.full(15, share))
        run = dataclasses.replace(run, points=run.points.with_columns(pl.Series("train/pass_rates", rows)))
        assert _codes(check(run)) == expected


def test_what_cannot_run_says_what_it_needs() -> None:
    health = check(run_of(train_avg=np.full(10, 0.5)))
    lacking = {c.code: c.needs for c in health.checks if not c.ran}
    assert health.verdict == "healthy"
    assert lacking["entropy_collapse"] == "entropy, 2 points"
    assert "reward_fall" not in lacking
    assert all(c.needs is None for c in health.checks if c.ran)


@pytest.mark.parametrize("metric", ["avg@1", "train/avg", "loss", "grad_norm", "entropy"])
@pytest.mark.parametrize(("value", "word"), [(np.nan, "NaN"), (np.inf, "infinite"), (-1e120, "as good as infinite")])
def test_what_is_no_number_is_a_problem_from_its_first_row(metric: str, value: float, word: str) -> None:
    column = np.linspace(0.4, 0.6, 30)
    run = run_of(avg_at_1=column.copy())
    column[[17, 25]] = value
    run = dataclasses.replace(run, points=run.points.with_columns(pl.Series(metric, column)))
    health = check(run)
    (found,) = health.findings
    assert (health.verdict, found.code, found.severity, found.since_step) == ("problem", "non_finite", "problem", 17)
    assert metric in found.evidence
    assert word in found.evidence
    assert check(dataclasses.replace(run, points=run.points.head(17))).verdict == "healthy"


def test_a_run_of_nothing_but_nan_is_a_problem() -> None:
    points = pl.DataFrame({"step": range(10), "avg@4": [np.nan] * 10})
    health = check(dataclasses.replace(run_of(avg_at_1=np.zeros(1)), points=points))
    assert [(f.code, f.since_step) for f in health.findings] == [("non_finite", 0)]
    assert [c.code for c in health.checks if c.ran] == ["non_finite"]


def test_a_value_that_is_not_there_is_no_nan() -> None:
    run = run_of(avg_at_1=np.where(np.arange(30) % 5 == 0, 0.5, np.nan), train_avg=np.full(30, 0.5))
    assert check(run).verdict == "healthy"


@pytest.mark.parametrize("size", [1e99, 1e150, 1e308])
def test_huge_values_raise_no_warning_of_arithmetic(size: float) -> None:
    """Warnings are errors here; what is beyond the largest number counts as infinite."""
    wild = size * np.linspace(-1.0, 1.0, 40) ** 3
    every = ("avg@1", "train/avg", "entropy", "kl", "response_length", "grad_norm", "truncated", "zero_variance")
    points = pl.DataFrame({"step": range(40), **dict.fromkeys(every, wild)})
    health = check(dataclasses.replace(run_of(avg_at_1=np.zeros(1)), points=points))
    assert ("non_finite" in _codes(health)) == (size > 1e100)
    assert all(len(f.evidence) < 200 for f in health.findings if f.code != "truncation")  # which is a share


@pytest.mark.parametrize(
    ("code", "metric", "fewest"),
    [
        ("reward_fall", "train/avg", 2),
        ("entropy_collapse", "entropy", 2),
        ("length_explosion", "response_length", 2),
        ("truncation", "truncated", 5),
        ("kl_drift", "kl", 2),
        ("zero_variance", "zero_variance", 10),
        ("logprob_gap", "logprob_gap", 5),
        ("grad_norm_spikes", "grad_norm", 13),
    ],
)
def test_a_check_runs_from_as_many_points_as_it_says(code: str, metric: str, fewest: int) -> None:
    for count in (fewest - 1, fewest):
        points = pl.DataFrame({"step": range(count), metric: [0.02] * count})
        health = check(dataclasses.replace(run_of(avg_at_1=np.zeros(1)), points=points))
        (one,) = [c for c in health.checks if c.code == code]
        assert one.ran == (count == fewest)
        assert f"{fewest} points" in (one.needs or f"{fewest} points")
        if metric != "response_length" and fewest <= 5:  # one check alone reads it
            assert health.verdict == ("healthy" if one.ran else "unknown")


def test_three_spikes_are_found_as_soon_as_the_check_runs() -> None:
    norms = np.array([1.0] * 10 + [60.0] * 3)
    assert _codes(check(run_of(grad_norm=norms))) == ["grad_norm_spikes"]


def test_a_column_that_happens_to_be_alone_is_no_reward() -> None:
    health = check(run_of(queue_depth=np.linspace(1.0, 0.0, 30)))
    assert health.findings == ()
    assert not any(c.ran for c in health.checks)


def test_a_run_without_any_metric_is_no_error() -> None:
    health = check(run_of(nothing=np.full(3, np.nan)))
    assert health.verdict == "unknown"
    assert not any(c.ran for c in health.checks)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(5, 70), st.integers(1, 70))
def test_a_prefix_tells_the_same(seed: int, length: int, cut: int) -> None:
    """Findings are causal: those of a prefix are those of the whole run that showed within it, word for word.

    All but `no_progress`, which is taken back by a rise (test_no_progress.py).
    """
    rng = np.random.default_rng(seed)
    evaluated = np.where(np.arange(length) % int(rng.integers(1, 5)) == 0, 1.0, np.nan)

    def walk(scale: float) -> np.ndarray:
        return np.asarray(np.cumsum(scale * rng.normal(size=length)))

    run = run_of(
        avg_at_1=np.clip(0.5 + walk(0.08), 0, 1) * evaluated,
        avg_at_8=np.where(np.arange(length) < rng.integers(0, length), np.nan, np.clip(0.5 + walk(0.08), 0, 1)),
        train_avg=np.clip(0.5 + walk(0.05) + 0.1 * rng.normal(size=length), 0, 1),
        entropy=0.5 * np.exp(walk(0.3)),
        response_length=300 * np.exp(walk(0.25)),
        kl=0.05 * np.exp(walk(0.4)),
        grad_norm=np.exp(1.5 * rng.normal(size=length)),
        truncated=np.clip(0.05 + walk(0.03), 0, 1),
        zero_variance=np.clip(0.6 + walk(0.1), 0, 1),
        logprob_gap=np.abs(walk(0.05)),
    )
    lost = np.where(np.arange(length) >= int(rng.integers(1, 140)), rng.choice([np.nan, np.inf, 1e200]), 0.3)
    run = dataclasses.replace(run, points=run.points.with_columns(pl.Series("loss", lost)))
    cut = min(cut, length)
    whole, part = check(run), check(dataclasses.replace(run, points=run.points.head(cut)))
    assert _kept(part) == [f for f in _kept(whole) if (f.since_step or 0) < cut]


def _kept(health: Health) -> list[Finding]:
    return [finding for finding in health.findings if finding.code != "no_progress"]


@pytest.mark.usefixtures("in_sweep")
def test_the_example() -> None:
    """The docstring's example runs, in the folder that it speaks of."""
    assert doctest.testmod(checks).failed == 0


@pytest.mark.parametrize(("metric", "code"), [("truncated", "truncation"), ("zero_variance", "zero_variance")])
def test_shares_in_percent_are_read_as_shares(metric: str, code: str) -> None:
    share = np.linspace(0.5, 0.95, 40)
    found = [check(run_of(**{metric: by * share})) for by in (1.0, 100.0)]
    assert found[0].findings == found[1].findings != ()
    small = check(run_of(**{metric: np.full(40, 2.5)}))
    assert small.findings == () and next(c for c in small.checks if c.code == code).ran


@pytest.mark.parametrize(("metric", "code"), [("truncated", "truncation"), ("zero_variance", "zero_variance")])
@pytest.mark.parametrize(
    "values", [np.linspace(0.0, 400.0, 40), np.linspace(-0.5, 0.5, 40)], ids=["counts", "negative"]
)
def test_what_is_no_share_is_not_checked_and_says_so(metric: str, code: str, values: np.ndarray) -> None:
    health = check(run_of(**{metric: values}))
    (one,) = [c for c in health.checks if c.code == code]
    assert not one.ran and one.needs is not None
    assert f"here it goes from {values[0]:.3g} to {values[-1]:.3g}" in one.needs
    assert health.findings == ()


@pytest.mark.parametrize("low", [0.05, 0.3])
def test_rates_and_percent_are_measured_by_the_same_scale(low: float) -> None:
    rate_T = low + np.linspace(0.06, 0.3, 30)
    of_rates, of_percent = (binomial_scale(by * rate_T, rate_T=by * rate_T) for by in (1.0, 100.0))
    assert of_percent == pytest.approx(100.0 * of_rates)


def test_sums_of_rewards_are_measured_by_their_range() -> None:
    assert binomial_scale(np.array([0.0, 5.0]), rate_T=np.array([0.0, 5.0]))[1] == 5.0
    assert binomial_scale(np.array([-10.0, 10.0]), rate_T=np.zeros(2))[1] == 20.0
