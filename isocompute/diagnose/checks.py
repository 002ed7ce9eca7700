"""The health checks, one function each: from the signals of a run to what was detected, or why it cannot run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from isocompute.core.arrays import Ints
from isocompute.core.curve import PERCENT
from isocompute.core.run import Run, non_finite
from isocompute.data.pass_rates import BINS, PassRates
from isocompute.diagnose.series import (
    MINIMUM_FOR_PROGRESS,
    MINIMUM_TRAINING_BATCHES,
    Reward,
    Series,
    batch_noise,
    downside_noise,
    first_drop,
    first_gap,
    has_risen,
    series_of,
    sets_logged,
    stalled_since,
    trailing,
)

Severity = Literal["warning", "problem"]

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
"""Trainers' metrics of the mismatch between sampler and trainer, with the value above which each is large.

That value is an importance weight off by a tenth per token, or a KL of .01, which is similar (δ²/2 at δ = .14)."""
MISMATCH_ENGINES = ("tinker", "prime-rl", "nemo-rl")
"""Trainers whose `kl` is between sampler and trainer, not to the base model (docs/reference/log-formats.md)."""

WINDOW = 5
"""Points that a share is averaged over, so that one bad batch is no finding."""
TRUNCATION = ((0.05, "warning"), (0.10, "warning"), (0.15, "problem"))
TRUNCATION_RISE = 0.10
"""Truncation above 15% is a problem only if it rose by this much; a high share from the start is a setting."""
ZERO_VARIANCE_EXCESS = 0.1
ZERO_VARIANCE, ZERO_VARIANCE_POINTS = 0.8, 10
"""Without pass rates to predict it, a higher share than this over so many points is a finding."""
POLARISED = 0.05
"""Increase in the share of problems near a pass rate of 0 that is a finding."""
SHARE_SIGMAS = 3.0
DRIFT_SIGMAS, DRIFT_REFERENCE_POINTS = 6.0, 3
SPIKE_FACTOR, SPIKE_SIGMAS, SPIKE_PRIOR_NOISE = 5.0, 6.0, 0.3
SPIKES, SPIKE_WINDOW, SPIKE_REFERENCE_POINTS = 3, 30, 10
"""Gradient clipping handles one spike; three within thirty points, after the first ten points, are a finding."""


class Detection(NamedTuple):
    """What a check found at a row of the run."""

    row: int
    severity: Severity
    evidence: str


@dataclass(frozen=True)
class Signals:
    """A run with the series and pass rates that its checks read."""

    run: Run
    must_be_finite: tuple[str, ...]
    """Logged metrics that must be finite: rewards, loss, gradient norm, entropy."""
    validation: Reward | None
    other_validation: tuple[Reward, ...]
    """Rewards on further held-out sets."""
    train: Reward | None
    record_R: Ints
    """For every row, the row at which the reward last set a record."""
    near_best_R: Ints
    """For every row, the last row at which the reward was near its best level."""
    rates: Mapping[int, PassRates]
    """Distribution of pass rates over the training problems, by row; empty if unknown."""

    @property
    def rewards(self) -> tuple[Reward, ...]:
        """The rewards that the run is judged by, validation first."""
        return tuple(r for r in (self.validation, self.train) if r is not None)

    @property
    def held_out(self) -> tuple[Reward, ...]:
        """The rewards on all held-out sets; the one that the run is judged by comes first."""
        return (*((self.validation,) if self.validation is not None else ()), *self.other_validation)

    def step(self, row: int) -> str:
        """The step of a row as text, such as `step 40`."""
        number = number_at(self.run, "step", row)
        return f"point {row + 1}" if number is None else f"step {number:.0f}"


CheckFunction = Callable[[Signals], list[Detection] | str | None]
"""Returns what was detected; None if what the check needs is not logged, a text if the logged values are invalid."""


def number_at(run: Run, column: str, row: int) -> float | None:
    """The value of a column at a row; None if it is missing or not finite."""
    series = run.points.get_column(column, default=None)
    if series is None or not series.dtype.is_numeric():
        return None
    value = series[row]
    return None if value is None or not np.isfinite(value) else float(value)


def check_finite(signals: Signals) -> list[Detection] | None:
    """Detect the first reward, loss, gradient norm or entropy that is not finite."""
    marked = non_finite(signals.run.points)
    first = {name: marked[name] for name in signals.must_be_finite if name in marked}
    if not first:
        return [] if signals.must_be_finite else None
    row = min(mark.row for mark in first.values())
    text = ", ".join(f"{name} is {_not_finite(mark.value)}" for name, mark in first.items() if mark.row == row)
    return [Detection(row, "problem", text)]


def _not_finite(value: float) -> str:
    return "NaN" if math.isnan(value) else "infinite" if math.isinf(value) else f"{value:.0e}, as good as infinite"


# Rewards --------------------------------------------------------------------------------------------------------------


def check_reward_fall(signals: Signals) -> list[Detection] | None:
    """Detect a drop of the reward in training or on a held-out set; on a further set it is a warning."""
    held_out = signals.held_out
    tested = [(reward, sets_logged(held_out, reward)) for reward in held_out]
    if signals.train is not None:
        tested.append((signals.train, np.ones(len(signals.train.series), dtype=np.int64)))
    tested = [(reward, tests_T) for reward, tests_T in tested if len(reward.series) >= 2]
    found = []
    for reward, tests_T in tested:
        drop = first_drop(reward, tests_T=tests_T)
        if drop is not None:
            rows = reward.series.row_T
            text = (
                f"{reward.series.name} fell from {_level(drop.best)} ({signals.step(int(rows[drop.best_at]))}) to "
                f"{_level(drop.now)}; noise {_level(reward.noise_T[drop.at])}"
            )
            severity: Severity = "warning" if any(reward is r for r in signals.other_validation) else "problem"
            found.append(Detection(int(rows[drop.at]), severity, text))
    return found if tested else None


def check_progress(signals: Signals) -> list[Detection] | None:
    """Detect a reward that never rose: on held-out problems if logged, else in training.

    The finding is withdrawn if the reward rises later. It is also withdrawn if the reward drops, for which the advice
    is the opposite: a drop counts as noise and can hide the rise before it. Training without any success stays a
    finding.
    """
    rewards = signals.rewards
    if not any(len(reward.series) >= MINIMUM_FOR_PROGRESS for reward in rewards):
        return None
    stuck = _constant(rewards[-1])  # the training reward if logged, since it makes the gradient
    stalled = stuck or _stalled(signals)
    if stalled is None or (stalled.severity == "warning" and check_reward_fall(signals)):
        return []
    return [stalled]


def _stalled(signals: Signals) -> Detection | None:
    rewards = signals.rewards
    if any(has_risen(reward.series.values_T) for reward in rewards):
        return None
    judged = rewards[0]
    values_T = judged.series.values_T
    minimum = MINIMUM_FOR_PROGRESS if judged is signals.validation else MINIMUM_TRAINING_BATCHES
    since = stalled_since(values_T, minimum=minimum)
    if since is None:
        return None
    text = (
        f"{judged.series.name} has not risen beyond its noise in {len(values_T)} points: "
        f"{_level(float(values_T[: judged.width_T[-1]].mean()))} at the start, {_level(float(judged.level_T[-1]))} now"
    )
    return Detection(int(judged.series.row_T[since]), "warning", text)


def _constant(reward: Reward) -> Detection | None:
    """Detect a constant reward of no success or only successes: no group then has an advantage."""
    values_T, first = reward.series.values_T, float(reward.series.values_T[0])
    if len(values_T) < MINIMUM_FOR_PROGRESS or not np.all(values_T == first):
        return None
    row = int(reward.series.row_T[MINIMUM_FOR_PROGRESS - 1])
    text = f"{reward.series.name} is {first:g} at all {len(values_T)} points"
    if first in (0.0, -1.0):  # the reward if every answer is wrong
        return Detection(row, "problem", f"{text}: without a success there is no gradient")
    if first in (1.0, PERCENT):
        return Detection(row, "warning", f"{text}: nothing is left to learn from these problems")
    return None


def check_train_validation_gap(signals: Signals) -> list[Detection] | None:
    """Detect a training reward that rises while the validation reward falls."""
    validation, train = signals.validation, signals.train
    if validation is None or train is None or len(validation.series) < 4:
        return None
    at = first_gap(validation, train)
    if at is None:
        return []
    row_T, best = validation.series.row_T, int(validation.best_at_T[at])
    now, then = (train.series.until(int(row_T[i])) - 1 for i in (at, best))
    text = (
        f"since {signals.step(int(row_T[best]))} {train.series.name} rose from {_level(train.level_T[then])} to "
        f"{_level(train.level_T[now])} and {validation.series.name} fell from {_level(validation.level_T[best])} to "
        f"{_level(validation.level_T[at])}"
    )
    return [Detection(int(row_T[at]), "warning", text)]


def _level(value: float) -> str:
    """A reward with three decimals, or three digits if it is very large."""
    return f"{value:.3f}" if abs(value) < 1e6 else f"{value:.3g}"


# Entropy, lengths and KL ----------------------------------------------------------------------------------------------


def drift_check(
    name: str, label: str, *, up: bool, warning: float, problem: float | None, floor: float = 0.0, smooth: int = 1
) -> CheckFunction:
    """Return a check for a series that drifts while the reward does not improve.

    A healthy run trades entropy and KL for reward, so the reference is the best reward, not the start. The series must
    change by a factor `warning` since the reward's last record, or `problem` since it was last near its best. The
    change must also exceed six times the noise. Values below `floor` are raised to it. The current value is the median
    of the last `smooth` points.
    """

    def check(signals: Signals) -> list[Detection] | None:
        if name == "kl" and signals.run.settings.engine in MISMATCH_ENGINES:
            return None
        series = series_of(signals.run, name, minimum=2)
        if series is None:
            return None
        sign = 1.0 if up else -1.0
        logs_T = np.log(np.maximum(series.values_T, max(floor, 1e-12)))
        before_T, now_T = trailing(np.median, logs_T, DRIFT_REFERENCE_POINTS), trailing(np.median, logs_T, smooth)
        noise_T = downside_noise(sign * logs_T, prior=batch_noise(signals.run.settings.problems_per_batch))
        found: dict[int, Detection] = {}  # one finding per point, the worst
        marks: tuple[tuple[float | None, Severity, Ints, str], ...] = (
            (warning, "warning", signals.record_R, "the best reward"),
            (problem, "problem", signals.near_best_R, "the reward was last at its best"),
        )
        for factor, severity, reference_R, reference in marks:
            for t in range(1, len(series) if factor else 0):
                since = max(series.until(int(reference_R[series.row_T[t]])) - 1, 0)
                change = sign * float(now_T[t] - before_T[since])
                error = float(noise_T[t]) * math.sqrt(1.0 + 1.0 / min(since + 1, DRIFT_REFERENCE_POINTS))  # both ends
                if since < t and change >= max(math.log(factor or 1.0), DRIFT_SIGMAS * error):
                    then = signals.step(int(series.row_T[since]))
                    when = reference if signals.rewards else "the start; no reward is logged"
                    before, now = np.exp(before_T[since]), np.exp(now_T[t])
                    text = f"{label} went from {before:.3g} ({then}, {when}) to {now:.3g}"
                    found[t] = Detection(int(series.row_T[t]), severity, text)
                    break
        return list(found.values())

    return check


# Shares of a batch ----------------------------------------------------------------------------------------------------


def check_truncation(signals: Signals) -> list[Detection] | str | None:
    """Detect truncated responses above ScaleRL's 5, 10 and 15%."""
    series = _share(signals, "truncated", minimum=WINDOW)
    if not isinstance(series, Series):
        return series
    found: dict[int, Detection] = {}  # thresholds crossed at the same point are one finding, the highest
    for mark, severity in TRUNCATION:
        at = _first_above(series, mark)
        if at is not None:
            start, now = float(series.values_T[0]), _window_mean(series, at)
            worst: Severity = "problem" if severity == "problem" and now - start >= TRUNCATION_RISE else "warning"
            text = f"{now:.0%} of the responses are truncated, above {mark:.0%}; {start:.0%} at the start"
            found[at] = Detection(int(series.row_T[at]), worst, text)
    return list(found.values())


