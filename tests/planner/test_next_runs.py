"""The cells of a study by `plan --next`."""

from __future__ import annotations

import numpy as np
import pytest

import isocompute
from isocompute.core.allocation import Allocation
from isocompute.core.curve import Curve
from isocompute.law.law import fit_law
from isocompute.planner.law import Curves, planning_law
from isocompute.planner.next_runs import candidate_cells, common_targets, likely_best, next_cells, propose


def test_cells_go_to_the_same_rollouts_and_none_is_left_out_of_all_groups() -> None:
    """Hours buy 40 settings different numbers of rollouts: some of these are tried, the least of them by all."""
    targets = [Allocation(32, n, 10_000) for n in range(1, 41)]
    bought = [1e6 + 1e4 * target.rollouts_per_problem for target in targets]
    groups = common_targets(targets, bought)
    assert 2 <= len(groups) <= 8
    sizes = [len(group) for group in groups]
    assert max(sizes) == len(targets) and min(sizes) == 1
    for group in groups:
        spent = [target.compute for target in group]
        assert max(spent) - min(spent) < max(target.batch_size for target in group)


def test_a_budget_of_rollouts_is_the_same_for_all() -> None:
    targets = [Allocation(32, n, 1_000_000 // (32 * n)) for n in (4, 8, 16)]
    assert common_targets(targets, [1e6] * 3) == [targets]


@pytest.mark.parametrize("last", [0.48, 0.4, 0.36])
def test_a_run_that_was_last_evaluated_before_its_end_is_not_proposed_again(last: float) -> None:
    """Run to half of the budget, evaluated a third before: the next look is at all of it."""
    compute_C = np.geomspace(0.01, last, 12) * 1e6
    curves = [
        Curve(f"n{n}", compute_C, 0.3 + 0.2 * (1 - np.exp(-compute_C / 5e4)) + 0.001 * n**0.5, 32, n, seed=0)
        for n in (8, 16, 32)
    ]
    law = planning_law(fit_law(curves, metric="m", replicates=50))
    assert isinstance(law.model, Curves)
    targets = [Allocation(32, n, 1_000_000 // (32 * n)) for n in (8, 16, 32)]
    cells = candidate_cells(law.model, targets, per_unit=lambda _: 1.0)
    assert min(cell.compute for cell in cells) > 0.9e6
    assert {cell.rollouts_per_problem for cell in cells} == {8, 16, 32}


def test_only_what_may_be_the_best_is_looked_at() -> None:
    """Samples that differ by a tilt along n alone: a look at either end would tell all, and n = 4 is never the best."""
    rollouts = (4, 8, 16, 32, 64)
    targets = [Allocation(32, n, 1_000_000 // (32 * n)) for n in rollouts]
    tilt_B, at_A = np.random.default_rng(0).standard_normal(400), np.array([-1.5, -0.5, 0.0, 0.5, 1.0])
    values_AB = np.array([0.3, 0.48, 0.5, 0.5, 0.495])[:, None] + 0.02 * np.outer(at_A, tilt_B)
    best_A = np.bincount(values_AB.argmax(axis=0), minlength=5) / 400
    assert best_A[0] == 0.0 and (best_A[2:] > 0).all()
    everything = propose(values_AB=values_AB, observed_EB=values_AB, cells=targets, count=1, noise=0.003)
    assert everything[0].allocation.rollouts_per_problem == 4, "by the tilt alone"
    kept = likely_best(targets, targets, values_AB)
    assert [cell.rollouts_per_problem for cell in kept] == [
        n for n, chance in zip(rollouts, best_A, strict=True) if chance >= 0.1
    ]
    assert 4 not in [cell.rollouts_per_problem for cell in kept] and len(kept) >= 2
    assert likely_best(targets[:1], targets, values_AB) == targets[:1], "nothing else is left to look at"


def test_a_plan_proposes_likely_best_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs to a fiftieth of the budget, n = 32 ahead: the ends of n would tell most of where they are heading."""
    compute_C = np.geomspace(2e3, 8e4, 24)
    curves = [
        Curve(
            f"n{n}-{seed}",
            compute_C,
            0.3
            + (0.25 - 0.02 * abs(np.log2(n / 32))) * (1 - np.exp(-compute_C / 6e4))
            + 0.003 * np.random.default_rng([n, seed]).standard_normal(24),
            32,
            n,
            seed=seed,
        )
        for n in (4, 8, 16, 32, 64, 128, 256)
        for seed in (0, 1)
    ]
    law = fit_law(curves, metric="avg@4", replicates=200)
    plan = isocompute.plan(budget=4e6, law=law, extrapolate=True)
    best_A = np.bincount(plan.values_AB.argmax(axis=0), minlength=len(plan.targets)) / plan.values_AB.shape[1]
    chance = dict(zip([a.rollouts_per_problem for a in plan.targets], best_A.tolist(), strict=True))
    proposed = [p.allocation.rollouts_per_problem for p in next_cells(plan, 3)]
    assert proposed and all(chance[n] >= 0.1 for n in proposed)
    monkeypatch.setattr("isocompute.planner.next_runs.likely_best", lambda cells, _targets, _values: cells)
    everything = [p.allocation.rollouts_per_problem for p in next_cells(plan, 3)]
    assert any(chance[n] < 0.1 for n in everything), "or this shows nothing"


@pytest.mark.parametrize("ns", [(8, 16), (16,)], ids=str)
def test_n_beyond_those_that_were_run_are_proposed_where_the_best_lies_at_the_edge(ns: tuple[int, ...]) -> None:
    """The larger n leads at the end; with one n, nothing says which side is better."""
    compute_C = np.geomspace(2e3, 1e6, 30)
    curves = [
        Curve(
            f"n{n}-{seed}",
            compute_C,
            0.3
            + (0.15 + 0.05 * np.log2(n / 8)) * (1 - np.exp(-compute_C / (2e4 * n)))
            + 0.003 * np.random.default_rng([n, seed]).standard_normal(30),
            32,
            n,
            seed=seed,
        )
        for n in ns
        for seed in (0, 1)
    ]
    law = fit_law(curves, metric="avg@4", replicates=300)
    proposed = {p.allocation.rollouts_per_problem for p in next_cells(isocompute.plan(budget=1e6, law=law), 3)}
    assert proposed & ({32, 64} if len(ns) > 1 else {4, 8, 32, 64})
    bounded = isocompute.plan(budget=1e6, law=law, rollouts_per_problem=ns)
    assert {p.allocation.rollouts_per_problem for p in next_cells(bounded, 3)} <= set(ns)
