"""A plan keeps the recipe of the runs behind its law, and reports the fields that these do not log."""

from __future__ import annotations

import json
import re
import shlex
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import isocompute
from isocompute import InputError
from isocompute.cli.quickstart import _plan
from isocompute.core.curve import Curve
from isocompute.core.recipe import make_recipe
from isocompute.data import RunWarning
from isocompute.law.law import fit_law
from isocompute.law.store import write_law
from isocompute.planner.decide import Plan, plan_to_json
from isocompute.planner.law import planning_law
from isocompute.planner.next_runs import next_cells
from isocompute.planner.published import published
from isocompute.planner.recipe import runs_recipe
from isocompute.planner.request import Budget, parse_budget
from tests.conftest import rising, write_points
from tests.planner.made_up import sweep_curves


def curves(*recipes: dict[str, Any] | None, ceiling: float = 0.6) -> list[Curve]:
    """Runs at Bp = 32 and n = 8, 16, … with these recipes."""
    rng = np.random.default_rng(0)
    compute_C = np.geomspace(2e3, 1e6, 20)
    out = []
    for i, recipe in enumerate(recipes):
        value_C = 0.3 + (ceiling - 0.3) / (1 + (2e4 * 1.5**i / compute_C) ** 1.2) + 0.003 * rng.standard_normal(20)
        text = "" if recipe is None else json.dumps({"recipe": recipe})
        out.append(Curve(f"r{i}", compute_C, value_C, 32, 8 * 2**i, seed=0, recipe=text))
    return out


def lines(plan: Plan) -> dict[str, dict[str, str]]:
    return {line["setting"]: line for line in plan_to_json(plan)["recipe_lines"]}


def codes(plan: Plan) -> set[str]:
    return {w.code for w in plan.warnings}


