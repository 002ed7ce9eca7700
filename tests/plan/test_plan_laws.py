"""Laws as the planner sees them: published numbers, curves beyond their range, difficulty, recipes, costs."""

from __future__ import annotations

import json
import tomllib
from datetime import date
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import isocompute
from isocompute import InputError
from isocompute.allocation import Allocation
from isocompute.plan.advised_recipe import advise_recipe, parse_anchor
from isocompute.plan.api import next_cells, stages
from isocompute.plan.curves import Curves
from isocompute.plan.difficulty import classify, zero_variance_share
from isocompute.plan.model import OptimumOnly
from isocompute.plan.next_cells import Proposal
from isocompute.plan.present import plan_to_json
from isocompute.plan.published import entries, published
from isocompute.plan.study_file import next_recipe, study_for, study_of, study_text
from isocompute.recipes import make_recipe
from isocompute.runs import load
from tests.conftest import rising, write_points
from tests.plan.made_up import columns

FIGURE_6 = {8: (0.5827, 0.15, 0.223e6), 32: (0.5953, 0.1892, 0.222e6), 256: (0.6542, 0.1807, 0.9254e6)}


@pytest.mark.parametrize("n", FIGURE_6)
@pytest.mark.parametrize("compute", [0.3e6, 1e6, 2e6])
def test_figure_6_is_what_its_ensemble_is_centred_on(n: int, compute: float) -> None:
    ceiling, depth, scale = FIGURE_6[n]
    values_AB = published("isocompute/bp32-easy").model.values(*columns((32, n, compute)))
    assert values_AB.mean() == pytest.approx(ceiling - depth * np.exp(-compute / scale), abs=0.002)
    assert values_AB.std() == pytest.approx(np.sqrt(ceiling * (1 - ceiling) / 1200), rel=0.35)


@pytest.mark.parametrize(
    ("name", "L", "k", "x0", "b"),
    [
        ("isocompute/joint-easy", 5.67, 8.84, 6.08, 3.08),
        ("isocompute/joint-hard", 3.97, 50.0, 6.13, 3.04),
        ("isocompute/bp32-easy-tokens", 6.62, 3.47, 9.18, 2.64),
    ],
)
def test_printed_optima_are_the_best_n_of_the_law(name: str, L: float, k: float, x0: float, b: float) -> None:
    law = published(name)
    model = law.model
    assert isinstance(model, OptimumOnly)
    n_A = 2.0 ** np.arange(3, 12)
    for compute in np.geomspace(law.first, law.last, 9):
        mean_A = model.values(np.full(9, 32.0), n_A, np.full(9, compute)).mean(axis=1)
        printed = L / (1 + np.exp(-k * (np.log10(compute) - x0))) + b
        assert abs(np.log2(n_A[mean_A.argmax()]) - np.clip(printed, 3, 11)) <= 0.6


def test_every_published_law_plans_inside_its_range() -> None:
    for entry in entries():
        middle = float(np.sqrt(entry.range[0] * entry.range[1]))
        unit = {"rollouts": "", "tokens": "tok", "gpu_hours": "h"}[entry.unit]
        plan = isocompute.plan(
            budget=f"{middle}{unit}",
            law=entry.name,
            replicates=100,
            # The paper's hours where the law knows what a rollout takes in them.
            rollouts_per_second=8.0 if entry.name in ("scalerl/scout", "scalerl/32k") else None,
            gpus=8 if entry.name in ("scalerl/scout", "scalerl/32k") else None,
        )
        assert 0 < plan.chosen.ranked.value < 1
        assert not {"extrapolation", "far_extrapolation"} & {w.code for w in plan.warnings}
        assert plan.allocation.compute <= plan.budget_rollouts


