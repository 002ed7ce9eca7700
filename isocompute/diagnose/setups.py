"""Runs sorted into setups: one model, problem set and recipe, run at several allocations and with several seeds.

A claim about n* concerns one setup; a claim about a recipe compares two that differ in nothing else. Setups are the
conditions (`data.compatible`) within groups of runs that share everything that does not depend on the batch. So whether
a learning rate depends on the batch is decided for each problem set alone, not for all sets in a folder.
"""

from __future__ import annotations

import json
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import polars as pl

from isocompute.core.arrays import Array
from isocompute.core.curve import MINIMUM_POINTS, PERCENT, UNITS, Curve, choose_metric, curves_of, scale_of
from isocompute.core.errors import InputError, quiet
from isocompute.core.recipe import RECIPES, Recipe
from isocompute.core.run import Run, RunSet, RunWarning, listing
from isocompute.data.compatible import (
    Condition,
    apart_from_batch,
    columns_in_name,
    conditions_of,
    ingredients,
    set_size,
)
from isocompute.law.curves import usable_points
from isocompute.law.law import Law, fit_law

Difficulty = Literal["easy", "hard"]
Pair = tuple[Sequence[Run], Sequence[Run]]
"""Runs of two recipes at one allocation."""
REPLICATES = 200
_HARD, _EASY = 0.0625, (0.3, 0.6)
"""The IsoCompute paper's bands of base pass rate."""
_TABLES = ("recipe", "world", "problem_set")
"""Keys of `run.json` that `ingredients` splits into fields."""
_UNCOUNTED = "without step or compute"


@dataclass(frozen=True)
class Setup:
    """Runs that share everything except allocation and seed."""

    name: str
    """What distinguishes it from the other setups: its problem set, then the recipe's fields that differ."""
    condition: Condition
    settings: Mapping[str, Any]
    """Settings that all its runs share, without the recipe, as flat keys such as `world.size`."""
    recipe: Mapping[str, Any]
    """Recipe fields that all its runs share, so without a learning rate that depends on the batch."""

    @property
    def runs(self) -> tuple[Run, ...]:
        """In the order in which they were read."""
        return self.condition.runs.runs

    @property
    def size(self) -> int | None:
        """Problems in the training set, if known."""
        return set_size(self.condition)

    @property
    def apart_from_size(self) -> str:
        """All settings except the number of problems, as a text to compare."""
        return _text([{k: v for k, v in self.settings.items() if not k.endswith(".size")}, self.recipe])


