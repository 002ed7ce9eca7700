"""Two recipes: does one reach higher, or only faster?

ScaleRL's reading of a pair of curves: the ceilings first; then, since ceiling and efficiency trade off in a fit, the
efficiency of both at one common ceiling (section 4: B is compared after refitting at the mean A). Seeds are pooled on
each side.

A side of one seed is drawn as far off as the other side's seeds say (`seeds.of_one`). With one seed on both
the bootstrap cannot see the spread between seeds. Wherever a side has one, the error of a ceiling's difference, and of
the lead at the present, is at least ScaleRL's ±.02 of the scale, what three repetitions of one run gave them, and a
ratio of midpoints must exceed 1.5 either way: midpoints of repetitions differ by about 15%, their ratio by √2 of that,
and two standard errors are a factor of 1.5. A ceiling that a curve has not come near is a guess by its form: then the
question which is higher stays undecided, as it does where a side that was run for less has not begun to rise.

After a lasting fall curves say nothing: ceilings and speeds are those before it, `falls` says where it was, and who is
ahead now is read off the values themselves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from isocompute.core.arrays import Array
from isocompute.core.curve import MINIMUM_POINTS, Curve, noise_level, scale_of, upper_bound
from isocompute.core.errors import InputError
from isocompute.core.formatting import number, plural, value
from isocompute.law.collapse import collapse_start, collapsed_early
from isocompute.law.curves import usable_points
from isocompute.law.families import HILL
from isocompute.law.fits import CEILING_SEEN, CurveFit, fit_groups
from isocompute.law.solver import Batch, solve
from isocompute.law.uncertainty import SEED_MARGIN, around, percentiles

__all__ = ["Ablation", "Collapse", "Comparison", "Efficiency", "Overtaking", "Part", "compare", "leave_one_out"]


ONE_SEED_FACTOR = 1.5
_FAR = 4.0
"""Overtaking is looked for up to this many times the compute seen."""
_APART = 0.9
"""Share of replicates that have to agree who leads before and after an overtaking: two copies of a curve cross too."""
_LATELY = 3
"""Evaluations whose mean is where a run is now."""
_SHORT = 0.5
"""A side run for less than this share of the other's compute may be in its warm-up still."""


@dataclass(frozen=True)
class Efficiency:
    """Hill parameters of one side at the common ceiling."""

    efficiency: float
    efficiency_interval: tuple[float, float]
    midpoint: float
    midpoint_interval: tuple[float, float]


@dataclass(frozen=True)
class Collapse:
    """A run that fell for good."""

    side: str
    run: str
    after: float
    """Compute of its last point before."""
    value: float
    """Mean of its last three values."""


@dataclass(frozen=True)
class Overtaking:
    """Where the second curve of the pair passes from below to above the other."""

    compute: float
    interval: tuple[float, float]
    probability: float
    """Share of replicates in which there is such a crossing at all."""
    winner: str
    """`a` or `b`: who leads after it. Both leads, before and after, stand out from the replicates."""
    extrapolated: bool


