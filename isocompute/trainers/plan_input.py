"""What an export takes: a plan (`isocompute plan --json`, or a table with Bp, n and M) and the machine it runs on."""

from __future__ import annotations

import json
import math
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from isocompute.core.allocation import Spending
from isocompute.core.errors import InputError
from isocompute.core.recipe import Recipe, current_names, learning_rate, make_recipe

PROMPT_LENGTH = 1024
RESPONSE_LENGTH = 4096
_SHORT = {"Bp": "problems_per_batch", "n": "rollouts_per_problem", "M": "update_steps"}
_CHOSEN = ("recipe", "learning_rate", "max_prompt_length", "max_response_length")
_OF_RECIPE = ("warmup_steps", "kl_coef", "entropy_coef", "temperature")
"""Keys of a plan that override its recipe's."""


@runtime_checkable
class HasJson(Protocol):
    """The planner's `Plan`, which this package does not import."""

    def to_json(self) -> dict[str, Any]:
        """The keys of `plan --json`."""


class RunPlan(BaseModel, Spending):
    """One run: its allocation and recipe. The learning rate is the one at this batch size."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    problems_per_batch: int = Field(ge=1)
    rollouts_per_problem: int = Field(ge=1)
    update_steps: int = Field(ge=1)
    learning_rate: float = Field(gt=0, lt=math.inf)
    recipe: Recipe
    max_prompt_length: int = Field(default=PROMPT_LENGTH, ge=1)
    max_response_length: int = Field(default=RESPONSE_LENGTH, ge=1)
    validation_samples: int | None = Field(default=None, ge=1, description="k of avg@k")
    problems: int | None = Field(default=None, ge=1, description="size of the problem set, D")
    seed: int | None = Field(default=None, ge=0)
    model: str | None = None
    train_file: str | None = None
    val_file: str | None = None
    assumed: tuple[str, ...] = Field(default=(), description="fields that the plan leaves to the export")

    @property
    def validation_every(self) -> int:
        """Updates between validations: twenty in a run."""
        return max(1, self.update_steps // 20)


def make_plan(table: Mapping[str, Any] | RunPlan | HasJson, *, source: str = "plan") -> RunPlan:
    """A plan from the output of `isocompute plan --json`, from a planner's `Plan`, or from a table with Bp, n and M.

    Keys that an export does not need are ignored; wrong values are refused.

    >>> make_plan({"Bp": 32, "n": 8, "M": 100}).compute
    25600
    """
    if isinstance(table, RunPlan):
        return table
    table = table.to_json() if isinstance(table, HasJson) else table
    if not isinstance(table, Mapping):
        raise InputError(
            f"{source}: a {type(table).__name__} is not a plan; give what isocompute.plan(…) returns, what `isocompute "
            "plan --json` prints, or a table with Bp, n and M (isocompute.trainers.read_plan reads one from a file)."
        )
    given = {_SHORT.get(key, key): value for key, value in table.items()}
    missing = [key for key in _SHORT.values() if given.get(key) is None]
    if missing:
        short = ", ".join(k for k, name in _SHORT.items() if name in missing)
        raise InputError(f"{source}: no {', '.join(missing)}; a plan has at least Bp, n and M (here missing: {short}).")
    _refuse_switches(given, source)
    recipe = _recipe(given, source)
    fields = {name: given[name] for name in RunPlan.model_fields if given.get(name) is not None} | {"recipe": recipe}
    if "validation_samples" not in fields:
        fields["validation_samples"] = _samples(given.get("expected"))
    fields.setdefault("learning_rate", 1.0)
    fields["assumed"] = tuple(name for name in _CHOSEN if given.get(name) is None)
    try:
        plan = RunPlan.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise InputError(f"{source}: {where} = {first['input']!r}: {first['msg'].lower()}.") from error
    for name, value in (("batch_size", plan.batch_size), ("compute", plan.compute)):
        if given.get(name) is not None and given[name] != value:
            raise InputError(f"{source}: {name} = {given[name]}, but Bp, n and M give {value}; correct one of them.")
    if plan.rollouts_per_problem == 1 and recipe.compares_groups:
        raise InputError(
            f"{source}: n = 1 leaves nothing to compare a rollout with, and the recipe's advantage is "
            f"'{recipe.advantage}'; take n of 2 or more."
        )
    if given.get("learning_rate") is None:
        rate = learning_rate(recipe.model_copy(update={"warmup_steps": 0}), batch_size=plan.batch_size, step=0)
        plan = plan.model_copy(update={"learning_rate": rate})
    return plan


def _refuse_switches(given: Mapping[str, Any], source: str) -> None:
    """Refuse true and false, which would otherwise count as 1 and 0: no field of a plan is a switch."""
    for name in (*RunPlan.model_fields, "batch_size", "compute", *_OF_RECIPE):
        if isinstance(value := given.get(name), bool):
            raise InputError(
                f"{source}: {name} = {str(value).lower()}: a plan has no switches; give a number, or text for a model "
                "or file."
            )


def _recipe(given: Mapping[str, Any], source: str) -> Recipe:
    """The recipe by name or table; the default is the paper's, with KL and entropy only if the plan sets them."""
    table = given.get("recipe") or {}
    if isinstance(table, str):
        table = {"name": table}
    if not isinstance(table, Mapping):
        raise InputError(f"{source}: recipe is a table of fields or a recipe's name, not {table!r}.")
    over = {key: given[key] for key in _OF_RECIPE if given.get(key) is not None}
    return make_recipe({"name": "isocompute-hard", **current_names(table), **over})


