"""Which cells to run next: the ones whose results would improve the decision most for each rollout spent.

A candidate is a setting run to some compute. Its result is a noisy look at the law; the ensemble says how that look
moves the expected value of every allocation at the target budget. With the ensemble's means m, covariance and an
observation noise σ, the expectation after the look is

    m_a + z · cov(a, e) / √(var(e) + σ²),   z standard normal,

and the value of the look is the expected rise of the best of them, E[max_a] - max_a m_a (the knowledge gradient for
correlated beliefs: Frazier, Powell and Dayanik 2009). Further cells are added greedily, with the covariance that is
left after the ones before. The looks are jointly Gaussian by assumption; the ensemble is only used for its moments.

Only settings that may well be the best are looked at (`contenders`). What a look at another would tell of them rests on
how members differ between settings, which beyond the data is mostly a tilt along log n: by that alone the ends of n are
worth most, and they tell less of its middle than it says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from isocompute.core.allocation import Allocation
from isocompute.core.arrays import Array
from isocompute.planner.curves import Curves

__all__ = ["SHARES", "Proposal", "candidate_cells", "common_targets", "contenders", "propose"]

SHARES = (0.5, 1.0)
"""Candidates run a setting to these shares of the budget. Shorter runs are cheap and say little of its end: with
eighths and quarters of it among them, decisions end where they would without (docs/plan_quality.md)."""
_CHANCE = 0.1
"""Of being the best, from which on a setting is looked at."""
_DRAWS = 1024
_NOTHING = 1e-5
"""An expected gain so small is none."""
_SAME = 1e-9
_LEVELS = 8
"""Numbers of rollouts that are tried as those of a study."""
_WORTH = 1.5
"""A candidate goes at least this much further than the setting's last evaluation, which may lie before its end."""


@dataclass(frozen=True)
class Proposal:
    """A cell to run."""

    allocation: Allocation
    gain: float
    """Expected rise of the chosen allocation's value, in units of the metric, on top of the proposals before it."""
    gain_per_million: float
    """The same for each million rollouts of the cell."""


def common_targets(targets: Sequence[Allocation], bought: Sequence[float]) -> list[list[Allocation]]:
    """The targets in groups that go to the same rollouts, as the cells of a study do.

    `bought` are the rollouts that the budget buys at each target. Where they are the same, so are the targets. Hours or
    money buy more of them at one setting than at another: then, for some of these numbers from the smallest to the
    largest, there is a group of all that can pay it.
    """
    if max(bought) <= min(bought) * (1 + _SAME):
        return [list(targets)]
    every = sorted(set(bought))
    some = np.linspace(0, len(every) - 1, min(len(every), _LEVELS)).round().astype(int)
    return [
        [
            Allocation(target.problems_per_batch, target.rollouts_per_problem, int(level // target.batch_size))
            for target, rollouts in zip(targets, bought, strict=True)
            if rollouts >= level >= target.batch_size
        ]
        for level in (every[i] for i in some.tolist())
    ]


def candidate_cells(
    model: Curves, targets: Sequence[Allocation], *, per_unit: Callable[[Allocation], float]
) -> list[Allocation]:
    """Every target setting, to every share of its budget that goes beyond what was run; and to all of it once more.

    `per_unit` is the law's unit of compute for one rollout.
    """
    out = []
    for target in targets:
        done = model.last(target.problems_per_batch, target.rollouts_per_problem) / per_unit(target)
        for share in SHARES:
            updates = int(target.update_steps * share)
            cell = Allocation(target.problems_per_batch, target.rollouts_per_problem, updates)
            if updates >= 2 and (share == 1.0 or cell.compute > _WORTH * done):
                out.append(cell)
    return out


def contenders(cells: Sequence[Allocation], targets: Sequence[Allocation], values_AB: Array) -> list[Allocation]:
    """The cells of settings that are the best of all targets under a tenth of the members; all where there is none."""
    best_A = np.bincount(values_AB.argmax(axis=0), minlength=len(targets)) >= _CHANCE * values_AB.shape[1]
    among = {(targets[a].problems_per_batch, targets[a].rollouts_per_problem) for a in np.flatnonzero(best_A).tolist()}
    return [cell for cell in cells if (cell.problems_per_batch, cell.rollouts_per_problem) in among] or list(cells)


def propose(
    *, values_AB: Array, looks_EB: Array, cells: Sequence[Allocation], count: int, noise: float, seed: int = 0
) -> list[Proposal]:
    """The best `count` cells, in order, that share one Bp and one compute (so that they are one study).

    `values_AB` are the allocations to decide between at the budget, `looks_EB` what each cell would show, both under
    every member of the ensemble.
    """
    settings = len(values_AB)
    both_QB = np.concatenate([values_AB, looks_EB])
    mean_A = values_AB.mean(axis=1)
    covariance_QQ = np.cov(both_QB)
    known_AZ = np.zeros((settings, _DRAWS))
    rng = np.random.default_rng(seed)
    left = list(range(len(cells)))
    out: list[Proposal] = []
    while left and len(out) < count:
        z_Z = rng.standard_normal(_DRAWS // 2)
        z_Z = np.concatenate([z_Z, -z_Z])
        so_far = float((mean_A[:, None] + known_AZ).max(axis=0).mean())
        best: tuple[float, float, int, Array] | None = None
        for e in left:
            q = settings + e
            spread = np.sqrt(covariance_QQ[q, q] + noise**2)
            moved_AZ = known_AZ + np.outer(covariance_QQ[:settings, q] / spread, z_Z)
            gain = max(0.0, float((mean_A[:, None] + moved_AZ).max(axis=0).mean()) - so_far)
            rate = gain / cells[e].compute
            if best is None or rate > best[0]:
                best = (rate, gain, e, moved_AZ)
        if best is None or best[1] <= _NOTHING:
            break
        rate, gain, e, known_AZ = best
        q = settings + e
        look_Q = covariance_QQ[:, q] / np.sqrt(covariance_QQ[q, q] + noise**2)
        covariance_QQ = covariance_QQ - np.outer(look_Q, look_Q)
        out.append(Proposal(cells[e], gain, rate * 1e6))
        left = [i for i in left if i != e and _one_study(cells[i], cells[e])]
    return out


def _one_study(cell: Allocation, first: Allocation) -> bool:
    """A study is a grid at one budget: the same Bp, another n, the same compute but for rounding to whole updates."""
    same = abs(cell.compute - first.compute) <= max(cell.batch_size, first.batch_size)
    other = cell.rollouts_per_problem != first.rollouts_per_problem
    return cell.problems_per_batch == first.problems_per_batch and same and other
