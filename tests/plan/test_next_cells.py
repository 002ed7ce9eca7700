"""Which cells a study of `plan --next` may have."""

from __future__ import annotations

import numpy as np
import pytest

from isocompute.allocation import Allocation
from isocompute.law import Curve, fit_law
from isocompute.plan.curves import Curves
from isocompute.plan.load_law import load_law
from isocompute.plan.next_cells import candidate_cells, common_targets


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
    law = load_law(fit_law(curves, metric="m", replicates=50))
    assert isinstance(law.model, Curves)
    targets = [Allocation(32, n, 1_000_000 // (32 * n)) for n in (8, 16, 32)]
    cells = candidate_cells(law.model, targets, per_unit=lambda _: 1.0)
    assert min(cell.compute for cell in cells) > 0.9e6
    assert {cell.rollouts_per_problem for cell in cells} == {8, 16, 32}
