"""Each check of a run as one function: from a watched run to what was found, or None where it cannot run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from isocompute.arrays import Ints
from isocompute.health.drift import first_drift
from isocompute.health.gradients import MISMATCHES, first_spikes
from isocompute.health.model import Severity
from isocompute.health.rewards import Reward, batch_noise, first_fall, first_gap
from isocompute.health.series import Series, series_of
from isocompute.health.shares import WINDOW, first_above, first_excess, first_given_up, near_zero
from isocompute.runs.model import Run
from isocompute.runs.pass_rates import PassRates

__all__ = [
    "Found",
    "Look",
    "Watched",
    "drifts",
    "look_at_fall",
    "look_at_gap",
    "look_at_logprob_gap",
    "look_at_pass_rates",
    "look_at_spikes",
    "look_at_truncation",
    "look_at_zero_variance",
    "number_at",
]

_TRUNCATION = ((0.05, "warning"), (0.10, "warning"), (0.15, "problem"))
_TRUNCATION_ROSE = 0.10
"""Above 15% from the start is a setting, not an instability: a problem only where it rose by this much."""
_MOSTLY = 0.8
"""Groups without a signal that count where nothing predicts them."""
_MOSTLY_POINTS = 10
_MISMATCH_ENGINES = ("tinker", "prime-rl", "nemo-rl")
"""Trainers whose `kl` is between sampler and trainer, not to the base (docs/import.md)."""
Found = tuple[int, Severity, str]
"""Row, severity and evidence of a finding."""


@dataclass(frozen=True)
class Watched:
    """A run with what several checks read."""

    run: Run
    validation: Reward | None
    train: Reward | None
    record_R: Ints
    """For every row, the row at which the reward last set a record."""
    held_R: Ints
    """For every row, the row at which it last held its best level."""
    rates: dict[int, PassRates]
    """How pass rates are spread over training problems, by row; empty where that is not known."""

    @property
    def rewards(self) -> tuple[Reward, ...]:
        """Those that the run logs, held-out first."""
        return tuple(r for r in (self.validation, self.train) if r is not None)

    def step(self, row: int) -> str:
        """A point in words."""
        number = number_at(self.run, "step", row)
        return f"point {row + 1}" if number is None else f"step {number:.0f}"


Look = Callable[[Watched], list[Found] | None]


def number_at(run: Run, column: str, row: int) -> float | None:
    """A finite number of a column, or None."""
    series = run.points.get_column(column, default=None)
    if series is None or not series.dtype.is_numeric():
        return None
    value = series[row]
    return None if value is None or not np.isfinite(value) else float(value)


def look_at_fall(watched: Watched) -> list[Found] | None:
    """Reward that falls, held-out and in training."""
    found: list[Found] = []
    for reward in watched.rewards:
        fall = first_fall(reward)
        if fall is not None:
            rows = reward.series.row_T
            text = (
                f"{reward.series.name} fell from {fall.best:.3f} ({watched.step(int(rows[fall.best_at]))}) to "
                f"{fall.now:.3f}; noise {reward.noise_T[fall.at]:.3f}"
            )
            found.append((int(rows[fall.at]), "problem", text))
    return found if watched.rewards else None


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
    return series_of(watched.run, name)


def look_at_truncation(watched: Watched) -> list[Found] | None:
    """Cut responses, at ScaleRL's 5, 10 and 15%."""
    series = series_of(watched.run, "truncated")
    if series is None:
        return None
    found: dict[int, Found] = {}  # marks that are passed at one point are one finding, the highest
    for mark, severity in _TRUNCATION:
        at = first_above(series, mark)
        if at is not None:
            start, now = float(series.values_T[0]), float(series.values_T[max(0, at + 1 - WINDOW) : at + 1].mean())
            rose = now - start >= _TRUNCATION_ROSE
            text = f"{now:.0%} of the responses are cut, above {mark:.0%}; {start:.0%} at the start"
            found[at] = int(series.row_T[at]), "problem" if severity == "problem" and rose else "warning", text
    return list(found.values())


def look_at_zero_variance(watched: Watched) -> list[Found] | None:
    """Groups that score all the same: against the pass rates where they are known, else most of all groups."""
    series = series_of(watched.run, "zero_variance")
    if series is None:
        return None
    settings = watched.run.settings
    n, problems = settings.rollouts_per_problem, settings.problems_per_batch
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
    names = [name for name in MISMATCHES if series_of(watched.run, name) is not None]
    marks = {name: MISMATCHES[name] for name in names}
    if not names and watched.run.settings.engine in _MISMATCH_ENGINES and series_of(watched.run, "kl") is not None:
        marks = {"kl": MISMATCHES["mismatch_kl/mean"]}
    found: list[Found] = []
    for name, mark in marks.items():
        series = series_of(watched.run, name)
        at = None if series is None else first_above(series, mark)
        if series is not None and at is not None:
            now = float(series.values_T[max(0, at + 1 - WINDOW) : at + 1].mean())
            text = f"sampler and trainer disagree: {name} is {now:.3g}, above {mark:g}"
            found.append((int(series.row_T[at]), "warning", text))
    return found if marks else None


def look_at_spikes(watched: Watched) -> list[Found] | None:
    """Spikes of the gradient's norm."""
    series = series_of(watched.run, "grad_norm")
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
    if not rates:
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
    if validation is None or train is None:
        return None
    at = first_gap(validation, train)
    if at is None:
        return []
    best = int(validation.best_at_T[at])
    now, then = (train.series.until(int(validation.series.row_T[i])) - 1 for i in (at, best))
    text = (
        f"since {watched.step(int(validation.series.row_T[best]))} {train.series.name} rose from "
        f"{train.level_T[then]:.3f} to {train.level_T[now]:.3f} and {validation.series.name} fell "
        f"from {validation.level_T[best]:.3f} to {validation.level_T[at]:.3f}"
    )
    return [(int(validation.series.row_T[at]), "warning", text)]
