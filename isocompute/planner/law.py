"""A law as the planner sees it: the value of any allocation under every member of an ensemble of laws.

Two kinds of knowledge give such an ensemble: reward curves of settings (`plan.curves.Curves`: fitted runs, published
curves), and an optimum n* along compute with the reward on its frontier (`OptimumOnly`: what the IsoCompute paper
prints for its joint law). The decision on top of them is the same.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

from isocompute.core import files
from isocompute.core.arrays import Array
from isocompute.core.curve import scale_of
from isocompute.core.errors import InputError
from isocompute.core.formatting import number, plural
from isocompute.core.recipe import FOLLOWS_BATCH
from isocompute.law.fits import CurveFit
from isocompute.law.law import Law, fit_law
from isocompute.law.store import StoredLaw, is_law_file, read_law
from isocompute.law.surface import Surface
from isocompute.law.uncertainty import SEED_MARGIN, difference_error, seed_deviation
from isocompute.planner.budget import Rates
from isocompute.planner.extrapolation import BLIND, SAME, Curves, centred, drift, held
from isocompute.planner.published import entries, published
from isocompute.planner.recipe import RunsRecipe, runs_recipe
from isocompute.planner.stability import Fallen, Falls, Steadiness, falls_of, steadiness

if TYPE_CHECKING:
    from isocompute.data import RunSet

__all__ = [
    "LawSource",
    "Model",
    "OWN",
    "OptimumOnly",
    "PlanningLaw",
    "check_one_setup",
    "is_rate",
    "law_of_runs",
    "leading_recipe",
    "load_law",
    "planning_law",
    "runs_at",
]


OWN = "your runs"
"""Setup of a law that was fitted to the user's runs."""


def is_rate(metric: str) -> bool:
    """Whether a metric is avg@k, best@k or worst@k, whatever it is logged under.

    >>> is_rate("val/avg@4"), is_rate("avg@4/math"), is_rate("reward")
    (True, True, False)
    """
    return any(re.fullmatch(r"(avg|best|worst)@\d+", part) for part in metric.split("/"))


class Model(Protocol):
    """Values of allocations, and which (Bp, n) it knows."""

    def settings(self) -> list[tuple[int, int]]:
        """(Bp, n) that were measured, or that the law names."""
        ...

    def interpolates(self) -> bool:
        """Whether other (Bp, n) can be asked for too."""
        ...

    def begun(self, problems_A: Array, rollouts_A: Array, compute_A: Array) -> Array:
        """Whether the law says anything about an allocation at so little compute."""
        ...

    def values(self, problems_A: Array, rollouts_A: Array, compute_A: Array) -> Array:
        """Allocations × members."""
        ...


