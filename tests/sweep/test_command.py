from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from isocompute import sweep as study
from isocompute.core.allocation import Cell
from isocompute.core.errors import InputError
from isocompute.core.recorder import RunSettings
from isocompute.sweep.command import CommandEngine, LogTail, PointsFile
from isocompute.sweep.execute import execute
from tests.sim.helpers import Patient
from tests.sweep.tools import ROOT, finish, start, until, write_spec

TRAINER = str(ROOT / "tests" / "sweep" / "trainer.py")
COLUMNS = {"step": "global_step", "avg@4": "val/acc"}


def options(*extra: str, **logs: Any) -> dict[str, Any]:
    command = [sys.executable, TRAINER, "--steps", "{update_steps}", "--out", "{folder}", "--rate", "{learning_rate}"]
    return {"command": [*command, *extra], "logs": {"path": "{folder}/metrics.jsonl", "columns": COLUMNS, **logs}}


def make_cell(engine: dict[str, Any], **changes: Any) -> Cell:
    fields: dict[str, Any] = {
        "name": "2x2-s0",
        "problems_per_batch": 2,
        "rollouts_per_problem": 2,
        "update_steps": 10,
        "seed": 0,
        "engine": engine,
        **changes,
    }
    return Cell(**fields)


def read(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "points.jsonl").read_text().splitlines()]


EXPECTED = [{"step": s, "rollouts": 4 * s, "avg@4": round(1 - 1 / s, 4)} for s in range(1, 11)]


def test_a_trainer_fills_a_run(tmp_path: Path):
    control = Patient()
    cell = make_cell(options("--torn"), recipe={"learning_rate": 1e-3, "lr_reference_batch": 1})
    assert CommandEngine().run(cell, tmp_path, control)
    assert read(tmp_path) == EXPECTED
    assert control.rollouts == 40
    assert (tmp_path / "output.log").read_text() == "training from step 0 at 0.002\n"
    assert (tmp_path / "finished.json").exists() and not (tmp_path / "process.json").exists()
    assert json.loads((tmp_path / "run.json").read_text())["engine"] == "command"


def test_a_csv_log(tmp_path: Path):
    logs = {"path": "{folder}/metrics.csv", "format": "csv", "columns": {"step": "global_step", "avg@4": "val"}}
    assert CommandEngine().run(make_cell(options("--format", "csv", **logs)), tmp_path, Patient())
    assert read(tmp_path) == EXPECTED


def test_a_failing_command_shows_its_last_lines_in_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Its error among them, although what it printed before is buffered by default."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    spec = write_spec(tmp_path / "study.toml", engine="command", seeds=[0], engine_options=options("--fail-at", "3"))
    result = study.run(spec=spec, out=tmp_path / "out", workers=2)
    assert set(result.failed) == {"2x2-s0", "2x4-s0"}
    code, out, _ = finish(start("status", tmp_path / "out"))
    assert code == 0
    assert "the command ended with code 3; its last lines:" in out
    assert "CUDA out of memory" in out and "line 19" in out and "line 5\n" not in out
    assert len(read(tmp_path / "out" / "2x2-s0")) == 3


def test_stopping_ends_the_trainer_and_resuming_never_doubles_a_step(tmp_path: Path):
    out = tmp_path / "out"
    grid = {"problems_per_batch": [2], "rollouts_per_problem": [2]}
    spec = write_spec(
        tmp_path / "study.toml",
        engine="command",
        seeds=[0],
        grid=grid,
        budget={"rollouts": 40},
        engine_options=options("--wait-at", "6"),
    )
    process = start("run", spec, "--out", out)
    points = out / "2x2-s0" / "points.jsonl"
    until(lambda: points.exists() and len(points.read_bytes().splitlines()) == 6)
    trainer = json.loads((out / "2x2-s0" / "process.json").read_text())["pid"]
    process.send_signal(signal.SIGINT)
    assert finish(process)[0] == 130
    with pytest.raises(ProcessLookupError):
        os.kill(trainer, 0)
    assert [status.state for status in study.status(folder=out)] == ["stopped"]
    assert study.run(spec=spec, out=out).finished == 1
    assert read(out / "2x2-s0") == EXPECTED
    assert "training from step 4" in (out / "2x2-s0" / "output.log").read_text()


def test_a_trainer_whose_cell_another_host_took_over_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """At once, where it would take its time to stop; and what its successor wrote stays as it is."""
    monkeypatch.chdir(tmp_path)
    script = "import signal, time; signal.signal(signal.SIGTERM, lambda *_: time.sleep(60)); time.sleep(600)"
    engine = {"command": [sys.executable, "-c", script], "logs": {"path": "{folder}/log", "columns": COLUMNS}}
    cell = Cell(name="a", problems_per_batch=2, rollouts_per_problem=2, update_steps=10, seed=0, engine=engine)
    folder, other = tmp_path / "out" / "a", json.dumps({"host": "elsewhere", "pid": 1, "started": "1"})
    theirs = {"running.json": other, "process.json": other}
    trainers: list[int] = []

    class TakenOver:
        def stopping(self) -> bool:
            if not trainers:
                trainers.append(json.loads((folder / "process.json").read_text())["pid"])
                for name, text in theirs.items():
                    (folder / name).write_text(text)
            return False

        def advanced(self, rollouts: int) -> None:
            del rollouts

    outcome = execute(engine=CommandEngine(), cell=cell, address="out", control=TakenOver())
    assert (outcome.state, outcome.seconds < 20) == ("unwritable", True)
    assert "taken over by process 1 on elsewhere" in outcome.error
    with pytest.raises(ProcessLookupError):
        os.kill(trainers[0], 0)
    assert {name: (folder / name).read_text() for name in theirs} == theirs
    assert not (folder / "error.txt").exists()


