"""Collapses and dips: which evaluations of a run are no part of a learning curve.

`benchmarks/falls.py` measures how many collapses are found, and how often one is found in a healthy run.
"""

from __future__ import annotations

import numpy as np

from isocompute.core.arrays import Array, Bools
from isocompute.core.curve import MINIMUM_POINTS, Curve, median, noise_level, scale_of

__all__ = ["collapse_start", "collapsed_early", "usable_end", "usable_mask"]

_ENOUGH_FOR_NOISE, _SHORT = 6, 12
"""Points from which the noise level can be estimated, and from which two or three low ones no longer hide it."""
_STEPS = 2.5
"""Smallest steps that a collapse has to exceed where values move in steps."""
_DIPS = 4
"""At most one point in this many is a dip; more of them are how a run is."""
_MOVES = 0.8
"""Share of evaluations that change a value, below which it moves in steps."""


def collapse_start(values_C: Array, shortest: int = 3, *, deep: int = 1) -> int | None:
    """Index of the first point of a collapse that lasts to the end of the curve, or None.

    All of at least `shortest` points, up to the last one, lie below the best level (running median of three) by more
    than four noise levels and a fifth of the rise seen; or the last `deep` of them by eight noise levels and half of
    the rise, since no evaluation is that unlucky; or the last two of them by six noise levels and all of the rise. One
    or two problems more or less of a small set are no collapse. A monotone curve says nothing about what follows.
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
    """How many points a monotone curve may be fitted to: those before a collapse. Where that leaves too few, the first
    four will do if the collapse has hardly begun in them.
    """
    start = collapse_start(values_C)
    if start is None:
        return len(values_C)
    half = 0.5 * (float(values_C[:start].max()) + median(values_C[start:]))
    hardly = bool((values_C[start:MINIMUM_POINTS] > half).all())
    return max(start, MINIMUM_POINTS) if hardly else start


def usable_mask(values_C: Array) -> Bools:
    """The points that a monotone curve may be fitted to: up to a collapse, and without dips.

    A dip lies below what came before by eight noise levels and half of the rise, and the run came back afterwards.
    """
    end = usable_end(values_C)
    keep_C = np.arange(len(values_C)) < end
    if end < _SHORT:
        return keep_C
    here_C = values_C[:end]
    smooth_C = np.pad(_running_median(here_C), 1, mode="edge")
    before_C = np.maximum.accumulate(np.concatenate([smooth_C[:1], smooth_C[:-1]]))
    after_C = np.maximum.accumulate(np.concatenate([smooth_C[1:], smooth_C[-1:]])[::-1])[::-1]
    noise, rise, step = noise_level(here_C), float(np.ptp(smooth_C)), _step_size(here_C)
    deep_C = here_C < before_C - max(8.0 * noise, 0.5 * rise, step)
    back_C = after_C >= before_C - max(4.0 * noise, 0.2 * rise, step)
    dips_C = deep_C & back_C
    if dips_C.sum() <= end // _DIPS and np.ptp(here_C[~dips_C]):
        keep_C[:end] &= ~dips_C
    return keep_C


def collapsed_early(curve: Curve) -> bool:
    """Whether a run collapsed before it had points for a curve."""
    return usable_end(curve.values_C) < min(MINIMUM_POINTS, len(curve.values_C))


def _short_collapse(values_C: Array, deep: int) -> int | None:
    """A collapse of a short curve, whose noise level would be the collapse itself: below all that came before and half
    of the best, by a tenth of the scale and eight times the noise before it.
    """
    start = int(np.diff(values_C).argmin()) + 1
    before_C, low_C = values_C[:start], values_C[start:]
    if start < MINIMUM_POINTS or len(low_C) < deep:
        return None
    best, lowest, now = float(before_C.max()), float(before_C.min()), float(low_C.max())
    least = max(8.0 * noise_level(before_C), _step_size(before_C), 0.1 * scale_of(values_C))
    return start if now < lowest and best - now > least and (lowest < 0 or now < 0.5 * best) else None


def _running_median(values_C: Array) -> Array:
    """Running median of three; the two ends have none."""
    return np.asarray(np.median(np.lib.stride_tricks.sliding_window_view(values_C, 3), axis=1))


def _step_size(values_C: Array) -> float:
    """What a collapse has to exceed where a curve often stands still, as greedy evaluations of few problems do: two and
    a half of its smallest steps, but no more than .15 of the scale.
    """
    step_C = np.abs(np.diff(values_C))
    moved = step_C[step_C > 0]
    if not 0 < len(moved) < _MOVES * len(step_C):
        return 0.0
    return min(_STEPS * float(moved.min()), 0.15 * scale_of(values_C))
