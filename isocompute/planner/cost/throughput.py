"""Timed stretches of a run: so many rollouts in so many seconds, at some response length.

A stretch lies between two points of a run that logs `seconds`. Logs with the phases of a step and no time of the whole
(veRL of 2024) give one stretch a step: the sum of its phases, evaluations and checkpoints left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from isocompute.core.allocation import Allocation
from isocompute.core.arrays import Array
from isocompute.core.errors import InputError
from isocompute.law.uncertainty import percentiles
from isocompute.planner.cost.hardware import Efficiency, Gpu, StepCost, step_cost
from isocompute.planner.cost.model import ModelShape

if TYPE_CHECKING:
    from isocompute.core.run import Run

__all__ = [
    "Stretch",
    "Throughput",
    "TimedSettings",
    "calibrate",
    "gpus_of",
    "lacking",
    "measure",
    "measure_settings",
    "modelled",
    "plan_cost",
    "response_lengths",
    "stretches",
    "updates_per_batch",
    "with_reference",
]


_PREFIXES = ("timing/", "timing_s/")
_ALWAYS = ("gen", "update_actor")
_PHASES = (*_ALWAYS, "reward", "old_log_prob", "ref", "values", "adv", "update_critic")
"""veRL's phases that follow one another in a step; others of its timings are parts of these."""


@dataclass(frozen=True)
class Stretch:
    """What happened between two points of a run."""

    rollouts: float
    seconds: float
    response_tokens: float | None


def stretches(run: Run) -> Iterator[Stretch]:
    """Stretches with a clock that went on; a resumed run's clock may start again."""
    seconds, rollouts = _column(run, "seconds"), _rollouts(run)
    if seconds is None:
        yield from _steps(run)
        return
    if rollouts is None:
        return
    tokens, length = _column(run, "tokens"), _column(run, "response_length")
    there = np.flatnonzero(np.isfinite(seconds) & np.isfinite(rollouts))
    for i, j in pairwise(there.tolist()):
        passed, made = float(seconds[j] - seconds[i]), float(rollouts[j] - rollouts[i])
        if passed <= 0 or made <= 0:
            continue
        words = None
        if length is not None and np.isfinite(length[j]):
            words = float(length[j])
        elif tokens is not None and np.isfinite(tokens[j] - tokens[i]):
            words = float(tokens[j] - tokens[i]) / made
        yield Stretch(made, passed, words if words is None or words > 0 else None)


def _steps(run: Run) -> Iterator[Stretch]:
    """A stretch a step, from its phases."""
    batch, phases = _batch_size(run), _phases(run)
    if batch is None or not phases:
        return
    seconds_T = np.sum(phases, axis=0)
    length = _column(run, "response_length")
    for i in np.flatnonzero(np.isfinite(seconds_T) & (seconds_T > 0)).tolist():
        known = length is not None and np.isfinite(length[i]) and length[i] > 0
        yield Stretch(float(batch), float(seconds_T[i]), float(length[i]) if length is not None and known else None)


def _phases(run: Run) -> list[Array]:
    for prefix in _PREFIXES:
        found = {name: _column(run, prefix + name) for name in _PHASES}
        if all(found[name] is not None for name in _ALWAYS):
            return [column for column in found.values() if column is not None]
    return []


def lacking(run: Run) -> str:
    """Which of the columns that stretches need a run does not log."""
    if _column(run, "seconds") is None and not _phases(run):
        return "it logs no 'seconds'"
    if (_rollouts(run) if _column(run, "seconds") is not None else _batch_size(run)) is None:
        return "it logs 'seconds' but no 'rollouts', and does not say its Bp and n"
    return "no two points have 'seconds' and 'rollouts'"


def response_lengths(run: Run) -> Array:
    """Tokens of a response at every point that logs them."""
    length = _column(run, "response_length")
    return np.empty(0) if length is None else length[np.isfinite(length) & (length > 0)]


def with_reference(run: Run) -> bool:
    """Whether a reference model scored the batches: the recipe has a KL term, or the log times such a pass."""
    kl = (run.settings.recipe or {}).get("kl_coef")
    return bool(kl) or any(_column(run, prefix + "ref") is not None for prefix in _PREFIXES)


