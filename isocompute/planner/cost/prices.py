"""What a rollout costs for each allocation, so that GPU-hours and money buy rollouts and a plan has a price.

A throughput is measured (runs that log times, each Bp and n on its own), given, or modelled (the roofline of
`plan.cost` for a model and a GPU, calibrated by timed runs where they are there too). A given one beside another is
refused: both cannot be meant. Where the user says none, it is that of the law: its runs' times, or its published
GPU-hours a rollout.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from isocompute.core.allocation import Allocation
from isocompute.core.errors import InputError
from isocompute.core.formatting import plural
from isocompute.core.recipe import Recipe
from isocompute.planner.budget import Rates
from isocompute.planner.cost.hardware import Efficiency, Gpu, StepCost, check_training_memory, find_gpu, step_cost
from isocompute.planner.cost.model import ModelShape, read_model_shape
from isocompute.planner.cost.throughput import (
    Throughput,
    TimedSettings,
    calibrate,
    gpus_of,
    measure,
    measure_settings,
    modelled,
    plan_cost,
    response_lengths,
    stretches,
)
from isocompute.planner.warnings import Warned

if TYPE_CHECKING:
    from isocompute.core.run import Run

__all__ = ["Hardware", "Prices", "prices"]

_PROMPT_TOKENS = 256.0
"""Assumed where the user does not say: a mathematics problem with its instructions."""
_LARGEST = 1e12
"""Numbers of a setup lie between this and its inverse: beyond, what they cost is no longer a number."""
_SIZED = re.compile(r"\d+(?:\.\d+)?[bm](?![a-z0-9])")
_OTHER_LENGTH = 1.2
"""Responses this many times longer or shorter than those that were timed do not take the same time."""


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
    """The same for all allocations, where it is neither modelled nor known by setting."""
    timed: TimedSettings | None = None
    """By setting, where runs that were timed say theirs."""
    shape: ModelShape | None = None
    gpu: Gpu | None = None
    efficiency: Efficiency | None = None
    source: str = ""
    response_source: str | None = None
    """Where the length of a response comes from: `given`, `measured`, `the law's runs` or `the law`."""
    reference: bool = False
    """A reference model scores every batch (the recipe has a KL term); see `of_recipe`."""
    updates_per_batch: int = 1
    warnings: tuple[Warned, ...] = ()
    """What to know of these prices."""

    def of_recipe(self, recipe: Recipe) -> Prices:
        """The prices of training with a recipe: its KL term and its updates on each batch cost time."""
        return replace(self, reference=recipe.kl_coef > 0, updates_per_batch=recipe.updates_per_batch)

    def _step(self, allocation: Allocation) -> StepCost | None:
        if self.shape is None or self.gpu is None or self.hardware.response_tokens is None:
            return None
        return step_cost(
            shape=self.shape,
            gpu=self.gpu,
            gpus=self.hardware.gpus or 1,
            allocation=allocation,
            prompt_tokens=_prompts(self.hardware),
            response_tokens=self.hardware.response_tokens,
            efficiency=self.efficiency,
            scoring_passes=2 if self.reference else 1,
            updates_per_batch=self.updates_per_batch,
        )

    def _throughput(self, allocation: Allocation, step: StepCost | None) -> Throughput | None:
        if self.timed is not None:
            return self.timed.at(allocation.problems_per_batch, allocation.rollouts_per_problem)
        return self.throughput or (modelled(step) if step is not None else None)

    def doubts(self, allocation: Allocation) -> list[Warned]:
        """What to know of the time of this allocation."""
        a = allocation
        doubt = None if self.timed is None else self.timed.doubt(a.problems_per_batch, a.rollouts_per_problem)
        return [] if doubt is None else [Warned("throughput_differs", doubt)]

    def rates(self, problems_per_batch: int, rollouts_per_problem: int) -> Rates:
        """What a rollout costs in this batch."""
        allocation = Allocation(problems_per_batch, rollouts_per_problem, 1)
        throughput = self._throughput(allocation, self._step(allocation))
        return Rates(
            response_tokens=self.hardware.response_tokens,
            gpu_hours_per_rollout=None if throughput is None else throughput.gpu_hours_per_rollout,
            price_per_gpu_hour=self.hardware.price_per_gpu_hour,
        )

    def cost(self, allocation: Allocation) -> dict[str, Any]:
        """The `cost` block of a plan; what is not known is null."""
        step = self._step(allocation)
        throughput = self._throughput(allocation, step)
        tokens = self.hardware.response_tokens
        asked = self.hardware.prompt_tokens
        length = {
            "response_tokens": tokens,
            "response_source": self.response_source,
            "prompt_tokens": None if step is None else _prompts(self.hardware),
            "prompt_source": None if step is None else "assumed" if asked is None else "given",
        }
        if throughput is None:
            return {
                "seconds": None,
                "gpu_hours": None,
                "money": None,
                "tokens": None if tokens is None else tokens * allocation.compute,
                "source": None,
                **length,
            }
        block = plan_cost(
            allocation=allocation,
            throughput=throughput,
            gpus=self.hardware.gpus or 1,
            response_tokens=tokens,
            price_per_gpu_hour=self.hardware.price_per_gpu_hour,
            step=step,
        )
        if self.source:
            block["source"] = self.source
        if self.hardware.gpus is None:  # GPU-hours are known, how many hours they take is not
            block |= dict.fromkeys(("seconds", "seconds_interval", "seconds_per_step", "gpus", "rollouts_per_second"))
        return block | length


def prices(
    hardware: Hardware,
    *,
    runs: Sequence[Run] | None = None,
    law_runs: Sequence[Run] | None = None,
    law_gpu_hours_per_rollout: float | None = None,
    law_response_tokens: float | None = None,
    law_source: str = "",
) -> Prices:
    """Prices from what is known: runs that log times, a given throughput, a model and a GPU, or the law's own.

    `law_runs` are the runs that the law was fitted to, `law_gpu_hours_per_rollout` and `law_response_tokens` what a
    published law says; they fill in what the user does not give.
    """
    _check(hardware, timed=bool(runs))
    _one_model(runs or ())
    measured = measure(runs, gpus=hardware.gpus) if runs else None
    found = Prices(hardware)
    for length, where in (
        (hardware.response_tokens, "given"),
        (measured.response_tokens if measured else None, "measured"),
        (_usual_length(law_runs or ()), "the law's runs"),
        (law_response_tokens, "the law"),
    ):
        if length is not None:
            found = replace(found, hardware=replace(hardware, response_tokens=length), response_source=where)
            break
    if hardware.model is not None and hardware.gpu is not None:
        return _modelled(found, read_model_shape(hardware.model), find_gpu(hardware.gpu), runs or ())
    if measured is not None:
        return _fixed(replace(found, timed=measure_settings(runs or (), gpus=hardware.gpus)), measured)
    if hardware.rollouts_per_second is not None and hardware.gpus is not None:
        return _fixed(found, Throughput(hardware.rollouts_per_second / hardware.gpus, "given"))
    if timed := _timed(law_runs or (), hardware.gpus):
        own = all(run.settings.gpus for run in timed)
        taken = "" if own else f", which are taken to have used {plural(hardware.gpus or 1, 'GPU')}"
        found = replace(found, timed=measure_settings(timed, gpus=hardware.gpus))
        return _fixed(found, measure(timed, gpus=hardware.gpus), source=f"measured on the law's runs{taken}")
    if law_gpu_hours_per_rollout is not None:
        rate = 1.0 / (3600.0 * law_gpu_hours_per_rollout)
        return _fixed(found, Throughput(rate, "given", None, law_response_tokens), source=law_source)
    return found


def _prompts(hardware: Hardware) -> float:
    """Tokens of a prompt for the roofline."""
    return _PROMPT_TOKENS if hardware.prompt_tokens is None else hardware.prompt_tokens


def _check(hardware: Hardware, *, timed: bool) -> None:
    """Refuse invalid numbers, half a cost model, and two throughputs."""
    for name in ("prompt_tokens", "response_tokens", "rollouts_per_second", "price_per_gpu_hour"):
        value = getattr(hardware, name)
        if value is not None and not (math.isfinite(value) and value > 0):
            raise InputError(f"--{name.replace('_', '-')} {value:g}: give a finite number above 0.")
        if value is not None and not 1 / _LARGEST <= value <= _LARGEST:
            raise InputError(
                f"--{name.replace('_', '-')} {value:g}: no run has that; give a number from {1 / _LARGEST:g} to "
                f"{_LARGEST:g}."
            )
    if (hardware.model is None) != (hardware.gpu is None):
        lacking = "--gpu H200" if hardware.gpu is None else "--model config.json"
        raise InputError(f"the cost model needs a model and a GPU; say {lacking} too, or --rollouts-per-second alone.")
    if hardware.rollouts_per_second is not None:
        others = ["--throughput-from"] * timed + ["--model with --gpu"] * (hardware.model is not None)
        if others:
            raise InputError(
                f"--rollouts-per-second {hardware.rollouts_per_second:g} gives the throughput, and so does "
                f"{' and '.join(others)}; say one of them."
            )
    if hardware.gpus is None and (hardware.rollouts_per_second is not None or hardware.gpu is not None):
        raise InputError("a throughput is that of a number of GPUs; say --gpus 8 too.")


def _one_model(runs: Sequence[Run]) -> None:
    """Times of several models are those of none."""
    by_name = {_last_part(run.settings.model): run.settings.model for run in runs if run.settings.model}
    if len(models := list(by_name.values())) > 1:
        named = " and ".join(models[:2]) + (f" and {len(models) - 2} more" if len(models) > 2 else "")
        raise InputError(
            f"--throughput-from: its runs are of {len(models)} models, {named}, which do not take the same time; give "
            "the folder or the table of the runs of one."
        )


def _is_other(said: str | None, path: str | None) -> bool:
    """Whether the model that a run says is not the one at this path, as far as names tell: a path of which no part
    looks like that of a model, with a size such as 7B in it, tells nothing.
    """
    if said is None or path is None:
        return False
    where = str(Path(path).absolute()).lower()
    return _SIZED.search(where) is not None and _last_part(said) not in where


def _last_part(model: str) -> str:
    """A model's own name, wherever it lies."""
    return model.rstrip("/").rpartition("/")[2].lower()


