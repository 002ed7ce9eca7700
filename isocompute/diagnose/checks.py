"""What the checks look at, a run with its rewards, where they were best, and its pass rates; and what they find."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from isocompute.core.arrays import Ints
from isocompute.core.run import Run
from isocompute.data.pass_rates import PassRates
from isocompute.diagnose.health import Severity
from isocompute.diagnose.series import (
    FEWEST_FOR_DRIFT,
    FEWEST_FOR_FALL,
    FEWEST_FOR_GAP,
    FEWEST_FOR_PROGRESS,
    FEWEST_NORMS,
    FEWEST_OF_TRAINING,
    MISMATCHES,
    WINDOW,
    Reward,
    Series,
    as_share,
    batch_noise,
    first_above,
    first_drift,
    first_excess,
    first_fall,
    first_gap,
    first_given_up,
    first_not_finite,
    first_spikes,
    has_risen,
    near_zero,
    series_of,
    sets_seen,
    stalled_since,
)

__all__ = [
    "Found",
    "Look",
    "Watched",
    "drifts",
    "look_at_fall",
    "look_at_gap",
    "look_at_logprob_gap",
    "look_at_numbers",
    "look_at_pass_rates",
    "look_at_progress",
    "look_at_spikes",
    "look_at_truncation",
    "look_at_zero_variance",
    "number_at",
]


Found = tuple[int, Severity, str]
"""Row, severity and evidence of a finding."""


@dataclass(frozen=True)
class Watched:
    """A run with what several checks read."""

    run: Run
    numbers: tuple[str, ...]
    """Metrics that it logs and that must be numbers: rewards, loss, norm of the gradient, entropy."""
    validation: Reward | None
    beside: tuple[Reward, ...]
    """Rewards on further held-out sets."""
    train: Reward | None
    record_R: Ints
    """For every row, the row at which the reward last set a record."""
    held_R: Ints
    """For every row, the row at which it last held its best level."""
    rates: dict[int, PassRates]
    """How pass rates are spread over training problems, by row; empty where that is not known."""

    @property
    def rewards(self) -> tuple[Reward, ...]:
        """Those that the run is judged by, held-out first."""
        return tuple(r for r in (self.validation, self.train) if r is not None)

    @property
    def held_out(self) -> tuple[Reward, ...]:
        """Those of every held-out set, the one that the run is judged by first."""
        return (*((self.validation,) if self.validation is not None else ()), *self.beside)

    def step(self, row: int) -> str:
        """A point in words."""
        number = number_at(self.run, "step", row)
        return f"point {row + 1}" if number is None else f"step {number:.0f}"


Look = Callable[[Watched], list[Found] | str | None]
"""What is found; None where what the check needs is not logged, and in words where what is logged cannot be read."""


def number_at(run: Run, column: str, row: int) -> float | None:
    """A finite number of a column, or None."""
    series = run.points.get_column(column, default=None)
    if series is None or not series.dtype.is_numeric():
        return None
    value = series[row]
    return None if value is None or not np.isfinite(value) else float(value)


# Each check of a run as one function: from a watched run to what was found, or why it cannot run (`watched.Look`).

_TRUNCATION = ((0.05, "warning"), (0.10, "warning"), (0.15, "problem"))
_TRUNCATION_ROSE = 0.10
"""Above 15% from the start is a setting, not an instability: a problem only where it rose by this much."""
_MOSTLY = 0.8
"""Groups without a signal that count where nothing predicts them."""
_MOSTLY_POINTS = 10
_NO_SUCCESS, _ALL_SOLVED = (0.0, -1.0), (1.0, 100.0)
"""What verifiers give where every answer is wrong, and where every one is right."""
_MISMATCH_ENGINES = ("tinker", "prime-rl", "nemo-rl")
"""Trainers whose `kl` is between sampler and trainer, not to the base (docs/import.md)."""


def look_at_numbers(watched: Watched) -> list[Found] | None:
    """Rewards, losses, gradients and entropies that are not finite any more."""
    first = {name: at for name in watched.numbers if (at := first_not_finite(watched.run, name)) is not None}
    if not first:
        return [] if watched.numbers else None
    row = min(at for at, _ in first.values())
    text = ", ".join(f"{name} is {_not_finite(value)}" for name, (at, value) in first.items() if at == row)
    return [(row, "problem", text)]


def _not_finite(value: float) -> str:
    return "NaN" if math.isnan(value) else "infinite" if math.isinf(value) else f"{value:.0e}, as good as infinite"


def look_at_fall(watched: Watched) -> list[Found] | None:
    """Reward that falls, in training and on any held-out set; that of a further set is a warning."""
    held_out = watched.held_out
    looks = [(reward, sets_seen(held_out, reward)) for reward in held_out]
    if watched.train is not None:
        looks.append((watched.train, np.ones(len(watched.train.series), dtype=np.int64)))
    looks = [(reward, looks_T) for reward, looks_T in looks if len(reward.series) >= FEWEST_FOR_FALL]
    found: list[Found] = []
    for reward, looks_T in looks:
        fall = first_fall(reward, looks_T=looks_T)
        if fall is not None:
            rows = reward.series.row_T
            text = (
                f"{reward.series.name} fell from {_level(fall.best)} ({watched.step(int(rows[fall.best_at]))}) to "
                f"{_level(fall.now)}; noise {_level(reward.noise_T[fall.at])}"
            )
            severity: Severity = "warning" if any(reward is other for other in watched.beside) else "problem"
            found.append((int(rows[fall.at]), severity, text))
    return found if looks else None


def look_at_progress(watched: Watched) -> list[Found] | None:
    """Reward that never rose: on held-out problems where it is logged, else in training.

    The one finding that is taken back, when the reward does rise: that a run has learned nothing so far is no verdict
    on what comes. It goes beside a fall too, which says what is wrong and asks for the opposite; a collapse counts as
    noise, so that the rise before it may not show. Training without any success stays.
    """
    rewards = watched.rewards
    if not any(len(reward.series) >= FEWEST_FOR_PROGRESS for reward in rewards):
        return None
    stuck = _look_at_constant(rewards[-1])  # training's where it is logged: it makes the gradient
    stalled = stuck or _look_at_standstill(watched)
    if stalled is None or (stalled[1] == "warning" and look_at_fall(watched)):
        return []
    return [stalled]


def _look_at_standstill(watched: Watched) -> Found | None:
    rewards = watched.rewards
    if any(has_risen(reward.series.values_T) for reward in rewards):
        return None
    judged = rewards[0]
    values_T = judged.series.values_T
    fewest = FEWEST_FOR_PROGRESS if judged is watched.validation else FEWEST_OF_TRAINING
    since = stalled_since(values_T, fewest=fewest)
    if since is None:
        return None
    text = (
        f"{judged.series.name} has not risen beyond its noise in {len(values_T)} points: "
        f"{_level(float(values_T[: judged.width_T[-1]].mean()))} at the start, {_level(float(judged.level_T[-1]))} now"
    )
    return int(judged.series.row_T[since]), "warning", text


def _look_at_constant(reward: Reward) -> Found | None:
    """No success at all, or nothing but successes: either way no group has anything to compare."""
    values_T, first = reward.series.values_T, float(reward.series.values_T[0])
    if len(values_T) < FEWEST_FOR_PROGRESS or not np.all(values_T == first):
        return None
    row = int(reward.series.row_T[FEWEST_FOR_PROGRESS - 1])
    text = f"{reward.series.name} is {first:g} at all {len(values_T)} points"
    if first in _NO_SUCCESS:
        return row, "problem", f"{text}: without a success there is no gradient"
    if first in _ALL_SOLVED:
        return row, "warning", f"{text}: nothing is left to learn from these problems"
    return None


def _level(value: float) -> str:
    """A reward: three places; three digits where it is so large that places say nothing."""
    return f"{value:.3f}" if abs(value) < 1e6 else f"{value:.3g}"


def drifts(
    name: str,
    what: str,
    *,
    up: bool,
    warning: float,
    problem: float | None,
    floor: float = 0.0,
    smooth: int = 1,
) -> Look:
    """A check for drift by the factor `warning` since the record, and `problem` since the best level was held."""

    def look(watched: Watched) -> list[Found] | None:
        series = _drifting(watched, name)
        if series is None:
            return None
        found: dict[int, Found] = {}  # what shows at one point is one finding, the worst
        prior = batch_noise(watched.run.settings.problems_per_batch)
        marks: tuple[tuple[float | None, Severity, Ints, str], ...] = (
            (warning, "warning", watched.record_R, "the best reward"),
            (problem, "problem", watched.held_R, "the reward was last at its best"),
        )
        for factor, severity, reference_R, when in marks:
            drift = factor and first_drift(
                series, reference_R=reference_R, factor=factor, up=up, prior=prior, floor=floor, smooth=smooth
            )
            if drift:
                then = watched.step(int(series.row_T[drift.since]))
                since = when if watched.rewards else "the start; no reward is logged"
                text = f"{what} went from {drift.before:.3g} ({then}, {since}) to {drift.now:.3g}"
                found[drift.at] = int(series.row_T[drift.at]), severity, text
        return list(found.values())

    return look


def _drifting(watched: Watched, name: str) -> Series | None:
    if name == "kl" and watched.run.settings.engine in _MISMATCH_ENGINES:
        return None
    return series_of(watched.run, name, fewest=FEWEST_FOR_DRIFT)


def look_at_truncation(watched: Watched) -> list[Found] | str | None:
    """Cut responses, at ScaleRL's 5, 10 and 15%."""
    series = _share(watched, "truncated", fewest=WINDOW)
    if not isinstance(series, Series):
        return series
    found: dict[int, Found] = {}  # marks that are passed at one point are one finding, the highest
    for mark, severity in _TRUNCATION:
        at = first_above(series, mark)
        if at is not None:
            start, now = float(series.values_T[0]), float(series.values_T[max(0, at + 1 - WINDOW) : at + 1].mean())
            rose = now - start >= _TRUNCATION_ROSE
            text = f"{now:.0%} of the responses are cut, above {mark:.0%}; {start:.0%} at the start"
            found[at] = int(series.row_T[at]), "problem" if severity == "problem" and rose else "warning", text
    return list(found.values())