@dataclass(frozen=True)
class Comparison:
    """Ceilings, efficiencies and crossings of two sides, `a` and `b`."""

    a: CurveFit
    b: CurveFit
    difference: float
    """Ceiling of a minus ceiling of b."""
    interval: tuple[float, float]
    error_rule: str
    """`bootstrap`, or `one seed: at least ±…` with the number applied."""
    common_ceiling: float
    efficiency_a: Efficiency
    efficiency_b: Efficiency
    efficiency_ratio: float
    efficiency_ratio_interval: tuple[float, float]
    speed_ratio: float
    """Midpoint of b over midpoint of a, both at the common ceiling: above 1, a gets half-way with less compute."""
    speed_ratio_interval: tuple[float, float]
    overtakings: tuple[Overtaking, ...]
    higher: str
    """`a`, `b`, `same`, or `undecided` where a curve has not yet come near its ceiling."""
    faster: str
    """The same; `undecided` where a midpoint lies beyond the data."""
    ahead_now: str
    sides: tuple[tuple[Curve, ...], tuple[Curve, ...]]
    """All points of both, with what follows a fall."""
    falls: tuple[Collapse, ...]
    """Runs of either side that fell for good."""
    unrisen: str | None
    """`a` or `b`: a side that was run for less than the other and has not begun to rise."""

    def __repr__(self) -> str:
        fell = f"; {plural(len(self.falls), 'run')} fell" if self.falls else ""
        return (
            f"Comparison(higher: {self.higher}, faster: {self.faster}, ahead now: {self.ahead_now}; ceiling of a minus "
            f"b {value(self.difference)} ({value(self.interval[0])} to {value(self.interval[1])}){fell};\n"
            f"  a={self.a!r},\n  b={self.b!r})"
        )

    def to_json(self) -> dict[str, Any]:
        """The keys of `compare --json` (docs/compare.md)."""
        return {
            "a": _side(self.a, self.efficiency_a),
            "b": _side(self.b, self.efficiency_b),
            "difference": self.difference,
            "interval": list(self.interval),
            "error_rule": self.error_rule,
            "common_ceiling": self.common_ceiling,
            "efficiency_ratio": self.efficiency_ratio,
            "efficiency_ratio_interval": list(self.efficiency_ratio_interval),
            "speed_ratio": self.speed_ratio,
            "speed_ratio_interval": list(self.speed_ratio_interval),
            "overtakes": [
                {
                    "compute": o.compute,
                    "interval": list(o.interval),
                    "probability": o.probability,
                    "winner": o.winner,
                    "extrapolated": o.extrapolated,
                }
                for o in self.overtakings
            ],
            "higher": self.higher,
            "faster": self.faster,
            "ahead_now": self.ahead_now,
            "falls": [{"side": f.side, "run": f.run, "after": f.after, "value": f.value} for f in self.falls],
            "unrisen": self.unrisen,
        }


def _side(fit: CurveFit, efficiency: Efficiency) -> dict[str, Any]:
    return {
        "runs": [curve.name for curve in fit.curves],
        "form": fit.family.name,
        "asymptote": fit.ceiling,
        "asymptote_interval": list(fit.ceiling_interval()),
        "rise_done": fit.rise_done,
        "efficiency": efficiency.efficiency,
        "efficiency_interval": list(efficiency.efficiency_interval),
        "midpoint": efficiency.midpoint,
        "midpoint_interval": list(efficiency.midpoint_interval),
    }


def compare(
    a: Sequence[Curve], b: Sequence[Curve], *, replicates: int = 1000, seed: int = 0, level: float = 0.95
) -> Comparison:
    """Compare two recipes, each given by its runs (seeds)."""
    for side in (a, b):
        mixed = {curve.setting for curve in side}
        if len(mixed) > 1:
            raise InputError(
                f"runs '{side[0].name}' and others have different Bp or n; a side holds the seeds of one recipe: name "
                "its runs as PATH::NAME or with --where."
            )
    sides = [[usable_points(curve) for curve in side] for side in (a, b)]
    for side in sides:
        for curve in side:
            if len(curve.compute_C) < MINIMUM_POINTS:
                raise InputError(
                    f"run '{curve.name}': {len(curve.compute_C)} usable points, up to a fall for good where there is "
                    f"one; a comparison needs {MINIMUM_POINTS}."
                )
    values = np.concatenate([c.values_C for side in (a, b) for c in side])
    upper = upper_bound(values)
    fit_a, fit_b = fit_groups(sides, replicates=replicates, seed=seed, upper=upper, draw_single_seeds=True)
    difference = fit_a.ceiling - fit_b.ceiling
    interval = around(difference, fit_a.ensemble.ceiling_B - fit_b.ensemble.ceiling_B, level)
    alone = min(len(side) for side in sides) == 1
    floor = SEED_MARGIN * scale_of(values) if alone else 0.0
    rule = f"one seed: at least ±{number(floor)}" if alone else "bootstrap"
    interval = min(interval[0], difference - floor), max(interval[1], difference + floor)
    common = _common_ceiling(fit_a, fit_b, upper)
    theta_a, theta_b = (_pinned(fit, common) for fit in (fit_a, fit_b))
    efficiency_B = np.exp(theta_a[:, 1] - theta_b[:, 1])
    unit_ratio = fit_b.unit / fit_a.unit
    speed_B = np.exp(theta_b[:, 0] - theta_a[:, 0]) * unit_ratio
    speed = around(float(speed_B[0]), speed_B[1:], level)
    if alone:
        speed = min(speed[0], float(speed_B[0]) / ONE_SEED_FACTOR), max(speed[1], float(speed_B[0]) * ONE_SEED_FACTOR)
    falls = tuple(fall for name, side in (("a", a), ("b", b)) for fall in _falls(name, side))
    fits = fit_a, fit_b
    ahead = _ahead_by_values((a, b), fits, floor, level) if falls else _ahead(*fits, floor, level)
    unrisen = _unrisen(fit_a, fit_b, SEED_MARGIN * scale_of(values))
    seen = unrisen is None and min(fit_a.rise_done, fit_b.rise_done) >= CEILING_SEEN
    return Comparison(
        a=fit_a,
        b=fit_b,
        difference=difference,
        interval=interval,
        error_rule=rule,
        common_ceiling=common,
        efficiency_a=_efficiency(fit_a, theta_a, level),
        efficiency_b=_efficiency(fit_b, theta_b, level),
        efficiency_ratio=float(efficiency_B[0]),
        efficiency_ratio_interval=around(float(efficiency_B[0]), efficiency_B[1:], level),
        speed_ratio=float(speed_B[0]),
        speed_ratio_interval=speed,
        overtakings=_overtakings(fit_a, fit_b, level),
        higher=_sign(interval, 0.0) if seen else "undecided",
        faster="undecided" if _unseen(fit_a, theta_a) or _unseen(fit_b, theta_b) else _sign(speed, 1.0),
        ahead_now=ahead,
        sides=(tuple(a), tuple(b)),
        falls=falls,
        unrisen=unrisen,
    )


