from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from isocompute.ablate import with_variants
from isocompute.cli.main import app
from isocompute.errors import InputError
from isocompute.recipes import LEAVE_ONE_OUT, make_recipe
from isocompute.study import parse_spec

SPEC = """
engine = "sim"
problems = {set = "easy", size = 200}
recipe = {name = "grpo", learning_rate = 0.02}
grid = {problems_per_batch = [16], rollouts_per_problem = [8]}
budget = {rollouts = 40_000}
seeds = [0, 1]
evaluation = {points = 20}
[variants.slow]
recipe = {learning_rate = 0.0002}
"""


def test_a_spec_becomes_a_table(tmp_path: Path):
    (tmp_path / "spec.toml").write_text(SPEC)
    arguments = ["ablate", str(tmp_path / "spec.toml"), "--out", str(tmp_path / "out"), "--replicates", "50"]
    first = CliRunner().invoke(app, [*arguments, "--json"])
    assert first.exit_code == 0, first.output
    found = json.loads(first.stdout)
    assert (found["metric"], found["recipe"]["name"], found["recipe"]["seeds"]) == ("avg@4", "whole", 2)
    (slow,) = found["parts"]
    assert slow["reached"] < found["recipe"]["reached"]
    assert slow["comparison"]["ahead_now"] == "a"  # a hundredth of the learning rate is behind
    low, high = slow["predicted_interval"]
    assert low <= slow["predicted"] <= high
    again = CliRunner().invoke(app, arguments)  # nothing is run twice
    assert again.exit_code == 0 and "slow" in again.stdout and "predicted" in again.stdout


def test_parts_of_scalerl_are_left_out_by_themselves():
    text = SPEC.partition("[variants")[0].replace('"grpo"', '"scalerl"').replace('"sim"', '"lm"')
    spec = parse_spec(with_variants(text.encode(), name="spec.toml"))
    assert list(spec.variants) == list(LEAVE_ONE_OUT["scalerl"])
    whole = make_recipe(spec.recipe)
    for name, variant in spec.variants.items():
        without = make_recipe({**spec.recipe, **variant.recipe})
        assert without != whole, name
    assert make_recipe({**spec.recipe, **spec.variants["no-curriculum"].recipe}).no_positive_resampling is None


def test_a_recipe_without_a_list_of_parts_is_named():
    with pytest.raises(InputError, match=r"nothing to leave out: recipe 'grpo' has no list of parts \(scalerl has\)"):
        with_variants(SPEC.partition("[variants")[0].encode(), name="spec.toml")


@pytest.mark.parametrize(
    ("change", "options", "says"),
    [
        (('problems = {set = "easy", size = 200}', "[[problems]]"), [], "one [problems] table"),
        (("rollouts_per_problem = [8]", "rollouts_per_problem = [8, 16]"), [], "recipes are compared at one Bp and n"),
        (("points = 20", "points = 3"), [], "a fit needs 4"),
        (("", ""), ["--fit-share", "2"], "--fit-share 2"),
        (("", ""), ["--unit", "euros"], "--unit euros"),
        (("[variants.slow]", "[variants]"), [], "variants"),
    ],
)
def test_what_could_not_be_analysed_is_not_run(change: tuple[str, str], options: list[str], says: str, tmp_path: Path):
    text = SPEC.replace(*change)
    if change[1] == "[[problems]]":
        text = SPEC.replace(change[0], "")
        text += '[[problems]]\nset = "easy"\nsize = 50\n[[problems]]\nset = "hard"\nsize = 50\n'
    (tmp_path / "spec.toml").write_text(text)
    answer = CliRunner().invoke(app, ["ablate", str(tmp_path / "spec.toml"), "--out", str(tmp_path / "out"), *options])
    assert isinstance(answer.exception, InputError) and says in str(answer.exception)
    assert not (tmp_path / "out").exists()