@pytest.mark.parametrize("speed", [None, 0.1, 12.0])
def test_faster_gpus_do_not_learn_more(speed: float | None) -> None:
    """ScaleRL's 8B run: .610 and .402, midpoint 2,542, exponent 1.92 in the paper's GPU-hours, .0065 a rollout."""
    plan = isocompute.plan(budget=1_230_336, law="scalerl/8b", rollouts_per_second=speed, gpus=speed and 8)
    assert plan.allocation == Allocation(48, 16, 1602)
    printed = 0.4017 + (0.610 - 0.4017) / (1 + (2542 / (1_230_336 * 0.0065)) ** 1.92)
    assert plan.chosen.ranked.value == pytest.approx(printed, abs=0.001)
    assert "foreign_gpu_hours" not in {w.code for w in plan.warnings}
    if speed:
        assert plan.prices.cost(plan.allocation)["seconds"] == pytest.approx(1_230_336 / speed)


def test_gpu_hours_that_cannot_be_compared_are_named() -> None:
    plan = isocompute.plan(budget="8000h", law="scalerl/scout", rollouts_per_second=12.0, gpus=8, replicates=50)
    assert "foreign_gpu_hours" in {w.code for w in plan.warnings}


@pytest.mark.parametrize(
    ("law", "budget"), [("easy", 5e3), ("easy", 12e3), ("easy", 18e3), ("hard", 3e4), ("hard", 6e4)]
)
def test_before_every_curve_begins_the_one_that_begins_first_is_planned(law: str, budget: float) -> None:
    """Figure 6 draws n = 8 first; the fitted bases of the others are where nothing was measured."""
    plan = isocompute.plan(budget=budget, law=f"isocompute/bp32-{law}", replicates=50)
    assert plan.allocation == Allocation(32, 8, int(budget) // 256)
    later = isocompute.plan(
        budget=budget, law=f"isocompute/bp32-{law}", replicates=50, rollouts_per_problem=[128, 256]
    ).allocation
    assert later.rollouts_per_problem == 128


def test_a_law_of_one_batch_answers_for_that_batch() -> None:
    plan = isocompute.plan(budget=2e6, law="isocompute/batch8192-easy", replicates=50)
    assert {a.batch_size for a in plan.targets} == {8192}
    for held, message in (
        ({"problems_per_batch": 48}, "64 × 128 would with --problems-per-batch 64"),
        ({"rollouts_per_problem": 300}, "32 × 256 would with --n 256"),
        ({"batch_size": 4096}, "--batch 8192"),
        ({"max_batch": 4096}, "--max-batch 8192"),
    ):
        with pytest.raises(InputError, match=message):
            isocompute.plan(budget=2e6, law="isocompute/batch8192-easy", replicates=50, **held)


def test_one_problems_per_batch_stands_in_for_its_neighbours_only() -> None:
    """Figure 10's best rewards at n = 16 for Bp = 32…1,024, in points; the caption's ranges are in the warning."""
    over_problems = {"easy": [60.7, 62.2, 61.0, 60.9, 60.3, 61.3], "hard": [9.38, 10.74, 10.27, 9.34, 11.58, 10.45]}
    words = {"easy": "1.9 points where n moved it by 9.2, easy", "hard": "2.2 points where n moved it by 3.1, hard"}
    for kind, points in over_problems.items():
        own, other = (
            isocompute.plan(budget=2e6, law=f"isocompute/bp32-{kind}", problems_per_batch=bp) for bp in (32, 64)
        )
        added = np.var(other.values_AB[0]) - np.var(own.values_AB[0])
        assert np.sqrt(added) == pytest.approx(np.std(points, ddof=1) / 100, rel=0.15)
        assert other.chosen.ranked.value == pytest.approx(own.chosen.ranked.value, abs=1e-3)
        (warning,) = (w.message for w in other.warnings if w.code == "problems_not_in_law")
        assert words[kind] in warning
        for bp in (3, 257, 7000):
            with pytest.raises(InputError, match=f"answers for 4 to 256; .*isocompute/joint-{kind}"):
                isocompute.plan(budget=2e6, law=f"isocompute/bp32-{kind}", problems_per_batch=bp, replicates=20)
    with pytest.raises(InputError, match="answers for 6 to 384; say --problems-per-batch 384, or run Bp = 512"):
        isocompute.plan(budget="8000h", law="scalerl/8b", problems_per_batch=512, replicates=20)
    foreign = isocompute.plan(budget="8000h", law="scalerl/8b", problems_per_batch=64, replicates=20)
    assert not any("figure 10" in w.message for w in foreign.warnings if w.code == "problems_not_in_law")


@pytest.mark.parametrize(
    ("name", "first", "second", "base"),
    [
        ("joint-easy", (150e3, 0.506), (400e3, 0.565), 0.4327),  # figure 22's first switches; figure 6 before training
        ("joint-hard", (300e3, 0.051), (1.02e6, 0.087), 0.0224),
    ],
)
def test_before_its_first_point_a_frontier_goes_on_down_to_the_base(
    name: str, first: tuple[float, float], second: tuple[float, float], base: float
) -> None:
    slope = (second[1] - first[1]) / np.log2(second[0] / first[0])
    model = published(f"isocompute/{name}").model
    assert isinstance(model, OptimumOnly)
    before_AB = model.values(*columns(*[(32, 8, c) for c in (first[0], first[0] / 2, first[0] / 10)]))
    expected = [first[1], first[1] - slope, max(base, first[1] - slope * np.log2(10))]
    assert before_AB.mean(axis=1) == pytest.approx(expected, abs=0.003)
    assert (np.diff(before_AB.std(axis=1)) > 0).all()


def test_beyond_its_last_point_a_frontier_is_less_sure_with_each_doubling() -> None:
    """5% of the rise for each doubling, the rule of curves: .05 · (.678 - .4327) at n in the middle of the grid."""
    model = published("isocompute/joint-easy").model
    after_AB = model.values(*columns(*[(181, 128, 4e6 * 2**k) for k in range(4)]))
    added = np.var(after_AB, axis=1) - np.var(after_AB[0])
    expected = [(0.05 * (0.678 - 0.4327) * k) ** 2 * (1 + 0.2**2) for k in range(4)]
    assert added[1:] == pytest.approx(expected[1:], rel=0.2)
    plan = isocompute.plan(budget=8e6, law="isocompute/joint-easy", replicates=100)
    assert any("stays at the law's last point" in w.message for w in plan.warnings if w.code == "extrapolation")
    plan = isocompute.plan(budget=6e4, law="isocompute/joint-easy", replicates=100)
    assert any("slope of the law's first two points" in w.message for w in plan.warnings)


@pytest.mark.parametrize("name", ["joint-easy", "joint-hard", "bp32-easy-tokens"])
def test_a_measured_frontier_is_what_is_expected_at_its_optimum(name: str) -> None:
    """The members' n* differ; at n* itself their mean is the published reward."""
    model = published(f"isocompute/{name}").model
    assert isinstance(model, OptimumOnly)
    for compute, reward in model.frontier:
        (best,) = 2 ** model.log2_optimum(*columns((32, 8, compute)))
        assert model.values(*columns((32, best, compute))).mean() == pytest.approx(reward, abs=0.0015)


@given(st.lists(st.one_of(st.just(0.0), st.floats(1e-6, 1)), min_size=1, max_size=20), st.integers(2, 64))
def test_zero_variance_is_the_binomials_two_ends(rates: list[float], n: int) -> None:
    rates_P = np.array(rates)
    expected = np.mean(stats.binom.pmf(0, n, rates_P) + stats.binom.pmf(n, n, rates_P))
    assert zero_variance_share(rates_P, n) == pytest.approx(expected, abs=1e-9)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=50))
