"""`--without RUN`: runs left out by name, and tables in other spellings."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from isocompute import InputError, import_logs, load
from tests.cli.tools import QUICK
from tests.commands import Call, fails
from tests.conftest import rising, write_points


@pytest.fixture
def stuck(tmp_path: Path) -> Path:
    """Four runs, of which one never moved."""
    for n in (4, 8, 16):
        points = [p | {"avg@4": p["avg@4"] + n / 1000} for p in rising(12)]
        write_points(tmp_path / "runs" / f"n{n}", points, problems_per_batch=32, rollouts_per_problem=n)
    dead = [p | {"avg@4": 0.0} for p in rising(12)]
    write_points(tmp_path / "runs" / "n64", dead, problems_per_batch=32, rollouts_per_problem=64)
    return tmp_path / "runs"


@pytest.mark.parametrize(
    ("without", "left"),
    [
        ("n64", ["n16", "n4", "n8"]),
        (["n?"], ["n16", "n64"]),
        (["n4", "*6"], ["n64", "n8"]),
        ((), ["n16", "n4", "n64", "n8"]),
    ],
)
def test_names_and_patterns(stuck: Path, without: str | list[str], left: list[str]) -> None:
    assert sorted(run.name for run in load(stuck, without=without)) == left


def test_a_name_is_itself_before_it_is_a_pattern(tmp_path: Path) -> None:
    rows = "".join(f"{run},{step},{step / 10}\n" for run in ("a[1]", "a1") for step in range(6))
    (tmp_path / "table.csv").write_text("run,step,avg@4\n" + rows)
    assert [run.name for run in load(tmp_path / "table.csv", without="a[1]")] == ["a1"]
    assert [run.name for run in load(tmp_path / "table.csv", without="a?")] == ["a[1]"]


def test_an_unknown_name_is_refused_with_the_nearest(stuck: Path) -> None:
    with pytest.raises(InputError, match=r"--without n65: no run has that name; the nearest are 'n64'"):
        load(stuck, without=["n65"])
    with pytest.raises(InputError, match=r"--without zzz: no run has that name; there are 'n16', 'n4', 'n64', 'n8'\."):
        load(stuck, without=["zzz"])
    with pytest.raises(InputError, match=r"--without n\* --without n4: no run remains"):
        load(stuck, without=["n*", "n4"])


def test_of_two_runs_with_one_name_both_may_be_left_out(tmp_path: Path) -> None:
    for folder, shift in (("a", 0.0), ("b", 0.1)):
        write_points(tmp_path / folder / "x", [p | {"avg@4": p["avg@4"] + shift} for p in rising(8)])
    write_points(tmp_path / "b" / "y", rising(8))
    with pytest.raises(InputError, match="two different runs are named 'x'"):
        load([tmp_path / "a", tmp_path / "b"])
    assert [run.name for run in load([tmp_path / "a", tmp_path / "b"], without="x")] == ["y"]


def test_the_errors_that_ask_for_it_name_it_and_it_helps(call: Call, stuck: Path) -> None:
    result = call("fit", stuck, *QUICK)
    fails(result, r"run 'n64'.*leave the run out: --without 'n64'\.$")
    option = re.findall(r"(--without) '(\w+)'", result.err)[0]
    law = call("fit", stuck, *option, *QUICK, "--json").json
    assert sorted(curve["run"] for curve in law["curves"]) == ["n16", "n4", "n8"]


@pytest.mark.parametrize(
    "command",
    [
        "plan --budget 1e5 --law RUNS",
        "claims RUNS",
        "report RUNS --out never.html",
        "forecast RUNS",
        "forecast --backtest RUNS",
        "compare RUNS RUNS",
    ],
)
def test_every_command_has_it(call: Call, stuck: Path, command: str) -> None:
    asked = [str(stuck) if word == "RUNS" else word for word in command.split()]
    fails(call(*asked, "--without", "nobody", "--json"), "--without nobody: no run has that name")


def test_a_side_of_a_comparison_without_a_run(call: Call, tmp_path: Path) -> None:
    """The run need not be on both sides, and a side must keep one."""
    for side, shift in (("a", 0.0), ("b", 0.1)):
        for seed in range(2):
            points = [p | {"avg@4": p["avg@4"] + shift + 0.002 * seed} for p in rising(15)]
            write_points(tmp_path / side / f"{side}{seed}", points, seed=seed)
    made = call("compare", tmp_path / "a", tmp_path / "b", "--without", "b1", *QUICK, "--json").json
    assert (made["a"]["runs"], made["b"]["runs"]) == (["a0", "a1"], ["b0"])
    fails(call("compare", tmp_path / "a", tmp_path / "b", "--without", "b?", *QUICK), "no run of .*b remains")


def test_a_published_law_has_no_runs_to_leave_out(call: Call) -> None:
    result = call("plan", "--law", "isocompute/bp32-easy", "--budget", "1e6", "--without", "n8")
    fails(result, "--without n8: it selects runs, and --law isocompute/bp32-easy has none")


# Tables in other spellings


def test_semicolons_are_read_as_import_reads_them(tmp_path: Path) -> None:
    rows = [("a", 32, 8, 256 * step, 0.2 + step / 100) for step in range(1, 9)]
    table = "run;problems_per_batch;rollouts_per_problem;rollouts;avg@4\n"
    (tmp_path / "t.csv").write_text(table + "".join(";".join(map(str, row)) + "\n" for row in rows))
    (run,) = load(tmp_path / "t.csv")
    (imported,) = import_logs(tmp_path / "t.csv")
    assert run.points.equals(imported.run.points)
    assert (run.name, run.settings.problems_per_batch, run.settings.rollouts_per_problem) == ("a", 32, 8)
    assert run.points["rollouts"].to_list() == [row[3] for row in rows]
    assert run.points["avg@4"].to_list() == [row[4] for row in rows]
    with pytest.raises(InputError, match=r"--columns reads tables separated by commas"):
        load(tmp_path / "t.csv", columns={"value": "avg@4"})


@pytest.mark.parametrize(("separator", "named"), [(";", "';'"), ("\t", "tabs")])
def test_decimal_commas_are_named(call: Call, tmp_path: Path, separator: str, named: str) -> None:
    lines = [("run", "step", "avg@4"), *(("a", str(step), f"0,2{step}") for step in range(1, 9))]
    (tmp_path / "t.csv").write_text("".join(separator.join(line) + "\n" for line in lines))
    result = call("fit", tmp_path / "t.csv")
    fails(
        result, rf"t.csv: separated by {named} with decimal commas \(0,21\); save it with decimal points \(0\.21\)\.$"
    )


def test_text_with_commas_in_a_table_with_commas_is_no_decimal_comma(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("run,step,avg@4\n" + "".join(f'"1,5",{i},{i / 10}\n' for i in range(6)))
    assert [run.name for run in load(tmp_path / "t.csv")] == ["1,5"]


# What is no run


def test_several_tables_without_compute_are_named_in_a_few_words(tmp_path: Path) -> None:
    for name in ("a", "b", "c", "d"):
        (tmp_path / f"{name}.csv").write_text("avg@4,loss\n" + "".join(f"{i / 10},{i}\n" for i in range(8)))
    (tmp_path / "good.csv").write_text("step,avg@4\n" + "".join(f"{i},{i / 10}\n" for i in range(8)))
    warning = r": 4 tables without step or compute left out: 'a.csv', 'b.csv', 'c.csv' and 1 more\.$"
    with pytest.warns(UserWarning, match=warning):
        (run,) = load(tmp_path)
    assert run.name == "good"


def test_trackers_own_logs_are_no_tables(tmp_path: Path) -> None:
    """W&B writes two logs of itself, which look like tables; a debug.log of others is looked at."""
    (tmp_path / "wandb").mkdir()
    itself = "".join(f"2026-11-15 19:16:0{i},{i}12 INFO  MainThread:{i} start,a,{i}\n" for i in range(9))
    for name in ("debug.log", "debug-internal.log"):
        (tmp_path / "wandb" / name).write_text(itself)
    (tmp_path / "good.csv").write_text("step,avg@4\n" + "".join(f"{i},{i / 10}\n" for i in range(8)))
    assert [item.run.name for item in import_logs(tmp_path)] == ["good"]
    assert not import_logs(tmp_path).left_out
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "debug.log").write_text(itself)
    assert len(import_logs(tmp_path).left_out) == 1


def test_end_points_are_reported_before_a_missing_metric(call: Call, tmp_path: Path) -> None:
    (tmp_path / "ends.csv").write_text("run,accuracy,recall\n" + "".join(f"r{i},{i / 10},{i / 20}\n" for i in range(6)))
    fails(call("fit", tmp_path / "ends.csv"), "no run counts compute in rollouts or tokens or gpu_hours or steps")
    result = call("claims", tmp_path / "ends.csv", "--metric", "accuracy", "--json").json
    assert "Claims are about curves; end points decide none." in result["warnings"][0]["message"]
