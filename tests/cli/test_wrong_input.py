"""Wrong input: one line, code 2, nothing written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cli.tools import QUICK
from tests.commands import Call, fails
from tests.conftest import rising, write_points

BAD_POINTS: dict[str, tuple[list[dict[str, Any]], str]] = {
    "few": (rising(3), r"run 'bad', column 'avg@4': 3 of 3 points have a value, a fit needs 4; evaluate more often"),
    "constant": ([p | {"avg@4": 0.5} for p in rising(9)], r"run 'bad', column 'avg@4': all 9 values are 0.5; .*leave"),
    "backwards": (
        [p | {"rollouts": 10**6 - p["rollouts"]} for p in rising(9)],
        r"run 'bad', column 'rollouts': compute goes backwards, from 997440 to 994880 in row 2; sort the rows",
    ),
    "other": (
        [{"step": p["step"], "rollouts": p["rollouts"], "loss": p["avg@4"]} for p in rising(9)],
        r"no run has a metric 'avg@4'; say --metric NAME with one of 'loss'",
    ),
    "text": (
        [p | {"avg@4": "n/a" if p["step"] == 20 else str(p["avg@4"])} for p in rising(9)],
        r"run 'bad', column 'avg@4': 'n/a' \(row 2\) is not a number; fix the cell or leave it empty",
    ),
}


@pytest.mark.parametrize("command", ["fit", "forecast", "compare"])
@pytest.mark.parametrize("kind", list(BAD_POINTS))
def test_bad_runs(call: Call, sweep: Path, tmp_path: Path, command: str, kind: str) -> None:
    points, message = BAD_POINTS[kind]
    bad = write_points(tmp_path / "bad", points)
    good = (sweep / "runs" / "easy-32x8",) if command == "compare" else ()
    before = sorted(tmp_path.rglob("*"))
    out = ("--out", tmp_path / "law.json") if command == "fit" else ()
    result = call(command, bad, *good, *out, "--metric", "avg@4", "--chart", tmp_path / "chart.png", "--json")
    fails(result, message)
    assert sorted(tmp_path.rglob("*")) == before


def test_mixed_units(call: Call, sweep: Path, tmp_path: Path) -> None:
    write_points(tmp_path / "tokens-only", [{"tokens": i, "avg@4": i / 10} for i in range(1, 9)])
    message = r"mixed units: run 'easy-32x16' counts compute in rollouts, run 'tokens-only' cannot; add the column"
    fails(call("fit", sweep / "runs", tmp_path), message)
    result = call("compare", sweep / "runs" / "easy-32x8", tmp_path / "tokens-only")
    fails(result, r"easy-32x8 counts compute in rollouts, .*tokens-only in tokens; say --unit")


def test_two_different_runs_with_one_name(call: Call, sweep: Path, tmp_path: Path) -> None:
    write_points(tmp_path / "easy-32x8", rising(9))
    fails(call("fit", sweep / "runs", tmp_path), r"two different runs are named 'easy-32x8'; rename one")


def test_compare_needs_one_metric(call: Call, sweep: Path, tmp_path: Path) -> None:
    other = write_points(tmp_path / "x", [{"rollouts": i, "reward": i / 10} for i in range(1, 9)])
    fails(call("compare", sweep / "runs" / "easy-32x8", other), r"has 'avg@4', .*x 'reward'; say --metric")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("fit", "nowhere"), r"nowhere: no such file or folder"),
        (("fit", "s3n://bucket/x"), r"s3n://bucket/x: cannot be read \("),
        (("fit", "runs", "--chart", "chart.gif"), r"--chart chart.gif: the ending must be one of .html, .png, .svg,"),
        (("fit", "runs", "--out", "law.json", "--chart", "chart.gif"), r"--chart chart.gif: the ending must be one of"),
        (("fit", "runs", "--chart", "chart"), r"--chart chart: the ending must be one of"),
        (("fit", "runs", "--points", "some"), r"--points some: it is 'all' or 'records'"),
        (("fit", "runs", "--bin", "0"), r"the reward bin is 0; it must be above 0"),
        (("fit", "runs", "--points", "records", "--bin", "1"), r"run 'easy-32x16', column 'avg@4': 1 record.* --bin"),
        (("fit", "runs", "--unit", "hours"), r"--unit hours: a unit is one of rollouts, tokens, gpu_hours, steps"),
        (("fit", "runs", "--metric", "avg@8"), r"runs: no run has a metric 'avg@8'; say --metric NAME with one of"),
        (("fit", "runs", "--columns", "value"), r"--columns value: give NAME=VALUE pairs, such as --columns value=rew"),
        (("fit", "runs", "--where", "seed=7"), r"--where seed=7 leaves no runs of runs; 'seed' in run.json is '0'"),
        (("forecast", "runs", "--chart", "x.png"), r"--chart draws one run, these are 3; name one as PATH::NAME"),
        (("forecast", "runs::nope"), r"runs: there is no run 'nope'; there are 'easy-32x16', "),
        (("forecast", "runs/easy-32x8", "--to", "later"), r"--to later: give a factor such as 2x or a compute such as"),
        (("forecast", "runs/easy-32x8", "--to", "inf"), r"--to inf: give a factor such as 2x or a compute such as"),
        (("forecast", "runs/easy-32x8", "--to", "1x"), r"run 'easy-32x8': .* is not beyond its last point at"),
        (("forecast", "runs/easy-32x8", "--fit-until", "0"), r"--fit-until 0: give a share of the run such as 0.5"),
        (("forecast", "runs/easy-32x8", "--fit-until", "0.001"), r"run 'easy-32x8': 0 points up to --fit-until 0.001"),
        (("forecast", "runs", "--backtest", "--chart", "x.png"), r"--chart draws one forecast; leave it out"),
        (("compare", "runs/easy-32x8", "nowhere"), r"nowhere: no such file or folder"),
        (("compare", "runs/easy-32x8", "runs/easy-32x8", "--chart", "x.bmp"), r"--chart x.bmp: the ending must be"),
        (("quickstart", "--budget", "999999"), r"--budget 999999: give rollouts, at least 1,000,000, such as 2e6"),
        (("quickstart", "--budget", "500h"), r"--budget 500h: give rollouts, at least 1,000,000"),
        (("quickstart", "--budget", "many"), r"--budget many: give rollouts, at least 1,000,000"),
        (("quickstart", "--budget", "1e30"), r"--budget 1e30: this is too large; give at most 1,000,000,000,"),
        (("quickstart", "--plan-for", "2e15"), r"--plan-for 2e15: this is too large"),
        (("quickstart", "--out", "memory://q"), r"--out memory://q: the quickstart writes to a local folder"),
        (("quickstart", "--plan-for", "1e3"), r"--plan-for 1e3: give rollouts, at least 10,000"),
        (("quickstart", "--out", "file"), r"--out file: this is a file; give another folder"),
    ],
)  # fmt: skip
def test_wrong_arguments(
    call: Call, sweep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...], message: str
) -> None:
    (tmp_path / "runs").symlink_to(sweep / "runs")
    (tmp_path / "file").write_text("")
    monkeypatch.chdir(tmp_path)
    fails(call(*args), message)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "runs"]


def test_a_backtest_needs_long_runs(call: Call, tmp_path: Path) -> None:
    write_points(tmp_path / "short", rising(14))
    fails(call("forecast", "--backtest", tmp_path), r"no run has 15 values of 'avg@4'.*a backtest needs that many")


@pytest.mark.parametrize("target", ["--out", "--chart"])
def test_a_place_that_cannot_be_written(call: Call, sweep: Path, tmp_path: Path, target: str) -> None:
    (tmp_path / "taken").write_text("")
    path = tmp_path / "taken" / "file.svg"
    fails(call("fit", sweep / "runs", *QUICK, target, path, "--json"), r"taken/file.svg: cannot be written \(")
    assert [p.name for p in tmp_path.iterdir()] == ["taken"]


@pytest.mark.parametrize(
    "args", [("fit",), ("nope",), ("fit", "x", "--replicates", "3"), ("forecast", "x", "--level", "2")]
)
def test_usage_errors(call: Call, args: tuple[str, ...]) -> None:
    result = call(*args)
    assert (result.code, result.out) == (2, "")
    assert "Usage: isocompute" in result.err
    assert "Traceback" not in result.err
