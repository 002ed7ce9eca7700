"""Proposes the cells to run next, and writes the study that runs them: `plan --next`.

A candidate is a setting run to some compute. Its result is a noisy observation, which changes the expected value of
every allocation at the budget. With means m, covariance over the law's draws and observation noise σ, the expectation
after observing e is

    m_a + z · cov(a, e) / √(var(e) + σ²),   z standard normal.

The value of the observation is the expected rise of the best allocation, E[max_a] - max_a m_a (the knowledge gradient
for correlated beliefs: Frazier, Powell and Dayanik 2009). Further cells are added greedily, given the observations
before them. Observations are assumed to be jointly Gaussian, so only the moments of the draws are used.

Only settings that may be the best are candidates. What others reveal about these depends on the covariance between
settings. Beyond the data that is mostly a tilt along log n, which would favour the smallest and largest n. With runs of
the user's own, n beyond those that were run are candidates, too: the posterior has curves for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tomlkit

from isocompute.core.allocation import Allocation
from isocompute.core.arrays import Array
from isocompute.core.curve import Curve
from isocompute.core.errors import InputError
from isocompute.core.recipe import make_recipe
from isocompute.planner.candidates import columns, values
from isocompute.planner.cost.prices import Rates
from isocompute.planner.decide import Plan, allocation_to_json
from isocompute.planner.law import Curves
from isocompute.planner.recipe import RATE_FIELDS, RunsRecipe, anchored
from isocompute.planner.request import Anchor

SHARES = (0.5, 1.0)
"""Candidates run a setting to these shares of the budget.

Shorter runs are cheap but reveal little about the end: eighths and quarters did not improve decisions
(docs/studies/plan-quality.md)."""
LEAST_ROLLOUTS = 2
"""Fewer rollouts of a problem have no advantage."""
_DOUBLINGS = (1, 2)
"""How far beyond the n that were run others are proposed."""
_CHANCE = 0.1
"""A setting is a candidate from this probability of being the best on."""
_NOISE = 0.003
"""Least standard deviation of an observation, from seed and evaluation together."""
_NORMAL_DRAWS = 1024
_NEGLIGIBLE = 1e-5
"""Smaller expected gains count as none."""
_SAME = 1e-9
_LEVELS = 8
"""Number of budgets in rollouts that are tried for a study."""
_WORTH = 1.5
"""A candidate goes further than the setting's last evaluation by at least this factor."""
_FIELDS = ("problems_per_batch", "rollouts_per_problem", "update_steps", "learning_rate", "seed", "folder")
"""Arguments of a trainer's command for a cell, as the command engine names them."""
_TABLES = ("problems", "recipe", "evaluation", "resources", "engine_options")
"""Tables of a study that the next one keeps."""


@dataclass(frozen=True)
class Proposal:
    """A cell to run."""

    allocation: Allocation
    gain: float
    """Expected rise of the chosen allocation's value, in units of the metric, beyond that of earlier proposals."""
    gain_per_million: float
    """The gain per million rollouts of the cell."""


def proposal_to_json(proposal: Proposal) -> dict[str, Any]:
    """The object of a proposed cell in `plan --next --json`."""
    gains = {"gain": proposal.gain, "gain_per_million": proposal.gain_per_million}
    return allocation_to_json(proposal.allocation) | gains


def next_cells(plan: Plan, count: int) -> list[Proposal]:
    """The `count` cells whose results would improve this plan's decision most per rollout.

    If the budget buys settings different numbers of rollouts, these are the cells of the most valuable study.
    """
    law, model = plan.law, plan.law.model
    if not isinstance(model, Curves):
        raise InputError(
            f"--next: {law.name} knows where n* is, not what single settings reach, so it cannot say what a run "
            "would teach; use a law of curves, such as isocompute/bp32-easy or your own runs."
        )

    def rates(a: Allocation) -> Rates:
        return plan.prices.rates(a.problems_per_batch, a.rollouts_per_problem)

    posterior = model.fits[0].posterior
    seed_effect = posterior.seed_effect * posterior.rise
    beyond = beyond_the_grid(plan, model)
    targets, values_AB = [*plan.targets, *beyond], plan.values_AB
    if beyond:
        values_AB = np.concatenate([values_AB, values(law, *columns(law, plan.prices, beyond))])
    studies: list[list[Proposal]] = []
    for group in common_targets(targets, [rates(target).rollouts(plan.budget) for target in targets]):
        cells = candidate_cells(model, group, per_unit=lambda a: law.per_rollout(rates(a)))
        if not cells:
            continue
        cells = likely_best(cells, targets, values_AB)
        noise = float(np.hypot(max(_NOISE, model.noise()), seed_effect))
        observed_EB = values(law, *columns(law, plan.prices, cells))
        studies.append(propose(values_AB=values_AB, observed_EB=observed_EB, cells=cells, count=count, noise=noise))
    return max(studies, key=lambda proposals: sum(p.gain for p in proposals), default=[])


