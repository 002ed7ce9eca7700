"""Which runs may share a law: those that differ only in their allocation and seed. Such a group is a condition.

A run's ingredients are its problem set, model, engine and recipe, and the simulator's world or the engine's problem
table. The name of a table's run adds its columns (`set=easy,n=8`).

An ingredient separates conditions only if it splits the runs further than the ingredients before it. On the paper's two
sets the recipes differ in their KL term too, but `easy` and `hard` already separate them.
"""

from __future__ import annotations

import json
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from isocompute.core.errors import InputError
from isocompute.core.recipe import FOLLOWS_BATCH
from isocompute.core.run import Run, RunSet, RunWarning, listing
from isocompute.data.columns import origin_of

_FIRST = ("problems", "model", "recipe.baseline_rollouts", "recipe.loss", "recipe.advantage")
"""Ingredients that name a condition before any other does."""
_FOLLOWS_BATCH = {f"recipe.{name}" for name in FOLLOWS_BATCH}
_ALLOCATION = {"n", "bp", "m", "seed", "run", "rollouts_per_problem", "problems_per_batch"}
_FEW = 2
"""Up to this many ingredients are all part of a condition's name; of more, only those that most runs do not share."""
_ALWAYS = {"problems", "model", "recipe.loss"}
_PLAIN = {"problems", "model", "engine", "recipe.loss", "recipe.advantage"}


@dataclass(frozen=True)
class Condition:
    """Runs that one law describes."""

    name: str
    """How it differs from the other conditions; empty where there is only one."""
    runs: RunSet
    labels: Mapping[str, str]
    """The name by ingredient: sets, models and losses that vary, and other ingredients that most runs do not share."""

    @property
    def recipe_name(self) -> str:
        """The name without sets and models."""
        return " · ".join(text for key, text in self.labels.items() if key.startswith("recipe.")) or "reference"

    @property
    def changes(self) -> int:
        """The number of ingredients that differ from those of most runs."""
        return len(self.labels)

    @property
    def key(self) -> tuple[str, ...]:
        """The names of its runs, which are unique to this condition."""
        return tuple(run.name for run in self.runs)

    def ingredient(self, key: str) -> Any:
        """An ingredient of its runs; None if unknown."""
        return ingredients(self.runs[0]).get(key)

    def rest(self, *without: str) -> str:
        """All ingredients except those with one of these prefixes, as text for comparison."""
        return _text({key: v for key, v in ingredients(self.runs[0]).items() if not key.startswith(without)})


def conditions_of(runs: RunSet) -> tuple[Condition, ...]:
    """Group runs by their ingredients, in the order of their first run."""
    found = [ingredients(run) for run in runs]
    keys = _separating_keys(runs.runs, found)
    groups: dict[tuple[str, ...], list[int]] = {}
    for i, each in enumerate(found):
        groups.setdefault(tuple(_text(each.get(key)) for key in keys), []).append(i)
    common = {key: Counter(_text(each.get(key)) for each in found).most_common(1)[0][0] for key in keys}
    labels = [
        {
            key: _label(key, value)
            for key, value in ((key, found[group[0]].get(key)) for key in keys)
            if len(keys) <= _FEW or key in _ALWAYS or _text(value) != common[key]
        }
        for group in groups.values()
    ]
    names = [" · ".join(filter(None, label.values())) or ("as most runs" if keys else "") for label in labels]
    return tuple(
        Condition(
            name if names.count(name) == 1 else f"{name} ({i + 1})",
            replace(runs, runs=tuple(runs[at] for at in group)),
            label,
        )
        for i, (name, label, group) in enumerate(zip(names, labels, groups.values(), strict=True))
    )


def ingredients(run: Run) -> dict[str, Any]:
    """What a run is made of as flat keys such as `model` and `recipe.kl_coef`, without allocation and seed."""
    out: dict[str, Any] = {}
    settings = run.settings.model_dump(exclude_none=True)
    for key in ("problems", "model", "engine"):
        if key in settings:  # the last two parts of a path: the same set has another place on another machine
            value = settings[key]
            out[key] = "/".join(value.rstrip("/").rsplit("/", 2)[-2:]) if isinstance(value, str) else value
    for table in ("recipe", "world", "problem_set"):
        fields = settings.get(table)
        if isinstance(fields, dict):
            out |= {f"{table}.{key}": value for key, value in fields.items() if value is not None and key != "seed"}
    columns = dict(columns_in_name(run.name))
    ours = origin_of(list(columns))  # a column `lr` is the recipe's learning rate, which may be there already
    for key, value in columns.items():
        if key.lower() not in _ALLOCATION and not {ours.get(key), f"recipe.{ours.get(key)}"} & out.keys():
            out.setdefault(key, value)
    return out


def apart_from_batch(run: Run) -> str:
    """All ingredients except those that change with the batch by design, as text for comparison."""
    return _text({key: value for key, value in ingredients(run).items() if key not in _FOLLOWS_BATCH})