@dataclass(frozen=True)
class PlanningLaw:
    """A law with its name, its range and where its uncertainty comes from."""

    name: str
    source: str
    setup: str
    metric: str
    unit: str
    """Of compute: rollouts, tokens or gpu_hours."""
    first: float
    last: float
    """The range of compute that was measured."""
    uncertainty: str
    model: Model
    difficulty: str | None = None
    problems: int | None = None
    """D it was measured on."""
    max_batch: int | None = None
    batch_size: int | None = None
    """The one B that it is of: it says nothing about others."""
    response_tokens: float | None = None
    gpu_hours_per_rollout: float | None = None
    """On the machines that it was measured on."""
    rate_source: str = ""
    recipe: Mapping[str, Any] | None = None
    """Where it was published with another recipe than the IsoCompute paper's."""
    runs_recipe: RunsRecipe | None = None
    """What is known of the recipe of the user's runs; None for a published law."""
    seed_error: float = 0.0
    """What a difference between two settings of one seed each must exceed, since no member shows what another seed
    would give; 0 where every setting has several.
    """
    repeated: frozenset[tuple[int, int]] = frozenset()
    """Settings (Bp, n) of several seeds, whose spread the members show."""
    steadiness: Mapping[tuple[int, int], Steadiness] = field(default_factory=dict)
    """By (Bp, n): which of the user's runs held; empty for a published law."""
    bounded: bool = False
    """Whether its values are rates, which no member can take out of [0, 1]."""

    def values(self, problems_A: Array, rollouts_A: Array, compute_A: Array) -> Array:
        """Allocations × members, as the metric can be."""
        values_AB = self.model.values(problems_A, rollouts_A, compute_A)
        return held(values_AB, 0.0, 1.0) if self.bounded else values_AB

    def seed_spread(self, bp: int, n: int) -> float:
        """Standard deviation of a setting over seeds, where no member shows it; 0 where they do. A law of one Bp stands
        in for others.
        """
        own = {known for known, _ in self.model.settings()}
        bp = next(iter(own)) if len(own) == 1 else bp
        return 0.0 if (bp, n) in self.repeated else seed_deviation(self.seed_error)

    def seed_draws(self, settings: Sequence[tuple[int, int]], members: int) -> Array:
        """What another seed would give of these settings, settings × members, where no member shows it: the 95%
        interval of a difference between two settings of one seed is then at least ± `seed_error`. A setting's draws are
        the same whatever stands beside it: a seed is off at every compute.
        """
        return np.stack(
            [self.seed_spread(bp, n) * centred(np.random.default_rng([bp, n]), (1, members))[0] for bp, n in settings]
        )

    def with_seeds(self, values_AB: Array, settings: Sequence[tuple[int, int]]) -> Array:
        """The values of these settings with what another seed would give."""
        if self.seed_error == 0.0:
            return values_AB
        out_AB = values_AB + self.seed_draws(settings, values_AB.shape[1])
        return held(out_AB, 0.0, 1.0) if self.bounded else out_AB

    def fallen(self, bp: int, n: int, compute: float) -> Fallen | None:
        """How many of the user's runs of a setting had fallen by a compute (in the law's unit); None if not run."""
        known = self.steadiness.get((bp, n))
        return None if known is None else known.by(compute)

    def per_rollout(self, rates: Rates) -> float:
        """A rollout in the law's unit. A law's GPU-hours are those of its own machines: faster GPUs make a rollout
        cheaper, not less worth.
        """
        if self.unit == "gpu_hours" and self.gpu_hours_per_rollout is not None:
            return self.gpu_hours_per_rollout
        return rates.amount(1.0, self.unit)

    def outside(self, compute: float) -> float:
        """How many times outside its range a compute is; 1 inside, above 1 beyond it, below 1 before it."""
        return compute / self.last if compute > self.last else min(1.0, compute / self.first)


