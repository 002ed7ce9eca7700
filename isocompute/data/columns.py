"""What a column, or a key that is nobody's in particular, says of how a run was made: its model, problems and recipe.

A column counts only where it holds one value in every run: a learning rate that is logged as it decays is a metric.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import polars as pl
from pydantic import TypeAdapter, ValidationError

from isocompute.core.recipe import Recipe

__all__ = ["MADE_OF", "constant_columns", "made_of", "recipe_field", "said_by"]

_TEXTS = {
    "model": ("model", "model_name", "base_model", "model_name_or_path"),
    "problems": ("problems", "problem_set", "dataset", "dataset_name", "set", "task"),
}
_SPELLINGS: dict[str, tuple[str, ...]] = {
    "learning_rate": ("lr", "actor_lr", "actor_learning_rate"),
    "kl_coef": ("kl_coeff", "kl_loss_coef", "kl_penalty_coef", "beta"),
    "entropy_coef": ("entropy_coeff", "entropy_loss_coef"),
    "clip_low": ("clip_ratio_low", "eps_clip_low"),
    "clip_high": ("clip_ratio_high", "eps_clip_high", "epsilon_high"),
    "loss": ("loss_type", "policy_loss_type", "loss_mode"),
    "advantage": ("adv_estimator", "advantage_estimator"),
    "aggregation": ("loss_agg_mode", "loss_reduction"),
    "beta1": ("adam_beta1",),
    "beta2": ("adam_beta2",),
    "grad_clip": ("max_grad_norm",),
}
_ALGORITHMS = {"grpo": "group_std", "dr_grpo": "group_mean", "rloo": "group_mean"}
"""Advantages by the name of the algorithm."""
_AMBIGUOUS = {"epsilon", "schedule", "interrupt_window"}
"""Of the recipe's fields: TRL's epsilon is a clip, ours is Adam's; the others are no plain values."""
_FIELDS = {name: field for name, field in Recipe.model_fields.items() if name not in _AMBIGUOUS}
_WORDS = ("loss", "advantage", "aggregation")
"""Fields whose values others name in words of their own, which still tell runs apart."""
_BY_NAME = {spelling: name for name in _FIELDS for spelling in (name, *_SPELLINGS.get(name, ()))}
MADE_OF = (*_TEXTS, *_FIELDS)
"""Roles that a column can have here, in our names."""


def said_by(columns: Sequence[str]) -> dict[str, str]:
    """Our name of what each of these columns says, by the column: `model`, `problems` or a field of the recipe."""
    plain = {column.strip().lower(): column for column in reversed(columns)}
    out = {}
    for name, spellings in _TEXTS.items():
        found = next((plain[s] for s in spellings if s in plain), None)
        if found is not None:
            out[found] = name
    for spelling, name in _BY_NAME.items():
        if spelling in plain and name not in out.values():
            out[plain[spelling]] = name
    return out


def constant_columns(table: pl.DataFrame, parts: Iterable[pl.DataFrame]) -> dict[str, str]:
    """Of a table's columns, those that say how its runs (`parts`) were made: one valid value in each."""
    found = {
        column: name
        for column, name in said_by(table.columns).items()
        if not table.schema[column].is_nested()
        and (table.schema[column] == pl.String or name not in _TEXTS)
        and table[column].null_count() < table.height
    }
    for part in parts:
        for column, name in list(found.items()):
            values = part[column].drop_nulls().unique()
            if len(values) > 1 or (len(values) == 1 and _value(name, values[0]) is None):
                del found[column]
    return found


def made_of(part: pl.DataFrame, columns: Mapping[str, str]) -> dict[str, Any]:
    """Settings of one run from `constant_columns`: `model`, `problems` and `recipe`."""
    out: dict[str, Any] = {}
    recipe: dict[str, Any] = {}
    for column, name in columns.items():
        values = part[column].drop_nulls()
        if len(values):
            (out if name in _TEXTS else recipe)[name] = _value(name, values[0])
    return out | ({"recipe": recipe} if recipe else {})


def recipe_field(key: str, value: Any) -> tuple[str, Any] | None:
    """A recipe's field and value from a key that is no trainer's in particular; None where it is none."""
    name = _BY_NAME.get(key)
    found = None if name is None else _value(name, value)
    return None if name is None or found is None else (name, found)


def _value(name: str, value: Any) -> Any:
    """The value as the settings keep it; None where it cannot be one."""
    if name in _TEXTS:
        return str(value) if isinstance(value, str) and value.strip() else None
    if name in _WORDS:
        if not isinstance(value, str) or not value.strip():
            return None
        return _ALGORITHMS.get(value, value) if name == "advantage" else value
    if isinstance(value, bool) and name != "fp32_head":
        return None
    try:
        return _adapter(name).validate_python(value)
    except ValidationError:
        return None


@cache
def _adapter(name: str) -> TypeAdapter[Any]:
    return TypeAdapter(_FIELDS[name].rebuild_annotation())