@dataclass
class Study:
    """The setups of a set of runs, and their laws, each fitted once."""

    setups: tuple[Setup, ...]
    metric: str
    source: str
    _laws: dict[str, Law | None] = field(default_factory=dict)
    _warned: set[tuple[str, ...]] = field(default_factory=set)
    """Runs that a warning has named because they collapse too early."""

    def law(self, setup: Setup) -> Law | None:
        """A setup's law, or None if its curves support none."""
        if setup.name not in self._laws:
            made = self.fittable(setup)
            self._laws[setup.name] = (
                None if made is None else fit_law(made[0], metric=self.metric, unit=made[1], replicates=REPLICATES)
            )
        return self._laws[setup.name]

    def fittable(
        self, setup: Setup, *, metric: str | None = None, unit: str | None = None
    ) -> tuple[list[Curve], str] | None:
        """The setup's curves that a law can be fitted to, and their unit; a warning names runs that collapse too early.

        Such a run has too few points before the collapse.
        """
        made = self.curves(setup.runs, metric=metric, unit=unit)
        if made is None:
            return None
        usable = {curve.name: usable_points(curve) for curve in made[0]}
        few = {name for name, u in usable.items() if len(u.compute_C) < MINIMUM_POINTS or not np.ptp(u.values_C) > 0}
        kept = [curve for curve in made[0] if curve.name not in few]
        collapsed = tuple(curve.name for curve in made[0] if curve.name in few)
        if collapsed and collapsed not in self._warned:
            self._warned.add(collapsed)
            warnings.warn(
                f"{self.source}: {len(collapsed)} of {len(made[0])} runs collapse before they give a curve; "
                f"claims about n* leave out {listing(collapsed)}.",
                RunWarning,
                stacklevel=3,
            )
        return (kept, made[1]) if kept else None

    def curves(
        self, runs: Sequence[Run], *, metric: str | None = None, unit: str | None = None
    ) -> tuple[list[Curve], str] | None:
        """Curves of some runs and their unit of compute; None if they have none.

        `InputError` if they cannot be read together, such as runs that count compute in different units.
        """
        chosen = RunSet(tuple(runs), self.source)
        if metric not in (None, self.metric):
            chosen = _with_curves(chosen, metric or "")
        if not chosen:
            return None
        with quiet(RunWarning):  # given once, when the runs were read
            curves, _, unit = curves_of(chosen, metric=metric or self.metric, unit=unit)
        return curves, unit

    def where(self, setup: Setup) -> str:
        """The part of a claim's code that names the sweep; empty if there is only one."""
        return setup.name if len(self.sweeps()) > 1 else ""

    def sweeps(self) -> tuple[Setup, ...]:
        """Setups that were run at two n or more."""
        return tuple(s for s in self.setups if len({r.settings.rollouts_per_problem for r in s.runs} - {None}) > 1)

    def difficulty(self, setup: Setup) -> Difficulty | None:
        """Easy or hard for the model, as the paper defines it; None if neither."""
        runs = [_values(run, self.metric) for run in setup.runs]
        values, base = np.concatenate(runs), float(np.median([values_C[0] for values_C in runs]))
        percent = self.scale(values) == PERCENT
        rate = base / PERCENT if percent else base if values.max() <= 1.0 else None
        return difficulty_of(setup.runs[0].settings.problems or "", rate)

    def scale(self, values: Array) -> float:
        """The length of the scale of some runs' values.

        On a hard set, a run in percent may stay too low to show that it is; then all runs of the study decide.
        """
        percent = values.min() >= 0.0 and values.max() > 1.0 and self._scale == PERCENT
        return PERCENT if percent else scale_of(values)

    @cached_property
    def _scale(self) -> float:
        return scale_of(np.concatenate([_values(run, self.metric) for setup in self.setups for run in setup.runs]))

    def pairs(
        self,
        fields: Sequence[str],
        is_a: Callable[[Mapping[str, Any]], bool],
        is_b: Callable[[Mapping[str, Any]], bool],
        *,
        difficulty: Difficulty | None = None,
    ) -> Iterator[Pair]:
        """Pairs of recipes on both sides of a claim that differ only in `fields`, at every allocation that both ran."""
        among = [s for s in self.setups if difficulty is None or self.difficulty(s) == difficulty]
        chosen = [(s, 0 if is_a(s.recipe) else 1) for s in among if is_a(s.recipe) or is_b(s.recipe)]
        # A column in a table's run names that only repeats these fields, such as `arm`, is no further difference.
        flat = [_with_recipe(setup.settings, setup.recipe) for setup, _ in chosen]
        columns = {column for setup, _ in chosen for column, _ in columns_in_name(setup.runs[0].name)}
        labels = {column for column in columns if _follows(flat, column, *(f"recipe.{name}" for name in fields))}
        sides: dict[tuple[str, int | None, int | None], tuple[list[Run], list[Run]]] = {}
        for setup, side in chosen:
            settings = {k: v for k, v in setup.settings.items() if k not in labels}
            for run in setup.runs:
                s = run.settings
                rest = [settings, {k: v for k, v in _recipe(run).items() if k not in fields}]
                key = (_text(rest), s.problems_per_batch, s.rollouts_per_problem)
                sides.setdefault(key, ([], []))[side].append(run)
        yield from ((a, b) for a, b in sides.values() if a and b)


