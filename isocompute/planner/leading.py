"""Of a law of several recipes, the settings of the one to go on with; a law of several sets or models is refused."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np

from isocompute.core.errors import InputError
from isocompute.core.recipe import FOLLOWS_BATCH
from isocompute.law.fits import CurveFit

__all__ = ["check_one_setup", "leading_recipe"]

_SETUP = ("problems", "model", "world", "problem_set")


def check_one_setup(fits: Sequence[CurveFit], name: str) -> None:
    """Rewards of different problem sets or models do not compare."""
    found = dict(map(_setup, fits))
    if len(found) < 2:
        return
    first, second = list(found.values())[:2]
    key = next(key for key in (*first, *second) if first.get(key) != second.get(key))
    raise InputError(
        f"--law {name}: its settings are of {len(found)} setups that differ in '{key}' ({first.get(key)} and "
        f"{second.get(key)}), whose rewards do not compare; fit the runs of one: "
        f"`isocompute fit RUNS --where {key}=… --out law.json`."
    )


def _setup(fit: CurveFit) -> tuple[str, dict[str, object]]:
    about = fit.curves[0].made_of
    said: dict[str, object] = {}
    for key in _SETUP:
        value = about.get(key)
        if isinstance(value, dict):
            said |= {f"{key}.{name}": field for name, field in value.items() if name != "seed"}
        elif value is not None:
            said[key] = value
    return json.dumps(said, sort_keys=True), said


def leading_recipe(fits: Sequence[CurveFit]) -> list[CurveFit]:
    """Of settings that were run with several recipes, those of the recipe that ends highest; else all of them."""
    settings = [fit.setting for fit in fits]
    if len(set(settings)) == len(settings):
        return list(fits)
    by_recipe: dict[str, list[CurveFit]] = {}
    for fit, recipe in zip(fits, _recipes(fits), strict=True):
        by_recipe.setdefault(recipe, []).append(fit)
    return max(by_recipe.values(), key=lambda group: max(float(f.at(np.array([f.last]))[0]) for f in group))


def _recipes(fits: Sequence[CurveFit]) -> list[str]:
    """Each one's recipe as text to compare by, without rates of which every setting has one: they follow its batch."""
    about = [fit.curves[0].made_of for fit in fits]
    fields = [said["recipe"] for said in about if isinstance(said.get("recipe"), dict)]
    if len(fields) < len(fits):
        return [fit.curves[0].recipe for fit in fits]
    settings = [fit.setting for fit in fits]
    for name in FOLLOWS_BATCH:
        rates = [json.dumps(each.get(name)) for each in fields]
        if len(set(zip(settings, rates, strict=True))) == len(set(settings)):
            for each in fields:
                each.pop(name, None)
    return [json.dumps(said, sort_keys=True) for said in about]
