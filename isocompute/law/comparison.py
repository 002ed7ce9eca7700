"""Compares two recipes (does one reach higher, or only faster?) and the parts of one recipe (leave-one-out).

As in ScaleRL, ceilings are compared first. Ceiling and efficiency trade off in a fit, so efficiencies are compared
after refitting both sides at one common ceiling (section 4: B is compared after refitting at the mean A). The seeds of
each side are pooled.

Each side is a posterior of its mean over seeds, so its samples contain the difference between seeds: as measured where
a side has several, else as assumed by the model's prior (ScaleRL's margin, in proportion to the rise). If either side
has one seed, a ratio of midpoints must also exceed 1.5: midpoints of repetitions differ by about 15%, and two standard
errors of their ratio are a factor of 1.5.

A ceiling that a curve has not come near depends on the curve's form. Which ceiling is higher then stays undecided, as
it does if a side that was run for less has not begun to rise.

Curves end at a collapse: ceilings and speeds are those before it, and the values themselves show who is ahead now.

Leave-one-out (ScaleRL section 4, figure 7) compares a recipe with its variants, each without one part. The first half
of the compute is fitted, extrapolated to the end, and compared with the value reached. Whole runs are compared with
the recipe's own. A part *raises the ceiling* if the variant without it ends lower. It *speeds up* if the variant ends
as high but needs more compute to get half-way.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.special import ndtri, stdtrit

from isocompute.core.arrays import Array, Bools
from isocompute.core.curve import MINIMUM_POINTS, Curve, noise_level, upper_bound
from isocompute.core.errors import InputError
from isocompute.core.formatting import plural, value
from isocompute.law.curves import collapse_start, collapsed_early, usable_points
from isocompute.law.fits import CEILING_SEEN, CurveFit, fit_groups
from isocompute.law.posterior import around, percentiles
from isocompute.law.solver import HILL, FitRows, solve

_ONE_SEED_FACTOR = 1.5
"""Least significant ratio of midpoints if a side has one seed."""
_ASSUMED_SEEDS = 2
"""Seeds as which the assumed seed effect counts."""
_FAR = 4.0
"""Overtakings are searched for up to this many times the compute seen."""
_APART = 0.9
"""Share of draws that must agree who leads before and after an overtaking; two copies of a curve cross, too."""
_LATELY = 3
"""Number of last evaluations whose mean is a run's present value."""
_SHORT = 0.5
"""A side run for less than this share of the other's compute may still be in its warm-up."""
_UNRISEN = 0.08
"""A side has not begun to rise below this share of the other's rise."""
_END = 0.9
"""The value reached is the mean of the evaluations after this share of the compute."""


@dataclass(frozen=True)
class HillParameters:
    """Hill parameters of one side at the common ceiling."""

    efficiency: float
    efficiency_interval: tuple[float, float]
    midpoint: float
    midpoint_interval: tuple[float, float]


@dataclass(frozen=True)
class Collapse:
    """A run that collapsed."""

    side: str
    run: str
    after: float
    """Compute of its last point before the collapse."""
    value: float
    """Mean of its last three values."""