def test_bands_cover_every_problem_once(rates: list[float]) -> None:
    mix = classify(np.array(rates))
    assert sum(mix.shares[band] for band in ("hard", "between", "easy", "very_easy")) == pytest.approx(1.0)
    assert mix.shares["unsolved"] <= mix.shares["hard"]


def test_recipes_follow_difficulty_batch_and_updates() -> None:
    easy = advise_recipe(allocation=Allocation(32, 32, 500), difficulty="easy")
    hard = advise_recipe(allocation=Allocation(32, 32, 500), difficulty="hard")
    assert easy.recipe.kl_coef > 0 == hard.recipe.kl_coef
    assert easy.learning_rate == pytest.approx(1e-6)
    short = advise_recipe(allocation=Allocation(32, 32, 12), difficulty="easy", anchor=parse_anchor("2e-6@256"))
    assert short.recipe.warmup_steps == 3
    assert short.learning_rate == pytest.approx(4e-6)
    for line in (*easy.lines, *hard.lines):
        assert line.reason and "2603.12151" in line.source


@pytest.mark.parametrize("text", ["1e-6", "@1024", "0@8", "1e-6@0", "1e-6@8.5", "a@b", "nan@8"])
def test_wrong_anchors(text: str) -> None:
    with pytest.raises(InputError, match="1e-6@1024"):
        parse_anchor(text)


