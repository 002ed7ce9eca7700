"""What a rollout costs for each allocation, so that GPU-hours and money buy rollouts and a plan has a price.

A throughput is measured (runs that log times), given, modelled (the roofline of `plan.cost` for a model and a GPU), or
that of a published law; the first of these that is there is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from isocompute.allocation import Allocation
from isocompute.errors import InputError
from isocompute.plan.budget import Rates
from isocompute.plan.cost import Efficiency, StepCost, step_cost
from isocompute.plan.hardware import Gpu, find_gpu
from isocompute.plan.model_shape import ModelShape, read_model_shape
from isocompute.plan.throughput import Throughput, calibrate, measure, modelled, plan_cost

if TYPE_CHECKING:
    from isocompute.runs.model import Run

__all__ = ["Hardware", "Prices", "prices"]

_PROMPT_TOKENS = 256.0


@dataclass(frozen=True)
class Hardware:
    """What a user says about where the run will happen; None where they do not."""

    gpus: int | None = None
    gpu: str | None = None
    model: str | None = None
    """A `config.json`, or the folder of a checkpoint that holds one."""
    prompt_tokens: float | None = None
    response_tokens: float | None = None
    rollouts_per_second: float | None = None
    """On all GPUs together, training included."""
    price_per_gpu_hour: float | None = None


@dataclass(frozen=True)
class Prices:
    """Costs of allocations on some hardware."""

    hardware: Hardware
    throughput: Throughput | None = None
    """The same for all allocations, where it is not modelled."""
    shape: ModelShape | None = None
    gpu: Gpu | None = None
    efficiency: Efficiency | None = None
    source: str = ""

    def _step(self, allocation: Allocation) -> StepCost | None:
        if self.shape is None or self.gpu is None or self.hardware.response_tokens is None:
            return None
        return step_cost(
            shape=self.shape,
            gpu=self.gpu,
            gpus=self.hardware.gpus or 1,
            allocation=allocation,
            prompt_tokens=_PROMPT_TOKENS if self.hardware.prompt_tokens is None else self.hardware.prompt_tokens,
            response_tokens=self.hardware.response_tokens,
            efficiency=self.efficiency,
        )

    def rates(self, problems_per_batch: int, rollouts_per_problem: int) -> Rates:
        """What a rollout costs in this batch."""
        step = self._step(Allocation(problems_per_batch, rollouts_per_problem, 1))
        throughput = self.throughput or (modelled(step) if step is not None else None)
        return Rates(
            response_tokens=self.hardware.response_tokens,
            gpu_hours_per_rollout=None if throughput is None else throughput.gpu_hours_per_rollout,
            price_per_gpu_hour=self.hardware.price_per_gpu_hour,
        )

    def cost(self, allocation: Allocation) -> dict[str, Any]:
        """The `cost` block of a plan; what is not known is null."""
        step = self._step(allocation)
        throughput = self.throughput or (modelled(step) if step is not None else None)
        if throughput is None:
            tokens = self.hardware.response_tokens
            return {
                "seconds": None,
                "gpu_hours": None,
                "money": None,
                "tokens": None if tokens is None else tokens * allocation.compute,
                "source": None,
            }
        block = plan_cost(
            allocation=allocation,
            throughput=throughput,
            gpus=self.hardware.gpus or 1,
            response_tokens=self.hardware.response_tokens,
            price_per_gpu_hour=self.hardware.price_per_gpu_hour,
            step=step,
        )
        if self.source:
            block["source"] = self.source
        if self.hardware.gpus is None:  # GPU-hours are known, how many hours they take is not
            block |= dict.fromkeys(("seconds", "seconds_interval", "seconds_per_step", "gpus", "rollouts_per_second"))
        return block


def prices(
    hardware: Hardware,
    *,
    runs: Sequence[Run] | None = None,
    law_gpu_hours_per_rollout: float | None = None,
    law_response_tokens: float | None = None,
    law_source: str = "",
) -> Prices:
    """Prices from what is known: runs that log times, a given throughput, a model and a GPU, or the law's own."""
    for name in ("prompt_tokens", "response_tokens", "rollouts_per_second", "price_per_gpu_hour"):
        value = getattr(hardware, name)
        if value is not None and not value > 0:
            raise InputError(f"--{name.replace('_', '-')} {value:g}: give a number above 0.")
    if (hardware.model is None) != (hardware.gpu is None):
        lacking = "--gpu H200" if hardware.gpu is None else "--model config.json"
        raise InputError(f"the cost model needs a model and a GPU; say {lacking} too, or --rollouts-per-second alone.")
    if hardware.gpus is None and (hardware.rollouts_per_second is not None or hardware.gpu is not None):
        raise InputError("a throughput is that of a number of GPUs; say --gpus 8 too.")
    shape = None if hardware.model is None else read_model_shape(hardware.model)
    gpu = None if hardware.gpu is None else find_gpu(hardware.gpu)
    measured = measure(runs) if runs else None
    length = hardware.response_tokens or (measured.response_tokens if measured else None) or law_response_tokens
    known = Hardware(**{**hardware.__dict__, "response_tokens": length})
    if shape is not None and gpu is not None:
        if length is None:
            raise InputError("the cost model needs the length of a response; say --response-tokens 1500.")
        efficiency = None
        if runs:
            efficiency = calibrate(
                runs,
                shape=shape,
                gpu=gpu,
                prompt_tokens=known.prompt_tokens or _PROMPT_TOKENS,
                response_tokens=length,
                gpus=known.gpus,
            )
        return Prices(known, None, shape, gpu, efficiency)
    if measured is not None:
        return Prices(known, measured)
    if hardware.rollouts_per_second is not None:
        rate = hardware.rollouts_per_second / (hardware.gpus or 1)
        return Prices(known, Throughput(rate, "given", None, length))
    if law_gpu_hours_per_rollout is not None:
        rate = 1.0 / (3600.0 * law_gpu_hours_per_rollout)
        return Prices(known, Throughput(rate, "given", None, length), source=law_source)
    return Prices(known)
