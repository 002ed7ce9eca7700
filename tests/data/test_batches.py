"""Bp and n from the logs of OpenRLHF and TRL, whose batch sizes count different things."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from isocompute.data.config import read_run_config
from isocompute.data.folder import read_run
from isocompute.data.importing import Imported, import_logs
from isocompute.data.live import LiveRun
from isocompute.trainers import explain
from isocompute.trainers.config_files import overrides
from tests.data import made_up as made

COMMAND = "+ python3 -m openrlhf.cli.train_ppo_ray "


def after(command: str, tmp_path: Path) -> Imported:
    """A log of OpenRLHF that begins with the command line as `set -x` prints it."""
    log = tmp_path / "train.log"
    log.write_text(command + "\n" + made.openrlhf().split("\n", 1)[1])
    (item,) = import_logs(log)
    assert item.format == "openrlhf"
    return item


@pytest.mark.parametrize(
    ("command", "bp", "n"),
    [
        (COMMAND + "--rollout_batch_size 128 --train_batch_size 1024 --n_samples_per_prompt 8", 128, 8),
        (
            COMMAND + "--packing_samples --rollout_batch_size 128 --train_batch_size 1024 --n_samples_per_prompt 8",
            128,
            8,
        ),
        (COMMAND + "--vllm.enable_sleep --rollout.batch_size 32 --rollout.n_samples_per_prompt 8", 32, 8),
        (
            COMMAND + "\\\n   --rollout_batch_size 128 \\\n   --packing_samples \\\n   --n_samples_per_prompt 8 \\",
            128,
            8,
        ),
        (COMMAND + "--train_batch_size 1024 --n_samples_per_prompt 8", None, 8),  # counts rollouts
        (COMMAND + "--train_batch_size 1024", None, None),
        ("Namespace(train_batch_size=1024, n_samples_per_prompt=8, micro_train_batch_size=4)", None, 8),
    ],
)
def test_openrlhf_command_lines(command: str, bp: int | None, n: int | None, tmp_path: Path) -> None:
    settings = after(command, tmp_path).run.settings
    assert (settings.problems_per_batch, settings.rollouts_per_problem) == (bp, n)


def test_a_flag_takes_no_other_flag_for_its_value() -> None:
    line = "--packing_samples --rollout_batch_size 128 --adam.beta  0.9 --eps -1 --bf16 --seed=3"
    assert overrides(line) == {"rollout_batch_size": "128", "adam.beta": "0.9", "eps": "-1", "seed": "3"}


def test_whose_train_batch_size_counts_problems() -> None:
    config = {"train_batch_size": 1024, "n_samples_per_prompt": 8}
    assert read_run_config(config, trainer="skyrl").settings["problems_per_batch"] == 1024
    for trainer in ("openrlhf", "wandb", "tensorboard", None):
        assert "problems_per_batch" not in read_run_config(config, trainer=trainer).settings


BASE = {"num_generations": 8, "per_device_train_batch_size": 8, "learning_rate": 1e-6, "max_steps": 40}
REUSED: dict[str, tuple[dict[str, Any], int, Fraction]] = {
    "two passes": (
        {
            **{"gradient_accumulation_steps": 4, "steps_per_generation": 4, "generation_batch_size": 256},
            "num_iterations": 2,
        },
        32,
        Fraction(2),
    ),
    "four steps": (
        {"gradient_accumulation_steps": 2, "steps_per_generation": 8, "generation_batch_size": 512},
        64,
        Fraction(4),
    ),
    "both": (
        {
            **{"gradient_accumulation_steps": 2, "steps_per_generation": 4, "generation_batch_size": 64},
            "num_iterations": 3,
        },
        8,
        Fraction(6),
    ),
    "one and a half": (
        {"gradient_accumulation_steps": 2, "steps_per_generation": 3, "generation_batch_size": 96},
        12,
        Fraction(3, 2),
    ),
    "processes": ({"gradient_accumulation_steps": 2, "steps_per_generation": 8, "num_processes": 4}, 32, Fraction(4)),
    "processes and a batch": (
        {"gradient_accumulation_steps": 2, "generation_batch_size": 256, "num_processes": 4},
        32,
        Fraction(4),
    ),
    "on-policy": (
        {"gradient_accumulation_steps": 4, "steps_per_generation": 4, "generation_batch_size": 256},
        32,
        Fraction(1),
    ),
    "only a batch": ({"gradient_accumulation_steps": 4, "generation_batch_size": 256}, 32, Fraction(1)),
}


@pytest.mark.parametrize(("given", "bp", "per_batch"), REUSED.values(), ids=REUSED)
def test_trl_batches_that_are_used_more_than_once(
    given: dict[str, Any], bp: int, per_batch: Fraction, tmp_path: Path
) -> None:
    """A step is the optimiser's; Bp, n, M and compute are those of `explain`."""
    config = BASE | given
    (tmp_path / "args.json").write_text(json.dumps(config))
    (tmp_path / "trainer_state.json").write_text(
        json.dumps({**json.loads(made.trl_state(range(1, 41))), "max_steps": 40})
    )
    (item,) = import_logs(tmp_path / "trainer_state.json")
    settings, points = item.run.settings, item.run.points
    explained = explain(str(tmp_path / "args.json")).setup
    assert read_run_config(config).steps_per_batch == per_batch == explained.updates_per_batch
    assert settings.problems_per_batch == bp == explained.problems_per_batch
    assert settings.rollouts_per_problem == 8 == explained.rollouts_per_problem
    assert settings.update_steps == round(40 / per_batch) == explained.update_steps
    assert points["step"].to_list() == list(range(1, 41))
    assert points["rollouts"].to_list() == pytest.approx([float(s * bp * 8 / per_batch) for s in range(1, 41)])


