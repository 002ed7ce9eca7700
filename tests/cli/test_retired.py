"""Options and fields of version 0.1 that are gone: one line says why, or what they are called now."""

from __future__ import annotations

from pathlib import Path

import pytest

from isocompute.cli.options import RETIRED
from isocompute.core.errors import InputError
from isocompute.core.recipe import make_recipe
from tests.commands import Call, fails

PLAN = ("plan", "--budget", "2e6", "--law", "isocompute/bp32-easy")


@pytest.mark.parametrize("option", RETIRED["plan"])
@pytest.mark.parametrize("form", ["{}", "{}=x"])
def test_a_retired_option_says_why(call: Call, option: str, form: str) -> None:
    fails(call(*PLAN, form.format(option)), rf"plan {option}: it (is now called|was removed)")


def test_the_simulated_law_says_why_it_is_gone(call: Call) -> None:
    fails(call("plan", "--budget", "2e6", "--law", "simulate"), r"it is gone: .* rank correlation of -\.76")


def test_a_schedule_of_n_is_refused_and_a_stored_null_is_read() -> None:
    with pytest.raises(InputError, match=r"schedule is gone: .* tied with the best fixed n"):
        make_recipe({"name": "grpo", "schedule": [[1000, 16]]})
    assert make_recipe({"name": "grpo", "schedule": None}) == make_recipe({"name": "grpo"})


def test_options_that_only_changed_speed_are_ignored(call: Call, tmp_path: Path) -> None:
    """Stored specs have `fast` and `together`; `overlap` changed results and is refused."""
    small = ("--set", "evaluation.points=2", "--set", "problems.validation=4", "--set", "engine_options.device=cpu")
    given = ("train", "--update-steps", "1", "--out", tmp_path / "run", *small)
    fails(call(*given, "--set", "engine_options.overlap=3"), "overlap: updates no longer run beside decoding")
    stored = ("--set", "engine_options.fast=true", "--set", "engine_options.together=false")
    assert call(*given, *stored).code == 0
