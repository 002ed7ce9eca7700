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
from isocompute.core.formatting import plural
from isocompute.law.fits import CurveFit
from isocompute.law.frontier import EARLY_FACTOR
from isocompute.law.law import Law, recipes_of
from isocompute.law.posterior import SAME
from isocompute.law.store import StoredLaw
from isocompute.planner.cost.prices import Rates
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
_HARD_BASE = 0.137
"""Half-way, in logs, between the paper's hard problems (up to .0625) and its easy ones (from .3)."""
_TWO_SEEDS = 2.77
"""95% half-width of a difference between two draws, in standard deviations of one."""
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
    """95% half-width of a difference between two single seeds, which the samples contain; 0 for a published law."""
    survival: Mapping[tuple[int, int], Survival] = field(default_factory=dict)
    """Collapses of the user's runs by (Bp, n); empty for a published law."""
    bounded: bool = False
    """Whether its values are rates in [0, 1]."""
    scale: float = 1.0
    """Length of the values' scale: 1 for rates, 100 for percent."""

    def values(self, problems_A: Array, rollouts_A: Array, compute_A: Array) -> Array:
        """Allocations × draws, within the metric's bounds."""
        values_AB = self.model.values(problems_A, rollouts_A, compute_A)
        return np.clip(values_AB, 0.0, 1.0) if self.bounded else values_AB

    def only_problems_per_batch(self) -> int | None:
        """The Bp of a law that was measured at a single one; else None."""
        found = {bp for bp, _ in self.model.settings()}
        return next(iter(found)) if len(found) == 1 else None

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
class Curves:
    """Reward curves of configurations, as samples of a posterior."""

    fits: tuple[CurveFit, ...]
    problems_per_batch: int | None = None
    """Fills in the Bp of runs that lack it."""
    measured: bool = True
    """Whether they are the user's runs, between which the posterior interpolates; published curves stand alone."""

    def key(self, fit: CurveFit) -> tuple[int, int]:
        """(Bp, n) of a configuration."""
        bp, n = fit.setting
        return int(bp or self.problems_per_batch or 1), int(n or 1)

    def settings(self) -> list[tuple[int, int]]:
        """The configurations that were run."""
        return sorted({self.key(fit) for fit in self.fits})

    def interpolates(self) -> bool:
        """Whether it has values between the configurations that were run: with three n or more."""
        return self.measured and len({n for _, n in self.settings()}) > 2

    def noise(self) -> float:
        """Evaluation noise of a run, from the median residual of the fits."""
        return float(np.median([fit.rmse for fit in self.fits]))

    def last(self, bp: int, n: int) -> float:
        """Largest compute of a configuration; 0 if it was not run."""
        return max((fit.last for fit in self.fits if self.key(fit) == (bp, n)), default=0.0)

    def begun(self, problems_A: Array, rollouts_A: Array, compute_A: Array) -> Array:
        """Whether each compute is at least a quarter below its configuration's first evaluation, as on the frontier."""
        starts = {self.key(fit): fit.starts / EARLY_FACTOR for fit in self.fits}
        return np.asarray(compute_A >= np.array([starts.get(key, 0.0) for key in _pairs(problems_A, rollouts_A)]))

    def values(self, problems_A: Array, rollouts_A: Array, compute_A: Array) -> Array:
        """Allocations × draws."""
        known = {self.key(fit): fit for fit in self.fits}
        out_AB = np.empty((len(compute_A), len(self.fits[0].posterior)))
        where: dict[tuple[int, int], list[int]] = {}
        for i, key in enumerate(_pairs(problems_A, rollouts_A)):
            where.setdefault(key, []).append(i)
        for key, rows in where.items():
            fit, compute_C = known.get(key), compute_A[rows]
            out_AB[rows] = self.fits[0].posterior.between(*key, compute_C) if fit is None else fit.best_draws(compute_C)
        return out_AB


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
        z_3B = np.random.default_rng([0, 2]).standard_normal((3, len(self.shift_B)))
        z_3B -= z_3B.mean(axis=1, keepdims=True)
        problems, rollouts = np.array(self.grid, dtype=np.float64).T
        noise_AB = _SHARED * z_3B[0] + _ALONG_ROLLOUTS * _position(rollouts_A, rollouts)[:, None] * z_3B[1]
        noise_AB = noise_AB + _ALONG_PROBLEMS * _position(problems_A, problems)[:, None] * z_3B[2]
        noise_AB *= (self.frontier[-1][1] - self.base) * self._doublings(compute_A)[:, None]
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


