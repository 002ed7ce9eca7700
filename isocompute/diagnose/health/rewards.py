"""Reward that falls: a sequential test against the best level so far, on every held-out set and on training's problems.

Page's CUSUM sums how far each value lies below the best level in units of noise, less an allowance: half of the fall
that matters, as the test is quickest for it, between a quarter and one. The alarm is set for one false alarm in 10^5
points of noise, more in runs of over a thousand points (Siegmund 1985): at an allowance of one it lies at 4.9, so that
a fall of six noise levels alarms at once and one of three within three points. The best level is the highest trailing
mean so far, less what the highest of so many means exceeds the truth by. A fall matters that is a fifth of the rise
seen and .04 of the scale, twice the error that ScaleRL found between repetitions of one run.

Held-out sets share one rate of false alarms: each of K sets is given K times the points to one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from isocompute.core.arrays import Array, Ints
from isocompute.diagnose.health.series import Series, counter_noise, records, trailing_mean
from isocompute.law.curve import PERCENT, are_percent

__all__ = [
    "FEWEST_FOR_FALL",
    "FEWEST_FOR_GAP",
    "Fall",
    "Reward",
    "batch_noise",
    "binomial_scale",
    "first_fall",
    "first_gap",
    "reference_rows",
    "reward_of",
    "set_noise",
    "sets_seen",
]

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
_FEWEST, _MOST = 3, 20
FEWEST_FOR_FALL = 2
"""Points of a reward before which there is nothing to fall from."""
FEWEST_FOR_GAP = _FEWEST + 1
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
    width_T = np.clip(np.ceil((noise_T / (_AIM * scale_T)) ** 2), _FEWEST, _MOST)
    means = {int(w): trailing_mean(values_T, int(w)) for w in np.unique(width_T)}
    level_T = np.array([means[int(w)][t] for t, w in enumerate(width_T)])
    count_T = np.arange(1, len(values_T) + 1)
    # The mean of fewer values than it takes is no level to fall from, but of a quiet series its lower bound is.
    bound_T = np.where(width_T == _FEWEST, level_T - 2.0 * noise_T / np.sqrt(count_T), -np.inf)
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
        if t - best < _FEWEST or then < 0:
            continue
        lost = float(validation.best_T[t] - validation.level_T[t])
        gained = float(train.level_T[now] - train.level_T[then])
        sure = lost >= 3.0 * validation.error_T[t] and gained >= 3.0 * math.hypot(
            train.error_T[now], train.error_T[then]
        )
        if sure and gained >= GAP * train.scale_T[now]:
            return t
    return None
