"""`plan --next`: the cells that are proposed, and the study that runs them."""

from __future__ import annotations

import tomllib
from datetime import date
from pathlib import Path

import numpy as np
import pytest

import isocompute
from isocompute import InputError
from isocompute.cli.plan import study_of
from isocompute.cli.plan_display import show_next
from isocompute.core.allocation import Allocation
from isocompute.core.recipe import learning_rate, make_recipe
from isocompute.data import load
from isocompute.planner.law import Curves
from isocompute.planner.next_runs import Proposal, kept_study, next_cells, next_recipe, next_study
from tests.conftest import rising, write_points
from tests.planner.made_up import write_timed


def test_studies_keep_what_made_the_runs() -> None:
    before = {
        "engine": "sim",
        "seeds": [0, 3],
        "problems": [{"set": "a", "mixture": {"easy": 0.5, "hard": 0.5}}, {"set": "b"}],
        "recipe": {"name": "grpo", "grad_clip": None},
        "evaluation": {"k": [4, 8]},
    }
    cells = [Proposal(Allocation(32, n, 100), 0.01, 0.1) for n in (8, 16)]
    plan = isocompute.plan(budget="2e6", law="isocompute/joint-easy", replicates=60)
    spec = tomllib.loads(next_study(plan, cells, before=before, seed=3, why='say "why"\ntwice'))
    assert spec["engine"] == "sim" and spec["seeds"] == [4]
    assert spec["problems"] == before["problems"] and spec["evaluation"] == before["evaluation"]
    assert spec["recipe"] == {"name": "grpo"}
    assert spec["grid"] == {"problems_per_batch": [32], "rollouts_per_problem": [8, 16]}


def test_proposals_of_a_plan() -> None:
    plan = isocompute.plan(budget="2e6", law="isocompute/bp32-easy", replicates=200)
    assert isinstance(plan.law.model, Curves)
    proposals = next_cells(plan, 3)
    assert proposals and all(p.gain > 0 and p.allocation.compute <= 2e6 for p in proposals)
    assert plan.regime.regime == "noise"


@pytest.mark.parametrize(
    ("law", "several"),
    [("scalerl/8b", False), ("scalerl/code", False), ("scalerl/generations", True), ("isocompute/joint-easy", True)],
)
def test_next_is_named_only_where_a_law_has_several_settings(law: str, several: bool) -> None:
    plan = isocompute.plan(budget="2e6", law=law, replicates=60)
    (text,) = [w.message for w in plan.warnings if w.code == "foreign_law"]
    assert ("--next 4" in text) == several
    assert ("run other n or Bp" in text) != several


VARIANTS = """
engine = "sim"
seeds = [0]
[[problems]]
set = "easy"
size = 200
since = 2026-01-02
[[problems]]
set = "hard"
size = 100
[recipe]
name = "isocompute-easy"
learning_rate = 1e-5
[variants.fast]
recipe = {learning_rate = 0.02}
problems = {noise = inf}
[grid]
problems_per_batch = [32]
rollouts_per_problem = [8, 16]
[budget]
rollouts = 51200
"""


def write_study(folder: Path, text: str = VARIANTS) -> Path:
    """A study whose variant `fast` reaches higher than its own recipe."""
    for variant, rate, ceiling in (("whole", 1e-5, 0.5), ("fast", 0.02, 0.6)):
        for name in ("easy", "hard"):
            for n in (8, 16):
                recipe = make_recipe({"name": "isocompute-easy", "learning_rate": rate}).model_dump()
                write_points(
                    folder / variant / name / f"32x{n}-s0",
                    rising(ceiling=ceiling + n / 1000),
                    problems_per_batch=32,
                    rollouts_per_problem=n,
                    problems=name,
                    seed=0,
                    recipe=recipe,
                )
    (folder / "study.toml").write_text(text)
    return folder


def test_a_study_goes_on_with_the_variant_and_the_sets_of_the_plan(tmp_path: Path) -> None:
    source = write_study(tmp_path / "runs")
    runs = load(source, where={"problems": "easy"})
    plan = isocompute.plan(budget=8e4, law=runs, replicates=60)
    before = study_of(str(source))
    assert before is not None
    proposals = [Proposal(Allocation(32, 8, 100), 0.01, 0.1)]
    spec = tomllib.loads(next_study(plan, proposals, before=before, seed=0, why="why"))
    assert spec["recipe"] == {"name": "isocompute-easy", "learning_rate": 0.02}
    (table,) = spec["problems"]
    assert (table["set"], table["size"], table["since"], table["noise"]) == ("easy", 200, date(2026, 1, 2), np.inf)
    anchored = isocompute.plan(budget=8e4, law=runs, replicates=60, lr_reference="3e-6@256")
    given = kept_study(anchored, before)
    assert given["recipe"] == {
        "name": "isocompute-easy", "learning_rate": 3e-6, "lr_reference_batch": 256, "lr_scaling": "sqrt"
    }  # fmt: skip


