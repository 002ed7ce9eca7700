"""The law of a plan from what a user names: a `law.json`, runs to fit on the spot, or a published law."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from isocompute.core import files
from isocompute.core.curve import scale_of
from isocompute.core.errors import InputError
from isocompute.core.formatting import number, plural
from isocompute.law.fits import CurveFit
from isocompute.law.law import Law, fit_law
from isocompute.law.store import StoredLaw, is_law_file, read_law
from isocompute.law.surface import Surface
from isocompute.law.uncertainty import ONE_SEED_ERROR, difference_error
from isocompute.planner.curves import Curves
from isocompute.planner.leading import check_one_setup, leading_recipe
from isocompute.planner.model import OWN, PlanningLaw, is_rate
from isocompute.planner.published import entries, published
from isocompute.planner.runs_recipe import runs_recipe
from isocompute.planner.stability import Falls, falls_of, steadiness

if TYPE_CHECKING:
    from isocompute.data import RunSet

__all__ = ["LawSource", "law_of_runs", "load_law", "planning_law", "runs_at"]

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
    alone = [fit.seed_spread for fit in fits if len(fit.curves) == 1]
    if not alone:
        return 0.0
    if max(alone) > 0.0:
        return difference_error(max(alone))
    # A stored law has the curves' names, not their points.
    return ONE_SEED_ERROR * scale_of(np.concatenate([fit.at(np.array([fit.first, fit.last])) for fit in fits]))


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
