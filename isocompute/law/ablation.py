"""Leave-one-out: what each part of a recipe is for (ScaleRL section 4, figure 7).

For a recipe and its variants, each with one part taken out:

- the first half of the compute is fitted and extrapolated to the end, and the end is compared with what was reached:
  whether a run of this recipe can be predicted at all;
- whole runs are compared with the recipe's own: a part *raises the ceiling* where the variant without it ends lower,
  it *speeds up* where the variant ends as high but takes more compute to half-way. Ceilings first, then efficiencies
  at one common ceiling, as in `comparison`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from isocompute.core.errors import InputError
from isocompute.law.comparison import Comparison, compare
from isocompute.law.curve import MINIMUM_POINTS, Curve, upper_bound
from isocompute.law.falls import fallen_early
from isocompute.law.fits import CurveFit, fit_groups, usable_points
from isocompute.law.intervals import around

__all__ = ["Ablation", "Part", "leave_one_out"]

_END = 0.9
"""What was reached is the mean over the last tenth of the compute."""
VERDICTS = {
    ("a", ""): "raises the ceiling",
    ("b", ""): "lowers the ceiling",
    ("same", "a"): "speeds up",
    ("same", "b"): "slows down",
    ("undecided", "a"): "speeds up, ceiling undecided",
    ("undecided", "b"): "slows down, ceiling undecided",
    ("same", "same"): "no difference seen",
}
"""By who is higher and who is faster: `a` is the whole recipe, `b` the one without the part."""
_NOTHING = ("no difference seen", "undecided")
_LEADS = {"a": "leads at the end", "b": "is behind at the end"}
"""Where ceiling and speed cannot be told apart, the last values may still differ."""


@dataclass(frozen=True)
class Part:
    """A variant of the recipe: the part it lacks, seen through it."""

    name: str
    fit: CurveFit
    """Of whole runs."""
    half: CurveFit
    """Of the first half of the compute."""
    predicted: float
    """Mean over the last tenth of the compute, by the fit of the first half."""
    predicted_interval: tuple[float, float]
    reached: float
    comparison: Comparison | None
    """The whole recipe (a) against this variant (b); None for the recipe itself."""

    @property
    def verdict(self) -> str:
        """What the part that this variant lacks does for the recipe."""
        if self.comparison is None:
            return "the recipe"
        higher, faster = self.comparison.higher, self.comparison.faster
        verdict = VERDICTS.get((higher, "" if higher in "ab" else faster), "undecided")
        if verdict in _NOTHING and self.comparison.ahead_now in _LEADS:
            return _LEADS[self.comparison.ahead_now]
        return verdict


@dataclass(frozen=True)
class Ablation:
    """The whole recipe first, then its variants."""

    whole: Part
    parts: tuple[Part, ...]
    share: float
    """Of the compute, what the prediction was fitted on."""

    @property
    def errors(self) -> list[float]:
        """Predicted minus reached, of all."""
        return [part.predicted - part.reached for part in (self.whole, *self.parts)]


def leave_one_out(
    whole: Sequence[Curve],
    variants: Mapping[str, Sequence[Curve]],
    *,
    share: float = 0.5,
    replicates: int = 1000,
    seed: int = 0,
    level: float = 0.95,
) -> Ablation:
    """Fit, predict and compare; every side is given by its runs (seeds)."""
    if not 0 < share < 1:
        raise InputError(f"a share of {share:g} of the compute cannot be fitted to predict the rest; use .5.")
    sides = {name: _with_curves(name, curves) for name, curves in {"": whole, **variants}.items()}
    named = [(name, [usable_points(curve) for curve in curves]) for name, curves in sides.items()]
    halves = [[_until(curve, share) for curve in curves] for _, curves in named]
    upper = upper_bound(np.concatenate([curve.values_C for _, curves in named for curve in curves]))
    fits = fit_groups([curves for _, curves in named], replicates=replicates, seed=seed, upper=upper)
    half_fits = fit_groups(halves, replicates=replicates, seed=seed, upper=upper)
    parts = []
    for (name, curves), fit, half in zip(named, fits, half_fits, strict=True):
        predicted, interval = _predicted(half, curves, level)
        against = compare(sides[""], sides[name], replicates=replicates, seed=seed, level=level) if name else None
        parts.append(Part(name, fit, half, predicted, interval, _reached(curves), against))
    return Ablation(parts[0], tuple(parts[1:]), share)


def _with_curves(name: str, curves: Sequence[Curve]) -> Sequence[Curve]:
    kept = [curve for curve in curves if not fallen_early(curve)]
    if curves and not kept:
        raise InputError(
            f"{name or 'the whole recipe'}: every run fell for good within its first evaluations, as with a learning "
            "rate that is too high; there is no curve to compare."
        )
    return kept


def _until(curve: Curve, share: float) -> Curve:
    count = int((curve.compute_C <= share * curve.compute_C[-1]).sum())
    if count < MINIMUM_POINTS:
        raise InputError(
            f"run '{curve.name}': {count} points in the first {share:.0%} of its compute; a fit needs "
            f"{MINIMUM_POINTS}: evaluate more often (evaluation.points)."
        )
    return curve.until(count)


def _end(curve: Curve) -> np.ndarray:
    return np.asarray(curve.compute_C >= _END * curve.compute_C[-1])


def _reached(curves: Sequence[Curve]) -> float:
    return float(np.mean([curve.values_C[_end(curve)].mean() for curve in curves]))


def _predicted(half: CurveFit, curves: Sequence[Curve], level: float) -> tuple[float, tuple[float, float]]:
    """At the compute where `_reached` has its values."""
    at = [curve.compute_C[_end(curve)] for curve in curves]
    values_B = np.mean([half.ensemble.at(compute_C).mean(axis=1) for compute_C in at], axis=0)
    value = float(np.median(values_B))
    return value, around(value, values_B, level)
