"""Every export measures what the plan expects: when it validates, on which file, and when it saves."""

from __future__ import annotations

from typing import Any

import pytest

from isocompute.trainers import TRAINERS, export_plan
from isocompute.trainers.config_files import parse_config as parse

PLAN = {"Bp": 32, "n": 16, "M": 244, "train_file": "train.jsonl", "expected": {"metric": "avg@4"}}
EVERY = 12
"""Updates between validations of 244: twenty in a run."""
INTERVALS = {
    "verl": ("trainer.test_freq", "trainer.save_freq"),
    "trl": ("eval_steps", "save_steps"),
    "openrlhf": ("eval.steps", "ckpt.save_steps"),
    "prime-rl": ("orchestrator.eval.interval", "ckpt.interval"),
    "nemo-rl": ("grpo.val_period", "checkpointing.save_period"),
    "skyrl": ("trainer.eval_interval", "trainer.ckpt_interval"),
}
SAMPLES = {
    "verl": "actor_rollout_ref.rollout.val_kwargs.n",
    "trl": "num_generations_eval",
    "openrlhf": "eval.n_samples_per_prompt",
    "prime-rl": "orchestrator.eval.group_size",
    "nemo-rl": "grpo.val_num_generations_per_prompt",
    "skyrl": "generator.eval_n_samples_per_prompt",
}


def exported(trainer: str, **over: Any) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """The settings of every file, and the notes."""
    made = export_plan(trainer=trainer, plan=PLAN | over)
    return [parse(file.text).settings for file in made.files], {note.code: note.message for note in made.notes}


@pytest.mark.parametrize("trainer", TRAINERS)
@pytest.mark.parametrize("val_file", [None, "val.jsonl"])
def test_validation_and_saving_have_the_same_interval_everywhere(trainer: str, val_file: str | None) -> None:
    files, _ = exported(trainer, val_file=val_file)
    for settings in files:
        assert [settings[key] for key in INTERVALS[trainer]] == [EVERY, EVERY]
        assert settings[SAMPLES[trainer]] == 4


@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_plan_without_validation_problems_says_that_they_are_missing(trainer: str) -> None:
    assert "fill in the validation problems" in exported(trainer)[1]["val_file"]


@pytest.mark.parametrize("trainer", [name for name in TRAINERS if name != "trl"])
def test_validation_problems_of_the_plan_are_in_the_config(trainer: str) -> None:
    made = export_plan(trainer=trainer, plan=PLAN | {"val_file": "val.jsonl"})
    assert "val_file" not in {note.code for note in made.notes}
    assert all("val.jsonl" in file.text for file in made.files)


def test_openrlhf_validates_at_the_plans_temperature_whatever_k_is() -> None:
    (settings,), _ = exported("openrlhf", expected=None, val_file="val.jsonl", temperature=0.9)
    assert settings["eval.dataset"] == "val.jsonl" and settings["eval.temperature"] == 0.9


def test_prime_rl_validates_as_it_samples_to_train() -> None:
    """What is missing there comes from the model's generation_config.json, for validation alone."""
    (settings,), _ = exported("prime-rl", temperature=0.9, max_response_length=2048)
    sampling = "orchestrator.eval.sampling."
    assert {key.removeprefix(sampling): value for key, value in settings.items() if key.startswith(sampling)} == {
        "temperature": 0.9,
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "max_completion_tokens": 2048,
        "extra_body.repetition_penalty": 1.0,
    }


def test_nemo_rl_validates_on_all_problems() -> None:
    """The config below the file stops after 256 problems: max_val_samples // val_batch_size batches."""
    (settings,), _ = exported("nemo-rl", val_file="val.jsonl")
    below = {"val_batch_size": 256}  # of grpo_math_1B.yaml
    assert settings["grpo.max_val_samples"] // below["val_batch_size"] * below["val_batch_size"] > 1_000_000
    assert "grpo.val_batch_size" not in settings


def test_trl_counts_its_intervals_in_optimiser_steps() -> None:
    files, _ = exported("trl", recipe={"name": "isocompute-easy", "updates_per_batch": 2})
    assert [(s["eval_steps"], s["save_steps"]) for s in files] == [(2 * EVERY, 2 * EVERY)] * 2


def test_trls_python_file_validates_and_its_yaml_says_how_to() -> None:
    (python, as_yaml), notes = exported("trl", val_file="val.jsonl")
    assert python["eval_strategy"] == "steps" and python["eval_on_start"] is True
    assert "eval_strategy" not in as_yaml and "eval_on_start" not in as_yaml
    assert "val.jsonl" in notes["val_file"] and "dataset_name: FOLDER" in notes["val_file"]


def test_trl_does_not_validate_without_a_file() -> None:
    for settings in exported("trl")[0]:
        assert "eval_strategy" not in settings and "eval_on_start" not in settings


@pytest.mark.parametrize(("samples", "room", "rows"), [(4, 8, 8), (4, 2, 4), (3, 8, 6), (64, 8, 64)])
def test_trl_keeps_a_problems_rollouts_together(samples: int, room: int, rows: int) -> None:
    from isocompute.trainers import TrainingHardware

    made = export_plan(
        trainer="trl", plan=PLAN | {"validation_samples": samples}, hardware=TrainingHardware(8, 8, room)
    )
    assert parse(made.files[0].text).settings["per_device_eval_batch_size"] == rows


def test_trl_validates_with_one_rollout_per_problem_by_default() -> None:
    settings = exported("trl", expected=None, val_file="val.jsonl")[0][0]
    assert (settings["num_generations_eval"], settings["per_device_eval_batch_size"]) == (1, 8)
