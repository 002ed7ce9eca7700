"""Plans that a trainer cannot train on: fewer problems than a batch, one rollout that is compared with itself."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from isocompute.core.errors import InputError
from isocompute.trainers import export_plan

PLAN = {"Bp": 32, "n": 8, "M": 100}


@pytest.mark.parametrize("trainer", ["verl", "trl", "openrlhf", "nemo-rl", "skyrl"])
def test_fewer_problems_than_a_batch_are_refused(trainer: str) -> None:
    """A batch comes from one pass over the data, and most leave an incomplete one out."""
    with pytest.raises(InputError) as refused:
        export_plan(trainer=trainer, plan=PLAN | {"problems": 31})
    text = str(refused.value)
    assert "problems = 31" in text and "Bp = 32" in text and "Bp of 31 or less" in text and "\n" not in text
    assert export_plan(trainer=trainer, plan=PLAN | {"problems": 32}).files


def test_prime_rl_fills_a_batch_from_several_passes() -> None:
    assert export_plan(trainer="prime-rl", plan=PLAN | {"problems": 31}).files


@pytest.mark.parametrize(
    ("change", "message"), [({"problems": 16}, "problems = 16"), ({"Bp": True}, "problems_per_batch = true")]
)
def test_a_refusal_is_one_line_and_code_2(change: dict[str, int], message: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "isocompute", "export", "openrlhf", "-"],
        input=json.dumps(PLAN | change),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ") and message in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize(("trainer", "advantage"), [("prime-rl", "none"), ("prime-rl", "gae"), ("nemo-rl", "gae")])
def test_one_rollout_is_not_compared_with_itself(trainer: str, advantage: str) -> None:
    """If the group's mean replaces the recipe's advantage, n = 1 would train on zeros."""
    plan = PLAN | {"n": 1, "recipe": {"name": "isocompute-hard", "advantage": advantage}}
    with pytest.raises(InputError, match=r"n = 1: .*take 2 or more"):
        export_plan(trainer=trainer, plan=plan)
    assert export_plan(trainer=trainer, plan=plan | {"n": 2}).files


@pytest.mark.parametrize("trainer", ["verl", "openrlhf", "skyrl"])
@pytest.mark.parametrize("advantage", ["none", "gae"])
def test_one_rollout_is_enough_without_a_group(trainer: str, advantage: str) -> None:
    plan = PLAN | {"n": 1, "recipe": {"name": "isocompute-hard", "advantage": advantage}}
    assert export_plan(trainer=trainer, plan=plan).files
