"""Throughput in rollouts per second: measured on runs that log times, given, or modelled; and the cost of a run.

The times of a run are read as timed intervals, each with its rollouts and seconds. If the model and the GPU are also
known, these times calibrate the roofline (`calibrate`). It then holds for other allocations, response lengths and
numbers of GPUs.

Part of a step takes the same time at any batch size, so a rollout of a small batch takes longer than one of a large
batch. `TimedSettings` therefore has a throughput for each (Bp, n).
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
from isocompute.law.posterior import percentiles
from isocompute.planner.cost.hardware import Efficiency, Gpu, Phase, StepCost, step_cost
from isocompute.planner.cost.model import ModelShape

if TYPE_CHECKING:
    from isocompute.core.run import Run

_PREFIXES = ("timing/", "timing_s/")
_ALWAYS = ("gen", "update_actor")
_PHASES = (*_ALWAYS, "reward", "old_log_prob", "ref", "values", "adv", "update_critic")
"""veRL's consecutive phases of a step; its other timings are parts of these."""
_REPLICATES = 1000
_DIFFER = 1.5
"""If timed rates differ by more than this factor, that of a setting without times is uncertain."""


@dataclass(frozen=True)
class TimedInterval:
    """The rollouts and seconds of a run between two of its points."""

    rollouts: float
    seconds: float
    response_tokens: float | None


def timed_intervals(run: Run) -> Iterator[TimedInterval]:
    """Intervals of a run in which its clock advanced, since a resumed run's clock may restart.

    Logs with the phases of a step but without `seconds` (veRL of 2024) give one interval per step: the sum of its
    phases, without evaluations and checkpoints.
    """
    seconds, rollouts = _column(run, "seconds"), _rollouts(run)
    length = _column(run, "response_length")
    if seconds is None:
        batch, phases = _batch_size(run), _phase_columns(run)
        if batch is None or not phases:
            return
        seconds_T = np.sum(phases, axis=0)
        for i in np.flatnonzero(np.isfinite(seconds_T) & (seconds_T > 0)).tolist():
            known = length is not None and np.isfinite(length[i]) and length[i] > 0
            yield TimedInterval(
                float(batch), float(seconds_T[i]), float(length[i]) if length is not None and known else None
            )
        return
    if rollouts is None:
        return
    tokens = _column(run, "tokens")
    there = np.flatnonzero(np.isfinite(seconds) & np.isfinite(rollouts))
    for i, j in pairwise(there.tolist()):
        passed, made = float(seconds[j] - seconds[i]), float(rollouts[j] - rollouts[i])
        if passed <= 0 or made <= 0:
            continue
        each = None
        if length is not None and np.isfinite(length[j]):
            each = float(length[j])
        elif tokens is not None and np.isfinite(tokens[j] - tokens[i]):
            each = float(tokens[j] - tokens[i]) / made
        yield TimedInterval(made, passed, each if each is None or each > 0 else None)


def has_times(run: Run) -> bool:
    """Whether a run has a timed interval."""
    return next(timed_intervals(run), None) is not None


def gpus_of(run: Run, given: int | None) -> int:
    """Number of GPUs that a run used: as logged, else as given."""
    count = run.settings.gpus or given
    if count is None:
        raise InputError(f"run '{run.name}': its GPUs are unknown; say --gpus: how many the runs used.")
    return count


def _phase_columns(run: Run) -> list[Array]:
    for prefix in _PREFIXES:
        found = {name: _column(run, prefix + name) for name in _PHASES}
        if all(found[name] is not None for name in _ALWAYS):
            return [column for column in found.values() if column is not None]
    return []


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


@dataclass(frozen=True)
class Throughput:
    """Rollouts per second of one GPU, training included."""

    rollouts_per_gpu_second: float
    source: Literal["measured", "given", "modelled"]
    interval: tuple[float, float] | None = None
    """95% interval of the rate, if it was measured."""
    response_tokens: float | None = None
    """Mean response length at which it was measured or modelled."""

    def __post_init__(self) -> None:
        if not self.rollouts_per_gpu_second > 0:
            raise InputError(f"throughput {self.rollouts_per_gpu_second:g}; give rollouts a second above 0.")

    @property
    def gpu_hours_per_rollout(self) -> float:
        """GPU-hours of a rollout, training included."""
        return 1.0 / (3600.0 * self.rollouts_per_gpu_second)