def test_runs_bring_their_recipe(tmp_path: Path) -> None:
    recipe = make_recipe(
        {"name": "grpo", "learning_rate": 3e-5, "lr_reference_batch": 256, "temperature": 0.9}
    ).model_dump()
    for n in (8, 16):
        write_points(
            tmp_path / "runs" / f"n{n}",
            rising(every=2560 * n // 8),
            problems_per_batch=32,
            rollouts_per_problem=n,
            recipe=recipe,
        )
    runs = isocompute.plan(budget=5e4, law=tmp_path / "runs", replicates=60)
    write_law(isocompute.fit(tmp_path / "runs", replicates=60), tmp_path / "law.json")
    stored = isocompute.plan(budget=5e4, law=tmp_path / "law.json")
    for plan in (runs, stored):
        assert plan.recipe.learning_rate == pytest.approx(3e-5 * (plan.allocation.batch_size / 256) ** 0.5)
        assert plan.recipe.recipe.temperature == 0.9 and plan.recipe.recipe.tis_cap is None
        assert lines(plan)["temperature, top_p"]["reason"] == "of your runs"
        assert lines(plan)["learning_rate"]["reason"].endswith("of your runs")
        assert "anchor_unknown" not in codes(plan)
        for other in plan_to_json(plan)["alternatives"]:
            assert other["temperature"] == 0.9
            assert other["learning_rate"] == pytest.approx(3e-5 * (other["batch_size"] / 256) ** 0.5)


def test_runs_that_do_not_say_their_recipe_get_the_papers_and_a_warning(tmp_path: Path) -> None:
    law = fit_law(curves(None, None), metric="avg@4", replicates=60)
    write_law(law, tmp_path / "law.json")
    data = json.loads((tmp_path / "law.json").read_text())
    for setting in data["settings"]:
        del setting["recipes"]  # as older files are
    (tmp_path / "old.json").write_text(json.dumps(data))
    for source in (law, tmp_path / "law.json", tmp_path / "old.json"):
        plan = isocompute.plan(budget=5e5, law=source)
        assert "anchor_unknown" in codes(plan)
        assert lines(plan)["temperature, top_p"]["reason"] == "the paper's; your runs do not say theirs"
        assert not any("behind the law" in line["reason"] for line in lines(plan).values())
    assert "anchor_unknown" not in codes(isocompute.plan(budget=5e5, law=law, lr_reference="2e-6@512"))
    paper = isocompute.plan(budget=2e6, law="isocompute/bp32-easy", replicates=60)
    assert "anchor_unknown" not in codes(paper)
    assert lines(paper)["temperature, top_p"]["reason"] == "of the runs behind the law"


@pytest.mark.parametrize(
    ("rates", "scaling"),
    [((1e-6, 1e-6), "constant"), ((1e-6, 2e-6), "linear"), ((1e-6, 1.41e-6), "sqrt"), ((1e-6, 7e-6), None)],
)
def test_logged_learning_rates_are_of_their_own_batch(rates: tuple[float, ...], scaling: str | None) -> None:
    found = runs_recipe(curves(*[{"learning_rate": rate} for rate in rates]))
    assert found.fields.get("lr_scaling") == scaling
    if scaling:
        assert (found.fields["learning_rate"], found.fields["lr_reference_batch"]) == (1e-6, 256)
    else:
        assert found.why_not("learning_rate") == "your runs differ in theirs"


@pytest.mark.parametrize(("scaling", "used"), [("sqrt", 2e-6), ("linear", 4e-6), ("constant", 1e-6)])
def test_a_rate_that_holds_at_another_batch_is_scaled_to_the_run_s_own(scaling: str, used: float) -> None:
    """One run says its rate at a quarter of its batch, the other at its own: the rates that were used decide."""
    scaled = {"learning_rate": 1e-6, "lr_reference_batch": 64, "lr_scaling": scaling}
    found = runs_recipe(curves(scaled, {"learning_rate": 1.5 * used, "lr_reference_batch": 512, "lr_scaling": scaling}))
    assert "learning_rate" not in found.fields
    found = runs_recipe(curves(scaled, {"learning_rate": used, "lr_reference_batch": 512, "lr_scaling": scaling}))
    assert found.fields["learning_rate"] == pytest.approx(used)
    assert (found.fields["lr_reference_batch"], found.fields["lr_scaling"]) == (256, "constant")


def test_only_what_all_runs_say_and_agree_on_is_theirs() -> None:
    first = {"name": "dapo", "temperature": 1.0, "kl_coef": "much", "our_own": 3}
    found = runs_recipe(curves(first, {**first, "temperature": 0.8}))
    assert found.fields["clip_high"] == 0.28
    assert not {"temperature", "kl_coef", "our_own", "learning_rate"} & set(found.fields)
    assert found.why_not("temperature") != found.why_not("kl_coef")
    assert not runs_recipe(curves(first, None)).fields
    assert not runs_recipe([Curve("a", np.empty(0), np.empty(0), 32, 8, recipe="any text")]).fields


@pytest.mark.parametrize(
    ("law", "difficulty", "expected"),
    [
        ("isocompute/bp32-easy", "hard", "--law isocompute/bp32-hard"),
        ("isocompute/joint-hard", "easy", "--law isocompute/joint-easy"),
        ("scalerl/8b", "hard", "none of scalerl's"),
        ("isocompute/bp32-easy", "easy", None),
    ],
)
def test_a_law_of_another_difficulty_is_said(law: str, difficulty: str, expected: str | None) -> None:
    budget = "5000h" if law.startswith("scalerl") else "2e6"
    plan = isocompute.plan(budget=budget, law=law, difficulty=difficulty, replicates=60)
    found = {w.code: w.message for w in plan.warnings}.get("difficulty_differs")
    assert (found is None) if expected is None else (found is not None and expected in found)


def test_pass_rates_can_contradict_the_law() -> None:
    plan = isocompute.plan(budget=2e6, law="isocompute/bp32-easy", pass_rates=[0.0, 0.01, 0.02], replicates=60)
    assert "difficulty_differs" in codes(plan)


def test_rates_stay_rates_and_points_stay_points() -> None:
    high = isocompute.plan(
        budget=1.5e6, law=fit_law(curves(None, None, ceiling=0.99), metric="val/avg@4", replicates=60)
    )
    assert high.values_AB.min() >= 0 and high.values_AB.max() <= 1
    percent = [Curve(c.name, c.compute_C, 100 * c.values_C, 32, c.rollouts_per_problem) for c in curves(None, None)]
    law = fit_law(percent, metric="avg@4", replicates=60)
    assert not planning_law(law).bounded
    assert isocompute.plan(budget=5e5, law=law).chosen.ranked.value > 10
    low = published("scalerl/8b", replicates=60)
    values_AB = low.values(np.array([48.0]), np.array([16.0]), np.array([1e9]))
    assert ((values_AB >= 0) & (values_AB <= 1)).all()


@pytest.mark.parametrize("law", ["isocompute/bp32-easy", "isocompute/joint-hard", "scalerl/generations"])
@pytest.mark.parametrize("budget", ["500h", "$8000"])
def test_the_advice_of_a_foreign_law_is_a_command_that_works(
    law: str, budget: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from typer.testing import CliRunner

    from isocompute.cli.main import app

    plan = isocompute.plan(
        budget=budget, law=law, rollouts_per_second=8.0, gpus=8, price_per_gpu_hour=4.0, replicates=60
    )
    message = next(w.message for w in plan.warnings if w.code == "foreign_law")
    typed = re.search("`isocompute (.*)`", message)
    assert typed
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, shlex.split(typed[1]))
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("budget", ["0.01h", "$0.05", "30000h", "$90000"])
def test_budget_errors_are_in_the_unit_asked_in_and_what_they_say_works(budget: str) -> None:
    known: dict[str, Any] = {
        "law": "isocompute/bp32-easy",
        "rollouts_per_second": 8.0,
        "gpus": 8,
        "price_per_gpu_hour": 4.0,
        "replicates": 60,
    }
    with pytest.raises(InputError) as caught:
        isocompute.plan(budget=budget, **known)
    expected = re.findall(r"\$[\d.,]*\d|[\d.,]*\dh\b", str(caught.value))[-1]
    assert parse_budget(expected).unit == parse_budget(budget).unit
    assert "e+" not in str(caught.value)
    isocompute.plan(budget=expected, extrapolate="under one batch" in str(caught.value), **known)


def test_budgets_are_rounded_to_the_safe_side() -> None:
    for unit in ("rollouts", "tokens", "gpu_hours", "money"):
        for factor in (0.012345, 0.7, 1.0, 3.3333, 98765.4321):
            asked = Budget(1234.0, unit)
            assert parse_budget(asked.times(factor)).amount >= asked.amount * factor * (1 - 1e-8)
            assert parse_budget(asked.times(factor, at_most=True)).amount <= asked.amount * factor * (1 + 1e-8)


def test_numbers_are_short_and_plain() -> None:
    plan = isocompute.plan(budget=9e8, law="isocompute/bp32-easy", extrapolate=True, replicates=60)
    message = next(w.message for w in plan.warnings if w.code == "far_extrapolation")
    assert "e+" not in message and "900M rollouts is " in message


def test_a_model_may_be_its_folder(tmp_path: Path) -> None:
    sizes = {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "vocab_size": 151936}
    heads = {"num_attention_heads": 14, "num_key_value_heads": 2}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2", **sizes, **heads}))
    hours = [
        isocompute.plan(
            budget=2e6,
            law="isocompute/bp32-easy",
            model=str(model),
            gpu="H200",
            gpus=8,
            response_tokens=500.0,
            replicates=60,
        )
        for model in (tmp_path, tmp_path / "config.json")
    ]
    assert hours[0].prices.cost(hours[0].allocation) == hours[1].prices.cost(hours[1].allocation)


def sweep(folder: Path, *, rate: float, ceiling: float, **logged: Any) -> None:
    """Three n with one recipe."""
    for n in (8, 16, 32):
        recipe = {"learning_rate": rate, "lr_reference_batch": 1024, "lr_scaling": "sqrt"}
        points = [p | {"avg@4": ceiling * p["avg@4"]} for p in rising(12)]
        settings = {"problems_per_batch": 32, "rollouts_per_problem": n, "seed": 0, "recipe": recipe, **logged}
        write_points(folder / f"r{rate}-{n}", points, **settings)


@pytest.mark.parametrize("better", [0.01, 0.0005])
def test_of_several_recipes_the_plan_is_of_the_one_that_reached_highest(tmp_path: Path, better: float) -> None:
    """Whichever folder comes first: its values, its learning rate, and what limits it."""
    for rate in (0.01, 0.0005):
        sweep(tmp_path / "runs", rate=rate, ceiling=0.9 if rate == better else 0.5)
    plan = isocompute.plan(budget=30_000, law=tmp_path / "runs", replicates=60)
    alone = isocompute.plan(budget=30_000, law=_only(tmp_path / "runs", f"r{better}-"), replicates=60)
    assert plan.chosen.ranked.value == pytest.approx(alone.chosen.ranked.value, abs=1e-9)
    assert plan.recipe.recipe.learning_rate == better
    assert "which reached highest of 2 recipes" in plan.law.source
    stored = tmp_path / "law.json"
    write_law(isocompute.fit(tmp_path / "runs", replicates=60), stored)
    again = isocompute.plan(budget=30_000, law=stored)
    assert again.recipe.recipe.learning_rate == better
    assert "3 of 6 settings: those of the recipe that reached highest" in again.law.source


def _only(folder: Path, start: str) -> Any:
    runs = isocompute.load(folder)
    return replace(runs, runs=tuple(run for run in runs if run.name.startswith(start)))


def test_runs_of_two_models_are_no_plan(tmp_path: Path) -> None:
    sweep(tmp_path / "runs" / "a", rate=0.01, ceiling=0.9, model="large")
    sweep(tmp_path / "runs" / "b", rate=0.01, ceiling=0.5, model="small")
    with pytest.raises(InputError, match=r"2 conditions, 'large' \(3\), 'small' \(3\), whose rewards do not compare"):
        isocompute.plan(budget=30_000, law=tmp_path / "runs", replicates=60)
    stored = tmp_path / "law.json"
    with pytest.warns(RunWarning, match="2 conditions"):
        write_law(isocompute.fit(tmp_path / "runs", replicates=60), stored)
    with pytest.raises(InputError, match=r"differ in 'model' \(large and small\)"):
        isocompute.plan(budget=30_000, law=stored)


def test_an_anchor_is_scaled_with_the_batch_whatever_the_runs_did(tmp_path: Path) -> None:
    """LR ∝ √B from the user's own anchor: 1e-6 at 1,024 is 5e-7 at 256."""
    for n in (8, 16):
        recipe = {"learning_rate": 3e-6}  # the same at every batch
        settings = {"problems_per_batch": 32, "rollouts_per_problem": n, "seed": 0, "recipe": recipe}
        write_points(tmp_path / "runs" / f"n{n}", rising(12), **settings)
    plan = isocompute.plan(
        budget=30_000, law=tmp_path / "runs", replicates=60, lr_reference="1e-6@1024", rollouts_per_problem=[8]
    )
    assert plan.recipe.learning_rate == pytest.approx(5e-7)


def test_an_entropy_bonus_goes_with_kl_or_not_at_all(tmp_path: Path) -> None:
    for n in (8, 16):
        settings = {"problems_per_batch": 32, "rollouts_per_problem": n, "seed": 0, "recipe": {"kl_coef": 0.0}}
        write_points(tmp_path / "runs" / f"n{n}", rising(12), **settings)
    plan = isocompute.plan(budget=30_000, law=tmp_path / "runs", replicates=60)
    assert (plan.recipe.recipe.kl_coef, plan.recipe.recipe.entropy_coef) == (0.0, 0.0)
    assert "goes with KL or not at all" in lines(plan)["kl_coef, entropy_coef"]["reason"]


def one_seed(folder: Path, *, seeds: int = 1, **column: float) -> Path:
    """Two n whose curves end .006 apart, and that log what else is given."""
    for n, ceiling in ((8, 0.6), (16, 0.606)):
        for seed in range(seeds):
            points = [p | column for p in rising(40, ceiling)]
            settings = {"problems_per_batch": 32, "rollouts_per_problem": n, "seed": seed}
            write_points(folder / f"n{n}-s{seed}", points, **settings)
    return folder


def test_what_another_seed_would_give_is_worth_a_look(tmp_path: Path) -> None:
    """Evaluations tell the two apart, one seed each does not: a run of either could change the decision."""
    plan = isocompute.plan(budget=60_000, law=one_seed(tmp_path / "runs"), replicates=200)
    gains = [p.gain for p in next_cells(plan, 2)]
    assert gains and 0.0 < max(gains) < plan.law.seed_error, "no look is worth more than what is unknown"


def test_a_setting_of_one_seed_is_less_certain_than_settings_of_four(tmp_path: Path) -> None:
    """Four seeds of n = 8 and 16 that differ by .03 and one of n = 32, whose effect the others let expect."""
    rng = np.random.default_rng(4)
    for n, seeds in ((8, 4), (16, 4), (32, 1)):
        for seed in range(seeds):
            settings = {"problems_per_batch": 32, "rollouts_per_problem": n, "seed": seed}
            points = rising(40, 0.6 + 0.03 * float(rng.normal()))
            write_points(tmp_path / "runs" / f"n{n}-s{seed}", points, **settings)
    law = isocompute.fit(tmp_path / "runs", replicates=200)
    write_law(law, tmp_path / "law.json")
    for source in (law, tmp_path / "law.json", tmp_path / "runs"):
        plan = isocompute.plan(budget=60_000, law=source, replicates=200)
        assert "1 of 3 settings have one seed" in plan.law.uncertainty
        assert 0.03 < plan.law.seed_error < 0.2, "2.77 standard deviations of .03, give or take"
        spread = {a.rollouts_per_problem: float(row.std()) for a, row in zip(plan.targets, plan.values_AB, strict=True)}
        assert spread[32] > 1.2 * max(spread[8], spread[16])


def test_tokens_and_hours_are_those_of_the_laws_runs(tmp_path: Path) -> None:
    """500-token responses: 3e7 tokens are 60,000 rollouts."""
    law = one_seed(tmp_path / "runs", response_length=500.0)
    plan = isocompute.plan(budget="3e7tok", law=law, replicates=60)
    assert plan.budget_rollouts == pytest.approx(60_000)
    assert plan_to_json(plan)["cost"]["response_source"] == "the law's runs"


def test_quickstart_says_what_plan_says(tmp_path: Path) -> None:
    law = isocompute.fit(one_seed(tmp_path / "runs", seeds=2), replicates=100)
    logged, plan = _plan("easy", law, 60_000), isocompute.plan(budget=60_000, law=law)
    assert logged["rollouts_per_problem"] == plan.allocation.rollouts_per_problem
    assert logged["probability_best"] == plan.chosen.ranked.probability_best
    assert logged["expected"]["interval"] == list(plan.chosen.ranked.interval)
    assert logged["next"]["regret"] == plan.alternatives[0].ranked.regret


def test_every_setting_of_the_runs_that_is_not_the_usual_has_a_line() -> None:
    recipe = make_recipe({"name": "dapo", "updates_per_batch": 2, "fp32_head": False}).model_dump()
    found = lines(isocompute.plan(budget=5e5, law=fit_law(curves(recipe, recipe), metric="avg@4", replicates=60)))
    assert found["updates_per_batch"]["value"] == "2" and found["updates_per_batch"]["source"] == "your runs"
    assert found["fp32_head"]["value"] == "off" and found["clip_high"]["value"] == "0.28"
    assert not {"lr_reference_batch", "lr_scaling", "clip_low", "beta1"} & set(found)


def test_a_plan_is_priced_with_the_updates_of_its_runs(tmp_path: Path) -> None:
    config = {"model_type": "qwen2", "vocab_size": 152064, "hidden_size": 3584, "intermediate_size": 18944} | {
        "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    flops = []
    for updates in (1, 2):
        recipe = make_recipe({"updates_per_batch": updates, "kl_coef": 0.0}).model_dump()
        law = fit_law(curves(recipe, recipe), metric="avg@4", replicates=60)
        plan = isocompute.plan(
            budget=5e5, law=law, model=str(tmp_path), gpu="H100", gpus=8, response_tokens=1000, rollouts_per_problem=8
        )
        flops.append(plan.prices.cost(plan.allocation)["phases"]["training"]["flops"])
    assert flops[1] / flops[0] == pytest.approx(9 / 5)


def damage(data: dict[str, Any], place: str, value: Any) -> dict[str, Any]:
    """The same with another value at a place such as `settings.0.form`; without it where the value is `...`."""
    inner: Any = data
    *path, last = [int(part) if part.isdecimal() else part for part in place.split(".")]
    for part in path:
        inner = inner[part]
    if value is ...:
        del inner[last]
    else:
        inner[last] = value
    return data


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("metric", ...),
        ("metric", 3),
        ("unit", "x"),
        ("curves", None),
        ("curves.0", "x"),
        ("early_falls", None),
        ("settings", []),
        ("settings.0.problems_per_batch", "x"),
        ("settings.0.rollouts_per_problem", "8"),
        ("settings.0.rollouts_per_problem", 0),
        ("settings.0.first", 0),
        ("settings.0.starts", float("nan")),
        ("settings.0.recipes", ["", "", ""]),
        ("settings.0.index", -1),
        ("posteriors", []),
        ("posteriors.0.settings", []),
        ("posteriors.0.last", [1.0]),
        ("posteriors.0.last.0", float("nan")),
        ("posteriors.0.first", 0),
        ("posteriors.0.rise", 0),
        ("posteriors.0.stage.0", 7),
        ("posteriors.0.base", [[0.5]]),
        ("posteriors.0.ceiling.0", [0.5]),
        ("posteriors.0.path", []),
        ("posteriors.0.path.0.0", [0.5]),
        ("posteriors.0.path.0", [[0.5]]),
        ("posteriors.0.seen.0", [0.5]),
        ("posteriors.0.batch.0", float("nan")),
        ("posteriors.0.upper", "high"),
    ],
)
def test_a_damaged_law_names_the_field(tmp_path: Path, stored_law: str, place: str, value: Any) -> None:
    path = tmp_path / "law.json"
    path.write_text(json.dumps(damage(json.loads(stored_law), place, value)))
    field = r"\.".join(place.split(".")[:2])
    with pytest.raises(InputError, match=rf"law\.json: {field}.*; write it again with isocompute fit RUNS --out"):
        isocompute.plan(budget=5e4, law=path)


