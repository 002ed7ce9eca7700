"""Forecasts of several runs: the table, the present level, ceilings, questions too far ahead, and the chart."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import isocompute
from isocompute import InputError
from isocompute.core.curve import Curve
from isocompute.diagnose.series import present_level
from isocompute.law.forecasting import backtest, forecast, path
from isocompute.report.answer import answers
from isocompute.report.charts.commands import forecast_chart
from isocompute.report.evidence import Evidence
from tests.commands import Call, fails
from tests.conftest import write_points
from tests.law.made_up import hill, noisy

STEPS = np.arange(1.0, 41.0)
KEYS = {
    "at", "value", "interval", "level", "verdict", "reason", "now", "asymptote", "asymptote_interval", "rise_done",
    "form", "weights", "fitted_points", "fitted_until",
}  # fmt: skip


def written(folder: Path, name: str, values: np.ndarray, metric: str = "avg@4") -> Path:
    points = [{"step": int(step), metric: float(value)} for step, value in zip(STEPS, values, strict=False)]
    return write_points(folder / name, points)


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """A run that climbs, one that has settled, one that fell, and one that has hardly begun."""
    rng = np.random.default_rng(0)
    noise = 0.004 * rng.standard_normal((3, 40))
    written(tmp_path, "a-climbs", 0.2 + 0.01 * STEPS + noise[0])
    written(tmp_path, "b-settled", np.full(40, 0.5) + noise[1])
    fall = np.where(STEPS < 22, hill(STEPS, 0.3, 0.6, 5.0, 1.5), np.maximum(0.05, 0.55 - 0.07 * (STEPS - 22)))
    written(tmp_path, "c-fell", fall + noise[2])
    written(tmp_path, "d-begun", np.array([0.1, 0.2]))
    return tmp_path


def test_the_worst_verdict_comes_first(study: Path) -> None:
    made, left_out = isocompute.forecast_all(study)
    assert [(name, made[name].verdict) for name in made] == [
        ("c-fell", "declining"),
        ("b-settled", "flat"),
        ("a-climbs", "improving"),
    ]
    assert list(left_out) == ["d-begun"]
    assert "2 of 2 points have a value" in left_out["d-begun"]


def test_each_line_is_what_the_run_gets_alone(call: Call, study: Path) -> None:
    data = call("forecast", study, "--to", "3x", "--level", "0.9", "--json").json
    assert list(data["left_out"]) == ["d-begun"]
    for line in data["runs"]:
        alone = call("forecast", study / line["run"], "--to", "3x", "--level", "0.9", "--json").json
        assert set(alone) == KEYS
        assert line == {"run": line["run"], "metric": "avg@4", "unit": "steps", **alone}
        assert line["at"] == 120


def test_the_table(call: Call, study: Path) -> None:
    lines = call("forecast", study).out.splitlines()
    assert lines[0] == "3 runs: 1 declining, 1 flat, 1 improving"
    assert lines[3].split() == ["run", "verdict", "now", "forecast", "80%", "at", "ceiling"]
    first = lines[4].split()
    assert first[:2] == ["c-fell", "declining"]
    assert first[-2:] == ["80", "–"]  # a run that fell has no ceiling ahead
    assert any(line.startswith("left out: 'd-begun': run 'd-begun'") for line in lines)


def test_runs_are_read_each_in_its_own_metric(call: Call, tmp_path: Path) -> None:
    """One evaluates, one only logs its training: neither is in the other's way, and the warning comes once."""
    written(tmp_path, "held-out", 0.2 + 0.01 * STEPS)
    for name in ("training", "training-2"):
        written(tmp_path, name, 0.3 + 0.01 * STEPS, "train/avg")
    result = call("forecast", tmp_path)
    assert result.err.count("no metric on held-out problems") == 1
    data = call("forecast", tmp_path, "--json").json
    assert {line["run"]: line["metric"] for line in data["runs"]} == {
        "held-out": "avg@4",
        "training": "train/avg",
        "training-2": "train/avg",
    }


def test_where_no_run_has_a_forecast_the_first_reason_is_told(call: Call, tmp_path: Path) -> None:
    for name in ("a", "b"):
        written(tmp_path, name, np.array([0.1, 0.2]))
    fails(call("forecast", tmp_path), "run 'a'.*a fit needs 4")


def test_a_chart_is_of_one_run(call: Call, study: Path) -> None:
    fails(call("forecast", study, "--chart", "x.png"), "--chart draws one run, these are 4; name one as PATH::NAME")
    with pytest.raises(InputError, match=r"forecast takes one run, these are 4: .* or use forecast_all"):
        isocompute.forecast(study)


# Now


def test_now_is_a_level_where_points_are_noise() -> None:
    """Rewards of single batches of eight: the error of a mean of three is .19, of twenty, the most taken, .07."""
    rng = np.random.default_rng(4)
    values = rng.integers(0, 9, 200) / 8.0
    values[-3:] = (0.25, 0.75, 0.875)
    assert present_level(Curve("noise", np.arange(1.0, 201.0), values)) == pytest.approx(values[-20:].mean())
    quiet = 0.2 + 0.01 * STEPS  # a quiet run is at its end: a longer mean would lag behind
    assert present_level(Curve("quiet", STEPS, quiet)) == pytest.approx(quiet[-3:].mean())


