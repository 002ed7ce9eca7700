"""What to believe about a setting past its last point.

Curves fitted one by one fan out there (a large n that made thirty updates can be drawn to any ceiling), and the
surface through all of them is good at growth that has begun and bad at growth that has not. So growth is believed in
proportion to how much has been seen of it. With the growth g that the surface gives, the rise r seen so far and
w = max(0, 1 - g/r),

    value(C) = w · (own(last) + g) + (1 - w) · (reference(C) + (own - reference)(last) · 2^-d),

where the reference is the setting that leads among those run furthest and d is the number of doublings from `last` to
C: what is not believed is replaced by "it stays behind or ahead of the leader, by half as much after each doubling".

Chosen on simulated sweeps fitted up to C/8 and run to C, against the plain curves, the plain surface, the leader at
C/8, and five other weights (docs/planning.md says what each cost). All of these level off as their form does, and most
runs go on for longer: what laws up to C/8 expected at C lay below what came by 13 to 16% of the rise seen, on the
simulator and on a language model (`benchmarks/plan_ahead.py`). So half of the members let the trend of the last points
go on instead (`going_on`), by the same amount for all settings: what one setting's trend says beside another's was as
often wrong as right. What is left, shared by all settings and tilted along log n, is the `drift` between members.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from isocompute.core.arrays import Array

__all__ = ["BLIND", "KNOWN", "SAME", "TREND", "Drift", "centred", "drift", "extrapolate", "going_on", "held"]

SAME = 1.02
"""Budgets that differ by a batch are the same budget."""
TREND = 0.7
"""Share of its slope, for each doubling of compute, with which a trend goes on, as in the forecasts of single runs."""
_FURTHEST = 4.0
"""Doublings for which it does: nobody has looked further."""
_HALVINGS = 40


@dataclass(frozen=True)
class Drift:
    """Standard deviations of what growth may get wrong, as shares of the rise seen, for each doubling of compute."""

    shared: float
    """By all settings."""
    along_rollouts: float
    """Between the middle of log n and its ends, in opposite directions."""
    along_problems: float
    """The same of log Bp."""
    own: float
    """By each setting for itself."""


KNOWN = Drift(shared=0.015, along_rollouts=0.05, along_problems=0.025, own=0.02)
"""Of laws that know where their runs were heading. 80% intervals at eight times the data's compute hold 92% of values
and 81 to 92% of differences between settings, which are what a plan is made of, on 70 simulated sets, and 77 to 82% and
62 to 100% on a language model's sweeps (docs/plan_quality.md)."""
BLIND = Drift(shared=0.05, along_rollouts=0.03, along_problems=0.015, own=0.01)
"""Of others, such as published ones, which level off as their form does."""


def extrapolate(
    *,
    own_AB: Array,
    growth_AB: Array,
    reference_AB: Array,
    reference_there_AB: Array,
    base: float,
    doublings_A: Array,
) -> Array:
    """Values of settings this many doublings past their last points, under every member.

    `own_AB` and `reference_AB` are a setting and the reference at the setting's last point, `reference_there_AB` the
    reference where the value is asked for; `base` is where all curves start from.
    """
    rise_A1 = np.maximum(own_AB.mean(axis=1, keepdims=True) - base, 1e-9)
    believed_A1 = np.maximum(0.0, 1.0 - growth_AB.mean(axis=1, keepdims=True) / rise_A1)
    follows_AB = reference_there_AB + (own_AB - reference_AB) * 0.5 ** doublings_A[:, None]
    return np.asarray(believed_A1 * (own_AB + growth_AB) + (1.0 - believed_A1) * follows_AB)


def going_on(*, trend_S: Array, growth_SA: Array, doublings_A: Array) -> Array:
    """How much higher settings end, so many doublings past their last points, if they go on as they did there and not
    as their form has it: the median over settings, never below 0.

    `trend_S` is the rise of each setting over a doubling where its runs end, `growth_SA` what its form expects.
    """
    further_A = TREND * np.minimum(doublings_A, _FURTHEST)
    return np.asarray(np.maximum(0.0, np.median(trend_S[:, None] * further_A - growth_SA, axis=0)))


def drift(
    *,
    settings: Sequence[tuple[int, int]],
    problems_A: Array,
    rollouts_A: Array,
    doublings_A: Array,
    rise: float,
    shares: Drift,
    members: int,
    seed: int,
) -> Array:
    """What extrapolation may get wrong; its mean over the members is zero."""
    rng = np.random.default_rng([seed, 2])
    run_S2 = np.array(settings, dtype=np.float64)
    shared_QB = centred(rng, (3, members))
    own = dict(zip(settings, centred(rng, (len(settings), members)), strict=True))
    none_B = np.zeros(members)
    keys = zip(problems_A.astype(int).tolist(), rollouts_A.astype(int).tolist(), strict=True)
    own_AB = np.stack([own.get(key, none_B) for key in keys])
    drift_AB = (
        shares.shared * shared_QB[0]
        + shares.along_rollouts * _position(rollouts_A, run_S2[:, 1])[:, None] * shared_QB[1]
        + shares.along_problems * _position(problems_A, run_S2[:, 0])[:, None] * shared_QB[2]
        + shares.own * own_AB
    )
    return np.asarray(rise * doublings_A[:, None] * drift_AB)


def _position(values_A: Array, among: Array) -> Array:
    """log2 of a value on a scale on which those that were run go from -1 to 1."""
    low, high = np.log2(among.min()), np.log2(among.max())
    return np.asarray((2.0 * np.log2(values_A) - low - high) / max(high - low, 1.0))


def centred(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    """Standard normal draws whose rows have mean zero."""
    z = rng.standard_normal(shape)
    return np.asarray(z - z.mean(axis=1, keepdims=True))


def held(values_AB: Array, low: float, high: float) -> Array:
    """Values that no member takes out of these bounds, and whose means stay where they were.

    Cut alone, members that go both ways from .99 would have a mean of .96: the closer to a ceiling and the less sure a
    setting is, the less would be expected of it. So a row is moved until the cut leaves its mean. One whose mean is
    itself outside is only cut.
    """
    out_AB, all_A = np.clip(values_AB, low, high), values_AB.mean(axis=1)
    off_A = (out_AB != values_AB).any(axis=1) & (low < all_A) & (all_A < high)
    if not off_A.any():
        return np.asarray(out_AB)
    some_AB = values_AB[off_A]
    mean_A1, most_A1 = all_A[off_A, None], np.ptp(some_AB, axis=1, keepdims=True)
    least_A1 = -most_A1
    for _ in range(_HALVINGS):  # the mean rises with the shift
        shift_A1 = (least_A1 + most_A1) / 2
        under_A1 = np.clip(some_AB + shift_A1, low, high).mean(axis=1, keepdims=True) < mean_A1
        least_A1, most_A1 = np.where(under_A1, shift_A1, least_A1), np.where(under_A1, most_A1, shift_A1)
    out_AB[off_A] = np.clip(some_AB + most_A1, low, high)
    return np.asarray(out_AB)
