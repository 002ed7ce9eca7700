"""Laws of the user's own runs: their values inside and beyond the data, and which setting stands out."""

from __future__ import annotations

import json

import numpy as np
import pytest

import isocompute
from isocompute import InputError
from isocompute.core.curve import Curve
from isocompute.law.law import fit_law
from isocompute.planner.law import planning_law
from tests.planner.made_up import columns, sweep_curves


def test_between_the_settings_of_a_sweep_nothing_stands_in() -> None:
    law = fit_law(sweep_curves(1e6), metric="m", replicates=50)
    plan = isocompute.plan(budget=5e5, law=law, problems_per_batch=48)
    codes = {w.code for w in plan.warnings}
    assert plan.allocation.problems_per_batch == 48
    assert "interpolated" in codes and "problems_not_in_law" not in codes


@pytest.mark.parametrize("budget", [204_810, f"{204_810 / 5400}h", f"${204_810 / 2700}"])
def test_where_a_rollout_costs_the_same_everywhere_none_is_the_cheapest(budget: float | str) -> None:
    """204,810 rollouts are 200 batches of 32 × 32 or 266 of 32 × 24; the latter leave 512 more of them unspent."""
    law = fit_law(sweep_curves(1e6, (24, 32)), metric="m", replicates=50)
    plan = isocompute.plan(
        budget=budget, law=law, problems_per_batch=32, rollouts_per_second=12.0, gpus=8, price_per_gpu_hour=2.0
    )
    options = (plan.chosen, *plan.alternatives)
    assert {o.allocation.update_steps for o in options} == {200, 266}
    assert not any(o.cheapest for o in options)


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


def test_a_setting_that_was_stopped_early_does_not_win_by_what_is_unknown_of_it() -> None:
    plan = isocompute.plan(budget=5e5, law=fit_law(ends_apart(), metric="avg@4", replicates=200))
    assert plan.allocation.rollouts_per_problem == 32
    (message,) = [w.message for w in plan.warnings if w.code == "extrapolated_setting"]
    assert message.startswith("whether 32 × 128 passes 32 × 32 by 500k is not known: it was run to 98.3k rollouts")


def test_inside_the_range_a_setting_is_its_own_curve() -> None:
    law = fit_law(sweep_curves(1e6), metric="m", replicates=100)
    model = planning_law(law).model
    fit = law.settings[0]
    bp, n = fit.setting
    values_AB = model.values(*columns((bp or 0, n or 0, 3e5), (bp or 0, n or 0, 9e5)))
    assert np.array_equal(values_AB, fit.draws_at(np.array([3e5, 9e5])))


def test_beyond_the_range_values_are_near_the_truth_and_less_sure() -> None:
    model = planning_law(fit_law(sweep_curves(1.25e5), metric="m", replicates=200)).model
    rows = [(bp, n, 1e6) for bp in (32, 64) for n in (8, 16, 32, 64)]
    values_AB = model.values(*columns(*rows))
    truth_A = np.array([0.3 + 0.3 / (1 + (2e4 * (n / 8) ** 0.5 / 1e6) ** 1.2) for _, n, _ in rows])
    assert np.abs(values_AB.mean(axis=1) - truth_A).max() < 0.04
    near_AB = model.values(*columns(*[(bp, n, 1.2e5) for bp, n, _ in rows]))
    assert (values_AB.std(axis=1) > 1.2 * near_AB.std(axis=1)).all()


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


def test_a_setting_that_was_not_run_is_read_between_those_that_were() -> None:
    law = fit_law(sweep_curves(1e6), metric="m", replicates=200)
    model = planning_law(law).model
    truth = 0.3 + 0.3 / (1 + (2e4 * (24 / 8) ** 0.5 / 5e5) ** 1.2)
    values_AB = model.values(*columns((32, 24, 5e5)))
    assert values_AB.mean() == pytest.approx(truth, abs=0.01)
    fewer = fit_law(sweep_curves(1e6, (8, 16)), metric="m", replicates=100)
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