def config(path: Path) -> Path:
    path.write_text(
        json.dumps(
            {
                "model_type": "qwen2",
                "hidden_size": 3584,
                "intermediate_size": 18944,
                "num_hidden_layers": 28,
                "num_attention_heads": 28,
                "num_key_value_heads": 4,
                "vocab_size": 152064,
                "tie_word_embeddings": False,
            }
        )
    )
    return path


def test_a_model_and_a_gpu_turn_hours_into_rollouts(tmp_path: Path) -> None:
    plan = isocompute.plan(
        budget="300h",
        law="isocompute/bp32-easy",
        model=str(config(tmp_path / "config.json")),
        gpu="H200",
        gpus=8,
        response_tokens=1500.0,
        price_per_gpu_hour=3.0,
        replicates=100,
    )
    cost = plan.prices.cost(plan.allocation)
    assert 0 < cost["gpu_hours"] <= 300 * (1 + 1e-9)
    assert cost["money"] == pytest.approx(3 * cost["gpu_hours"])
    assert cost["bound"] and cost["source"] == "modelled"
    with pytest.raises(InputError, match="H200"):
        isocompute.plan(
            budget="300h",
            law="isocompute/bp32-easy",
            model=str(tmp_path / "config.json"),
            gpu="H2000",
            gpus=8,
            response_tokens=9,
        )


def test_a_recipe_with_kl_pays_for_its_reference_model(tmp_path: Path) -> None:
    """Forward, backward (two), recomputation and old log-probs are 5 forward passes; the reference is a sixth."""
    easy, hard = (
        isocompute.plan(
            budget=2e6,
            law="isocompute/bp32-easy",
            difficulty=difficulty,
            model=str(config(tmp_path / "config.json")),
            gpu="H100",
            gpus=1,
            response_tokens=2000.0,
            replicates=50,
        )
        for difficulty in ("easy", "hard")
    )
    phases = [p.prices.cost(p.allocation)["phases"]["training"]["flops"] for p in (easy, hard)]
    assert easy.recipe.recipe.kl_coef > 0 == hard.recipe.recipe.kl_coef
    assert phases[0] / phases[1] == pytest.approx(6 / 5, rel=0.01)
    assert "training_memory" in {w.code for w in easy.warnings}


def test_runs_that_log_times_give_the_throughput(tmp_path: Path) -> None:
    points = [
        {"step": i, "rollouts": 256 * i, "seconds": 32.0 * i, "response_length": 800.0, "avg@4": 0.3}
        for i in range(1, 12)
    ]
    write_points(tmp_path / "timed", points, problems_per_batch=32, rollouts_per_problem=8, gpus=8)
    plan = isocompute.plan(budget="100h", law="isocompute/bp32-easy", gpus=8, timed_runs=tmp_path / "timed")
    cost = plan.prices.cost(plan.allocation)
    assert plan.budget_rollouts == pytest.approx(100 * 3600, rel=1e-6)  # 8 rollouts a second on 8 GPUs
    assert cost["source"] == "measured" and cost["tokens"] == pytest.approx(800 * plan.allocation.compute)


def test_studies_keep_what_made_the_runs() -> None:
    before = {
        "engine": "sim",
        "seeds": [0, 3],
        "problems": [{"set": "a", "mixture": {"easy": 0.5, "hard": 0.5}}, {"set": "b"}],
        "recipe": {"name": "grpo", "grad_clip": None},
        "evaluation": {"k": [4, 8]},
    }
    cells = [Proposal(Allocation(32, n, 100), 0.01, 0.1) for n in (8, 16)]
    spec = tomllib.loads(study_text(cells, before=before, recipe={}, seed=3, why='say "why"\ntwice'))
    assert spec["engine"] == "sim" and spec["seeds"] == [4]
    assert spec["problems"] == before["problems"] and spec["evaluation"] == before["evaluation"]
    assert spec["recipe"] == {"name": "grpo"}
    assert spec["grid"] == {"problems_per_batch": [32], "rollouts_per_problem": [8, 16]}