def _falls(name: str, side: Sequence[Curve]) -> list[Collapse]:
    starts = [(curve, collapse_start(curve.values_C)) for curve in side]
    return [
        Collapse(name, curve.name, float(curve.compute_C[start - 1]), float(curve.values_C[start:][-_LATELY:].mean()))
        for curve, start in starts
        if start is not None
    ]


def _unrisen(a: CurveFit, b: CurveFit, least: float) -> str | None:
    for name, fit, other in (("a", a, b), ("b", b, a)):
        rise = float(np.ptp(fit.at(np.array([fit.first, fit.last]))))
        if rise < least and fit.last < _SHORT * other.last:
            return name
    return None


def _common_ceiling(a: CurveFit, b: CurveFit, upper: float) -> float:
    """The mean of both ceilings, but never below a value that either has reached."""
    reached = max(float(fit.at(np.array([fit.last]))[0]) for fit in (a, b))
    return min(max(0.5 * (a.ceiling + b.ceiling), reached + 1e-6), upper)


def _pinned(fit: CurveFit, ceiling: float) -> Array:
    """θ of the Hill curve with the given ceiling through the data, then through every replicate of the bootstrap.

    The ensemble's curves carry what it resampled, points, seeds and form; a Hill curve through each passes it on.
    """
    compute_C = np.concatenate([c.compute_C for c in fit.curves])
    values_C = np.concatenate([c.values_C for c in fit.curves])
    values_RC = np.concatenate([values_C[None], fit.ensemble.at(compute_C)])
    batch = Batch(
        (compute_C / fit.unit)[None],
        np.array([max(fit.last / fit.unit, 1.0 + 1e-9)]),
        np.zeros(len(values_RC), dtype=np.int64),
        values_RC,
        np.ones_like(values_RC),
        ceiling,
        pinned=True,
    )
    return solve(HILL, batch).theta_RK


def _unseen(fit: CurveFit, theta_RK: Array) -> bool:
    """Whether the midpoint is a guess: beyond the last point, or not after the first, where the search for it ends."""
    middle = float(np.exp(theta_RK[0, 0])) * fit.unit
    return middle > fit.last or middle <= fit.unit * (1.0 + 1e-6)