def _share(watched: Watched, name: str, *, fewest: int) -> Series | str | None:
    """A share, of percent by the hundred; in words why it is none."""
    series = series_of(watched.run, name, fewest=fewest)
    share = None if series is None else as_share(series)
    if series is None or share is not None:
        return share
    low, high = (f"{extreme:.3g}" for extreme in (series.values_T.min(), series.values_T.max()))
    return f"{name} as a share (0 to 1) or in percent; here it goes from {low} to {high}"


def look_at_zero_variance(watched: Watched) -> list[Found] | str | None:
    """Groups that score all the same: against the pass rates where they are known, else most of all groups."""
    settings = watched.run.settings
    n, problems = settings.rollouts_per_problem, settings.problems_per_batch
    fewest = WINDOW if watched.rates and n and problems else _MOSTLY_POINTS
    series = _share(watched, "zero_variance", fewest=fewest)
    if not isinstance(series, Series):
        return series
    if watched.rates and n and problems:
        excess = first_excess(series, watched.rates, n=n, problems=problems)
        if excess is None:
            return []
        at, seen, predicted = excess
        text = f"{seen:.0%} of the groups score all the same; the pass rates predict {predicted:.0%}"
        return [(int(series.row_T[at]), "warning", text)]
    above = first_above(series, _MOSTLY, window=_MOSTLY_POINTS)
    if above is None:
        return []
    return [(int(series.row_T[above]), "warning", f"over {_MOSTLY:.0%} of the groups score all the same")]