def test_forecast_and_report_show_that_level(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    values = 0.5 + 0.15 * rng.standard_normal(40)
    values[-3:] = (0.7, 0.75, 0.8)
    run = written(tmp_path, "noise", values)
    level = values[-20:].mean()
    assert isocompute.forecast(run).now == pytest.approx(level)
    (answer,) = answers(Evidence.of(run, replicates=50))
    assert answer.outlook is not None
    assert answer.outlook.now == pytest.approx(level)
    assert f"It is at {level:.3f}".replace("0.", ".") in answer.expectation


def test_the_forecaster_itself_goes_by_the_last_three() -> None:
    """What was measured by backtests is not changed by what is shown."""
    rng = np.random.default_rng(4)
    curve = Curve("noise", STEPS, 0.5 + 0.15 * rng.standard_normal(40))
    assert forecast(curve, 80.0).now == pytest.approx(curve.values_C[-3:].mean())
    assert backtest(curve).last_three == pytest.approx(curve.values_C[17:20].mean())


# Ceilings and distance


def test_a_ceiling_that_fit_doubts_is_doubted_here(call: Call, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    slow = written(tmp_path, "slow", 0.2 + 0.008 * STEPS + 0.004 * rng.standard_normal(40))
    done = written(tmp_path, "done", hill(STEPS, 0.2, 0.6, 4.0, 2.0) + 0.004 * rng.standard_normal(40))
    sentence = "?: less than 80% of the rise to this ceiling is done; it depends on the form"
    for run, doubted in ((slow, True), (done, False)):
        (curve,) = call("fit", run, "--replicates", "50", "--json").json["curves"]
        assert (curve["rise_done"] < 0.8) is doubted
        made = isocompute.forecast(run)
        assert made.rise_done == pytest.approx(curve["rise_done"], abs=0.1)  # of fewer samples
        result = call("forecast", run).out
        assert (sentence in result) is doubted
        assert (f"ceiling {made.asymptote:.3f}? (95%".replace(" 0.", " .") in result) is doubted
    table = call("forecast", tmp_path).out
    assert sentence in table
    assert [line.endswith("?") for line in table.splitlines() if line.startswith(("slow", "done"))].count(True) == 1


def test_a_question_too_far_ahead_says_so() -> None:
    rising = noisy("rising", STEPS, hill(STEPS, 0.3, 0.7, 25.0, 1.4), noise=0.005, seed=0)
    assert forecast(rising, 80.0).verdict == "improving"
    far = forecast(rising, 1e9)
    assert far.verdict == "too_early"
    assert far.reason.startswith("at 25M times the compute seen the forecast's error")
    assert far.reason.endswith("ask for less, such as 2x")
    assert not forecast(rising.until(6), 1e9).reason.endswith("2x"), "six points are too few for any distance"
    assert {forecast(rising.until(6), at).verdict for at in (12.0, 1e9)} == {"too_early"}


def test_a_fall_is_told_in_its_unit() -> None:
    fall = np.where(STEPS < 22, 0.6, 0.1) + 0.002 * (-1) ** STEPS
    reason = forecast(Curve("fell", STEPS * 1000, fall), 1e5, unit="rollouts").reason
    assert reason.startswith("collapsed after 21k rollouts, from .602")


# The chart


def test_the_way_to_a_forecast_begins_with_an_error_and_ends_at_it() -> None:
    rising = noisy("rising", STEPS, hill(STEPS, 0.3, 0.7, 25.0, 1.4), noise=0.005, seed=0)
    made = forecast(rising, 80.0)
    way = path(rising, 80.0, level=made.level)
    assert way[0][0] == 40.0
    assert way[0][2] < way[0][1] < way[0][3]
    assert way[-1] == pytest.approx((80.0, made.value, *made.interval))
    assert [row[0] for row in way] == sorted(row[0] for row in way)


def test_held_out_points_lie_in_the_band_about_as_often_as_it_says() -> None:
    """What an 80% band is for: all points on the way, not the last alone."""
    inside = []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        truth = hill(STEPS, 0.2, rng.uniform(0.5, 0.8), rng.uniform(3, 25), rng.uniform(0.8, 2.0))
        curve = noisy(f"{seed}", STEPS, truth, noise=0.015, seed=seed)
        way = np.array(path(curve.until(20), 40.0))
        at = STEPS[20:]
        low, high = (np.interp(np.log(at), np.log(way[:, 0]), way[:, i]) for i in (2, 3))
        inside.append(np.mean((curve.values_C[20:] >= low) & (curve.values_C[20:] <= high)))
    assert 0.65 <= np.mean(inside) <= 0.98


def test_the_legend_lists_what_is_drawn() -> None:
    rising = noisy("rising", STEPS, hill(STEPS, 0.3, 0.7, 25.0, 1.4), noise=0.005, seed=0)
    seen, later = rising.until(30), Curve("rising", STEPS[30:], rising.values_C[30:])
    made = forecast(seen, 40.0)
    for rest, kinds in ((None, ["fitted"]), (later, ["fitted", "held out"])):
        drawn = forecast_chart(seen, made, metric="avg@4", unit="rollouts", later=rest).to_dict()
        colour = drawn["layer"][1]["encoding"]["color"]
        assert colour["scale"]["domain"] == kinds
        assert ("legend" in colour and colour["legend"] is None) is (rest is None)
    assert " ".join(drawn["title"]["subtitle"]).startswith(
        f"{made.verdict}: {made.value:.3f} at 40 rollouts".replace("0.", ".", 1)
    )


def test_now_is_not_averaged_over_a_fall() -> None:
    """A run that has collapsed is where it is, also after a single evaluation."""
    falls = np.array([0.03, 0.217, 0.368, 0.393, 0.462, 0.437, 0.266, 0.002])
    assert present_level(Curve("at once", np.arange(1.0, 9.0), falls)) == pytest.approx(0.002)
    rises = 0.2 + 0.01 * np.arange(20)
    lasting = np.concatenate([rises, [0.11, 0.12, 0.13, 0.14]])
    assert present_level(Curve("for long", np.arange(1.0, 25.0), lasting)) == pytest.approx(0.13)