def test_a_trainer_left_by_a_killed_runner_is_ended_first(tmp_path: Path):
    out = tmp_path / "out"
    grid = {"problems_per_batch": [2], "rollouts_per_problem": [2]}
    changes = {"seeds": [0], "grid": grid, "budget": {"rollouts": 40}}
    spec = write_spec(tmp_path / "study.toml", engine="command", engine_options=options("--wait-at", "6"), **changes)
    process = start("run", spec, "--out", out)
    points = out / "2x2-s0" / "points.jsonl"
    until(lambda: points.exists() and len(points.read_bytes().splitlines()) == 6)
    trainer = json.loads((out / "2x2-s0" / "process.json").read_text())["pid"]
    process.send_signal(signal.SIGKILL)
    finish(process)
    os.kill(trainer, 0)  # it lives on
    assert study.run(spec=spec, out=out).finished == 1
    assert read(out / "2x2-s0") == EXPECTED
    stat = Path(f"/proc/{trainer}/stat")
    until(lambda: not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"command": ["python", "{bach_size}"]},
            r"command\.1: there is no '\{bach_size\}'; there are advantage, .*batch_size",
        ),
        ({"command": ["python", "{"]}, r"command\.1: '\{'"),
        ({"command": ["python", "{seed:.3q}"]}, r"command\.1: "),
        ({"command": ["no-such-program-here"]}, r"command\.0: there is no program 'no-such-program-here'"),
        ({"command": []}, r"command: list should have at least 1 item"),
        ({"shell": True}, r"shell: there is no such field; fields are "),
        ({"logs": {"path": "{folder}/points.jsonl"}}, r"logs\.path: points\.jsonl is what the engine writes"),
        ({"logs": {"path": "x", "format": "xml"}}, r"logs\.format"),
        ({"logs": {"path": "x", "columns": {"avg@4": "acc"}}}, r"logs\.columns: 'step' is missing"),
        ({"logs": {"path": "x", "format": "points", "columns": COLUMNS}}, r"logs\.columns: format 'points'"),
    ],
)
def test_wrong_options_are_refused_before_anything_starts(changes: dict[str, Any], says: str):
    with pytest.raises(InputError, match=rf"engine_options\.{says}"):
        CommandEngine().check(make_cell({**options(), **changes}))


def test_placeholders_of_problems_and_of_the_users_own_recipe_fields(tmp_path: Path):
    script = (
        "import sys, pathlib; print(sys.argv[2:]);"
        "pathlib.Path(sys.argv[1], 'log').write_text('{\"step\": 1, \"avg@4\": 1}\\n')"
    )
    command = [
        sys.executable,
        "-c",
        script.replace("{", "{{").replace("}", "}}"),
        "{folder}",
        "{path}; rm -rf /",
        "{muon}",
        "{kl_coef}",
    ]
    engine = {"command": command, "logs": {"path": "{folder}/log", "format": "points"}}
    cell = make_cell(engine, problems={"path": "a b.json"}, recipe={"muon": True, "name": "grpo"})
    CommandEngine().check(cell)
    assert CommandEngine().run(cell, tmp_path, Patient())
    assert (tmp_path / "output.log").read_text() == "['a b.json; rm -rf /', 'True', '0.001']\n"


def test_a_command_that_logs_nothing_fails(tmp_path: Path):
    engine = {"command": [sys.executable, "-c", ""], "logs": {"path": "{folder}/log", "columns": COLUMNS}}
    with pytest.raises(RuntimeError, match="has no row with 'global_step' and 'val/acc'"):
        CommandEngine().run(make_cell(engine), tmp_path, Patient())


def test_the_tail_of_a_log_that_grows_tears_and_begins_anew(tmp_path: Path):
    path = tmp_path / "log"
    tail = LogTail(path, table=False, columns={})
    assert tail.rows() == []
    path.write_text('{"step": 1, "a": 1}\n{"step": 2, "a"')
    assert tail.rows() == [{"step": 1, "a": 1}]
    with path.open("a") as file:
        file.write(': 2}\nnot json\n{"step": 3, "a": NaN}\n{"step": 4, "a": 4}')
    assert tail.rows() == [{"step": 2, "a": 2}]
    assert tail.rows(ended=True) == [{"step": 4, "a": 4}]
    path.write_text('{"step": 1, "a": 7}\n')
    assert tail.rows() == [{"step": 1, "a": 7}]


def test_a_step_logged_again_is_replaced(tmp_path: Path):
    points = PointsFile(tmp_path, RunSettings(), batch_size=4)
    points.add([{"step": 1, "a": 1.0}, {"step": 2, "a": 2.0}])
    points.add([{"step": 3, "a": 3.0, "rollouts": 11}])
    with (tmp_path / "points.jsonl").open("a") as file:
        file.write('{"step": 4, "a"')
    again = PointsFile(tmp_path, RunSettings(), batch_size=4)
    assert (again.count, again.rollouts) == (3, 11)
    again.add([{"step": 2, "a": 2.5}, {"step": 2, "b": 1.0}, {"step": 4, "a": 4.0}])
    assert read(tmp_path) == [
        {"step": 1, "rollouts": 4, "a": 1.0},
        {"step": 2, "rollouts": 8, "a": 2.5, "b": 1.0},
        {"step": 3, "rollouts": 11, "a": 3.0},
        {"step": 4, "rollouts": 16, "a": 4.0},
    ]
