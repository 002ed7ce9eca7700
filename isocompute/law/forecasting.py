"""The members of a forecast and what each would have said of the run's own past (`forecasting` averages them).

- every curve family (Hill, exponential, power), fitted three times: to all points, without the first point, and
  without the first quarter. That is the rule for the early transient: the jump in which a base model learns the
  answer format says nothing about the slow climb that follows, but whether a run has such a jump is for its own past
  to say;
- `flat`: the mean of the last three evaluations;
- `drift`: the trend of the last three quarters of the compute, by its log, damped to .7 of its slope. Called
  `declining` when it points down.

No member may leave the range seen so far by more than that range for every doubling of compute: it keeps a fit to six
noisy points from promising the sky.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from isocompute.core.arrays import Array, Ints
from isocompute.core.curve import MINIMUM_POINTS, Curve, noise_level, upper_bound
from isocompute.core.errors import InputError
from isocompute.core.formatting import number
from isocompute.core.formatting import value as words
from isocompute.law.collapse import collapse_start
from isocompute.law.curves import usable_points
from isocompute.law.families import FAMILIES, HILL
from isocompute.law.fits import CurveFit, fit_groups
from isocompute.law.solver import Batch, evaluate, solve

__all__ = [
    "VERDICTS",
    "Backtest",
    "Forecast",
    "Members",
    "backtest",
    "drift",
    "floor_of",
    "forecast",
    "origins",
    "path",
    "predict",
]


_SHARES = (0.35, 0.45, 0.55, 0.65, 0.75, 0.85)
"""Of the compute seen: origins that look a little ahead."""
_HALVINGS = (0.0, 0.5, 1.0, 1.5, 2.0, 2.5)
"""Origins that look as far ahead as the question does, to the compute seen, halved so often."""
_EARLIEST = 5  # points before the first origin
_DAMPING = 0.7
_TREND = 0.25
"""Share of the compute seen from which on points make the trend."""


@dataclass(frozen=True)
class Members:
    """Predictions of all members (columns) from several prefixes of one curve (rows)."""

    names: list[str]
    values_OM: Array


def origins(curve: Curve, at: float) -> tuple[Ints, Array, Array]:
    """Prefix lengths to forecast from, where each looks to, and what was there."""
    compute_C, values_C = curve.compute_C, curve.values_C
    last, count = float(compute_C[-1]), len(compute_C)
    far = [last / at * 0.5**halvings for halvings in _HALVINGS]
    ends: list[int] = []
    ats: list[float] = []
    targets: list[float] = []
    for share in sorted({*_SHARES, *far}):
        end = int((compute_C <= share * last * (1 + 1e-12)).sum())
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


def predict(curve: Curve, ends_O: Ints, ats_O: Array) -> Members:
    """Every member's prediction from every prefix: three batches of fits and two closed forms."""
    compute_C, values_C = curve.compute_C, curve.values_C
    unit = float(compute_C[compute_C > 0][0])
    index_C = np.arange(len(compute_C))
    masks, names, looks = [], [], []
    for name, first_O in (
        ("all", np.zeros_like(ends_O)),
        ("-1", np.ones_like(ends_O)),
        ("-quarter", np.maximum(1, ends_O // 4)),
    ):
        start_O = np.minimum(first_O, ends_O - MINIMUM_POINTS)
        masks.append((index_C[None] >= start_O[:, None]) & (index_C[None] < ends_O[:, None]))
        names.append(name)
        looks.append(ats_O)
    weights_RC = np.concatenate(masks).astype(np.float64)
    rows = len(weights_RC)
    batch = Batch(
        compute_GC=(compute_C / unit)[None],
        span_G=np.array([max(float(compute_C[-1]) / unit, 1.0 + 1e-9)]),
        group_R=np.zeros(rows, dtype=np.int64),
        values_RC=np.broadcast_to(values_C, (rows, len(values_C))).copy(),
        weights_RC=weights_RC,
        upper=upper_bound(values_C),
    )
    look_R1 = np.concatenate(looks)[:, None] / unit
    columns, labels = [], []
    for family in FAMILIES:
        predicted_R = evaluate(family, solve(family, batch), look_R1)[:, 0]
        columns += list(predicted_R.reshape(len(names), len(ends_O)))
        labels += [family.name] * len(names)
    prefixes = [curve.until(int(end)) for end in ends_O]
    columns.append(np.array([prefix.values_C[-3:].mean() for prefix in prefixes]))
    columns.append(np.array([drift(prefix, float(look)) for prefix, look in zip(prefixes, ats_O, strict=True)]))
    values_OM = np.stack(columns, axis=1)
    for row, (prefix, look) in enumerate(zip(prefixes, ats_O, strict=True)):
        values_OM[row] = np.clip(values_OM[row], *_credible(prefix, float(look)))
    return Members([*labels, "flat", "drift"], values_OM)


def _credible(curve: Curve, at: float) -> tuple[float, float]:
    """The smoothed range seen, widened by itself for every doubling of compute."""
    smooth_C = np.convolve(curve.values_C, np.ones(3) / 3.0, mode="valid")
    low, high = float(smooth_C.min()), float(smooth_C.max())
    reach = (high - low) * max(float(np.log2(at / curve.compute_C[-1])), 0.0)
    return low - reach, high + reach


def drift(curve: Curve, at: float) -> float:
    """The trend since `_TREND` of the compute, by its log, goes on at `_DAMPING` of its slope, inside the possible."""
    positive = curve.compute_C > 0
    compute_C, values_C = curve.compute_C[positive], curve.values_C[positive]
    size = min(len(values_C), max(_EARLIEST, int((compute_C >= _TREND * compute_C[-1]).sum())))
    x_C = np.log(compute_C[-size:] / compute_C[-1])
    spread = float(((x_C - x_C.mean()) ** 2).sum())
    slope = float((x_C - x_C.mean()) @ values_C[-size:]) / spread if spread > 0 else 0.0
    level = float(values_C[-size:].mean()) - slope * float(x_C.mean())
    value = level + _DAMPING * slope * float(np.log(at / compute_C[-1]))
    return min(max(value, floor_of(curve)), upper_bound(curve.values_C))


def floor_of(curve: Curve) -> float:
    """What no forecast may fall below: 0 where no value was negative, -1 where all lie in [-1, 1]."""
    return 0.0 if float(curve.values_C.min()) >= 0.0 else -1.0 if upper_bound(curve.values_C) == 1.0 else -np.inf


# Where a run is going: an average of forecasters, weighted by how well each predicted this run's own past.

LEVEL = 0.8
VERDICTS = ("declining", "flat", "too_early", "improving")
"""The worst first."""
_TOO_FEW = 8  # points for a verdict
_SURE = 0.8  # chance from which a change is called one
_NEAR = 2.0
"""Up to this many times the compute seen an error that is too large is for want of points, not of nearness."""
_DOUBT = 1.5
"""Power of a member's error that divides its vote."""
_PATH = 6  # points of a forecast that is drawn
_FALLEN = 2  # evaluations that make a fall


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
    """Mean of the last three values seen, after a fall of those since; `isocompute.forecast` puts the level there that
    `health` measures."""
    asymptote: float | None
    asymptote_interval: tuple[float, float] | None
    rise_done: float | None
    """Share of the rise to the asymptote that is done; below `fits.SEEN` the asymptote is a guess by its form."""
    form: str | None
    weights: dict[str, float]
    fitted_points: int
    fitted_until: float

    def to_json(self) -> dict[str, Any]:
        """The keys of `forecast --json` (docs/forecasting.md)."""
        return {
            "at": self.at,
            "value": self.value,
            "interval": list(self.interval),
            "level": self.level,
            "verdict": self.verdict,
            "reason": self.reason,
            "now": self.now,
            "asymptote": self.asymptote,
            "asymptote_interval": None if self.asymptote_interval is None else list(self.asymptote_interval),
            "rise_done": self.rise_done,
            "form": self.form,
            "weights": self.weights,
            "fitted_points": self.fitted_points,
            "fitted_until": self.fitted_until,
        }


@dataclass(frozen=True)
class _Expected:
    """The weighted average of the members at one compute."""

    value: float
    deviation: float
    members: Members
    weights_M: Array


def forecast(curve: Curve, at: float, *, level: float = LEVEL, seed: int = 0, unit: str = "of compute") -> Forecast:
    """Predict the curve at compute `at` from all its points; `unit` is for the words of the reason."""
    _check(curve, at, unit)
    last = float(curve.compute_C[-1])
    expected = _expected(curve, at)
    now = _now(curve)
    verdict, reason = _verdict(curve, at, expected, now, unit)
    fit = _fit(curve, seed)
    # The average of all members may expect more than the best family's ceiling; the ceiling's interval holds that.
    ceiling = None if fit is None else fit.ceiling_interval()
    return Forecast(
        at=at,
        value=expected.value,
        interval=_interval(curve, expected, level),
        level=level,
        verdict=verdict,
        reason=reason,
        now=now,
        asymptote=None if fit is None else fit.ceiling,
        asymptote_interval=None if ceiling is None else (ceiling[0], max(ceiling[1], expected.value)),
        rise_done=None if fit is None else fit.rise_done,
        form=None if fit is None else fit.family.name,
        weights=_by_name(expected, falling=drift(curve, at) < drift(curve, last)),
        fitted_points=len(curve.compute_C),
        fitted_until=last,
    )


def path(curve: Curve, at: float, *, level: float = LEVEL) -> list[tuple[float, float, float, float]]:
    """The forecasts on the way to `at`, each from the members' own past at that distance: compute, value, low, high.

    It begins at the last point: the error there is that of the level, not 0.
    """
    _check(curve, at, "of compute")
    out = []
    for compute in np.geomspace(float(curve.compute_C[-1]), at, _PATH).tolist():
        expected = _expected(curve, compute)
        out.append((compute, expected.value, *_interval(curve, expected, level)))
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


def _expected(curve: Curve, at: float) -> _Expected:
    last = float(curve.compute_C[-1])
    ends_O, ats_O, targets_O = origins(curve, at)
    members = predict(curve, np.append(ends_O, len(curve.compute_C)), np.append(ats_O, at))
    past_OM = members.values_OM[:-1] - targets_O[:, None]
    noise = noise_level(curve.values_C)
    fallen = _is_over(curve)
    votes_M = np.array([float(name == "flat" or not fallen) for name in members.names])
    share_O = _shares(curve.compute_C[ends_O - 1])
    error_M = np.sqrt(share_O @ past_OM**2 + noise**2) if len(past_OM) else np.ones_like(votes_M)
    weights_M = votes_M / error_M**_DOUBT
    weights_M = weights_M / weights_M.sum()
    now_M = np.where(votes_M > 0, _now(curve), members.values_OM[-1]) if fallen else members.values_OM[-1]
    value = float(weights_M @ now_M)
    between = float(weights_M @ (now_M - value) ** 2)
    own = float(share_O @ (past_OM @ weights_M) ** 2) if len(past_OM) else float(np.var(curve.values_C))
    stretch = _stretch(at / last, ats_O / curve.compute_C[ends_O - 1], share_O)
    return _Expected(value, stretch * float(np.sqrt(own + between)) + 1e-12, members, weights_M)


def _shares(compute_O: Array) -> Array:
    """How much each origin counts."""
    square_O = compute_O**2
    return square_O / square_O.sum() if len(square_O) else square_O


def _stretch(ratio: float, past_O: Array, share_O: Array) -> float:
    """How much larger an error is than those of the past, which looked nearer ahead: by the doublings of compute, of
    the past half-way from their mean to the most. Up to one doubling none are missing.
    """
    if not len(past_O):
        return max(1.0, math.log2(ratio))
    doublings_O = np.log2(past_O)
    tested = 0.5 * float(share_O @ doublings_O + doublings_O.max())
    return max(1.0, math.log2(ratio) / max(1.0, tested))


def _fall(curve: Curve) -> int | None:
    """Where a fall begins that more than one evaluation shows, or one and what is not a number after it."""
    least = 1 if curve.ends_non_finite else _FALLEN
    return collapse_start(curve.values_C, shortest=least, deep=least)


def _is_over(curve: Curve) -> bool:
    """Whether the run fell or broke: its curve says nothing of what comes."""
    return curve.ends_non_finite or _fall(curve) is not None


def _now(curve: Curve) -> float:
    """Mean of the last three values, or of those since a fall."""
    return float(curve.values_C[max(_fall(curve) or 0, len(curve.values_C) - 3) :].mean())


def _interval(curve: Curve, expected: _Expected, level: float) -> tuple[float, float]:
    half = NormalDist().inv_cdf(0.5 + level / 2.0) * expected.deviation
    return max(expected.value - half, floor_of(curve)), min(expected.value + half, upper_bound(curve.values_C))


def _verdict(curve: Curve, at: float, expected: _Expected, now: float, unit: str) -> tuple[str, str]:
    count = len(curve.compute_C)
    if count < _TOO_FEW:
        return "too_early", f"{count} points; a verdict needs {_TOO_FEW}"
    seen = float(np.ptp(np.convolve(curve.values_C, np.ones(3) / 3.0, mode="valid")))
    noise = noise_level(curve.values_C)
    if curve.ends_non_finite:
        return "declining", f"its evaluations after {number(float(curve.compute_C[-1]))} {unit} are NaN or infinite"
    fall = _fall(curve)
    if fall is not None:
        return _fallen(curve, fall, now, noise, unit)
    if collapse_start(curve.values_C, shortest=1) is not None:
        high, low = (words(float(x)) for x in (curve.values_C[:-1].max(), curve.values_C[-1]))
        return "too_early", f"fell at its last evaluation, from {high} to {low}: the next will say whether for good"
    largest = max(seen, 3.0 * noise)
    if expected.deviation > largest:
        why = f"the forecast's error ({words(expected.deviation)}) is larger than all change so far ({words(seen)})"
        last = float(curve.compute_C[-1])
        if at > _NEAR * last and _expected(curve, _NEAR * last).deviation <= largest:
            why = f"at {number(at / last)} times the compute seen {why}; ask for less, such as {_NEAR:g}x"
        return "too_early", why
    chance = _chance(curve, expected, now)
    last_three = f"its last three values ({words(now)})"
    if chance >= _SURE:
        return "improving", f"above {last_three} with a chance of {chance:.0%}"
    if chance <= 1.0 - _SURE:
        return "declining", f"below {last_three} with a chance of {1 - chance:.0%}"
    last = float(curve.compute_C[-1])
    near = _chance(curve, _expected(curve, _NEAR * last), now) if at > _NEAR * last else 0.5
    if not 1.0 - _SURE < near < _SURE:
        way, sure = ("above", near) if near > 0.5 else ("below", 1.0 - near)
        return "too_early", (
            f"at {number(at / last)} times the compute seen the error hides any change; at {_NEAR:g}x it is {way} "
            f"{last_three} with a chance of {sure:.0%}"
        )
    return "flat", f"no change stands out from the error (chance of improving on {last_three} {chance:.0%})"


def _chance(curve: Curve, expected: _Expected, now: float) -> float:
    """Of lying above the present."""
    error = math.hypot(expected.deviation, noise_level(curve.values_C) / math.sqrt(3.0))
    return NormalDist().cdf((expected.value - now) / error)


def _fallen(curve: Curve, fall: int, now: float, noise: float, unit: str) -> tuple[str, str]:
    after_C = curve.values_C[fall:]
    before = f"{number(float(curve.compute_C[fall - 1]))} {unit}"
    highest = words(float(curve.values_C[:fall].max()))
    if len(after_C) < 3:
        return "declining", f"its last {len(after_C)} evaluations fell after {before}, from {highest}"
    lowest = float(np.convolve(after_C, np.ones(3) / 3.0, mode="valid").min())
    since = f"fell for good after {before}, from {highest}"
    if now <= lowest + 2.0 * noise:
        return "declining", f"{since}, and is at its lowest since"
    return "flat", f"{since}; part of it has come back"


def _fit(curve: Curve, seed: int) -> CurveFit | None:
    """The curve that `fit` would draw, for its ceiling; a run that fell or broke has no ceiling ahead of it."""
    if _is_over(curve):
        return None
    usable = usable_points(curve)
    if len(usable.compute_C) < MINIMUM_POINTS or np.ptp(usable.values_C) == 0:
        return None
    return fit_groups([[usable]], replicates=400, seed=seed)[0]


def _by_name(expected: _Expected, *, falling: bool) -> dict[str, float]:
    out = dict.fromkeys([family.name for family in FAMILIES] + ["flat", "drift", "declining"], 0.0)
    for name, weight in zip(expected.members.names, expected.weights_M, strict=True):
        out["declining" if name == "drift" and falling else name] += float(weight)
    return out


@dataclass(frozen=True)
class Backtest:
    """A forecast from the first half of a run, held against the mean of its last tenth."""

    run: str
    forecast: Forecast
    target: float
    last_three: float
    hill: float

    @property
    def covered(self) -> bool:
        """Whether the interval holds the target."""
        return self.forecast.interval[0] <= self.target <= self.forecast.interval[1]


def backtest(curve: Curve, *, level: float = LEVEL, ahead: float = 2.0) -> Backtest:
    """Fit on the first half of the compute (or what lies this many times before its end), predict the mean over the
    last tenth of it.

    The baselines are "the mean of the last three evaluations" and one Hill fit to all points of the first half.
    """
    last = float(curve.compute_C[-1])
    end = curve.points_up_to(last / ahead)
    tail = curve.compute_C > 0.9 * last
    seen = curve.until(end)
    at = float(curve.compute_C[tail].mean())
    made = forecast(seen, at, level=level)
    unit = float(seen.compute_C[seen.compute_C > 0][0])
    batch = Batch(
        (seen.compute_C / unit)[None],
        np.array([max(float(seen.compute_C[-1]) / unit, 1.0 + 1e-9)]),
        np.zeros(1, dtype=np.int64),
        seen.values_C[None],
        np.ones((1, end)),
        upper_bound(seen.values_C),
    )
    hill = float(evaluate(HILL, solve(HILL, batch), np.array([[at / unit]]))[0, 0])
    return Backtest(curve.name, made, float(curve.values_C[tail].mean()), float(seen.values_C[-3:].mean()), hill)