@dataclass(frozen=True)
class OptimumOnly:
    """n* along compute (or updates) as a logistic, the frontier's reward, and what a doubling away from n* costs.

    Value = frontier(C) - cost · |log2 n - log2 n*|, plus an effect of Bp that is zero on average. Members differ in n*,
    and the mean of what that costs at n* is added back: the frontier that was measured is the one that is expected.
    """

    slope: tuple[float, float, float, float]
    """(L, k, x0, b) of `log2 n* = L / (1 + exp(-k (x - x0))) + b`."""
    along: str
    """`compute`: x = log10 C; `updates`: x = M (figure 9 of the paper)."""
    grid: tuple[tuple[int, int], ...]
    frontier: Sequence[tuple[float, float]]
    """(compute, reward), interpolated in log compute."""
    base: float
    """The reward before training: the frontier does not start lower."""
    shift_B: Array
    """Doublings by which a member's n* differs."""
    cost_B: Array
    level_B: Array
    problems_effect: dict[int, Array]
    """By Bp: the member's effect of that Bp; between them the nearest one's."""

    def settings(self) -> list[tuple[int, int]]:
        """The grid of the paper's sweep."""
        return list(self.grid)

    def interpolates(self) -> bool:
        """n* is a number: any n can be compared with it."""
        return True

    def begun(self, problems_A: Array, rollouts_A: Array, compute_A: Array) -> Array:
        """Everything the grid holds."""
        del problems_A, rollouts_A
        return np.ones(len(compute_A), dtype=np.bool_)

    def log2_optimum(self, problems_A: Array, rollouts_A: Array, compute_A: Array) -> Array:
        """log2 n* at an allocation's compute."""
        L, k, x0, b = self.slope
        x_A = np.log10(compute_A) if self.along == "compute" else compute_A / (problems_A * rollouts_A)
        return np.asarray(L / (1.0 + np.exp(-np.clip(k * (x_A - x0), -500, 500))) + b)

    def values(self, problems_A: Array, rollouts_A: Array, compute_A: Array) -> Array:
        """Frontier minus what the distance to n* costs; less sure with each doubling outside the frontier's points."""
        off_AB = np.abs(
            np.log2(rollouts_A)[:, None]
            - self.log2_optimum(problems_A, rollouts_A, compute_A)[:, None]
            - self.shift_B[None, :]
        )
        lost_AB = self.cost_B[None, :] * off_AB - float(np.mean(self.cost_B * np.abs(self.shift_B)))
        known = list(self.problems_effect)
        near_A = np.abs(np.log(problems_A[:, None] / np.array(known))).argmin(axis=1)
        effect_AB = np.stack([self.problems_effect[known[i]] for i in near_A])
        drift_AB = drift(
            settings=self.grid,
            problems_A=problems_A,
            rollouts_A=rollouts_A,
            doublings_A=self._doublings(compute_A),
            rise=self.frontier[-1][1] - self.base,
            shares=BLIND,
            members=len(self.shift_B),
            seed=0,
        )
        return np.asarray(self._best(compute_A)[:, None] + self.level_B[None, :] - lost_AB + effect_AB + drift_AB)

    def _best(self, compute_A: Array) -> Array:
        """The frontier: before its first point along the slope of the first two, after its last as high as there."""
        (c0, r0), (c1, r1) = self.frontier[:2]
        c, r = np.array(self.frontier).T
        before_A = r0 + (r1 - r0) * np.log(compute_A / c0) / np.log(c1 / c0)
        inside_A = np.interp(np.log(compute_A), np.log(c), r)
        return np.asarray(np.where(compute_A < c0, np.maximum(before_A, self.base), inside_A))

    def _doublings(self, compute_A: Array) -> Array:
        """How far outside the frontier's points a compute is."""
        first, last = self.frontier[0][0], self.frontier[-1][0]
        out_A = np.log2(np.maximum(np.maximum(compute_A / last, first / compute_A), 1.0))
        return np.asarray(np.where(out_A < np.log2(SAME), 0.0, out_A))


# Of a law of several recipes, the settings of the one to go on with; a law of several sets or models is refused.

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
    about = fit.curves[0].recipe_fields
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
    about = [fit.curves[0].recipe_fields for fit in fits]
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


# The law of a plan from what a user names: a `law.json`, runs to fit on the spot, or a published law.

LawSource: TypeAlias = "PlanningLaw | Law | StoredLaw | RunSet | str | Path"
_FEWEST = 50
_BELOW = 0.01
"""How far below 0 a curve through rates may begin."""
_FITTED = (
    "bootstrap over points, seeds and forms of the curves; beyond the data, over whether the trend at their ends goes "
    "on and what extrapolation got wrong before"
)


def load_law(
    source: LawSource,
    *,
    metric: str | None = None,
    problems_per_batch: int | None = None,
    replicates: int = 1000,
    seed: int = 0,
) -> PlanningLaw:
    """The law that `--law` names.

    `metric` picks the metric of runs that are fitted on the spot; `problems_per_batch` stands in where they do not say
    their Bp.
    """
    if isinstance(source, PlanningLaw):
        return source
    if isinstance(source, Law):
        return planning_law(
            source.settings,
            source.surface,
            name="law",
            source="fitted here",
            metric=source.metric,
            unit=source.unit,
            falls=falls_of(source),
            problems_per_batch=problems_per_batch,
            seed=seed,
        )
    if isinstance(source, StoredLaw):
        return _stored(source, "law.json", problems_per_batch, seed)
    if not isinstance(source, str | Path):
        return law_of_runs(
            _runs(source), metric=metric, problems_per_batch=problems_per_batch, replicates=replicates, seed=seed
        )
    name = str(source)
    if name in {entry.name for entry in entries()}:
        return published(name, replicates=replicates, seed=seed)
    if not files.exists(name):
        if "/" in name and name.split("/", 1)[0] in ("isocompute", "scalerl"):
            return published(name, replicates=replicates, seed=seed)  # says which name was meant
        raise InputError(
            f"--law {name}: neither a file or folder nor a published law; `isocompute plan --laws` lists those, "
            "`isocompute fit RUNS --out law.json` writes one."
        )
    runs = runs_at(name)
    if runs is None:
        _refuse_certain(name)
        return _stored(read_law(name), name, problems_per_batch, seed)
    return law_of_runs(runs, metric=metric, problems_per_batch=problems_per_batch, replicates=replicates, seed=seed)