def check_zero_variance(signals: Signals) -> list[Detection] | str | None:
    """Detect zero-variance groups: more than the pass rates predict if these are known, else over 80% of all groups.

    The pass rates are binned, so the prediction is an upper bound: p^n + (1 - p)^n at each bin's edge farther from 1/2.
    """
    settings, rates = signals.run.settings, signals.rates
    n, problems = settings.rollouts_per_problem, settings.problems_per_batch
    series = _share(signals, "zero_variance", minimum=WINDOW if rates and n and problems else ZERO_VARIANCE_POINTS)
    if not isinstance(series, Series):
        return series
    if not (rates and n and problems):
        at = _first_above(series, ZERO_VARIANCE, window=ZERO_VARIANCE_POINTS)
        text = f"over {ZERO_VARIANCE:.0%} of the groups have zero variance"
        return [] if at is None else [Detection(int(series.row_T[at]), "warning", text)]
    low_K = np.arange(BINS) / BINS
    edge_K = np.where(low_K < 0.5, low_K, low_K + 1.0 / BINS)
    zero_variance_K = edge_K**n + (1.0 - edge_K) ** n
    mean_T = trailing(np.mean, series.values_T, WINDOW)
    rows = sorted(rates)
    last_T = np.searchsorted(rows, series.row_T, side="right") - 1
    for t in range(WINDOW - 1, len(series)):
        if last_T[t] < 0:
            continue
        predicted = float(rates[rows[last_T[t]]].share_K @ zero_variance_K)
        error = _share_error(predicted, 1.0 / (problems * WINDOW))
        if mean_T[t] - predicted >= max(ZERO_VARIANCE_EXCESS, SHARE_SIGMAS * error):
            text = f"{mean_T[t]:.0%} of the groups have zero variance; the pass rates predict {predicted:.0%}"
            return [Detection(int(series.row_T[t]), "warning", text)]
    return []


