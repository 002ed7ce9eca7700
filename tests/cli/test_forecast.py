"""`isocompute forecast` and its backtest."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.tools import RUNS
from tests.commands import Call, fails
from tests.conftest import CEILINGS, rising, write_points


def test_forecast_json(call: Call, sweep: Path) -> None:
    run = sweep / "runs" / "easy-32x8"
    made = call("forecast", run, "--to", "3x", "--fit-until", "0.5", "--level", "0.9", "--json").json
    wanted = {"at", "value", "interval", "level", "verdict", "asymptote", "weights", "fitted_points"}
    assert made.keys() >= wanted
    points = [json.loads(line) for line in (run / "points.jsonl").read_text().splitlines()]
    half = [p["rollouts"] for p in points if p["rollouts"] <= 0.5 * points[-1]["rollouts"]]
    assert made["fitted_points"] == len(half) < len(points)
    assert made["at"] == pytest.approx(3 * half[-1])
    assert made["level"] == 0.9
    assert made["interval"][0] < made["value"] < made["interval"][1]
    assert made["value"] == pytest.approx(CEILINGS[8], abs=0.03)
    assert made["asymptote"] == pytest.approx(CEILINGS[8], abs=0.05)
    assert sum(made["weights"].values()) == pytest.approx(1.0)
    assert made["verdict"] in ("improving", "flat", "declining", "too_early")


@pytest.mark.parametrize("chart", [False, True])
def test_a_warning_is_given_once_with_or_without_a_chart(call: Call, tmp_path: Path, chart: bool) -> None:
    rows = [{"step": p["step"], "rollouts": p["rollouts"], "train/avg": p["avg@4"]} for p in rising(24)]
    write_points(tmp_path / "run", rows)
    told = call("forecast", tmp_path / "run", *(("--chart", tmp_path / "out.html") if chart else ()))
    assert told.code == 0
    assert told.err.count("no metric on held-out problems") == 1


def test_forecast_to_a_compute_until_a_compute(call: Call, sweep: Path) -> None:
    made = call("forecast", sweep / "runs" / "easy-32x8", "--to", "5e6", "--fit-until", "400000", "--json").json
    assert made["at"] == 5e6
    assert made["fitted_until"] <= 400_000


@pytest.mark.parametrize(
    ("shape", "verdict"),
    [(lambda i: 0.2 + 0.02 * i, "improving"), (lambda i: 0.6 - 0.02 * max(i - 6, 0), "declining")],
)
def test_forecast_verdicts(call: Call, tmp_path: Path, shape: Callable[[int], float], verdict: str) -> None:
    points = [{"step": i, "avg@4": shape(i) + 0.002 * (-1) ** i} for i in range(1, 21)]
    made = call("forecast", write_points(tmp_path / "run", points), "--json").json
    assert made["verdict"] == verdict
    assert made["at"] == 40


def test_forecast_on_a_terminal(call: Call, sweep: Path) -> None:
    result = call("forecast", f"{sweep / 'runs'}::easy-32x64", "--fit-until", "0.3")
    assert (result.code, result.err) == (0, "")
    assert re.match(
        r"(improving|flat|too_early): avg@4 \.\d{3} at \d[\d.]*[kM] rollouts \(80%: \.\d{3}–\.\d{3}\)", result.out
    )


def test_backtest_json(call: Call, sweep: Path, tmp_path: Path) -> None:
    write_points(tmp_path / "short", rising(6))
    write_points(tmp_path / "flat", [p | {"avg@4": 0.5} for p in rising(20)])
    data = call("forecast", "--backtest", sweep / "runs", tmp_path, "--json").json
    assert [run["run"] for run in data["runs"]] == list(RUNS)
    assert data["skipped"] == ["flat", "short"]
    for run in data["runs"]:
        assert run.keys() >= {"run", "error", "last_three_error", "hill_error", "covered"}
        assert run["error"] == pytest.approx(abs(run["forecast"] - run["target"]))
        assert run["covered"] == (run["interval"][0] <= run["target"] <= run["interval"][1])
    for baseline in ("", "last_three_", "hill_"):
        errors = sorted(run[f"{baseline}error"] for run in data["runs"])
        assert data[f"{baseline}median_error"] == pytest.approx(errors[1])
        assert data[f"{baseline}mean_error"] == pytest.approx(sum(errors) / 3)
    assert data["coverage"] == pytest.approx(sum(run["covered"] for run in data["runs"]) / 3)
    assert data["median_error"] < data["last_three_median_error"]


def test_backtest_on_a_terminal(call: Call, sweep: Path, tmp_path: Path) -> None:
    write_points(tmp_path / "short", rising(6))
    result = call("forecast", "--backtest", sweep / "runs", tmp_path)
    assert (result.code, result.err) == (0, "")
    assert re.search(r"80% intervals hold \d+% of 3 runs", result.out)
    assert "too short and skipped: short" in result.out


@pytest.mark.parametrize("option", [("--to", "4x"), ("--to", "2x"), ("--fit-until", "0.5"), ("--chart", "a.svg")])
def test_a_backtest_refuses_what_it_would_not_heed(call: Call, sweep: Path, option: tuple[str, str]) -> None:
    fails(
        call("forecast", "--backtest", sweep / "runs", *option), f"^error: {option[0]} .* leave it out with --backtest"
    )
