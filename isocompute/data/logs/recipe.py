"""The recipe that a trainer's config in a log says, read as `isocompute explain` reads configs.

Only what is said: a default of today's version may not have been the default of the version that ran. Two things are
read from a name, not from a default: `grpo` normalises by the group's deviation, and a batch whose passes are not
counted is gone through once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from isocompute.core.recipe import Recipe
from isocompute.data.columns import recipe_field
from isocompute.data.logs.literals import as_number

__all__ = ["recipe_of"]

Config = Mapping[str, Any]

_TINKER_LOSSES = {"importance_sampling": "reinforce", "ppo": "clip", "cispo": "cispo"}
_PREFIXES = ("", "finetune.", "optim.", "trainer.optim.", "actor.", "algorithm.")
"""Tables in which a plain name keeps its meaning."""


def recipe_of(config: Config, *, trainer: str | None = None) -> dict[str, Any]:
    """Settings `recipe` (fields of `Recipe`) and `problem_set`, whose max_new_tokens is the response budget."""
    if not config:
        return {}
    recipe, budget = _by_trainer(config, trainer) or (_plain(config), _whole(config.get("max_tokens")))
    out: dict[str, Any] = {}
    if recipe:
        out["recipe"] = recipe
    if budget:
        out["problem_set"] = {"max_new_tokens": budget}
    return out


def _by_trainer(config: Config, trainer: str | None) -> tuple[dict[str, Any], int | None] | None:
    """By the reader of the trainer whose keys these are; None where it is none that `explain` knows."""
    from isocompute.trainers.reading import read_settings  # late: most tables have no config

    read = read_settings(trainer, config)
    if read is None:
        return None
    setup = read[0]
    names = [name for name in Recipe.model_fields if hasattr(setup, name) and name != "schedule"]  # theirs is a decay
    recipe = {name: value for name in names if (value := getattr(setup, name)) is not None}
    if setup.staleness and _holds_together({**recipe, "pipeline_steps": setup.staleness}):
        recipe["pipeline_steps"] = setup.staleness
    updates = recipe.get("updates_per_batch")
    if updates is not None:
        if updates == int(updates):
            recipe["updates_per_batch"] = int(updates)
        else:
            del recipe["updates_per_batch"]  # a batch is not over with one step; no field says that
    return recipe, setup.max_response_length


def _holds_together(recipe: dict[str, Any]) -> bool:
    """Whether the fields go together as a `Recipe` understands them, whatever a single one of them is worth."""
    try:
        Recipe(**recipe)
    except ValidationError as error:
        return all(wrong["loc"] for wrong in error.errors())
    return True


def _plain(config: Config) -> dict[str, Any]:
    """Of Tinker, PipelineRL and anybody's own script: names that mean one thing."""
    out: dict[str, Any] = {}
    for prefix in _PREFIXES:
        for key, value in config.items():
            found = recipe_field(key.removeprefix(prefix), value) if key.startswith(prefix) else None
            if found is not None:
                out.setdefault(*found)
    loss = config.get("loss_fn")
    if isinstance(loss, str):
        out.setdefault("loss", _TINKER_LOSSES.get(loss, loss))
    substeps = _whole(config.get("num_substeps"))
    if substeps:
        out.setdefault("updates_per_batch", substeps)
    removed = config.get("remove_constant_reward_groups")
    if isinstance(removed, bool):
        out.setdefault("zero_variance_filter", "policy" if removed else "off")
    return out


def _whole(value: Any) -> int | None:
    number = as_number(value)
    return int(number) if number is not None and number == int(number) and number >= 1 else None
