"""A run that learns nothing gets the finding `no_progress`, and one that learns does not; which columns are rewards."""

from __future__ import annotations

import dataclasses
import json
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isocompute.data import Run
from isocompute.diagnose.health import Finding, Health, check
from isocompute.diagnose.series import has_risen, stalled_since
from tests.commands import Call
from tests.conftest import rising as rising_points
from tests.conftest import write_points
from tests.diagnose.synthetic_runs import rising, run_of

CODE = "no_progress"


@pytest.fixture
def call(call: Call) -> Call:
    return partial(call, "health")


def _stalled(health: Health) -> Finding | None:
    return next((finding for finding in health.findings if finding.code == CODE), None)


def _head(run: Run, count: int) -> Run:
    return dataclasses.replace(run, points=run.points.head(count))


def _alone(name: str, values: np.ndarray) -> Run:
    run = run_of(avg_at_1=values)
    return dataclasses.replace(run, points=run.points.rename({"avg@1": name}))


def _zigzag(*, slope: float, amplitude: float) -> np.ndarray:
    t = np.arange(8)
    return np.asarray(0.5 + slope * t + amplitude * (-1.0) ** t)


def test_a_rise_by_hand() -> None:
    """Of 8 values on a zigzag of ±.02, moves go down by .04 - g (4 times) and up by .04 + g (3 times), mean .0386 for
    g = .01 and .0371 for g = .02; times √π/2 that is a noise of .0342 and .0329, and the error of the halves'
    difference, 4 g, is that times √(1/4 + 1/4): 1.65 errors for g = .01, 3.44 for g = .02. Three are asked for.
    """
    assert not has_risen(_zigzag(slope=0.01, amplitude=0.02))
    assert has_risen(_zigzag(slope=0.02, amplitude=0.02))


def test_noise_that_would_hide_a_rise_by_hand() -> None:
    """Three errors of the halves' difference are .0725 on a zigzag of ±.02 and .110 on one of ±.03 (mean move .0586); a
    tenth of the scale at a rate of a half is .1.
    """
    assert stalled_since(_zigzag(slope=0.01, amplitude=0.02), minimum=8) == 7
    assert stalled_since(_zigzag(slope=0.01, amplitude=0.03), minimum=8) is None


@pytest.mark.parametrize("metric", ["avg@1", "train/avg", "reward"])
@pytest.mark.parametrize("nothing", [0.0, -1.0])
def test_no_success_is_a_problem_from_the_eighth_point(metric: str, nothing: float) -> None:
    run = _alone(metric, np.full(26, nothing))
    health = check(run)
    found = _stalled(health)
    assert health.verdict == "problem"
    assert found is not None
    assert (found.severity, found.since_step) == ("problem", 7)
    assert "no gradient" in found.evidence
    assert all(word in found.advice for word in ("easier problems", "larger n", "verifier"))
    assert check(_head(run, 7)).findings == ()


def test_training_without_success_is_told_whatever_the_evaluations_say() -> None:
    rng = np.random.default_rng(0)
    found = _stalled(check(run_of(avg_at_1=0.3 + 0.01 * rng.normal(size=20), train_avg=np.zeros(20))))
    assert found is not None
    assert found.severity == "problem"
    assert found.evidence.startswith("train/avg is 0")


def test_held_out_zeros_are_no_lack_of_gradient_where_training_has_successes() -> None:
    rng = np.random.default_rng(0)
    found = _stalled(check(run_of(avg_at_1=np.zeros(20), train_avg=0.3 + 0.01 * rng.normal(size=20))))
    assert found is not None
    assert found.severity == "warning"
    assert check(run_of(avg_at_1=np.zeros(20), train_avg=np.linspace(0.2, 0.6, 20))).verdict == "healthy"


@pytest.mark.parametrize("everything", [1.0, 100.0])
def test_nothing_left_to_learn_is_a_warning(everything: float) -> None:
    found = _stalled(check(run_of(train_avg=np.full(12, everything))))
    assert found is not None
    assert (found.severity, found.since_step) == ("warning", 7)
    assert "nothing is left to learn" in found.evidence


def test_nearly_every_run_that_stays_in_its_noise_is_told() -> None:
    """A sequential test against chance takes a few for a rise: about one in ten."""
    told = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        length = int(rng.integers(12, 60))
        values = np.clip(rng.uniform(0.2, 0.8) + rng.uniform(0.002, 0.03) * rng.normal(size=length), 0, 1)
        told += _stalled(check(run_of(avg_at_1=values))) is not None
    assert told >= 170


@pytest.mark.parametrize("metric", ["avg_at_1", "train_avg"])
def test_a_run_that_learns_is_not_told(metric: str) -> None:
    """Neither one that learns to the end, nor one that learned early and levelled off, nor one that learned late."""
    for seed in range(100):
        rng = np.random.default_rng(seed)
        length = int(rng.integers(12, 200))
        noise = float(rng.uniform(0.005, 0.03))
        steady = rising(rng, length, noise=noise, low=0.3, high=0.5)
        early = 0.5 - 0.2 * np.exp(-np.arange(length)) + noise * rng.normal(size=length)
        late = 0.3 + 0.2 * (np.arange(length) >= length - 6) + noise * rng.normal(size=length)
        for values in (steady, early, late):
            assert _stalled(check(run_of(**{metric: values}))) is None


def test_what_was_learned_and_lost_is_a_fall_and_no_standstill() -> None:
    values = np.concatenate([np.linspace(0.2, 0.6, 15), np.linspace(0.6, 0.2, 15)])
    codes = [finding.code for finding in check(run_of(avg_at_1=values)).findings]
    assert "reward_fall" in codes
    assert CODE not in codes


