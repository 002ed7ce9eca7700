"""NaN and infinity in a study's runs: the point is left out and named, the study goes on."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.cli.tools import QUICK
from tests.commands import Call, Result

COMMANDS: dict[str, tuple[str, ...]] = {
    "fit": ("fit", "runs", *QUICK),
    "forecast": ("forecast", "runs/easy-32x8"),
    "backtest": ("forecast", "--backtest", "runs"),
    "compare": ("compare", "runs/easy-32x8", "runs/easy-32x64", *QUICK),
    "plan": ("plan", "--budget", "1e6", "--law", "runs", *QUICK),
    "claims": ("claims", "runs"),
    "report": ("report", "runs", *QUICK),
}


@pytest.fixture
def runs(sweep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The sweep, to be written into, as the working folder."""
    shutil.copytree(sweep / "runs", tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


def rewrite(run: Path, value: float | None, rows: slice = slice(7, 8)) -> list[int]:
    """Put a value into some of a run's points, or take those points out; the steps that changed."""
    path = run / "points.jsonl"
    points: list[dict[str, Any]] = [json.loads(line) for line in path.read_text().splitlines()]
    changed = points[rows]
    for point in changed:
        point["avg@4"] = value
    if value is None:
        del points[rows]
    path.write_text("".join(json.dumps(point) + "\n" for point in points))
    return [point["step"] for point in changed]


def answer(result: Result) -> dict[str, Any]:
    assert result.code == 0, result.err
    out: dict[str, Any] = json.loads(result.out)
    return out


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("command", list(COMMANDS))
def test_one_evaluation_without_a_number_is_as_if_it_were_not_there(
    call: Call, runs: Path, command: str, value: float
) -> None:
    (step,) = rewrite(runs / "easy-32x8", value)
    result = call(*COMMANDS[command], "--json")
    told = answer(result)
    said = rf"runs\S*: left out: avg@4 = {value:g} in run 'easy-32x8', step {step}\."
    assert re.fullmatch(rf"warning: {said}\n", result.err)
    heard = told.pop("warnings", [])
    assert [bool(re.fullmatch(said, w["message"])) for w in heard if w["code"] == "runs"] == [True]
    rewrite(runs / "easy-32x8", None)
    without = answer(call(*COMMANDS[command], "--json"))
    without.pop("warnings", None)
    assert told.pop("bytes", 0) == pytest.approx(without.pop("bytes", 0), rel=0.01)  # of a page: it names every point
    assert told == without


@pytest.mark.parametrize("command", ["fit", "plan", "backtest"])
def test_a_run_of_nothing_but_nan_is_left_out_by_name(call: Call, runs: Path, command: str) -> None:
    rewrite(runs / "easy-32x16", float("nan"), slice(None))
    result = call(*COMMANDS[command], "--json")
    answer(result)
    assert "avg@4 = nan in run 'easy-32x16', step" in result.err
    assert re.search(r"in run 'easy-32x16', step \d+ and \d\d later\.", result.err)
    assert "'easy-32x16'" in result.err.splitlines()[-1] or "easy-32x16" in json.loads(result.out)["skipped"]


def test_a_metric_of_nothing_but_nan_is_passed_over_and_told_of(call: Call, runs: Path) -> None:
    for run in runs.iterdir():
        rewrite(run, float("nan"), slice(None))
    result = call(*COMMANDS["fit"], "--json")
    assert answer(result)["metric"] == "best@4"
    assert "left out: avg@4 = nan in run" in result.err


@pytest.mark.parametrize("command", ["fit", "forecast", "compare", "plan"])
def test_nothing_but_nan_is_wrong_input_where_it_is_asked_for(call: Call, runs: Path, command: str) -> None:
    for run in runs.iterdir():
        rewrite(run, float("nan"), slice(None))
    code, out, err = call(*COMMANDS[command], "--metric", "avg@4", "--json")
    *said, error = err.splitlines()
    assert (code, out) == (2, "")
    assert all(line.startswith("warning: runs") for line in said)
    assert re.fullmatch(r"error: run 'easy-32x\d+', column 'avg@4': 0 of \d+ points have a value, .*", error)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_run_whose_last_evaluations_are_no_numbers_broke(call: Call, runs: Path, value: float) -> None:
    rewrite(runs / "easy-32x64", value, slice(-3, None))
    before = json.loads((runs / "easy-32x64" / "points.jsonl").read_text().splitlines()[-4])["rollouts"]
    law = answer(call("fit", "runs", *QUICK, "--json"))
    assert {c["run"]: c["falls_after"] for c in law["curves"]}["easy-32x64"] == before
    assert any(note.startswith("runs that broke: ") and "'easy-32x64' after" in note for note in law["notes"])
    planned = answer(call("plan", "--budget", str(before), "--law", "runs", *QUICK, "--json"))
    options = {o["rollouts_per_problem"]: o["falls"] for o in (planned, *planned["alternatives"])}
    assert options[64] is None or options[64]["fallen"] == 0  # it fell after that, not before
    far = answer(call("plan", "--budget", str(1.2 * before), "--law", "runs", *QUICK, "--json"))
    assert {o["rollouts_per_problem"]: o["falls"] for o in (far, *far["alternatives"])}[64]["fallen"] == 1
    told = answer(call("forecast", "runs/easy-32x64", "--json"))
    assert told["verdict"] == "declining" and "are NaN or infinite" in told["reason"]


def test_nan_where_nothing_was_evaluated_is_no_break(call: Call, tmp_path: Path) -> None:
    """One row a training step, evaluated every fifth; the log ends two steps after the last evaluation."""
    rows = ["step,rollouts,avg@4"]
    for step in range(1, 103):
        value = 0.3 + 0.003 * step if step % 5 == 0 else float("nan")
        rows.append(f"{step},{step * 256},{value}")
    (tmp_path / "log.csv").write_text("\n".join(rows) + "\n")
    told = answer(call("forecast", tmp_path / "log.csv", "--json"))
    assert told["verdict"] == "improving"
    law = answer(call("fit", tmp_path / "log.csv", *QUICK, "--json"))
    assert law["curves"][0]["falls_after"] is None
