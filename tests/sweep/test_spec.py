from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from isocompute.core.errors import InputError
from isocompute.sweep import cells, parse_spec
from isocompute.sweep.execute import load_engine
from isocompute.sweep.spec import check_cells

SPEC = """
engine = "sim"
seeds = [0, 1]
[grid]
problems_per_batch = [32, 64]
rollouts_per_problem = [8, 16]
max_batch = 512
[budget]
rollouts = 4e4
"""


def test_cells_are_the_grid_under_the_largest_batch_for_every_seed():
    made = cells(parse_spec(SPEC.encode()))
    assert [c.name for c in made] == ["32x8-s0", "32x8-s1", "32x16-s0", "32x16-s1", "64x8-s0", "64x8-s1"]
    assert [c.update_steps for c in made[::2]] == [156, 78, 78]
    assert all(c.compute <= 40_000 < c.compute + c.batch_size for c in made)


def test_a_budget_pays_for_the_rollouts_of_a_decoupled_baseline():
    text = SPEC + "[recipe]\nbaseline_rollouts = 32\n[variants.plain]\nrecipe = {baseline_rollouts = 'none'}\n"
    made = {c.name: c for c in cells(parse_spec(text.encode()))}
    assert made["whole/32x8-s0"].update_steps == made["whole/32x16-s0"].update_steps == 40_000 // (32 * 32)
    assert made["whole/32x8-s0"].compute == 32 * 32 * 39 and made["whole/32x8-s0"].batch_size == 32 * 8
    assert made["plain/32x8-s0"].update_steps == 156
    dear = cells(parse_spec(text.replace("= 32\n", "= 1024\n").encode()))  # a study that is there can be read
    with pytest.raises(InputError, match=r"budget.rollouts = 40000 is under one batch of 64 × 1024 = 65536"):
        check_cells(load_engine("sim"), dear, budget=40_000)


def test_every_named_set_has_a_folder():
    text = SPEC + '[[problems]]\nset = "easy"\nlow = 0.3\n[[problems]]\nset = "hard"\n'
    made = cells(parse_spec(text.encode()))
    assert {c.name.split("/")[0] for c in made} == {"easy", "hard"}
    assert made[0].problems == {"set": "easy", "low": 0.3}
    assert cells(parse_spec((SPEC + '[problems]\nset = "easy"').encode()))[0].name == "easy/32x8-s0"


def test_defaults_and_free_tables_reach_the_cell():
    cell = cells(parse_spec((SPEC + "[evaluation]\nk = [4, 8]\nextra = 1\n[recipe]\nkl_coef = 0.1").encode()))[0]
    assert cell.evaluation == {"points": 40, "samples": 16, "k": [4, 8], "extra": 1}
    assert cell.recipe == {"kl_coef": 0.1}
    assert cell.engine == {}


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('"sim"', '"simm"', "engine: 'simm' is not one of sim, lm, command"),
        ('engine = "sim"', "", "engine: field required"),
        ("[8, 16]", "[8, 0]", "grid.rollouts_per_problem.1: input should be greater than or equal to 1"),
        ("[8, 16]", "[8, true]", "grid.rollouts_per_problem.1: should be a whole number"),
        ("[8, 16]", '["8"]', "grid.rollouts_per_problem.0: should be a whole number"),
        ("[8, 16]", "[8, 8]", "grid.rollouts_per_problem: 8 comes twice"),
        ("[8, 16]", "[]", "grid.rollouts_per_problem: list should have at least 1 item"),
        ("[8, 16]", "8", "grid.rollouts_per_problem: input should be a valid list"),
        ("max_batch", "largest", "grid.largest: there is no such field; there are problems_per_batch"),
        ("seeds", "seed", "seed: there is no such field; there are engine, problems"),
        ("[0, 1]", "[-1]", "seeds.0: input should be greater than or equal to 0"),
        ("4e4", "0", "budget.rollouts: input should be greater than or equal to 1"),
        ("[budget]", "[resources]\ncpus = inf\n[budget]", "resources.cpus: input should be a finite number"),
        ("4e4", "1.5", "budget.rollouts: input should be a valid integer"),
        ("4e4", "300", "grid: budget = 300 is under one batch of 32 × 16"),
        ("512", "100", "grid: max_batch = 100 leaves no cell"),
        ("[budget]", "[budget", "not TOML"),
        ("4e4", "4e4\n[evaluation]\nsamples = 2", "evaluation: k = 4 needs at least as many samples"),
        ("4e4", "4e4\n[[problems]]\n[[problems]]", "problems: table 1 has no set"),
        ("4e4", "4e4\n[problems]\nset = '../x'", "problems: set = '../x' names a folder"),
        *(
            ("4e4", f"4e4\n[problems]\nset = '{name}'", f"problems: set = '{name}' names a folder; use letters")
            for name in ("runner.json", "identity.json", "study.toml", "Study.toml")
        ),
        ("4e4", "1000000000000000000000", "budget.rollouts: input should be less than or equal to 9007199254740992"),
        ("4e4", "1e17", "budget.rollouts: input should be less than or equal to 9007199254740992"),
        ("4e4", "4e4\n[evaluation]\nsamples = 1e17", "evaluation.samples: input should be less than or equal to 9"),
        ("4e4", "4e4\n[[problems]]\nset = 'a'\n[[problems]]\nset = 'a'", "problems: set = 'a' comes twice"),
        ("4e4", "4e4\n[resources]\ngpus = -1", "resources.gpus: input should be greater than or equal to 0"),
    ],
)
def test_a_wrong_spec_names_the_file_and_the_field(old: str, new: str, says: str):
    with pytest.raises(InputError, match=re.escape(f"my.toml: {says}")) as caught:
        parse_spec(SPEC.replace(old, new, 1).encode(), name="my.toml")
    assert "\n" not in str(caught.value)


