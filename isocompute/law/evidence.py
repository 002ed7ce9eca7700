"""Which family a curve follows: Akaike weights with the small-sample correction (AICc).

The IsoCompute paper draws sigmoids, its own figures follow exponentials, ScaleRL uses Hill curves: the form is a choice
to test. Every curve is fitted with all families; the weights say how much the data support each, the best one is
named, and the intervals mix the families by weight (see `bootstrap`), because with 15 to 60 evaluations several forms
fit equally well and disagree about the ceiling.
"""

from __future__ import annotations

import numpy as np

from isocompute.arrays import Array
from isocompute.law.families import FAMILIES

__all__ = ["akaike_weights"]


def akaike_weights(sse_FR: Array, points_R: Array, *, variance_floor_R: Array) -> Array:
    """Weights of the families (rows as in FAMILIES) for each fit; columns sum to 1.

    `variance_floor_R` is the smallest residual variance worth telling apart: without it a noise-free curve would
    choose on rounding. A family with as many parameters as points gets no weight unless no family has fewer.
    """
    free_F = np.array([family.free for family in FAMILIES], dtype=np.float64)[:, None]
    variance_FR = np.maximum(sse_FR / points_R, variance_floor_R)
    spare_FR = points_R[None, :] - free_F - 2.0
    correction_FR = np.where(
        spare_FR > 0,
        2.0 * (free_F + 1) * (free_F + 2) / np.maximum(spare_FR, 1.0),
        2.0 * (free_F + 1) * (free_F + 2) * (2.0 - spare_FR),
    )
    score_FR = points_R * np.log(variance_FR) + 2.0 * (free_F + 1) + correction_FR
    weights_FR = np.exp(-0.5 * (score_FR - score_FR.min(axis=0)))
    return np.asarray(weights_FR / weights_FR.sum(axis=0))
