"""`isocompute import`: folders, globs, standard input, `--follow`, logs given to other commands, bad input."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import isocompute
from isocompute import InputError, load
from isocompute.data import RunWarning
from isocompute.data.importing import Imports, folder_name, import_logs
from isocompute.data.watch import watch
from tests.commands import Call
from tests.conftest import rising, write_points
from tests.data import made_up as made


def test_json_has_the_documented_keys_and_writes_nothing(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("verl.log").write_text(made.verl())
    code, out, _ = call("import", "verl.log", "--json")
    assert (code, out.count("\n")) == (0, 1)
    (run,) = json.loads(out)["runs"]
    wanted = {"name": "verl", "format": "verl", "points": 10, "validation_points": 2, "problems_per_batch": 16}
    wanted |= {"rollouts_per_problem": 8, "replaced": 0, "skipped_lines": 0, "update_steps": 200, "learning_rate": 2e-6}
    assert wanted.items() <= run.items()
    assert {"avg@4", "train/avg"} <= set(run["metrics"])
    assert [p.name for p in tmp_path.iterdir()] == ["verl.log"]


def test_run_folders_are_written_and_read_back(call: Call, tmp_path: Path) -> None:
    (tmp_path / "logs" / "a").mkdir(parents=True)
    (tmp_path / "logs" / "a" / "console.log").write_text(made.verl())
    (tmp_path / "logs" / "state.json").write_text(made.trl_state())
    (tmp_path / "logs" / "notes.md").write_text("# step:1 - a:1")
    (tmp_path / "logs" / "other.txt").write_text("nothing here")
    code, out, err = call("import", tmp_path / "logs", "--out", tmp_path / "runs")
    assert (code, err) == (0, "")
    assert "note: state: Bp and n unknown: compute in steps; give --problems-per-batch --rollouts-per-problem" in out
    assert "left out" in out and "other.txt: no known log format" in out
    assert "wrote 2 runs to" in out
    runs = {run.name: run for run in load(tmp_path / "runs")}
    imported = {item.run.name: item.run for item in import_logs(tmp_path / "logs")}
    assert set(runs) == set(imported) == {"a", "state"}
    for name, run in runs.items():
        assert run.settings == imported[name].settings
        read, found = (
            points.select(sorted(points.columns)).cast(pl.Float64) for points in (run.points, imported[name].points)
        )
        assert read.equals(found, null_equal=True)
    origin = json.loads((tmp_path / "runs" / "a" / "import.json").read_text())
    assert (origin["format"], origin["replaced"]) == ("verl", 0)
    # Importing what was imported changes nothing.
    again = {item.run.name: item.run.points.height for item in import_logs(tmp_path / "runs")}
    assert again == {"a": 10, "state": 10}


@pytest.mark.parametrize(("torn", "expected"), [(1, "1 line skipped"), (2, "2 lines skipped")])
def test_lines_that_were_skipped_are_counted(call: Call, tmp_path: Path, torn: int, expected: str) -> None:
    rows = [json.dumps({"step": s, "env/all/reward/total": 0.1 * s}) for s in range(1, 9)]
    (tmp_path / "metrics.jsonl").write_text("\n".join([*rows, *['{"step": 9, "env'] * torn]) + "\n")
    result = call("import", tmp_path / "metrics.jsonl", "--out", tmp_path / "out")
    assert expected in result.out


def test_rollout_dumps_leave_pass_rates(call: Call, tmp_path: Path) -> None:
    (tmp_path / "dump").mkdir()
    for step in (1, 2):
        (tmp_path / "dump" / f"{step}.jsonl").write_text(made.verl_rollouts(step, ids=True))
    code, _, _ = call("import", tmp_path / "dump", "--out", tmp_path / "runs")
    assert code == 0
    lines = (tmp_path / "runs" / "dump" / "pass_rates.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2]
    first = json.loads(lines[0])
    assert first["set"] == "train"
    assert first["problems"][0] == "100" and first["correct"][0] == 1 and first["samples"] == [4, 4, 4, 4]


def test_standard_input_and_globs(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(made.openrlhf().encode())))
    code, out, _ = call("import", "-", "--json")
    assert (code, json.loads(out)["runs"][0]["name"]) == (0, "stdin")
    for name in ("x1.log", "x2.log", "y.log"):
        (tmp_path / name).write_text(made.verl())
    assert [i.run.name for i in import_logs(str(tmp_path / "x*.log"))] == ["x1", "x2"]
    assert [i.run.name for i in import_logs([str(tmp_path / "x1.log"), str(tmp_path)])] == ["x1", "x2", "y"]


def test_errors_are_one_line_with_code_2(call: Call, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hello")
    (tmp_path / "empty").mkdir()
    for argument, message in (
        (tmp_path / "a.txt", "no known log format"),
        (tmp_path / "none.log", "no such file or folder"),
        (tmp_path / "empty", "no file that could be a log"),
        (tmp_path / "*.log", "no such file or folder"),
    ):
        code, out, err = call("import", argument)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert message in err
    (tmp_path / "ok.log").write_text(made.verl())
    (tmp_path / "file").write_text("")
    code, _, err = call("import", tmp_path / "ok.log", "--out", tmp_path / "file")
    assert code == 2 and "cannot be written" in err


@pytest.mark.parametrize("name", ["../../etc", "/abs/x", "a\\b", "..", "", "con\n: *?", "x" * 500, ". ."])
def test_a_run_stays_below_the_folder(name: str, tmp_path: Path) -> None:
    path = (tmp_path / folder_name(name)).resolve()
    assert path.is_relative_to(tmp_path.resolve()) and path != tmp_path.resolve()


def test_names_that_collide_keep_their_folders(tmp_path: Path) -> None:
    rows = [(run, s, 0.5 + s / 100) for run in ("a:b", "a*b", "A_b") for s in range(3)]
    (tmp_path / "t.csv").write_text(made.table(["run_name", "step", "reward"], rows))
    from isocompute.data.importing import write_runs

    folders = write_runs(import_logs(tmp_path / "t.csv"), tmp_path / "runs")
    assert [f.name for f in folders] == ["a_b", "a_b-2", "A_b-3"]


def test_commands_take_a_raw_log(call: Call, tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    log.write_text(made.verl(range(1, 61), every=2))
    code, out, err = call("forecast", log, "--json")
    assert code == 0, err
    assert json.loads(out)["fitted_points"] == 30
    (run,) = isocompute.load(log)
    assert run.settings.problems_per_batch == 16
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text(made.tinker(range(30)))
    code, _, err = call("forecast", metrics, "--metric", "avg@1", "--json")
    assert code == 0, err
    (tmp_path / "x.log").write_text("nothing")
    code, _, err = call("forecast", tmp_path / "x.log")
    assert code == 2 and "As a log:" in err and err.count("\n") == 1
    with pytest.raises(InputError, match="no such file"):
        load(tmp_path / "y.log")


def test_a_folder_name_logs_on_the_fly(tmp_path: Path) -> None:
    for n in (8, 16):
        (tmp_path / f"bp32_n{n}.log").write_text(made.verl(range(1, 20), config=False))
    with pytest.warns(RunWarning, match=r"Bp = 32 of 'bp32_n8', n = 8 of 'bp32_n8', .* by the name alone"):
        assert sorted(r.settings.rollouts_per_problem or 0 for r in load(tmp_path)) == [8, 16]
    write_points(tmp_path / "run", rising(5))  # a folder with run folders is a study, whatever else lies in it
    assert [run.name for run in load(tmp_path)] == ["run"]


class Stop(KeyboardInterrupt):
    pass


def following(path: Path, events: list[Callable[[], object]]) -> list[Any]:
    """What is reported while these things happen, one at every wait."""
    seen: list[Any] = []
    waits: list[float] = []
    todo = iter(events)

    def wait(seconds: float) -> None:
        waits.append(seconds)
        event = next(todo, None)
        if event is None:
            raise Stop
        event()

    def changed(imports: Imports) -> None:
        seen.append([item.run.points.height for item in imports])

    watch([str(path)], read=lambda: import_logs(path), changed=changed, wait=wait, clock=lambda: 0.0)
    assert min(waits) >= 1
    return seen


def test_following_a_log(tmp_path: Path) -> None:
    path = tmp_path / "run.log"

    def append(text: str) -> Callable[[], object]:
        return lambda: path.write_text(path.read_text() + text)

    events = [
        lambda: path.write_text("Starting a local Ray instance\n"),  # there, but no step yet
        append(made.verl(range(1, 4))),
        lambda: None,  # nothing new: nothing is reported
        append(made.verl(range(4, 6), config=False)),
        append("step:6 - critic/sco"),  # torn
        append("re/mean:0.5\n"),
        lambda: path.write_text(made.verl(range(1, 3))),  # cut and begun anew
        lambda: (path.unlink(), path.write_text(made.verl(range(1, 8)))),  # rotated
    ]
    assert following(path, events) == [[3], [5], [5], [6], [2], [7]]


def test_following_writes_again(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.log"
    path.write_text(made.verl(range(1, 4)))
    grown = iter([made.verl(range(1, 9))])

    def sleep(_: float) -> None:
        text = next(grown, None)
        if text is None:
            raise KeyboardInterrupt
        path.write_text(text)

    monkeypatch.setattr(watch, "__kwdefaults__", {**(watch.__kwdefaults__ or {}), "wait": sleep})
    code, out, _ = call("import", path, "--out", tmp_path / "runs", "--follow", "--json")
    assert code == 0
    assert [json.loads(line)["runs"][0]["points"] for line in out.splitlines()] == [3, 8]
    (run,) = load(tmp_path / "runs")
    assert run.points.height == 8
    code, _, err = call("import", "-", "--follow")
    assert code == 2 and "standard input cannot be read again" in err
