"""Prices allocations: converts GPU-hours and money to rollouts, and a plan to its cost.

A throughput is measured, given or modelled. It is measured on runs that log times, separately for each Bp and n. It is
modelled by the roofline of `cost.hardware` for a model and a GPU, calibrated by timed runs if there are any. If the
user gives none, it is the law's: the times of its runs, or its published GPU-hours per rollout.
"""

from __future__ import annotations

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
from isocompute.planner.cost.hardware import Efficiency, Gpu, StepCost, check_training_memory, find_gpu, step_cost
from isocompute.planner.cost.model import ModelShape, read_model_shape
from isocompute.planner.cost.throughput import (
    Throughput,
    TimedSettings,
    calibrate,
    gpus_of,
    has_times,
    measure,
    measure_settings,
    modelled,
    plan_cost,
)
from isocompute.planner.request import MOST_ROLLOUTS, UNITS, Budget, PlanRequest
from isocompute.planner.warnings import PlanWarning

if TYPE_CHECKING:
    from isocompute.core.run import Run

_PROMPT_TOKENS = 256.0
"""Assumed length of a prompt: a mathematics problem with its instructions."""
_SIZED = re.compile(r"\d+(?:\.\d+)?[bm](?![a-z0-9])")
_OTHER_LENGTH = 1.2
"""Responses that are longer or shorter than the timed ones by more than this factor get a warning."""


@dataclass(frozen=True)
class Rates:
    """The cost of a rollout in one setting; None for what is not known."""

    response_tokens: float | None = None
    """Tokens generated for one rollout, on average."""
    gpu_hours_per_rollout: float | None = None
    price_per_gpu_hour: float | None = None

    def rollouts(self, budget: Budget) -> float:
        """The budget in rollouts; raise if no run could spend it."""
        each = self._per_rollout(budget.unit, f"--budget {budget}")
        found = budget.amount / each
        if not found <= MOST_ROLLOUTS * (1 + 1e-9):
            most = Budget(MOST_ROLLOUTS * each, budget.unit).times(1.0, at_most=True)
            raise InputError(
                f"--budget {budget}: over {MOST_ROLLOUTS:,.0f} rollouts are more than any run makes; plan for at most "
                f"--budget {most}."
            )
        return found

    def amount(self, rollouts: float, unit: str) -> float:
        """This many rollouts in another unit."""
        return rollouts * self._per_rollout(unit, f"a law in {unit}")

    def known(self, unit: str) -> bool:
        """Whether rollouts convert to this unit."""
        try:
            self._per_rollout(unit, unit)
        except InputError:
            return False
        return True

    def _per_rollout(self, unit: str, what: str) -> float:
        """One rollout in this unit; if a number for it is missing, the error names the option that sets it."""
        if unit not in (*UNITS.values(), "money"):
            raise InputError(f"{what}: it is none of {', '.join(UNITS.values())} and money; say one of them.")
        if unit == "rollouts":
            return 1.0
        if unit == "tokens":
            if self.response_tokens is None:
                raise InputError(f"{what}: tokens need the length of a response; say --response-tokens 1500.")
            return self.response_tokens
        if self.gpu_hours_per_rollout is None:
            raise InputError(
                f"{what}: GPU-hours need a throughput; say --rollouts-per-second 12 --gpus 8, or --model and --gpu to "
                "model one."
            )
        if unit == "gpu_hours":
            return self.gpu_hours_per_rollout
        if self.price_per_gpu_hour is None:
            raise InputError(f"{what}: money needs a price; say --price-per-gpu-hour 2.5.")
        return self.gpu_hours_per_rollout * self.price_per_gpu_hour


@dataclass(frozen=True)
class Hardware:
    """The hardware and model of the planned run; None for what is not known."""

    gpus: int | None = None
    gpu: str | None = None
    model: str | None = None
    """Path of a `config.json`, or of a checkpoint's folder with one."""
    prompt_tokens: float | None = None
    response_tokens: float | None = None
    rollouts_per_second: float | None = None
    """Rollouts per second on all GPUs together, training included."""
    price_per_gpu_hour: float | None = None

    @classmethod
    def of(cls, request: PlanRequest) -> Hardware:
        """The hardware among a request's fields."""
        return cls(**request.model_dump(include=set(cls.__dataclass_fields__)))


