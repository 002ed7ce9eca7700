"""A metric of a run as a series, and what can be said of it at every point from the points up to there alone.

Every function here is causal: entry t of what it returns depends on entries up to t of what it is given. So a check
made of them says of a run's beginning what it said when the run had only begun.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from isocompute.core.arrays import Array, Ints
from isocompute.core.curve import PERCENT, are_percent, noise_level, scale_of
from isocompute.core.not_numbers import non_finite
from isocompute.core.run import LARGEST, Run
from isocompute.data.pass_rates import BINS, PassRates
from isocompute.law.collapse import collapse_start
from isocompute.planner.warnings import zero_variance_share

if TYPE_CHECKING:
    from isocompute.core.curve import Curve

__all__ = [
    "Drift",
    "FEWEST_FOR_DRIFT",
    "FEWEST_FOR_FALL",
    "FEWEST_FOR_GAP",
    "FEWEST_FOR_PROGRESS",
    "FEWEST_NORMS",
    "FEWEST_OF_TRAINING",
    "Fall",
    "MISMATCHES",
    "Reward",
    "Series",
    "as_share",
    "batch_noise",
    "binomial_scale",
    "counter_noise",
    "first_above",
    "first_drift",
    "first_excess",
    "first_fall",
    "first_gap",
    "first_given_up",
    "first_not_finite",
    "first_spikes",
    "has_risen",
    "near_zero",
    "present_level",
    "records",
    "reference_rows",
    "reward_of",
    "series_of",
    "set_noise",
    "sets_seen",
    "stalled_since",
    "trailing_mean",
    "trailing_median",
]


MEMORY = 100
"""Moves that the noise is estimated from: a run's noise changes as it learns."""
PRIOR_WEIGHT = 4.0
"""Moves that the prior noise counts for: a handful of points cannot say how noisy they are."""
_HALF_NORMAL = 0.6745
"""Median of the absolute value of a standard normal."""


@dataclass(frozen=True)
class Series:
    """The points of a run that have a finite value of a metric, up to `LARGEST`."""

    name: str
    row_T: Ints
    """Their rows in the run."""
    values_T: Array

    def __len__(self) -> int:
        return len(self.values_T)

    def until(self, row: int) -> int:
        """How many of its points lie in rows up to and including this one."""
        return int(np.searchsorted(self.row_T, row, side="right"))


def series_of(run: Run, name: str, *, fewest: int = 1) -> Series | None:
    """A metric of a run; None where it has fewer finite values than a check needs."""
    column = _numbers(run, name)
    if column is None:
        return None
    values = column.fill_null(math.nan).to_numpy()
    row_T = np.flatnonzero(np.abs(values) <= LARGEST)
    return Series(name, row_T, np.asarray(values[row_T], dtype=np.float64)) if len(row_T) >= fewest else None


def first_not_finite(run: Run, name: str) -> tuple[int, float] | None:
    """Row and value of the first entry of a metric that is there and not a finite number up to `LARGEST`."""
    marked = non_finite(run.points).get(name)
    return None if marked is None else (marked.row, marked.value)


def _numbers(run: Run, name: str) -> pl.Series | None:
    column: pl.Series | None = run.points.get_column(name, default=None)
    if column is None or not (column.dtype.is_numeric() or column.dtype == pl.Boolean):
        return None
    return column.cast(pl.Float64)


def trailing_median(values_T: Array, width: int) -> Array:
    """Median of the last `width` values, fewer at the start."""
    return _trailing(values_T, width, np.median)


def trailing_mean(values_T: Array, width: int) -> Array:
    """Mean of the last `width` values, fewer at the start."""
    return _trailing(values_T, width, np.mean)


def _trailing(values_T: Array, width: int, summary: Callable[..., Array]) -> Array:
    head = [float(summary(values_T[: t + 1])) for t in range(min(width - 1, len(values_T)))]
    if len(values_T) < width:
        return np.array(head)
    windows_TW = np.lib.stride_tricks.sliding_window_view(values_T, width)
    return np.concatenate([head, summary(windows_TW, axis=1)])