def updates_per_batch(run: Run) -> int:
    """Updates on each batch, all of it every time, as this project's engines make them; 1 where a run does not say."""
    said = (run.settings.recipe or {}).get("updates_per_batch")
    return said if isinstance(said, int) and said > 1 else 1


def _column(run: Run, name: str) -> Array | None:
    series = run.points.get_column(name, default=None)
    if series is None or not series.dtype.is_numeric() or not series.count():
        return None
    return np.asarray(series.cast(float).fill_null(float("nan")).to_numpy(), dtype=np.float64)


def _batch_size(run: Run) -> int | None:
    s = run.settings
    return s.problems_per_batch * s.rollouts_per_problem if s.problems_per_batch and s.rollouts_per_problem else None


def _rollouts(run: Run) -> Array | None:
    rollouts, step, batch = _column(run, "rollouts"), _column(run, "step"), _batch_size(run)
    return step * batch if rollouts is None and step is not None and batch else rollouts


# Rollouts a second: measured on imported runs, given by the user, or modelled; and what a run costs with them.

_REPLICATES = 1000


@dataclass(frozen=True)
class Throughput:
    """Rollouts that one GPU makes and learns from in a second."""

    rollouts_per_gpu_second: float
    source: Literal["measured", "given", "modelled"]
    interval: tuple[float, float] | None = None
    """95%, where it was measured."""
    response_tokens: float | None = None
    """Mean response length that it was measured or modelled at."""

    def __post_init__(self) -> None:
        if not self.rollouts_per_gpu_second > 0:
            raise InputError(f"throughput {self.rollouts_per_gpu_second:g}; give rollouts a second above 0.")

    @property
    def gpu_hours_per_rollout(self) -> float:
        """What a rollout costs, sampling and training."""
        return 1.0 / (3600.0 * self.rollouts_per_gpu_second)


def modelled(step: StepCost) -> Throughput:
    """The roofline's throughput; `measured` where its efficiency was."""
    rate = step.rollouts_per_second / step.gpus
    spread = step.efficiency.interval
    return Throughput(
        rate,
        "measured" if step.efficiency.source == "measured" else "modelled",
        None if spread is None else (rate / spread[1], rate / spread[0]),
        step.response_tokens,
    )


def measure(runs: Sequence[Run], *, gpus: int | None = None) -> Throughput:
    """The throughput of runs that log their times: the median over stretches between points, with its interval.

    A median, because a stretch may hold a pause, a restart or a long evaluation. `gpus` are those of runs that do not
    say theirs.
    """
    rates: list[float] = []
    lengths: list[float] = []
    for run in runs:
        for stretch in stretches(run):
            rates.append(stretch.rollouts / stretch.seconds / gpus_of(run, gpus))
            if stretch.response_tokens is not None:
                lengths.append(stretch.response_tokens)
    if not rates:
        raise InputError(_no_times(runs))
    rates_S = np.array(rates)
    return Throughput(
        float(np.median(rates_S)), "measured", _median_interval(rates_S), float(np.median(lengths)) if lengths else None
    )


def calibrate(
    runs: Sequence[Run],
    *,
    shape: ModelShape,
    gpu: Gpu,
    prompt_tokens: float,
    response_tokens: float | None = None,
    gpus: int | None = None,
) -> Efficiency:
    """The efficiency at which the roofline takes as long as the runs took with their recipe.

    One factor scales the defaults of all three phases: logs of whole steps cannot tell them apart. `response_tokens`
    and `gpus` fill in what a run does not log.
    """
    ratios: list[float] = []
    default = Efficiency()
    for run in runs:
        allocation = _allocation(run)
        for stretch in stretches(run):
            length = stretch.response_tokens or response_tokens
            if length is None:
                raise InputError(
                    f"run '{run.name}': it logs neither 'response_length' nor 'tokens'; give the response length."
                )
            step = step_cost(
                shape=shape,
                gpu=gpu,
                gpus=gpus_of(run, gpus),
                allocation=allocation,
                prompt_tokens=prompt_tokens,
                response_tokens=length,
                scoring_passes=2 if with_reference(run) else 1,
                updates_per_batch=updates_per_batch(run),
            )
            ratios.append(step.seconds * stretch.rollouts / allocation.batch_size / stretch.seconds)
    if not ratios:
        raise InputError(_no_times(runs))
    ratios_S = np.array(ratios)
    factor = float(np.median(ratios_S))
    low, high = _median_interval(ratios_S)
    return Efficiency(
        default.prefill * factor,
        default.decode * factor,
        default.training * factor,
        "measured",
        (factor / high, factor / low),
    )