def test_stages_and_proposals_of_a_plan() -> None:
    plan = isocompute.plan(budget="2e6", law="isocompute/bp32-easy", replicates=200)
    found = stages(plan)
    assert found.compute <= 2e6
    assert [s.rollouts_per_problem for s in found.stages] == sorted(s.rollouts_per_problem for s in found.stages)
    assert isinstance(plan.law.model, Curves)
    proposals = next_cells(plan, 3)
    assert proposals and all(p.gain > 0 and p.allocation.compute <= 2e6 for p in proposals)
    assert plan.regime.regime == "noise"


def test_published_parameters_are_packaged_with_their_source() -> None:
    for entry in entries():
        assert "arXiv" in entry.source and entry.setup and entry.uncertainty
    with pytest.raises(InputError, match="scalerl/8b"):
        published("scalerl/8B")


def test_a_metric_that_is_none_is_named() -> None:
    with pytest.raises(InputError, match="--metric foo: isocompute/bp32-easy is a law of avg@4; say avg@k"):
        isocompute.plan(budget=1e6, law="isocompute/bp32-easy", metric="foo")


def test_a_law_of_one_n_shows_no_limit() -> None:
    plan = isocompute.plan(budget=1e6, law="scalerl/8b", replicates=60)
    assert plan.regime.regime is None
    assert "nothing to compare" in plan.regime.reason


def test_a_first_guess_says_that_it_is_one_and_a_foreign_base_is_named() -> None:
    """The base of figure 6's easy set is .43; a set at .9 is another."""
    easy = isocompute.plan(budget=2e6, law="isocompute/bp32-easy", pass_rates=[0.42, 0.44], replicates=60)
    other = isocompute.plan(budget=2e6, law="isocompute/bp32-easy", pass_rates=[0.9, 0.9], replicates=60)
    assert "base_differs" not in {w.code for w in easy.warnings}
    assert "base_differs" in {w.code for w in other.warnings}
    told = plan_to_json(other)["mix"]["zero_variance"]
    assert told == pytest.approx(0.9**256 + 0.1**256)


def test_pass_rates_are_the_set_that_epochs_are_counted_over() -> None:
    """32 problems a batch: 244 updates over 40 problems are 195 passes."""
    plan = isocompute.plan(budget=2e6, law="isocompute/bp32-easy", pass_rates=[0.4] * 40, replicates=60)
    (message,) = (w.message for w in plan.warnings if w.code == "many_epochs")
    assert message.startswith(f"{32 * plan.allocation.update_steps / 40:,.0f} passes over 40 problems")


def test_generations_that_tie_show_no_limit_by_noise() -> None:
    """ScaleRL found no effect of 8 to 32 generations: the fits differ by .004, far inside their error."""
    assert isocompute.plan(budget="8000h", law="scalerl/generations", replicates=200).regime.regime != "noise"
    assert isocompute.plan(budget=2e6, law="isocompute/bp32-easy", replicates=200).regime.regime == "noise"