def counter_noise(values_T: Array, *, prior: Array | float) -> Array:
    """Standard deviation of the noise as the falls of a series show it.

    A series that rises falls by noise alone, so the size of its falls is noise, whatever its slope and curvature; the
    median makes it blind to the rare true fall. Negate a series that is expected to fall. Entry t uses the moves before
    t, the last `MEMORY` of them, drawn towards the prior standard deviation.
    """
    prior_T = np.broadcast_to(np.asarray(prior, dtype=np.float64), values_T.shape)
    falls: list[float] = []
    ordered: list[float] = []
    out_T = np.empty(len(values_T))
    for t in range(len(values_T)):
        m = len(ordered)
        seen = _median(ordered) / (_HALF_NORMAL * math.sqrt(2.0)) if m else 0.0
        out_T[t] = math.sqrt((PRIOR_WEIGHT * prior_T[t] ** 2 + m * seen**2) / (PRIOR_WEIGHT + m))
        if t and values_T[t] < values_T[t - 1]:
            fall = float(values_T[t - 1] - values_T[t])
            falls.append(fall)
            insort(ordered, fall)
            if len(falls) > MEMORY:
                del ordered[bisect_left(ordered, falls.pop(0))]
    return out_T


def _median(ordered: list[float]) -> float:
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else 0.5 * (ordered[middle - 1] + ordered[middle])


def records(values_T: Array) -> Ints:
    """Index of the highest value so far."""
    best_T = np.maximum.accumulate(values_T)
    is_new_T = np.concatenate([[True], values_T[1:] > best_T[:-1]])
    return np.maximum.accumulate(np.where(is_new_T, np.arange(len(values_T)), 0))


# Shares of a batch: cut responses, groups without a signal, and problems given up.

WINDOW = 5
"""Points a share is averaged over: one bad batch is no state of a run."""
EXCESS = 0.1
"""Groups without a signal beyond what the pass rates predict, that count."""
GIVEN_UP = 0.05
"""Problems that have newly come near a pass rate of 0, that count."""
SIGMAS = 3.0
_WHOLE, _PERCENT = 1.0 + 1e-6, 100.0 * (1.0 + 1e-6)
"""The most that a share is, of 1 and of 100, with what rounding adds."""


