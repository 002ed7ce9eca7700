"""The level that a run is at, by the rule of `health`: the same in `forecast` and `report`.

It stands apart from the forecaster, whose members and verdict were measured with the mean of the last three values:
a level where evaluations are quiet, and noise where every point is one batch of training.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from isocompute.diagnose.health.rewards import reward_of
from isocompute.diagnose.health.series import Series
from isocompute.law.curve import noise_level, scale_of
from isocompute.law.falls import lasting_fall

if TYPE_CHECKING:
    from isocompute.law import Curve

__all__ = ["present_level"]

_FEWEST = 3


def present_level(curve: Curve) -> float:
    """Mean of the last values, as many as bring its error to .02 of the scale: three at least and twenty at most.

    `health` watches a run from its first point and begins with a guess of the noise, which makes the mean of a short
    run a long one; here the whole curve says how noisy it is. After a fall only what came after it counts, be it one
    value, and where the run broke the last three: `forecast` expects no more of it.
    """
    values_T = curve.values_C
    fall = lasting_fall(values_T, shortest=1)
    if fall is not None or curve.lost:
        return float(values_T[fall or 0 :][-_FEWEST:].mean())
    series = Series(curve.name, np.arange(len(values_T)), values_T)
    return float(reward_of(series, prior=noise_level(values_T) / scale_of(values_T)).level_T[-1])