@pytest.mark.parametrize(("name", "far"), [("posterior", 3), ("index", 99)])
def test_a_law_whose_configurations_have_no_samples_is_refused(
    tmp_path: Path, stored_law: str, name: str, far: int
) -> None:
    path = tmp_path / "law.json"
    path.write_text(json.dumps(damage(json.loads(stored_law), f"settings.0.{name}", far)))
    with pytest.raises(InputError, match=rf"law\.json: .*{far}.*; write it again with isocompute fit RUNS --out"):
        isocompute.plan(budget=5e4, law=path)


OLD: dict[str, Any] = {
    "format": "isocompute-law",
    "version": 1,
    "metric": "avg@4",
    "unit": "rollouts",
    "curves": [{"run": "a", "last": 1e6}, {"run": "b", "last": 1e6}],
    "settings": [
        {
            "problems_per_batch": 32,
            "rollouts_per_problem": n,
            "runs": [name],
            "form": "hill",
            "theta": [3.0, 0.2],
            "base": 0.3,
            "ceiling": ceiling,
            "unit": 2000.0,
            "first": 2000.0,
            "last": 1e6,
            "starts": 2000.0,
            "ensemble": {
                "families": ["hill", "exponential", "power"],
                "family": [0, 1] * 30,
                "theta": [[3.0, 0.2]] * 60,
                "base": [0.3] * 60,
                "ceiling": [ceiling + 1e-4 * i for i in range(60)],
            },
        }
        for name, n, ceiling in (("a", 8, 0.5), ("b", 32, 0.6))
    ],
}
"""A law as version 1 stored it: draws of every configuration's own curve."""


