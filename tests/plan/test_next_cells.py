"""Which cells a study of `plan --next` may have."""

from __future__ import annotations

from isocompute.allocation import Allocation
from isocompute.plan.next_cells import common_targets


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