def modelled(step: StepCost) -> Throughput:
    """The roofline's throughput; its source is `measured` if its efficiency was measured."""
    rate, spread = step.rollouts_per_second / step.gpus, step.efficiency.interval
    return Throughput(
        rate,
        "measured" if step.efficiency.source == "measured" else "modelled",
        None if spread is None else (rate / spread[1], rate / spread[0]),
        step.response_tokens,
    )


def measure(runs: Sequence[Run], *, gpus: int | None = None) -> Throughput:
    """The throughput of runs that log times, with its interval; `gpus` is for runs that do not log theirs.

    It is the median over intervals, since some contain a pause, a restart or a long evaluation.
    """
    timed = [(each, gpus_of(run, gpus)) for run in runs for each in timed_intervals(run)]
    if not timed:
        raise InputError(_no_times(runs))
    rates_S = np.array([each.rollouts / each.seconds / count for each, count in timed])
    lengths = [each.response_tokens for each, _ in timed if each.response_tokens is not None]
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
    """The efficiency at which the roofline predicts the times of the runs with their recipe.

    One factor scales the defaults of all three phases, since logs of whole steps do not separate them.
    `response_tokens` and `gpus` are for runs that do not log theirs.
    """
    ratios: list[float] = []
    for run in runs:
        s, recipe = run.settings, run.settings.recipe or {}
        if s.problems_per_batch is None or s.rollouts_per_problem is None:
            raise InputError(
                f"run '{run.name}': problems_per_batch and rollouts_per_problem are unknown; put them in run.json."
            )
        allocation = Allocation(s.problems_per_batch, s.rollouts_per_problem, s.update_steps or 1)
        updates = recipe.get("updates_per_batch")
        reference = bool(recipe.get("kl_coef")) or any(_column(run, prefix + "ref") is not None for prefix in _PREFIXES)
        for each in timed_intervals(run):
            length = each.response_tokens or response_tokens
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
                scoring_passes=2 if reference else 1,
                updates_per_batch=updates if isinstance(updates, int) and updates > 1 else 1,
            )
            ratios.append(step.seconds * each.rollouts / allocation.batch_size / each.seconds)
    if not ratios:
        raise InputError(_no_times(runs))
    default, ratios_S = Efficiency(), np.array(ratios)
    factor = float(np.median(ratios_S))
    low, high = _median_interval(ratios_S)
    return Efficiency(
        default.prefill * factor,
        default.decode * factor,
        default.training * factor,
        "measured",
        (factor / high, factor / low),
    )


def _no_times(runs: Sequence[Run]) -> str:
    """The message for runs without timed intervals, with the columns that they lack."""
    run = runs[0]
    others = f" (and {len(runs) - 1} more like it)" if len(runs) > 1 else ""
    seconds = _column(run, "seconds")
    lacking = "no two points have 'seconds' and 'rollouts'"
    if seconds is None and not _phase_columns(run):
        lacking = "it logs no 'seconds'"
    elif (_batch_size(run) if seconds is None else _rollouts(run)) is None:
        lacking = "it logs 'seconds' but no 'rollouts', and does not say its Bp and n"
    return f"run '{run.name}'{others}: {lacking}; import logs with times, or give the throughput."


def _median_interval(values_S: Array) -> tuple[float, float]:
    """95% interval of the median over timed intervals."""
    rng = np.random.default_rng(0)
    drawn_BS = values_S[rng.integers(0, len(values_S), size=(_REPLICATES, len(values_S)))]
    return percentiles(np.median(drawn_BS, axis=1))