def test_a_law_of_version_1_still_plans(tmp_path: Path) -> None:
    path = tmp_path / "law.json"
    path.write_text(json.dumps(OLD))
    plan = isocompute.plan(budget=9e5, law=path)
    assert plan.allocation.rollouts_per_problem == 32
    assert plan.chosen.ranked.value == pytest.approx(0.6, abs=0.02)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("settings.0.first", 2e6),
        ("settings.0.last", float("nan")),
        ("settings.0.unit", 0),
        ("settings.0.ensemble.family.0", 7),
        ("settings.0.ensemble.base", [0.5]),
        ("settings.0.ensemble.families.0", "line"),
        ("settings.0.ensemble.theta.0", []),
    ],
)
def test_a_damaged_law_of_version_1_names_the_field(tmp_path: Path, place: str, value: Any) -> None:
    path = tmp_path / "law.json"
    path.write_text(json.dumps(damage(json.loads(json.dumps(OLD)), place, value)))
    with pytest.raises(InputError, match=r"law\.json: settings\.0.*; write it again with isocompute fit RUNS --out"):
        isocompute.plan(budget=9e5, law=path)


@pytest.fixture(scope="module")
def stored_law(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("law") / "law.json"
    write_law(fit_law(sweep_curves(5e4), metric="avg@4", replicates=60), path)
    return path.read_text()


def test_an_average_of_rewards_from_minus_one_to_one_is_not_held_to_zero() -> None:
    """ScaleRL's rewards are -1 and 1, and logs call their mean avg@k like that of 0 and 1."""
    rng, compute_C = np.random.default_rng(8), np.geomspace(5e3, 1e6, 24)
    ends = {8: -0.09, 32: -0.05, 128: -0.01}
    curves = [
        Curve(f"n{n}-{seed}", compute_C, end - 0.4 * np.exp(-compute_C / 1e5) + noise_C, 32, n, seed=seed)
        for n, end in ends.items()
        for seed in range(2)
        for noise_C in [0.004 * rng.standard_normal(24)]
    ]
    plan = isocompute.plan(budget=1e6, law=fit_law(curves, metric="avg@4", replicates=100))
    assert plan.allocation.rollouts_per_problem == 128
    found = {o.allocation.rollouts_per_problem: o.ranked.value for o in (plan.chosen, *plan.alternatives)}
    assert found == pytest.approx(ends, abs=0.01)


def test_a_run_that_is_left_out_is_told_once(tmp_path: Path) -> None:
    """The law and what limits the runs are both read off them."""
    for name, points in (("a", rising()), ("b", rising()), ("short", rising()[:2])):
        write_points(tmp_path / name, points, problems_per_batch=32, rollouts_per_problem=8)
    with warnings.catch_warnings(record=True) as expected:
        warnings.simplefilter("always")
        isocompute.plan(budget=8e4, law=tmp_path, replicates=60)
    assert len([w for w in expected if "1 of 3 runs left out" in str(w.message)]) == 1
