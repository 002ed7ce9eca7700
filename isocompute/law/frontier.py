"""The compute-optimal frontier: the upper envelope of the fitted curves, where it switches, and how sure that is.

IsoCompute section 4.1: at every budget C the best value any setting reaches with at most C. A setting takes part from a
quarter below its first evaluated compute on (a fit says little about what came before its points), and keeps its last
value beyond its last point: with a larger budget one can still stop there. That says what is reached, not which n is
best: `bounds` marks where a larger n was not run so far.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from isocompute.core.arrays import Array, Bools, Ints
from isocompute.law.curve import scale_of
from isocompute.law.fits import CurveFit
from isocompute.law.seeds import ONE_SEED_ERROR, one_seed_spread

__all__ = [
    "REACH",
    "Frontier",
    "Switch",
    "bounds",
    "compared",
    "compute_grid",
    "ended",
    "frontier",
    "live",
    "luck_of",
    "reached",
]

REACH = 1.25
GRID_POINTS = 120
_SLACK = 1.02  # budgets that differ by a batch are the same budget
_ENOUGH = 3.0
_CUTS, _ROUNDS = 256, 4
"""Rounds in which the place of a crossing is cut into this many: to a billionth of a step of the grid."""


@dataclass(frozen=True)
class Switch:
    """The compute at which the frontier passes from one setting (an index) to another."""

    compute: float
    before: int
    after: int
    value: float
    crosses: bool
    """True where both settings were running and the lead changed; False where the new one simply begins there, already
    above the old one, or the old one had ended."""


@dataclass(frozen=True)
class Frontier:
    """The envelope on a grid of compute, for the estimate and for every bootstrap replicate."""

    compute_C: Array
    best_C: Ints
    """Index of the setting on the frontier."""
    values_C: Array
    switches: tuple[Switch, ...]
    best_BC: Ints
    """The same for every replicate, with `luck_of` its settings in it."""
    values_BC: Array


def compute_grid(fits: Sequence[CurveFit], size: int = GRID_POINTS) -> Array:
    """Log-spaced compute from the first to the last evaluation of any setting."""
    first, last = min(fit.first for fit in fits), max(fit.last for fit in fits)
    return np.geomspace(first, max(last, first * (1 + 1e-9)), size)


def live(fits: Sequence[CurveFit], compute_C: Array) -> Bools:
    """Which settings (rows) take part at which compute."""
    starts_S = np.array([fit.starts for fit in fits])
    return np.asarray(compute_C[None, :] >= starts_S[:, None] / REACH)


def compared(fits: Sequence[CurveFit], compute_C: Array) -> tuple[slice, bool]:
    """The range of the grid on which settings can be compared, and whether all of them are there.

    All settings must have begun and none have ended. Where that leaves less than a factor of three of compute (runs of
    very different ranges), the range where at least two are running stands in, and only crossings count as movement.
    """
    last_S = np.array([fit.last for fit in fits])
    running_SC = live(fits, compute_C) & (compute_C[None, :] <= last_S[:, None] * _SLACK)
    for all_of_them, needed in ((True, len(fits)), (False, min(2, len(fits)))):
        there = np.flatnonzero(running_SC.sum(axis=0) >= needed)
        if len(there) and (not all_of_them or compute_C[there[-1]] >= _ENOUGH * compute_C[there[0]]):
            return slice(int(there[0]), int(there[-1]) + 1), all_of_them
    return slice(0, 0), False


def ended(fits: Sequence[CurveFit], best_C: Ints, compute_C: Array, *, axis: int = 1) -> list[tuple[int, float] | None]:
    """At each compute the next larger n (axis 1) or Bp (axis 0) than the best, and its last compute, where it had ended
    before: whether it would lead by then nobody saw.
    """
    value_S = np.array([fit.setting[axis] or 0 for fit in fits])
    last: dict[int, float] = {}
    for value, fit in zip(value_S.tolist(), fits, strict=True):
        last[value] = max(last.get(value, 0.0), fit.last)
    above: dict[int, int] = dict(pairwise(sorted(last)))
    larger = [above.get(value) for value in value_S[best_C].tolist()]
    return [
        (n, last[n]) if n is not None and last[n] * _SLACK < compute else None
        for n, compute in zip(larger, compute_C.tolist(), strict=True)
    ]


def bounds(fits: Sequence[CurveFit], best_C: Ints, compute_C: Array, *, axis: int = 1) -> list[str | None]:
    """`>=` where the best n (axis 1) or Bp (axis 0) is the largest that was run or the next larger one had ended, `<=`
    where it is the smallest: the optimum may lie beyond it.
    """
    value_S = [fit.setting[axis] or 0 for fit in fits]
    cut = ended(fits, best_C, compute_C, axis=axis)
    edge = {min(value_S): "<=", max(value_S): ">="}
    return [">=" if gone else edge.get(value_S[best]) for best, gone in zip(best_C.tolist(), cut, strict=True)]


def reached(fit: CurveFit, compute_C: Array) -> Array:
    """What a setting reaches with at most this compute: its curve, held at its last point."""
    return fit.at(np.minimum(compute_C, fit.last))


def luck_of(fits: Sequence[CurveFit], *, seed: int) -> Array:
    """How far another seed of a setting (rows) might lie from the one that was run, by replicate.

    With one seed the others' seeds say it (`seeds.of_one`), and where no setting has several it is `compare`'s margin,
    of the scale of the points that were fitted; with several the replicates show it, and there is nothing to add.
    """
    rng = np.random.default_rng([seed, 2])
    scale = scale_of(np.concatenate([curve.values_C for fit in fits for curve in fit.curves]))
    margin = one_seed_spread(scale * ONE_SEED_ERROR)
    spread_S = [(fit.seed_spread or margin) * (len(fit.curves) == 1) for fit in fits]
    return np.stack(
        [spread * rng.standard_normal(len(fit.ensemble.base_B)) for spread, fit in zip(spread_S, fits, strict=True)]
    )


def frontier(fits: Sequence[CurveFit], compute_C: Array | None = None, *, luck_SB: Array | None = None) -> Frontier:
    """Envelope, switches and the bootstrap's envelopes over the given settings.

    `luck_SB` is how much better another seed of a setting might have been, by replicate, where the replicates do not
    know: it goes into which setting is best, not into the values.
    """
    compute_C = compute_grid(fits) if compute_C is None else compute_C
    live_SC = live(fits, compute_C)
    values_SC = np.where(live_SC, np.stack([reached(fit, compute_C) for fit in fits]), -np.inf)
    best_C = values_SC.argmax(axis=0)
    best_BC, values_BC = _replicates(fits, compute_C, live_SC, luck_SB)
    return Frontier(
        compute_C=compute_C,
        best_C=best_C,
        values_C=values_SC.max(axis=0),
        switches=_switches(fits, compute_C, best_C, live_SC),
        best_BC=best_BC,
        values_BC=values_BC,
    )


def _replicates(
    fits: Sequence[CurveFit], compute_C: Array, live_SC: Bools, luck_SB: Array | None
) -> tuple[Ints, Array]:
    """A running maximum over settings, so that memory stays at one setting's replicates."""
    shape = len(fits[0].ensemble.base_B), len(compute_C)
    best_BC, highest_BC, values_BC = np.zeros(shape, dtype=np.int64), np.full(shape, -np.inf), np.full(shape, -np.inf)
    for index, fit in enumerate(fits):
        candidate_BC = np.where(live_SC[index], fit.ensemble.at(np.minimum(compute_C, fit.last)), -np.inf)
        np.maximum(values_BC, candidate_BC, out=values_BC)
        if luck_SB is not None:
            candidate_BC += luck_SB[index][:, None]
        better_BC = candidate_BC > highest_BC
        best_BC[better_BC] = index
        highest_BC[better_BC] = candidate_BC[better_BC]
    return best_BC, values_BC


