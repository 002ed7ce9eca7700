"""Fields of version 0.1: read from stored runs, refused with the new name in a user's spec."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from isocompute.core.errors import InputError
from isocompute.core.recipe import RENAMED, make_recipe
from isocompute.core.recorder import RunSettings
from isocompute.trainers.plan_input import read_plan
from tests.commands import Call, fails

OLD = {"ratio_anchor": "sampler", "lr_batch": 768, "gae_trace": 0.9}


@pytest.mark.parametrize("old", OLD)
def test_an_old_field_names_its_successor(old: str) -> None:
    with pytest.raises(InputError, match=f"{old} is now called {RENAMED[old]}"):
        make_recipe({"name": "grpo", old: OLD[old]})


def test_a_stored_run_is_read_with_todays_names() -> None:
    settings = RunSettings.model_validate_json(json.dumps({"recipe": {**OLD, "loss": "cispo"}}))
    assert settings.recipe == {
        "ratio_reference": "sampler",
        "lr_reference_batch": 768,
        "gae_lambda": 0.9,
        "loss": "cispo",
    }


def test_a_stored_plan_is_read_with_todays_names(tmp_path: Path) -> None:
    allocation = {"problems_per_batch": 32, "rollouts_per_problem": 8, "update_steps": 100}
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({**allocation, "recipe": {"ratio_anchor": "sampler", "lr_batch": 512, "tis_cap": None}}))
    recipe = read_plan(str(path)).recipe
    assert (recipe.ratio_reference, recipe.lr_reference_batch) == ("sampler", 512)


def test_a_renamed_option_names_its_successor(call: Call) -> None:
    arguments = ("plan", "--budget", "2e6", "--law", "isocompute/bp32-easy", "--lr-anchor", "1e-6@1024")
    fails(call(*arguments), "it is now called --lr-reference")