def test_a_law_without_a_study_goes_on_with_its_rate_and_a_new_seed(tmp_path: Path) -> None:
    """The rate is written even if it is the default, since its batch size is not."""
    rows = ["run,step,problems_per_batch,rollouts_per_problem,seed,learning_rate,avg@4"]
    for n, rate in ((8, 1e-6), (32, 2e-6)):
        for seed in (0, 1):
            points = rising(ceiling=0.5 + n / 1000 + seed / 500)
            rows += [f"n{n}-s{seed},{80 * p['step'] // n},32,{n},{seed},{rate},{p['avg@4']}" for p in points]
    (tmp_path / "sweep.csv").write_text("\n".join(rows) + "\n")
    plan = isocompute.plan(budget=8e4, law=tmp_path / "sweep.csv", replicates=60)
    proposals = [Proposal(Allocation(32, 8, 100), 0.01, 0.1)]
    text = next_study(plan, proposals, before=None, seed=0, why="why")
    spec = tomllib.loads(text)
    assert spec["seeds"] == [2]
    assert (spec["recipe"]["learning_rate"], spec["recipe"]["lr_reference_batch"]) == (1e-6, 256)
    assert "\nlearning_rate = 1e-06\n" in text, "names without quotes"


def test_nothing_to_run_next_is_said_with_the_file_that_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    show_next([], "next.toml", asked=2)
    text = capsys.readouterr().out
    assert "No run of the law's settings" in text
    assert "next.toml is not written" in text


def test_variants_that_are_one_rate_for_each_batch_go_on_as_one_recipe(tmp_path: Path) -> None:
    """A variant for every n, its rate by hand: that of one of them would be wrong for the others."""
    rates, variants = {8: 1e-5, 32: 2e-5}, ""
    for n, rate in rates.items():
        variants += f"[variants.n{n}]\nrecipe = {{learning_rate = {rate}, lr_scaling = 'constant'}}\n"
        recipe = make_recipe({"name": "isocompute-easy", "learning_rate": rate, "lr_scaling": "constant"}).model_dump()
        for seed in (0, 1):
            points = rising(ceiling=0.5 + n / 1000 + seed / 500)
            cell = {"problems_per_batch": 32, "rollouts_per_problem": n, "seed": seed, "problems": "easy"}
            write_points(tmp_path / f"n{n}" / "easy" / f"32x{n}-s{seed}", points, recipe=recipe, **cell)
    own = VARIANTS[VARIANTS.index("[variants") : VARIANTS.index("[grid]")]
    (tmp_path / "study.toml").write_text(VARIANTS.replace(own, variants))
    study = study_of(str(tmp_path))
    assert study is not None
    before = kept_study(isocompute.plan(budget=8e4, law=tmp_path, replicates=60), study)
    found = make_recipe(before["recipe"])
    for n, rate in rates.items():
        assert learning_rate(found, batch_size=32 * n, step=found.warmup_steps) == pytest.approx(rate)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('engine = "sim"', "", "engine: field required"),
        ("seeds = [0]", "seeds = 3", "seeds: input should be a valid list"),
        ("seeds = [0]", 'seeds = ["a"]', "should be a whole number"),
        ('[recipe]\nname = "isocompute-easy"\nlearning_rate = 1e-5', "[recipe.x", "not TOML"),
    ],
)
def test_a_damaged_study_is_refused(tmp_path: Path, old: str, new: str, says: str) -> None:
    (tmp_path / "study.toml").write_text(VARIANTS.replace(old, new))
    with pytest.raises(InputError, match=f"study.toml: .*{says}"):
        study_of(str(tmp_path))


def test_a_published_laws_recipe_and_the_anchor_go_into_the_study() -> None:
    plan = isocompute.plan(budget="5000h", law="scalerl/generations", replicates=100)
    assert next_recipe(plan) == plan.law.recipe
    given = isocompute.plan(budget="2e6", law="isocompute/bp32-easy", replicates=100, lr_reference="3e-6@256")
    assert make_recipe(next_recipe(given)).learning_rate == 3e-6
    assert make_recipe(next_recipe(given)).lr_reference_batch == 256


def test_hours_propose_as_many_cells_as_rollouts_do(tmp_path: Path) -> None:
    """In hours a setting with larger batches gets further; a study's cells go as far as all of them can."""
    write_timed(tmp_path, {8: 2.0, 32: 6.0, 128: 16.0, 512: 20.0})
    plan = isocompute.plan(budget="200h", law="isocompute/bp32-easy", timed_runs=tmp_path)
    cells = [p.allocation for p in next_cells(plan, 4)]
    assert len(cells) >= 3
    assert max(c.compute for c in cells) - min(c.compute for c in cells) <= max(c.batch_size for c in cells)
    for cell in cells:
        assert (plan.prices.cost(cell)["gpu_hours"] or 0.0) <= 200.0


def test_fewer_cells_than_asked_for_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    cells = [Proposal(Allocation(32, n, 100), 0.01, 0.1) for n in (8, 16)]
    show_next(cells, "next.toml", asked=4)
    assert "2 of 4: no other n of this Bp" in capsys.readouterr().out
    show_next(cells, "next.toml", asked=2)
    assert "2 of" not in capsys.readouterr().out
