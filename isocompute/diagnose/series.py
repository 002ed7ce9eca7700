"""A metric of a run as a series, and sequential tests on it.

Every function is causal: what it returns for point t depends on the points up to t alone. So a check gives the same
findings on a prefix of a run as it does on the whole run up to there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from isocompute.core.arrays import Array, Ints
from isocompute.core.curve import PERCENT, Curve, are_percent, noise_level, scale_of
from isocompute.core.run import LARGEST, Run
from isocompute.law.curves import collapse_start

VALIDATION_NOISE = 0.02
"""Prior noise of an evaluation, as a share of the scale: ScaleRL's error, about that of 600 samples."""
LEVEL_POINTS = (3, 20)
"""A level is the mean of the last values: as many as bring its error to .02 of the scale, within these limits."""
MINIMUM_FOR_PROGRESS = 8
"""Evaluations needed to find that a reward does not rise."""
MINIMUM_TRAINING_BATCHES = 40
"""Training batches needed to find the same: two full levels."""


# Series ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Series:
    """The finite values of a metric in a run, up to `LARGEST` in size."""

    name: str
    row_T: Ints
    """The row of each value in the run."""
    values_T: Array

    def __len__(self) -> int:
        return len(self.values_T)

    def until(self, row: int) -> int:
        """Number of values in rows up to and including this one."""
        return int(np.searchsorted(self.row_T, row, side="right"))


def series_of(run: Run, name: str, *, minimum: int = 1) -> Series | None:
    """A metric of a run as a series; None if it has fewer than `minimum` finite values."""
    column: pl.Series | None = run.points.get_column(name, default=None)
    if column is None or not (column.dtype.is_numeric() or column.dtype == pl.Boolean):
        return None
    values = column.cast(pl.Float64).fill_null(math.nan).to_numpy()
    row_T = np.flatnonzero(np.abs(values) <= LARGEST)
    return Series(name, row_T, np.asarray(values[row_T], dtype=np.float64)) if len(row_T) >= minimum else None


def trailing(summary: Callable[..., Any], values_T: Array, width: int) -> Array:
    """A summary, such as `np.mean`, of the last `width` values at every point; of fewer at the start."""
    head = [float(summary(values_T[: t + 1])) for t in range(min(width - 1, len(values_T)))]
    if len(values_T) < width:
        return np.array(head)
    windows_TW = np.lib.stride_tricks.sliding_window_view(values_T, width)
    return np.concatenate([head, summary(windows_TW, axis=1)])


def downside_noise(values_T: Array, *, prior: Array | float) -> Array:
    """Standard deviation of the noise, from the falls of a series.

    A rising series falls by noise alone, so the size of its falls is noise, whatever its slope and curvature. The
    median ignores the rare real fall. Negate a series that is expected to fall. Entry t uses the last 100 falls before
    t, shrunk towards the prior standard deviation.
    """
    moves_T = np.diff(values_T, prepend=values_T[:1])
    falls = -moves_T[moves_T < 0]
    before_T: Ints = np.cumsum(moves_T < 0) - (moves_T < 0)  # falls before each point
    median = np.concatenate([[0.0], trailing(np.median, falls, 100)])[before_T]
    seen_T = median / (0.6745 * math.sqrt(2.0))  # the median of |x| of a standard normal x
    count_T = np.minimum(before_T, 100)
    variance_T = (4.0 * np.square(prior) + count_T * seen_T**2) / (4.0 + count_T)
    return np.asarray(np.sqrt(variance_T))


def running_argmax(values_T: Array) -> Ints:
    """Index of the highest value so far."""
    best_T = np.maximum.accumulate(values_T)
    is_new_T = np.concatenate([[True], values_T[1:] > best_T[:-1]])
    return np.maximum.accumulate(np.where(is_new_T, np.arange(len(values_T)), 0))


# The level of a reward ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reward:
    """A reward series with its noise, its level and the best level so far, at every point."""

    series: Series
    scale_T: Array
    noise_T: Array
    level_T: Array
    """Mean of the last values, as many as bring its error to .02 of the scale: 3 at least and 20 at most."""
    width_T: Ints
    """Number of values in that mean."""
    error_T: Array
    """Standard error of that mean."""
    best_T: Array
    """The highest full level so far, less its bias as a maximum of noisy means; −∞ before there is one."""
    best_at_T: Ints
    """Where the level was highest so far."""
    near_best_at_T: Ints
    """Where it was last within two standard errors of that."""


