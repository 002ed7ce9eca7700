"""`isocompute fit`."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

import isocompute
from isocompute.cli.fit import show
from isocompute.law.frontier import Movement
from isocompute.law.store import read_law
from tests.cli.tools import QUICK, RUNS, check_intervals
from tests.commands import Call, fails
from tests.conftest import CEILINGS, rising, write_points


def test_fit_json(call: Call, sweep: Path) -> None:
    law = call("fit", sweep / "runs", *QUICK, "--json").json
    assert (law["metric"], law["unit"]) == ("avg@4", "rollouts")
    assert {curve["run"] for curve in law["curves"]} == set(RUNS)
    for curve in law["curves"]:
        wanted = {"run", "problems_per_batch", "rollouts_per_problem", "form", "asymptote", "asymptote_interval"}
        assert curve.keys() >= wanted | {"rmse", "records"}
        n = curve["rollouts_per_problem"]
        assert (curve["run"], curve["problems_per_batch"]) == (f"easy-32x{n}", 32)
        assert curve["form"] in ("hill", "exponential", "power")
        assert curve["asymptote"] == pytest.approx(CEILINGS[n], abs=0.03)
        assert curve["rmse"] == pytest.approx(0.004, abs=0.002)
        assert 4 <= curve["records"] <= 30
    for point in law["frontier"]:
        assert point.keys() >= {"compute", "rollouts_per_problem", "problems_per_batch", "value"}
        assert point["rollouts_per_problem"] in CEILINGS
    values = [point["value"] for point in law["frontier"]]
    assert values == sorted(values)
    assert values[-1] > 0.6
    assert law["frontier"][-1]["rollouts_per_problem"] == 64
    last = law["switches"][-1]
    assert last.keys() >= {"compute", "from", "to", "value"}
    assert last["to"] == 64
    assert last["from"] in (8, 16)
    wanted = {"L", "k", "log10_C0", "b", "floor", "ceiling", "ceiling_interval", "saturates"}
    assert law["optimal_rollouts"].keys() >= wanted
    assert law["optimal_rollouts"]["floor"] < law["optimal_rollouts"]["ceiling"]
    for best in law["best"]:
        assert set(best["probability"]) <= {"8", "16", "64"}
        assert sum(best["probability"].values()) == pytest.approx(1.0)
    assert law["best"][-1]["probability"]["64"] > 0.9
    check_intervals(law)


def test_fit_on_a_terminal(call: Call, sweep: Path) -> None:
    result = call("fit", sweep / "runs", *QUICK)
    assert result.code == 0
    assert result.err == ""
    assert re.match(r"n\* rises from .* rollouts;", result.out)
    for run in RUNS:
        assert re.search(rf"^{run} +32 +\d+ +\w+ \(\d+%\) +\.\d{{3}}", result.out, re.MULTILINE)


def test_fit_another_metric_and_its_records(call: Call, sweep: Path) -> None:
    average = call("fit", sweep / "runs", *QUICK, "--json").json
    best = call("fit", sweep / "runs", *QUICK, "--metric", "best@4", "--points", "records", "--json").json
    assert (best["metric"], best["points"]) == ("best@4", "records")
    for a, b in zip(average["curves"], best["curves"], strict=True):
        assert b["asymptote"] == pytest.approx(a["asymptote"] + 0.1, abs=0.06)
        assert b["records"] < a["records"]


def test_fit_writes_the_law(call: Call, sweep: Path, tmp_path: Path) -> None:
    path = tmp_path / "new" / "law.json"
    printed = call("fit", sweep / "runs", *QUICK, "--out", path, "--json").json
    stored = read_law(path)
    assert {key: stored.summary[key] for key in printed if key != "surface"} == {
        key: value for key, value in printed.items() if key != "surface"
    }
    assert [fit.setting for fit in stored.settings] == [(32, 8), (32, 16), (32, 64)]
    assert sorted(p.name for p in path.parent.iterdir()) == ["law.json"]


def test_fit_overwrites_laws_and_nothing_else(call: Call, sweep: Path, tmp_path: Path) -> None:
    path = tmp_path / "law.json"
    for there in ('{"log_history": []}', "[1, 2]", "step,reward\n"):
        path.write_text(there)
        fails(call("fit", sweep / "runs", *QUICK, "--out", path), "is not a law; name another")
        assert path.read_text() == there
    torn = '{"format": "isocompute-law", "version": 1, "metr'
    for there in ("", torn, call("fit", sweep / "runs", *QUICK, "--json").out):
        path.write_text(there)
        assert call("fit", sweep / "runs", *QUICK, "--out", path).code == 0
        assert len(read_law(path).settings) == 3


def test_fit_is_repeatable_and_its_seed_counts(call: Call, sweep: Path) -> None:
    first, again, other = (call("fit", sweep / "runs", *QUICK, "--json", "--seed", s).json for s in (1, 1, 2))
    assert first == again
    assert first["curves"][0]["asymptote"] == pytest.approx(other["curves"][0]["asymptote"], abs=0.005)
    assert first["curves"][0]["asymptote_interval"] != other["curves"][0]["asymptote_interval"]


def test_fit_a_foreign_table(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    rows = [
        f"{kind},{n},{p['rollouts']},{p['avg@4']}"
        for kind, n, ceiling in (("easy", 8, 0.6), ("easy", 16, 0.7), ("hard", 8, 0.4))
        for p in rising(12, ceiling)
    ]
    path.write_text("set,n,C,val_reward\n" + "\n".join(rows) + "\n")
    columns = "value=val_reward,rollouts=C,rollouts_per_problem=n"
    args = ("fit", path, "--columns", columns, "--where", "set=easy", "--problems-per-batch", "32", *QUICK, "--json")
    law = call(*args).json
    assert law["metric"] == "val_reward"
    found = [(c["run"], c["problems_per_batch"], c["rollouts_per_problem"]) for c in law["curves"]]
    assert found == [("n=8", 32, 8), ("n=16", 32, 16)]
    assert law["curves"][1]["asymptote"] > law["curves"][0]["asymptote"] > 0.5


def test_one_run_without_settings_has_curves_and_no_optimum(call: Call, tmp_path: Path) -> None:
    write_points(tmp_path / "solo", rising(12))
    law = call("fit", tmp_path, *QUICK, "--json").json
    assert law["optimal_rollouts"] is None
    assert [curve["run"] for curve in law["curves"]] == ["solo"]
    text = call("fit", tmp_path, *QUICK).out
    assert "no n*(C)" in text


def test_the_answer_names_the_p_value_and_the_lead(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    law = isocompute.fit(sweep / "runs", replicates=50)
    assert law.joint.rollouts is not None
    moved = Movement(rises=0.24, falls=0.8, lead=0.021, lead_interval=(0.004, 0.046))
    for direction, said in (
        ("unclear", "whether it rises with compute is undecided (p = .24)"),
        ("rises", "At the end it leads the n that led before by .021 (.004–.046); p = .24"),
    ):
        best = replace(law.joint.rollouts, direction=direction, movement=moved)
        show(replace(law, joint=replace(law.joint, rollouts=best)))
        assert said in " ".join(capsys.readouterr().out.split("Curves")[0].split())