def check_polarisation(signals: Signals) -> list[Detection] | None:
    """Detect more problems near a pass rate of 0 while the mean has not fallen (interference)."""
    rates, rows = signals.rates, sorted(signals.rates)
    if len(rows) < 2:
        return None
    first = rates[rows[0]]
    lowest = BINS // 20
    before = float(first.share_K[:lowest].sum())
    for row in rows[1:]:
        now = rates[row]
        share = float(now.share_K[:lowest].sum())
        error = _share_error(share, 2.0 / min(first.problems, now.problems))
        if share - before >= max(POLARISED, SHARE_SIGMAS * error) and now.mean >= first.mean:
            text = (
                f"{share:.0%} of the training problems are near a pass rate of 0, {before:.0%} at the start, while the "
                f"mean went from {first.mean:.3f} to {now.mean:.3f}"
            )
            return [Detection(row, "warning", text)]
    return []


def _share(signals: Signals, name: str, *, minimum: int) -> Series | str | None:
    """A metric as shares from 0 to 1, converted if it is in percent; a text if it is neither."""
    series = series_of(signals.run, name, minimum=minimum)
    if series is None:
        return None
    low, high, rounding = float(series.values_T.min()), float(series.values_T.max()), 1.0 + 1e-6
    if low < 0.0 or high > PERCENT * rounding:
        return f"{name} as a share (0 to 1) or in percent; here it goes from {low:.3g} to {high:.3g}"
    return series if high <= rounding else replace(series, values_T=series.values_T / PERCENT)


