"""Where a run is going: an average of forecasters, weighted by how well each predicted this run's own past.

Members:

- every curve family (Hill, exponential, power), fitted three times: to all points, without the first point, and
  without the first quarter. That is the rule for the early transient: the jump in which a base model learns the
  answer format says nothing about the slow climb that follows, but whether a run has such a jump is for its own past
  to say;
- `flat`: the mean of the last three evaluations;
- `drift`: the trend of the last three quarters in log compute, damped to .7 of its slope. Called `declining` when it
  points down.

Weights are 1 / (root mean squared error) over rolling origins: each member is fitted to 35%…85% of the compute seen and
predicts a later part at the same ratio of compute as the question asks for, as far as the data reach. After a lasting
fall (`curve.lasting_fall`) neither the monotone families nor a trend through the fall have anything to say, and only
`flat` votes: public runs that fell stayed low or came back about as often as they fell on. No member may leave the
range seen so far by more than that range for every doubling of compute: it keeps a fit to six noisy points from
promising the sky.

The forecast's variance is the squared error that the weighted average itself made on the run's past plus the variance
between its members now. Beyond twice the compute seen it grows with the log of the ratio.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from isocompute.arrays import Array, Ints
from isocompute.errors import InputError
from isocompute.law.curve import MINIMUM_POINTS, Curve, lasting_fall, noise_level, upper_bound
from isocompute.law.families import FAMILIES, HILL
from isocompute.law.fits import fit_groups, usable_points
from isocompute.law.solver import Batch, evaluate, solve

__all__ = ["Backtest", "Forecast", "backtest", "forecast"]

LEVEL = 0.8
_ORIGINS = (0.35, 0.45, 0.55, 0.65, 0.75, 0.85)
_EARLIEST = 5  # points before the first origin
_TOO_FEW = 8  # points for a verdict
_DAMPING = 0.7


@dataclass(frozen=True)
class Forecast:
    """A run's expected value at a later compute."""

    at: float
    value: float
    interval: tuple[float, float]
    level: float
    verdict: str
    """`improving`, `flat`, `declining` or `too_early`."""
    reason: str
    now: float
    """Mean of the last three values seen."""
    asymptote: float | None
    asymptote_interval: tuple[float, float] | None
    form: str | None
    weights: dict[str, float]
    fitted_points: int
    fitted_until: float


@dataclass(frozen=True)
class _Members:
    """Predictions of all members (columns) from several prefixes of one curve (rows)."""

    names: list[str]
    values_OM: Array


def forecast(curve: Curve, at: float, *, level: float = LEVEL, seed: int = 0) -> Forecast:
    """Predict the curve at compute `at` from all its points."""
    if len(curve.compute_C) < MINIMUM_POINTS:
        raise InputError(
            f"run '{curve.name}': {len(curve.compute_C)} points up to the fit's end; a forecast needs "
            f"{MINIMUM_POINTS}: fit until later or evaluate more often."
        )
    last = float(curve.compute_C[-1])
    if not at > last:
        raise InputError(f"run '{curve.name}': {at:g} is not beyond its last point at {last:g}; ask for more, as 2x.")
    ends_O, ats_O, targets_O = _origins(curve, at)
    members = _predict(curve, np.append(ends_O, len(curve.compute_C)), np.append(ats_O, at))
    past_OM = members.values_OM[:-1] - targets_O[:, None]
    noise = noise_level(curve.values_C)
    fallen = lasting_fall(curve.values_C) is not None
    votes_M = np.array([float(name == "flat" or not fallen) for name in members.names])
    error_M = np.sqrt(np.mean(past_OM**2, axis=0) + noise**2) if len(past_OM) else np.ones_like(votes_M)
    weights_M = votes_M / error_M
    weights_M = weights_M / weights_M.sum()
    now_M = members.values_OM[-1]
    value = float(weights_M @ now_M)
    between = float(weights_M @ (now_M - value) ** 2)
    own = float(np.mean((past_OM @ weights_M) ** 2)) if len(past_OM) else float(np.var(curve.values_C))
    stretch = max(1.0, float(np.log(at / last) / np.log(2.0)))
    deviation = stretch * float(np.sqrt(own + between)) + 1e-12
    low, high = _clipped(curve, value, NormalDist().inv_cdf(0.5 + level / 2.0) * deviation)
    now = float(curve.values_C[-3:].mean())
    verdict, reason = _verdict(curve, value, deviation, now)
    asymptote, asymptote_interval, form = _asymptote(curve, seed)
    if asymptote_interval is not None:
        # The average of all members may expect more than the best family's ceiling; the ceiling's interval holds that.
        asymptote_interval = asymptote_interval[0], max(asymptote_interval[1], value)
    return Forecast(
        at=at,
        value=value,
        interval=(low, high),
        level=level,
        verdict=verdict,
        reason=reason,
        now=now,
        asymptote=asymptote,
        asymptote_interval=asymptote_interval,
        form=form,
        weights=_by_name(members, weights_M, falling=_drift(curve, at) < _drift(curve, last)),
        fitted_points=len(curve.compute_C),
        fitted_until=last,
    )


def _origins(curve: Curve, at: float) -> tuple[Ints, Array, Array]:
    """Prefix lengths to forecast from, where each looks to, and what was there."""
    compute_C, values_C = curve.compute_C, curve.values_C
    last, count = compute_C[-1], len(compute_C)
    ends: list[int] = []
    ats: list[float] = []
    targets: list[float] = []
    for share in _ORIGINS:
        end = int((compute_C <= share * last * (1 + 1e-12)).sum())
        if end < _EARLIEST or end >= count or (ends and ends[-1] == end):
            continue
        look = min(float(compute_C[end - 1] * at / last), float(last))
        window = (np.arange(count) >= end) & (compute_C >= 0.8 * look) & (compute_C <= 1.1 * look)
        if not window.any():
            window = np.arange(count) == count - 1
        ends.append(end)
        ats.append(float(compute_C[window].mean()))
        targets.append(float(values_C[window].mean()))
    return np.array(ends, dtype=np.int64), np.array(ats), np.array(targets)


