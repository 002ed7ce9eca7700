"""Where a setting was heading when its runs ended: its rise for each doubling of compute over the last two.

A fitted form has made up its mind about how the curve levels off, mostly by its steep beginning. The last points have
not; whoever extrapolates should hear both.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from isocompute.law.curve import Curve

__all__ = ["last_trend"]

_DOUBLINGS = 2.0
_FEWEST = 3
"""Points that a slope takes."""
_LEAST_SPAN = 0.5
"""Doublings that they have to lie apart."""


def last_trend(curves: Sequence[Curve]) -> float | None:
    """Slope in log2 compute over the last two doublings of the longest run, each run around its own level, since seeds
    differ in that and may end at different places; None where too few points lie there.

    >>> compute_C = np.array([1.0, 2.0, 4.0, 8.0, 16.0])
    >>> round(last_trend([Curve("a", compute_C, np.array([0.0, 0.3, 0.4, 0.41, 0.42]))]), 9)
    0.01
    """
    start = max(float(curve.compute_C[-1]) for curve in curves) / 2.0**_DOUBLINGS
    late = [(curve, curve.compute_C >= start * (1 - 1e-9)) for curve in curves]
    x_R = [np.log2(curve.compute_C[late_C] / start) for curve, late_C in late if late_C.sum() > 1]
    y_R = [curve.values_C[late_C] for curve, late_C in late if late_C.sum() > 1]
    if sum(map(len, x_R)) < _FEWEST or max(float(np.ptp(x_C)) for x_C in x_R) < _LEAST_SPAN:
        return None
    across = sum(float(((x_C - x_C.mean()) * y_C).sum()) for x_C, y_C in zip(x_R, y_R, strict=True))
    along = sum(float(((x_C - x_C.mean()) ** 2).sum()) for x_C in x_R)
    return across / along
