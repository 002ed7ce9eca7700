"""The two papers' claims, judged on a set of runs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

import numpy as np
import polars as pl

from isocompute.core.arrays import Array
from isocompute.core.curve import Curve, upper_bound, warn_of_scales
from isocompute.core.run import Run, RunSet, RunWarning
from isocompute.diagnose import optima
from isocompute.diagnose.recipes import about_recipes
from isocompute.diagnose.setups import Setup, Study, common_metric, sort_runs
from isocompute.diagnose.verdicts import Claim, Statement, above, mean_of
from isocompute.law.solver import HILL, POWER, Family, FitRows, evaluate, solve


def judge(runs: RunSet, *, metric: str | None = None) -> tuple[Claim, ...]:
    """Judge the two papers' claims on these runs; a claim without the runs it needs is undecided and names them."""
    study = sort_runs(runs, metric_of(runs, metric))
    for setup in study.sweeps():
        made = study.curves(setup.runs)
        if made is not None:
            warn_of_scales(made[0], metric=study.metric, source=runs.source)
    return tuple(
        claim
        for about, statements in _JUDGES
        for claim in (list(about(study)) or [statement.lacks() for statement in statements])
    )


def metric_of(runs: RunSet, metric: str | None = None) -> str:
    """The metric asked for, else one that all runs have, else the most common one, with a warning."""
    chosen = common_metric(runs, metric)
    having = sum(chosen in run.metrics for run in runs)
    if metric is None and having < len(runs):
        warnings.warn(
            f"{runs.source}: no metric is in all runs; taking {chosen}, which {having} of {len(runs)} have.",
            RunWarning,
            stacklevel=3,
        )
    return chosen


# Bp against n, and how evenly progress is spread ----------------------------------------------------------------------

_PROBLEMS = Statement(
    "problems_matter_less",
    "The number of problems in a batch matters less than the number of rollouts per problem.",
    "IsoCompute section 4.2, figure 10",
    "runs at two or more problems_per_batch with the same n, and at two or more n with the same Bp",
)
_FOLD = (4, 16)
"""The two n compared for spread differ by a factor in this range; the paper's figure has 8 and 128."""
_PAIRS = 3
_SPREAD = Statement(
    "larger_n_spreads_progress",
    "At equal compute a larger n leaves fewer problems near a pass rate of 0.",
    "IsoCompute section 5.1, figure 11",
    f"at least {_PAIRS} pairs of runs (Bp or seeds) whose n differ {_FOLD[0]}- to {_FOLD[1]}-fold, with "
    "'train/pass_rates', 'train/zero_pass' or 'val/zero_pass' in their points",
)


def about_problems(study: Study) -> Iterator[Claim]:
    """Bp matters less than n: the range of reward over n less the range over Bp, in the widest slices."""
    for setup in study.sweeps():
        law = study.law(setup)
        slices = law.slices if law else ()
        over_n = next((s for s in slices if s.varied == "rollouts_per_problem"), None)
        over_bp = next((s for s in slices if s.varied == "problems_per_batch"), None)
        if law is None or over_n is None or over_bp is None:
            continue
        low = over_n.range_interval[0] - over_bp.range_interval[1]
        high = over_n.range_interval[1] - over_bp.range_interval[0]
        statistic = {
            "value": over_n.range - over_bp.range,
            "unit": "reward: range over n less range over Bp",
            "over_n": over_n.range,
            "at_problems": over_n.fixed,
            "n": list(over_n.settings),
            "over_problems": over_bp.range,
            "at_rollouts": over_bp.fixed,
            "problems": list(over_bp.settings),
        }
        needs, names = "seeds: the two ranges do not differ significantly", [run.curve.name for run in law.runs]
        where = study.where(setup)
        yield _PROBLEMS.judged(above((low, high)), (low, high), statistic, needs=needs, runs=names, where=where)


def about_spread(study: Study) -> Iterator[Claim]:
    """Larger n spreads progress more evenly, by pairs of runs with the same Bp and seed at equal compute."""
    for setup in study.sweeps():
        pairs = _spread_pairs(setup)
        if len(pairs) < _PAIRS:
            continue
        difference = mean_of([d for d, _ in pairs])
        statistic = {
            "value": difference.value,
            "unit": "share of problems near 0: smaller n less larger n",
            "pairs": len(pairs),
            "rule": f"{difference.rule} pairs of one Bp and seed",
        }
        yield _SPREAD.judged(
            above(difference.interval),
            difference.interval,
            statistic,
            needs="more pairs: other Bp, or seeds",
            runs=dict.fromkeys(name for _, names in pairs for name in names),
            where=study.where(setup),
        )