def reward_of(series: Series, *, prior: float, floor: float = 0.0) -> Reward:
    """The levels of a reward series.

    `prior` is the noise before the series shows its own and `floor` its lower bound, both as shares of the scale. The
    best level is the highest trailing mean so far, less the bias of a maximum over so many noisy means.
    """
    values_T = series.values_T
    fewest, most = LEVEL_POINTS
    scale_T = binomial_scale(values_T, rate_T=np.maximum.accumulate(values_T))
    noise_T = np.maximum(downside_noise(values_T, prior=prior * scale_T), floor * scale_T)
    width_T = np.clip(np.ceil((noise_T / (0.02 * scale_T)) ** 2), fewest, most)
    means = {int(w): trailing(np.mean, values_T, int(w)) for w in np.unique(width_T)}
    level_T = np.array([means[int(w)][t] for t, w in enumerate(width_T)])
    count_T = np.arange(1, len(values_T) + 1)
    # A mean of too few values is no level to drop from, but for a quiet series its lower bound is.
    bound_T = np.where(width_T == fewest, level_T - 2.0 * noise_T / np.sqrt(count_T), -np.inf)
    top_T = np.maximum.accumulate(np.where(count_T >= width_T, level_T, bound_T))
    bias_T = noise_T / np.sqrt(width_T) * np.sqrt(2.0 * np.log(np.maximum(1.0, count_T / width_T)))
    used_T = np.minimum(width_T, count_T).astype(np.int64)
    error_T = noise_T / np.sqrt(used_T)
    near_T = level_T >= np.maximum.accumulate(level_T) - 2.0 * error_T
    near_best_at_T = np.maximum.accumulate(np.where(near_T, count_T - 1, 0))
    best_at_T = running_argmax(level_T)
    return Reward(series, scale_T, noise_T, level_T, used_T, error_T, top_T - bias_T, best_at_T, near_best_at_T)


def binomial_scale(values_T: Array, *, rate_T: Array) -> Array:
    """The scale that differences of a reward are measured by, at every point.

    It is `scale_of` the values so far: 1 for rates, 2 for [-1, 1], 100 for percent, else the range. For rates and
    percent it shrinks with the standard deviation of a binomial at rate p, √(4 p (1 - p)), down to that at .01 or .99.
    On a hard set, a fall from .06 to .03 is large.
    """
    low_T, high_T = np.minimum.accumulate(values_T), np.maximum.accumulate(values_T)
    rates_T, percent_T = (low_T >= -1.0) & (high_T <= 1.0), are_percent(low_T, high_T)
    whole_T = np.where(percent_T, PERCENT, 1.0)
    rate_T = rate_T / whole_T
    binomial_T = whole_T * np.sqrt(np.clip(4.0 * rate_T * (1.0 - rate_T), 0.2**2, 1.0))
    other_T = np.where(rates_T, 2.0, np.maximum(high_T - low_T, 1e-12))
    return np.where(percent_T | (rates_T & (low_T >= 0.0)), binomial_T, other_T)


def batch_noise(problems_per_batch: int | None) -> float:
    """Prior noise of a batch's mean reward or log length: a standard deviation of .4 between problems.

    Bp defaults to 32, the smallest of the IsoCompute paper.
    """
    return 0.4 / math.sqrt(problems_per_batch or 32)


def sets_logged(rewards: Sequence[Reward], at: Reward) -> Ints:
    """For every point of `at`, how many of `rewards` have been logged by then."""
    first_K = np.sort([int(reward.series.row_T[0]) for reward in rewards])
    return np.searchsorted(first_K, at.series.row_T, side="right")


def reference_rows(rows: int, rewards: Sequence[Reward], at: Callable[[Reward], Ints]) -> Ints:
    """For every row of a run, the row that `at` gives for the first of these rewards that has a value by then."""
    out_R = np.zeros(rows, dtype=np.int64)
    for reward in reversed(rewards):
        row_T = reward.series.row_T
        index_R = np.searchsorted(row_T, np.arange(rows), side="right") - 1
        known_R = index_R >= 0
        out_R[known_R] = row_T[at(reward)[index_R[known_R]]]
    return out_R


def present_level(curve: Curve) -> float:
    """The final level of a whole run: the mean of its last 3 to 20 values, as in `Reward.level_T`.

    Checks start from a prior of the noise, which averages more values of a short run; here the noise is that of the
    whole curve. After a collapse only the values since then count, at most 3, as at the end of a run that diverged.
    """
    values_T = curve.values_C
    collapse = collapse_start(values_T, shortest=1)
    if collapse is not None or curve.ends_non_finite:
        return float(values_T[collapse or 0 :][-LEVEL_POINTS[0] :].mean())
    series = Series(curve.name, np.arange(len(values_T)), values_T)
    return float(reward_of(series, prior=noise_level(values_T) / scale_of(values_T)).level_T[-1])


# Rewards that drop, overfit or never rise -----------------------------------------------------------------------------


class Drop(NamedTuple):
    """A drop of the reward, at the point of the series where it showed."""

    at: int
    best: float
    best_at: int
    now: float  # mean since the drop began


