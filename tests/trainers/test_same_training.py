"""Exported numbers against what the engine trains with: anchors, warm-up, critics, advantages."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from isocompute.core.recipe import learning_rate, make_recipe
from isocompute.trainers import TRAINERS, Exported, TrainerSetup, explain_text, export_plan

TRUNCATES = {
    "trl": "vllm_importance_sampling_correction=True",
    "openrlhf": "--algo.advantage.is_correction_enable",
    "nemo-rl": "use_importance_sampling_correction: true",
    "skyrl": "off_policy_correction.tis_ratio_type=token",
}
"""How trainers without an anchor of their own say that they correct for the sampler."""


def exported(trainer: str, recipe: str | dict[str, Any]) -> Exported:
    return export_plan(trainer=trainer, plan={"Bp": 512, "n": 8, "M": 100, "recipe": recipe})


def read_back(made: Exported) -> TrainerSetup:
    return explain_text(made.files[0].text, source=made.files[0].name, problems=100_000).setup


def note_of(made: Exported, code: str) -> str | None:
    return next((note.message for note in made.notes if note.code == code), None)


@pytest.mark.parametrize("recipe", ["magistral", "deepseek-grpo", "qwen-dapo"])
@pytest.mark.parametrize("trainer", TRUNCATES)
def test_a_clip_anchored_to_the_sampler_corrects_for_it(trainer: str, recipe: str) -> None:
    made = exported(trainer, recipe)
    clip = make_recipe({"name": recipe}).clip_high
    assert read_back(made).tis_cap == pytest.approx(1 + clip)
    assert TRUNCATES[trainer] in made.files[0].text
    assert f"{1 + clip:g} at most" in (note_of(made, "ratio_reference") or "")


@pytest.mark.parametrize(
    "recipe", ["magistral", "deepseek-grpo", "qwen-dapo", {"name": "gspo", "ratio_reference": "sampler"}]
)
def test_verl_takes_the_ratio_against_the_sampler_itself(recipe: str | dict[str, Any]) -> None:
    made = exported("verl", recipe)
    setup = read_back(made)
    assert (setup.ratio_reference, setup.tis_cap) == ("sampler", None)
    assert "algorithm.rollout_correction.bypass_mode=True" in made.files[0].text
    assert note_of(made, "ratio_reference") is note_of(made, "tis_cap") is None


def test_cispo_anchored_to_the_sampler_stays_truncated_importance_sampling_in_verl() -> None:
    made = exported("verl", "cispo")
    assert read_back(made).tis_cap == 5
    assert "bypass_mode" not in made.files[0].text


@pytest.mark.parametrize("loss", ["gspo", "reinforce"])
@pytest.mark.parametrize("trainer", ["trl", "nemo-rl", "skyrl"])
def test_a_loss_that_token_weights_cannot_correct_is_not_called_corrected(trainer: str, loss: str) -> None:
    made = exported(trainer, {"name": loss, "ratio_reference": "sampler"})
    assert read_back(made).tis_cap is None
    assert TRUNCATES[trainer] not in made.files[0].text
    assert any(word in (note_of(made, "ratio_reference") or "") for word in ("nothing corrects", "no ratio"))


@pytest.mark.parametrize("trainer", ["trl", "verl", "openrlhf", "nemo-rl", "skyrl"])
def test_a_deviation_over_the_batch_is_noted(trainer: str) -> None:
    assert note_of(exported(trainer, {"name": "grpo", "advantage": "batch_std"}), "advantage") is not None
    assert note_of(exported(trainer, "grpo"), "advantage") is None


@pytest.mark.parametrize("trainer", ["verl", "openrlhf", "skyrl"])
@pytest.mark.parametrize("scaling", ["sqrt", "linear", "constant"])
def test_a_critics_learning_rate_is_scaled_as_in_the_engine(trainer: str, scaling: str) -> None:
    recipe = {"name": "ppo", "critic_learning_rate": 1e-5, "lr_scaling": scaling, "warmup_steps": 0}
    made = make_recipe(recipe)
    wanted = 1e-5 * learning_rate(made, batch_size=4096, step=0) / made.learning_rate
    assert wanted == pytest.approx({"sqrt": 2e-5, "linear": 4e-5, "constant": 1e-5}[scaling])
    assert critic_rate(trainer, recipe) == pytest.approx(wanted)


@pytest.mark.parametrize("trainer", ["verl", "openrlhf", "skyrl"])
def test_a_critic_without_a_learning_rate_has_ten_times_the_policys(trainer: str) -> None:
    assert critic_rate(trainer, "ppo") == pytest.approx(10 * 2e-6)


def critic_rate(trainer: str, recipe: str | dict[str, Any]) -> float:
    """The number behind the key; SkyRL's is not read back."""
    key = {"verl": "critic.optim.lr=", "openrlhf": "--critic.adam.lr ", "skyrl": "critic.optimizer_config.lr="}[trainer]
    (line,) = [line for line in exported(trainer, recipe).files[0].text.splitlines() if key in line]
    return float(line.partition(key)[2].strip(" '\\"))


