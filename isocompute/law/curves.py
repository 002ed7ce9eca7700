"""Which points of a curve are fitted, and which runs are seeds of one setting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from isocompute.core.arrays import Array, Ints
from isocompute.core.curve import MINIMUM_POINTS, Curve, Setting
from isocompute.core.errors import InputError
from isocompute.law.collapse import collapsed_early, usable_end, usable_mask

__all__ = [
    "DEFAULT_BIN",
    "MAXIMUM_POINTS",
    "last_trend",
    "record_points",
    "settings_of",
    "usable_curves",
    "usable_points",
]

MAXIMUM_POINTS = 256
"""Longer curves are averaged into this many points: evaluation noise shrinks, the shape stays."""
DEFAULT_BIN = 0.005
"""Bin of record-breaking points, of the metric's scale: the IsoCompute paper's."""


def usable_curves(
    curves: Sequence[Curve], *, metric: str, points: str = "all", bin_width: float = DEFAULT_BIN
) -> list[Curve]:
    """The usable points of each curve; an error names the first that has too few."""
    if not curves:
        raise InputError("there are no runs to fit; give a folder of runs or a table with at least one run.")
    for curve in curves:
        if collapsed_early(curve):
            raise InputError(
                f"run '{curve.name}', column '{metric}': it collapses within its first "
                f"{usable_end(curve.values_C)} evaluations, before there is a curve to fit; leave it out: "
                f"--without '{curve.name}'."
            )
    usable = [usable_points(curve, points=points, bin_width=bin_width) for curve in curves]
    for curve in usable:
        leave_out = f"leave the run out: --without '{curve.name}'."
        if len(curve.compute_C) < MINIMUM_POINTS:
            records = points == "records"
            raise InputError(
                f"run '{curve.name}', column '{metric}': {len(curve.compute_C)} "
                f"{'record-breaking points' if records else 'usable points'}, a fit needs {MINIMUM_POINTS}; evaluate "
                f"more often{', use a smaller --bin, or fit --points all.' if records else f' or {leave_out}'}"
            )
        if np.ptp(curve.values_C) == 0:
            raise InputError(
                f"run '{curve.name}', column '{metric}': all {len(curve.values_C)} values are "
                f"{curve.values_C[0]:g}; a constant has no curve: check the metric or {leave_out}"
            )
    return usable


def usable_points(curve: Curve, *, points: str = "all", bin_width: float = DEFAULT_BIN) -> Curve:
    """What a monotone fit may use: up to a collapse, without dips, and all of it or only the records."""
    keep_C = usable_mask(curve.values_C)
    if not keep_C.all():
        curve = replace(curve, compute_C=curve.compute_C[keep_C], values_C=curve.values_C[keep_C])
    if points == "records":
        keep = record_points(curve.compute_C, curve.values_C, bin_width=bin_width)
        return replace(curve, compute_C=curve.compute_C[keep], values_C=curve.values_C[keep])
    return curve.averaged(MAXIMUM_POINTS)


def record_points(compute_C: Array, values_C: Array, *, bin_width: float = DEFAULT_BIN) -> Ints:
    """Indices of the record-breaking points, in order of compute (IsoCompute figures 5 and 15).

    A point counts if its reward, rounded down to a bin, is above that of every point with less compute.

    >>> record_points(np.array([1.0, 2, 3, 4]), np.array([0.1, 0.3, 0.302, 0.4])).tolist()
    [0, 1, 3]
    """
    if not bin_width > 0:
        raise InputError(f"the reward bin is {bin_width:g}; it must be above 0 (the paper uses {DEFAULT_BIN}).")
    order = np.argsort(compute_C, kind="stable")
    # A value that sits on a bin's edge up to rounding belongs to that bin: .3 / .005 is 59.999…
    bins_C = np.floor(values_C[order] / bin_width + 1e-9)
    # Only points with strictly less compute can forbid a record, so ties in compute look back to before the tie.
    first_of_tie_C = np.searchsorted(compute_C[order], compute_C[order], side="left")
    best_before_C = np.concatenate([[-np.inf], np.maximum.accumulate(bins_C)])[first_of_tie_C]
    return order[bins_C > best_before_C].astype(np.int64)


def settings_of(curves: Sequence[Curve]) -> list[list[int]]:
    """Indices of the runs of each setting, smaller n and Bp first.

    Seeds share Bp, n and the rest of their recipe; a run whose n is unknown is a setting of its own.
    """
    out: dict[tuple[Setting, str, str], list[int]] = {}
    order = sorted(
        range(len(curves)), key=lambda i: (curves[i].rollouts_per_problem or 0, curves[i].problems_per_batch or 0)
    )
    for i in order:
        known = curves[i].rollouts_per_problem is not None
        out.setdefault((curves[i].setting, curves[i].recipe, "" if known else curves[i].name), []).append(i)
    return list(out.values())


_DOUBLINGS = 2.0
"""Of compute, before the end of the longest run, whose points make the trend."""
_LEAST_SPAN = 1.0
"""Doublings that the points of a trend have to span."""
_ROUNDING = 1e-9


def last_trend(curves: Sequence[Curve]) -> float | None:
    """Rise for each doubling of compute over a setting's last two doublings; None where too few points lie there.

    A fitted form is decided mostly by its steep beginning; an extrapolation should see the last points too. The slope
    is taken around each run's own level, since seeds differ in that and may end at different compute.

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
    if sum(map(len, x_R)) < MINIMUM_POINTS or max(float(np.ptp(x_C)) for x_C in x_R) < _LEAST_SPAN * (1 - _ROUNDING):
        return None
    off_R = [x_C - x_C.mean() for x_C in x_R]
    rise = sum(float(off_C @ y_C) for off_C, y_C in zip(off_R, y_R, strict=True))
    return rise / sum(float(off_C @ off_C) for off_C in off_R)
