"""Runs sorted into setups: one model, problem set and recipe, run at several allocations and with several seeds.

A claim about n* is about one setup; a claim about a recipe is about two that differ in nothing else.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from isocompute.errors import InputError
from isocompute.law import Law, curves_of, fit_law
from isocompute.law.curve import Curve
from isocompute.recipes import RECIPES, Recipe
from isocompute.runs.model import Run, RunSet, RunWarning

__all__ = ["Pair", "Setup", "Study", "difficulty_of", "sort_runs"]

Difficulty = Literal["easy", "hard"]
REPLICATES = 200
_HARD, _EASY = 0.0625, (0.3, 0.6)
"""The IsoCompute paper's bands of base pass rate."""
_SETS = ("world", "problem_set")
_ALLOCATION = {"problems_per_batch", "rollouts_per_problem", "update_steps", "seed", "gpus", "versions", "micro_batch"}


@dataclass(frozen=True)
class Setup:
    """Runs that share all but allocation and seed."""

    name: str
    """What tells it from the other setups here: its problem set, then the recipe's fields that differ."""
    settings: Mapping[str, Any]
    recipe: Mapping[str, Any]
    runs: tuple[Run, ...]

    @property
    def size(self) -> int | None:
        """Problems in the training set, where that is known."""
        sizes = [table["size"] for table in self._sets() if isinstance(table.get("size"), int)]
        return int(sizes[0]) if sizes else None

    @property
    def apart_from_size(self) -> str:
        """All settings but the number of problems, to compare by."""
        sets = [{k: v for k, v in table.items() if k != "size"} for table in self._sets()]
        return _text([{k: v for k, v in self.settings.items() if k not in _SETS}, sets])

    def _sets(self) -> list[Mapping[str, Any]]:
        """How engines describe the problem set."""
        return [self.settings[name] for name in _SETS if isinstance(self.settings.get(name), dict)]


@dataclass(frozen=True)
class Pair:
    """Two recipes that differ in the named fields alone, at one allocation."""

    a: tuple[Run, ...]
    b: tuple[Run, ...]


@dataclass
class Study:
    """The setups of a set of runs, and their laws, each fitted once."""

    setups: tuple[Setup, ...]
    metric: str
    source: str
    _laws: dict[str, Law | None] = field(default_factory=dict)

    def law(self, setup: Setup) -> Law | None:
        """A setup's law, or None where its curves support none."""
        if setup.name not in self._laws:
            made = self.curves(setup.runs)
            law = None
            if made is not None:
                with suppress(InputError):  # too few points, or nothing that moves
                    law = fit_law(made[0], metric=self.metric, unit=made[1], replicates=REPLICATES)
            self._laws[setup.name] = law
        return self._laws[setup.name]

    def curves(
        self, runs: Sequence[Run], *, metric: str | None = None, unit: str | None = None
    ) -> tuple[list[Curve], str] | None:
        """Curves of some runs and their unit of compute; None where they have none."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RunWarning)  # told once, when the runs were read
                chosen = RunSet(tuple(runs), self.source)
                curves, _, unit = curves_of(chosen, metric=metric or self.metric, unit=unit)
        except InputError:
            return None
        return curves, unit

    def where(self, setup: Setup) -> str:
        """What to add to a claim's code to tell sweeps apart; nothing where there is one."""
        return setup.name if len(self.sweeps()) > 1 else ""

    def sweeps(self) -> tuple[Setup, ...]:
        """Setups that were run at two n or more."""
        return tuple(s for s in self.setups if len({r.settings.rollouts_per_problem for r in s.runs} - {None}) > 1)

    def difficulty(self, setup: Setup) -> Difficulty | None:
        """Easy or hard, in the paper's words."""
        return difficulty_of(setup, self.metric)

    def pairs(
        self,
        fields: Sequence[str],
        is_a: Callable[[Mapping[str, Any]], bool],
        is_b: Callable[[Mapping[str, Any]], bool],
        *,
        difficulty: Difficulty | None = None,
    ) -> Iterator[Pair]:
        """Recipes on both sides of a claim that differ in `fields` alone, at every allocation that both ran."""
        sides: dict[tuple[str, int | None, int | None], tuple[list[Run], list[Run]]] = {}
        for setup in self.setups:
            if difficulty is not None and self.difficulty(setup) != difficulty:
                continue
            side = 0 if is_a(setup.recipe) else 1 if is_b(setup.recipe) else None
            if side is None:
                continue
            rest = {k: v for k, v in setup.settings.items() if k != "recipe"}
            rest["recipe"] = {k: v for k, v in setup.recipe.items() if k not in fields}
            for run in setup.runs:
                s = run.settings
                key = (_text(rest), s.problems_per_batch, s.rollouts_per_problem)
                sides.setdefault(key, ([], []))[side].append(run)
        for a, b in sides.values():
            if a and b:
                yield Pair(tuple(a), tuple(b))