def runs_at(name: str) -> RunSet | None:
    """The runs that a path is of; None where it is a law's, or nothing is there."""
    if not files.exists(name) or is_law_file(name):
        return None
    from isocompute.data import load

    try:
        return load(name)
    except InputError as error:
        if name.lower().endswith(".json"):
            raise InputError(
                f"--law {name}: neither a law, as isocompute fit RUNS --out law.json writes it, nor runs; {error}"
            ) from error
        raise


def _runs(source: object) -> RunSet:
    from isocompute.data import RunSet
    from isocompute.data.loading import in_memory

    if isinstance(source, RunSet):
        return source
    remedy = in_memory(source) or "isocompute.load reads runs"
    raise InputError(f"a law is given as a name, a path, a Law or a RunSet, not as {type(source).__name__}: {remedy}.")


def law_of_runs(
    runs: RunSet, *, metric: str | None, problems_per_batch: int | None, replicates: int, seed: int
) -> PlanningLaw:
    """Fit runs and plan with what comes out."""
    # with the table library, which a law that is there does not need
    from isocompute.law.curves import choose_metric, curves_of, warn_of_scales
    from isocompute.planner.one_condition import one_condition

    metric = choose_metric(runs, metric)
    runs, chosen = one_condition(runs, metric=metric)
    curves, metric, unit = curves_of(runs, metric=metric)
    warn_of_scales(curves, metric=metric, source=runs.source)
    law = fit_law(curves, metric=metric, unit=unit, replicates=replicates, seed=seed)
    return planning_law(
        law.settings,
        law.surface,
        name=runs.source,
        source=f"fitted to {plural(len(curves), 'run')}{chosen}",
        metric=metric,
        unit=unit,
        falls=falls_of(law),
        problems_per_batch=problems_per_batch,
        seed=seed,
    )


def planning_law(
    settings: Sequence[CurveFit],
    surface: Surface | None,
    *,
    name: str,
    source: str,
    metric: str,
    unit: str,
    falls: Falls,
    problems_per_batch: int | None = None,
    seed: int = 0,
    uncertainty: str = _FITTED,
) -> PlanningLaw:
    """A law of fitted settings as the planner sees it; `falls` are the runs that fell for good (`falls_of`)."""
    if unit == "steps":
        raise InputError(
            f"--law {name}: it counts compute in steps, which cost differently at different n; say Bp and n of its "
            "runs: isocompute fit RUNS --problems-per-batch Bp --rollouts-per-problem n --out law.json, then --law "
            "law.json."
        )
    told = [fit for fit in settings if fit.setting[1] is not None]
    check_one_setup(told, name)
    known = leading_recipe(told)
    if len(known) < len(told):
        surface = None  # it goes through the settings of all recipes
        source += f", {len(known)} of {len(told)} settings: those of the recipe that reached highest"
    if not known:
        raise InputError(
            f"--law {name}: no run says its rollouts per problem; say n: isocompute fit RUNS --rollouts-per-problem n "
            "--out law.json, then --law law.json."
        )
    if any(fit.setting[0] is None for fit in known) and problems_per_batch is None:
        raise InputError(f"--law {name}: its runs do not say their problems per batch; say --problems-per-batch 32.")
    _check_spread(known, name)
    alone = [fit for fit in known if len(fit.curves) == 1]
    error = _seed_error(known)
    whose = "settings have" if len(alone) == len(known) else f"{len(alone)} of {len(known)} settings have"
    steady = steadiness(known, falls, problems_per_batch)
    fallen = frozenset(key for key, runs in steady.items() if not runs.held_to)
    return PlanningLaw(
        name=name,
        source=source,
        setup=OWN,
        metric=metric,
        unit=unit,
        first=min(fit.first for fit in known),
        last=max(fit.last for fit in known),
        uncertainty=uncertainty + (f"; {whose} one seed, for which ±{number(error)} is counted" if error else ""),
        seed_error=error,
        repeated=_keys(known, problems_per_batch) - _keys(alone, problems_per_batch),
        model=Curves(tuple(known), surface, problems_per_batch, seed, fallen),
        steadiness=steady,
        runs_recipe=runs_recipe([curve for fit in known for curve in fit.curves]),
        bounded=is_rate(metric) and _in_unit(known),
    )


