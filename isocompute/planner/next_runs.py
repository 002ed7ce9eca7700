"""Which cells to run next: the ones whose results would improve the decision most for each rollout spent.

A candidate is a setting run to some compute. Its result is a noisy look at the law; the ensemble says how that look
moves the expected value of every allocation at the target budget. With the ensemble's means m, covariance and an
observation noise σ, the expectation after the look is

    m_a + z · cov(a, e) / √(var(e) + σ²),   z standard normal,

and the value of the look is the expected rise of the best of them, E[max_a] - max_a m_a (the knowledge gradient for
correlated beliefs: Frazier, Powell and Dayanik 2009). Further cells are added greedily, with the covariance that is
left after the ones before. The looks are jointly Gaussian by assumption; the ensemble is only used for its moments.

Only settings that may well be the best are looked at (`contenders`). What a look at another would tell of them rests on
how members differ between settings, which beyond the data is mostly a tilt along log n: by that alone the ends of n are
worth most, and they tell less of its middle than it says.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, time
from typing import Any

import numpy as np

from isocompute.core import files
from isocompute.core.allocation import Allocation
from isocompute.core.arrays import Array
from isocompute.core.curve import Curve
from isocompute.core.recipe import make_recipe
from isocompute.planner.decide import Plan
from isocompute.planner.extrapolation import Curves
from isocompute.planner.recipe import ANCHOR, Anchor, RunsRecipe, anchored

__all__ = [
    "Proposal",
    "SHARES",
    "candidate_cells",
    "common_targets",
    "contenders",
    "next_recipe",
    "propose",
    "seeds_of",
    "study_for",
    "study_of",
    "study_text",
]


SHARES = (0.5, 1.0)
"""Candidates run a setting to these shares of the budget. Shorter runs are cheap and say little of its end: with
eighths and quarters of it among them, decisions end where they would without (docs/plan_quality.md)."""
_CHANCE = 0.1
"""Of being the best, from which on a setting is looked at."""
_DRAWS = 1024
_NOTHING = 1e-5
"""An expected gain so small is none."""
_SAME = 1e-9
_LEVELS = 8
"""Numbers of rollouts that are tried as those of a study."""
_WORTH = 1.5
"""A candidate goes at least this much further than the setting's last evaluation, which may lie before its end."""


@dataclass(frozen=True)
class Proposal:
    """A cell to run."""

    allocation: Allocation
    gain: float
    """Expected rise of the chosen allocation's value, in units of the metric, on top of the proposals before it."""
    gain_per_million: float
    """The same for each million rollouts of the cell."""


def common_targets(targets: Sequence[Allocation], bought: Sequence[float]) -> list[list[Allocation]]:
    """The targets in groups that go to the same rollouts, as the cells of a study do.

    `bought` are the rollouts that the budget buys at each target. Where they are the same, so are the targets. Hours or
    money buy more of them at one setting than at another: then, for some of these numbers from the smallest to the
    largest, there is a group of all that can pay it.
    """
    if max(bought) <= min(bought) * (1 + _SAME):
        return [list(targets)]
    every = sorted(set(bought))
    some = np.linspace(0, len(every) - 1, min(len(every), _LEVELS)).round().astype(int)
    return [
        [
            Allocation(target.problems_per_batch, target.rollouts_per_problem, int(level // target.batch_size))
            for target, rollouts in zip(targets, bought, strict=True)
            if rollouts >= level >= target.batch_size
        ]
        for level in (every[i] for i in some.tolist())
    ]


def candidate_cells(
    model: Curves, targets: Sequence[Allocation], *, per_unit: Callable[[Allocation], float]
) -> list[Allocation]:
    """Every target setting, to every share of its budget that goes beyond what was run; and to all of it once more.

    `per_unit` is the law's unit of compute for one rollout.
    """
    out = []
    for target in targets:
        done = model.last(target.problems_per_batch, target.rollouts_per_problem) / per_unit(target)
        for share in SHARES:
            updates = int(target.update_steps * share)
            cell = Allocation(target.problems_per_batch, target.rollouts_per_problem, updates)
            if updates >= 2 and (share == 1.0 or cell.compute > _WORTH * done):
                out.append(cell)
    return out


def contenders(cells: Sequence[Allocation], targets: Sequence[Allocation], values_AB: Array) -> list[Allocation]:
    """The cells of settings that are the best of all targets under a tenth of the members; all where there is none."""
    best_A = np.bincount(values_AB.argmax(axis=0), minlength=len(targets)) >= _CHANCE * values_AB.shape[1]
    among = {(targets[a].problems_per_batch, targets[a].rollouts_per_problem) for a in np.flatnonzero(best_A).tolist()}
    return [cell for cell in cells if (cell.problems_per_batch, cell.rollouts_per_problem) in among] or list(cells)


def propose(
    *, values_AB: Array, looks_EB: Array, cells: Sequence[Allocation], count: int, noise: float, seed: int = 0
) -> list[Proposal]:
    """The best `count` cells, in order, that share one Bp and one compute (so that they are one study).

    `values_AB` are the allocations to decide between at the budget, `looks_EB` what each cell would show, both under
    every member of the ensemble.
    """
    settings = len(values_AB)
    both_QB = np.concatenate([values_AB, looks_EB])
    mean_A = values_AB.mean(axis=1)
    covariance_QQ = np.cov(both_QB)
    known_AZ = np.zeros((settings, _DRAWS))
    rng = np.random.default_rng(seed)
    left = list(range(len(cells)))
    out: list[Proposal] = []
    while left and len(out) < count:
        z_Z = rng.standard_normal(_DRAWS // 2)
        z_Z = np.concatenate([z_Z, -z_Z])
        so_far = float((mean_A[:, None] + known_AZ).max(axis=0).mean())
        best: tuple[float, float, int, Array] | None = None
        for e in left:
            q = settings + e
            spread = np.sqrt(covariance_QQ[q, q] + noise**2)
            moved_AZ = known_AZ + np.outer(covariance_QQ[:settings, q] / spread, z_Z)
            gain = max(0.0, float((mean_A[:, None] + moved_AZ).max(axis=0).mean()) - so_far)
            rate = gain / cells[e].compute
            if best is None or rate > best[0]:
                best = (rate, gain, e, moved_AZ)
        if best is None or best[1] <= _NOTHING:
            break
        rate, gain, e, known_AZ = best
        q = settings + e
        look_Q = covariance_QQ[:, q] / np.sqrt(covariance_QQ[q, q] + noise**2)
        covariance_QQ = covariance_QQ - np.outer(look_Q, look_Q)
        out.append(Proposal(cells[e], gain, rate * 1e6))
        left = [i for i in left if i != e and _one_study(cells[i], cells[e])]
    return out


def _one_study(cell: Allocation, first: Allocation) -> bool:
    """A study is a grid at one budget: the same Bp, another n, the same compute but for rounding to whole updates."""
    same = abs(cell.compute - first.compute) <= max(cell.batch_size, first.batch_size)
    other = cell.rollouts_per_problem != first.rollouts_per_problem
    return cell.problems_per_batch == first.problems_per_batch and same and other


# `plan --next` as a `study.toml`: the proposed cells as a grid at one budget, on the engine of the law's runs.

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
    sets = {curve.recipe_fields.get("problems") for curve in curves}
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