def _share_error(share: float, inverse_count: float) -> float:
    """Standard error of a share, with a lower bound for shares near 0 and 1."""
    return math.sqrt(max(share * (1.0 - share), 1e-3) * inverse_count)


def _first_above(series: Series, mark: float, *, window: int = WINDOW) -> int | None:
    """The first point at which the mean of a full window lies above a mark."""
    above_T = trailing(np.mean, series.values_T, window) > mark
    above_T[: window - 1] = False
    return int(above_T.argmax()) if above_T.any() else None


def _window_mean(series: Series, at: int) -> float:
    return float(series.values_T[max(0, at + 1 - WINDOW) : at + 1].mean())


# Sampler and gradient -------------------------------------------------------------------------------------------------


def check_logprob_gap(signals: Signals) -> list[Detection] | None:
    """Detect a large mismatch between the log-probs of the sampler and the trainer."""
    marks = {name: mark for name, mark in MISMATCHES.items() if series_of(signals.run, name) is not None}
    if not marks and signals.run.settings.engine in MISMATCH_ENGINES:
        marks = {"kl": MISMATCHES["mismatch_kl/mean"]}
    long = [series for name in marks if (series := series_of(signals.run, name, minimum=WINDOW)) is not None]
    found = []
    for series in long:
        mark = marks[series.name]
        at = _first_above(series, mark)
        if at is not None:
            text = f"sampler and trainer disagree: {series.name} is {_window_mean(series, at):.3g}, above {mark:g}"
            found.append(Detection(int(series.row_T[at]), "warning", text))
    return found if long else None


def check_spikes(signals: Signals) -> list[Detection] | None:
    """Detect three spikes of the gradient norm within thirty points.

    A spike is five times the median of the points before it, and six of their standard deviations above it in logs.
    """
    first = SPIKE_REFERENCE_POINTS
    series = series_of(signals.run, "grad_norm", minimum=first + SPIKES)
    if series is None:
        return None
    logs_T = np.log(np.maximum(series.values_T, 1e-12))
    before_T = trailing(np.median, logs_T, SPIKE_WINDOW)
    high = first + np.flatnonzero(logs_T[first:] - before_T[first - 1 : -1] >= math.log(SPIKE_FACTOR))
    spikes: list[int] = []
    for t in map(int, high):
        usual = float(before_T[t - 1])
        spread = 1.4826 * float(np.median(np.abs(logs_T[max(0, t - SPIKE_WINDOW) : t] - usual)))
        if logs_T[t] - usual < SPIKE_SIGMAS * max(spread, SPIKE_PRIOR_NOISE):
            continue
        spikes = [s for s in spikes if s > t - SPIKE_WINDOW] + [t]
        if len(spikes) >= SPIKES:
            text = f"the third spike of grad_norm in thirty points: {series.values_T[t]:.3g} over {math.exp(usual):.3g}"
            return [Detection(int(series.row_T[t]), "warning", text)]
    return []
