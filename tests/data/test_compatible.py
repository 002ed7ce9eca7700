"""Which runs may share a law."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from isocompute.data import Run, RunSet, RunSettings, RunWarning
from isocompute.data.compatible import conditions_of, ingredients, warn_of_several


def runs(*settings: dict[str, Any], names: list[str] | None = None) -> RunSet:
    points = pl.DataFrame({"step": [1], "avg@4": [0.5]})
    return RunSet(
        tuple(Run(names[i] if names else f"r{i}", RunSettings(**fields), points) for i, fields in enumerate(settings))
    )


def names(found: RunSet) -> list[str]:
    return [condition.name for condition in conditions_of(found)]


def test_allocation_and_seed_make_no_condition() -> None:
    found = runs(
        {"problems_per_batch": 32, "rollouts_per_problem": 8, "seed": 0, "gpus": 1, "update_steps": 10},
        {"problems_per_batch": 64, "rollouts_per_problem": 16, "seed": 1, "gpus": 8, "update_steps": 20},
    )
    assert names(found) == [""]


def test_sets_say_what_their_recipes_say_too() -> None:
    easy = {"problems": "easy", "recipe": {"kl_coef": 0.001}, "world": {"set": "easy", "seed": 3}}
    hard = {"problems": "hard", "recipe": {"kl_coef": 0.0}, "world": {"set": "hard", "seed": 4}}
    assert names(runs(easy, hard, easy)) == ["easy", "hard"]


def test_a_learning_rate_that_follows_the_batch_is_no_condition() -> None:
    def settings(n: int, rate: float) -> dict[str, Any]:
        return {"problems_per_batch": 32, "rollouts_per_problem": n, "recipe": {"learning_rate": rate}}

    assert names(runs(settings(8, 1e-6), settings(32, 2e-6))) == [""]
    assert names(runs(settings(8, 1e-6), settings(8, 2e-6), settings(32, 2e-6))) == [
        "learning_rate 1e-06",
        "learning_rate 2e-06",
    ]


def test_the_same_set_elsewhere_is_the_same_set() -> None:
    found = runs({"problems": "/root/data/gsm8k/train.parquet"}, {"problems": "/home/me/data/gsm8k/train.parquet"})
    assert names(found) == [""]
    assert names(runs({"problems": "/a/gsm8k/train.parquet"}, {"problems": "/a/math/train.parquet"})) == [
        "train.parquet (1)",
        "train.parquet (2)",
    ]


def test_rows_of_a_table_are_named_by_their_columns() -> None:
    found = runs({}, {}, {}, names=["set=easy,n=8", "set=easy,n=32", "set=hard,n=8"])
    assert names(found) == ["easy", "hard"]


def test_of_many_changes_only_the_unusual_are_named() -> None:
    common = {"loss": "clip", "kl_coef": 0.0, "clip_high": 0.2, "entropy_coef": 0.0}
    changed = [common, common | {"kl_coef": 0.1}, common | {"clip_high": 0.3}, common | {"entropy_coef": 0.2}]
    found = runs(*({"recipe": recipe} for recipe in changed))
    assert names(found) == ["as most runs", "kl_coef 0.1", "clip_high 0.3", "entropy_coef 0.2"]


@pytest.mark.parametrize("key", ["seed", "update_steps", "versions"])
def test_what_is_no_ingredient(key: str) -> None:
    fields: dict[str, Any] = {"seed": 1, "update_steps": 3, "versions": {"torch": "2"}, "model": "m"}
    assert key not in ingredients(runs(fields)[0])


def test_a_name_that_people_gave_is_no_table_row() -> None:
    fields = [{"rollouts_per_problem": n} for n in (4, 8)]
    assert names(runs(*fields, names=["grpo n=4", "grpo n=8"])) == [""]
    assert names(runs(*fields, names=["set=easy,n=4", "set=hard,n=8"])) == ["easy", "hard"]


def test_one_law_through_two_models_is_warned_of() -> None:
    warn_of_several(runs({"model": "a"}, {"model": "a"}))
    warn_of_several(runs({"recipe": {"kl_coef": 0.0}}, {"recipe": {"kl_coef": 0.1}}))
    with pytest.warns(RunWarning, match=r"2 conditions \('a', 'b'\), whose rewards do not compare"):
        warn_of_several(runs({"model": "a"}, {"model": "b"}))


def test_a_column_named_like_a_recipe_field_is_that_field() -> None:
    """A table's `lr` is in the recipe and in the names of its runs: one ingredient, and no other condition's."""
    found = runs(
        {"rollouts_per_problem": 8, "recipe": {"learning_rate": 1e-6}},
        {"rollouts_per_problem": 8, "recipe": {"learning_rate": 1e-7}},
        names=["n=8,lr=1e-06", "n=8,lr=1e-07"],
    )
    assert "lr" not in ingredients(found[0])
    assert names(found) == ["learning_rate 1e-06", "learning_rate 1e-07"]
    assert ingredients(runs({}, names=["n=8,lr=1e-06"])[0])["lr"] == "1e-06"