@dataclass(frozen=True)
class Overtaking:
    """A crossing after which the curve that was below leads."""

    compute: float
    interval: tuple[float, float]
    probability: float
    """Share of draws with such a crossing."""
    winner: str
    """`a` or `b`: who leads after it. The leads before and after it are both significant."""
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
    """`seeds`, or `one seed: …` with the standard deviation between seeds that is assumed."""
    common_ceiling: float
    efficiency_a: HillParameters
    efficiency_b: HillParameters
    efficiency_ratio: float
    efficiency_ratio_interval: tuple[float, float]
    speed_ratio: float
    """Midpoint of b over midpoint of a, both at the common ceiling; above 1, a gets half-way with less compute."""
    speed_ratio_interval: tuple[float, float]
    overtakings: tuple[Overtaking, ...]
    higher: str
    """`a`, `b`, `same`, or `undecided` if a curve has not yet come near its ceiling."""
    faster: str
    """`a`, `b`, `same`, or `undecided` if a midpoint lies beyond the data."""
    ahead_now: str
    sides: tuple[tuple[Curve, ...], tuple[Curve, ...]]
    """All points of both sides, including those after a collapse."""
    collapses: tuple[Collapse, ...]
    unrisen: str | None
    """`a` or `b`: a side that was run for less than the other and has not begun to rise; None if neither."""
    metric: str = ""
    unit: str = ""

    def __repr__(self) -> str:
        collapsed = f"; {plural(len(self.collapses), 'run')} collapsed" if self.collapses else ""
        return (
            f"Comparison(higher: {self.higher}, faster: {self.faster}, ahead now: {self.ahead_now}; ceiling of a minus "
            f"b {value(self.difference)} ({value(self.interval[0])} to {value(self.interval[1])}){collapsed};\n"
            f"  a={self.a!r},\n  b={self.b!r})"
        )

    def to_json(self) -> dict[str, Any]:
        """The keys of `compare --json`."""
        same = ["difference", "interval", "error_rule", "common_ceiling", "efficiency_ratio"]
        same += ["efficiency_ratio_interval", "speed_ratio", "speed_ratio_interval", "higher", "faster"]
        same += ["ahead_now", "unrisen"]
        return {
            "a": _side(self.a, self.efficiency_a),
            "b": _side(self.b, self.efficiency_b),
            "overtakes": [asdict(each) for each in self.overtakings],
            "falls": [asdict(each) for each in self.collapses],
            **{name: getattr(self, name) for name in same},
        }


def _side(fit: CurveFit, efficiency: HillParameters) -> dict[str, Any]:
    return {
        "runs": [curve.name for curve in fit.curves],
        "form": fit.form,
        "asymptote": fit.ceiling,
        "asymptote_interval": fit.ceiling_interval(),
        "rise_done": fit.rise_done,
        **asdict(efficiency),
    }


def compare(
    a: Sequence[Curve], b: Sequence[Curve], *, replicates: int = 1000, seed: int = 0, level: float = 0.95
) -> Comparison:
    """Compare two recipes, each given by its runs (seeds)."""
    for side in (a, b):
        if len({curve.setting for curve in side}) > 1:
            raise InputError(
                f"runs '{side[0].name}' and others have different Bp or n; a side holds the seeds of one recipe: name "
                "its runs as PATH::NAME or with --where."
            )
    sides = tuple(a), tuple(b)
    fits = _fit_sides(sides, replicates, seed)
    return _compare(sides, (fits[0], fits[1]), level)


def _fit_sides(sides: Sequence[Sequence[Curve]], replicates: int, seed: int) -> list[CurveFit]:
    usable = [[usable_points(curve) for curve in side] for side in sides]
    for side in usable:
        for curve in side:
            if len(curve.compute_C) < MINIMUM_POINTS:
                raise InputError(
                    f"run '{curve.name}': {len(curve.compute_C)} usable points, up to a collapse where there is "
                    f"one; a comparison needs {MINIMUM_POINTS}."
                )
    upper = upper_bound(_values(sides))
    # The side that reaches less is sampled first, so that exchanging the sides only turns the answer round.
    place = np.argsort([float(_values([side]).mean()) for side in usable], kind="stable")
    fits = fit_groups([usable[i] for i in place], replicates=replicates, seed=seed, upper=upper)
    return [fits[i] for i in np.argsort(place)]


def _values(sides: Sequence[Sequence[Curve]]) -> Array:
    return np.concatenate([curve.values_C for side in sides for curve in side])


