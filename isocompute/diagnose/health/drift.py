"""Entropy, length and KL that drift while the reward gains nothing.

A healthy run spends entropy and KL on reward, and its responses grow or shrink as they get better: reward bought with
entropy is the rule, not the trouble. So each is compared with what it was when the reward was last at its best, not
with the start, and only a change without gain counts; where no reward is logged, with the start. The change must be a
factor that is far from ordinary, and six times the series' own noise (on a log scale, as its moves against the change
show it).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from isocompute.core.arrays import Ints
from isocompute.diagnose.health.series import Series, counter_noise, trailing_median

__all__ = ["FEWEST_FOR_DRIFT", "Drift", "first_drift"]

SIGMAS = 6.0
FEWEST_FOR_DRIFT = 2
_BEFORE = 3
"""Points that the reference is the median of."""
_NOTHING = 1e-12


@dataclass(frozen=True)
class Drift:
    """A change since the best reward, at the point where it showed."""

    at: int
    """Index in the series."""
    since: int
    """Index in the series of what it is compared with."""
    before: float
    now: float


def first_drift(
    series: Series, *, reference_R: Ints, factor: float, up: bool, prior: float, floor: float = 0.0, smooth: int = 1
) -> Drift | None:
    """The first point at which a positive series has changed by `factor` since the row of its reference.

    `reference_R` gives for every row of the run the row to compare with. Values under `floor` count as the floor: a
    factor between two numbers that are both next to nothing is no change. `prior` is the noise of its logarithm before
    it has shown its own. `smooth` is how many of the last points the
    median is taken of, for series with wild ones.
    """
    sign = 1.0 if up else -1.0
    logs_T = np.log(np.maximum(series.values_T, max(floor, _NOTHING)))
    before_T, now_T = trailing_median(logs_T, _BEFORE), trailing_median(logs_T, smooth)
    noise_T = counter_noise(sign * logs_T, prior=prior)
    for t in range(1, len(series)):
        since = max(series.until(int(reference_R[series.row_T[t]])) - 1, 0)
        change = sign * float(now_T[t] - before_T[since])
        error = float(noise_T[t]) * math.sqrt(1.0 + 1.0 / min(since + 1, _BEFORE))  # of both ends
        if since < t and change >= max(math.log(factor), SIGMAS * error):
            return Drift(t, since, float(np.exp(before_T[since])), float(np.exp(now_T[t])))
    return None
