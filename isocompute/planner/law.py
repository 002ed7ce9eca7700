"""The law as the planner uses it: draws of any allocation's reward at any compute, and the collapse rate of settings.

A law is fitted to runs before they collapse, so a plan expects the reward of the best checkpoint. Settings whose runs
often collapse look as good by that as others, so a plan also has their collapse rates.

Runs end at different computes, and a run that ended healthy might have collapsed later. So the share of runs that
collapsed by a compute is the Kaplan-Meier estimate (J. Am. Stat. Assoc. 53, 1958). Its error follows from the effective
number of fully observed runs (Peto et al., Br. J. Cancer 35, 1977).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from isocompute.core.arrays import Array
from isocompute.core.curve import Setting, scale_of
from isocompute.core.errors import InputError
from isocompute.core.formatting import number, plural
from isocompute.core.recipe import FOLLOWS_BATCH
from isocompute.law.fits import CurveFit
from isocompute.law.law import Law
from isocompute.law.store import StoredLaw
from isocompute.law.uncertainty import SEED_MARGIN, difference_error, seed_deviation
from isocompute.planner.cost.prices import Rates
from isocompute.planner.extrapolation import (
    SAME,
    WITHOUT_TREND,
    Curves,
    centered,
    clip_keeping_mean,
    extrapolation_noise,
)
from isocompute.planner.recipe import RunsRecipe, runs_recipe

LEVEL = 0.8
"""Coverage of the interval of a collapse rate."""
_JEFFREYS = 0.5
_ABOUT = 1.1
"""A run that ends within this factor of a compute counts as run to it."""
_SAME_SHARE = 0.005
"""Shares that differ by less are equal in whole percent."""


@dataclass(frozen=True)
class CollapseRate:
    """How many runs of a setting had collapsed by a compute."""

    runs: int
    """Runs that were observed until the first collapse, or without one until the compute."""
    collapsed: int
    first: float | None
    """Compute after which the first one collapsed."""
    share: float
    """Kaplan-Meier estimate of the share that has collapsed."""
    effective: float
    """Number of fully observed runs that would carry as much information (Peto)."""

    def __str__(self) -> str:
        return f"{self.collapsed} of {self.runs}" + ("" if self.plain else f" ({self.share:.0%})")

    @property
    def plain(self) -> bool:
        """Whether the share is the ratio of the two counts."""
        return abs(self.share - self.collapsed / self.runs) < _SAME_SHARE

    def interval(self) -> tuple[float, float]:
        """Central 80% interval of the collapse rate (Jeffreys; open-ended where no run or every run collapsed)."""
        from scipy.special import betaincinv

        a, b = self.effective * self.share + _JEFFREYS, self.effective * (1 - self.share) + _JEFFREYS
        low, high = (float(betaincinv(a, b, q)) for q in ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
        return (0.0 if self.collapsed == 0 else low, 1.0 if self.share == 1.0 else high)


@dataclass(frozen=True)
class Survival:
    """Compute at which each collapsed run of a setting collapsed, and at which each healthy run ended."""

    collapsed_after: tuple[float, ...]
    healthy_to: tuple[float, ...]

    def by(self, compute: float) -> CollapseRate | None:
        """The collapse rate by this compute or by the end of the longest run; None if none collapsed or went so far."""
        early = sorted(after for after in self.collapsed_after if after < compute)
        last = max((*self.collapsed_after, *self.healthy_to))
        if not early and compute > last * _ABOUT:
            return None
        far = min(compute, last)
        reached = sum(after >= compute for after in self.collapsed_after)
        reached += sum(end >= far / _ABOUT for end in self.healthy_to)
        if not early:
            return CollapseRate(reached, 0, None, 0.0, float(reached))
        censored = [end for end in self.healthy_to if end < far / _ABOUT]
        healthy, effective = 1.0, 0.0
        for at in sorted(set(early)):
            at_risk = reached + sum(after >= at for after in early) + sum(end >= at for end in censored)
            effective = at_risk / healthy  # kept if no run is left after the last collapse
            healthy *= 1 - early.count(at) / at_risk
        if reached:
            effective = reached / healthy
        runs = reached + len(early) + sum(end >= early[0] for end in censored)
        return CollapseRate(runs, len(early), early[0], round(1 - healthy, 12), effective)


def survival_by_setting(
    law: Law | StoredLaw, fits: Sequence[CurveFit], problems_per_batch: int | None
) -> dict[tuple[int, int], Survival]:
    """Collapses of the runs of these settings by (Bp, n); `problems_per_batch` fills in a missing Bp."""

    def key(setting: Setting) -> tuple[int, int]:
        return int(setting[0] or problems_per_batch or 1), int(setting[1] or 1)

    if isinstance(law, Law):
        after = {run.curve.name: run.collapse_after for run in law.runs if run.collapse_after is not None}
        ends = {run.curve.name: float(run.curve.compute_C[-1]) for run in law.runs}
        early = [(key(lost.curve.setting), lost.collapse_after) for lost in law.early_collapses]
    else:
        curves, lost_early = law.summary.get("curves", []), law.summary.get("early_falls", [])
        after = {str(c.get("run")): float(c["falls_after"]) for c in curves if c.get("falls_after") is not None}
        ends = {str(c.get("run")): float(c["last"]) for c in curves if c.get("last") is not None}
        settings = [(e["problems_per_batch"], e["rollouts_per_problem"]) for e in lost_early]
        early = [(key(of), float(e["falls_after"])) for of, e in zip(settings, lost_early, strict=True)]
    runs: dict[tuple[int, int], list[tuple[str, float]]] = {}
    for fit in fits:
        # Laws stored by early versions lack the runs' ends, so each run counts to the end of its setting.
        runs.setdefault(key(fit.setting), []).extend((c.name, ends.get(c.name, fit.last)) for c in fit.curves)
    return {
        of: Survival(
            tuple(sorted([after[name] for name, _ in named if name in after] + [at for k, at in early if k == of])),
            tuple(sorted(end for name, end in named if name not in after)),
        )
        for of, named in runs.items()
    }


OWN = "your runs"
"""Setup of a law that was fitted to the user's runs."""
_FEWEST = 50
"""Least number of bootstrap replicates for a decision."""
_BELOW = 0.01
"""A curve through rates may begin this far below 0."""
_SETUP = ("problems", "model", "world", "problem_set")
"""Settings that must agree between the runs of a law."""