def _stored(law: StoredLaw, name: str, problems_per_batch: int | None, seed: int) -> PlanningLaw:
    return planning_law(
        law.settings,
        law.surface,
        name=name,
        source=f"{name}, {plural(len(law.settings), 'setting')}",
        metric=str(law.summary["metric"]),
        unit=str(law.summary["unit"]),
        falls=falls_of(law),
        problems_per_batch=problems_per_batch,
        seed=seed,
    )


def _keys(fits: Sequence[CurveFit], problems_per_batch: int | None) -> frozenset[tuple[int, int]]:
    """(Bp, n) of settings that say their n; runs that do not say their Bp have the one that was given."""
    return frozenset((fit.setting[0] or problems_per_batch or 0, fit.setting[1] or 0) for fit in fits)


def _in_unit(fits: Sequence[CurveFit]) -> bool:
    """Whether values lie between 0 and 1, as those of an avg@k do that is a mean of rewards 0 and 1: one of rewards -1
    and 1 has the same name. Fitted curves may lie a little below 0 where a run begins there.
    """
    first_S, last_S = np.array([fit.at(np.array([fit.first, fit.last])) for fit in fits]).T
    return bool(min(first_S.min(), last_S.min()) >= -_BELOW and last_S.max() <= 1.0)


def _seed_error(fits: Sequence[CurveFit]) -> float:
    """95% half-width of a difference between settings of one seed: by the seeds of the others, and where no setting
    has several, `compare`'s least error. 0 where every setting has several.
    """
    alone = [fit.seed_deviation for fit in fits if len(fit.curves) == 1]
    if not alone:
        return 0.0
    if max(alone) > 0.0:
        return difference_error(max(alone))
    # A stored law has the curves' names, not their points.
    return SEED_MARGIN * scale_of(np.concatenate([fit.at(np.array([fit.first, fit.last])) for fit in fits]))


def _check_spread(fits: Sequence[CurveFit], name: str) -> None:
    members = min(len(fit.ensemble.base_B) for fit in fits)
    if members < _FEWEST or len({len(fit.ensemble.base_B) for fit in fits}) > 1:
        raise InputError(
            f"--law {name}: it has {members} bootstrap replicates, a decision needs {_FEWEST} of every setting; fit "
            "again with --replicates 1000."
        )
    if all(float(np.ptp(fit.ensemble.at(np.array([fit.last]))[:, 0])) == 0.0 for fit in fits):
        raise InputError(f"--law {name}: it has no uncertainty, its replicates are all the same; fit the runs again.")


def _refuse_certain(name: str) -> None:
    """A law that was printed, or stripped of its replicates, cannot say how sure it is."""
    try:
        data = json.loads(files.read_bytes(name))
    except ValueError:
        return  # read_law says what is wrong with it
    if not isinstance(data, dict):
        return
    settings = data.get("settings")
    printed = "curves" in data and settings is None
    stripped = isinstance(settings, list) and any(isinstance(s, dict) and "ensemble" not in s for s in settings)
    if printed or stripped:
        raise InputError(
            f"--law {name}: a law without uncertainty ({'what fit --json prints' if printed else 'no replicates'}); "
            f"write it with isocompute fit RUNS --out {name}."
        )