def near_zero(rates: PassRates) -> float:
    """Share of problems in the lowest twentieth of pass rates."""
    return float(rates.share_K[: BINS // 20].sum())


def same_scores(rates: PassRates, n: int) -> float:
    """Expected share of groups of n whose rollouts all score the same: of pass rates in bins, the most it can be."""
    return float(rates.share_K @ _same_scores_of_bins(n))


@cache
def _same_scores_of_bins(n: int) -> Array:
    """The share at each bin's edge that lies further from a half."""
    low_K = np.arange(BINS) / BINS
    edge_K = np.where(low_K < 0.5, low_K, low_K + 1.0 / BINS)
    return np.array([zero_variance_share(edge_K[k : k + 1], n) for k in range(BINS)])


def as_share(series: Series) -> Series | None:
    """A share of 1; None where it is none. What goes beyond 1 is in percent, also where it does not."""
    low, high = float(series.values_T.min()), float(series.values_T.max())
    if low < 0.0 or high > _PERCENT:
        return None
    return series if high <= _WHOLE else replace(series, values_T=series.values_T / 100.0)


def first_above(series: Series, mark: float, *, window: int = WINDOW) -> int | None:
    """The first point from which the mean of the last `window` lies above a mark; a full window is needed."""
    above_T = trailing_mean(series.values_T, window) > mark
    above_T[: window - 1] = False
    return int(above_T.argmax()) if above_T.any() else None


def first_excess(
    series: Series, rates: dict[int, PassRates], *, n: int, problems: int
) -> tuple[int, float, float] | None:
    """Where more groups score all the same than the pass rates predict: the index, the share seen and the predicted.

    `rates` are by row of the run; of those up to a point, the last one counts.
    """
    seen_T = trailing_mean(series.values_T, WINDOW)
    rows = sorted(rates)
    last_T = np.searchsorted(rows, series.row_T, side="right") - 1
    for t in range(WINDOW - 1, len(series)):
        if last_T[t] < 0:
            continue
        predicted = same_scores(rates[rows[last_T[t]]], n)
        error = float(np.sqrt(max(predicted * (1.0 - predicted), 1e-3) / (problems * WINDOW)))
        if seen_T[t] - predicted >= max(EXCESS, SIGMAS * error):
            return t, float(seen_T[t]), predicted
    return None


def first_given_up(rates: dict[int, PassRates]) -> int | None:
    """The row where the share of problems near a pass rate of 0 has risen while the mean has not fallen."""
    rows = sorted(rates)
    for row in rows[1:]:
        first, now = rates[rows[0]], rates[row]
        share = near_zero(now)
        error = float(np.sqrt(max(share * (1.0 - share), 1e-3) * 2.0 / min(first.problems, now.problems)))
        if share - near_zero(first) >= max(GIVEN_UP, SIGMAS * error) and now.mean >= first.mean:
            return row
    return None


# Entropy, length and KL that drift while the reward gains nothing.

SIGMAS_drift = 6.0
FEWEST_FOR_DRIFT = 2
_BEFORE = 3
"""Points that the reference is the median of."""
_NOTHING = 1e-12


@dataclass(frozen=True)
class Drift:
    """A change since the best reward, at the point where it showed."""

    at: int
    """Index in the series."""
    since: int
    """Index in the series of what it is compared with."""
    before: float
    now: float


def first_drift(
    series: Series, *, reference_R: Ints, factor: float, up: bool, prior: float, floor: float = 0.0, smooth: int = 1
) -> Drift | None:
    """The first point at which a positive series has changed by `factor` since the row of its reference.

    `reference_R` gives for every row of the run the row to compare with. Values under `floor` count as the floor: a
    factor between two numbers that are both next to nothing is no change. `prior` is the noise of its logarithm before
    it has shown its own. `smooth` is how many of the last points the
    median is taken of, for series with wild ones.
    """
    sign = 1.0 if up else -1.0
    logs_T = np.log(np.maximum(series.values_T, max(floor, _NOTHING)))
    before_T, now_T = trailing_median(logs_T, _BEFORE), trailing_median(logs_T, smooth)
    noise_T = counter_noise(sign * logs_T, prior=prior)
    for t in range(1, len(series)):
        since = max(series.until(int(reference_R[series.row_T[t]])) - 1, 0)
        change = sign * float(now_T[t] - before_T[since])
        error = float(noise_T[t]) * math.sqrt(1.0 + 1.0 / min(since + 1, _BEFORE))  # of both ends
        if since < t and change >= max(math.log(factor), SIGMAS_drift * error):
            return Drift(t, since, float(np.exp(before_T[since])), float(np.exp(now_T[t])))
    return None


# Gradients that jump, and a sampler that is not the policy which is trained.

_BEFORE_gradients = 30
_FEWEST = 10
SPIKE = 5.0
"""A spike is this many times the median of the points before it …"""
SIGMAS_gradients = 6.0
"""… and this many times their spread on a log scale above it."""
SPIKES = 3
"""One spike is what gradient clipping is for; this many among the last thirty points are a state."""
FEWEST_NORMS = _FEWEST + SPIKES
"""Points before which there cannot be a third spike."""
_PRIOR_NOISE = 0.3

MISMATCHES: dict[str, float] = {
    "logprob_gap": 0.1,
    "sampling/sampling_logp_difference/mean": 0.1,
    "rollout_corr/kl": 0.01,
    "mismatch_kl/all/mean": 0.01,
    "mismatch_kl/mean": 0.01,
    "optim/kl_sample_train_v2": 0.01,
    "optim/kl_sample_train_v1": 0.01,
    "train/gen_kl_error": 0.01,
    "training/rollout_probs_diff_mean": 0.05,
}
"""Trainers' measures of the distance between sampler and trainer, and what is large for each: an importance weight
off by a tenth a token, or a KL of .01, which is about the same distance (δ²/2 at δ = .14)."""


def first_spikes(series: Series) -> tuple[int, float, float] | None:
    """Where the third spike of thirty points came: the index, its size and the median before it."""
    logs_T = np.log(np.maximum(series.values_T, 1e-12))
    before_T = trailing_median(logs_T, _BEFORE_gradients)
    high = _FEWEST + np.flatnonzero(logs_T[_FEWEST:] - before_T[_FEWEST - 1 : -1] >= math.log(SPIKE))
    spikes: list[int] = []
    for t in map(int, high):
        middle = float(before_T[t - 1])
        spread = 1.4826 * float(np.median(np.abs(logs_T[max(0, t - _BEFORE_gradients) : t] - middle)))
        if logs_T[t] - middle >= SIGMAS_gradients * max(spread, _PRIOR_NOISE):
            spikes = [s for s in spikes if s > t - _BEFORE_gradients] + [t]
            if len(spikes) >= SPIKES:
                return t, float(series.values_T[t]), math.exp(middle)
    return None


# Reward that falls: a sequential test against the best level so far, on every held-out set and on training's problems.

VALIDATION_NOISE = 0.02
"""Prior noise of an evaluation, of the scale: ScaleRL's error, and that of some 600 samples."""
SMALL_SET = 30
"""Problems of a further held-out set, whose size no log says: those of one AIME."""
PROBLEM_SPREAD = 0.4
"""Prior spread between problems, of rewards on their scale and of lengths' logarithm: over √Bp in a batch."""
UNKNOWN_BATCH = 32
"""Where a log does not say Bp: the smallest of the IsoCompute paper."""
ALLOWANCES = (0.25, 1.0)
POINTS_TO_FALSE_ALARM = 1e5
SHARE_OF_RISE = 0.2
SMALLEST = 0.04
GAP = 0.05
"""Gain of training's reward that held-out reward does not share, of the scale."""
_LONG = 1000
_FEWEST_rewards, _MOST = 3, 20
FEWEST_FOR_FALL = 2
"""Points of a reward before which there is nothing to fall from."""
FEWEST_FOR_GAP = _FEWEST_rewards + 1
"""Evaluations before which none lies far enough after the best."""
_AIM = 0.02
_RAREST = 0.2
"""The spread of a binomial at a rate of .01 or .99: rarer successes are not told from noise."""


@dataclass(frozen=True)
class Reward:
    """A reward series with its noise, its level and the best level so far, at every point."""

    series: Series
    scale_T: Array
    noise_T: Array
    level_T: Array
    """Mean of the last values, as many as bring its error to .02 of the scale, three at least and twenty at most."""
    width_T: Ints
    """How many that is."""
    error_T: Array
    """Standard error of that mean."""
    best_T: Array
    """The highest full level so far, less its bias as a maximum of noisy means; −∞ before there is one."""
    best_at_T: Ints
    """Where the level was highest so far."""
    held_at_T: Ints
    """Where it was last within two standard errors of that."""


@dataclass(frozen=True)
class Fall:
    """A fall of the reward, at the point where it showed."""

    at: int
    """Index in the series."""
    best: float
    best_at: int
    now: float
    """Mean since the fall began."""


def reward_of(series: Series, *, prior: float, floor: float = 0.0) -> Reward:
    """Levels of a reward; `prior` is its noise, of the scale, before the series has shown its own, which counts from
    `floor` on.
    """
    values_T = series.values_T
    scale_T = binomial_scale(values_T, rate_T=np.maximum.accumulate(values_T))
    noise_T = np.maximum(counter_noise(values_T, prior=prior * scale_T), floor * scale_T)
    width_T = np.clip(np.ceil((noise_T / (_AIM * scale_T)) ** 2), _FEWEST_rewards, _MOST)
    means = {int(w): trailing_mean(values_T, int(w)) for w in np.unique(width_T)}
    level_T = np.array([means[int(w)][t] for t, w in enumerate(width_T)])
    count_T = np.arange(1, len(values_T) + 1)
    # The mean of fewer values than it takes is no level to fall from, but of a quiet series its lower bound is.
    bound_T = np.where(width_T == _FEWEST_rewards, level_T - 2.0 * noise_T / np.sqrt(count_T), -np.inf)
    top_T = np.maximum.accumulate(np.where(count_T >= width_T, level_T, bound_T))
    bias_T = noise_T / np.sqrt(width_T) * np.sqrt(2.0 * np.log(np.maximum(1.0, count_T / width_T)))
    seen_T = np.minimum(width_T, count_T).astype(np.int64)
    error_T = noise_T / np.sqrt(seen_T)
    held_T = level_T >= np.maximum.accumulate(level_T) - 2.0 * error_T
    held_at_T = np.maximum.accumulate(np.where(held_T, count_T - 1, 0))
    return Reward(series, scale_T, noise_T, level_T, seen_T, error_T, top_T - bias_T, records(level_T), held_at_T)


def binomial_scale(values_T: Array, *, rate_T: Array) -> Array:
    """What a difference is measured by: `law.curve.scale_of` of the values so far (1 for rates, 2 for [-1, 1], 100 for
    percent, else the range), for rates and percent by the spread of a binomial at a rate p, √(4 p (1 - p)): on a hard
    set .03 of .06 is half of all there is.
    """
    low_T, high_T = np.minimum.accumulate(values_T), np.maximum.accumulate(values_T)
    rates_T, percent_T = (low_T >= -1.0) & (high_T <= 1.0), are_percent(low_T, high_T)
    whole_T = np.where(percent_T, PERCENT, 1.0)
    rate_T = rate_T / whole_T
    binomial_T = whole_T * np.sqrt(np.clip(4.0 * rate_T * (1.0 - rate_T), _RAREST**2, 1.0))
    other_T = np.where(rates_T, 2.0, np.maximum(high_T - low_T, 1e-12))
    return np.where(percent_T | (rates_T & (low_T >= 0.0)), binomial_T, other_T)


def first_fall(reward: Reward, *, looks_T: Ints) -> Fall | None:
    """The first fall that is both certain and large, seen from the points up to it.

    `looks_T` are the series, this one among them, that share a rate of false alarms at each point.
    """
    values_T = reward.series.values_T
    total, began, summed, noise = 0.0, 0, 0.0, 0.0
    for t in range(1, len(values_T)):
        best = float(reward.best_T[t - 1])
        if total == 0.0:  # held while a fall is under way, which must not count as its own noise
            noise = float(reward.noise_T[t])
        rise = best - float(values_T[0])
        matters = max(SHARE_OF_RISE * rise, SMALLEST * float(reward.scale_T[t]))
        allowance = min(max(matters / (2.0 * noise), ALLOWANCES[0]), ALLOWANCES[1])
        total = max(0.0, total + (best - values_T[t]) / noise - allowance)
        if total == 0.0:  # also while there is no level yet
            began, summed = t + 1, 0.0
            continue
        summed += float(values_T[t])
        now = summed / (t + 1 - began)
        if total >= _alarm(allowance, points=t, looks=int(looks_T[t])) and best - now >= matters:
            at = int(reward.best_at_T[t - 1])
            return Fall(t, float(reward.level_T[at]), at, now)
    return None


def _alarm(allowance: float, *, points: int, looks: int) -> float:
    """Where the sum alarms, for the wanted number of points to a false alarm: Siegmund's approximation inverted.

    A long run gets more points for it in proportion, or it would raise one for its length alone, and so do several
    looks at one run.
    """
    wanted = POINTS_TO_FALSE_ALARM * looks * max(1.0, points / _LONG)
    return math.log(2.0 * allowance**2 * wanted) / (2.0 * allowance) - 1.166


def batch_noise(problems_per_batch: int | None) -> float:
    """Prior noise of a training batch's mean."""
    return PROBLEM_SPREAD / math.sqrt(problems_per_batch or UNKNOWN_BATCH)


def set_noise(samples: int) -> float:
    """Prior noise of a further held-out set, of the scale: that of a binomial at this many samples of a small set."""
    return max(VALIDATION_NOISE, 0.5 / math.sqrt(SMALL_SET * samples))


def sets_seen(rewards: Sequence[Reward], at: Reward) -> Ints:
    """At every point of a reward, how many of these have been logged up to there."""
    first_K = np.sort([int(reward.series.row_T[0]) for reward in rewards])
    return np.searchsorted(first_K, at.series.row_T, side="right")


def reference_rows(rows: int, rewards: Sequence[Reward], at: Callable[[Reward], Ints]) -> Ints:
    """`at` of a reward, for every row of a run and as a row of it, by the first of these rewards that has a value."""
    out_R = np.zeros(rows, dtype=np.int64)
    for reward in reversed(rewards):
        row_T = reward.series.row_T
        index_R = np.searchsorted(row_T, np.arange(rows), side="right") - 1
        known_R = index_R >= 0
        out_R[known_R] = row_T[at(reward)[index_R[known_R]]]
    return out_R


def first_gap(validation: Reward, train: Reward) -> int | None:
    """Where held-out reward lies below its best while training's has risen on since then: an index of `validation`."""
    for t in range(len(validation.series)):
        best = int(validation.best_at_T[t])
        now, then = (train.series.until(int(validation.series.row_T[i])) - 1 for i in (t, best))
        if t - best < _FEWEST_rewards or then < 0:
            continue
        lost = float(validation.best_T[t] - validation.level_T[t])
        gained = float(train.level_T[now] - train.level_T[then])
        sure = lost >= 3.0 * validation.error_T[t] and gained >= 3.0 * math.hypot(
            train.error_T[now], train.error_T[then]
        )
        if sure and gained >= GAP * train.scale_T[now]:
            return t
    return None


# Reward that never rose: the commonest failure, which no fall or drift shows.

FEWEST_FOR_PROGRESS = 8
"""Evaluations before which a slow start is no standstill."""
FEWEST_OF_TRAINING = 40
"""The same of batches, of which a run has many more: two full levels."""
RISE = 3.0
MATTERS = 0.1
"""A rise that must be able to show, of the scale."""
_LAST = 4
"""Values at the end that can be a rise: a single high one is an outlier."""


def has_risen(values_T: Array) -> bool:
    """Whether the reward rose at any time, of the points up to there: what rose once has learned."""
    count = len(values_T)
    if count < FEWEST_FOR_PROGRESS:
        return False
    total_T = np.concatenate([[0.0], np.cumsum(values_T - values_T[0])])
    noise_T = _noise(values_T)
    asked_T = np.sqrt(RISE**2 + 2.0 * np.log(np.arange(1, count + 1) / FEWEST_FOR_PROGRESS).clip(0.0))
    for power in range(int(math.log2(count - 1)) + 1):
        part = 2**power
        end_T = np.arange(max(part + 1, FEWEST_FOR_PROGRESS), count + 1)  # how many values are seen
        splits = [np.full(len(end_T), part)] + ([end_T - part] if part >= _LAST else [])
        for split_T in splits:
            before_T = total_T[split_T] / split_T
            after_T = (total_T[end_T] - total_T[split_T]) / (end_T - split_T)
            error_T = noise_T[end_T - 1] * np.sqrt(1.0 / split_T + 1.0 / (end_T - split_T))
            if np.any(after_T - before_T > asked_T[end_T - 1] * error_T):
                return True
    return False


def stalled_since(values_T: Array, *, fewest: int) -> int | None:
    """Of a reward that has not risen, the point from which a rise that matters would have shown."""
    count_T = np.arange(1, len(values_T) + 1)
    error_T = _noise(values_T) * 2.0 / np.sqrt(count_T)
    mean_T = np.cumsum(values_T / count_T[-1]) * (count_T[-1] / count_T)
    enough_T = (count_T >= fewest) & (RISE * error_T <= MATTERS * binomial_scale(values_T, rate_T=mean_T))
    return int(enough_T.argmax()) if enough_T.any() else None


def _noise(values_T: Array) -> Array:
    """Standard deviation of the noise by the mean move up to each point; a trend only adds to it."""
    moves_T = np.abs(np.diff(values_T, prepend=values_T[0]))
    return np.cumsum(moves_T) / np.maximum(1, np.arange(len(values_T))) * (math.sqrt(math.pi) / 2.0)


# The level that a run is at, by the rule of `health`: the same in `forecast` and `report`.

_FEWEST_level = 3


def present_level(curve: Curve) -> float:
    """Mean of the last values, as many as bring its error to .02 of the scale: three at least and twenty at most.

    `health` watches a run from its first point and begins with a guess of the noise, which makes the mean of a short
    run a long one; here the whole curve says how noisy it is. After a fall only what came after it counts, be it one
    value, and where the run broke the last three: `forecast` expects no more of it.
    """
    values_T = curve.values_C
    fall = collapse_start(values_T, shortest=1)
    if fall is not None or curve.ends_non_finite:
        return float(values_T[fall or 0 :][-_FEWEST_level:].mean())
    series = Series(curve.name, np.arange(len(values_T)), values_T)
    return float(reward_of(series, prior=noise_level(values_T) / scale_of(values_T)).level_T[-1])
