"""explain(export(plan)) == plan: every field comes back, or a note says why it cannot."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from isocompute.trainers import TRAINERS, RunPlan, TrainingHardware, explain_text, export_plan, make_plan
from tests.trainers.plans import IN_SCRIPT, cases, differences


@pytest.mark.parametrize("trainer", TRAINERS)
@settings(max_examples=30)
@given(case=cases())
def test_a_config_contains_the_plan(trainer: str, case: tuple[RunPlan, TrainingHardware]) -> None:
    plan, hardware = case
    made = export_plan(trainer=trainer, plan=plan, hardware=hardware)
    noted = {note.code for note in made.notes}
    never = {"problems_per_batch", "rollouts_per_problem", "update_steps", "learning_rate", "temperature"}
    if trainer == "openrlhf" and plan.problems is not None:
        never -= {"update_steps"}  # whole episodes over the problems: tests/trainers/test_openrlhf.py
    assert not noted & never
    for file in made.files:
        left_out = noted | (IN_SCRIPT if file.name.endswith(".py") else set())
        found = explain_text(file.text, source=file.name, problems=plan.problems)
        assert found.setup.trainer == trainer
        assert not differences(plan, found.setup, left_out), file.text
        assert found.setup.gpus == hardware.gpus
        assert found.setup.rollouts_per_update == plan.batch_size
        odd = {note.code for note in found.warnings}
        assert not odd & {"mini_batch", "shares", "generation_batch", "unresolved", "group", "loss", "cispo_cap"}
        if plan.recipe.updates_per_batch == 1 or "updates_per_batch" in noted:
            assert found.setup.on_policy
        for note in made.notes:
            assert f"note ({note.code})" in file.text


@pytest.mark.parametrize("trainer", TRAINERS)
def test_the_healthy_recipe_needs_few_notes(trainer: str) -> None:
    table = {"Bp": 32, "n": 16, "M": 100, "recipe": "isocompute-easy", "learning_rate": 7e-7}
    table |= {"max_prompt_length": 512, "max_response_length": 1024, "model": "m", "train_file": "t", "val_file": "v"}
    codes = {note.code for note in export_plan(trainer=trainer, plan=make_plan(table)).notes}
    allowed = {
        "verl": {"reward"},
        "trl": {"reward", "val_file"},
        "openrlhf": {"reward", "problems"},
        "nemo-rl": {"reward", "entropy_coef"},
        "skyrl": {"reward", "logger"},
        "prime-rl": {
            "reward",
            "gpus",
            "advantage",
            "loss",
            "ratio_reference",
            "tis_cap",
            "kl_coef",
            "entropy_coef",
            "compute",
        },
    }
    assert codes == allowed[trainer]
