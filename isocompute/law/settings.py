"""The runs of a study as settings: what each gives to a fit, and which are seeds of each other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from isocompute.core.errors import InputError
from isocompute.law.curve import MINIMUM_POINTS, Curve, Setting
from isocompute.law.falls import fallen_early, usable_end
from isocompute.law.fits import usable_points
from isocompute.law.records import DEFAULT_BIN

__all__ = ["settings_of", "usable_curves"]


def usable_curves(
    curves: Sequence[Curve], *, metric: str, points: str = "all", bin_width: float = DEFAULT_BIN
) -> list[Curve]:
    """What of each curve can be fitted; an error names the first that has too little."""
    if not curves:
        raise InputError("there are no runs to fit; give a folder of runs or a table with at least one run.")
    for curve in curves:
        if fallen_early(curve):
            raise InputError(
                f"run '{curve.name}', column '{metric}': it falls for good within its first "
                f"{usable_end(curve.values_C)} evaluations, before there is a curve to fit; leave it out: "
                f"--without '{curve.name}'."
            )
    usable = [usable_points(curve, points=points, bin_width=bin_width) for curve in curves]
    for curve in usable:
        _check(curve, points, metric)
    return usable


def _check(kept: Curve, points: str, metric: str) -> None:
    left_out = f"the run out: --without '{kept.name}'"
    if len(kept.compute_C) < MINIMUM_POINTS:
        what = "record-breaking points" if points == "records" else "usable points"
        raise InputError(
            f"run '{kept.name}', column '{metric}': {len(kept.compute_C)} {what}, a fit needs "
            f"{MINIMUM_POINTS}; evaluate more often"
            + (", use a smaller --bin, or fit --points all." if points == "records" else f" or leave {left_out}.")
        )
    if np.ptp(kept.values_C) == 0:
        raise InputError(
            f"run '{kept.name}', column '{metric}': all {len(kept.values_C)} values are "
            f"{kept.values_C[0]:g}; a constant has no curve: check the metric or leave {left_out}."
        )


def settings_of(curves: Sequence[Curve]) -> list[list[int]]:
    """Indices of the runs of each setting, smaller n and Bp first.

    Seeds share Bp, n and all that is known of their recipe; a run whose n is unknown is a setting of its own.
    """
    out: dict[tuple[Setting, str, str], list[int]] = {}
    order = sorted(
        range(len(curves)), key=lambda i: (curves[i].rollouts_per_problem or 0, curves[i].problems_per_batch or 0)
    )
    for i in order:
        known = curves[i].rollouts_per_problem is not None
        out.setdefault((curves[i].setting, curves[i].recipe, "" if known else curves[i].name), []).append(i)
    return list(out.values())