def is_rate(metric: str) -> bool:
    """Whether a metric is avg@k, best@k or worst@k, whatever it is logged under.

    >>> is_rate("val/avg@4"), is_rate("avg@4/math"), is_rate("reward")
    (True, True, False)
    """
    return any(re.fullmatch(r"(avg|best|worst)@\d+", part) for part in metric.split("/"))


class LawModel(Protocol):
    """Values of allocations, and the (Bp, n) for which it has them."""

    def settings(self) -> list[tuple[int, int]]:
        """The (Bp, n) that were measured or published."""
        ...

    def interpolates(self) -> bool:
        """Whether it also has values of (Bp, n) between these."""
        ...

    def begun(self, problems_A: Array, rollouts_A: Array, compute_A: Array) -> Array:
        """Whether the law covers each allocation at this compute, or begins later."""
        ...

    def values(self, problems_A: Array, rollouts_A: Array, compute_A: Array) -> Array:
        """Allocations × draws."""
        ...


@dataclass(frozen=True)
class PlanningLaw:
    """A law with its name, its validity range and where its uncertainty comes from."""

    name: str
    source: str
    setup: str
    metric: str
    unit: str
    """Unit of compute: rollouts, tokens or gpu_hours."""
    first: float
    last: float
    """End of the measured range of compute, which begins at `first`."""
    uncertainty: str
    model: LawModel
    difficulty: str | None = None
    problems: int | None = None
    """D, the size of the problem set it was measured on."""
    max_batch: int | None = None
    batch_size: int | None = None
    """The only B it holds for, if it was measured at a single one."""
    response_tokens: float | None = None
    gpu_hours_per_rollout: float | None = None
    """GPU-hours of a rollout on the machines it was measured on."""
    rate_source: str = ""
    recipe: Mapping[str, Any] | None = None
    """The recipe it was published with; None for the IsoCompute paper's."""
    runs_recipe: RunsRecipe | None = None
    """The recipe that the user's runs share; None for a published law."""
    seed_error: float = 0.0
    """Least significant difference between two settings with one seed each, whose draws contain no seed effect.

    It is 0 if every setting has several seeds.
    """
    repeated: frozenset[tuple[int, int]] = frozenset()
    """Settings (Bp, n) with several seeds, whose draws contain the seed effect."""
    survival: Mapping[tuple[int, int], Survival] = field(default_factory=dict)
    """Collapses of the user's runs by (Bp, n); empty for a published law."""
    bounded: bool = False
    """Whether its values are rates in [0, 1]."""

    def values(self, problems_A: Array, rollouts_A: Array, compute_A: Array) -> Array:
        """Allocations × draws, within the metric's bounds."""
        values_AB = self.model.values(problems_A, rollouts_A, compute_A)
        return clip_keeping_mean(values_AB, 0.0, 1.0) if self.bounded else values_AB

    def only_problems_per_batch(self) -> int | None:
        """The Bp of a law that was measured at a single one; else None."""
        found = {bp for bp, _ in self.model.settings()}
        return next(iter(found)) if len(found) == 1 else None

    def seed_deviation(self, bp: int, n: int) -> float:
        """Standard deviation of a setting over seeds, or 0 if the setting's draws contain it."""
        bp = self.only_problems_per_batch() or bp  # a law of one Bp is used for others too
        return 0.0 if (bp, n) in self.repeated else seed_deviation(self.seed_error)

    def seed_draws(self, settings: Sequence[tuple[int, int]], draws: int) -> Array:
        """Seed effects of these settings, settings × draws; 0 for settings whose draws contain them.

        They depend on the setting alone, since a seed deviates in the same direction at every compute.
        """
        return np.stack(
            [self.seed_deviation(bp, n) * centered(np.random.default_rng([bp, n]), (1, draws))[0] for bp, n in settings]
        )

    def with_seeds(self, values_AB: Array, settings: Sequence[tuple[int, int]]) -> Array:
        """The values of these settings plus the seed effects that the draws do not contain."""
        if self.seed_error == 0.0:
            return values_AB
        out_AB = values_AB + self.seed_draws(settings, values_AB.shape[1])
        return clip_keeping_mean(out_AB, 0.0, 1.0) if self.bounded else out_AB

    def collapse_rate(self, bp: int, n: int, compute: float) -> CollapseRate | None:
        """Collapse rate of the user's runs of a setting by a compute (in the law's unit); None if it was not run."""
        known = self.survival.get((bp, n))
        return None if known is None else known.by(compute)

    def per_rollout(self, rates: Rates) -> float:
        """Compute of one rollout in the law's unit.

        A law's GPU-hours are those of its own machines: on faster GPUs a rollout costs less and teaches as much.
        """
        if self.unit == "gpu_hours" and self.gpu_hours_per_rollout is not None:
            return self.gpu_hours_per_rollout
        return rates.amount(1.0, self.unit)

    def outside(self, compute: float) -> float:
        """Ratio of a compute to the range's nearest end: above 1 past it, below 1 before its start, 1 inside."""
        return compute / self.last if compute > self.last else min(1.0, compute / self.first)


