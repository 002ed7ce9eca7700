"""OpenRLHF has no step count: M is batches per episode times episodes, over as many problems as possible."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isocompute.trainers import TrainerSetup, explain_text, export_plan
from isocompute.trainers.config_files import parse_config as parse

BARE = {"Bp": 32, "n": 8}


def exported(updates: int, problems: int | None, **over: Any) -> tuple[dict[str, Any], TrainerSetup, dict[str, str]]:
    """The settings, what they amount to, and the notes."""
    made = export_plan(trainer="openrlhf", plan=BARE | {"M": updates, "problems": problems} | over)
    (file,) = made.files
    setup = explain_text(file.text, problems=problems).setup
    return parse(file.text).settings, setup, {note.code: note.message for note in made.notes}


@pytest.mark.parametrize(
    ("updates", "problems", "episodes", "samples"),
    [
        (101, 1000, 4, 800),
        (100, 1000, 4, 800),
        (32, 1000, 1, 992),
        (20, 1000, 1, 640),
        (31, 992, 1, 992),
        (62, 992, 2, 992),
        (244, 6000, 2, 3904),
        (977, 6000, 6, 162 * 32),
        (38, 18 * 32, 2, 18 * 32),
        (101, 32, 101, 32),
        (1, 32, 1, 32),
    ],
)
def test_episodes_over_as_many_problems_as_the_updates_allow(
    updates: int, problems: int, episodes: int, samples: int
) -> None:
    settings, setup, _ = exported(updates, problems)
    assert (settings["train.num_episodes"], settings["data.max_samples"]) == (episodes, samples)
    assert setup.update_steps == episodes * samples // 32


@given(updates=st.integers(1, 5000), problems=st.integers(32, 100_000))
def test_a_run_is_at_most_the_plan_and_little_less(updates: int, problems: int) -> None:
    settings, setup, notes = exported(updates, problems)
    whole = problems // 32
    assert setup.update_steps is not None and setup.update_steps <= updates
    assert updates - setup.update_steps <= 2 + 0.06 * updates
    assert settings["data.max_samples"] % 32 == 0 and settings["data.max_samples"] <= problems
    assert settings["data.max_samples"] / 32 >= min(updates, 0.3 * whole)
    assert ("update_steps" in notes) == ("compute" in notes) == (setup.update_steps < updates)
    assert ("problems" in notes) == (settings["data.max_samples"] < problems)


def test_what_is_left_out_is_noted_in_the_file_and_its_first_line() -> None:
    _, _, notes = exported(101, 1000)
    assert notes["update_steps"].startswith("100 of the plan's 101 updates: 4 episode(s) of 25.")
    assert notes["compute"].startswith("25,600 of 25,856 rollouts")
    assert notes["problems"].startswith("800 of the 1,000 problems are used")
    text = export_plan(trainer="openrlhf", plan=BARE | {"M": 101, "problems": 1000}).files[0].text
    assert "32 problems × 8 rollouts × 100 updates = 25,600 rollouts" in text.splitlines()[1]


@pytest.mark.parametrize("updates_per_batch", [1, 3])
def test_warm_up_is_a_share_of_the_updates_that_are_made(updates_per_batch: int) -> None:
    recipe = {"name": "grpo", "warmup_steps": 10, "updates_per_batch": updates_per_batch}
    settings, setup, _ = exported(101, 1000, recipe=recipe)
    assert setup.warmup_steps == 10
    steps = settings["data.max_samples"] * 8 // settings["train.batch_size"] * settings["train.num_episodes"]
    ratio = settings["actor.lr_warmup_ratio"]
    assert math.ceil(steps * settings["train.max_epochs"] * ratio) == 10 * updates_per_batch