def columns_in_name(name: str) -> list[tuple[str, str]]:
    """The table columns and values that a run's name was built from; empty for a name that a person chose.

    >>> columns_in_name("set=easy,n=8"), columns_in_name("grpo n=8")
    ([('set', 'easy'), ('n', '8')], [])
    """
    pairs = [pair.partition("=") for pair in name.split(",")]
    named = all(key.isidentifier() and sign and value and "=" not in value for key, sign, value in pairs)
    return [(key, value) for key, _, value in pairs] if named else []


def warn_of_several(runs: RunSet) -> None:
    """Warn where one law would mix runs of several problem sets or models."""
    found = conditions_of(runs)
    if _differ_in_setup(found):
        warnings.warn(
            f"{runs.source}: its runs are of {len(found)} conditions ({listing([c.name for c in found], 3)}), whose "
            "rewards do not compare: what follows mixes them; take one with --where or its own folder, or see "
            "`isocompute report`, which keeps them apart.",
            RunWarning,
            stacklevel=3,
        )


def warn_of_pooling(side: RunSet) -> None:
    """Warn where runs that a comparison takes as seeds of one recipe are of several conditions."""
    found = conditions_of(side)
    if len(found) > 1:
        warnings.warn(
            f"{side.source}: its runs differ in more than their seed ({listing([c.name for c in found], 3)}): what "
            "follows pools them as seeds of one recipe; name those of one as PATH::NAME or with --where.",
            RunWarning,
            stacklevel=3,
        )


def runs_of_leading_recipe(runs: RunSet, *, metric: str) -> tuple[RunSet, str]:
    """The runs that one plan can use, and a phrase that names the chosen recipe; empty if all runs share one.

    Runs of several problem sets or models are refused: the easier set or the better model would win. Of several
    recipes, the one with the highest final value of the metric is used.
    """
    found = conditions_of(runs)
    if len(found) < 2:
        return runs, ""
    if _differ_in_setup(found):
        names = [f"'{c.name}' ({len(c.runs)})" for c in found[:4]]
        more = f" and {len(found) - 4} more" if len(found) > 4 else ""
        key = next(key for condition in found for key in condition.labels if not key.startswith("recipe."))
        raise InputError(
            f"--law {runs.source}: its runs are of {len(found)} conditions, {', '.join(names)}{more}, whose rewards do "
            f"not compare; name one: its own folder, or --where {key}=…"
        )

    def end(run: Run) -> float:
        last = run.points[metric].drop_nulls().tail(3).to_numpy() if metric in run.points.columns else ()
        return float(np.mean(last)) if len(last) else -np.inf

    best = max(found, key=lambda condition: max(map(end, condition.runs)))
    return best.runs, f" with {best.recipe_name}, which reached highest of {len(found)} recipes"


def set_size(condition: Condition) -> int | None:
    """D, the number of training problems; None if unknown."""
    size = condition.ingredient("world.size") or condition.ingredient("problem_set.size")
    return int(size) if isinstance(size, int | float) else None


def algorithm(condition: Condition) -> str | None:
    """The usual name of a recipe's loss and advantage, such as GRPO; None if the loss is unknown."""
    loss, advantage = (condition.ingredient(f"recipe.{key}") for key in ("loss", "advantage"))
    if loss is None:
        return None
    if advantage == "gae":
        return "PPO"
    if loss == "clip":
        return {"group_std": "GRPO", "group_mean": "Dr. GRPO"}.get(str(advantage), f"clip, {advantage}")
    return str(loss).upper()


def _differ_in_setup(conditions: Sequence[Condition]) -> bool:
    """Whether conditions differ in more than their recipe, so that their rewards cannot be compared."""
    return len(conditions) > 1 and any(not key.startswith("recipe.") for c in conditions for key in c.labels)


def _separating_keys(runs: Sequence[Run], found: Sequence[Mapping[str, Any]]) -> list[str]:
    """The ingredients that split the runs, each further than those before it."""
    keys = sorted({key for each in found for key in each}, key=_rank)
    batches = [(run.settings.problems_per_batch, run.settings.rollouts_per_problem) for run in runs]
    kept: list[str] = []
    split: list[tuple[str, ...]] = [()] * len(runs)
    for key in keys:
        values = [_text(each.get(key)) for each in found]
        if key in _FOLLOWS_BATCH and len(set(zip(batches, values, strict=True))) == len(set(batches)):
            continue
        finer = [(*before, value) for before, value in zip(split, values, strict=True)]
        if len(set(finer)) > len(set(split)):
            kept, split = [*kept, key], finer
    return kept


def _rank(key: str) -> tuple[int, str]:
    return (_FIRST.index(key) if key in _FIRST else len(_FIRST) + ("." in key), key)


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _label(key: str, value: Any) -> str:
    last = key.rsplit(".", 1)[-1]
    if value is None:
        return "" if key in _PLAIN else f"no {last}"
    if last == "size":
        return f"D = {value}"
    if isinstance(value, dict):
        return ", ".join(f"{share:.0%} {name}" for name, share in value.items() if isinstance(share, float))
    text = f"{value:g}" if isinstance(value, float) else str(value).rstrip("/").rsplit("/", 1)[-1]
    return text if key in _PLAIN or ("." not in key and isinstance(value, str)) else f"{last} {text}"