def _efficiency(fit: CurveFit, theta_RK: Array, level: float) -> Efficiency:
    steep_R, middle_R = np.exp(theta_RK[:, 1]), np.exp(theta_RK[:, 0]) * fit.unit
    return Efficiency(
        float(steep_R[0]),
        around(float(steep_R[0]), steep_R[1:], level),
        float(middle_R[0]),
        around(float(middle_R[0]), middle_R[1:], level),
    )


def _sign(interval: tuple[float, float], even: float) -> str:
    if interval[0] > even:
        return "a"
    return "b" if interval[1] < even else "same"


def _ahead_by_values(
    sides: tuple[Sequence[Curve], Sequence[Curve]], fits: Sequence[CurveFit], floor: float, level: float
) -> str:
    """Who leads by the last three values of each run up to the compute that all have."""
    at = min(float(curve.compute_C[-1]) for side in sides for curve in side)
    (lead_a, error_a), (lead_b, error_b) = (
        _level(side, at, of_one=fit.seed_error) for side, fit in zip(sides, fits, strict=True)
    )
    half = max(NormalDist().inv_cdf(0.5 + level / 2.0) * math.hypot(error_a, error_b), floor)
    return _sign((lead_a - lead_b - half, lead_a - lead_b + half), 0.0)


def _level(side: Sequence[Curve], at: float, *, of_one: float) -> tuple[float, float]:
    """Mean over runs of the last three values up to a compute, or of those since a fall, and its standard error;
    `of_one` is what the spread between seeds adds to it where there is one run.
    """
    lately = [_lately(curve, at) for curve in side]
    levels = [float(values_C.mean()) for values_C in lately]
    noises = [noise_level(c.values_C) / math.sqrt(len(values_C)) for c, values_C in zip(side, lately, strict=True)]
    noise = math.hypot(*noises) / len(side)
    between = float(np.std(levels, ddof=1)) / math.sqrt(len(side)) if len(side) > 1 else of_one
    return float(np.mean(levels)), math.hypot(noise, between)


def _lately(curve: Curve, at: float) -> Array:
    end = max(int((curve.compute_C <= at).sum()), 1)
    fall = collapse_start(curve.values_C)
    since = fall if fall is not None and fall < end else 0
    return curve.values_C[max(since, end - _LATELY) : end]


def _ahead(a: CurveFit, b: CurveFit, floor: float, level: float) -> str:
    at = np.array([min(a.last, b.last)])
    lead_B = a.ensemble.at(at)[:, 0] - b.ensemble.at(at)[:, 0]
    low, high = percentiles(lead_B, level)
    middle = float(np.median(lead_B))
    return _sign((min(low, middle - floor), max(high, middle + floor)), 0.0)


def _overtakings(a: CurveFit, b: CurveFit, level: float) -> tuple[Overtaking, ...]:
    start, seen = max(a.first, b.first), max(a.last, b.last)
    grid_C = np.geomspace(start, seen * _FAR, 400)
    lead_C = a.at(grid_C) - b.at(grid_C)
    above_BC = a.ensemble.at(grid_C) > b.ensemble.at(grid_C)
    out = []
    for i in np.flatnonzero((lead_C[1:] > 0) != (lead_C[:-1] > 0)):
        winner = "a" if lead_C[i + 1] > 0 else "b"
        after_BC = above_BC if winner == "a" else ~above_BC
        leads_C = after_BC.mean(axis=0)
        if leads_C[: i + 1].min() > 1.0 - _APART or leads_C[i + 1 :].max() < _APART:
            continue
        crossing_BC = after_BC[:, 1:] & ~after_BC[:, :-1]
        has_B = crossing_BC.any(axis=1)
        at_B = grid_C[1:][crossing_BC[has_B].argmax(axis=1)] if has_B.any() else grid_C[[i]]
        share = lead_C[i] / (lead_C[i] - lead_C[i + 1])
        compute = float(grid_C[i] * (grid_C[i + 1] / grid_C[i]) ** share)
        out.append(Overtaking(compute, around(compute, at_B, level), float(has_B.mean()), winner, compute > seen))
    return tuple(out)


# Leave-one-out: what each part of a recipe is for (ScaleRL section 4, figure 7).

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
    kept = [curve for curve in curves if not collapsed_early(curve)]
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
