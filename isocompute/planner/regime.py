"""Diagnoses from its runs what limits a setup: updates, gradient noise, interference, data or coverage.

Each limit has one statistic in units of reward, with an interval and a verdict. It is measured at the end of the runs,
on the setting that leads there:

| limit | statistic | threshold |
| --- | --- | --- |
| updates | lead of the smallest n over the best larger one, per halving of n | `LEAD` |
| noise | lead of the best larger n over the smallest | `LEAD` |
| interference | forgotten problems: rise of the share near a pass rate of 0 (IsoCompute fig. 11) | `MATERIAL` |
| data | growth of the gap between training and held-out reward | `MATERIAL` |
| coverage | share of problems without any success | a half |

A limit is supported if its whole interval lies above the threshold. Of several, coverage comes first, since nothing can
be learned without successes. Otherwise it is the limit with most reward at stake.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import numpy as np
import polars as pl
from scipy.special import stdtrit

from isocompute.core.arrays import Array
from isocompute.core.curve import Curve, choose_metric, curves_of, noise_level, upper_bound
from isocompute.core.errors import InputError
from isocompute.core.run import Run, RunSet
from isocompute.law.curves import collapsed_early, settings_of, usable_curves
from isocompute.law.fits import CurveFit, fits_of
from isocompute.law.frontier import EARLY_FACTOR
from isocompute.law.posterior import around, basic, fit_posterior
from isocompute.planner.law import leading_recipe

LEAD = 0.005
"""Least lead between two n that counts: the bin within which the IsoCompute paper counts rewards as equal."""
MATERIAL = 0.02
"""Least share of forgotten problems, or gap between rewards, that counts."""
_MOST = 0.5
"""Share of problems without success above which coverage is the limit."""
_LAST = 3
"""Number of points whose mean is the value at the end of a run."""
_REPLICATES = 400
_Estimate = tuple[float, tuple[float, float]]

Regime = Literal["updates", "noise", "interference", "data", "coverage"]
Verdict = Literal["yes", "no", "unclear", "unknown"]
REGIMES: tuple[Regime, ...] = get_args(Regime)
ADVICE: dict[Regime, str] = {
    "updates": "more updates win: smaller n, and the smallest stable Bp",
    "noise": "larger n wins late: raise n with the budget, or lower the learning rate",
    "interference": "some problems are given up for others: larger n, a KL term, or fewer unlike problems together",
    "data": "the set is exhausted: more problems or an earlier stop",
    "coverage": "most problems never succeed: easier problems first, a better base, or larger n to find successes",
}


@dataclass(frozen=True)
class Limit:
    """One limit: its statistic with the 95% interval, the verdict, and the evidence in words."""

    regime: Regime
    verdict: Verdict
    value: float | None
    interval: tuple[float, float] | None
    evidence: str


@dataclass(frozen=True)
class Diagnosis:
    """The limit that the runs show, and the findings on all five."""

    regime: Regime | None
    """None if no limit is supported."""
    findings: tuple[Limit, ...]

    def to_json(self) -> dict[str, Any]:
        """As plain data: `regime`, `advice`, `findings[{regime, verdict, value, interval, evidence}]`."""
        return {
            "regime": self.regime,
            "advice": ADVICE[self.regime] if self.regime else None,
            "findings": [asdict(f) | {"interval": list(f.interval) if f.interval else None} for f in self.findings],
        }


def diagnose(runs: RunSet, *, metric: str | None = None) -> Diagnosis:
    """Diagnose the limit of one setup from its runs (one model, problem set and recipe; several n help)."""
    metric = choose_metric(runs, metric)
    sweep = _sweep(runs, metric)
    leading = _leading(runs, sweep)
    findings = (*by_rollouts(sweep), _interference(leading, metric), _data(leading, metric), _coverage(leading, metric))
    supported = [f for f in findings if f.verdict == "yes"]
    first = next((f for f in supported if f.regime == "coverage"), None)
    most = first or max(supported, key=lambda f: f.value or 0.0, default=None)
    return Diagnosis(most.regime if most else None, findings)


@dataclass(frozen=True)
class Sweep:
    """Settings that differ in n alone, smallest n first."""

    fits: tuple[CurveFit, ...]
    unit: str


def _sweep(runs: RunSet, metric: str) -> Sweep | None:
    """The settings of the Bp with most n; None if the runs cannot be compared by compute or support no law.

    The latter have too few points, or never solved a problem.
    """
    try:
        curves, metric, unit = curves_of(runs, metric=metric)
        usable = usable_curves([c for c in curves if not collapsed_early(c)] or curves, metric=metric)
    except InputError:
        return None
    if unit == "steps":
        return None
    settings = [[usable[i] for i in group] for group in settings_of(usable)]
    by_problems: dict[int, list[list[Curve]]] = {}
    for seeds in settings:
        if seeds[0].problems_per_batch is not None:
            by_problems.setdefault(seeds[0].problems_per_batch, []).append(seeds)
    slices = [group for _, group in sorted(by_problems.items()) if len(group) > 1]
    if not slices:
        slices = [settings] if len(by_problems) < 2 else [[]]
    groups = [seeds for seeds in max(slices, key=len) if seeds[0].rollouts_per_problem is not None]
    upper = upper_bound(np.concatenate([curve.values_C for curve in curves]))
    fits: list[CurveFit] = []
    if groups:
        rng = np.random.default_rng(0)
        posterior = fit_posterior(groups, upper=upper, replicates=_REPLICATES, rng=rng, in_rollouts=unit == "rollouts")
        fits = fits_of(groups, posterior)
    return Sweep(tuple(sorted(leading_recipe(fits), key=lambda f: f.setting[1] or 0)), unit)


def _leading(runs: RunSet, sweep: Sweep | None) -> list[Run]:
    """The runs of the setting that leads at the largest common compute; all runs if it is not known."""
    fits = sweep.fits if sweep else ()
    if len(fits) < 2:
        return list(runs)
    at = np.array([min(f.last for f in fits)])
    best = max(fits, key=lambda f: float(f.at(at)[0]))
    return [runs.named(curve.name) for curve in best.curves]


def by_rollouts(sweep: Sweep | None) -> tuple[Limit, Limit]:
    """The limits by updates and by noise: which n leads at the largest compute that all settings have.

    The best of several larger n is selected from noisy values, so its lead is corrected for that selection and must
    exceed the differences between seeds.
    """
    fits = sweep.fits if sweep else ()
    compute = min((f.last for f in fits), default=0.0)
    fits = tuple(f for f in fits if f.starts <= compute * EARLY_FACTOR)
    if sweep is None or len({f.setting[1] for f in fits}) < 2:
        why = "fewer than two n with curves over one range of compute: run another n"
        return Limit("updates", "unknown", None, None, why), Limit("noise", "unknown", None, None, why)
    at = np.array([compute])
    n_S = np.array([f.setting[1] or 0 for f in fits], dtype=np.float64)
    value_SB = np.stack([f.draws_at(at)[0] for f in fits])
    value_S = value_SB.mean(axis=1)
    larger = int(value_S[1:].argmax()) + 1
    lead, lead_B = float(value_S[0] - value_S[larger]), value_SB[0] - value_SB[1:].max(axis=0)
    halvings = float(np.log2(n_S[larger] / n_S[0]))
    where = f"at {compute:.3g} {sweep.unit}: " + ", ".join(
        f"n = {n:.0f} {v:.3f}" for n, v in zip(n_S, value_S, strict=True)
    )
    updates = _finding(
        "updates",
        (lead / halvings, around(lead / halvings, lead_B / halvings)),
        LEAD / halvings,
        f"the smallest n, {n_S[0]:.0f}, {'leads' if lead > 0 else 'does not lead'} {where}",
    )
    noise = _finding(
        "noise",
        basic(lambda each_SB: each_SB[1:].max(axis=0) - each_SB[0], value_S, value_SB),
        LEAD,
        f"the best larger n, {n_S[larger]:.0f}, {'leads' if lead < 0 else 'trails'} the smallest {where}",
    )
    return updates, noise


def _interference(runs: Sequence[Run], metric: str) -> Limit:
    source = _near_zero(runs) or _unsolved(runs, metric)
    if source is None:
        why = "pass rates of problems are unknown: log 'train/pass_rates', 'train/zero_pass' or best@k"
        return Limit("interference", "unknown", None, None, why)
    name, share = source
    start, end = (float(np.mean([share(run)[i] for run in runs])) for i in (0, -1))
    return _finding(
        "interference",
        _over_seeds(runs, lambda run: _change(share(run))),
        MATERIAL,
        f"share of problems near a pass rate of 0 went from {start:.3f} to {end:.3f} ({name})",
    )


def _coverage(runs: Sequence[Run], metric: str) -> Limit:
    source = _unsolved(runs, metric)
    if source is None:
        return _coverage_from_groups(runs)
    name, share = source
    value, interval = _over_seeds(runs, lambda run: _end(share(run)))
    return _finding("coverage", (value, interval), _MOST, f"{value:.0%} of the problems have no success ({name})")


def _coverage_from_groups(runs: Sequence[Run]) -> Limit:
    """Coverage from zero-variance groups: at most the mean reward of them are all right, and the rest all wrong."""
    known = [r for r in runs if _values(r, "zero_variance") is not None and _values(r, "train/avg") is not None]
    if not known:
        why = "successes are unknown: log 'train/zero_pass', best@k, or 'zero_variance' with 'train/avg'"
        return Limit("coverage", "unknown", None, None, why)
    tied = float(np.mean([_end(_column(run, "zero_variance"))[0] for run in known]))
    reward = float(np.mean([_end(_column(run, "train/avg"))[0] for run in known]))
    low, high = max(0.0, tied - reward), min(tied, 1.0 - reward)
    return _finding(
        "coverage",
        ((low + high) / 2, (low, high)),
        _MOST,
        f"{low:.0%} to {high:.0%} of the groups have no success (zero_variance, train/avg)",
    )


def _data(runs: Sequence[Run], metric: str) -> Limit:
    name = next((c for c in ("train/exact", "train/avg") if all(_values(r, c) is not None for r in runs)), None)
    if name is None:
        return Limit("data", "unknown", None, None, "training reward is unknown: log 'train/avg'")
    if name == metric:
        return Limit(
            "data", "unknown", None, None, f"'{metric}' is the training reward itself: evaluate held-out problems"
        )

    def gap(run: Run) -> Array:
        both = run.points.select(pl.col(name).cast(pl.Float64), pl.col(metric).cast(pl.Float64)).drop_nulls()
        return np.asarray(both[name].to_numpy() - both[metric].to_numpy(), dtype=np.float64)

    value, interval = _over_seeds(runs, lambda run: _change(gap(run)))
    return _finding("data", (value, interval), MATERIAL, f"'{name}' − '{metric}' grew by {value:.3f} over the run")


def _finding(regime: Regime, estimate: _Estimate, mark: float, evidence: str) -> Limit:
    value, (low, high) = estimate
    verdict: Verdict = "yes" if low > mark else "no" if high < mark else "unclear"
    return Limit(regime, verdict, value, (low, high), evidence)


def _near_zero(runs: Sequence[Run]) -> tuple[str, Callable[[Run], Array]] | None:
    """The share of problems in the lowest twentieth of pass rates, where runs log the histogram."""
    name = "train/pass_rates"
    for run in runs:
        column = run.points.get_column(name, default=None)
        if column is None or not isinstance(column.dtype, pl.List) or column.drop_nulls().list.len().n_unique() != 1:
            return None

    def share(run: Run) -> Array:
        counts_CH = np.array(run.points[name].drop_nulls().to_list(), dtype=np.float64)
        lowest = max(1, counts_CH.shape[1] // 20)
        return np.asarray(counts_CH[:, :lowest].sum(axis=1) / counts_CH.sum(axis=1))

    return name, share


def _unsolved(runs: Sequence[Run], metric: str) -> tuple[str, Callable[[Run], Array]] | None:
    """The share of problems without success along a run: as logged by our engines, else 1 − best@k."""
    if all(_values(run, "train/zero_pass") is not None for run in runs):
        return "train/zero_pass", lambda run: _column(run, "train/zero_pass")
    prefix = metric.rpartition("avg@")[0]
    found = [m for m in runs[0].metrics if re.fullmatch(re.escape(prefix) + r"best@\d+", m)]
    shared = [m for m in found if all(_values(run, m) is not None for run in runs)]
    if not shared:
        return None
    best = max(shared, key=lambda m: int(m.rpartition("@")[2]))
    return f"1 − {best}", lambda run: 1.0 - _column(run, best)


def _values(run: Run, name: str) -> pl.Series | None:
    series = run.points.get_column(name, default=None)
    return series if series is not None and series.dtype.is_numeric() and series.count() >= _LAST else None


def _column(run: Run, name: str) -> Array:
    return np.asarray(run.points[name].drop_nulls().cast(pl.Float64).to_numpy(), dtype=np.float64)


def _end(values_C: Array) -> tuple[float, float]:
    """Mean of the last points and its standard error."""
    last = values_C[-_LAST:]
    return float(last.mean()), noise_level(values_C) / float(np.sqrt(len(last)))


def _change(values_C: Array) -> tuple[float, float]:
    """Change from the first point to the end and its standard error."""
    end, error = _end(values_C)
    return end - float(values_C[0]), float(np.hypot(error, noise_level(values_C)))


def _over_seeds(runs: Sequence[Run], read: Callable[[Run], tuple[float, float]]) -> _Estimate:
    """Mean over runs and its 95% interval: Student's t over seeds, at least as wide as evaluation noise makes it."""
    value_R, error_R = (np.array(column) for column in zip(*(read(run) for run in runs), strict=True))
    value = float(value_R.mean())
    half = 1.96 * float(np.sqrt((error_R**2).sum())) / len(value_R)
    if len(value_R) > 1:
        spread = float(value_R.std(ddof=1)) / float(np.sqrt(len(value_R)))
        half = max(half, float(stdtrit(len(value_R) - 1, 0.975)) * spread)
    return value, (value - half, value + half)
