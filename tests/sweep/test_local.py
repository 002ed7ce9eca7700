from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from isocompute import sweep as study
from isocompute.core.errors import InputError
from isocompute.data import load
from isocompute.sweep.folder import Progress
from tests.commands import Call
from tests.sweep.tools import PATIENCE, ROOT, files_in, finish, points, start, until, write_spec


def states(folder: Path) -> dict[str, str]:
    return {status.cell.name: status.state for status in study.status(folder=folder)}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted study of the default spec."""
    top = tmp_path_factory.mktemp("whole")
    result = study.run(spec=write_spec(top / "study.toml"), out=top / "out", workers=2)
    assert (result.cells, result.finished, result.failed, result.stopped) == (4, 4, {}, False)
    return top / "out"


def test_the_folder_is_a_folder_of_runs(whole: Path):
    runs = load(whole)
    assert sorted(run.name for run in runs) == ["2x2-s0", "2x2-s1", "2x4-s0", "2x4-s1"]
    assert [run.points.height for run in runs] == [20, 20, 10, 10]
    assert files_in(whole) == {"study.toml", "identity.json", "run.json", "points.jsonl", "finished.json"}
    assert set(states(whole).values()) == {"finished"}


def test_finished_cells_are_skipped(whole: Path, tmp_path: Path):
    before = points(whole)
    result = study.run(spec=write_spec(tmp_path / "study.toml"), out=whole)
    assert (result.skipped, result.finished, result.new_rollouts) == (4, 4, 0)
    assert points(whole) == before


def test_progress_counts_to_the_end(tmp_path: Path):
    seen: list[Progress] = []
    study.run(spec=write_spec(tmp_path / "study.toml"), out=tmp_path / "out", workers=1, report=seen.append)
    assert seen[-1].rollouts == seen[-1].total_rollouts == 320
    assert all(a.rollouts <= b.rollouts and a.finished <= b.finished for a, b in pairwise(seen))


def test_added_seeds_and_rollouts_run_only_what_is_new(tmp_path: Path):
    spec, out = tmp_path / "study.toml", tmp_path / "out"
    study.run(spec=write_spec(spec, seeds=[0]), out=out)
    before = points(out)
    result = study.run(spec=write_spec(spec), out=out)
    assert (result.skipped, result.finished, result.new_rollouts) == (2, 4, 160)
    grid = {"problems_per_batch": [2], "rollouts_per_problem": [2, 4, 8]}
    result = study.run(spec=write_spec(spec, grid=grid), out=out)
    assert (result.skipped, result.finished) == (4, 6)
    assert {name: points(out)[name] for name in before} == before
    # What the spec no longer names stays on disk and is not counted.
    write_spec(spec, seeds=[1])
    assert study.run(spec=spec, out=out).cells == 2
    assert len(points(out)) == 6


def test_added_sets_run_only_what_is_new(tmp_path: Path):
    spec, out = tmp_path / "study.toml", tmp_path / "out"
    easy, hard = {"set": "easy", "low": 0.3}, {"set": "hard"}
    study.run(spec=write_spec(spec, problems=[easy], seeds=[0]), out=out)
    result = study.run(spec=write_spec(spec, problems=[hard, easy], seeds=[0]), out=out)
    assert (result.skipped, result.finished) == (2, 4)
    study.run(spec=write_spec(spec, problems=[easy], seeds=[0]), out=out)
    with pytest.raises(InputError, match=r"problems\.hard\.low: absent → 0\.1"):
        study.run(spec=write_spec(spec, problems=[easy, {"set": "hard", "low": 0.1}], seeds=[0]), out=out)


@pytest.mark.parametrize(
    ("before", "after", "what"),
    [
        ({}, {"variants": {"slow": {"recipe": {"learning_rate": 1e-4}}}}, "without variants"),
        ({"variants": {"slow": {"recipe": {"learning_rate": 1e-4}}}}, {}, "with variants"),
        ({}, {"problems": [{"set": "easy"}]}, r"without a name of its problem set \(`set`\)"),
        ({"problems": [{"set": "easy"}]}, {}, r"with a name of its problem set \(`set`\)"),
    ],
)
def test_what_would_move_every_cell_is_refused(tmp_path: Path, before: Any, after: Any, what: str):
    """They would all be run again, and both copies be taken for seeds."""
    spec, out = tmp_path / "study.toml", tmp_path / "out"
    study.run(spec=write_spec(spec, seeds=[0], **before), out=out)
    with pytest.raises(InputError, match=f"this study was begun {what}; its cells would move .* give another --out"):
        study.run(spec=write_spec(spec, seeds=[0], **after), out=out)


def test_added_variants_run_only_what_is_new(tmp_path: Path):
    spec, out = tmp_path / "study.toml", tmp_path / "out"
    slow, fast = {"recipe": {"learning_rate": 1e-4}}, {"recipe": {"learning_rate": 1e-2}}
    study.run(spec=write_spec(spec, variants={"slow": slow}, seeds=[0]), out=out)
    before = points(out)
    result = study.run(spec=write_spec(spec, variants={"slow": slow, "fast": fast}, seeds=[0]), out=out)
    assert (result.skipped, result.finished) == (4, 6)  # the whole recipe and one variant, then another
    assert {name: points(out)[name] for name in before} == before
    study.run(spec=write_spec(spec, variants={"slow": slow}, seeds=[0]), out=out)
    with pytest.raises(InputError, match=r"variants\.fast\.recipe\.learning_rate: 0\.01 → 0\.0001"):
        study.run(spec=write_spec(spec, variants={"slow": slow, "fast": slow}, seeds=[0]), out=out)


def test_a_changed_spec_is_refused_with_the_fields_that_differ(tmp_path: Path):
    spec, out = tmp_path / "study.toml", tmp_path / "out"
    study.run(spec=write_spec(spec, recipe={"kl_coef": 0.1}), out=out)
    before = points(out), (out / "study.toml").read_bytes()
    write_spec(spec, recipe={"kl_coef": 0.2, "loss": "clip"}, budget={"rollouts": 90}, resources={"cpus": 2})
    with pytest.raises(InputError) as caught:
        study.run(spec=spec, out=out)
    for change in ("budget.rollouts: 80 → 90", "recipe.kl_coef: 0.1 → 0.2", 'recipe.loss: absent → "clip"'):
        assert change in str(caught.value)
    assert "resources.cpus" not in str(caught.value)
    assert "or give another --out (`study run` has --fork for it)" in str(caught.value)
    assert (points(out), (out / "study.toml").read_bytes()) == before
    forks = [study.run(spec=spec, out=out, fork=True).folder for _ in range(2)]
    assert forks == [f"{out}-2", f"{out}-3"]
    assert points(out) == before[0]


def test_what_changes_speed_alone_may_change(tmp_path: Path):
    """A cell that ran out of memory asks for a smaller micro-batch: the study must take it."""
    spec, out = tmp_path / "study.toml", tmp_path / "out"
    study.run(spec=write_spec(spec, engine_options={"micro_batch": 64, "together": True, "every": 3}), out=out)
    write_spec(spec, engine_options={"micro_batch": 32, "together": False, "threads": 1, "every": 3}, seeds=[0, 1, 2])
    assert study.run(spec=spec, out=out).finished == 6
    write_spec(spec, engine_options={"micro_batch": 32, "every": 4})
    with pytest.raises(InputError, match=r"\(engine_options\.every: 3 → 4\).*micro_batch"):
        study.run(spec=spec, out=out)


def test_a_refused_cell_stops_everything_before_it_starts(tmp_path: Path):
    with pytest.raises(InputError, match=r"recipe\.refused: this engine refuses it\. \(cell 2x2-s0\)"):
        study.run(spec=write_spec(tmp_path / "study.toml", recipe={"refused": True}), out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path):
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "home.txt").write_text("dear all")
    with pytest.raises(InputError, match="not empty and not a study"):
        study.run(spec=write_spec(tmp_path / "study.toml"), out=tmp_path / "letters")
    with pytest.raises(InputError, match="cannot be made"):
        study.run(spec=tmp_path / "study.toml", out=tmp_path / "study.toml" / "below")
    with pytest.raises(InputError, match="not a study"):
        study.status(folder=tmp_path / "letters")


def test_a_crash_in_one_cell_leaves_the_others_alone(tmp_path: Path, whole: Path):
    spec = write_spec(tmp_path / "study.toml", engine_options={"crash": ["2x4-s1"]})
    code, out, err = finish(start("run", spec, "--out", tmp_path / "out", "--workers", "2"))
    assert code == 1
    assert "3 of 4 cells finished" in out
    assert "2x4-s1: ZeroDivisionError: told to crash" in out
    assert "failed: 2x4-s1: ZeroDivisionError: told to crash" in err
    assert states(tmp_path / "out") == {**dict.fromkeys(states(whole), "finished"), "2x4-s1": "failed"}
    error = (tmp_path / "out" / "2x4-s1" / "error.txt").read_text()
    assert error.startswith("ZeroDivisionError: told to crash\n\nTraceback") and "_misbehave" in error
    code, out, _ = finish(start("status", tmp_path / "out", "--json"))
    told = json.loads(out)
    assert (code, told["finished"], told["failed"], told["errors"][0]["cell"]) == (0, 3, 1, "2x4-s1")
    code, out, _ = finish(start("runs", tmp_path / "out", "--json"))
    assert [run["state"] for run in json.loads(out)["runs"]] == ["finished", "finished", "finished", "failed"]
    done = points(tmp_path / "out")
    assert {name: done[name] for name in done if name != "2x4-s1"} == {
        name: data for name, data in points(whole).items() if name != "2x4-s1"
    }


def test_a_cell_whose_worker_dies_once_is_tried_again(tmp_path: Path, whole: Path):
    spec = write_spec(tmp_path / "study.toml", engine_options={"die_once": ["2x2-s0", "2x4-s0"]})
    result = study.run(spec=spec, out=tmp_path / "out", workers=2)
    assert (result.finished, result.failed) == (4, {})
    assert points(tmp_path / "out") == points(whole)


def test_a_cell_whose_worker_always_dies_fails_alone(tmp_path: Path):
    spec = write_spec(tmp_path / "study.toml", engine_options={"die": ["2x2-s1"]})
    result = study.run(spec=spec, out=tmp_path / "out", workers=2)
    assert result.finished == 3
    assert "died 3 times (signal SIGKILL)" in result.failed["2x2-s1"]
    assert (tmp_path / "out" / "2x2-s1" / "deaths").read_text() == "xxx"
    assert states(tmp_path / "out")["2x2-s1"] == "failed"


def test_a_script_without_a_guard_is_told_of_it(tmp_path: Path):
    write_spec(tmp_path / "study.toml")
    script = tmp_path / "first.py"
    script.write_text('import isocompute.sweep\n\nisocompute.study.run(spec="study.toml", out="out", workers=1)\n')
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, script]
    ended = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert ended.returncode == 1
    said = ended.stderr.splitlines()[-1]
    assert "worker processes end before they begin (exit code 1): they import the script that starts the study" in said
    assert 'put what it does under `if __name__ == "__main__":`' in said
    assert "engine 'tests.sweep.fake:FakeEngine'" in said


def test_a_full_disk_stops_the_study_and_keeps_what_is_written(tmp_path: Path):
    spec = write_spec(tmp_path / "study.toml", engine_options={"full": ["2x2-s1"], "wait": ["2x2-s0"]})
    code, out, err = finish(start("run", spec, "--out", tmp_path / "out", "--workers", "2"))
    assert code == 1
    assert "No space left on device; what is written is kept" in err
    assert "Traceback" not in err + out
    after = states(tmp_path / "out")
    assert (after["2x2-s0"], after["2x2-s1"]) == ("stopped", "stopped")


def test_an_unwritable_folder_is_one_line(tmp_path: Path):
    """A folder below a file: nobody can write there, not even root, whom a mode would not stop."""
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InputError, match=r"file/out.*cannot be (written|made)"):
        study.run(spec=write_spec(tmp_path / "study.toml"), out=tmp_path / "file" / "out")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_writes_checkpoints_and_the_study_goes_on(tmp_path: Path, whole: Path, number: signal.Signals):
    out = tmp_path / "out"
    options = {"every": 1000, "wait": ["2x2-s0", "2x2-s1"]}
    spec = write_spec(tmp_path / "study.toml", engine_options=options)
    process = start("run", spec, "--out", out, "--workers", "2")
    until(lambda: all(len(points(out).get(name, b"").splitlines()) == 2 for name in ("2x2-s0", "2x2-s1")))
    assert {state for name, state in states(out).items() if name.startswith("2x2")} == {"running"}
    with pytest.raises(InputError, match=f"being run by process {process.pid} .*, or give another --out "):
        study.run(spec=spec, out=out)
    process.send_signal(number)
    code, text, err = finish(process)
    assert (code, "Traceback" in err) == (130, False)
    assert "stopped; the same command resumes" in text
    assert states(out) == {"2x2-s0": "stopped", "2x2-s1": "stopped", "2x4-s0": "waiting", "2x4-s1": "waiting"}
    assert (out / "2x2-s0" / "checkpoint.npz").exists()
    # Step 3, where they waited, lies behind the checkpoint: a run from the start would wait for ever.
    result = study.run(spec=spec, out=out, workers=2)
    assert result.finished == 4
    assert points(out) == points(whole)


def test_ctrl_c_while_the_last_cells_run_to_their_end_has_stopped_nothing(tmp_path: Path):
    out, both = tmp_path / "out", ["2x2-s0", "2x4-s0"]
    spec = write_spec(tmp_path / "study.toml", seeds=[0], engine_options={"wait": both, "deaf": both})
    process = start("run", spec, "--out", out, "--workers", "2")
    until(lambda: all(len(points(out).get(name, b"").splitlines()) == 2 for name in both))
    process.send_signal(signal.SIGINT)
    code, text, err = finish(process)
    assert (code, "stopped" in text, "Traceback" in err) == (0, False, False)
    assert "2 of 2 cells finished" in text
    assert set(states(out).values()) == {"finished"}


def test_a_study_whose_cells_ended_early_is_all_done(tmp_path: Path, call: Call):
    out = tmp_path / "out"
    study.run(spec=write_spec(tmp_path / "study.toml", seeds=[0], engine_options={"ends": 4}), out=out)
    told = call("study", "status", out, "--json").json
    assert (told["finished"], told["rollouts"], told["total_rollouts"]) == (2, 4 * 4 + 4 * 8, 4 * 4 + 4 * 8)
    assert "48 of 48 rollouts (100.0%)" in call("study", "status", out).out
    rows = call("study", "runs", out, "--json").json["runs"]
    assert [(row["update_steps"], row["rollouts"], row["compute"]) for row in rows] == [(4, 16, 16), (4, 32, 32)]
    assert "16 of 16" in call("study", "runs", out).out


def test_a_study_of_cells_that_made_nothing_is_all_done(tmp_path: Path, call: Call):
    out = tmp_path / "out"
    study.run(spec=write_spec(tmp_path / "study.toml", seeds=[0], engine_options={"ends": 4}), out=out)
    for name in ("2x2-s0", "2x4-s0"):
        (out / name / "finished.json").write_text('{"rollouts": 0, "diverged": "at update 0"}')
    assert "0 of 0 rollouts (100.0%)" in call("study", "status", out).out


@pytest.mark.parametrize("left", [b"", b"{", b"[]", b"{}"])
def test_an_identity_that_a_power_cut_left_empty_is_named(tmp_path: Path, left: bytes):
    spec, out = write_spec(tmp_path / "study.toml", seeds=[0]), tmp_path / "out"
    study.run(spec=spec, out=out)
    before = points(out)
    (out / "identity.json").write_bytes(left)
    with pytest.raises(
        InputError, match=r"out/identity\.json: damaged.*; put it back, or give another --out \(.*--fork"
    ):
        study.run(spec=spec, out=out)
    assert (points(out), (out / "identity.json").read_bytes()) == (before, left)
    assert study.run(spec=spec, out=out, fork=True).finished == 2


def test_a_spec_without_an_ending_does_not_take_itself_for_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    write_spec(Path("study"), seeds=[0])
    with pytest.raises(InputError, match="study: the study's folder is by default the spec's name without its ending"):
        study.run(spec="study")
    with pytest.raises(InputError, match="study: there is a file of that name; give another --out"):
        study.run(spec="study", out="study")
    assert study.run(spec="study", fork=True).folder == "study-2"


def test_a_second_ctrl_c_ends_at_once(tmp_path: Path):
    out = tmp_path / "out"
    spec = write_spec(tmp_path / "study.toml", engine_options={"pause": 1000.0})
    process = start("run", spec, "--out", out, "--workers", "1")
    until((out / "2x2-s0" / "run.json").exists)
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    assert "stopping, Ctrl-C again stops at once" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    code, _, err = finish(process)
    assert (code, "Traceback" in err) == (130, False)
    assert "stopped at once" in err


def test_the_runner_works_outside_the_main_thread(tmp_path: Path):
    found: list[study.Result] = []
    spec = write_spec(tmp_path / "study.toml")
    thread = threading.Thread(target=lambda: found.append(study.run(spec=spec, out=tmp_path / "out", workers=1)))
    thread.start()
    thread.join()
    assert found[0].finished == 4


def test_wrong_options(tmp_path: Path):
    spec = write_spec(tmp_path / "study.toml")
    for wrong in ({"on": "mars"}, {"on": "local=here"}, {"workers": 0}):
        with pytest.raises(InputError, match=r"--on|--workers"):
            study.run(spec=spec, out=tmp_path / "out", **wrong)


def test_workers_have_one_thread_and_outside_programs_what_the_user_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    spec = write_spec(tmp_path / "study.toml", engine="tests.sweep.fake:ThreadsEngine")
    assert study.run(spec=spec, out=tmp_path / "out", workers=1).finished == 4
    assert {path.read_text() for path in tmp_path.rglob("threads")} == {"[1] 7"}
    assert os.environ["OMP_NUM_THREADS"] == "7" and "MKL_NUM_THREADS" not in os.environ


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_runs_are_listed_with_the_n_and_updates_that_they_have(tmp_path: Path, call: Call, scheme: str):
    """A run of 0.1 may have an n that changes and updates that the spec does not give; `run.json` knows."""
    spec = write_spec(tmp_path / "study.toml", seeds=[0], grid={"problems_per_batch": [2], "rollouts_per_problem": [4]})
    study.run(spec=spec, out=tmp_path / "out", workers=1)
    path = tmp_path / "out" / "2x4-s0" / "run.json"
    settings = json.loads(path.read_text())
    path.write_text(json.dumps({**settings, "rollouts_per_problem": None, "update_steps": 7}))
    (row,) = call("study", "runs", f"{scheme}{tmp_path}/out", "--json").json["runs"]
    assert (row["rollouts_per_problem"], row["update_steps"]) == (None, 7)
    (listed,) = (line for line in call("study", "runs", tmp_path / "out").out.splitlines() if "2x4-s0" in line)
    assert listed.split()[:4] == ["2x4-s0", "2", "–", "7"]
    path.write_bytes(b"")  # a power cut: then as the spec has it
    (row,) = call("study", "runs", f"{scheme}{tmp_path}/out", "--json").json["runs"]
    assert (row["rollouts_per_problem"], row["update_steps"]) == (4, 10)
