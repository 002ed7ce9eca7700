"""A plan as an exporter needs it: what `isocompute plan` finds, or a bare table with Bp, n and M."""

from __future__ import annotations

import json
import math
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from isocompute.core.allocation import Spending
from isocompute.core.errors import InputError
from isocompute.core.recipe import Recipe, learning_rate, make_recipe

if TYPE_CHECKING:
    from isocompute.planner.decide import Plan as Planned

__all__ = ["Plan", "make_plan", "read_plan"]

PROMPT_LENGTH = 1024
RESPONSE_LENGTH = 4096
_SHORT = {"Bp": "problems_per_batch", "n": "rollouts_per_problem", "M": "update_steps"}
_CHOSEN = ("recipe", "learning_rate", "max_prompt_length", "max_response_length")
_OF_RECIPE = ("warmup_steps", "kl_coef", "entropy_coef", "temperature")
"""Keys that a plan says itself and that stand over its recipe's."""


class Plan(BaseModel, Spending):
    """An allocation and its recipe. The learning rate is the one at this batch size."""

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
    assumed: tuple[str, ...] = Field(default=(), description="what the plan did not say and an exporter had to choose")

    @property
    def validation_every(self) -> int:
        """Updates between validations: twenty in a run."""
        return max(1, self.update_steps // 20)


def make_plan(table: Mapping[str, Any] | Planned | Plan, *, source: str = "plan") -> Plan:
    """A plan from the planner's or from data: what `isocompute plan --json` prints, or a table with Bp, n and M.

    What a plan says and an exporter does not need is passed over; what is wrong is refused.

    >>> make_plan({"Bp": 32, "n": 8, "M": 100}).compute
    25600
    """
    if isinstance(table, Plan):
        return table
    given = {_SHORT.get(key, key): value for key, value in _as_table(table, source).items()}
    missing = [key for key in _SHORT.values() if given.get(key) is None]
    if missing:
        short = ", ".join(k for k, name in _SHORT.items() if name in missing)
        raise InputError(
            f"{source}: no {', '.join(missing)}; a plan says at least Bp, n and M (here missing: {short})."
        )
    _refuse_switches(given, source)
    recipe = _recipe(given, source)
    fields = {name: given[name] for name in Plan.model_fields if given.get(name) is not None} | {"recipe": recipe}
    if "validation_samples" not in fields:
        fields["validation_samples"] = _samples(given.get("expected"))
    fields.setdefault("learning_rate", 1.0)
    fields["assumed"] = tuple(name for name in _CHOSEN if given.get(name) is None)
    try:
        plan = Plan.model_validate(fields)
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


def _as_table(plan: Mapping[str, Any] | Planned, source: str) -> Mapping[str, Any]:
    """The keys of `plan --json`; the planner is loaded only for what is no table."""
    if isinstance(plan, Mapping):
        return plan
    from isocompute.planner.decide import Plan as Planned

    if isinstance(plan, Planned):
        return plan.to_json()
    raise InputError(
        f"{source}: a {type(plan).__name__} is no plan; give what isocompute.plan(…) returns, what `isocompute plan "
        "--json` prints, or a table with Bp, n and M (isocompute.trainers.read_plan reads one from a file)."
    )


def _refuse_switches(given: Mapping[str, Any], source: str) -> None:
    """No field of a plan is a switch, but Python takes true for 1."""
    for name in (*Plan.model_fields, "batch_size", "compute", *_OF_RECIPE):
        if isinstance(value := given.get(name), bool):
            raise InputError(
                f"{source}: {name} = {str(value).lower()}: a plan has no switches; give a number, or text for a model "
                "or file."
            )


def _recipe(given: Mapping[str, Any], source: str) -> Recipe:
    """The recipe by name or table; without one the paper's, whose KL and entropy terms are off unless the plan says."""
    table = given.get("recipe") or {}
    if isinstance(table, str):
        table = {"name": table}
    if not isinstance(table, Mapping):
        raise InputError(f"{source}: recipe is a table of fields or a recipe's name, not {table!r}.")
    over = {key: given[key] for key in _OF_RECIPE if given.get(key) is not None}
    return make_recipe({"name": "isocompute-hard", **table, **over})


def _samples(expected: object) -> int | None:
    """k of the metric that the plan expects a value of: avg@4 → 4."""
    metric = expected.get("metric") if isinstance(expected, Mapping) else None
    count = str(metric).partition("@")[2]
    return int(count) if count.isdigit() and int(count) > 0 else None


def read_plan(path: str) -> Plan:
    """Read a plan from a JSON or TOML file, or from standard input (`-`)."""
    name = "standard input" if path == "-" else path
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{name}: cannot be read ({getattr(error, 'strerror', None) or 'not UTF-8 text'}).") from error
    table = _parse(text.removeprefix("\ufeff"), name)  # the mark that some editors begin a file with
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
