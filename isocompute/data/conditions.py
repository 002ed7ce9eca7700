"""Conditions: groups of runs that differ in their allocation and seed alone, so that one law describes them.

What a run is made of is its problem set, model, engine and recipe, the simulator's world or the engine's problem table,
and, for rows of a bare table, the columns that its name spells out (`set=easy,n=8`). Of these, only what varies tells
conditions apart, and only where it says more than what was said before: on the paper's two sets the recipes differ in
their KL term too, but `easy` and `hard` say all of it.
"""

from __future__ import annotations

import json
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from isocompute.core.recipe import FOLLOWS_BATCH
from isocompute.core.run import Run, RunSet, RunWarning, listing
from isocompute.data.circumstances import CIRCUMSTANCES
from isocompute.data.columns import said_by

__all__ = [
    "Condition",
    "algorithm",
    "apart_from_batch",
    "conditions_of",
    "ingredients",
    "made_of",
    "set_size",
    "spelt",
    "warn_of_several",
]

_FIRST = ("problems", "model", "recipe.baseline_rollouts", "recipe.loss", "recipe.advantage")
"""Ingredients that name a condition before any other does."""
_FOLLOWS_BATCH = {f"recipe.{name}" for name in FOLLOWS_BATCH}
_ALLOCATION = {"n", "bp", "m", "seed", "run", "rollouts_per_problem", "problems_per_batch"}
_FEW = 2
"""So few ingredients are named in full; of more, only those that most runs do not share."""
_ALWAYS = {"problems", "model", "recipe.loss"}
_PLAIN = {"problems", "model", "engine", "recipe.loss", "recipe.advantage"}


@dataclass(frozen=True)
class Condition:
    """Runs that one law describes."""

    name: str
    """What tells it from the other conditions; empty where there is only one."""
    runs: RunSet
    labels: Mapping[str, str]
    """The name by ingredient: what varies between sets, models and losses, and else what most runs do not share."""

    @property
    def recipe_name(self) -> str:
        """The part of the name that is about the recipe."""
        return " · ".join(text for key, text in self.labels.items() if key.startswith("recipe.")) or "reference"

    @property
    def changes(self) -> int:
        """How many ingredients are not those of most runs."""
        return len(self.labels)

    @property
    def key(self) -> tuple[str, ...]:
        """The names of its runs, which no other condition has."""
        return tuple(run.name for run in self.runs)

    def ingredient(self, key: str) -> Any:
        """An ingredient of its runs; None where they do not say it."""
        return ingredients(self.runs[0]).get(key)

    def rest(self, *without: str) -> str:
        """All ingredients but those that begin with one of these, as text to compare by."""
        return _text({key: v for key, v in ingredients(self.runs[0]).items() if not key.startswith(without)})


def conditions_of(runs: RunSet) -> tuple[Condition, ...]:
    """Group runs by what they are made of, in the order of their first run."""
    made_of = [ingredients(run) for run in runs]
    keys = _telling(runs.runs, made_of)
    groups: dict[tuple[str, ...], list[int]] = {}
    for i, parts in enumerate(made_of):
        groups.setdefault(tuple(_text(parts.get(key)) for key in keys), []).append(i)
    common = {key: Counter(_text(parts.get(key)) for parts in made_of).most_common(1)[0][0] for key in keys}
    labels = [
        {
            key: _label(key, value)
            for key, value in ((key, made_of[members[0]].get(key)) for key in keys)
            if len(keys) <= _FEW or key in _ALWAYS or _text(value) != common[key]
        }
        for members in groups.values()
    ]
    names = [" · ".join(filter(None, parts.values())) or ("as most runs" if keys else "") for parts in labels]
    return tuple(
        Condition(
            name if names.count(name) == 1 else f"{name} ({i + 1})",
            replace(runs, runs=tuple(runs[m] for m in members)),
            parts,
        )
        for i, (name, parts, members) in enumerate(zip(names, labels, groups.values(), strict=True))
    )