@dataclass(frozen=True)
class OptimumOnly:
    """A law of n* along compute (or updates) as a logistic, the frontier's reward, and the cost of other n.

    Value = frontier(C) - cost · |log2 n - log2 n*|, plus an effect of Bp that is zero on average. Draws differ in n*.
    The mean cost of that at n* is added back, so that the expected value there is the measured frontier.
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
    """Doublings by which n* of each draw differs."""
    cost_B: Array
    level_B: Array
    problems_effect: dict[int, Array]
    """Draws of the effect of each Bp; other Bp have that of the nearest."""

    def settings(self) -> list[tuple[int, int]]:
        """The grid of the paper's sweep."""
        return list(self.grid)

    def interpolates(self) -> bool:
        """Any n can be compared with n*."""
        return True

    def begun(self, problems_A: Array, rollouts_A: Array, compute_A: Array) -> Array:
        """True: the law covers every allocation in the grid."""
        del problems_A, rollouts_A
        return np.ones(len(compute_A), dtype=np.bool_)

    def log2_optimum(self, problems_A: Array, rollouts_A: Array, compute_A: Array) -> Array:
        """log2 n* at an allocation's compute."""
        L, k, x0, b = self.slope
        x_A = np.log10(compute_A) if self.along == "compute" else compute_A / (problems_A * rollouts_A)
        return np.asarray(L / (1.0 + np.exp(-np.clip(k * (x_A - x0), -500, 500))) + b)

    def values(self, problems_A: Array, rollouts_A: Array, compute_A: Array) -> Array:
        """Allocations × draws: the frontier minus the cost of the distance to n*, with noise outside the frontier."""
        off_AB = np.abs(
            np.log2(rollouts_A)[:, None]
            - self.log2_optimum(problems_A, rollouts_A, compute_A)[:, None]
            - self.shift_B[None, :]
        )
        lost_AB = self.cost_B[None, :] * off_AB - float(np.mean(self.cost_B * np.abs(self.shift_B)))
        known = list(self.problems_effect)
        near_A = np.abs(np.log(problems_A[:, None] / np.array(known))).argmin(axis=1)
        effect_AB = np.stack([self.problems_effect[known[i]] for i in near_A])
        noise_AB = extrapolation_noise(
            settings=self.grid,
            problems_A=problems_A,
            rollouts_A=rollouts_A,
            doublings_A=self._doublings(compute_A),
            rise=self.frontier[-1][1] - self.base,
            shares=WITHOUT_TREND,
            draws=len(self.shift_B),
            seed=0,
        )
        return np.asarray(self._best(compute_A)[:, None] + self.level_B[None, :] - lost_AB + effect_AB + noise_AB)

    def _best(self, compute_A: Array) -> Array:
        """The frontier, extended by the slope of its first two points before them, and constant after its last."""
        (c0, r0), (c1, r1) = self.frontier[:2]
        c, r = np.array(self.frontier).T
        before_A = r0 + (r1 - r0) * np.log(compute_A / c0) / np.log(c1 / c0)
        inside_A = np.interp(np.log(compute_A), np.log(c), r)
        return np.asarray(np.where(compute_A < c0, np.maximum(before_A, self.base), inside_A))

    def _doublings(self, compute_A: Array) -> Array:
        """Doublings by which each compute lies outside the frontier's points."""
        first, last = self.frontier[0][0], self.frontier[-1][0]
        out_A = np.log2(np.maximum(np.maximum(compute_A / last, first / compute_A), 1.0))
        return np.asarray(np.where(out_A < np.log2(SAME), 0.0, out_A))