def _compare(
    sides: tuple[tuple[Curve, ...], tuple[Curve, ...]], fits: tuple[CurveFit, CurveFit], level: float
) -> Comparison:
    (a, b), values = fits, _values(sides)
    alone = min(len(side) for side in sides) == 1
    assumed = max(fit.posterior.seed_effect * fit.posterior.rise for fit in fits)
    difference = a.ceiling - b.ceiling
    low, high = around(difference, _by_form(a) - _by_form(b), level)
    half = _between_seeds(fits, assumed, level)
    interval = min(low, difference - half), max(high, difference + half)
    # The mean of both ceilings, but never below a value that either has reached.
    reached = max(fit.level for fit in fits)
    common = min(max(0.5 * (a.ceiling + b.ceiling), reached + 1e-6), upper_bound(values))
    theta_a, theta_b = (_at_ceiling(fit, common) for fit in fits)
    efficiency_R = np.exp(theta_a[:, 1] - theta_b[:, 1])
    speed_R = np.exp(theta_b[:, 0] - theta_a[:, 0]) * b.first / a.first
    ratio, factor = float(speed_R[0]), _ONE_SEED_FACTOR if alone else 1.0
    slow, fast = around(ratio, speed_R[1:], level)
    speed = min(slow, ratio / factor), max(fast, ratio * factor)
    collapses = tuple(
        Collapse(name, curve.name, float(curve.compute_C[start - 1]), float(curve.values_C[start:][-_LATELY:].mean()))
        for name, side in zip("ab", sides, strict=True)
        for curve in side
        if (start := collapse_start(curve.values_C)) is not None
    )
    unrisen = next(
        (
            name
            for name, fit, other in (("a", a, b), ("b", b, a))
            if fit.level - fit.base < _UNRISEN * (other.level - other.base) and fit.last < _SHORT * other.last
        ),
        None,
    )
    seen = unrisen is None and min(a.rise_done, b.rise_done) >= CEILING_SEEN
    guessed = any(_is_outside(fit, theta) for fit, theta in zip(fits, (theta_a, theta_b), strict=True))
    return Comparison(
        a=a,
        b=b,
        difference=difference,
        interval=interval,
        error_rule=f"one seed: a standard deviation of {value(assumed)} between seeds is assumed" if alone else "seeds",
        common_ceiling=common,
        efficiency_a=_efficiency(a, theta_a, level),
        efficiency_b=_efficiency(b, theta_b, level),
        efficiency_ratio=float(efficiency_R[0]),
        efficiency_ratio_interval=around(float(efficiency_R[0]), efficiency_R[1:], level),
        speed_ratio=ratio,
        speed_ratio_interval=speed,
        overtakings=_overtakings(a, b, level),
        higher=_sign(interval, 0.0) if seen else "undecided",
        faster="undecided" if guessed else _sign(speed, 1.0),
        ahead_now=_ahead_by_values(sides, fits, level) if collapses else _ahead(a, b, level),
        sides=sides,
        collapses=collapses,
        unrisen=unrisen,
    )


def _between_seeds(fits: Sequence[CurveFit], assumed: float, level: float) -> float:
    """Half-width of the difference by what the seeds' own levels differ, with the assumed variance as a prior.

    A posterior of one configuration hardly learns from two or three seeds that they differ by much.
    """
    levels = [np.array([curve.values_C[-_LATELY:].mean() for curve in fit.curves]) for fit in fits]
    freedom = _ASSUMED_SEEDS + sum(len(each) - 1 for each in levels)
    squares = _ASSUMED_SEEDS * assumed**2 + sum(float(((each - each.mean()) ** 2).sum()) for each in levels)
    error = math.sqrt(squares / freedom * sum(1.0 / len(each) for each in levels))
    return float(stdtrit(freedom, 0.5 + level / 2.0)) * error


def _by_form(fit: CurveFit) -> Array:
    """The ceiling in every sample, in the order of the samples' forms.

    How slowly curves level off is one doubt for both sides, so it does not count as a difference between them.
    """
    return fit.ceiling_B[np.lexsort((fit.posterior.tail_B(fit.index), fit.posterior.stage_B))]