def made_of(run: Run) -> dict[str, Any]:
    """All that `run.json` says of how a run was made but its allocation and seed, and where, when and how fast it ran:
    runs that differ in those alone are repetitions.
    """
    return run.settings.model_dump(exclude=set(CIRCUMSTANCES), exclude_none=True)


def ingredients(run: Run) -> dict[str, Any]:
    """What a run is made of, apart from its allocation and seed, as flat keys such as `recipe.kl_coef`."""
    out: dict[str, Any] = {}
    said = run.settings.model_dump(exclude_none=True)
    out |= {key: _place(said[key]) for key in ("problems", "model", "engine") if key in said}
    for table in ("recipe", "world", "problem_set"):
        fields = said.get(table)
        if isinstance(fields, dict):
            out |= {f"{table}.{key}": value for key, value in fields.items() if value is not None and key != "seed"}
    columns = dict(spelt(run.name))
    ours = said_by(list(columns))  # a column `lr` is the recipe's learning rate, said once already
    for key, value in columns.items():
        if key.lower() not in _ALLOCATION and not {ours.get(key), f"recipe.{ours.get(key)}"} & out.keys():
            out.setdefault(key, value)
    return out


def apart_from_batch(run: Run) -> str:
    """All ingredients but those that change with the batch by design, as text to compare by."""
    return _text({key: value for key, value in ingredients(run).items() if key not in _FOLLOWS_BATCH})


def spelt(name: str) -> list[tuple[str, str]]:
    """The columns of a bare table that a name spells out; nothing of a name that people gave.

    >>> spelt("set=easy,n=8"), spelt("grpo n=8")
    ([('set', 'easy'), ('n', '8')], [])
    """
    parts = [part.partition("=") for part in name.split(",")]
    named = all(key.isidentifier() and sign and value and "=" not in value for key, sign, value in parts)
    return [(key, value) for key, _, value in parts] if named else []


def warn_of_several(runs: RunSet) -> None:
    """One law through runs of several problem sets or models compares what does not compare."""
    found = conditions_of(runs)
    if len(found) > 1 and any(not key.startswith("recipe.") for c in found for key in c.labels):
        warnings.warn(
            f"{runs.source}: its runs are of {len(found)} conditions ({listing([c.name for c in found], 3)}), whose "
            "rewards do not compare: what follows mixes them; take one with --where or its own folder, or see "
            "`isocompute report`, which keeps them apart.",
            RunWarning,
            stacklevel=3,
        )


def set_size(condition: Condition) -> int | None:
    """D: training problems, where the runs say it."""
    size = condition.ingredient("world.size") or condition.ingredient("problem_set.size")
    return int(size) if isinstance(size, int | float) else None


def algorithm(condition: Condition) -> str | None:
    """The name of a recipe's algorithm, from its loss and advantage."""
    loss, advantage = (condition.ingredient(f"recipe.{key}") for key in ("loss", "advantage"))
    if loss is None:
        return None
    if advantage == "gae":
        return "PPO"
    if loss == "clip":
        return {"group_std": "GRPO", "group_mean": "Dr. GRPO"}.get(str(advantage), f"clip, {advantage}")
    return str(loss).upper()


def _telling(runs: Sequence[Run], made_of: Sequence[Mapping[str, Any]]) -> list[str]:
    """The keys that split the runs, each further than those before it."""
    keys = sorted({key for parts in made_of for key in parts}, key=_rank)
    batches = [(run.settings.problems_per_batch, run.settings.rollouts_per_problem) for run in runs]
    kept: list[str] = []
    split: list[tuple[str, ...]] = [()] * len(runs)
    for key in keys:
        values = [_text(parts.get(key)) for parts in made_of]
        if key in _FOLLOWS_BATCH and len(set(zip(batches, values, strict=True))) == len(set(batches)):
            continue
        finer = [(*before, value) for before, value in zip(split, values, strict=True)]
        if len(set(finer)) > len(set(split)):
            kept, split = [*kept, key], finer
    return kept


def _place(said: Any) -> Any:
    """A path by its last two parts: the same set lies elsewhere on another machine."""
    return "/".join(said.rstrip("/").rsplit("/", 2)[-2:]) if isinstance(said, str) else said


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