def beyond_the_grid(plan: Plan, model: Curves) -> list[Allocation]:
    """Allocations of the n below and above those that the user ran, within the plan's budget and constraints."""
    if not model.measured:
        return []
    settings, out = model.settings(), []
    for bp in sorted({a.problems_per_batch for a in plan.targets}):
        tried = [n for _, n in settings]
        for n in sorted({min(tried) // 2**k for k in _DOUBLINGS} | {max(tried) * 2**k for k in _DOUBLINGS}):
            rates = plan.prices.rates(bp, n)
            updates = int(rates.rollouts(plan.budget)) // (bp * n) if n >= LEAST_ROLLOUTS else 0
            if updates >= plan.constraints.min_updates + 1 and not plan.constraints.violated_by(bp, n):
                out.append(Allocation(bp, n, updates))
    return out


def common_targets(targets: Sequence[Allocation], bought: Sequence[float]) -> list[list[Allocation]]:
    """The targets in groups of equal rollouts, as in the cells of a study.

    `bought` are the rollouts that the budget buys at each target. With hours or money these differ. Then there is a
    group for some of these numbers, with all targets that can afford it.
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
    """Every target setting, run to each share of its budget beyond what was run, and to the whole budget in any case.

    `per_unit` is the compute of one rollout in the law's unit.
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


def likely_best(cells: Sequence[Allocation], targets: Sequence[Allocation], values_AB: Array) -> list[Allocation]:
    """The cells of settings that are the best of all targets in a tenth of the draws; all cells if there are none."""
    best_A = np.bincount(values_AB.argmax(axis=0), minlength=len(targets)) >= _CHANCE * values_AB.shape[1]
    among = {(targets[a].problems_per_batch, targets[a].rollouts_per_problem) for a in np.flatnonzero(best_A).tolist()}
    return [cell for cell in cells if (cell.problems_per_batch, cell.rollouts_per_problem) in among] or list(cells)


def propose(
    *, values_AB: Array, observed_EB: Array, cells: Sequence[Allocation], count: int, noise: float, seed: int = 0
) -> list[Proposal]:
    """The best `count` cells, in order, that share one Bp and one compute, as the cells of a study do.

    `values_AB` are the values of the allocations to decide between, `observed_EB` those of the cells, in every draw.
    """
    settings = len(values_AB)
    mean_A, covariance_QQ = values_AB.mean(axis=1), np.cov(np.concatenate([values_AB, observed_EB]))
    known_AZ = np.zeros((settings, _NORMAL_DRAWS))
    rng = np.random.default_rng(seed)
    left = list(range(len(cells)))
    out: list[Proposal] = []
    while left and len(out) < count:
        z_Z = rng.standard_normal(_NORMAL_DRAWS // 2)
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
        if best is None or best[1] <= _NEGLIGIBLE:
            break
        rate, gain, e, known_AZ = best
        q = settings + e
        observed_Q = covariance_QQ[:, q] / np.sqrt(covariance_QQ[q, q] + noise**2)
        covariance_QQ = covariance_QQ - np.outer(observed_Q, observed_Q)
        out.append(Proposal(cells[e], gain, rate * 1e6))
        left = [i for i in left if i != e and _one_study(cells[i], cells[e])]
    return out


def _one_study(cell: Allocation, first: Allocation) -> bool:
    """Whether two cells fit into one study: the same Bp, another n, and the same compute up to whole updates."""
    same = abs(cell.compute - first.compute) <= max(cell.batch_size, first.batch_size)
    other = cell.rollouts_per_problem != first.rollouts_per_problem
    return cell.problems_per_batch == first.problems_per_batch and same and other


def next_study(
    plan: Plan, proposals: Sequence[Proposal], *, before: Mapping[str, Any] | None, seed: int, why: str
) -> str:
    """A `study.toml` with the proposed cells as a grid at one budget.

    `before` is the study that made the law's runs. Its engine is kept, and so are the problem sets and the recipe that
    the law was fitted to. Without it, the user fills in the trainer's command. The seed is one that was not run before.
    """
    cells = [p.allocation for p in proposals]
    document = tomlkit.document()
    for line in why.splitlines():
        document.add(tomlkit.comment(line))
    if before is None:
        document.add(
            tomlkit.comment(
                "No study made the law's runs: put your trainer's command and log here (docs/reference/study-toml.md)."
            )
        )
        spec: dict[str, Any] = {
            "engine": "command",
            "recipe": next_recipe(plan),
            "engine_options": {
                "command": ["python", "train.py", *(f"--{name}={{{name}}}" for name in _FIELDS)],
                "logs": {"path": "{folder}/metrics.jsonl", "format": "jsonl"},
            },
        }
    else:
        spec = kept_study(plan, before)
    curves = _curves(plan)
    taken = {*spec.get("seeds", []), *(curve.seed for curve in curves if curve.seed is not None)}
    document.update({"engine": spec["engine"], "seeds": [seed if seed not in taken else max(taken) + 1]})
    document.update({name: _without_none(spec[name]) for name in _TABLES if spec.get(name)})
    document["grid"] = {
        "problems_per_batch": sorted({c.problems_per_batch for c in cells}),
        "rollouts_per_problem": sorted({c.rollouts_per_problem for c in cells}),
    }
    document["budget"] = {"rollouts": max(c.compute for c in cells)}
    return tomlkit.dumps(document)


def _curves(plan: Plan) -> list[Curve]:
    model = plan.law.model
    return [curve for fit in model.fits for curve in fit.curves] if isinstance(model, Curves) else []


def kept_study(plan: Plan, study: Mapping[str, Any]) -> dict[str, Any]:
    """The study restricted to the problem sets and the variant of its recipe that the law was fitted to."""
    curves, runs = _curves(plan), plan.law.runs_recipe
    if not curves:
        return dict(study)
    tables = study.get("problems", [])
    tables = [tables] if isinstance(tables, Mapping) else tables
    sets = {curve.recipe_fields.get("problems") for curve in curves}
    tables = [table for table in tables if table.get("set") in sets] or tables
    variants = study.get("variants", {})  # a run's folder is the name of its variant
    used = [variants.get(name, {}) for name in sorted({curve.name.partition("/")[0] for curve in curves})]
    recipes = [{**study.get("recipe", {}), **variant.get("recipe", {})} for variant in used]
    recipe = recipes[0]
    if any(other != recipe for other in recipes) and runs is not None:  # variants may differ in rates per batch size
        recipe = _recipe_table(runs)
    problems = [{**table, **used[0].get("problems", {})} for table in tables]
    return {**study, "problems": problems, "recipe": _with_anchor(recipe, plan.anchor)}


def next_recipe(plan: Plan) -> dict[str, Any]:
    """The recipe if no study made the law's runs: a published law's own, that of the runs, or the paper's."""
    runs = plan.law.runs_recipe
    own: Mapping[str, Any] = {"name": f"isocompute-{plan.difficulty or 'easy'}"}
    if plan.law.recipe is not None:
        own = plan.law.recipe
    elif runs is not None and runs.fields:
        own = _recipe_table(runs)
    return _with_anchor(own, plan.anchor)


def _recipe_table(runs: RunsRecipe) -> dict[str, Any]:
    plain = make_recipe({}).model_dump()
    kept = {key: value for key, value in runs.fields.items() if value != plain[key] or key in RATE_FIELDS}
    own = {key: "none" if value is None else value for key, value in kept.items()}
    return {"name": "grpo", **own}  # `grpo` is what a recipe without a name is


def _with_anchor(recipe: Mapping[str, Any], anchor: Anchor) -> dict[str, Any]:
    return {**recipe, **anchored(anchor)} if anchor.given else dict(recipe)


def _without_none(value: Any) -> Any:
    """The value without None, since TOML has no null."""
    if isinstance(value, Mapping):
        return {key: _without_none(each) for key, each in value.items() if each is not None}
    return [_without_none(each) for each in value] if isinstance(value, list | tuple) else value