@dataclass(frozen=True)
class Prices:
    """Costs of allocations on some hardware."""

    hardware: Hardware
    throughput: Throughput | None = None
    """Throughput of all allocations, if it is neither modelled nor known by setting."""
    timed: TimedSettings | None = None
    """Throughput by setting, if timed runs log their Bp and n."""
    shape: ModelShape | None = None
    gpu: Gpu | None = None
    efficiency: Efficiency | None = None
    source: str = ""
    response_source: str | None = None
    """Source of the response length: `given`, `measured`, `the law's runs` or `the law`."""
    reference: bool = False
    """Whether a reference model scores every batch, as a KL term in the recipe needs."""
    updates_per_batch: int = 1
    warnings: tuple[PlanWarning, ...] = ()

    def of_recipe(self, recipe: Recipe) -> Prices:
        """The prices of training with a recipe, whose KL term and updates per batch cost time."""
        return replace(self, reference=recipe.kl_coef > 0, updates_per_batch=recipe.updates_per_batch)

    def rates(self, problems_per_batch: int, rollouts_per_problem: int) -> Rates:
        """The cost of a rollout in this setting."""
        allocation = Allocation(problems_per_batch, rollouts_per_problem, 1)
        throughput = self._throughput(allocation, self._step(allocation))
        return Rates(
            response_tokens=self.hardware.response_tokens,
            gpu_hours_per_rollout=None if throughput is None else throughput.gpu_hours_per_rollout,
            price_per_gpu_hour=self.hardware.price_per_gpu_hour,
        )

    def cost(self, allocation: Allocation) -> dict[str, Any]:
        """The `cost` block of a plan; unknown entries are null."""
        step, known = self._step(allocation), self.hardware
        throughput = self._throughput(allocation, step)
        length = {
            "response_tokens": known.response_tokens,
            "response_source": self.response_source,
            "prompt_tokens": None if step is None else step.prompt_tokens,
            "prompt_source": None if step is None else "assumed" if known.prompt_tokens is None else "given",
        }
        if throughput is None:
            tokens = None if known.response_tokens is None else known.response_tokens * allocation.compute
            block: dict[str, Any] = dict.fromkeys(("seconds", "gpu_hours", "money", "tokens", "source"))
            return block | {"tokens": tokens} | length
        block = plan_cost(
            allocation=allocation,
            throughput=throughput,
            gpus=known.gpus or 1,
            response_tokens=known.response_tokens,
            price_per_gpu_hour=known.price_per_gpu_hour,
            step=step,
        )
        if self.source:
            block["source"] = self.source
        if known.gpus is None:  # GPU-hours are known, but not the hours on the clock
            block |= dict.fromkeys(("seconds", "seconds_interval", "seconds_per_step", "gpus", "rollouts_per_second"))
        return block | length

    def doubts(self, allocation: Allocation) -> list[PlanWarning]:
        """Warnings of an uncertain time of this allocation."""
        a = allocation
        doubt = None if self.timed is None else self.timed.doubt(a.problems_per_batch, a.rollouts_per_problem)
        return [] if doubt is None else [PlanWarning("throughput_differs", doubt)]

    def _step(self, allocation: Allocation) -> StepCost | None:
        if self.shape is None or self.gpu is None or self.hardware.response_tokens is None:
            return None
        return step_cost(
            shape=self.shape,
            gpu=self.gpu,
            gpus=self.hardware.gpus or 1,
            allocation=allocation,
            prompt_tokens=self.hardware.prompt_tokens or _PROMPT_TOKENS,
            response_tokens=self.hardware.response_tokens,
            efficiency=self.efficiency,
            scoring_passes=2 if self.reference else 1,
            updates_per_batch=self.updates_per_batch,
        )

    def _throughput(self, allocation: Allocation, step: StepCost | None) -> Throughput | None:
        if self.timed is not None:
            return self.timed.at(allocation.problems_per_batch, allocation.rollouts_per_problem)
        return self.throughput or (modelled(step) if step is not None else None)


