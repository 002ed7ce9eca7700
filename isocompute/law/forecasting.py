"""Forecasts a run as an average of forecasters, weighted by how well each predicted this run's own past.

The forecasters:

- every curve family (Hill, exponential, power), fitted three times: to all points, without the first point, and
  without the first quarter. A base model may jump while it learns the answer format, which does not predict the slow
  climb that follows. The run's own past decides whether it has such a jump;
- `flat`: the mean of the last three evaluations;
- a damped trend: .7 times the slope against log compute over the last three quarters of the compute. The weights call
  it `drift`, or `declining` if it points down.

For each doubling of compute, a forecaster may leave the observed range by at most the size of that range. This limits
fits to a few noisy points.

Weights follow the root mean squared error over rolling origins: each forecaster is fitted to an earlier part of the run
and predicts a later one. Some origins look ahead by the ratio of compute asked for, others by less. An origin counts by
the square of its compute, since recent behaviour predicts better than the beginning.

After a collapse of at least two evaluations, only `flat` votes, by the values since. Neither a monotone curve nor a
trend through the collapse would help: public runs that collapsed stayed low or recovered about as often as they fell
further. A single low evaluation may be a glitch, so there is no verdict. If the last evaluations are NaN or infinite,
only `flat` votes too.

The forecast's variance is the squared error of the weighted average on the run's past, plus the present variance
between its forecasters. If the question looks further ahead than any origin could, the variance grows with the log of
the ratio. Its interval is that of Student's t, since a short run says little about its own error.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from scipy.special import ndtr, stdtrit

from isocompute.core.arrays import Array, Ints
from isocompute.core.curve import MINIMUM_POINTS, Curve, noise_level, upper_bound
from isocompute.core.errors import InputError
from isocompute.core.formatting import number
from isocompute.core.formatting import value as words
from isocompute.law.curves import collapse_start, usable_points
from isocompute.law.fits import CurveFit, fit_groups
from isocompute.law.solver import FAMILIES, HILL, FitRows, evaluate, solve

LEVEL = 0.8
"""Default coverage of a forecast's interval."""
VERDICTS = ("declining", "flat", "too_early", "improving")
"""Verdicts, the worst first."""
_TOO_FEW = 8  # a verdict needs this many points
_SURE = 0.8  # a verdict of a change needs this chance
_NEAR = 2.0
"""Up to this many times the observed compute, too large an error means too few points, not too far a question."""
_ERROR_POWER = 1.5
"""A forecaster's weight is proportional to its error to the power -1.5."""
_POINTS_A_FREEDOM = 4.0
"""Points that count as one degree of freedom of the error: origins share most of theirs."""
_PATH = 6  # points of a drawn forecast
_COLLAPSED = 2  # low evaluations that make a collapse

_SHARES = (0.35, 0.45, 0.55, 0.65, 0.75, 0.85)
"""Origins that look a little ahead, as shares of the observed compute."""
_HALVINGS = (0.0, 0.5, 1.0, 1.5, 2.0, 2.5)
"""Origins that look ahead by the ratio asked for; each looks to the observed compute, halved this many times."""
_EARLIEST = 5  # points before the first origin
_DAMPING = 0.7
"""Share of its slope with which a trend continues."""
_TREND = 0.25
"""The trend is that of the points after this share of the observed compute."""