@pytest.mark.parametrize("top", [0.5, 0.54])
def test_a_rise_of_six_evaluations_before_a_collapse_is_no_standstill(top: float) -> None:
    """The collapse comes before the eighth evaluation, so that every look at the rise has it in its noise."""
    values = np.concatenate([np.linspace(0.36, top, 6), 0.05 + 0.005 * np.random.default_rng(0).normal(size=14)])
    run = run_of(avg_at_1=values)
    assert [finding.code for finding in check(run).findings] == ["reward_fall"]
    assert all(_stalled(check(_head(run, count))) is None for count in range(1, 20))


def test_no_standstill_is_told_beside_a_fall() -> None:
    """Level at first, which is told, then lost: a fall asks for a lower learning rate, not for a higher one."""
    values = np.concatenate([np.full(20, 0.5), np.full(10, 0.1)]) + 0.01 * np.random.default_rng(0).normal(size=30)
    run = run_of(avg_at_1=values)
    assert _stalled(check(_head(run, 20))) is not None
    assert [finding.code for finding in check(run).findings] == ["reward_fall"]
    solved = run_of(avg_at_1=values, train_avg=np.ones(30))
    assert [finding.code for finding in check(solved).findings] == ["reward_fall"]


def test_training_without_success_is_told_beside_a_fall() -> None:
    values = np.concatenate([np.full(20, 0.5), np.full(10, 0.1)]) + 0.01 * np.random.default_rng(0).normal(size=30)
    findings = check(run_of(avg_at_1=values, train_avg=np.zeros(30))).findings
    assert {(finding.code, finding.severity) for finding in findings} == {(CODE, "problem"), ("reward_fall", "problem")}


def test_a_late_rise_takes_it_back() -> None:
    rng = np.random.default_rng(3)
    values = 0.3 + 0.01 * rng.normal(size=60)
    values[40:] += np.linspace(0.02, 0.3, 20)
    run = run_of(avg_at_1=values)
    before = _stalled(check(_head(run, 40)))
    assert before is not None
    assert before.since_step == 7
    assert check(run).verdict == "healthy"


def test_batches_must_be_more_than_evaluations() -> None:
    values = 0.4 + 0.01 * np.random.default_rng(0).normal(size=40)
    assert _stalled(check(run_of(train_avg=values[:39]))) is None
    assert _stalled(check(run_of(train_avg=values))) is not None


def test_held_out_reward_that_rises_is_progress_where_trainings_is_held_level() -> None:
    """A trainer that picks problems of a given pass rate shows a level training reward while it learns."""
    rng = np.random.default_rng(0)
    train = 0.5 + 0.02 * rng.normal(size=80)
    held_out = np.where(np.arange(80) % 20 == 0, np.linspace(0.2, 0.6, 80), np.nan)
    assert check(run_of(train_avg=train, avg_at_1=held_out)).verdict == "healthy"


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(8, 80), st.integers(8, 80))
def test_only_a_rise_or_a_fall_takes_it_back(seed: int, length: int, cut: int) -> None:
    rng = np.random.default_rng(seed)
    run = run_of(
        avg_at_1=0.4 + np.cumsum(rng.uniform(0, 0.01) * rng.normal(size=length)) + 0.01 * rng.normal(size=length)
    )
    whole, part = _stalled(check(run)), _stalled(check(_head(run, cut)))
    if whole is not None and (whole.since_step or 0) < cut:
        assert part is not None
        assert part.since_step == whole.since_step
    if part is not None and whole is None:
        fell = any(finding.code == "reward_fall" for finding in check(run).findings)
        assert fell or has_risen(run.points["avg@1"].to_numpy())


@pytest.mark.parametrize("name", ["pass_rate", "accuracy", "train_reward", "Accuracy/mean", "gsm8k_acc", "score"])
def test_the_only_metric_is_the_reward_where_its_name_says_so(name: str) -> None:
    values = np.concatenate([np.linspace(0.2, 0.6, 20), np.linspace(0.6, 0.1, 10)])
    health = check(_alone(name, values))
    assert [finding.code for finding in health.findings] == ["reward_fall"]
    assert [c.metrics for c in health.checks if c.code == "reward_fall"] == [(name,)]


@pytest.mark.parametrize("name", ["val_loss", "queue_depth", "accumulated_hours", "entropy"])
def test_another_only_metric_is_no_reward(name: str) -> None:
    health = check(_alone(name, np.linspace(1.0, 0.9, 30)))
    assert health.findings == ()
    assert "reward_fall" not in [c.code for c in health.checks if c.ran]


def test_a_table_of_accuracies(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    rows = [{"run": run, "step": t, "accuracy": top * t} for run, top in (("a", 3.0), ("b", 0.0)) for t in range(20)]
    pl.DataFrame(rows).write_csv(path)
    code, out, _ = call(path)
    assert code == 1
    assert "healthy  a (3 of 14 checks)" in out
    assert "problem  b (3 of 14 checks)" in out
    assert "no_progress: accuracy is 0 at all 20 points" in out
    told = json.loads(call(path, "--json")[1])
    assert set(told) == {"verdict", "runs"}
    assert set(told["runs"][0]) == {"run", "verdict", "findings", "checks"}


def test_runs_with_nothing_to_check_are_one_line(call: Call, tmp_path: Path) -> None:
    write_points(tmp_path / "good", rising_points())
    for i in range(6):
        write_points(tmp_path / f"short{i}", rising_points(1))
    out = call(tmp_path)[1]
    assert [line.split()[0] for line in out.splitlines() if line] == ["healthy", "unknown", "7"]
    assert "unknown  6 runs with nothing to check: 'short0', 'short1', 'short2' and 3 more; log a reward" in out
    assert "7 runs: 1 healthy, 6 unknown, 0 warning, 0 problem" in out