def sort_runs(runs: RunSet, metric: str) -> Study:
    """Sort the runs that have a curve of the metric into setups."""
    alike: dict[str, list[Run]] = {}
    for run in _with_curves(runs, metric):
        alike.setdefault(apart_from_batch(run), []).append(run)
    groups = [group for each in alike.values() for group in _by_further_keys(each)]
    found = [c for group in groups for c in conditions_of(replace(runs, runs=tuple(group)))]
    found = [condition for condition in found if _is_readable(condition.runs, metric)]
    all_settings = [_settings(condition.runs) for condition in found]
    recipes = [_shared([_recipe(run) for run in condition.runs]) for condition in found]
    names = _names(all_settings, recipes)
    setups = tuple(Setup(*parts) for parts in zip(names, found, all_settings, recipes, strict=True))
    return Study(setups, metric, runs.source)


def difficulty_of(name: str, rate: float | None) -> Difficulty | None:
    """Easy or hard by the name of the problem set, else by the base model's pass rate in the paper's bands."""
    plain = name.lower().replace("very-easy", "").replace("very_easy", "")
    if "hard" in plain or "easy" in plain:
        return "hard" if "hard" in plain else "easy"
    if rate is None or rate < 0.0:
        return None
    return "hard" if rate <= _HARD else "easy" if _EASY[0] <= rate <= _EASY[1] else None


# Which runs have a curve ----------------------------------------------------------------------------------------------


def common_metric(runs: RunSet, metric: str | None = None) -> str:
    """The metric asked for, else one that all runs have, else one that as many as possible have."""
    try:
        return choose_metric(runs, metric)
    except InputError:
        if metric is not None or runs.value_column is not None:
            raise
        having: dict[str, list[Run]] = {}
        for run in runs:
            for name in run.metrics:
                having.setdefault(name, []).append(run)
        for name, some in sorted(having.items(), key=lambda item: -len(item[1])):
            if len(some) < len(runs) and _is_metric_of(replace(runs, runs=tuple(some)), name):
                return name
        raise


def _is_metric_of(runs: RunSet, metric: str) -> bool:
    """Whether this is the metric that `choose_metric` takes for these runs."""
    try:
        return choose_metric(runs) == metric
    except InputError:
        return False


def _with_curves(runs: RunSet, metric: str) -> RunSet:
    """The runs that have a curve of a metric; a warning names those that are constant or too short for one.

    Runs without the metric are skipped, since the choice of the metric has warned about them. A broken run is an error,
    as in `fit`. There is no warning if no run counts compute.
    """
    having = [run for run in runs if metric in run.metrics]
    lacking = {run.name: why for run in having if (why := _lacks(run, metric, runs.source)) is not None}
    counts = Counter(lacking.values())
    if lacking and counts[_UNCOUNTED] < len(having):
        reasons = " and ".join(f"{number} {why}" for why, number in counts.items())
        warnings.warn(
            f"{runs.source}: {len(lacking)} of {len(having)} runs left out, {reasons}: {listing(list(lacking))}.",
            RunWarning,
            stacklevel=3,
        )
    return replace(runs, runs=tuple(run for run in having if run.name not in lacking))


def _lacks(run: Run, metric: str, source: str) -> str | None:
    """Why a run has no curve, or None if it has one; `InputError` if it is broken."""
    try:
        with quiet(RunWarning):  # one warning covers all runs
            curves_of(RunSet((run,), source), metric=metric)
    except InputError:
        values = run.points[metric].drop_nulls()
        if not any(column in run.points.columns and run.points[column].count() for column in (*UNITS, "step")):
            return _UNCOUNTED
        if len(values) < MINIMUM_POINTS:
            return f"with fewer than {MINIMUM_POINTS} values of '{metric}'"
        if values.min() == values.max():
            return f"with one value of '{metric}' throughout"
        raise
    return None


def _is_readable(runs: RunSet, metric: str) -> bool:
    """Whether the runs of a setup can be read together; a warning says why not."""
    try:
        with quiet(RunWarning):  # given when the runs were read
            curves_of(runs, metric=metric)
    except InputError as error:
        warnings.warn(f"{error} Claims are without these runs.", RunWarning, stacklevel=4)
        return False
    return True