@dataclass(frozen=True)
class Forecast:
    """A run's expected value at a later compute."""

    at: float
    value: float
    interval: tuple[float, float]
    level: float
    verdict: str
    """One of `VERDICTS`."""
    reason: str
    now: float
    """The present level: the mean of the last three values, or of those since a collapse.

    `isocompute.forecast` replaces it by the level that `health` measures.
    """
    asymptote: float | None
    asymptote_interval: tuple[float, float] | None
    rise_done: float | None
    """Share of the rise to the asymptote that is done; below `fits.CEILING_SEEN` the asymptote depends on the form."""
    form: str | None
    weights: dict[str, float]
    fitted_points: int
    fitted_until: float
    curve: Curve = field(repr=False, compare=False)
    """The whole run; the forecast is fitted to its first `fitted_points` points."""
    metric: str = ""
    unit: str = ""

    def to_json(self) -> dict[str, Any]:
        """The keys of `forecast --json`."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("curve", "metric", "unit")}


def forecast(curve: Curve, at: float, *, level: float = LEVEL, seed: int = 0, unit: str = "of compute") -> Forecast:
    """Predict the curve at compute `at` from all its points; `unit` is for the text of the reason."""
    _check(curve, at, unit)
    last = float(curve.compute_C[-1])
    average = _average(curve, at)
    now = _now(curve)
    verdict, reason = _verdict(curve, at, average, now, unit)
    fit = _fit(curve, seed)
    # The average of all forecasters may exceed the best family's ceiling; the ceiling's interval includes it.
    ceiling = None if fit is None else fit.ceiling_interval()
    weights = dict.fromkeys([family.name for family in FAMILIES] + ["flat", "drift", "declining"], 0.0)
    declines = damped_trend(curve, at) < damped_trend(curve, last)
    for name, weight in zip(average.names, average.weights_F, strict=True):
        weights["declining" if name == "drift" and declines else name] += float(weight)
    return Forecast(
        at=at,
        value=average.value,
        interval=_interval(curve, average, level),
        level=level,
        verdict=verdict,
        reason=reason,
        now=now,
        asymptote=None if fit is None else max(fit.ceiling, now),
        asymptote_interval=None if ceiling is None else (ceiling[0], max(ceiling[1], average.value, now)),
        rise_done=None if fit is None else fit.rise_done,
        form=None if fit is None else fit.form,
        weights=weights,
        fitted_points=len(curve.compute_C),
        fitted_until=last,
        curve=curve,
        unit=unit,
    )


def path(curve: Curve, at: float, *, level: float = LEVEL) -> list[tuple[float, float, float, float]]:
    """The forecasts on the way to `at`, each weighted for that distance: compute, value, low, high.

    It begins at the last point, where the error is that of the present level, not 0.
    """
    _check(curve, at, "of compute")
    out = []
    for compute in np.geomspace(float(curve.compute_C[-1]), at, _PATH).tolist():
        average = _average(curve, compute)
        out.append((compute, average.value, *_interval(curve, average, level)))
    return out


def _check(curve: Curve, at: float, unit: str) -> None:
    if len(curve.compute_C) < MINIMUM_POINTS:
        raise InputError(
            f"run '{curve.name}': {len(curve.compute_C)} points up to the fit's end; a forecast needs "
            f"{MINIMUM_POINTS}: fit until later or evaluate more often."
        )
    last = float(curve.compute_C[-1])
    if not at > last:
        raise InputError(
            f"run '{curve.name}': {number(at)} {unit} is not beyond its last point at {number(last)}; ask for more, as "
            "2x, or say another --unit."
        )


# The weighted average of the forecasters.


@dataclass(frozen=True)
class _Average:
    value: float
    deviation: float
    names: list[str]
    """Names of the forecasters."""
    weights_F: Array


def _average(curve: Curve, at: float) -> _Average:
    last = float(curve.compute_C[-1])
    ends_O, ats_O, targets_O = origins(curve, at)
    names, values_OF = _predictions(curve, np.append(ends_O, len(curve.compute_C)), np.append(ats_O, at))
    past_OF, now_F = values_OF[:-1] - targets_O[:, None], values_OF[-1]
    noise = noise_level(curve.values_C)
    votes_F = np.ones(len(names))
    if _is_over(curve):
        votes_F = np.array([float(name == "flat") for name in names])
        now_F = np.where(votes_F > 0, _now(curve), now_F)
    square_O = curve.compute_C[ends_O - 1] ** 2
    share_O = square_O / square_O.sum() if len(square_O) else square_O
    error_F = np.sqrt(share_O @ past_OF**2 + noise**2) if len(past_OF) else np.ones_like(votes_F)
    weights_F = votes_F / error_F**_ERROR_POWER
    weights_F = weights_F / weights_F.sum()
    value = float(weights_F @ now_F)
    between = float(weights_F @ (now_F - value) ** 2)
    own = float(share_O @ (past_OF @ weights_F) ** 2) if len(past_OF) else float(np.var(curve.values_C))
    # The error grows with the doublings of compute asked for over those tested on the past. The latter are half-way
    # between the mean and the largest of the origins, and at least one.
    asked, tested = math.log2(at / last), 1.0
    if len(ends_O):
        doublings_O = np.log2(ats_O / curve.compute_C[ends_O - 1])
        tested = max(1.0, 0.5 * float(share_O @ doublings_O + doublings_O.max()))
    further = max(1.0, asked / tested)
    return _Average(value, further * math.sqrt(own + between) + 1e-12, names, weights_F)


def origins(curve: Curve, at: float) -> tuple[Ints, Array, Array]:
    """Rolling origins: the prefix lengths to forecast from, the compute of each target, and its value."""
    compute_C, values_C = curve.compute_C, curve.values_C
    last, count = float(compute_C[-1]), len(compute_C)
    far = [last / at * 0.5**halvings for halvings in _HALVINGS]
    ends: list[int] = []
    ats: list[float] = []
    targets: list[float] = []
    for share in sorted({*_SHARES, *far}):
        end = curve.points_up_to(share * last)
        if end < _EARLIEST or end >= count or (ends and ends[-1] == end):
            continue
        look = min(float(compute_C[end - 1] * at / last), last)
        window = (np.arange(count) >= end) & (compute_C >= 0.8 * look) & (compute_C <= 1.1 * look)
        if not window.any():
            window = np.arange(count) == end + int(np.abs(compute_C[end:] - look).argmin())
        ends.append(end)
        ats.append(float(compute_C[window].mean()))
        targets.append(float(values_C[window].mean()))
    return np.array(ends, dtype=np.int64), np.array(ats), np.array(targets)


def _predictions(curve: Curve, ends_O: Ints, ats_O: Array) -> tuple[list[str], Array]:
    """The forecasters' names, and the prediction of each (columns) from every prefix (rows)."""
    compute_C, values_C = curve.compute_C, curve.values_C
    unit = float(compute_C[compute_C > 0][0])
    index_C = np.arange(len(compute_C))
    weights = []
    for first_O in (np.zeros_like(ends_O), np.ones_like(ends_O), np.maximum(1, ends_O // 4)):
        start_O = np.minimum(first_O, ends_O - MINIMUM_POINTS)
        weights.append((index_C >= start_O[:, None]) & (index_C < ends_O[:, None]))
    weights_RC = np.concatenate(weights).astype(np.float64)
    rows, starts = len(weights_RC), len(weights)
    batch = FitRows(
        compute_GC=(compute_C / unit)[None],
        span_G=np.array([max(float(compute_C[-1]) / unit, 1.0 + 1e-9)]),
        group_R=np.zeros(rows, dtype=np.int64),
        values_RC=np.tile(values_C, (rows, 1)),
        weights_RC=weights_RC,
        upper=upper_bound(values_C),
    )
    at_R1 = np.tile(ats_O, starts)[:, None] / unit
    columns: list[Array] = []
    for family in FAMILIES:
        columns += list(evaluate(family, solve(family, batch), at_R1)[:, 0].reshape(starts, len(ends_O)))
    seen = [(curve.until(int(end)), float(at)) for end, at in zip(ends_O, ats_O, strict=True)]
    columns.append(np.array([prefix.values_C[-3:].mean() for prefix, _ in seen]))
    columns.append(np.array([damped_trend(prefix, at) for prefix, at in seen]))
    low_O, high_O = np.array([_credible(prefix, at) for prefix, at in seen]).T
    names = [family.name for family in FAMILIES for _ in range(starts)] + ["flat", "drift"]
    return names, np.clip(np.stack(columns, axis=1), low_O[:, None], high_O[:, None])


def _credible(curve: Curve, at: float) -> tuple[float, float]:
    """The smoothed observed range, widened by its own size for every doubling of compute."""
    smooth_C = np.convolve(curve.values_C, np.ones(3) / 3.0, mode="valid")
    low, high = float(smooth_C.min()), float(smooth_C.max())
    further = (high - low) * max(float(np.log2(at / curve.compute_C[-1])), 0.0)
    return low - further, high + further


def damped_trend(curve: Curve, at: float) -> float:
    """The linear trend in log compute since `_TREND`, continued with `_DAMPING` of its slope, within the bounds."""
    positive = curve.compute_C > 0
    compute_C, values_C = curve.compute_C[positive], curve.values_C[positive]
    size = min(len(values_C), max(_EARLIEST, int((compute_C >= _TREND * compute_C[-1]).sum())))
    x_C = np.log(compute_C[-size:] / compute_C[-1])
    spread = float(((x_C - x_C.mean()) ** 2).sum())
    slope = float((x_C - x_C.mean()) @ values_C[-size:]) / spread if spread > 0 else 0.0
    level = float(values_C[-size:].mean()) - slope * float(x_C.mean())
    value = level + _DAMPING * slope * float(np.log(at / compute_C[-1]))
    return min(max(value, _lower_bound(curve)), upper_bound(curve.values_C))


def _lower_bound(curve: Curve) -> float:
    """0 if no value was negative, -1 if all lie in [-1, 1], else none."""
    return 0.0 if float(curve.values_C.min()) >= 0.0 else -1.0 if upper_bound(curve.values_C) == 1.0 else -np.inf


# The verdict.


def _collapse(curve: Curve) -> int | None:
    """Start of a collapse of two evaluations, or of one that NaN or infinite values follow; None without one."""
    least = 1 if curve.ends_non_finite else _COLLAPSED
    return collapse_start(curve.values_C, shortest=least, deep=least)


def _is_over(curve: Curve) -> bool:
    """Whether the run collapsed or ends in NaN or infinite values, so that its curve predicts nothing."""
    return curve.ends_non_finite or _collapse(curve) is not None


def _now(curve: Curve) -> float:
    """Mean of the last three values, or of those since a collapse."""
    return float(curve.values_C[max(_collapse(curve) or 0, len(curve.values_C) - 3) :].mean())


def _interval(curve: Curve, average: _Average, level: float) -> tuple[float, float]:
    freedom = max(len(curve.values_C) / _POINTS_A_FREEDOM, 3.0)
    half = float(stdtrit(freedom, 0.5 + level / 2.0)) * average.deviation
    return max(average.value - half, _lower_bound(curve)), min(average.value + half, upper_bound(curve.values_C))


def _verdict(curve: Curve, at: float, average: _Average, now: float, unit: str) -> tuple[str, str]:
    count, last = len(curve.compute_C), float(curve.compute_C[-1])
    if count < _TOO_FEW:
        return "too_early", f"{count} points; a verdict needs {_TOO_FEW}"
    if curve.ends_non_finite:
        return "declining", f"its evaluations after {number(last)} {unit} are NaN or infinite"
    noise, start = noise_level(curve.values_C), _collapse(curve)
    if start is not None:
        return _collapsed(curve, start, now, noise, unit)
    if collapse_start(curve.values_C, shortest=1) is not None:
        high, low = (words(float(x)) for x in (curve.values_C[:-1].max(), curve.values_C[-1]))
        return "too_early", f"fell at its last evaluation, from {high} to {low}: the next will say whether for good"
    seen = float(np.ptp(np.convolve(curve.values_C, np.ones(3) / 3.0, mode="valid")))
    largest = max(seen, 3.0 * noise)
    if average.deviation > largest:
        why = f"the forecast's error ({words(average.deviation)}) is larger than all change so far ({words(seen)})"
        if at > _NEAR * last and _average(curve, _NEAR * last).deviation <= largest:
            why = f"at {number(at / last)} times the compute seen {why}; ask for less, such as {_NEAR:g}x"
        return "too_early", why

    def chance_above_now(average: _Average) -> float:
        return float(ndtr((average.value - now) / math.hypot(average.deviation, noise / math.sqrt(3.0))))

    chance = chance_above_now(average)
    last_three = f"its last three values ({words(now)})"
    if chance >= _SURE:
        return "improving", f"above {last_three} with a chance of {chance:.0%}"
    if chance <= 1.0 - _SURE:
        return "declining", f"below {last_three} with a chance of {1 - chance:.0%}"
    near = chance_above_now(_average(curve, _NEAR * last)) if at > _NEAR * last else 0.5
    if not 1.0 - _SURE < near < _SURE:
        way, sure = ("above", near) if near > 0.5 else ("below", 1.0 - near)
        return "too_early", (
            f"at {number(at / last)} times the compute seen the error hides any change; at {_NEAR:g}x it is {way} "
            f"{last_three} with a chance of {sure:.0%}"
        )
    return "flat", f"no change exceeds the error (chance of improving on {last_three} {chance:.0%})"


def _collapsed(curve: Curve, start: int, now: float, noise: float, unit: str) -> tuple[str, str]:
    after_C = curve.values_C[start:]
    before = f"{number(float(curve.compute_C[start - 1]))} {unit}"
    highest = words(float(curve.values_C[:start].max()))
    if len(after_C) < 3:
        return "declining", f"its last {len(after_C)} evaluations fell after {before}, from {highest}"
    lowest = float(np.convolve(after_C, np.ones(3) / 3.0, mode="valid").min())
    since = f"collapsed after {before}, from {highest}"
    if now <= lowest + 2.0 * noise:
        return "declining", f"{since}, and is at its lowest since"
    return "flat", f"{since}; part of it has come back"


def _fit(curve: Curve, seed: int) -> CurveFit | None:
    """The curve that `fit` would draw, for its ceiling; None for a run that is over or has too few points."""
    if _is_over(curve):
        return None
    usable = usable_points(curve)
    if len(usable.compute_C) < MINIMUM_POINTS or np.ptp(usable.values_C) == 0:
        return None
    return fit_groups([[usable]], replicates=400, seed=seed, with_seeds=False)[0]


@dataclass(frozen=True)
class Backtest:
    """A forecast from the first half of a run, compared with the mean of its last tenth."""

    run: str
    forecast: Forecast
    target: float
    last_three: float
    hill: float

    @property
    def covered(self) -> bool:
        """Whether the interval contains the target."""
        return self.forecast.interval[0] <= self.target <= self.forecast.interval[1]


def backtest(curve: Curve, *, level: float = LEVEL, ahead: float = 2.0) -> Backtest:
    """Predict the mean over the last tenth of a run's compute from its first half, or its first 1 / `ahead`.

    The baselines are the mean of the last three evaluations and a Hill fit, both of the same points.
    """
    last = float(curve.compute_C[-1])
    end = curve.points_up_to(last / ahead)
    tail = curve.compute_C > 0.9 * last
    seen = curve.until(end)
    at = float(curve.compute_C[tail].mean())
    made = forecast(seen, at, level=level)
    unit = float(seen.compute_C[seen.compute_C > 0][0])
    batch = FitRows(
        (seen.compute_C / unit)[None],
        np.array([max(float(seen.compute_C[-1]) / unit, 1.0 + 1e-9)]),
        np.zeros(1, dtype=np.int64),
        seen.values_C[None],
        np.ones((1, end)),
        upper_bound(seen.values_C),
    )
    hill = float(evaluate(HILL, solve(HILL, batch), np.array([[at / unit]]))[0, 0])
    return Backtest(curve.name, made, float(curve.values_C[tail].mean()), float(seen.values_C[-3:].mean()), hill)
