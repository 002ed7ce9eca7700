"""Two plans never share a folder: most trainers resume from the checkpoint that they find in it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir

from isocompute.trainers import TRAINERS, Exported, TrainingHardware, explain_text, export_plan, make_plan
from isocompute.trainers.config_files import parse_config as parse
from isocompute.trainers.writing import run_name

PLAN = {"Bp": 32, "n": 16, "M": 244, "seed": 7}
NAMED = {
    "verl": ("trainer.experiment_name",),
    "trl": ("output_dir",),
    "openrlhf": ("ckpt.output_dir", "ckpt.path"),
    "nemo-rl": ("checkpointing.checkpoint_dir", "logger.log_dir"),
    "skyrl": ("trainer.run_name", "trainer.ckpt_path", "trainer.export_path"),
}
"""What a run's files go by. prime-rl makes up a new folder at every start, and goes on from none by itself."""
OTHERS: list[dict[str, Any]] = [
    {"Bp": 64},
    {"n": 32},
    {"M": 245},
    {"seed": 8},
    {"seed": None},
    {"learning_rate": 3e-6},
    {"recipe": "cispo"},
    {"recipe": {"name": "isocompute-hard", "clip_high": 0.3}},
    {"model": "Qwen/Qwen3-8B"},
    {"train_file": "hard.parquet"},
    {"max_response_length": 8192},
]


def exported(trainer: str, **over: Any) -> Exported:
    return export_plan(trainer=trainer, plan=PLAN | over)


def names(trainer: str, made: Exported) -> list[tuple[str, ...]]:
    """The names and folders in each file, with those that bash fills in."""
    out = []
    for file in made.files:
        text = file.text.replace("$HOME/", "/home/me/")
        out.append(tuple(str(parse(text).settings[key]) for key in NAMED[trainer]))
    return out


@pytest.mark.parametrize("trainer", NAMED)
def test_every_name_has_the_plan_in_it(trainer: str) -> None:
    for found in names(trainer, exported(trainer)):
        assert len(set(found)) == len(found)
        assert all("bp32-n16-m244-seed7-" in name for name in found)


@pytest.mark.parametrize("trainer", NAMED)
def test_no_two_plans_share_a_name(trainer: str) -> None:
    every = [names(trainer, exported(trainer, **over))[0] for over in [{}, *OTHERS]]
    for column in zip(*every, strict=True):
        assert len(set(column)) == len(every)


def test_a_plan_is_exported_to_the_same_bytes_by_another_process() -> None:
    code = f"from isocompute.trainers import *; print([export_plan(trainer=t, plan={PLAN!r}) for t in TRAINERS])"
    again = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert again.strip() == str([exported(trainer) for trainer in TRAINERS])


def test_a_run_has_the_same_name_on_another_machine() -> None:
    here, there = (export_plan(trainer="verl", plan=PLAN, hardware=TrainingHardware(gpus=gpus)) for gpus in (8, 16))
    assert names("verl", here) == names("verl", there)


def test_an_explicit_learning_rate_and_the_same_default_are_one_run() -> None:
    plan = make_plan(PLAN)
    assert run_name(plan) == run_name(make_plan(PLAN | {"learning_rate": plan.learning_rate}))


def test_a_plan_without_a_seed_names_none() -> None:
    assert "seed" not in run_name(make_plan(PLAN | {"seed": None}))


@pytest.mark.parametrize("trainer", NAMED)
def test_explain_reads_it_and_knows_the_keys(trainer: str) -> None:
    for file in exported(trainer, problems=6000).files:
        found = explain_text(file.text, problems=6000)
        assert found.unknown == {} and "unresolved" not in {note.code for note in found.warnings}
        assert found.setup.problems_per_batch == 32 and found.setup.update_steps == 244


def arguments(script: str, *more: str) -> list[str]:
    """What bash passes on, with a caller's own arguments."""
    shown = 'uv() { printf "%s\\0" "$@"; }; python3() { uv "$@"; }; source /dev/stdin'
    done = subprocess.run(
        ["bash", "-c", shown, "run", *more],
        input=script.encode(),
        capture_output=True,
        check=True,
        env={"HOME": "/home/my name", "PATH": "/usr/bin:/bin"},
    )
    return done.stdout.decode().rstrip("\0").split("\0")


def test_verls_checkpoints_follow_from_the_names_and_a_callers_name_wins() -> None:
    folder = Path(sys.prefix) / "verl" / "verl" / "trainer" / "config"
    script = exported("verl").files[0].text
    with initialize_config_dir(config_dir=str(folder), version_base=None):
        trainer = compose("ppo_trainer", overrides=arguments(script)[2:]).trainer
        assert trainer.default_local_dir == f"checkpoints/isocompute-runs/{run_name(make_plan(PLAN))}"
        mine = compose("ppo_trainer", overrides=arguments(script, "trainer.experiment_name=mine")[2:]).trainer
        assert mine.default_local_dir == "checkpoints/isocompute-runs/mine"


def test_skyrls_folders_are_absolute_and_below_the_home_folder() -> None:
    passed = arguments(exported("skyrl").files[0].text, "trainer.ckpt_path=/mine")
    name = run_name(make_plan(PLAN))
    assert f"trainer.ckpt_path=/home/my name/ckpts/{name}" in passed
    assert f"trainer.export_path=/home/my name/exports/{name}" in passed
    assert passed[-1] == "trainer.ckpt_path=/mine"