def test_bytes_that_are_no_text():
    with pytest.raises(InputError, match="not UTF-8"):
        parse_spec(b"\xff\xfe")


def test_an_engine_that_cannot_be_loaded():
    for name, error in (
        ("tests.sweep.nothing:Engine", "ModuleNotFoundError: No module named 'tests.sweep.nothing'"),
        ("tests.sweep.fake:Nothing", "AttributeError: module 'tests.sweep.fake' has no attribute 'Nothing'"),
        ("json:loads", "TypeError: loads() missing 1 required positional argument: 's'"),
    ):
        with pytest.raises(InputError, match=re.escape(f"engine '{name}' cannot be loaded: {error}.")):
            load_engine(name)


class Refusing:
    """An engine that says itself what it needs."""

    def __init__(self) -> None:
        raise InputError("set TRAINER_HOME first.")


def test_an_engine_of_ones_own_may_say_itself_what_it_needs():
    with pytest.raises(InputError, match=r"^set TRAINER_HOME first\.$"):
        load_engine(f"{__name__}:Refusing")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x = (\n", "cannot be loaded: SyntaxError: '(' was never closed ({name}.py, line 1)."),
        ("import sys\nsys.exit(3)\n", "cannot be loaded: SystemExit: 3 ({path}, line 2)."),
        ("import not_there\n", "cannot be loaded: ModuleNotFoundError: No module named 'not_there' ({path}, line 1)."),
        (
            "class Engine:\n    def __init__(self):\n        {}['a']\n",
            "cannot be loaded: KeyError: 'a' ({path}, line 3).",
        ),
        ("class Engine:\n    check = 1\n", "has no method check and no run; an engine is a class with check and run"),
        (
            "class Engine:\n    def check(self, cell): ...\n",
            "has no method run; an engine is a class with check and run",
        ),
    ],
)
def test_an_engine_of_ones_own_that_is_wrong_is_told_of_with_its_place(
    text: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    name = f"{tmp_path.name}_engine".replace("-", "_")
    path = tmp_path / f"{name}.py"
    path.write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    says = says.replace("{name}", name).replace("{path}", str(path))
    with pytest.raises(InputError, match=re.escape(f"engine '{name}:Engine' {says}")):
        load_engine(f"{name}:Engine")


# Variants


VARIED = b"""
engine = "sim"
recipe = {name = "grpo", kl_coef = 0.01}
grid = {problems_per_batch = [8], rollouts_per_problem = [4]}
budget = {rollouts = 320}
seeds = [0, 1]
[variants.no-kl]
recipe = {kl_coef = 0.0}
[variants.wide]
rollouts_per_problem = 8
problems = {size = 50}
"""


def test_variants_are_the_same_study_with_another_recipe():
    made = {cell.name: cell for cell in cells(parse_spec(VARIED))}
    assert list(made) == [f"{v}-s{s}" for v in ("whole/8x4", "no-kl/8x4", "wide/8x8") for s in (0, 1)]
    assert made["whole/8x4-s0"].recipe["kl_coef"] == 0.01 and made["no-kl/8x4-s0"].recipe["kl_coef"] == 0.0
    assert made["no-kl/8x4-s0"].recipe["name"] == "grpo"
    wide = made["wide/8x8-s1"]
    assert (wide.compute, wide.problems) == (320, {"size": 50})


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('[variants.whole]\nrecipe = {loss = "clip"}', "names a folder"),
        (
            '[variants."identity.json"]\nrecipe = {}',
            "'identity.json' names a folder; .* identity.json, runner.json, whole",
        ),
        ('[variants."../x"]\nrecipe = {}', "names a folder"),
        ("[variants.a]\nreceipe = {}", "there is no such field; there are recipe, problems"),
    ],
)
def test_wrong_variants_are_named(line: str, says: str):
    text = VARIED.decode().partition("[variants")[0] + line
    with pytest.raises(InputError, match=says):
        parse_spec(text.encode())
