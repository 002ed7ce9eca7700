"""All claims on one set of runs."""

from __future__ import annotations

import warnings

from isocompute.core.run import RunSet, RunWarning
from isocompute.diagnose.claims.allocations import about_problems, about_spread
from isocompute.diagnose.claims.form import about_form
from isocompute.diagnose.claims.model import Claim
from isocompute.diagnose.claims.optima import about_algorithms, about_batches, about_optimum
from isocompute.diagnose.claims.optima_compared import about_difficulty, about_metrics, about_sizes, about_units
from isocompute.diagnose.claims.recipe_pairs import about_recipes
from isocompute.diagnose.claims.setups import sort_runs
from isocompute.law.from_runs import warn_of_scales
from isocompute.report.evidence import Evidence

__all__ = ["judge", "metric_of"]

_ABOUT = (
    about_optimum,
    about_difficulty,
    about_metrics,
    about_problems,
    about_batches,
    about_sizes,
    about_spread,
    about_units,
    about_algorithms,
    about_recipes,
    about_form,
)


def judge(runs: RunSet, *, metric: str | None = None) -> tuple[Claim, ...]:
    """Judge every claim of the two papers that these runs bear on; the others say which runs would decide them."""
    study = sort_runs(runs, metric_of(runs, metric))
    for setup in study.sweeps():
        made = study.curves(setup.runs)
        if made is not None:
            warn_of_scales(made[0], metric=study.metric, source=runs.source)
    return tuple(claim for about in _ABOUT for claim in about(study))


def metric_of(runs: RunSet, metric: str | None = None) -> str:
    """The metric that the runs are read in: the one asked for, else the one that `report` chooses.

    Where no metric is in all runs it is that of most of them, which a warning says.
    """
    chosen = Evidence.of(runs, metric=metric).metric
    having = sum(chosen in run.metrics for run in runs)
    if metric is None and having < len(runs):
        warnings.warn(
            f"{runs.source}: no metric is in all runs; taking {chosen}, which {having} of {len(runs)} have.",
            RunWarning,
            stacklevel=3,
        )
    return chosen