def _values(run: Run, metric: str) -> Array:
    return run.points[metric].drop_nulls().cast(pl.Float64).to_numpy().astype(np.float64)


# What runs share, and what distinguishes them -------------------------------------------------------------------------


def _by_further_keys(runs: Sequence[Run]) -> list[list[Run]]:
    """Group runs by the further keys of their `run.json`, such as a response length.

    A key that differs in every run, such as a note, or that depends on the allocation alone does not separate runs.
    """
    known = {id(run): (*_TABLES, *ingredients(run)) for run in runs}
    flats = [
        {k: v for k, v in _flat(r.settings.compared).items() if k.partition(".")[0] not in known[id(r)]} for r in runs
    ]
    allocations = [(run.settings.problems_per_batch, run.settings.rollouts_per_problem) for run in runs]
    separating = []
    for key in sorted({key for flat in flats for key in flat}):
        values = [_text(flat.get(key)) for flat in flats]
        follows = len(set(zip(allocations, values, strict=True))) == len(set(allocations)) > 1
        if 1 < len(set(values)) < len(runs) and not follows:
            separating.append(key)
    out: dict[str, list[Run]] = {}
    for run, flat in zip(runs, flats, strict=True):
        out.setdefault(_text([flat.get(key) for key in separating]), []).append(run)
    return list(out.values())


def _settings(runs: Sequence[Run]) -> dict[str, Any]:
    """Settings that the runs of a condition share, without the recipe: ingredients and further keys of `run.json`."""
    further = _shared([_flat(run.settings.compared) for run in runs])
    return {k: v for k, v in further.items() if k.partition(".")[0] not in _TABLES} | {
        k: v for k, v in ingredients(runs[0]).items() if not k.startswith("recipe.")
    }


def _shared(tables: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {k: v for k, v in tables[0].items() if all(k in table and table[k] == v for table in tables[1:])}


def _recipe(run: Run) -> dict[str, Any]:
    """A run's recipe: the defaults, updated by the recipe of that name, then by the logged fields."""
    logged = run.settings.recipe or {}
    name = logged.get("name")
    known = RECIPES.get(name, {}) if isinstance(name, str) else {}
    defaults = {key: f.default for key, f in Recipe.model_fields.items()} if logged else {}
    return {**defaults, **known, **{key: value for key, value in logged.items() if key != "name"}}


def _with_recipe(settings: Mapping[str, Any], recipe: Mapping[str, Any]) -> dict[str, Any]:
    return {**{f"recipe.{key}": value for key, value in recipe.items()}, **settings}


def _names(all_settings: Sequence[Mapping[str, Any]], recipes: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names for setups: the problem set and what differs, such as the model, the set's size or recipe fields."""
    flat = [_with_recipe(settings, recipe) for settings, recipe in zip(all_settings, recipes, strict=True)]
    keys = dict.fromkeys(key for each in flat for key in each)
    differing = [k for k in keys if k != "problems" and len({_text(each.get(k)) for each in flat}) > 1]
    # A key that the problem set determines adds nothing to the name.
    shown = [k for k in differing if not _follows(flat, k, "problems")]
    one_set = len({each.get("problems") for each in flat}) == 1
    out: list[str] = []
    for each in flat:
        parts = [str(each.get("problems", "runs"))] if not one_set or not differing else []
        name = " ".join([*parts, *(f"{k.rpartition('.')[2]}={each[k]}" for k in shown if k in each)]) or "runs"
        out.append(name if name not in out else f"{name} #{len(out) + 1}")
    return out


def _follows(flat: Sequence[Mapping[str, Any]], key: str, *others: str) -> bool:
    """Whether the values of other keys determine that of `key`."""
    by_others: dict[str, set[str]] = {}
    for each in flat:
        by_others.setdefault(_text([each.get(other) for other in others]), set()).add(_text(each.get(key)))
    return all(len(values) == 1 for values in by_others.values())


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in table.items():
        out |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return out


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)
