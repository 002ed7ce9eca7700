"""All claims on one set of runs."""

from __future__ import annotations

from isocompute.claims.allocations import about_problems, about_spread
from isocompute.claims.form import about_form
from isocompute.claims.model import Claim
from isocompute.claims.optima import about_algorithms, about_batches, about_optimum
from isocompute.claims.optima_compared import about_difficulty, about_metrics, about_sizes, about_units
from isocompute.claims.recipe_pairs import about_recipes
from isocompute.claims.setups import sort_runs
from isocompute.law.from_runs import choose_metric
from isocompute.runs.model import RunSet

__all__ = ["judge"]

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
    study = sort_runs(runs, choose_metric(runs, metric))
    return tuple(claim for about in _ABOUT for claim in about(study))