def first_drop(reward: Reward, *, tests_T: Ints) -> Drop | None:
    """The first drop that is both certain and large: Page's CUSUM against the best level so far.

    The sum adds how far each value lies below the best level, in units of noise, less an allowance. The allowance is
    half of the smallest drop that matters, for which the test is then fastest. A drop matters if it is a fifth of the
    rise so far and .04 of the scale, twice ScaleRL's error between repetitions of one run. At an allowance of 1 the
    threshold is 4.9: a drop of six noise levels is found at once, one of three within three points. `tests_T` is the
    number of series that share one rate of false alarms.
    """
    values_T = reward.series.values_T
    total, began, summed, noise = 0.0, 0, 0.0, 0.0
    for t in range(1, len(values_T)):
        best = float(reward.best_T[t - 1])
        if total == 0.0:  # fixed during a drop, which must not count as its own noise
            noise = float(reward.noise_T[t])
        rise = best - float(values_T[0])
        matters = max(0.2 * rise, 0.04 * float(reward.scale_T[t]))
        allowance = min(max(matters / (2.0 * noise), 0.25), 1.0)
        total = max(0.0, total + (best - values_T[t]) / noise - allowance)
        if total == 0.0:  # also while there is no level yet
            began, summed = t + 1, 0.0
            continue
        summed += float(values_T[t])
        now = summed / (t + 1 - began)
        if total >= _alarm(allowance, points=t, tests=int(tests_T[t])) and best - now >= matters:
            at = int(reward.best_at_T[t - 1])
            return Drop(t, float(reward.level_T[at]), at, now)
    return None


def _alarm(allowance: float, *, points: int, tests: int) -> float:
    """Threshold of the sum for one false alarm in 10^5 points of noise: Siegmund's approximation (1985), inverted.

    Those points grow with the length of a run of over 1,000 points and with the number of tests.
    """
    wanted = 1e5 * tests * max(1.0, points / 1000)
    return math.log(2.0 * allowance**2 * wanted) / (2.0 * allowance) - 1.166


def first_gap(validation: Reward, train: Reward) -> int | None:
    """The first index of the validation reward at which it is below its best while the training reward has risen.

    Both changes must exceed three standard errors, and the rise .05 of the scale.
    """
    for t in range(len(validation.series)):
        best = int(validation.best_at_T[t])
        now, then = (train.series.until(int(validation.series.row_T[i])) - 1 for i in (t, best))
        if t - best < LEVEL_POINTS[0] or then < 0:
            continue
        lost = float(validation.best_T[t] - validation.level_T[t])
        gained = float(train.level_T[now] - train.level_T[then])
        error = math.hypot(train.error_T[now], train.error_T[then])
        certain = lost >= 3.0 * validation.error_T[t] and gained >= 3.0 * error
        if certain and gained >= 0.05 * train.scale_T[now]:
            return t
    return None


def has_risen(values_T: Array) -> bool:
    """Whether the reward rose at any time, judged from the points up to then.

    It rose if the mean after its first 1, 2, 4, … values, or of its last 4, 8, 16, …, lies three standard errors above
    the mean of the values before. The former finds an early rise that stayed, the latter a late one. Longer series have
    more chances, so the square of the three grows by 2 ln of the length.
    """
    count = len(values_T)
    if count < MINIMUM_FOR_PROGRESS:
        return False
    total_T = np.concatenate([[0.0], np.cumsum(values_T - values_T[0])])
    noise_T = _noise_of_moves(values_T)
    threshold_T = np.sqrt(3.0**2 + 2.0 * np.log(np.arange(1, count + 1) / MINIMUM_FOR_PROGRESS).clip(0.0))
    for power in range(int(math.log2(count - 1)) + 1):
        part = 2**power
        end_T = np.arange(max(part + 1, MINIMUM_FOR_PROGRESS), count + 1)  # how many values are seen
        splits = [np.full(len(end_T), part)] + ([end_T - part] if part >= 4 else [])
        for split_T in splits:
            before_T = total_T[split_T] / split_T
            after_T = (total_T[end_T] - total_T[split_T]) / (end_T - split_T)
            error_T = noise_T[end_T - 1] * np.sqrt(1.0 / split_T + 1.0 / (end_T - split_T))
            if np.any(after_T - before_T > threshold_T[end_T - 1] * error_T):
                return True
    return False


def stalled_since(values_T: Array, *, minimum: int) -> int | None:
    """The point from which a reward that has not risen would have shown a rise; None while noise could hide one.

    A rise of a tenth of the scale, from the first half to the second, must exceed three standard errors.
    """
    count_T = np.arange(1, len(values_T) + 1)
    error_T = _noise_of_moves(values_T) * 2.0 / np.sqrt(count_T)
    mean_T = np.cumsum(values_T / count_T[-1]) * (count_T[-1] / count_T)
    matters_T = 0.1 * binomial_scale(values_T, rate_T=mean_T)
    enough_T = (count_T >= minimum) & (3.0 * error_T <= matters_T)
    return int(enough_T.argmax()) if enough_T.any() else None


def _noise_of_moves(values_T: Array) -> Array:
    """Standard deviation σ of the noise, from the mean absolute move up to each point, 2σ/√π; a trend adds to it."""
    moves_T = np.abs(np.diff(values_T, prepend=values_T[0]))
    return np.cumsum(moves_T) / np.maximum(1, np.arange(len(values_T))) * (math.sqrt(math.pi) / 2.0)