def _modelled(found: Prices, shape: ModelShape, gpu: Gpu, runs: Sequence[Run]) -> Prices:
    """The roofline, calibrated by runs where there are any; the model's on no more GPUs show that training fits."""
    known, count = found.hardware, found.hardware.gpus or 1
    if known.response_tokens is None:
        raise InputError("the cost model needs the length of a response; say --response-tokens 1500.")
    other = next((run.settings.model for run in runs if _is_other(run.settings.model, known.model)), None)
    fits = other is None and any(gpus_of(run, count) <= count for run in runs)
    warnings = [] if fits else check_training_memory(shape, gpu, count)
    if other is not None:
        warnings.append(
            Warned(
                "other_model",
                f"the timed runs are of {other}, the costs of --model {known.model}: it is taken to reach the same "
                "share of the roofline",
            )
        )
    efficiency = None
    if runs:
        efficiency = calibrate(
            runs,
            shape=shape,
            gpu=gpu,
            prompt_tokens=_prompts(known),
            response_tokens=known.response_tokens,
            gpus=count,
        )
    return replace(found, shape=shape, gpu=gpu, efficiency=efficiency, warnings=tuple(warnings))


def _fixed(found: Prices, throughput: Throughput, *, source: str = "") -> Prices:
    """A throughput that nothing models; a warning where it was timed at another response length than asked for."""
    timed, asked = throughput.response_tokens, found.hardware.response_tokens
    warnings: tuple[Warned, ...] = ()
    if timed and asked and max(timed / asked, asked / timed) > _OTHER_LENGTH:
        warnings = (
            Warned(
                "response_length",
                f"the throughput is that of {timed:,.0f}-token responses and yours have {asked:,.0f}: the time of a "
                "rollout is left as it was; --model and --gpu scale it",
            ),
        )
    return replace(found, throughput=throughput, source=source, warnings=warnings)


def _timed(runs: Sequence[Run], gpus: int | None) -> list[Run]:
    """Those of a law's runs that log times on a known number of GPUs; a plan does not need them, so none is refused."""
    return [run for run in runs if (run.settings.gpus or gpus) and next(stretches(run), None) is not None]


def _usual_length(runs: Sequence[Run]) -> float | None:
    lengths = [response_lengths(run) for run in runs]
    all_of_them = np.concatenate(lengths) if lengths else np.empty(0)
    return float(np.median(all_of_them)) if len(all_of_them) else None