def _spread_pairs(setup: Setup) -> list[tuple[float, tuple[str, str]]]:
    """For each Bp and seed: the share of problems near 0 at the smallest n less that at a larger n, at equal compute.

    Repetitions that share a seed or log none are paired in order, so each run is in one pair.
    """
    groups: dict[tuple[int | None, int | None], dict[int, list[tuple[str, Array, Array]]]] = {}
    for run in setup.runs:
        n, shares = run.settings.rollouts_per_problem, _near_zero(run)
        if n is not None and shares is not None:
            by_n = groups.setdefault((run.settings.problems_per_batch, run.settings.seed), {})
            by_n.setdefault(n, []).append((run.name, *shares))
    out = []
    for by_n in groups.values():
        small = min(by_n)
        large = max((n for n in by_n if _FOLD[0] * small <= n <= _FOLD[1] * small), default=None)
        for less, more in zip(by_n[small], by_n[large] if large else (), strict=False):
            (name_less, x_less, y_less), (name_more, x_more, y_more) = less, more
            at = min(x_less[-1], x_more[-1])
            difference = float(np.interp(at, x_less, y_less) - np.interp(at, x_more, y_more))
            out.append((difference, (name_less, name_more)))
    return out


def _near_zero(run: Run) -> tuple[Array, Array] | None:
    """Compute and share of problems near a pass rate of 0, on the training set if logged, else on held-out problems."""
    points = run.points
    if "rollouts" not in points.columns:
        return None
    histogram = points.get_column("train/pass_rates", default=None)
    if histogram is not None and isinstance(histogram.dtype, pl.List):
        lowest = (pl.col("train/pass_rates").list.len() // 20).clip(lower_bound=1)
        share = pl.col("train/pass_rates").list.head(lowest).list.sum() / pl.col("train/pass_rates").list.sum()
    else:
        name = next((name for name in ("train/zero_pass", "val/zero_pass") if name in run.metrics), None)
        if name is None:
            return None
        share = pl.col(name)
    table = points.select(pl.col("rollouts").cast(pl.Float64), share.cast(pl.Float64).alias("share")).drop_nulls()
    return None if table.is_empty() else (table["rollouts"].to_numpy(), table["share"].to_numpy())


# The form of the curve ------------------------------------------------------------------------------------------------

_POINTS, _CURVES = 12, 5
_FORM = Statement(
    "sigmoid_beats_power",
    "A sigmoid fitted to the first half of a run predicts its end better than a power law.",
    "ScaleRL section 2.1, appendix A.4",
    f"at least {_CURVES} runs with {_POINTS} evaluations, {_POINTS // 2} of them in the first half",
)


def about_form(study: Study) -> Iterator[Claim]:
    """A sigmoid extrapolates better than a power law: fit the first half of each run and predict its last tenth."""
    gains: dict[str, float] = {}
    for run in (run for setup in study.setups for run in setup.runs):
        made = study.curves([run])
        gain = None if made is None else _gain(made[0][0], study)
        if gain is not None:
            gains[run.name] = gain
    if len(gains) < _CURVES:
        return
    difference = mean_of(list(gains.values()))
    statistic = {
        "value": difference.value,
        "unit": "error at the end, of the scale: power law less sigmoid",
        "sigmoid_better": sum(gain > 0 for gain in gains.values()),
        "curves": len(gains),
        "rule": f"{difference.rule} runs",
    }
    needs, interval = "more runs, or longer ones: the errors do not differ", difference.interval
    yield _FORM.judged(above(interval), interval, statistic, needs=needs, runs=gains)


def _gain(curve: Curve, study: Study) -> float | None:
    """Error of the power law less that of the sigmoid, as a share of the scale; None if the curve is too short."""
    half = int((curve.compute_C <= 0.5 * curve.compute_C[-1]).sum())
    if len(curve.compute_C) < _POINTS or half < _POINTS // 2 or np.ptp(curve.values_C[:half]) == 0:
        return None
    truth = float(curve.values_C[curve.compute_C >= 0.9 * curve.compute_C[-1]].mean())
    errors = [abs(_predict(curve, half, family) - truth) for family in (HILL, POWER)]
    return (errors[1] - errors[0]) / study.scale(curve.values_C)


def _predict(curve: Curve, half: int, family: Family) -> float:
    """Mean prediction for the last tenth of a curve by a family fitted to its first `half` points."""
    compute_C, values_C = curve.compute_C[:half], curve.values_C[:half]
    unit = float(compute_C[compute_C > 0][0])
    batch = FitRows(
        compute_GC=(compute_C / unit)[None],
        span_G=np.array([max(float(compute_C[-1]) / unit, 1.0 + 1e-9)]),
        group_R=np.zeros(1, dtype=np.int64),
        values_RC=values_C[None],
        weights_RC=np.ones((1, half)),
        upper=upper_bound(curve.values_C),
    )
    last_C = curve.compute_C[curve.compute_C >= 0.9 * curve.compute_C[-1]]
    return float(evaluate(family, solve(family, batch), (last_C / unit)[None])[0].mean())


_JUDGES: tuple[tuple[Callable[[Study], Iterator[Claim]], tuple[Statement, ...]], ...] = (
    (optima.about_optimum, (optima.RISES, optima.LEVELS_OFF)),
    (optima.about_difficulty, ()),
    (optima.about_metrics, ()),
    (about_problems, (_PROBLEMS,)),
    (optima.about_batches, (optima.FIXED_BATCH,)),
    (optima.about_sizes, (optima.SMALL_SETS,)),
    (about_spread, (_SPREAD,)),
    (optima.about_units, (optima.TOKENS_AGREE,)),
    (optima.about_algorithms, ()),
    (about_recipes, ()),
    (about_form, (_FORM,)),
)
"""The functions that judge claims, each with the statements that lack runs if it yields no claim."""
