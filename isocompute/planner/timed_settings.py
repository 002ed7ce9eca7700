"""Throughput by setting: measured where a (Bp, n) was timed, read off the timed ones by batch size where it was not.

Part of a step takes as long whatever the batch, so a rollout of a small batch takes longer than one of a large batch:
one throughput for all would make the former too cheap and the latter too dear.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from isocompute.core.arrays import Array
from isocompute.planner.stretches import stretches
from isocompute.planner.throughput import Throughput, measure

if TYPE_CHECKING:
    from isocompute.core.run import Run

__all__ = ["TimedSettings", "measure_settings"]

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
