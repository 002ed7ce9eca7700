"""Selects the points of a curve that are fitted, and groups runs that are seeds of one setting.

Collapses and dips are left out, and long runs are averaged. `benchmarks/falls.py` measures how many collapses are
detected, and how often one is detected in a healthy run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from isocompute.core.arrays import Array, Bools, Ints
from isocompute.core.curve import MINIMUM_POINTS, Curve, Setting, median, noise_level, scale_of
from isocompute.core.errors import InputError

_ENOUGH_FOR_NOISE, _SHORT = 6, 12
"""Points needed to estimate the noise level, and to estimate it in spite of two or three low points."""
_STEPS = 2.5
"""If values move in steps, a collapse must exceed this many of the smallest."""
_DIPS = 4
"""At most one point in this many is a dip; if there are more, the run is taken as it is."""
_MOVES = 0.8
"""Values move in steps if less than this share of evaluations changes them."""


def collapse_start(values_C: Array, shortest: int = 3, *, deep: int = 1) -> int | None:
    """Index of the first point of a collapse that lasts to the end of the curve, or None.

    All points of a collapse, up to the last of the curve, lie below the best level (running median of three). They do
    so by more than four noise levels and a fifth of the rise. It must also satisfy one of these conditions:

    - it has at least `shortest` points;
    - its last `deep` points are lower by eight noise levels and half of the rise;
    - its last two points (at least `deep`) are lower by six noise levels and all of the rise.

    One or two problems more or less of a small set are no collapse.
    """
    n = len(values_C)
    if n < MINIMUM_POINTS + 1:
        return None
    if n >= _ENOUGH_FOR_NOISE:
        smooth_C = _running_median(values_C)
        best = float(smooth_C.max())
        lowest = float(values_C[: int(smooth_C.argmax()) + 2].min())
        rise = best - lowest
        noise, step = noise_level(values_C), _step_size(values_C)
        high = np.flatnonzero(values_C >= best - max(4.0 * noise, 0.2 * rise, step))
        start = int(high[-1]) + 1
        low_C = values_C[start:]
        if len(low_C) >= shortest:
            return start
        last = max(deep, 1)
        if len(low_C) >= last and float(low_C[-last:].max()) < best - max(8.0 * noise, 0.5 * rise, step):
            return start
        if len(low_C) >= max(deep, 2) and float(low_C[-2:].max()) < min(lowest, best - 6.0 * noise):
            return start
    return _short_collapse(values_C, deep) if n < _SHORT else None


def usable_end(values_C: Array) -> int:
    """How many points a monotone curve may be fitted to: those before a collapse.

    If these are too few, it is the first four points, provided that the collapse has hardly begun in them.
    """
    start = collapse_start(values_C)
    if start is None:
        return len(values_C)
    half = 0.5 * (float(values_C[:start].max()) + median(values_C[start:]))
    hardly = bool((values_C[start:MINIMUM_POINTS] > half).all())
    return max(start, MINIMUM_POINTS) if hardly else start


def usable_mask(values_C: Array) -> Bools:
    """The points that a monotone curve may be fitted to: up to a collapse, and without dips.

    A dip lies below the points before it by eight noise levels and half of the rise, and the run recovered after it. So
    the first point, the evaluation of the base model, is none, nor is the last.
    """
    end = usable_end(values_C)
    keep_C = np.arange(len(values_C)) < end
    if end < _SHORT:
        return keep_C
    here_C = values_C[:end]
    before_C, after_C = _best_before(here_C), _best_before(here_C[::-1])[::-1]
    noise, rise, step = noise_level(here_C), float(np.ptp(_running_median(here_C))), _step_size(here_C)
    deep_C = here_C < before_C - max(8.0 * noise, 0.5 * rise, step)
    back_C = after_C >= before_C - max(4.0 * noise, 0.2 * rise, step)
    dips_C = deep_C & back_C
    if dips_C.sum() <= end // _DIPS and np.ptp(here_C[~dips_C]):
        keep_C[:end] &= ~dips_C
    return keep_C


def collapsed_early(curve: Curve) -> bool:
    """Whether a run collapsed before it had enough points for a curve."""
    return usable_end(curve.values_C) < min(MINIMUM_POINTS, len(curve.values_C))


def _short_collapse(values_C: Array, deep: int) -> int | None:
    """Start of a collapse in a short curve, in which the collapse itself would count as noise.

    All points after it lie below all points before it and below half of the best. The fall from the best exceeds a
    tenth of the scale and eight times the noise before it.
    """
    start = int(np.diff(values_C).argmin()) + 1
    before_C, low_C = values_C[:start], values_C[start:]
    if start < MINIMUM_POINTS or len(low_C) < deep:
        return None
    best, lowest, now = float(before_C.max()), float(before_C.min()), float(low_C.max())
    least = max(8.0 * noise_level(before_C), _step_size(before_C), 0.1 * scale_of(values_C))
    return start if now < lowest and best - now > least and (lowest < 0 or now < 0.5 * best) else None


def _best_before(values_C: Array) -> Array:
    """The best level before each point: of medians of three, or the lowest value where there are fewer than three."""
    out_C = np.concatenate([[-np.inf], np.minimum.accumulate(values_C[:-1])])
    out_C[3:] = np.maximum.accumulate(_running_median(values_C))[:-1]
    return np.asarray(out_C)


def _running_median(values_C: Array) -> Array:
    """Running median of three, without the two ends."""
    return np.asarray(np.median(np.lib.stride_tricks.sliding_window_view(values_C, 3), axis=1))


def _step_size(values_C: Array) -> float:
    """Least size of a collapse in a curve that moves in steps, as greedy evaluations of few problems do; else 0.

    It is two and a half of the smallest steps, but at most .15 of the scale.
    """
    step_C = np.abs(np.diff(values_C))
    moved = step_C[step_C > 0]
    if not 0 < len(moved) < _MOVES * len(step_C):
        return 0.0
    return min(_STEPS * float(moved.min()), 0.15 * scale_of(values_C))


MAXIMUM_POINTS = 256
"""Longer curves are averaged into this many points, which keeps their shape and reduces evaluation noise."""
DEFAULT_BIN = 0.005
"""Bin of record-breaking points as a share of the metric's scale, as in the IsoCompute paper."""