def _samples(expected: object) -> int | None:
    """k of the metric that the plan forecasts: avg@4 → 4."""
    metric = expected.get("metric") if isinstance(expected, Mapping) else None
    count = str(metric).partition("@")[2]
    return int(count) if count.isdigit() and int(count) > 0 else None


def read_plan(path: str) -> RunPlan:
    """Read a plan from a JSON or TOML file, or from standard input (`-`)."""
    name = "standard input" if path == "-" else path
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{name}: cannot be read ({getattr(error, 'strerror', None) or 'not UTF-8 text'}).") from error
    table = _parse(text.removeprefix("\ufeff"), name)  # some editors begin a file with this mark
    if not isinstance(table, dict):
        raise InputError(f"{name}: a plan is one object with Bp, n and M, not a {type(table).__name__}.")
    return make_plan(table, source=name)


def _parse(text: str, name: str) -> object:
    if not text.strip():
        raise InputError(f"{name}: it is empty; a plan is `isocompute plan … --json`.")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as not_json:
        try:
            return tomllib.loads(text)
        except (tomllib.TOMLDecodeError, RecursionError) as not_toml:
            form, reason = ("JSON", not_json) if text.lstrip().startswith("{") else ("JSON or TOML", not_toml)
            raise InputError(f"{name}: not {form} ({reason}); a plan is `isocompute plan … --json`.") from None


# The machine, and how the Bp · n rollouts of an update are split over it

MICRO_BATCH = 8
"""Sequences per device and micro-batch if no limit is given; gradients of micro-batches add up."""


@dataclass(frozen=True)
class TrainingHardware:
    """GPUs, and how much one of them processes at a time while training."""

    gpus: int = 8
    gpus_per_node: int = 8
    max_sequences: int | None = None
    """Sequences (prompt and response) on one device at a time."""
    max_tokens: int | None = None
    """Tokens on one device at a time, for trainers that pack; others take as many whole sequences as fit."""

    def __post_init__(self) -> None:
        for name in ("gpus", "gpus_per_node", "max_sequences", "max_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} = {value}: at least 1.")
        if self.gpus > self.gpus_per_node and self.gpus % self.gpus_per_node:
            below = self.gpus // self.gpus_per_node * self.gpus_per_node
            raise InputError(
                f"{self.gpus} GPUs are not a whole number of nodes of {self.gpus_per_node}; take {below} or "
                f"{below + self.gpus_per_node}, or set --gpus-per-node."
            )

    @property
    def nodes(self) -> int:
        """The number of machines."""
        return max(1, self.gpus // self.gpus_per_node)

    @property
    def gpus_on_node(self) -> int:
        """GPUs used on each machine."""
        return self.gpus // self.nodes


@dataclass(frozen=True)
class Share:
    """One device's part of an update: gpus · micro_batch · accumulation = Bp · n."""

    gpus: int
    micro_batch: int
    accumulation: int
    tokens: int | None
    """Tokens on one device at a time, if that is the limit."""


def share_out(plan: RunPlan, hardware: TrainingHardware) -> Share:
    """Equal parts on every GPU, in the largest micro-batches that fit and divide them.

    Raises InputError with the nearest (Bp, n) that divide where Bp · n does not.
    """
    gpus, problems, n = hardware.gpus, plan.problems_per_batch, plan.rollouts_per_problem
    if plan.batch_size % gpus:
        near = ", ".join(f"{other_bp} × {other_n}" for other_bp, other_n in nearest_divisible(problems, n, gpus))
        raise InputError(
            f"Bp · n = {problems} × {n} = {plan.batch_size} rollouts cannot be split equally over {gpus} GPUs; the "
            f"nearest plans that can be: {near}. Plan again with one of them: the learning rate and the number of "
            "updates follow from it."
        )
    rollouts = plan.batch_size // gpus
    limit = hardware.max_sequences or MICRO_BATCH
    if hardware.max_tokens is not None:
        sequence = plan.max_prompt_length + plan.max_response_length
        limit = hardware.max_tokens // sequence
        if limit < 1:
            raise InputError(
                f"{hardware.max_tokens} tokens per device do not fit a sequence of {plan.max_prompt_length} + "
                f"{plan.max_response_length} tokens; raise --per-device or lower max_response_length."
            )
    micro = max(size for size in range(1, min(limit, rollouts) + 1) if rollouts % size == 0)
    return Share(gpus, micro, rollouts // micro, hardware.max_tokens)


def nearest_divisible(problems: int, rollouts: int, gpus: int) -> list[tuple[int, int]]:
    """The nearest (Bp, n) below and above, changing one of the two, whose product divides by `gpus`; nearest first."""
    problem_step = gpus // math.gcd(gpus, rollouts)
    rollout_step = gpus // math.gcd(gpus, problems)
    below, left = problems // problem_step * problem_step, rollouts // rollout_step * rollout_step
    found = [(bp, rollouts) for bp in (below, below + problem_step) if bp >= 1]
    found += [(problems, n) for n in (left, left + rollout_step) if n > 1]
    return sorted(found, key=lambda pair: (abs(pair[0] * pair[1] - problems * rollouts), pair))
