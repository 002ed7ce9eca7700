"""`isocompute claims` from its arguments to what it prints and returns."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path

import pytest

from isocompute import judge_claims
from isocompute.report.evidence import Evidence
from tests.commands import Call
from tests.conftest import rising, write_points


@pytest.fixture
def call(call: Call) -> Call:
    return partial(call, "claims")


def test_one_object_with_every_claim(call: Call, sweep: Path) -> None:
    code, out, _ = call(sweep / "runs", "--json")
    claims = json.loads(out)["claims"]
    assert (code, out.count("\n")) == (0, 1)
    keys = {"code", "statement", "source", "verdict", "statistic", "interval", "needs", "runs"}
    assert all(set(claim) == keys for claim in claims)
    assert claims == json.loads(json.dumps([claim.to_json() for claim in judge_claims(sweep / "runs")]))
    rises = next(claim for claim in claims if claim["code"] == "optimum_rises")
    assert sorted(rises["runs"]) == ["easy-32x16", "easy-32x64", "easy-32x8"]
    assert rises["statistic"]["seeds"] == 1


def test_the_table_names_what_is_needed(call: Call, sweep: Path) -> None:
    needs = "needs runs with recipe.fp32_head = true and false, all else equal"
    code, out, _ = call(sweep / "runs")
    assert code == 0
    assert "Undecided for lack of runs; --all lists what each needs" in out
    assert "fp32_head_raises_ceiling" in out
    assert needs not in out
    assert needs in call(sweep / "runs", "--all")[1]


def test_one_run_leaves_every_claim_undecided(call: Call, sweep: Path) -> None:
    _, out, _ = call(sweep / "runs" / "easy-32x8", "--json")
    assert {claim["verdict"] for claim in json.loads(out)["claims"]} == {"undecided"}


def test_a_metric_that_is_not_there_is_refused(call: Call, sweep: Path) -> None:
    code, out, err = call(sweep / "runs", "--metric", "nothing")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "no run has a metric 'nothing'" in err


def test_runs_without_a_common_metric_are_read_as_the_report_reads_them(call: Call, tmp_path: Path) -> None:
    """Two log `avg@4`, one `avg@1` alone: the metric of most, and a word about it."""
    for name, metric in (("a", "avg@4"), ("b", "avg@4"), ("c", "avg@1")):
        write_points(tmp_path / name, [{"step": p["step"], metric: p["avg@4"]} for p in rising()])
    code, out, err = call(tmp_path, "--json")
    said = f"{tmp_path}: no metric is in all runs; taking avg@4, which 2 of 3 have."
    assert (code, err) == (0, f"warning: {said}\n")
    assert json.loads(out)["warnings"] == [{"code": "runs", "message": said}]
    assert "metric: avg@4" in call(tmp_path)[1]
    assert Evidence.of(tmp_path).metric == "avg@4"
    code, _, err = call(tmp_path, "--metric", "avg@1")
    assert (code, err) == (0, "")


def test_a_constant_run_is_left_out_and_said(call: Call, sweep: Path, tmp_path: Path) -> None:
    runs = shutil.copytree(sweep / "runs", tmp_path / "runs")
    write_points(runs / "flat", [point | {"avg@4": 0.0} for point in rising()])
    code, out, err = call(runs, "--json")
    said = f"{runs}: 1 of 4 runs left out, 1 with one value of 'avg@4' throughout: 'flat'."
    assert (code, err) == (0, f"warning: {said}\n")
    rises = next(claim for claim in json.loads(out)["claims"] if claim["code"] == "optimum_rises")
    assert sorted(rises["runs"]) == ["easy-32x16", "easy-32x64", "easy-32x8"]


def test_compute_that_goes_backwards_is_refused(call: Call, sweep: Path, tmp_path: Path) -> None:
    runs = shutil.copytree(sweep / "runs", tmp_path / "runs")
    write_points(runs / "back", [point | {"rollouts": 10**6 - point["rollouts"]} for point in rising()])
    code, out, err = call(runs)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "run 'back', column 'rollouts': compute goes backwards" in err