def test_trl_steps_that_take_several_generation_batches() -> None:
    """Two of them make one update: its problems are those of both, and the compute is what `explain` says."""
    config = BASE | {"gradient_accumulation_steps": 8, "steps_per_generation": 4, "generation_batch_size": 64}
    assert read_run_config(config).settings["problems_per_batch"] == 16
    assert read_run_config(config).steps_per_batch == 1


def test_trl_console_and_arguments_tell_the_batch_together(tmp_path: Path) -> None:
    (tmp_path / "args.json").write_text(json.dumps({"steps_per_generation": 4, "gradient_accumulation_steps": 2}))
    given = (
        "GRPOConfig(\nnum_generations=4,\n)\n  Total train batch size (w. parallel, distributed & accumulation) = 32\n"
    )
    (tmp_path / "train.log").write_text(given + made.trl_console())
    (item,) = import_logs(tmp_path / "train.log")
    assert (item.run.settings.problems_per_batch, item.run.settings.update_steps) == (16, 25)
    assert item.run.points["rollouts"].to_list() == [32 * s for s in range(5, 55, 5)]


def test_given_settings_count_steps_of_the_optimiser_too(tmp_path: Path) -> None:
    config = {"num_generations": 8, "num_iterations": 2, "per_device_train_batch_size": 8}
    (tmp_path / "args.json").write_text(json.dumps(config))
    (tmp_path / "trainer_state.json").write_text(made.trl_state())
    (item,) = import_logs(tmp_path / "trainer_state.json", problems_per_batch=4)
    assert item.run.settings.update_steps == 25
    assert item.run.points["rollouts"].to_list() == [16 * s for s in range(5, 55, 5)]


def test_a_live_run_counts_as_import_does(tmp_path: Path) -> None:
    config = BASE | REUSED["two passes"][0] | {"world_size": 8}
    run = LiveRun(tmp_path / "run", engine="trl", config=config)
    for step in (1, 2, 4):
        run.log(step, {"reward": 0.5})
    run.close()
    written = read_run(str(tmp_path / "run"), name="run")
    assert (written.settings.problems_per_batch, written.settings.update_steps) == (32, 20)
    assert written.points["rollouts"].to_list() == [128, 256, 512]