@pytest.mark.parametrize(
    ("law", "several"),
    [("scalerl/8b", False), ("scalerl/code", False), ("scalerl/generations", True), ("isocompute/joint-easy", True)],
)
def test_next_is_named_only_where_a_law_has_several_settings(law: str, several: bool) -> None:
    plan = isocompute.plan(budget="2e6", law=law, replicates=60)
    (told,) = [w.message for w in plan.warnings if w.code == "foreign_law"]
    assert ("--next 4" in told) == several
    assert ("run other n or Bp" in told) != several


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
    before = study_for(plan, str(source))
    assert before is not None
    proposals = [Proposal(Allocation(32, 8, 100), 0.01, 0.1)]
    spec = tomllib.loads(study_text(proposals, before=before, recipe={}, seed=0, why="why"))
    assert spec["recipe"] == {"name": "isocompute-easy", "learning_rate": 0.02}
    (table,) = spec["problems"]
    assert (table["set"], table["size"], table["since"], table["noise"]) == ("easy", 200, date(2026, 1, 2), np.inf)
    anchored = isocompute.plan(budget=8e4, law=runs, replicates=60, lr_anchor="3e-6@256")
    given = study_for(anchored, str(source))
    assert given is not None
    assert given["recipe"] == {
        "name": "isocompute-easy", "learning_rate": 3e-6, "lr_batch": 256, "lr_scaling": "sqrt"
    }  # fmt: skip


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
    given = isocompute.plan(budget="2e6", law="isocompute/bp32-easy", replicates=100, lr_anchor="3e-6@256")
    assert make_recipe(next_recipe(given)).learning_rate == 3e-6
    assert make_recipe(next_recipe(given)).lr_batch == 256


def test_hours_propose_as_many_cells_as_rollouts_do(tmp_path: Path) -> None:
    """In hours a setting with larger batches gets further; a study's cells go as far as all of them can."""
    for n, rate in ((8, 2.0), (32, 6.0), (128, 16.0), (512, 20.0)):
        points = [{"step": s, "rollouts": s * 32 * n, "seconds": s * 32 * n / rate} for s in range(1, 8)]
        write_points(tmp_path / f"n{n}", points, problems_per_batch=32, rollouts_per_problem=n, gpus=8)
    plan = isocompute.plan(budget="200h", law="isocompute/bp32-easy", timed_runs=tmp_path)
    cells = [p.allocation for p in next_cells(plan, 4)]
    assert len(cells) >= 3
    assert max(c.compute for c in cells) - min(c.compute for c in cells) <= max(c.batch_size for c in cells)
    for cell in cells:
        assert (plan.prices.cost(cell)["gpu_hours"] or 0.0) <= 200.0


def test_the_cheapest_takes_the_fewest_gpu_hours_without_gpus_said(tmp_path: Path) -> None:
    for n, rate in ((128, 20.0), (256, 15.0), (512, 5.0)):
        points = [{"step": s, "rollouts": s * 32 * n, "seconds": s * 32 * n / rate} for s in range(1, 8)]
        write_points(tmp_path / f"n{n}", points, problems_per_batch=32, rollouts_per_problem=n, gpus=8)
    plan = isocompute.plan(budget="2e6", law="isocompute/bp32-easy", timed_runs=tmp_path)
    assert plan.prices.cost(plan.allocation)["seconds"] is None
    assert plan.cheapest.allocation.rollouts_per_problem == 128


def test_n_that_the_law_does_not_know_are_named() -> None:
    def messages(*wanted: int) -> list[str]:
        plan = isocompute.plan(
            budget="2e6", law="isocompute/bp32-easy", replicates=100, rollouts_per_problem=list(wanted)
        )
        return [w.message for w in plan.warnings if w.code == "n_not_in_law"]

    (told,) = messages(16, 32)
    assert "n = 16 of --n was left out" in told and "it has n = 8, 32, 128, 256, 512" in told
    assert messages(8, 32) == []


def test_a_difficulty_that_the_pass_rates_contradict_is_told() -> None:
    def codes(difficulty: str | None) -> list[str]:
        plan = isocompute.plan(
            budget="2e6",
            law="isocompute/bp32-easy",
            replicates=100,
            difficulty=difficulty,
            pass_rates=[0.0] * 9 + [0.5],
        )
        return [w.code for w in plan.warnings]

    assert "difficulty_contradicts" in codes("easy")
    assert "difficulty_contradicts" not in codes("hard") + codes(None)


def test_a_learning_rate_that_is_no_number_is_refused() -> None:
    with pytest.raises(InputError, match=r"--lr-anchor 1e\+308@1: the learning rate at a batch of .* is not finite"):
        isocompute.plan(budget="2e6", law="isocompute/bp32-easy", replicates=100, lr_anchor="1e308@1")