def prices(
    hardware: Hardware,
    *,
    runs: Sequence[Run] | None = None,
    law_runs: Sequence[Run] | None = None,
    law_gpu_hours_per_rollout: float | None = None,
    law_response_tokens: float | None = None,
    law_source: str = "",
) -> Prices:
    """Prices from timed `runs`, a given throughput, a model and a GPU, or else the law's own.

    `law_runs` are the runs that the law was fitted to. `law_gpu_hours_per_rollout`, `law_response_tokens` and
    `law_source` come from a published law.
    """
    runs = runs or ()
    _check(hardware, timed=bool(runs))
    _check_one_model(runs)
    measured = measure(runs, gpus=hardware.gpus) if runs else None
    found = Prices(hardware)
    for length, where in (
        (hardware.response_tokens, "given"),
        (measured.response_tokens if measured else None, "measured"),
        (_median_length(law_runs or ()), "the law's runs"),
        (law_response_tokens, "the law"),
    ):
        if length is not None:
            found = replace(found, hardware=replace(hardware, response_tokens=length), response_source=where)
            break
    if hardware.model is not None and hardware.gpu is not None:
        return _modelled(found, read_model_shape(hardware.model), find_gpu(hardware.gpu), runs)
    if measured is not None:
        return _fixed(replace(found, timed=measure_settings(runs, gpus=hardware.gpus)), measured)
    if hardware.rollouts_per_second is not None and hardware.gpus is not None:
        return _fixed(found, Throughput(hardware.rollouts_per_second / hardware.gpus, "given"))
    timed = [run for run in law_runs or () if (run.settings.gpus or hardware.gpus) and has_times(run)]
    if timed:
        assumed = "" if all(run.settings.gpus for run in timed) else plural(hardware.gpus or 1, "GPU")
        source = "measured on the law's runs" + (f", which are taken to have used {assumed}" if assumed else "")
        found = replace(found, timed=measure_settings(timed, gpus=hardware.gpus))
        return _fixed(found, measure(timed, gpus=hardware.gpus), source=source)
    if law_gpu_hours_per_rollout is not None:
        rate = 1.0 / (3600.0 * law_gpu_hours_per_rollout)
        return _fixed(found, Throughput(rate, "given", None, law_response_tokens), source=law_source)
    return found


def _check(hardware: Hardware, *, timed: bool) -> None:
    """Raise for a cost model without its model or GPU, and for two sources of the throughput."""
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


def _check_one_model(runs: Sequence[Run]) -> None:
    """Raise if the timed runs are of several models."""
    by_name = {_last_part(run.settings.model): run.settings.model for run in runs if run.settings.model}
    if len(models := list(by_name.values())) > 1:
        named = " and ".join(models[:2]) + (f" and {len(models) - 2} more" if len(models) > 2 else "")
        raise InputError(
            f"--throughput-from: its runs are of {len(models)} models, {named}, which do not take the same time; give "
            "the folder or the table of the runs of one."
        )


def _is_other(logged: str | None, path: str | None) -> bool:
    """Whether a run's model differs from the one at this path, judged by names.

    A path that contains no size, such as 7B, counts as the same model.
    """
    if logged is None or path is None:
        return False
    where = str(Path(path).absolute()).lower()
    return _SIZED.search(where) is not None and _last_part(logged) not in where


def _last_part(model: str) -> str:
    return model.rstrip("/").rpartition("/")[2].lower()


def _modelled(found: Prices, shape: ModelShape, gpu: Gpu, runs: Sequence[Run]) -> Prices:
    """Prices by the roofline, calibrated by timed runs if there are any.

    Runs of the same model on at most as many GPUs show that training fits into memory; else it is checked.
    """
    known, count = found.hardware, found.hardware.gpus or 1
    if known.response_tokens is None:
        raise InputError("the cost model needs the length of a response; say --response-tokens 1500.")
    other = next((run.settings.model for run in runs if _is_other(run.settings.model, known.model)), None)
    fits = other is None and any(gpus_of(run, count) <= count for run in runs)
    warnings = [] if fits else check_training_memory(shape, gpu, count)
    if other is not None:
        warnings.append(
            PlanWarning(
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
            prompt_tokens=known.prompt_tokens or _PROMPT_TOKENS,
            response_tokens=known.response_tokens,
            gpus=count,
        )
    return replace(found, shape=shape, gpu=gpu, efficiency=efficiency, warnings=tuple(warnings))


def _fixed(found: Prices, throughput: Throughput, *, source: str = "") -> Prices:
    """Prices by a throughput that is not modelled, with a warning if it was timed at another response length."""
    timed, asked = throughput.response_tokens, found.hardware.response_tokens
    warnings: tuple[PlanWarning, ...] = ()
    if timed and asked and max(timed / asked, asked / timed) > _OTHER_LENGTH:
        warnings = (
            PlanWarning(
                "response_length",
                f"the throughput is that of {timed:,.0f}-token responses and yours have {asked:,.0f}: the time of a "
                "rollout is left as it was; --model and --gpu scale it",
            ),
        )
    return replace(found, throughput=throughput, source=source, warnings=warnings)


def _median_length(runs: Sequence[Run]) -> float | None:
    """Median length of a response, in tokens, over the runs that log it."""
    columns = [run.points["response_length"] for run in runs if "response_length" in run.metrics]
    lengths = np.concatenate([np.empty(0), *(column.drop_nulls().to_numpy() for column in columns)])
    lengths = lengths[np.isfinite(lengths) & (lengths > 0)]
    return float(np.median(lengths)) if len(lengths) else None