def usable_curves(
    curves: Sequence[Curve], *, metric: str, points: str = "all", bin_width: float = DEFAULT_BIN
) -> list[Curve]:
    """The usable points of each curve; an error names the first curve with too few."""
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
    """The curve without collapse and dips, averaged to `MAXIMUM_POINTS`, or with `points="records"` its records."""
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
    # A value on a bin's edge, up to rounding, belongs to that bin: .3 / .005 is 59.999…
    bins_C = np.floor(values_C[order] / bin_width + 1e-9)
    # Only points with strictly less compute can prevent a record, so points of equal compute ignore each other.
    first_of_tie_C = np.searchsorted(compute_C[order], compute_C[order], side="left")
    best_before_C = np.concatenate([[-np.inf], np.maximum.accumulate(bins_C)])[first_of_tie_C]
    return order[bins_C > best_before_C].astype(np.int64)


def settings_of(curves: Sequence[Curve]) -> list[list[int]]:
    """Indices of the runs of each setting, smaller n and Bp first.

    Seeds share Bp, n and recipe. A run with unknown n is a setting of its own.
    """
    out: dict[tuple[Setting, str, str], list[int]] = {}
    order = sorted(
        range(len(curves)), key=lambda i: (curves[i].rollouts_per_problem or 0, curves[i].problems_per_batch or 0)
    )
    for i in order:
        known = curves[i].rollouts_per_problem is not None
        out.setdefault((curves[i].setting, curves[i].recipe, "" if known else curves[i].name), []).append(i)
    return list(out.values())