def _predict(curve: Curve, ends_O: Ints, ats_O: Array) -> _Members:
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
    rows, origins = len(weights_RC), len(ends_O)
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
        columns += list(predicted_R.reshape(len(names), origins))
        labels += [family.name] * len(names)
    prefixes = [curve.until(int(end)) for end in ends_O]
    columns.append(np.array([prefix.values_C[-3:].mean() for prefix in prefixes]))
    columns.append(np.array([_drift(prefix, float(look)) for prefix, look in zip(prefixes, ats_O, strict=True)]))
    values_OM = np.stack(columns, axis=1)
    for row, (prefix, look) in enumerate(zip(prefixes, ats_O, strict=True)):
        values_OM[row] = np.clip(values_OM[row], *_credible(prefix, float(look)))
    return _Members([*labels, "flat", "drift"], values_OM)


def _credible(curve: Curve, at: float) -> tuple[float, float]:
    """The smoothed range seen, widened by itself for every doubling of compute."""
    smooth_C = np.convolve(curve.values_C, np.ones(3) / 3.0, mode="valid")
    low, high = float(smooth_C.min()), float(smooth_C.max())
    reach = (high - low) * max(float(np.log2(at / curve.compute_C[-1])), 0.0)
    return low - reach, high + reach


def _drift(curve: Curve, at: float) -> float:
    """The last three quarters' trend in log compute, continued at `_DAMPING` of its slope, inside the possible."""
    positive = curve.compute_C > 0
    compute_C, values_C = curve.compute_C[positive], curve.values_C[positive]
    size = min(len(values_C), max(_EARLIEST, 3 * len(curve.values_C) // 4))
    x_C = np.log(compute_C[-size:] / compute_C[-1])
    spread = float(((x_C - x_C.mean()) ** 2).sum())
    slope = float((x_C - x_C.mean()) @ values_C[-size:]) / spread if spread > 0 else 0.0
    level = float(values_C[-size:].mean()) - slope * float(x_C.mean())
    value = level + _DAMPING * slope * float(np.log(at / compute_C[-1]))
    return min(max(value, _floor(curve)), upper_bound(curve.values_C))


def _floor(curve: Curve) -> float:
    return 0.0 if float(curve.values_C.min()) >= 0.0 else -1.0 if upper_bound(curve.values_C) == 1.0 else -np.inf


def _clipped(curve: Curve, value: float, half: float) -> tuple[float, float]:
    top = 1.0 if upper_bound(curve.values_C) == 1.0 else np.inf
    return max(value - half, _floor(curve)), min(value + half, top)


def _verdict(curve: Curve, value: float, deviation: float, now: float) -> tuple[str, str]:
    count = len(curve.compute_C)
    if count < _TOO_FEW:
        return "too_early", f"{count} points; a verdict needs {_TOO_FEW}"
    seen = float(np.ptp(np.convolve(curve.values_C, np.ones(3) / 3.0, mode="valid")))
    noise = noise_level(curve.values_C)
    fall = lasting_fall(curve.values_C)
    if fall is not None:
        lowest = float(np.convolve(curve.values_C[fall:], np.ones(3) / 3.0, mode="valid").min())
        since = f"fell for good after {curve.compute_C[fall - 1]:.4g}, from {curve.values_C[:fall].max():.3f}"
        if now <= lowest + 2.0 * noise:
            return "declining", f"{since}, and is at its lowest since"
        return "flat", f"{since}; part of it has come back"
    if deviation > max(seen, 3.0 * noise):
        return (
            "too_early",
            f"the forecast's error ({deviation:.3f}) is larger than all change so far ({seen:.3f})",
        )
    chance = NormalDist().cdf((value - now) / math.hypot(deviation, noise / math.sqrt(3.0)))
    if chance >= 0.8:
        return "improving", f"above its present level with a chance of {chance:.0%}"
    if chance <= 0.2:
        return "declining", f"below its present level with a chance of {1 - chance:.0%}"
    return "flat", f"no change stands out from the error (chance of improving {chance:.0%})"


def _asymptote(curve: Curve, seed: int) -> tuple[float | None, tuple[float, float] | None, str | None]:
    if lasting_fall(curve.values_C) is not None:
        return None, None, None  # a run that fell has no ceiling ahead of it
    usable = usable_points(curve)
    if len(usable.compute_C) < MINIMUM_POINTS or np.ptp(usable.values_C) == 0:
        return None, None, None
    fit = fit_groups([[usable]], replicates=400, seed=seed)[0]
    return fit.ceiling, fit.ceiling_interval(), fit.family.name


def _by_name(members: _Members, weights_M: Array, *, falling: bool) -> dict[str, float]:
    out = dict.fromkeys([family.name for family in FAMILIES] + ["flat", "drift", "declining"], 0.0)
    for name, weight in zip(members.names, weights_M, strict=True):
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


def backtest(curve: Curve, *, level: float = LEVEL) -> Backtest:
    """Fit on the first half of the compute, predict the mean over the last tenth of it.

    The baselines are "the mean of the last three evaluations" and one Hill fit to all points of the first half.
    """
    last = float(curve.compute_C[-1])
    end = int((curve.compute_C <= 0.5 * last * (1 + 1e-12)).sum())
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
