"""Settings of a law against each other: by themselves, or with what their neighbours say (`plan.neighbours`).

Neighbours are all settings that the law was measured at, whatever the constraints leave to choose from: what is
forbidden is no less true.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from isocompute.core.allocation import Allocation
from isocompute.core.arrays import Array
from isocompute.core.formatting import value
from isocompute.planner.advice import Warned
from isocompute.planner.decision import TOLERANCE, Ranked
from isocompute.planner.grid import columns, only_problems, started
from isocompute.planner.model import PlanningLaw
from isocompute.planner.neighbours import FEWEST, Setting, borrow, own_errors
from isocompute.planner.spending import Prices

__all__ = ["OWN_AND_COMPARED", "compared", "higher_by_itself", "with_neighbours"]

OWN_AND_COMPARED = "each setting's own value and interval; best and regret count what neighbouring settings show, too"
"""What a table of settings is made of where neighbours were asked."""

_LIFT = 0.5

Buys = Callable[[int, int], float]
"""Rollouts that are spent at a Bp and n."""


def with_neighbours(law: PlanningLaw, prices: Prices, targets: Sequence[Allocation], buys: Buys) -> Array | None:
    """Values of allocations that spend what `buys` says, allocations × members; None where nothing is borrowed: of a
    law that was published, or of too few settings.
    """
    if not law.borrows:
        return None
    only = only_problems(law)
    asked = [(only or a.problems_per_batch, a.rollouts_per_problem) for a in targets]
    computes = dict(zip(asked, columns(law, prices, targets)[2].tolist(), strict=True))
    paid = {key: int(buys(*key) // (key[0] * key[1])) for key in law.model.settings() if key not in computes}
    others = [Allocation(*key, updates) for key, updates in paid.items() if updates]
    if others:
        keys = [(a.problems_per_batch, a.rollouts_per_problem) for a in others]
        computes |= dict(zip(keys, columns(law, prices, others)[2].tolist(), strict=True))
    return compared(law, computes, asked)


def compared(law: PlanningLaw, computes: Mapping[Setting, float], asked: Sequence[Setting]) -> Array | None:
    """Values of settings (Bp, n of the law's own Bp) at these computes, asked × members; None where too few of the
    law's settings are among them and have begun.
    """
    known = law.model.settings()
    begun = [key for key in known if key in computes]
    if begun:
        grid = (*np.array(begun, dtype=np.float64).T, np.array([computes[key] for key in begun]))
        begun = [key for key, has in zip(begun, started(law, *grid).tolist(), strict=True) if has or key in asked]
    if len(begun) < FEWEST:
        return None
    bp_R, n_R = np.array(begun, dtype=np.float64).T
    values_RB = law.values(bp_R, n_R, np.array([computes[key] for key in begun]))
    values_RB = values_RB + law.seed_draws(begun, values_RB.shape[1])
    # All of the law's settings have a place, so that members are the same at every compute.
    out_AB = borrow(values_RB, begun, [*asked, *known])[: len(asked)]
    return np.asarray(out_AB - _too_high(out_AB.mean(axis=1), asked, values_RB, begun)[:, None])


def _too_high(mean_A: Array, asked: Sequence[Setting], values_RB: Array, measured: Sequence[Setting]) -> Array:
    """Luck is taken off a setting as far as its neighbours say; bad luck is made good by half of its error at most.

    A setting that did badly in few runs may be one that does badly, such as the largest batch of a sweep, and whoever
    runs it has nothing but its neighbours to hope for. One that was not run is held to what lies between those beside
    it.
    """
    most_R = values_RB.mean(axis=1) + _LIFT * own_errors(values_RB, measured)
    out_A = np.zeros(len(asked))
    for i, (bp, n) in enumerate(asked):
        near = min((key[0] for key in measured), key=lambda other: abs(np.log(other / bp)))
        beside = [j for j, key in enumerate(measured) if key[0] == near]
        limit = np.interp(np.log(n), np.log([measured[j][1] for j in beside]), most_R[beside])
        out_A[i] = max(0.0, float(mean_A[i]) - float(limit))
    return out_A


def higher_by_itself(targets: Sequence[Allocation], ranking: Sequence[Ranked]) -> list[Warned]:
    """Say so where a setting came out higher than the chosen one, which its neighbours do not bear out."""
    chosen, highest = ranking[0], max(ranking, key=lambda ranked: ranked.value)
    if value(highest.value) == value(chosen.value) or highest.regret <= TOLERANCE:
        return []
    other, own = (
        f"{targets[r.index].problems_per_batch} × {targets[r.index].rollouts_per_problem}" for r in (highest, chosen)
    )
    return [
        Warned(
            "neighbours",
            f"by itself {other} comes out higher ({value(highest.value)}, {own} {value(chosen.value)}); the settings "
            "around it do not bear that out, and the choice and the regrets count them, too",
        )
    ]