def sort_runs(runs: RunSet, metric: str) -> Study:
    """The setups of some runs."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(_text(_settings(run)), []).append(run)
    all_settings = [_settings(group[0]) for group in groups.values()]
    recipes = [_recipe(settings) for settings in all_settings]
    names = _names(all_settings, recipes)
    setups = zip(names, all_settings, recipes, groups.values(), strict=True)
    return Study(tuple(Setup(n, s, r, tuple(g)) for n, s, r, g in setups), metric, runs.source)


def difficulty_of(setup: Setup, metric: str) -> Difficulty | None:
    """By the name of the problem set, else by the base model's pass rate, in the paper's bands."""
    name = str(setup.settings.get("problems") or "").lower()
    for word in ("hard", "easy"):
        if word in name.replace("very-easy", "").replace("very_easy", ""):
            return "hard" if word == "hard" else "easy"
    firsts = [run.points[metric].drop_nulls() for run in setup.runs if metric in run.metrics]
    rates = [float(first[0]) for first in firsts if len(first)]
    if not rates or not 0.0 <= (base := float(np.median(rates))) <= 1.0:
        return None
    return "hard" if base <= _HARD else "easy" if _EASY[0] <= base <= _EASY[1] else None


def _settings(run: Run) -> dict[str, Any]:
    return run.settings.model_dump(exclude=_ALLOCATION, exclude_none=True)


def _recipe(settings: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe's fields: what its name stands for, then what is said."""
    said = settings.get("recipe") or {}
    name = said.get("name")
    known = RECIPES.get(name, {}) if isinstance(name, str) else {}
    defaults = {key: f.default for key, f in Recipe.model_fields.items()} if said else {}
    return {**defaults, **known, **{key: value for key, value in said.items() if key != "name"}}


def _names(all_settings: Sequence[Mapping[str, Any]], recipes: Sequence[Mapping[str, Any]]) -> list[str]:
    """The problem set and whatever differs: the model, the set's size, fields of the recipe."""
    flat = [
        {f"recipe.{k}": v for k, v in recipe.items()} | _flat({k: v for k, v in s.items() if k != "recipe"})
        for s, recipe in zip(all_settings, recipes, strict=True)
    ]
    keys = dict.fromkeys(key for each in flat for key in each)
    told = [k for k in keys if k != "problems" and len({_text(each.get(k)) for each in flat}) > 1]
    one_set = len({each.get("problems") for each in flat}) == 1
    out: list[str] = []
    for each in flat:
        parts = [str(each.get("problems", "runs"))] if not one_set or not told else []
        # What goes with the problem set in every setup says nothing beyond its name.
        parts += [f"{k.rpartition('.')[2]}={each.get(k)}" for k in told if not _follows(flat, k, "problems")]
        name = " ".join(parts) or "runs"
        out.append(name if name not in out else f"{name} #{len(out) + 1}")
    return out


def _follows(flat: Sequence[Mapping[str, Any]], key: str, other: str) -> bool:
    by_other: dict[str, set[str]] = {}
    for each in flat:
        by_other.setdefault(_text(each.get(other)), set()).add(_text(each.get(key)))
    return all(len(values) == 1 for values in by_other.values())


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in table.items():
        out |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return out


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)