def _switches(fits: Sequence[CurveFit], compute_C: Array, best_C: Ints, live_SC: Bools) -> tuple[Switch, ...]:
    out = []
    for i in np.flatnonzero(np.diff(best_C)):
        old, new = int(best_C[i]), int(best_C[i + 1])

        def lead(log_C: Array, old: int = old, new: int = new) -> Array:
            return reached(fits[new], np.exp(log_C)) - reached(fits[old], np.exp(log_C))

        low, high = float(np.log(compute_C[i])), float(np.log(compute_C[i + 1]))
        if not live_SC[new, i]:
            low = max(low, float(np.log(fits[new].starts / REACH)))
        first, last = lead(np.array([low, high])).tolist()
        changes = first < 0 < last
        at = float(np.exp(_root(lead, low, high) if changes else low))
        crosses = changes and at <= min(fits[old].last, fits[new].last) * _SLACK
        value = float(reached(fits[new], np.array([at]))[0])
        out.append(Switch(at, old, new, value, crosses))
    return tuple(out)


def _root(rising: Callable[[Array], Array], low: float, high: float) -> float:
    """Where a function that is negative at `low` and positive at `high` turns positive."""
    for _ in range(_ROUNDS):
        grid = np.linspace(low, high, _CUTS + 1)
        first = max(1, int((rising(grid) > 0).argmax()))
        low, high = float(grid[first - 1]), float(grid[first])
    return 0.5 * (low + high)