def plan_cost(
    *,
    allocation: Allocation,
    throughput: Throughput,
    gpus: int,
    response_tokens: float | None = None,
    price_per_gpu_hour: float | None = None,
    step: StepCost | None = None,
) -> dict[str, Any]:
    """The `cost` block of a plan, as JSON.

    With a `step` (model and GPU known) it says what bounds a step and how long its phases take; `throughput` alone
    (measured or given) costs the run without a reason.
    """
    seconds = allocation.compute / (throughput.rollouts_per_gpu_second * gpus)
    hours = seconds * gpus / 3600.0
    spread = None
    if throughput.interval is not None:
        spread = [allocation.compute / (rate * gpus) for rate in reversed(throughput.interval)]
    tokens = response_tokens if response_tokens is not None else throughput.response_tokens
    return {
        "seconds": seconds,
        "seconds_interval": spread,
        "seconds_per_step": seconds / allocation.update_steps,
        "gpus": gpus,
        "gpu_hours": hours,
        "money": None if price_per_gpu_hour is None else hours * price_per_gpu_hour,
        "tokens": None if tokens is None else tokens * allocation.compute,
        "rollouts_per_second": allocation.compute / seconds,
        "source": throughput.source,
        "bound": None if step is None else step.bound,
        "phases": None if step is None else _phases_throughput(step),
        "gpu": None if step is None else step.gpu.name,
        "gpus_per_copy": None if step is None else step.gpus_per_copy,
        "concurrent_responses": None if step is None else step.concurrent,
        "efficiency": None
        if step is None
        else {
            "prefill": step.efficiency.prefill,
            "decode": step.efficiency.decode,
            "training": step.efficiency.training,
            "source": step.efficiency.source,
        },
    }


def _phases_throughput(step: StepCost) -> dict[str, Any]:
    named = {"prefill": step.prefill, "decode": step.decode, "training": step.training}
    return {
        name: {"seconds": phase.seconds, "limited_by": phase.limited_by, "flops": phase.flops, "bytes": phase.bytes}
        for name, phase in named.items()
    }


def gpus_of(run: Run, given: int | None) -> int:
    """How many GPUs a run used: what it says, else what the user does."""
    count = run.settings.gpus or given
    if count is None:
        raise InputError(f"run '{run.name}': its GPUs are unknown; say --gpus: how many the runs used.")
    return count


def _allocation(run: Run) -> Allocation:
    s = run.settings
    if s.problems_per_batch is None or s.rollouts_per_problem is None:
        raise InputError(
            f"run '{run.name}': problems_per_batch and rollouts_per_problem are unknown; put them in run.json."
        )
    return Allocation(s.problems_per_batch, s.rollouts_per_problem, s.update_steps or 1)


def _no_times(runs: Sequence[Run]) -> str:
    others = f" (and {len(runs) - 1} more like it)" if len(runs) > 1 else ""
    return f"run '{runs[0].name}'{others}: {lacking(runs[0])}; import logs with times, or give the throughput."


def _median_interval(values_S: Array) -> tuple[float, float]:
    """95% interval of the median over stretches."""
    rng = np.random.default_rng(0)
    drawn_BS = values_S[rng.integers(0, len(values_S), size=(_REPLICATES, len(values_S)))]
    return percentiles(np.median(drawn_BS, axis=1))


# Throughput by setting: measured where a (Bp, n) was timed, read off the timed ones by batch size where it was not.

