"""Which family a curve follows: Akaike weights.

The IsoCompute paper draws sigmoids, its own figures follow exponentials, ScaleRL uses Hill curves: the form is a choice
to test. Every curve is fitted with all families; the weights say how much the data support each, the best one is named,
and the intervals mix the families by weight (see `fits`), because with 15 to 60 evaluations several forms fit equally
well and disagree about the ceiling.

The plain criterion is used, not the small-sample one (AICc): with the latter the two-parameter family gets too little
weight, and 95% intervals of a true Hill curve's ceiling covered 88% on 30 log-spaced points instead of 92%.
"""

from __future__ import annotations

import numpy as np

from isocompute.core.arrays import Array
from isocompute.law.families import FAMILIES

__all__ = ["akaike_weights"]

_TOO_FEW = 1e3


def akaike_weights(sse_FR: Array, points_R: Array, *, variance_floor_R: Array) -> Array:
    """Weights of the families (rows as in FAMILIES) for each fit; columns sum to 1.

    `variance_floor_R` is the smallest residual variance worth telling apart: without it a noise-free curve would
    choose on rounding. A family with as many parameters as there are points gets no weight if another has fewer.
    """
    free_F1 = np.array([[float(family.free)] for family in FAMILIES])
    variance_FR = np.maximum(sse_FR / points_R, variance_floor_R)
    score_FR = points_R * np.log(variance_FR) + 2.0 * free_F1
    score_FR += np.where(points_R - free_F1 < 1, _TOO_FEW * (free_F1 - points_R + 1), 0.0)
    weights_FR = np.exp(-0.5 * (score_FR - score_FR.min(axis=0)))
    return np.asarray(weights_FR / weights_FR.sum(axis=0))
