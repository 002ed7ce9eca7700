"""`plan --next` as a `study.toml`: the proposed cells as a grid at one budget, on the engine of the law's runs.

It goes on with what the plan is of: the problem sets and the variant of the recipe that it kept, and the learning rate
that the user anchored.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Collection, Mapping, Sequence
from datetime import date, time
from typing import Any

from isocompute.core import files
from isocompute.core.curve import Curve
from isocompute.core.recipe import make_recipe
from isocompute.planner.advised_recipe import Anchor, anchored
from isocompute.planner.curves import Curves
from isocompute.planner.next_cells import Proposal
from isocompute.planner.planner import Plan
from isocompute.planner.runs_recipe import ANCHOR, RunsRecipe

__all__ = ["next_recipe", "seeds_of", "study_for", "study_of", "study_text"]

_TOLD = ("problems_per_batch", "rollouts_per_problem", "update_steps", "learning_rate", "seed", "folder")
"""What a trainer has to know of a cell, by the names of the command engine."""
_BARE = re.compile(r"[A-Za-z0-9_-]+")
"""A name that TOML takes without quotes."""
_TABLES = ("problems", "recipe", "evaluation", "resources", "engine_options")


def study_of(source: str) -> dict[str, Any] | None:
    """The spec of the study that a folder of runs is, or None where it is none."""
    path = files.join(source, "study.toml")
    if not files.is_folder(source) or not files.exists(path):
        return None
    from isocompute.sweep.spec import parse_spec

    data = files.read_bytes(path)
    seeds = parse_spec(data, name=path).seeds  # says what is wrong with it
    return {**tomllib.loads(data.decode()), "seeds": seeds}


def seeds_of(plan: Plan) -> set[int]:
    """Those of the runs that the law was fitted to, where they say them."""
    model = plan.law.model
    curves = [curve for fit in model.fits for curve in fit.curves] if isinstance(model, Curves) else []
    return {curve.seed for curve in curves if curve.seed is not None}


def study_for(plan: Plan, source: str) -> dict[str, Any] | None:
    """The study that a folder of runs is, with those of its tables that the plan's law was fitted to."""
    study = study_of(source)
    if study is None or not isinstance(plan.law.model, Curves):
        return study
    curves = [curve for fit in plan.law.model.fits for curve in fit.curves]
    kept = _kept(study, curves, plan.law.runs_recipe)
    return kept | {"recipe": _with_anchor(kept["recipe"], plan.anchor)}


def _kept(study: Mapping[str, Any], curves: Sequence[Curve], runs: RunsRecipe | None) -> dict[str, Any]:
    """A study with the problem sets of these runs alone, and with their variant as its recipe."""
    tables = study.get("problems", [])
    tables = [tables] if isinstance(tables, Mapping) else tables
    sets = {curve.made_of.get("problems") for curve in curves}
    tables = [table for table in tables if table.get("set") in sets] or tables
    every = study.get("variants", {})  # each in the folder of its name, the recipe itself in another
    used = [every.get(name, {}) for name in sorted({curve.name.partition("/")[0] for curve in curves})]
    recipes = [{**study.get("recipe", {}), **variant.get("recipe", {})} for variant in used]
    recipe = recipes[0]
    if any(other != recipe for other in recipes) and runs is not None:  # in rates that follow the batch
        recipe = _of_runs(runs)
    return {
        **study,
        "problems": [{**table, **used[0].get("problems", {})} for table in tables],
        "recipe": recipe,
    }


def next_recipe(plan: Plan) -> dict[str, Any]:
    """Where no study made the law's runs: the recipe of a published law that brings one, what the runs were trained
    with as far as they say and agree, or the paper's.
    """
    runs = plan.law.runs_recipe
    if plan.law.recipe is not None:
        own = dict(plan.law.recipe)
    elif runs is not None and runs.fields:
        own = _of_runs(runs)
    else:
        own = {"name": f"isocompute-{plan.difficulty or 'easy'}"}
    return _with_anchor(own, plan.anchor)


def _of_runs(runs: RunsRecipe) -> dict[str, Any]:
    plain = make_recipe({}).model_dump()
    kept = {key: value for key, value in runs.fields.items() if value != plain[key] or key in ANCHOR}
    own = {key: "none" if value is None else value for key, value in kept.items()}
    return {"name": "grpo", **own}  # `grpo` is what a recipe without a name is


def _with_anchor(recipe: Mapping[str, Any], anchor: Anchor) -> dict[str, Any]:
    return {**recipe, **anchored(anchor)} if anchor.given else dict(recipe)


def study_text(
    proposals: Sequence[Proposal],
    *,
    before: Mapping[str, Any] | None,
    recipe: Mapping[str, Any],
    seed: int,
    why: str,
    seen: Collection[int] = (),
) -> str:
    """The file. `before` is the study whose engine and tables are kept; without one, the command is left open.

    A seed that was `seen`, or is the study's, is not run again: the next one is.
    """
    cells = [p.allocation for p in proposals]
    spec = dict(before or {})
    lines = [f"# {line}" for line in why.splitlines()]
    if before is None:
        lines += ["# No study made the law's runs: put your trainer's command and log here (docs/study.md)."]
        spec = {
            "engine": "command",
            "recipe": dict(recipe),
            "engine_options": {
                "command": ["python", "train.py", *(f"--{name}={{{name}}}" for name in _TOLD)],
                "logs": {"path": "{folder}/metrics.jsonl", "format": "jsonl"},
            },
        }
    taken = {*spec.get("seeds", []), *seen}
    fresh = seed if seed not in taken else max(taken) + 1
    lines += [f"engine = {json.dumps(spec['engine'])}", f"seeds = [{fresh}]", ""]
    for name in _TABLES:
        if spec.get(name):
            lines += _table(name, spec[name])
    lines += [
        "[grid]",
        f"problems_per_batch = {json.dumps(sorted({c.problems_per_batch for c in cells}))}",
        f"rollouts_per_problem = {json.dumps(sorted({c.rollouts_per_problem for c in cells}))}",
        "",
        "[budget]",
        f"rollouts = {max(c.compute for c in cells)}",
    ]
    return "\n".join(lines) + "\n"


def _table(name: str, table: Any) -> list[str]:
    if isinstance(table, list):
        return [line for each in table for line in [f"[[{name}]]", *_fields(each), ""]]
    return [f"[{name}]", *_fields(table), ""]


def _fields(table: Mapping[str, Any]) -> list[str]:
    return [f"{_key(key)} = {_value(value)}" for key, value in table.items() if value is not None]


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else json.dumps(name)


def _value(value: Any) -> str:
    """JSON's strings, finite numbers, booleans and lists are TOML's too; tables are written inline."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items() if v is not None) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_value(v) for v in value) + "]"
    if isinstance(value, date | time):
        return value.isoformat()
    return str(value) if isinstance(value, float) else json.dumps(value)
