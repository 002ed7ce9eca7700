"""Rollouts a second: measured on imported runs, given by the user, or modelled; and what a run costs with them.

A run that logs `seconds` tells how fast rollouts are made and learnt from on its GPUs, whatever the reasons. Where the
model and the GPU are known too, the same times calibrate the roofline (`calibrate`), which then holds for other
allocations, response lengths and numbers of GPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from isocompute.core.allocation import Allocation
from isocompute.core.arrays import Array
from isocompute.core.errors import InputError
from isocompute.law.uncertainty import percentiles
from isocompute.planner.cost import Efficiency, StepCost, step_cost
from isocompute.planner.hardware import Gpu
from isocompute.planner.model_shape import ModelShape
from isocompute.planner.stretches import lacking, stretches, updates_per_batch, with_reference

if TYPE_CHECKING:
    from isocompute.core.run import Run

__all__ = ["Throughput", "calibrate", "gpus_of", "measure", "modelled", "plan_cost"]

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
        "phases": None if step is None else _phases(step),
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


def _phases(step: StepCost) -> dict[str, Any]:
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