def planning_law(
    law: Law | StoredLaw,
    *,
    name: str = "law",
    source: str | None = None,
    problems_per_batch: int | None = None,
    seed: int = 0,
) -> PlanningLaw:
    """A fitted law as the planner uses it; `problems_per_batch` fills in a missing Bp."""
    fresh = isinstance(law, Law)
    metric = law.metric if isinstance(law, Law) else str(law.summary["metric"])
    unit = law.unit if isinstance(law, Law) else str(law.summary["unit"])
    source = source or ("fitted here" if fresh else f"{name}, {plural(len(law.settings), 'setting')}")
    if unit == "steps":
        raise InputError(
            f"--law {name}: it counts compute in steps, which cost differently at different n; say Bp and n of its "
            "runs: isocompute fit RUNS --problems-per-batch Bp --rollouts-per-problem n --out law.json, then --law "
            "law.json."
        )
    with_n, surface = [fit for fit in law.settings if fit.setting[1] is not None], law.surface
    _check_one_setup(with_n, name)
    fits = leading_recipe(with_n)
    if len(fits) < len(with_n):
        surface = None  # it was fitted to the settings of all recipes
        source += f", {len(fits)} of {len(with_n)} settings: those of the recipe that reached highest"
    if not fits:
        raise InputError(
            f"--law {name}: no run says its rollouts per problem; say n: isocompute fit RUNS --rollouts-per-problem n "
            "--out law.json, then --law law.json."
        )
    if any(fit.setting[0] is None for fit in fits) and problems_per_batch is None:
        raise InputError(f"--law {name}: its runs do not say their problems per batch; say --problems-per-batch 32.")
    _check_draws(fits, name)
    alone = [fit for fit in fits if len(fit.curves) == 1]
    error = _seed_error(alone, fits)
    whose = "settings have" if len(alone) == len(fits) else f"{len(alone)} of {len(fits)} settings have"
    survival = survival_by_setting(law, fits, problems_per_batch)
    return PlanningLaw(
        name=name,
        source=source,
        setup=OWN,
        metric=metric,
        unit=unit,
        first=min(fit.first for fit in fits),
        last=max(fit.last for fit in fits),
        uncertainty="bootstrap over points, seeds and forms of the curves; beyond the data, over whether the trend at "
        "their ends goes on and what extrapolation got wrong before"
        + (f"; {whose} one seed, for which ±{number(error)} is counted" if error else ""),
        seed_error=error,
        repeated=_keys(fits, problems_per_batch) - _keys(alone, problems_per_batch),
        model=Curves(
            tuple(fits),
            surface,
            problems_per_batch,
            seed,
            frozenset(key for key, runs in survival.items() if not runs.healthy_to),
        ),
        survival=survival,
        runs_recipe=runs_recipe([curve for fit in fits for curve in fit.curves]),
        bounded=is_rate(metric) and _in_unit_interval(fits),
    )


