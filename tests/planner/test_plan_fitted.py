"""Laws of the user's own runs: their values inside and beyond the data, and which setting stands out."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

import isocompute
from isocompute import InputError
from isocompute.core.curve import Curve
from isocompute.law.law import fit_law
from isocompute.planner.extrapolation import extrapolate
from isocompute.planner.law import planning_law
from tests.planner.made_up import columns, sweep_curves


def test_between_the_settings_of_a_surface_nothing_stands_in() -> None:
    law = fit_law(sweep_curves(1e6), metric="m", replicates=50)
    plan = isocompute.plan(budget=5e5, law=law, problems_per_batch=48)
    codes = {w.code for w in plan.warnings}
    assert plan.allocation.problems_per_batch == 48
    assert "interpolated" in codes and "problems_not_in_law" not in codes


def test_where_all_spend_the_same_hours_the_cheapest_has_the_fewest_updates() -> None:
    """204,810 rollouts are 200 batches of 32 × 32 or 266 of 32 × 24; the latter leave 512 more of them unspent."""
    law = fit_law(sweep_curves(1e6, (24, 32)), metric="m", replicates=50)
    for budget, fewest in ((204_810, False), (f"{204_810 / 5400}h", True), (f"${204_810 / 2700}", True)):
        plan = isocompute.plan(
            budget=budget, law=law, problems_per_batch=32, rollouts_per_second=12.0, gpus=8, price_per_gpu_hour=2.0
        )
        shown = {o.allocation.update_steps: o for o in (plan.chosen, *plan.alternatives)}
        assert shown.keys() == {200, 266} and all(o.ranked.ties for o in shown.values())
        assert shown[200].cheapest is fewest and shown[266].cheapest is not fewest


def ends_apart() -> list[Curve]:
    """n = 128 was stopped ten times before n = 32, which reaches higher than n = 8."""
    rng = np.random.default_rng(3)
    out = []
    for n, last in ((8, 1e7), (32, 1e6), (128, 1e5)):
        compute_C = np.unique(np.geomspace(32 * n, last, 30).astype(int) // (32 * n) * 32.0 * n)
        ceiling = 0.55 + 0.01 * np.log2(n)
        value_C = ceiling - (ceiling - 0.3) * np.exp(-compute_C / (2e4 * n**0.5))
        out.append(Curve(f"n{n}", compute_C, value_C + 0.004 * rng.standard_normal(len(compute_C)), 32, n, seed=0))
    return out


def test_a_setting_that_is_expected_to_lose_more_than_seeds_differ_is_not_named() -> None:
    law = planning_law(fit_law(ends_apart(), metric="avg@4", replicates=200))
    plan = isocompute.plan(budget=5e5, law=law)
    chosen, cheapest = plan.chosen, plan.cheapest
    assert chosen.allocation.rollouts_per_problem == 32
    assert cheapest.allocation.rollouts_per_problem == 128 and cheapest.ranked.ties
    assert plan.alternatives[0].ranked.regret < plan.law.seed_error < chosen.ranked.value - cheapest.ranked.value
    assert plan.stands_out


@pytest.mark.parametrize(
    ("seed_error", "regret", "probability", "stands_out"),
    [
        (0.02, 0.03, 0.8, True),
        (0.02, 0.03, 0.4, True),
        (0.02, 0.01, 0.8, False),  # one seed cannot distinguish them, whatever the draws show
        (0.02, 0.01, 0.4, False),
        (0.0, 0.01, 0.8, True),
        (0.0, 0.01, 0.4, False),  # the draws contain the seed effect, and it is within one error
    ],
)
def test_the_cheapest_is_named_where_its_own_loss_is_within_what_seeds_differ_by(
    seed_error: float, regret: float, probability: float, stands_out: bool
) -> None:
    plan = isocompute.plan(budget="2e6", law="isocompute/bp32-easy", replicates=50)
    chosen, (first, second, *_) = plan.chosen, plan.alternatives
    decided = replace(
        plan,
        law=replace(plan.law, seed_error=seed_error),
        chosen=replace(chosen, cheapest=False, ranked=replace(chosen.ranked, probability_best=probability)),
        alternatives=(
            replace(first, cheapest=False, ranked=replace(first.ranked, regret=0.001)),
            replace(second, cheapest=True, ranked=replace(second.ranked, regret=regret, standard_error=0.05)),
        ),
    )
    assert decided.stands_out is stands_out
    assert replace(decided, chosen=replace(decided.chosen, cheapest=True)).stands_out


def test_inside_the_range_a_setting_is_its_own_curve() -> None:
    law = fit_law(sweep_curves(1e6), metric="m", replicates=100)
    model = planning_law(law).model
    fit = law.settings[0]
    bp, n = fit.setting
    values_AB = model.values(*columns((bp or 0, n or 0, 3e5), (bp or 0, n or 0, 9e5)))
    assert np.allclose(values_AB, fit.ensemble.at(np.array([3e5, 9e5])).T)


def test_beyond_the_range_values_are_near_the_truth_and_less_sure() -> None:
    model = planning_law(fit_law(sweep_curves(1.25e5), metric="m", replicates=200)).model
    rows = [(bp, n, 1e6) for bp in (32, 64) for n in (8, 16, 32, 64)]
    values_AB = model.values(*columns(*rows))
    truth_A = np.array([0.3 + 0.3 / (1 + (2e4 * (n / 8) ** 0.5 / 1e6) ** 1.2) for _, n, _ in rows])
    assert np.abs(values_AB.mean(axis=1) - truth_A).max() < 0.04
    near_AB = model.values(*columns(*[(bp, n, 1.2e5) for bp, n, _ in rows]))
    assert (values_AB.std(axis=1) > 2 * near_AB.std(axis=1)).all()


def test_growth_is_believed_as_far_as_it_was_seen() -> None:
    own_AB, leader_AB = np.array([[0.4], [0.32]]), np.array([[0.5], [0.5]])
    growth_AB = np.array([[0.0], [0.2]])
    there_AB = np.array([[0.55], [0.55]])
    out = extrapolate(
        own_AB=own_AB,
        growth_AB=growth_AB,
        reference_AB=leader_AB,
        reference_there_AB=there_AB,
        base=0.3,
        doublings_A=np.array([3.0, 3.0]),
    )
    assert out[0, 0] == pytest.approx(0.4)  # no growth is foreseen: it stays where it was seen
    assert out[1, 0] == pytest.approx(0.55 + (0.32 - 0.5) / 8)  # ten times the rise seen: it follows the leader


def test_last_evaluations_of_a_sweep_need_not_coincide() -> None:
    """All n go to one budget. n = 32 learns nothing and was evaluated last; others are not compared with it there."""
    rng = np.random.default_rng(1)
    curves = [
        Curve(f"{n}-{seed}", compute_C, 0.07 + 0.9 / (1 + (half / compute_C) ** 1.5) + noise_C, 32, n, seed=seed)
        for n, half, last in ((4, 2e4, 5632), (8, 3e4, 5888), (16, 5e4, 6144), (32, 2e6, 7168))
        for seed in range(3)
        for compute_C, noise_C in [(np.geomspace(32 * n, last, 12), 0.003 * rng.standard_normal(12))]
    ]
    law = fit_law(curves, metric="worst@4", replicates=200)
    plan = isocompute.plan(budget=6e4, law=law, rollouts_per_problem=[4, 8, 16, 32], extrapolate=True)
    assert plan.chosen.allocation.rollouts_per_problem == 4
    reached = {fit.setting[1]: float(fit.at(np.array([fit.last]))[0]) for fit in law.settings}
    for option in (plan.chosen, *plan.alternatives):
        n = option.allocation.rollouts_per_problem
        assert option.ranked.value > reached[n], f"n = {n} is expected to lose what it had"


def test_a_setting_that_was_not_run_comes_from_the_surface() -> None:
    law = fit_law(sweep_curves(1e6), metric="m", replicates=200)
    model = planning_law(law).model
    truth = 0.3 + 0.3 / (1 + (2e4 * (24 / 8) ** 0.5 / 5e5) ** 1.2)
    values_AB = model.values(*columns((32, 24, 5e5)))
    assert values_AB.mean() == pytest.approx(truth, abs=0.01)
    fewer = fit_law(sweep_curves(1e6, (8, 16)), metric="m", replicates=100)
    assert fewer.surface is None
    plan = isocompute.plan(budget=2e6, law=fewer)
    assert plan.allocation.rollouts_per_problem in (8, 16)
    with pytest.raises(InputError, match="--n"):
        isocompute.plan(budget=2e6, law=fewer, rollouts_per_problem=[12])


def test_rates_that_follow_the_batch_are_one_recipe() -> None:
    """Four n with a learning rate ∝ √B, and one more at n = 8 with a KL term: all four n can be chosen."""
    rng, grid_C = np.random.default_rng(0), np.geomspace(1e4, 1e6, 20)

    def run(n: int, kl: float) -> Curve:
        rise_C = (0.3 + 0.01 * np.log2(n / 8)) * (1 - np.exp(-grid_C / 1.5e5))
        recipe = {"recipe": {"learning_rate": 1e-6 * (n / 32) ** 0.5, "kl_coef": kl}}
        values_C = 0.3 + rise_C + 0.004 * rng.standard_normal(20)
        return Curve(f"{n}-{kl}", grid_C, values_C, 32, n, 0, json.dumps(recipe, sort_keys=True))

    curves = [run(n, 0.0) for n in (8, 16, 32, 64)]
    law = planning_law(fit_law([*curves, run(8, 0.001)], metric="avg@4", replicates=60))
    assert law.model.settings() == [(32, 8), (32, 16), (32, 32), (32, 64)]
    assert "4 of 5 settings" in law.source
