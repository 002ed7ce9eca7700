"""Plans as data."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

import isocompute
from isocompute.core.errors import InputError
from isocompute.planner.decide import plan_to_json
from isocompute.trainers import export_plan, make_plan, read_plan

BARE = {"Bp": 32, "n": 8, "M": 100}


def test_three_numbers_are_a_plan() -> None:
    plan = make_plan(BARE)
    assert (plan.batch_size, plan.compute) == (256, 25_600)
    assert plan.learning_rate == pytest.approx(1e-6 * (256 / 1024) ** 0.5)
    assert plan.recipe.temperature == 0.6 and plan.recipe.kl_coef == 0
    assert "learning_rate" in plan.assumed


def test_a_plan_of_the_planner() -> None:
    """The keys of `isocompute plan --json`; those that are not needed are passed over."""
    table = {
        "problems_per_batch": 32,
        "rollouts_per_problem": 256,
        "update_steps": 244,
        "batch_size": 8192,
        "compute": 1_998_848,
        "learning_rate": 2.83e-6,
        "warmup_steps": 10,
        "kl_coef": 0.001,
        "entropy_coef": 0.001,
        "temperature": 0.6,
        "expected": {"metric": "avg@4", "value": 0.63, "interval": [0.61, 0.64]},
        "probability_best": 0.58,
        "alternatives": [],
        "warnings": [{"code": "x", "message": "y"}],
        "cost": {},
        "law": {"name": "isocompute/bp32-easy"},
    }
    plan = make_plan(table)
    assert plan.learning_rate == 2.83e-6
    assert (plan.recipe.kl_coef, plan.recipe.warmup_steps, plan.validation_samples) == (0.001, 10, 4)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"n": None}, "no rollouts_per_problem"),
        ({"Bp": 0}, "problems_per_batch = 0"),
        ({"M": "many"}, "update_steps = 'many'"),
        ({"n": 1}, "n = 1 leaves nothing to compare"),
        ({"compute": 5}, "compute = 5, but Bp, n and M give 25600"),
        ({"learning_rate": -1}, "learning_rate = -1"),
        ({"learning_rate": float("inf")}, "learning_rate"),
        ({"recipe": "grppo"}, "'grppo' is not one of"),
        ({"recipe": {"clip": 1}}, "recipe.clip"),
        ({"recipe": 3}, "recipe is a table"),
        ({"temperature": "hot"}, "recipe.temperature"),
        ({"Bp": True}, "problems_per_batch = true: a plan has no switches; give a number"),
        ({"M": False}, "update_steps = false"),
        ({"seed": True}, "seed = true"),
        ({"warmup_steps": True}, "warmup_steps = true"),
    ],
)
def test_what_is_wrong_is_refused(change: dict[str, Any], error: str) -> None:
    with pytest.raises(InputError) as refused:
        make_plan(BARE | change)
    assert error in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "it is empty"),
        ("{'Bp': 1}", "not JSON"),
        ("[1, 2]", "one object"),
        ("Bp = ", "not JSON or TOML"),
        ("{}", "no problems_per_batch"),
    ],
)
def test_files_that_are_no_plan(tmp_path: Path, text: str, error: str) -> None:
    path = tmp_path / "plan"
    path.write_text(text)
    with pytest.raises(InputError, match=error):
        read_plan(str(path))


def test_what_the_planner_returns_and_what_it_prints_are_exported_alike() -> None:
    planned = isocompute.plan(budget="2e6", law="isocompute/bp32-easy", replicates=50)
    printed = json.loads(json.dumps(plan_to_json(planned)))
    made = isocompute.export_plan(trainer="verl", plan=planned)
    assert made == export_plan(trainer="verl", plan=printed) == export_plan(trainer="verl", plan=make_plan(printed))
    plan = make_plan(planned)
    assert (plan.problems_per_batch, plan.rollouts_per_problem) == (32, 256)
    assert plan.learning_rate == planned.recipe.learning_rate and plan.validation_samples == 4
    assert plan.recipe == planned.recipe.recipe


def test_a_short_table_and_a_plan_that_was_read_are_exported_alike() -> None:
    plan = make_plan(BARE)
    assert make_plan(plan) is plan
    assert export_plan(trainer="trl", plan=BARE) == export_plan(trainer="trl", plan=plan)


@pytest.mark.parametrize("given", [None, 3, "plan.json", [32, 8, 100], isocompute])
def test_a_value_that_is_not_a_plan_is_refused_with_a_hint(given: Any) -> None:
    for use in (make_plan, lambda plan: export_plan(trainer="verl", plan=plan)):
        with pytest.raises(InputError) as refused:
            use(given)
        message = str(refused.value)
        assert type(given).__name__ in message and "isocompute.plan(…)" in message and "Bp, n and M" in message
        assert "\n" not in message


def test_toml_and_json(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('Bp = 32\nn = 8\nM = 100\n[recipe]\nname = "cispo"\n')
    (tmp_path / "a.json").write_text(json.dumps(BARE | {"recipe": {"name": "cispo"}}))
    assert read_plan(str(tmp_path / "a.toml")) == read_plan(str(tmp_path / "a.json"))
    with pytest.raises(InputError, match="cannot be read"):
        read_plan(str(tmp_path / "nowhere"))


@pytest.mark.parametrize("text", [json.dumps(BARE), "Bp = 32\nn = 8\nM = 100\n"])
def test_a_byte_order_mark_is_no_part_of_a_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    path = tmp_path / "plan"
    path.write_text(text, encoding="utf-8-sig")
    assert read_plan(str(path)) == make_plan(BARE)
    monkeypatch.setattr("sys.stdin", io.StringIO("\ufeff" + text))
    assert read_plan("-") == make_plan(BARE)


def test_a_mark_and_nothing_else_is_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / "plan").write_text("", encoding="utf-8-sig")
    with pytest.raises(InputError, match="it is empty"):
        read_plan(str(tmp_path / "plan"))