def leading_recipe(fits: Sequence[CurveFit]) -> list[CurveFit]:
    """If settings were run with several recipes, those of the recipe that ends highest; else all of them."""
    if len({fit.setting for fit in fits}) == len(fits):
        return list(fits)
    by_recipe: dict[str, list[CurveFit]] = {}
    for fit, recipe in zip(fits, _recipes(fits), strict=True):
        by_recipe.setdefault(recipe, []).append(fit)
    return max(by_recipe.values(), key=lambda group: max(float(f.at(np.array([f.last]))[0]) for f in group))


def _recipes(fits: Sequence[CurveFit]) -> list[str]:
    """Each setting's recipe as text to compare, without rates that differ only because they follow the batch size."""
    logged = [fit.curves[0].recipe_fields for fit in fits]
    fields = [each["recipe"] for each in logged if isinstance(each.get("recipe"), dict)]
    if len(fields) < len(fits):
        return [fit.curves[0].recipe for fit in fits]
    settings = [fit.setting for fit in fits]
    for name in FOLLOWS_BATCH:
        rates = [json.dumps(each.get(name)) for each in fields]
        if len(set(zip(settings, rates, strict=True))) == len(set(settings)):
            for each in fields:
                each.pop(name, None)
    return [json.dumps(each, sort_keys=True) for each in logged]


def _check_one_setup(fits: Sequence[CurveFit], name: str) -> None:
    """Raise if the settings have different problem sets or models, whose rewards cannot be compared."""
    setups: dict[str, dict[str, object]] = {}
    for fit in fits:
        logged, setup = fit.curves[0].recipe_fields, dict[str, object]()
        for key in _SETUP:
            value = logged.get(key)
            if isinstance(value, dict):
                setup |= {f"{key}.{part}": of for part, of in value.items() if part != "seed"}
            elif value is not None:
                setup[key] = value
        setups[json.dumps(setup, sort_keys=True)] = setup
    if len(setups) < 2:
        return
    first, second = list(setups.values())[:2]
    key = next(key for key in (*first, *second) if first.get(key) != second.get(key))
    raise InputError(
        f"--law {name}: its settings are of {len(setups)} setups that differ in '{key}' ({first.get(key)} and "
        f"{second.get(key)}), whose rewards do not compare; fit the runs of one: "
        f"`isocompute fit RUNS --where {key}=… --out law.json`."
    )


def _check_draws(fits: Sequence[CurveFit], name: str) -> None:
    """Raise if the law has too few bootstrap draws, or draws that are all the same."""
    draws = min(len(fit.ensemble.base_B) for fit in fits)
    if draws < _FEWEST or len({len(fit.ensemble.base_B) for fit in fits}) > 1:
        raise InputError(
            f"--law {name}: it has {draws} bootstrap replicates, a decision needs {_FEWEST} of every setting; fit "
            "again with --replicates 1000."
        )
    if all(float(np.ptp(fit.ensemble.at(np.array([fit.last]))[:, 0])) == 0.0 for fit in fits):
        raise InputError(f"--law {name}: it has no uncertainty, its replicates are all the same; fit the runs again.")


def _keys(fits: Sequence[CurveFit], problems_per_batch: int | None) -> frozenset[tuple[int, int]]:
    return frozenset((fit.setting[0] or problems_per_batch or 0, fit.setting[1] or 0) for fit in fits)


def _seed_error(alone: Sequence[CurveFit], fits: Sequence[CurveFit]) -> float:
    """95% half-width of a difference between settings with one seed; 0 if there are none.

    It follows from the seeds of the other settings or, if none has several, from ScaleRL's margin.
    """
    deviation = max((fit.seed_deviation for fit in alone), default=0.0)
    if not alone or deviation > 0.0:
        return difference_error(deviation) if alone else 0.0
    # A stored law has no points, so the scale is that of the fitted curves.
    return SEED_MARGIN * scale_of(np.concatenate([fit.at(np.array([fit.first, fit.last])) for fit in fits]))


def _in_unit_interval(fits: Sequence[CurveFit]) -> bool:
    """Whether values lie in [0, 1], which the name avg@k does not say: rewards may be -1 and 1."""
    first_S, last_S = np.array([fit.at(np.array([fit.first, fit.last])) for fit in fits]).T
    return bool(min(first_S.min(), last_S.min()) >= -_BELOW and last_S.max() <= 1.0)