def _at_ceiling(fit: CurveFit, ceiling: float) -> Array:
    """θ of the Hill curve with the given ceiling through the data (first row), then through every bootstrap draw.

    The draws vary in points, seeds and form, and so do the Hill curves through them.
    """
    compute_C = np.concatenate([c.compute_C for c in fit.curves])
    values_C = np.concatenate([c.values_C for c in fit.curves])
    values_RC = np.concatenate([values_C[None], fit.draws_at(compute_C).T])
    batch = FitRows(
        (compute_C / fit.first)[None],
        np.array([max(fit.last / fit.first, 1.0 + 1e-9)]),
        np.zeros(len(values_RC), dtype=np.int64),
        values_RC,
        np.ones_like(values_RC),
        ceiling,
        pinned=True,
    )
    return solve(HILL, batch).theta_RK


def _is_outside(fit: CurveFit, theta_RK: Array) -> bool:
    """Whether the midpoint lies beyond the last point or at the first, where the search for it ends."""
    middle = float(np.exp(theta_RK[0, 0])) * fit.first
    return middle > fit.last or middle <= fit.first * (1.0 + 1e-6)


def _efficiency(fit: CurveFit, theta_RK: Array, level: float) -> HillParameters:
    steep_R, middle_R = np.exp(theta_RK[:, 1]), np.exp(theta_RK[:, 0]) * fit.first
    return HillParameters(
        float(steep_R[0]),
        around(float(steep_R[0]), steep_R[1:], level),
        float(middle_R[0]),
        around(float(middle_R[0]), middle_R[1:], level),
    )


def _sign(interval: tuple[float, float], even: float) -> str:
    if interval[0] > even:
        return "a"
    return "b" if interval[1] < even else "same"


def _ahead_by_values(sides: Sequence[Sequence[Curve]], fits: Sequence[CurveFit], level: float) -> str:
    """Who leads by the mean of each run's last values (since any collapse), at the largest compute that all have."""
    at = min(float(curve.compute_C[-1]) for side in sides for curve in side)
    means, errors = [], []
    for side, fit in zip(sides, fits, strict=True):
        late = [_late_values(curve, at) for curve in side]
        levels = [float(values_C.mean()) for values_C in late]
        noises = [noise_level(c.values_C) / math.sqrt(len(values_C)) for c, values_C in zip(side, late, strict=True)]
        own = fit.posterior.seed_effect * fit.posterior.rise
        between = float(np.std(levels, ddof=1)) / math.sqrt(len(side)) if len(side) > 1 else own
        means.append(float(np.mean(levels)))
        errors += [math.hypot(*noises) / len(side), between]
    lead, half = means[0] - means[1], float(ndtri(0.5 + level / 2.0)) * math.hypot(*errors)
    return _sign((lead - half, lead + half), 0.0)


def _late_values(curve: Curve, at: float) -> Array:
    end = max(int((curve.compute_C <= at).sum()), 1)
    start = collapse_start(curve.values_C)
    since = start if start is not None and start < end else 0
    return curve.values_C[max(since, end - _LATELY) : end]


def _ahead(a: CurveFit, b: CurveFit, level: float) -> str:
    at = np.array([min(a.last, b.last)])
    return _sign(percentiles(a.draws_at(at)[0] - b.draws_at(at)[0], level), 0.0)


def _overtakings(a: CurveFit, b: CurveFit, level: float) -> tuple[Overtaking, ...]:
    start, seen = max(a.first, b.first), max(a.last, b.last)
    grid_C = np.geomspace(start, seen * _FAR, 400)
    lead_C = a.at(grid_C) - b.at(grid_C)
    above_BC = (a.draws_at(grid_C) > b.draws_at(grid_C)).T
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


_VERDICTS = {
    ("a", ""): "raises the ceiling",
    ("b", ""): "lowers the ceiling",
    ("same", "a"): "speeds up",
    ("same", "b"): "slows down",
    ("undecided", "a"): "speeds up, ceiling undecided",
    ("undecided", "b"): "slows down, ceiling undecided",
    ("same", "same"): "no difference seen",
}
"""By which side is higher and which is faster: `a` is the whole recipe, `b` the variant without the part."""
_NOTHING = ("no difference seen", "undecided")
_LEADS = {"a": "leads at the end", "b": "is behind at the end"}
"""If neither ceiling nor speed decides, the last values may still differ."""


