"""`isocompute train`, `lm pretrain` and `split` with a model: what they print, write and return."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

import isocompute.rl.loop as training_module
from isocompute.core.errors import InputError
from isocompute.core.recorder import Owner, process_start, this_process
from isocompute.sweep.train import TrainSpec, train
from tests.commands import Call, fails
from tests.sweep.tools import ROOT, finish, until

SMALL = (
    "--problems-per-batch=4",
    "--rollouts-per-problem=4",
    "--update-steps=3",
    "--set=problems.size=16,problems.validation=8",
    "--set=evaluation.points=3",
    "--set=engine_options.device=cpu,engine_options.threads=1",
)
KEYS = {"ended", "folder", "model", "points", "finished", "diverged", "first", "last"}


def test_train_prints_and_writes(call: Call, tmp_path: Path):
    out = tmp_path / "run"
    result = call("train", *SMALL, "--recipe", "isocompute-easy", "--problems", "chain:easy", "--out", out)
    assert result.code == 0, result.err
    lines = result.out.splitlines()
    columns = ["update", "rollouts", "avg@4", "best@4", "worst@4", "train", "entropy", "KL"]
    assert lines[0].split() == [*columns, "lr", "rollouts/s", "tokens/s", "seconds"]
    assert [line.split()[0] for line in lines[1:5]] == ["0", "1", "2", "3"]
    assert lines[5].startswith("avg@4 ") and "in 48 rollouts, 3 updates" in lines[5]
    assert lines[6] == f"run: {out} · weights: {out}/model"
    names = {path.name for path in out.iterdir()}
    written = {"points.jsonl", "pass_rates.jsonl", "samples.jsonl"}
    assert names == {"train.json", "run.json", *written, "finished.json", "model"}
    assert result.err.startswith("eager rollouts (without a GPU), up to 32 at a time; ") and result.err.count("\n") == 1
    again = call("train", *SMALL, "--recipe", "isocompute-easy", "--problems", "chain:easy", "--out", out, "--json")
    assert again.json["finished"] and again.json["points"] == 4


def test_train_as_json(call: Call, tmp_path: Path):
    data = call("train", *SMALL, "--out", tmp_path / "run", "--json").json
    assert set(data) == KEYS
    assert (data["points"], data["finished"], data["diverged"]) == (4, True, None)
    assert (data["first"]["step"], data["last"]["step"], data["last"]["rollouts"]) == (0, 3, 48)
    assert data["model"] == str(tmp_path / "run" / "model")


def test_fields_come_from_the_file_then_from_the_command(call: Call, tmp_path: Path):
    spec = tmp_path / "train.toml"
    spec.write_text(
        """
        problems_per_batch = 4
        rollouts_per_problem = 2
        update_steps = 50
        [problems]
        source = "chain:hard"
        size = 16
        validation = 8
        [recipe]
        name = "dapo"
        learning_rate = 1e-3
        [evaluation]
        points = 2
        [engine_options]
        device = "cpu"
        save_model = false
        """
    )
    out = tmp_path / "run"
    options = ("--rollouts", "2e1", "--seed", 3, "--problems", "chain:very-easy", "--set", "recipe.kl_coef=.5")
    data = call("train", spec, *options, "--set", "evaluation.k=[1,2]", "--out", out, "--json").json
    assert data["model"] is None
    assert "avg@2" in data["last"] and data["last"]["rollouts"] == 16  # 20 rollouts pay for two updates
    run = json.loads((out / "run.json").read_text())
    assert (run["seed"], run["update_steps"], run["rollouts_per_problem"]) == (3, 2, 2)
    assert run["problems"] == "chain:very-easy" and run["problem_set"]["size"] == 16
    assert (run["recipe"]["learning_rate"], run["recipe"]["kl_coef"]) == (1e-3, 0.5)
    assert run["recipe"]["zero_variance_filter"] == "policy"  # dapo's


def test_a_budget_pays_for_the_rollouts_of_the_baseline(call: Call, tmp_path: Path):
    more = ("--rollouts", 50, "--set", "recipe.baseline_rollouts=8", "--set", "problems.validation=4")
    data = call("train", *SMALL[:2], *more, *SMALL[3:], "--out", tmp_path / "run", "--json").json
    assert (data["last"]["step"], data["last"]["rollouts"]) == (1, 32)


def test_a_folder_goes_on_with_its_own_run_only(call: Call, tmp_path: Path, sweep: Path):
    out = tmp_path / "run"
    assert call("train", *SMALL, "--out", out, "--json").code == 0
    before = (out / "points.jsonl").read_bytes()
    fails(call("train", *SMALL, "--seed", 1, "--out", out), r"holds a run with other settings \(train\.json\)")
    fails(call("train", *SMALL, "--out", sweep / "runs" / "easy-32x8"), "holds a run of something else")
    assert (out / "points.jsonl").read_bytes() == before
    file = tmp_path / "file"
    file.write_text("")
    fails(call("train", *SMALL, "--out", file), "there is a file of that name")


def test_a_run_whose_end_a_power_cut_tore_is_trained_again(call: Call, tmp_path: Path):
    out = tmp_path / "run"
    whole = call("train", *SMALL, "--out", out, "--json").json
    for name in ("finished.json", "points.jsonl"):
        (out / name).write_bytes(b"")
    again = call("train", *SMALL, "--out", out, "--json").json
    assert again["finished"] and again["points"] == whole["points"] > 0


def test_a_folder_that_another_process_trains_in_is_refused(call: Call, tmp_path: Path):
    out, claim = tmp_path / "run", tmp_path / "run" / "running.json"
    out.mkdir()
    parent = asdict(Owner(this_process().host, os.getppid(), process_start(os.getppid()) or ""))
    claim.write_text(json.dumps(parent))
    fails(call("train", *SMALL, "--out", out), rf"run: is being trained by process {os.getppid()} on .*; wait for it")
    assert [path.name for path in out.iterdir()] == ["running.json"] and json.loads(claim.read_text()) == parent
    claim.write_text(json.dumps({**parent, "started": "1"}))  # that process is gone
    assert call("train", *SMALL, "--out", out, "--json").json["finished"]
    assert not claim.exists()


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError, InputError])
def test_a_run_holds_its_folder_and_gives_it_back_whatever_happens(
    error: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    out = tmp_path / "run"

    def fail(*_: object) -> None:
        assert json.loads((out / "running.json").read_text()) == asdict(this_process())
        raise error("on the way")

    monkeypatch.setattr("isocompute.rl.engine.LmEngine.run", fail)
    with pytest.raises(error, match="on the way"):
        train(TrainSpec(engine_options={"device": "cpu"}), out=out)
    assert not (out / "running.json").exists()
    assert out.exists() == (error is not InputError)


def test_a_run_whose_points_are_gone_does_not_go_on(call: Call, tmp_path: Path):
    out = tmp_path / "run"
    options = {"problems_per_batch": 4, "rollouts_per_problem": 4, "update_steps": 3}
    tables = {"problems": {"size": 16, "validation": 8}, "engine_options": {"device": "cpu", "threads": 1}}
    asked = iter([False, True])
    assert not train(TrainSpec(**options, **tables), out=out, stopping=lambda: next(asked)).finished
    (out / "points.jsonl").unlink()
    before = {path.name for path in out.iterdir()}
    fails(call("train", *SMALL[:4], SMALL[5], "--out", out), r"points\.jsonl: is gone, checkpoint\.npz counts")
    assert {path.name for path in out.iterdir()} == before


def test_ctrl_c_writes_a_checkpoint_and_the_same_command_goes_on(tmp_path: Path, call: Call):
    out = tmp_path / "stopped"
    few = [option for option in SMALL if "update-steps" not in option]
    options = [*few, "--update-steps=24", "--recipe=isocompute-easy"]
    command = [sys.executable, "-m", "isocompute", "train", *options, "--out", str(out)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until(
        lambda: (
            process.poll() is not None
            or ((out / "points.jsonl").exists() and b"\n" in (out / "points.jsonl").read_bytes())
        )
    )
    process.send_signal(signal.SIGINT)
    code, _, err = finish(process)
    assert code == 130, err
    assert "the same command resumes" in err
    assert (out / "checkpoint.npz").exists() and not (out / "finished.json").exists()
    assert call("train", *options, "--out", out, "--json").json["finished"]
    assert call("train", *options, "--out", tmp_path / "whole", "--json").json["finished"]

    def rows(folder: Path) -> list[dict[str, float]]:
        lines = (folder / "points.jsonl").read_text().splitlines()
        return [{k: v for k, v in json.loads(line).items() if "second" not in k} for line in lines]

    assert rows(out) == rows(tmp_path / "whole")
    weights = [(folder / "model" / "model.safetensors").read_bytes() for folder in (out, tmp_path / "whole")]
    assert weights[0] == weights[1]


def test_divergence_is_code_1_and_leaves_json_alone(call: Call, tmp_path: Path):
    options = (*SMALL, "--set", "recipe.learning_rate=1e30,recipe.warmup_steps=0", "--out", tmp_path / "run")
    for _ in range(2):  # the second time from the finished folder
        result = call("train", *options, "--json")
        assert result.code == 1
        data = json.loads(result.out)
        assert set(data) == KEYS and data["diverged"].startswith("diverged at update ")
        assert result.err.startswith("error: diverged at update ") and result.err.count("\n") == 1
        assert (Path(data["model"]) / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--recipe", "grop"], "recipe.name: 'grop' is not one of"),
        (["--set", "recipe.lr=1"], "recipe.lr: "),
        (["--set", "lr=1"], r"--set lr=1: name a table and its field, such as recipe\.lr"),
        (["--set", "recipes.lr=1"], r"--set recipes\.lr=1: name a table and its field"),
        (["--set", "seed.x=1", "--seed", 2], r"--set seed\.x=1: name a table"),
        (["--rollouts", 4, "--problems-per-batch", 4], "rollouts = 4 is less than one batch of 64"),
        (["--rollouts", 900, "--update-steps", 3], "give update_steps or rollouts, not both"),
        (["--problems", "chain:easy?modulus=97"], r"lm pretrain FOLDER --problems 'chain:all\?modulus=97'"),
        (["--rollouts-per-problem", 1], "1 rollout has no group"),
        (["--problems", "chain:medium"], "'medium' is not one of"),
        (["--model", "nowhere"], "nowhere: no checkpoint there"),
        (["nowhere.toml"], "nowhere.toml"),
        (["--set", "engine_options.micro=1"], "engine_options.micro: "),
        (["--set", "recipe.learning_rate=inf"], "recipe.learning_rate: .* finite"),
        (["--set", "recipe.kl_coef=inf"], "recipe.kl_coef: .* finite"),
        (["--set", "recipe.clip_high=nan"], "recipe.clip_high: .* finite"),
        (["--set", "evaluation.temperature=inf"], "evaluation.temperature: .* finite"),
        (["--set", "recipe.baseline_rollouts=0", "--rollouts", 1000], "recipe.baseline_rollouts: .*equal to 2"),
        (["--rollouts", "inf"], "--rollouts inf: give a whole number"),
        (["--rollouts", "1e400"], "--rollouts inf: give a whole number"),
        (["--set", "recipe.name=[1]"], r"recipe.name: '\[1\]' is not one of"),
    ],
)
def test_wrong_input_is_code_2_and_writes_nothing(options: list[object], message: str, call: Call, tmp_path: Path):
    fails(call("train", *options, "--out", tmp_path / "run"), message)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("recipe = 'grpo'", "recipe: "),
        ("problems_per_batch = 0", "problems_per_batch: "),
        ("update_steps = 3\nrollouts = 900", "give update_steps or rollouts, not both"),
        ("learning_rate = 1", "learning_rate: .*fields are problems_per_batch"),
        ("= 1", "not TOML"),
    ],
)
def test_wrong_files(content: str, message: str, call: Call, tmp_path: Path):
    spec = tmp_path / "train.toml"
    spec.write_text(content)
    fails(call("train", spec, "--out", tmp_path / "run"), message)
    assert not (tmp_path / "run").exists()


def test_an_option_does_not_cover_what_is_wrong_in_the_file(call: Call, tmp_path: Path):
    spec = tmp_path / "train.toml"
    spec.write_text("recipe = 5")
    fails(call("train", spec, "--recipe", "grpo", "--out", tmp_path / "run"), r"train\.toml: recipe: .*dictionary")


@pytest.mark.parametrize("content", ["", "{", '{"seed": "x"}', "[1]"])
def test_a_damaged_record_of_the_settings_is_one_line(content: str, call: Call, tmp_path: Path):
    (tmp_path / "train.json").write_text(content)
    fails(call("train", *SMALL, "--out", tmp_path), r"train\.json: damaged \(.*\); give another --out")
    assert (tmp_path / "train.json").read_text() == content


def test_out_of_memory_is_code_2(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes.")

    monkeypatch.setattr(training_module, "update", fail)
    result = call("train", *SMALL, "--set", "engine_options.sample_batch=8", "--out", tmp_path / "run", "--json")
    fails(result, r"out of memory with 8 rollouts in flight .*; try engine_options\.sample_batch = 4")
    assert not (tmp_path / "run").exists()


def test_pretrain_then_train(call: Call, tmp_path: Path):
    base = tmp_path / "base"
    small = ("--steps=60", "--batch=64", "--layers=1", "--width=16", "--heads=2", "--feed-forward=16", "--device=cpu")
    data = call("lm", "pretrain", base, *small, "--problems=chain:1-4?modulus=7", "--context=32", "--json").json
    assert set(data) == {"folder", "parameters", "steps"} and data["steps"] == 60
    fails(call("lm", "pretrain", base, *small), "it exists already")
    fails(call("lm", "pretrain", tmp_path / "b", "--width=18", "--heads=4"), "must be an even multiple of --heads 4")
    fails(call("lm", "pretrain", tmp_path / "b", "--problems=gym:sums"), "is not one of very-easy")
    for odd in ("--learning-rate=inf", f"--seed={10**20}"):
        assert call("lm", "pretrain", tmp_path / "b", odd).code == 2
    trained = ("--model", base, "--problems", "chain:2?modulus=7", "--out", tmp_path / "run", "--json")
    assert call("train", *SMALL, *trained).json["finished"]
    settings = json.loads((tmp_path / "run" / "run.json").read_text())
    assert settings["recipe"]["learning_rate"] == pytest.approx(3e-4)  # the base's own folder says so
    fails(
        call("train", *SMALL, "--model", base, "--problems", "chain:easy", "--out", tmp_path / "c"), "has no word '7'"
    )


def test_split_by_a_model_and_train_on_the_part(call: Call, tmp_path: Path):
    out = tmp_path / "parts"
    data = call("split", "chain:easy", "--model", "tiny", "--samples", 16, "--size", 64, "--out", out, "--json").json
    assert data["problems"] == 64 and data["samples"] == [16]
    assert 0.3 < data["all"]["naive_mean"] < 0.7
    easy = [json.loads(line) for line in (out / "easy.jsonl").read_text().splitlines()]
    assert len(easy) == data["subsets"]["easy"]["corrected"]["size"] > 5
    assert all(0 <= row["pass_rate"] <= 1 for row in easy)
    options = ("--problems", out / "easy.jsonl", "--set", "problems.max_new_tokens=8,problems.validation=2")
    few = ("--problems-per-batch=2", "--rollouts-per-problem=4", "--update-steps=1", "--set=evaluation.samples=16")
    trained = call("train", *few, *options, "--out", tmp_path / "run", "--json").json
    assert trained["finished"] and trained["last"]["rollouts"] == 8
    # The same rates, found by the text verifier on the same words.
    assert 0.05 < trained["last"]["train/avg"] < 0.95


def test_bench_of_a_pipeline_times_updates(call: Call):
    """Its run is long enough for all of them: one that has ended takes no time."""
    options = ("--recipe", "scalerl", "--rollouts", "16", "--rollouts-per-problem", "4", "--steps", "2")
    row = call("lm", "bench", *options, "--json").json["batches"][0]
    assert row["step_seconds"] > 1e-3
    assert row["training_share_of_peak"] > 0  # of a peak that was measured, too: beside other work it may be above 1


def test_bench_says_how_fast_and_how_far_from_the_limits(call: Call):
    options = ("--device", "cpu", "--rollouts", "8", "--rollouts-per-problem", "4", "--steps", "1")
    data = call("lm", "bench", *options, "--json").json
    assert data["machine"]["device"].startswith("CPU")
    (row,) = data["batches"]
    assert row["rollouts"] == 8
    assert row["sampling_seconds"] > 0
    assert 4 * row["rollouts_per_second"] <= row["tokens_per_second"]  # a chain of three steps and its end, at least
    assert 0 < row["sampling_share_of_bandwidth"] < 1
    assert row["training_share_of_peak"] > 0
    table = call("lm", "bench", *options)
    assert "rollouts/s" in table.out
    wrong = call("lm", "bench", "--rollouts", "9", "--rollouts-per-problem", "4")
    assert wrong.code == 2 and "multiple" in wrong.err