@dataclass(frozen=True)
class TimedSettings:
    """The throughput of each timed (Bp, n), of which there is at least one."""

    by_setting: Mapping[tuple[int, int], Throughput]

    def at(self, problems_per_batch: int, rollouts_per_problem: int) -> Throughput:
        """A setting's own throughput, or one interpolated between batch sizes, in log batch and log rate.

        A batch larger than all timed ones has the rate of the largest. One smaller than all follows the slope from the
        smallest to the largest, between equal time per rollout and equal time per step. The interval contains those of
        the nearest batches. Outside the timed range it reaches from equal time per rollout to equal time per step.
        """
        own = self.by_setting.get((problems_per_batch, rollouts_per_problem))
        if own is not None:
            return own
        logs: dict[int, list[float]] = {}
        for (bp, n), timed in self.by_setting.items():
            logs.setdefault(bp * n, []).append(float(np.log(timed.rollouts_per_gpu_second)))
        batches_S = np.array(sorted(logs), dtype=np.float64)
        rates_S = np.exp([np.mean(logs[b]) for b in sorted(logs)])
        slope = 0.0
        if len(batches_S) > 1:
            steepness = np.log(rates_S[-1] / rates_S[0]) / np.log(batches_S[-1] / batches_S[0])
            slope = float(np.clip(steepness, 0.0, 1.0))  # from equal time per rollout to equal time per step
        batch = problems_per_batch * rollouts_per_problem
        nearest = float(np.clip(batch, batches_S[0], batches_S[-1]))
        seen = float(np.exp(np.interp(np.log(nearest), np.log(batches_S), np.log(rates_S))))
        rate = seen * (batch / nearest) ** slope if batch < nearest else seen
        ends = [seen, rate, seen * batch / nearest]
        around = {batches_S[batches_S <= nearest].max(), batches_S[batches_S >= nearest].min()}
        for (bp, n), timed in self.by_setting.items():
            if bp * n in around:
                ends += timed.interval or (timed.rollouts_per_gpu_second,)
        return Throughput(rate, "measured", (min(ends), max(ends)))

    def doubt(self, problems_per_batch: int, rollouts_per_problem: int) -> str | None:
        """A warning if a setting was not timed and the timed ones differ much; else None."""
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


def measure_settings(runs: Sequence[Run], *, gpus: int | None = None) -> TimedSettings | None:
    """The throughput of each setting, from runs that log times, Bp and n; None if there are none."""
    grouped: dict[tuple[int, int], list[Run]] = {}
    for run in runs:
        bp, n = run.settings.problems_per_batch, run.settings.rollouts_per_problem
        if bp and n and has_times(run):
            grouped.setdefault((bp, n), []).append(run)
    if not grouped:
        return None
    return TimedSettings({setting: measure(group, gpus=gpus) for setting, group in sorted(grouped.items())})


def plan_cost(
    *,
    allocation: Allocation,
    throughput: Throughput,
    gpus: int,
    response_tokens: float | None = None,
    price_per_gpu_hour: float | None = None,
    step: StepCost | None = None,
) -> dict[str, Any]:
    """The `cost` block of a plan, as JSON. With a `step`, for which model and GPU must be known, it has its phases."""
    rate = throughput.rollouts_per_gpu_second * gpus
    seconds, spread = allocation.compute / rate, throughput.interval
    hours = seconds * gpus / 3600.0
    tokens = response_tokens if response_tokens is not None else throughput.response_tokens
    block: dict[str, Any] = {
        "seconds": seconds,
        "seconds_interval": None if spread is None else [allocation.compute / (r * gpus) for r in reversed(spread)],
        "seconds_per_step": seconds / allocation.update_steps,
        "gpus": gpus,
        "gpu_hours": hours,
        "money": None if price_per_gpu_hour is None else hours * price_per_gpu_hour,
        "tokens": None if tokens is None else tokens * allocation.compute,
        "rollouts_per_second": allocation.compute / seconds,
        "source": throughput.source,
    }
    if step is None:
        return block | dict.fromkeys(("bound", "phases", "gpu", "gpus_per_copy", "concurrent_responses", "efficiency"))
    phases: dict[str, Phase] = {"prefill": step.prefill, "decode": step.decode, "training": step.training}
    return block | {
        "bound": step.bound,
        "phases": {
            name: {"seconds": phase.seconds, "limited_by": phase.limited_by, "flops": phase.flops, "bytes": phase.bytes}
            for name, phase in phases.items()
        },
        "gpu": step.gpu.name,
        "gpus_per_copy": step.gpus_per_copy,
        "concurrent_responses": step.concurrent,
        "efficiency": {name: getattr(step.efficiency, name) for name in ("prefill", "decode", "training", "source")},
    }