@dataclass(frozen=True)
class AblatedPart:
    """A variant of the recipe without one part, and what that part contributes."""

    name: str
    fit: CurveFit
    """Fit of the whole runs."""
    half: CurveFit
    """Fit of the first half of the compute."""
    predicted: float
    """Mean over the last tenth of the compute, predicted by the fit of the first half."""
    predicted_interval: tuple[float, float]
    reached: float
    comparison: Comparison | None
    """The whole recipe (a) against this variant (b); None for the recipe itself."""

    @property
    def verdict(self) -> str:
        """What the missing part contributes to the recipe."""
        if self.comparison is None:
            return "the recipe"
        higher, faster = self.comparison.higher, self.comparison.faster
        verdict = _VERDICTS.get((higher, "" if higher in "ab" else faster), "undecided")
        if verdict in _NOTHING and self.comparison.ahead_now in _LEADS:
            return _LEADS[self.comparison.ahead_now]
        return verdict


@dataclass(frozen=True)
class Ablation:
    """A leave-one-out study: the whole recipe and its variants."""

    whole: AblatedPart
    parts: tuple[AblatedPart, ...]
    share: float
    """Share of the compute that the predictions were fitted on."""

    @property
    def errors(self) -> list[float]:
        """Predicted minus reached, for the recipe and each variant."""
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
    """Compare a recipe with its variants, each given by its runs (seeds), and predict their ends from the start."""
    if not 0 < share < 1:
        raise InputError(f"a share of {share:g} of the compute cannot be fitted to predict the rest; use .5.")
    sides: dict[str, tuple[Curve, ...]] = {}
    for name, curves in {"": whole, **variants}.items():
        sides[name] = tuple(curve for curve in curves if not collapsed_early(curve))
        if curves and not sides[name]:
            raise InputError(
                f"{name or 'the whole recipe'}: every run collapsed within its first evaluations, as with a "
                "learning rate that is too high; there is no curve to compare."
            )
    fits = _fit_sides(list(sides.values()), replicates, seed)
    usable = [list(fit.curves) for fit in fits]
    first_parts = [[_first_part(curve, share) for curve in curves] for curves in usable]
    halves = fit_groups(first_parts, replicates=replicates, seed=seed, upper=upper_bound(_values(usable)))
    parts = []
    for name, curves, fit, half in zip(sides, usable, fits, halves, strict=True):
        predicted, interval = _predicted(half, curves, level)
        reached = float(np.mean([curve.values_C[_at_end(curve)].mean() for curve in curves]))
        against = _compare((sides[""], sides[name]), (fits[0], fit), level) if name else None
        parts.append(AblatedPart(name, fit, half, predicted, interval, reached, against))
    return Ablation(parts[0], tuple(parts[1:]), share)


def _first_part(curve: Curve, share: float) -> Curve:
    count = int((curve.compute_C <= share * curve.compute_C[-1]).sum())
    if count < MINIMUM_POINTS:
        raise InputError(
            f"run '{curve.name}': {count} points in the first {share:.0%} of its compute; a fit needs "
            f"{MINIMUM_POINTS}: evaluate more often (evaluation.points)."
        )
    return curve.until(count)


def _at_end(curve: Curve) -> Bools:
    return np.asarray(curve.compute_C >= _END * curve.compute_C[-1])


def _predicted(half: CurveFit, curves: Sequence[Curve], level: float) -> tuple[float, tuple[float, float]]:
    """Mean over the last tenth of the compute, predicted by the fit of the first half, and its interval."""
    at = [curve.compute_C[_at_end(curve)] for curve in curves]
    values_B = np.mean([half.draws_at(compute_C).mean(axis=0) for compute_C in at], axis=0)
    value = float(np.median(values_B))
    return value, around(value, values_B, level)