_SHARED, _ALONG_ROLLOUTS, _ALONG_PROBLEMS = 0.05, 0.03, 0.015
"""Errors outside a frontier per doubling of compute, as shares of its rise: of all allocations, and tilts along log n
and log Bp."""


def _position(values_A: Array, among: Array) -> Array:
    """log2 of values, scaled so that the range that was run goes from -1 to 1."""
    low, high = np.log2(among.min()), np.log2(among.max())
    return np.asarray((2.0 * np.log2(values_A) - low - high) / max(high - low, 1.0))


def _pairs(problems_A: Array, rollouts_A: Array) -> list[tuple[int, int]]:
    return list(zip(problems_A.astype(int).tolist(), rollouts_A.astype(int).tolist(), strict=True))


def planning_law(
    law: Law | StoredLaw,
    *,
    name: str = "law",
    source: str | None = None,
    problems_per_batch: int | None = None,
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
    with_n = [fit for fit in law.settings if fit.setting[1] is not None]
    _check_one_setup(with_n, name)
    fits = leading_recipe(with_n)
    if len(fits) < len(with_n):
        source += f", {len(fits)} of {len(with_n)} settings: those of the recipe that reached highest"
    if not fits:
        raise InputError(
            f"--law {name}: no run says its rollouts per problem; say n: isocompute fit RUNS --rollouts-per-problem n "
            "--out law.json, then --law law.json."
        )
    if any(fit.setting[0] is None for fit in fits) and problems_per_batch is None:
        raise InputError(f"--law {name}: its runs do not say their problems per batch; say --problems-per-batch 32.")
    _check_draws(fits, name)
    alone, rates = sum(len(fit.curves) == 1 for fit in fits), _in_unit_interval(fits)
    posterior = fits[0].posterior
    error = _TWO_SEEDS * posterior.seed_effect * posterior.rise
    whose = "settings have" if alone == len(fits) else f"{alone} of {len(fits)} settings have"
    return PlanningLaw(
        name=name,
        source=source,
        setup=OWN,
        metric=metric,
        unit=unit,
        first=min(fit.first for fit in fits),
        last=max(fit.last for fit in fits),
        uncertainty="samples of one posterior: noise, seeds, the form of the curves, and beyond the data what "
        "extrapolation got wrong before" + (f"; {whose} one seed" if alone else ""),
        seed_error=error if alone else 0.0,
        model=Curves(tuple(fits), problems_per_batch),
        survival=survival_by_setting(law, fits, problems_per_batch),
        difficulty=difficulty_of(fits[0].base) if rates else None,
        scale=scale_of(np.array([fit.base for fit in fits] + [fit.level for fit in fits])),
        runs_recipe=runs_recipe([curve for fit in fits for curve in fit.curves]),
        bounded=is_rate(metric) and rates,
    )


def difficulty_of(base: float) -> str:
    """Difficulty of a problem set by the base model's mean pass rate: the paper's bands end at .0625 and begin at .3.

    >>> difficulty_of(0.02), difficulty_of(0.43)
    ('hard', 'easy')
    """
    return "hard" if base <= _HARD_BASE else "easy"


def leading_recipe(fits: Sequence[CurveFit]) -> list[CurveFit]:
    """If settings were run with several recipes, those of the recipe that ends highest; else all of them."""
    if len({fit.setting for fit in fits}) == len(fits):
        return list(fits)
    by_recipe: dict[str, list[CurveFit]] = {}
    for fit, recipe in zip(fits, recipes_of([fit.curves[0] for fit in fits]), strict=True):
        by_recipe.setdefault(recipe, []).append(fit)
    return max(by_recipe.values(), key=lambda group: max(fit.level for fit in group))


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
    draws = min(len(fit.posterior) for fit in fits)
    if draws < _FEWEST:
        raise InputError(
            f"--law {name}: it has {draws} bootstrap replicates, a decision needs {_FEWEST} of every setting; fit "
            "again with --replicates 1000."
        )
    if all(float(np.ptp(fit.draws_at(np.array([fit.last])))) == 0.0 for fit in fits):
        raise InputError(f"--law {name}: it has no uncertainty, its replicates are all the same; fit the runs again.")


def _in_unit_interval(fits: Sequence[CurveFit]) -> bool:
    """Whether values lie in [0, 1], which the name avg@k does not say: rewards may be -1 and 1."""
    first_S, last_S = np.array([fit.at(np.array([fit.first, fit.last])) for fit in fits]).T
    return bool(min(first_S.min(), last_S.min()) >= -_BELOW and last_S.max() <= 1.0)
