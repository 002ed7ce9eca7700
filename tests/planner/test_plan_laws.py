"""Laws as the planner uses them: published numbers, and curves beyond their range."""

from __future__ import annotations

import numpy as np
import pytest

import isocompute
from isocompute import InputError
from isocompute.core.allocation import Allocation
from isocompute.law.law import fit_law
from isocompute.planner.law import OptimumOnly
from isocompute.planner.published import entries, published
from tests.planner.made_up import columns, sweep_curves

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
    for options, message in (
        ({"problems_per_batch": 48}, "64 × 128 would with --problems-per-batch 64"),
        ({"rollouts_per_problem": 300}, "32 × 256 would with --n 256"),
        ({"batch_size": 4096}, "--batch 8192"),
        ({"max_batch": 4096}, "--max-batch 8192"),
    ):
        with pytest.raises(InputError, match=message):
            isocompute.plan(budget=2e6, law="isocompute/batch8192-easy", replicates=50, **options)


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
    """The draws' n* differ; at n* itself their mean is the published reward."""
    model = published(f"isocompute/{name}").model
    assert isinstance(model, OptimumOnly)
    for compute, reward in model.frontier:
        (best,) = 2 ** model.log2_optimum(*columns((32, 8, compute)))
        assert model.values(*columns((32, best, compute))).mean() == pytest.approx(reward, abs=0.0015)


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


def test_generations_that_tie_show_no_limit_by_noise() -> None:
    """ScaleRL found no effect of 8 to 32 generations: the fits differ by .004, far inside their error."""
    assert isocompute.plan(budget="8000h", law="scalerl/generations", replicates=200).regime.regime != "noise"
    assert isocompute.plan(budget=2e6, law="isocompute/bp32-easy", replicates=200).regime.regime == "noise"


@pytest.mark.parametrize(("stable", "planned"), [((64, 128), 64), ((8, 16), 16), ((16, 64), 32)])
def test_a_law_of_one_problems_per_batch_plans_the_nearest_stable_one(stable: tuple[int, int], planned: int) -> None:
    plan = isocompute.plan(budget=2e6, law="isocompute/bp32-easy", stable_problems=stable, replicates=50)
    assert {a.problems_per_batch for a in plan.targets} == {planned}
    assert ("problems_not_in_law" in {w.code for w in plan.warnings}) == (planned != 32)


def test_a_stable_range_between_the_settings_of_a_law_is_read_off_it() -> None:
    plan = isocompute.plan(budget=2e6, law="isocompute/joint-easy", stable_problems=(33, 63), replicates=50)
    assert {a.problems_per_batch for a in plan.targets} == {33}


def test_a_stable_range_that_is_too_far_away_is_named_with_one_that_works() -> None:
    with pytest.raises(InputError, match=r"--stable-problems 1024-2048: .* with 256 in it"):
        isocompute.plan(budget=2e6, law="isocompute/bp32-easy", stable_problems=(1024, 2048), replicates=50)
    plan = isocompute.plan(budget=2e6, law="isocompute/bp32-easy", stable_problems=(256, 2048), replicates=50)
    assert plan.allocation.problems_per_batch == 256


def test_at_a_fixed_batch_settings_between_those_of_a_surface_are_compared() -> None:
    """Of Bp = 32 and 64 and n = 8 to 64 the grid has B = 768 and B = 1,024 once each."""
    law = fit_law(sweep_curves(1e6, (8, 12, 32, 64)), metric="m", replicates=50)
    plan = isocompute.plan(budget=5e5, law=law, batch_size=1024)
    found = {(a.problems_per_batch, a.rollouts_per_problem) for a in plan.targets}
    assert found == {(32, 32), (64, 16)}
    alone = isocompute.plan(budget=5e5, law=law, batch_size=768)
    assert {(a.problems_per_batch, a.rollouts_per_problem) for a in alone.targets} == {(32, 24), (64, 12)}