@pytest.mark.parametrize("trainer", TRAINERS)
@pytest.mark.parametrize("updates", [1, 4])
def test_warm_up_lasts_as_many_batches_as_in_the_engine(trainer: str, updates: int) -> None:
    made = exported(trainer, {"name": "grpo", "warmup_steps": 10, "updates_per_batch": updates})
    assert read_back(made).warmup_steps == 10
    key = {"trl": "warmup_steps=", "skyrl": "num_warmup_steps=", "verl": "lr_warmup_steps="}.get(trainer)
    if key is not None:
        counted = 10 if trainer == "verl" else 10 * updates  # veRL's schedule goes on once a batch
        assert f"{key}{counted}" in made.files[0].text


def test_openrlhf_warms_up_over_a_share_of_its_optimiser_steps() -> None:
    text = exported("openrlhf", {"name": "grpo", "warmup_steps": 10, "updates_per_batch": 4}).files[0].text
    (line,) = [line for line in text.splitlines() if "--actor.lr_warmup_ratio " in line]
    assert math.ceil(100 * 4 * float(line.split()[1])) == 10 * 4


@pytest.mark.parametrize("trainer", TRAINERS)
@pytest.mark.parametrize(("warmup", "share"), [(50, "10%"), (5, "100%"), (4, None), (0, None)])
def test_a_run_that_is_all_warm_up_is_noted(trainer: str, warmup: int, share: str | None) -> None:
    made = export_plan(trainer=trainer, plan={"Bp": 32, "n": 8, "M": 5, "warmup_steps": warmup})
    messages = [note.message for note in made.notes if note.code == "warmup_steps"]
    assert len(messages) == (share is not None)
    if share is not None:
        assert f"{warmup} updates of warm-up in a run of 5" in messages[0] and f"at most {share} of" in messages[0]
    assert read_back(made).warmup_steps == warmup


def test_warm_up_is_compared_with_the_updates_that_openrlhf_makes() -> None:
    """Whole episodes come to 36 of 37 updates, all of them warm-up."""
    plan = {"Bp": 32, "n": 8, "M": 37, "problems": 18 * 32, "warmup_steps": 36}
    made = export_plan(trainer="openrlhf", plan=plan)
    notes = {note.code: note.message for note in made.notes}
    assert notes["update_steps"].startswith("36 of the plan's 37") and "in a run of 36" in notes["warmup_steps"]


def test_warm_up_in_a_config_is_read_in_batches() -> None:
    trl = "num_generations: 8\nper_device_train_batch_size: 64\nnum_iterations: 4\nwarmup_steps: 20\nmax_steps: 400\n"
    assert explain_text(trl, gpus=1).setup.warmup_steps == 5
    verl = "data.train_batch_size=64 actor_rollout_ref.actor.ppo_mini_batch_size=16 trainer.total_training_steps=100 "
    verl += "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio=0.1"
    assert explain_text(verl).setup.warmup_steps == 10


def test_a_token_weight_is_the_clips_where_the_clip_leaves_a_ratio_alone() -> None:
    """The claim of the note: d/dπ of min(wA, clip(w)A) against min(w, 1 + clip_high) A."""
    low, high = 0.2, 0.28
    for advantage in (-1.0, 1.0):
        for ratio in np.linspace(1 - low, 1 + high, 50)[1:-1]:
            step = 1e-6
            clipped = [
                min(r * advantage, float(np.clip(r, 1 - low, 1 + high)) * advantage)
                for r in (ratio * (1 - step), ratio * (1 + step))
            ]
            assert (clipped[1] - clipped[0]) / (2 * step) == pytest.approx(min(ratio, 1 + high) * advantage, rel=1e-6)