def look_at_logprob_gap(watched: Watched) -> list[Found] | None:
    """Distance between the sampler's and the trainer's log-probs."""
    marks = {name: mark for name, mark in MISMATCHES.items() if series_of(watched.run, name) is not None}
    if not marks and watched.run.settings.engine in _MISMATCH_ENGINES:
        marks = {"kl": MISMATCHES["mismatch_kl/mean"]}
    long = [series for name in marks if (series := series_of(watched.run, name, fewest=WINDOW)) is not None]
    found: list[Found] = []
    for series in long:
        mark = marks[series.name]
        at = first_above(series, mark)
        if at is not None:
            now = float(series.values_T[max(0, at + 1 - WINDOW) : at + 1].mean())
            text = f"sampler and trainer disagree: {series.name} is {now:.3g}, above {mark:g}"
            found.append((int(series.row_T[at]), "warning", text))
    return found if long else None


def look_at_spikes(watched: Watched) -> list[Found] | None:
    """Spikes of the gradient's norm."""
    series = series_of(watched.run, "grad_norm", fewest=FEWEST_NORMS)
    if series is None:
        return None
    spikes = first_spikes(series)
    if spikes is None:
        return []
    at, size, usual = spikes
    return [
        (
            int(series.row_T[at]),
            "warning",
            f"the third spike of grad_norm in thirty points: {size:.3g} over {usual:.3g}",
        )
    ]


def look_at_pass_rates(watched: Watched) -> list[Found] | None:
    """Problems that are given up while the mean rises (interference)."""
    rates = watched.rates
    if len(rates) < 2:
        return None
    at = first_given_up(rates)
    if at is None:
        return []
    first, now = rates[min(rates)], rates[at]
    text = (
        f"{near_zero(now):.0%} of the training problems are near a pass rate of 0, {near_zero(first):.0%} at the "
        f"start, while the mean went from {first.mean:.3f} to {now.mean:.3f}"
    )
    return [(at, "warning", text)]


def look_at_gap(watched: Watched) -> list[Found] | None:
    """Training's reward that rises while held-out reward falls."""
    validation, train = watched.validation, watched.train
    if validation is None or train is None or len(validation.series) < FEWEST_FOR_GAP:
        return None
    at = first_gap(validation, train)
    if at is None:
        return []
    best = int(validation.best_at_T[at])
    now, then = (train.series.until(int(validation.series.row_T[i])) - 1 for i in (at, best))
    text = (
        f"since {watched.step(int(validation.series.row_T[best]))} {train.series.name} rose from "
        f"{_level(train.level_T[then])} to {_level(train.level_T[now])} and {validation.series.name} fell "
        f"from {_level(validation.level_T[best])} to {_level(validation.level_T[at])}"
    )
    return [(int(validation.series.row_T[at]), "warning", text)]