_DIFFER = 1.5
"""Rates this many times apart say little about a setting that was not timed."""


@dataclass(frozen=True)
class TimedSettings:
    """The throughput of each (Bp, n) that was timed; at least one."""

    by_setting: Mapping[tuple[int, int], Throughput]

    def at(self, problems_per_batch: int, rollouts_per_problem: int) -> Throughput:
        """A setting's own throughput, or one read off the timed batches on straight lines in log batch and log rate.

        A batch larger than all has the rate of the largest: no faster one was seen. One smaller than all loses rate
        along the slope from the smallest to the largest, between none and so much that its step takes as long. The
        interval holds those of the batches on both sides; beyond them it reaches from as long a rollout as the nearest
        batch's to as long a step.
        """
        own = self.by_setting.get((problems_per_batch, rollouts_per_problem))
        if own is not None:
            return own
        batch = problems_per_batch * rollouts_per_problem
        batches_S, rates_S = self._by_batch()
        nearest = float(np.clip(batch, batches_S[0], batches_S[-1]))
        seen = float(np.exp(np.interp(np.log(nearest), np.log(batches_S), np.log(rates_S))))
        rate = seen * (batch / nearest) ** _slope(batches_S, rates_S) if batch < nearest else seen
        ends = [seen, rate, seen * batch / nearest]
        around = {batches_S[batches_S <= nearest].max(), batches_S[batches_S >= nearest].min()}
        for (bp, n), timed in self.by_setting.items():
            if bp * n in around:
                ends += timed.interval or (timed.rollouts_per_gpu_second,)
        return Throughput(rate, "measured", (min(ends), max(ends)))

    def doubt(self, problems_per_batch: int, rollouts_per_problem: int) -> str | None:
        """What to know of a setting's throughput: that it was not timed, where those that were differ much."""
        if (problems_per_batch, rollouts_per_problem) in self.by_setting:
            return None
        order = sorted(self.by_setting, key=lambda setting: self.by_setting[setting].rollouts_per_gpu_second)
        slowest, fastest = (self.by_setting[s].rollouts_per_gpu_second for s in (order[0], order[-1]))
        if fastest <= _DIFFER * slowest:
            return None
        (slow_bp, slow_n), (fast_bp, fast_n) = order[0], order[-1]
        return (
            f"{problems_per_batch} × {rollouts_per_problem} was not timed, and {fast_bp} × {fast_n} makes "
            f"{fastest / slowest:.2g} times as many rollouts a second as {slow_bp} × {slow_n}: its time is read off "
            "those that were, by batch size; time a few steps of it"
        )

    def _by_batch(self) -> tuple[Array, Array]:
        """Batch sizes in order, and the rate of each: the geometric mean where several settings have it."""
        logs: dict[int, list[float]] = {}
        for (bp, n), timed in self.by_setting.items():
            logs.setdefault(bp * n, []).append(float(np.log(timed.rollouts_per_gpu_second)))
        batches = sorted(logs)
        return np.array(batches, dtype=np.float64), np.exp([np.mean(logs[b]) for b in batches])


def measure_settings(runs: Sequence[Run], *, gpus: int | None = None) -> TimedSettings | None:
    """The throughput of each setting, from those of the runs that log times and say their Bp and n; None without any.

    `gpus` are those of runs that do not say theirs.
    """
    grouped: dict[tuple[int, int], list[Run]] = {}
    for run in runs:
        bp, n = run.settings.problems_per_batch, run.settings.rollouts_per_problem
        if bp and n and next(stretches(run), None) is not None:
            grouped.setdefault((bp, n), []).append(run)
    if not grouped:
        return None
    return TimedSettings({setting: measure(group, gpus=gpus) for setting, group in sorted(grouped.items())})


def _slope(batches_S: Array, rates_S: Array) -> float:
    """By which power of the batch the rate grows, from 0 (as long a rollout) to 1 (as long a step)."""
    if len(batches_S) < 2:
        return 0.0
    return float(np.clip(np.log(rates_S[-1] / rates_S[0]) / np.log(batches_S[-1] / batches_S[0]), 0.0, 1.0))
