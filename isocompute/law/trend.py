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
"""Of compute, before the end of the longest run, whose points count."""
_FEWEST = 4
"""Points that a slope takes."""
_LEAST_SPAN = 1.0
"""Doublings that they have to lie apart."""
_ROUNDING = 1e-9


def last_trend(curves: Sequence[Curve]) -> float | None:
    """Slope in log2 compute, each run around its own level, since seeds differ in that and may end at different places;
    None where too few points lie there.

    >>> compute_C = np.array([1.0, 2.0, 4.0, 6.0, 8.0, 16.0])
    >>> last_trend([Curve("a", compute_C, 0.01 * np.log2(compute_C) + (compute_C > 1))])  # doctest: +ELLIPSIS
    0.01...
    """
    start = max(float(curve.compute_C[-1]) for curve in curves) / 2.0**_DOUBLINGS
    x_R, y_R = [], []
    for curve in curves:
        late_C = curve.compute_C >= start * (1 - _ROUNDING)
        if late_C.any():
            x_R.append(np.log2(curve.compute_C[late_C] / start))
            y_R.append(curve.values_C[late_C])
    if sum(map(len, x_R)) < _FEWEST or max(float(np.ptp(x_C)) for x_C in x_R) < _LEAST_SPAN * (1 - _ROUNDING):
        return None
    off_R = [x_C - x_C.mean() for x_C in x_R]
    rise = sum(float(off_C @ y_C) for off_C, y_C in zip(off_R, y_R, strict=True))
    return rise / sum(float(off_C @ off_C) for off_C in off_R)
