"""Claims about what an allocation does: Bp against n, and how evenly progress is spread."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from isocompute.core.arrays import Array
from isocompute.core.run import Run
from isocompute.diagnose.claims.model import Claim, Statement
from isocompute.diagnose.claims.setups import Setup, Study
from isocompute.diagnose.claims.statistics import above, mean_of

__all__ = ["about_problems", "about_spread"]

_APART = (4, 16)
"""The two n compared for spread differ by a factor in this range; the paper's figure has 8 and 128."""
_PAIRS = 3
_Shares = tuple[str, Array, Array]
"""A run's name, its compute, and the share of problems near a pass rate of 0 there."""


def about_problems(study: Study) -> Iterator[Claim]:
    """Bp matters less than n."""
    what = Statement(
        "problems_matter_less",
        "The number of problems in a batch matters less than the number of rollouts per problem.",
        "IsoCompute section 4.2, figure 10",
    )
    found = False
    for setup in study.sweeps():
        law = study.law(setup)
        slices = law.slices if law else ()
        over_n = next((s for s in slices if s.varied == "rollouts_per_problem"), None)
        over_bp = next((s for s in slices if s.varied == "problems_per_batch"), None)
        if law is None or over_n is None or over_bp is None:
            continue
        found = True
        value = over_n.range - over_bp.range
        low = over_n.range_interval[0] - over_bp.range_interval[1]
        high = over_n.range_interval[1] - over_bp.range_interval[0]
        verdict = above((low, high))
        yield what.judged(
            verdict,
            statistic={
                "value": value,
                "unit": "reward: range over n less range over Bp",
                "over_n": over_n.range,
                "at_problems": over_n.fixed,
                "n": list(over_n.settings),
                "over_problems": over_bp.range,
                "at_rollouts": over_bp.fixed,
                "problems": list(over_bp.settings),
            },
            interval=(low, high),
            needs="seeds: the two ranges are not told apart" if verdict == "undecided" else None,
            runs=tuple(run.curve.name for run in law.runs),
            where=study.where(setup),
        )
    if not found:
        yield what.lacks(
            "runs at two or more problems_per_batch with the same n, and at two or more n with the same Bp"
        )


def about_spread(study: Study) -> Iterator[Claim]:
    """Larger n spreads progress more evenly."""
    what = Statement(
        "larger_n_spreads_progress",
        "At equal compute a larger n leaves fewer problems near a pass rate of 0.",
        "IsoCompute section 5.1, figure 11",
    )
    found = False
    for setup in study.sweeps():
        pairs = _spread_pairs(setup)
        if len(pairs) < _PAIRS:
            continue
        found = True
        difference = mean_of([d for d, _ in pairs])
        verdict = above(difference.interval)
        yield what.judged(
            verdict,
            statistic={
                "value": difference.value,
                "unit": "share of problems near 0: smaller n less larger n",
                "pairs": len(pairs),
                "rule": f"{difference.rule} pairs of one Bp and seed",
            },
            interval=difference.interval,
            needs="more pairs: other Bp, or seeds" if verdict == "undecided" else None,
            runs=tuple(dict.fromkeys(name for _, names in pairs for name in names)),
            where=study.where(setup),
        )
    if not found:
        yield what.lacks(
            f"at least {_PAIRS} pairs of runs (Bp or seeds) whose n differ {_APART[0]}- to {_APART[1]}-fold, with "
            "'train/pass_rates', 'train/zero_pass' or 'val/zero_pass' in their points"
        )


def _spread_pairs(setup: Setup) -> list[tuple[float, tuple[str, str]]]:
    """For every Bp and seed: the share near 0 of the smallest n less that of a larger, at the compute both have.

    Repetitions that were given one seed, or none, are paired in their order: each run is in one pair.
    """
    groups: dict[tuple[int | None, int | None], dict[int, list[_Shares]]] = {}
    for run in setup.runs:
        n, shares = run.settings.rollouts_per_problem, _near_zero(run)
        if n is not None and shares is not None:
            by_n = groups.setdefault((run.settings.problems_per_batch, run.settings.seed), {})
            by_n.setdefault(n, []).append((run.name, *shares))
    out = []
    for by_n in groups.values():
        small = min(by_n)
        apart = [n for n in by_n if _APART[0] * small <= n <= _APART[1] * small]
        for less, more in zip(by_n[small], by_n[max(apart)] if apart else (), strict=False):
            (name_less, x_less, y_less), (name_more, x_more, y_more) = less, more
            at = min(x_less[-1], x_more[-1])
            difference = float(np.interp(at, x_less, y_less) - np.interp(at, x_more, y_more))
            out.append((difference, (name_less, name_more)))
    return out


def _near_zero(run: Run) -> tuple[Array, Array] | None:
    """Share of problems near a pass rate of 0 along compute: of the training set where runs keep it, else held-out."""
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
    if table.is_empty():
        return None
    return table["rollouts"].to_numpy().astype(np.float64), table["share"].to_numpy().astype(np.float64)
