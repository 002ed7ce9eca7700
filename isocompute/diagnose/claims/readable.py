"""Which runs a claim can use: those with a learning curve.

One that has none is left out by name, so that it does not take its sweep along. What is broken is refused, as `fit`
refuses it.
"""

from __future__ import annotations

import warnings
from collections import Counter
from dataclasses import replace

import numpy as np

from isocompute.core.caught import quiet
from isocompute.core.errors import InputError
from isocompute.core.run import Run, RunSet, RunWarning, listing
from isocompute.law import Curve, curves_of
from isocompute.law.curve import MINIMUM_POINTS
from isocompute.law.fits import usable_points
from isocompute.law.from_runs import UNITS

__all__ = ["fittable", "with_curves"]

_UNCOUNTED = "without step or compute"


def with_curves(runs: RunSet, metric: str) -> RunSet:
    """The runs that have a curve of a metric; a warning names those that are constant or too short for one.

    Runs without the metric are passed over: that was said when it was chosen. Where no run counts compute, nothing is
    said of each.
    """
    having = [run for run in runs if metric in run.metrics]
    lacking = {run.name: why for run in having if (why := _lacks(run, metric, runs.source)) is not None}
    counts = Counter(lacking.values())
    if lacking and counts[_UNCOUNTED] < len(having):
        reasons = " and ".join(f"{number} {why}" for why, number in counts.items())
        warnings.warn(
            f"{runs.source}: {len(lacking)} of {len(having)} runs left out, {reasons}: {listing(list(lacking))}.",
            RunWarning,
            stacklevel=3,
        )
    return replace(runs, runs=tuple(run for run in having if run.name not in lacking))


def fittable(curve: Curve) -> bool:
    """Whether a law can be fitted to a curve: there is one before it falls for good, if it does."""
    usable = usable_points(curve)
    return len(usable.compute_C) >= MINIMUM_POINTS and bool(np.ptp(usable.values_C) > 0)


def _lacks(run: Run, metric: str, source: str) -> str | None:
    """Why a run has no curve, or None where it has one; `InputError` where it is broken."""
    try:
        with quiet(RunWarning):  # said of all runs at once
            curves_of(RunSet((run,), source), metric=metric)
    except InputError:
        values = run.points[metric].drop_nulls()
        if not any(column in run.points.columns and run.points[column].count() for column in (*UNITS, "step")):
            return _UNCOUNTED
        if len(values) < MINIMUM_POINTS:
            return f"with fewer than {MINIMUM_POINTS} values of '{metric}'"
        if values.min() == values.max():
            return f"with one value of '{metric}' throughout"
        raise
    return None
