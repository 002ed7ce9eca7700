"""`isocompute export` and `isocompute explain`, as a user runs them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from isocompute import InputError
from isocompute.cli.main import app
from isocompute.trainers import TRAINERS

PLAN = {"Bp": 32, "n": 16, "M": 244, "recipe": "isocompute-easy"}


@pytest.fixture
def plan(tmp_path: Path) -> str:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(PLAN))
    return str(path)


def run(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, list(arguments), input=stdin, catch_exceptions=True)


def as_json(*arguments: str) -> dict[str, Any]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    table: dict[str, Any] = json.loads(result.stdout)
    return table


@pytest.mark.parametrize("trainer", TRAINERS)
def test_export_then_explain(trainer: str, plan: str, tmp_path: Path) -> None:
    folder = tmp_path / trainer
    made = as_json("export", trainer, plan, "--out", str(folder))
    assert made["trainer"] == trainer and made["compute"] == 32 * 16 * 244
    for file in made["files"]:
        assert Path(file["path"]).read_text() == file["text"]
        found = as_json("explain", file["path"])
        keys = ("trainer", "problems_per_batch", "rollouts_per_problem", "update_steps", "batch_size", "compute")
        assert {key: found[key] for key in keys} == {key: made[key] for key in keys}
        assert found["on_policy"] is True
        stated = run("explain", file["path"])
        assert stated.stdout.strip() == found["text"]
        assert "\n" not in found["text"]
    assert {note["code"] for note in made["notes"]} >= {"reward"}


@pytest.mark.parametrize(
    ("fields", "code", "expected"),
    [
        ({"length_control": "interrupt"}, "length_control", "long responses are cut, not interrupted"),
        ({"length_control": "penalty"}, "length_control", "no length penalty: it belongs in your reward function"),
        ({"pipeline_steps": 8}, "pipeline_steps", "written as on-policy training, not pipeline_steps = 8"),
    ],
)
@pytest.mark.parametrize("trainer", TRAINERS)
def test_what_a_config_cannot_express_is_noted(
    trainer: str, fields: dict[str, Any], code: str, expected: str, tmp_path: Path
) -> None:
    (tmp_path / "plan.json").write_text(json.dumps({**PLAN, "recipe": {"name": "cispo", **fields}}))
    notes = {note["code"]: note["message"] for note in as_json("export", trainer, str(tmp_path / "plan.json"))["notes"]}
    assert expected in notes[code]


def test_the_config_goes_to_stdout_and_the_report_to_stderr(plan: str) -> None:
    result = run("export", "verl", plan, "--model", "Qwen/Qwen3-8B", "--gpus", "16", "--per-device", "4")
    assert result.exit_code == 0
    assert "actor_rollout_ref.model.path=Qwen/Qwen3-8B" in result.stdout
    assert "ppo_micro_batch_size_per_gpu=4" in result.stdout and "trainer.nnodes=2" in result.stdout
    assert "note (reward)" in result.stderr and "124,928 rollouts" in result.stderr


def test_a_plan_on_standard_input() -> None:
    result = run("export", "prime-rl", "-", "--per-device", "65536tok", stdin=json.dumps(PLAN))
    assert result.exit_code == 0
    assert "batch_size = 512" in result.stdout and "seq_len = 65536" in result.stdout


def test_one_file_by_its_suffix(plan: str, tmp_path: Path) -> None:
    run("export", "trl", plan, "--out", str(tmp_path / "mine.yaml"))
    assert "num_generations: 16" in (tmp_path / "mine.yaml").read_text()
    assert not (tmp_path / "grpo_config.py").exists()
    refused = run("export", "trl", plan, "--out", str(tmp_path / "mine.toml"))
    assert isinstance(refused.exception, InputError) and "grpo_config.py, grpo.yaml" in str(refused.exception)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["export", "verll", "PLAN"], "did you mean verl?"),
        (["export", "verl", "nowhere.json"], "cannot be read"),
        (["export", "verl", "PLAN", "--gpus", "7"], "the nearest plans that can be"),
        (["export", "verl", "PLAN", "--per-device", "8 tokens"], "--per-device"),
        (["export", "prime-rl", "PLAN", "--gpus", "1"], "--gpus 2"),
        (["explain", "PLAN"], "not a trainer's config"),
    ],
)
def test_wrong_input_is_one_line_and_code_2(arguments: list[str], expected: str, plan: str) -> None:
    command = [plan if word == "PLAN" else word for word in arguments]
    done = subprocess.run([sys.executable, "-m", "isocompute", *command], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    assert expected in done.stderr
