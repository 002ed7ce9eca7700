"""`isocompute report` from its arguments to what it prints, writes and returns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import isocompute
from isocompute.cli.main import app
from isocompute.core.errors import InputError
from isocompute.report.figures import FIGURES
from tests.commands import Call
from tests.conftest import rising, write_points
from tests.report.made_up import run, study, truth, write

QUICK = ("--replicates", "50")


def printed(*args: object) -> str:
    result = CliRunner().invoke(app, ["report", *map(str, args)], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def refused(*args: object) -> str:
    with pytest.raises(InputError) as error:
        CliRunner().invoke(app, ["report", *map(str, args)], catch_exceptions=False)
    return str(error.value)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "runs", study())


def test_the_page(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    said = printed(folder, "--out", out, *QUICK)
    assert "Use 32 problems × 128 rollouts" in said
    assert f"wrote {out}" in " ".join(said.split())
    assert out.read_text().startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("budget", "why"),
    [
        ("1", "No plan: --budget: 1 rollouts is under one batch of 32 × 8 = 256 rollouts; the smallest that works is"),
        ("1e14", "plan for at most --budget"),
        ("1e20", "plan for at most --budget 1,000,000,000,000,000."),
        ("500h", "No plan: --budget 500 GPU-hours: GPU-hours need a throughput"),
    ],
)
def test_a_plan_that_was_asked_for_and_cannot_be_made_is_said(
    folder: Path, tmp_path: Path, budget: str, why: str
) -> None:
    said = " ".join(printed(folder, "--out", tmp_path / "page.html", "--budget", budget, *QUICK).split())
    assert said.startswith("Best so far") and said.count("No plan: ") == 1
    assert why in said
    assert "--extrapolate" not in said  # an option of `plan`


def test_without_a_budget_nothing_is_said_of_a_plan_that_cannot_be_made(tmp_path: Path) -> None:
    write(tmp_path / "runs", study(ns=(8,)))
    assert "No plan: " not in printed(tmp_path / "runs", "--out", tmp_path / "page.html", *QUICK)


def test_json_is_one_object_and_the_functions(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    data: dict[str, Any] = json.loads(printed(folder, "--out", out, "--json", "--budget", "3e5", *QUICK))
    assert (data["metric"], data["unit"], data["runs"], data["left_out"]) == ("avg@4", "rollouts", 3, {})
    assert data["answers"][0]["plan"]["budget"]["amount"] == 3e5
    assert {figure["name"] for figure in data["figures"]} | {m["name"] for m in data["missing"]} == set(FIGURES)
    report = isocompute.write_report(folder, out=out, budget="3e5", replicates=50)
    assert json.loads(json.dumps(report.to_json())) == data


def test_one_figure(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data = json.loads(printed(folder, "--figure", "reward", "--json", *QUICK))
    assert data["name"] == "reward"
    assert len(data["data"]["panels"][0]["runs"]) == 3
    assert list(tmp_path.glob("*.png")) == []  # --json alone writes no file
    printed(folder, "--figure", "reward", "--out", "figure.svg", *QUICK)
    assert (tmp_path / "figure.svg").read_text().startswith("<svg")


def test_one_figure_tells_what_was_said_of_the_runs(folder: Path, call: Call) -> None:
    with next(folder.rglob("points.jsonl")).open("a") as file:
        file.write('{"step": 1')
    (said,) = call("report", folder, "--figure", "reward", "--json", *QUICK).json["warnings"]
    assert "the last line is torn and was dropped" in said["message"]


def test_the_figures_are_listed() -> None:
    assert all(name in printed("--figures") for name in FIGURES)
    listed = json.loads(printed("--figures", "--json"))["figures"]
    assert [figure["name"] for figure in listed] == list(FIGURES)
    assert all(figure["source"] and figure["description"] for figure in listed)


def test_a_metric_that_half_of_the_runs_lack(tmp_path: Path) -> None:
    runs = study()
    extra = {"avg@4": truth, "pass@8": truth}
    write(tmp_path / "runs", [*runs[:2], run(32, 128, metrics=extra)])
    data = json.loads(printed(tmp_path / "runs", "--out", tmp_path / "r.html", "--metric", "pass@8", "--json", *QUICK))
    assert len(data["left_out"]) == 2
    assert all("no values of 'pass@8'" in why for why in data["left_out"].values())


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "no runs given"),
        (("nowhere",), "nowhere: no such file or folder"),
        (("empty",), "no run folders"),
        (("noise.log",), "noise.log: not a run folder and not a table"),
        (("runs", "--figure", "nope"), "there is no such figure; figures are reward"),
        (("runs", "--figure", "models"), "it needs runs at two or more n on each of two or more base models"),
        (("runs", "--figure", "reward", "--out", "x.gif"), "--out x.gif: the ending must be one of"),
        (("runs", "--out", "x.png"), "end the name in .html"),
        (("runs", "--metric", "nope"), "no run has a metric 'nope'"),
        (("runs", "--budget", "-3"), "--budget -3: give a positive amount"),
        (("runs", "--unit", "hours"), "a unit is one of"),
    ],
)
def test_wrong_input(args: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "runs", study(ns=(8, 32)))
    (tmp_path / "empty").mkdir()
    (tmp_path / "noise.log").write_text("nothing to see here\n")
    assert message in refused(*args)
    assert list(tmp_path.glob("*.html")) == []


def test_a_study_that_is_still_running(tmp_path: Path) -> None:
    write(tmp_path / "runs", study(ns=(8, 32)))
    write_points(tmp_path / "runs" / "begun", [], problems_per_batch=32, rollouts_per_problem=128)
    torn = write_points(tmp_path / "runs" / "torn", [], problems_per_batch=32, rollouts_per_problem=128)
    (torn / "points.jsonl").write_bytes(b'{"step": 1, "avg')
    with pytest.warns(UserWarning, match="2 runs without a point yet left out"):
        report = isocompute.write_report(tmp_path / "runs", out=tmp_path / "r.html", replicates=50)
    assert len(report.evidence.runs) == 2


def test_a_run_that_is_loaded_is_reported(tmp_path: Path) -> None:
    write_points(tmp_path / "runs" / "one", rising(), problems_per_batch=32, rollouts_per_problem=8)
    (one,) = isocompute.load(tmp_path / "runs")
    report = isocompute.write_report(one, out=tmp_path / "one.html", replicates=60)
    assert "one" in report.path.read_text(encoding="utf-8")
