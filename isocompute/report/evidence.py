"""The runs of a report with their metric, unit, laws and forecasts, each computed once.

A run without a curve (no value of the metric, too few points, no compute) is left out with the reason, so an unfinished
study still gives a page.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np

from isocompute.core import files
from isocompute.core.curve import MINIMUM_POINTS, UNITS, Curve, choose_unit, curves_of, on_one_scale, upper_bound
from isocompute.core.errors import InputError
from isocompute.core.metric_names import TRAIN_REWARD
from isocompute.core.run import Run, RunSet
from isocompute.data.compatible import Condition, conditions_of
from isocompute.data.loading import load
from isocompute.data.pass_rates import PassRates, read_pass_rates
from isocompute.diagnose.setups import common_metric
from isocompute.law.curves import usable_points
from isocompute.law.fits import CurveFit, fit_groups, fits_of
from isocompute.law.forecasting import Forecast, forecast
from isocompute.law.law import Law, fit_law
from isocompute.law.posterior import fit_posterior

Source = RunSet | Run | str | Path | Sequence[str | Path]
T = TypeVar("T")


class Evidence:
    """Runs with their laws and forecasts, computed on first use and cached.

    >>> evidence = Evidence.of("runs")
    >>> evidence.metric, evidence.unit, len(evidence.curves), evidence.left_out
    ('avg@4', 'rollouts', 3, {})
    """

    def __init__(
        self,
        runs: RunSet,
        *,
        metric: str,
        unit: str | None,
        paths: Sequence[str] = (),
        replicates: int = 1000,
        seed: int = 0,
    ) -> None:
        self.runs, self.metric, self.unit = runs, metric, unit
        self.replicates, self.seed = replicates, seed
        self._paths = paths
        self._cache: dict[Any, Any] = {}

    @classmethod
    def of(
        cls,
        source: Source,
        *,
        metric: str | None = None,
        unit: str | None = None,
        paths: Sequence[str] = (),
        replicates: int = 1000,
        seed: int = 0,
    ) -> Self:
        """Load the runs if `source` is a path, and choose metric and unit if none is given.

        `paths` are the files of runs that are already loaded, to find their pass rates. The unit is None if the runs
        are end points without compute.
        """
        if isinstance(source, Run):
            source = RunSet((source,), source.name)
        if isinstance(source, RunSet):
            runs, paths = source, paths or [source.source]
        else:
            many = [source] if isinstance(source, str | Path) else list(source)
            runs, paths = load(many), [str(path) for path in many]
        metric = common_metric(runs, metric)
        having = replace(runs, runs=tuple(run for run in runs if metric in run.metrics))
        return cls(runs, metric=metric, unit=_unit(having, unit), paths=paths, replicates=replicates, seed=seed)

    @property
    def title(self) -> str:
        """A name for the runs: the last part of each path, of at most three."""
        names = [files.last_part(path.split("::")[-1]) for path in self._paths]
        return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")

    @property
    def notes(self) -> list[str]:
        """Notes on the metric and on runs left out, for the top of the page."""
        out = []
        if self.metric == TRAIN_REWARD:
            out.append(f"No metric on held-out problems: {TRAIN_REWARD}, the reward in training, is used instead.")
        if self.curves and self.left_out:
            out.append(f"{len(self.left_out)} of {len(self.runs)} runs give no curve; see Methods.")
        return out

    @property
    def collapsed(self) -> dict[str, float]:
        """The compute after which each run collapses, by its name; the earliest first."""
        found = {run.curve.name: run.collapse_after for _, law in self.laws() for run in law.runs}
        known = [(name, at) for name, at in found.items() if at is not None]
        return dict(sorted(known, key=lambda item: item[1]))

    @cached_property
    def conditions(self) -> tuple[Condition, ...]:
        """All runs, grouped by model, problem set and recipe."""
        return conditions_of(self.runs)

    @property
    def curves(self) -> dict[str, Curve]:
        """The runs' curves by name, without those that are left out."""
        return self.curves_in(self.metric, self.unit)

    @property
    def left_out(self) -> dict[str, str]:
        """Why a run gives no curve, by its name."""
        return self._read(self.metric, self.unit)[1]

    def curves_in(self, metric: str, unit: str | None = None) -> dict[str, Curve]:
        """The curves of another metric, or against another unit."""
        return self._read(metric, unit or self.unit)[0]

    def law(self, condition: Condition, *, unit: str | None = None) -> Law:
        """The law of a condition's runs; `InputError` if none of them has a curve."""
        unit = unit or self.unit

        def fit() -> Law:
            mine = self._mine(condition, self.metric, unit)
            if not mine:
                out = self._read(self.metric, unit)[1]
                raise InputError(next(out[run.name] for run in condition.runs if run.name in out))
            return fit_law(mine, metric=self.metric, unit=unit or "steps", replicates=self.replicates, seed=self.seed)

        return self._once(("law", condition.key, unit), fit)

    def laws(self, *, unit: str | None = None) -> list[tuple[Condition, Law]]:
        """The laws of all conditions that have one."""
        out = []
        for condition in self.conditions:
            try:
                out.append((condition, self.law(condition, unit=unit)))
            except InputError:
                continue
        return out

    def fits(self, condition: Condition, *, metric: str) -> tuple[CurveFit, ...]:
        """The settings' curves of another metric, with a fifth of the replicates and without the rest of a law."""

        def fit() -> tuple[CurveFit, ...]:
            groups: dict[Any, list[Curve]] = {}
            for curve in self._mine(condition, metric, self.unit):
                known = curve.rollouts_per_problem is not None
                groups.setdefault(curve.setting if known else curve.name, []).append(usable_points(curve))
            if not groups:
                return ()
            of = list(groups.values())
            if any(group[0].rollouts_per_problem is None for group in of):
                return tuple(fit_groups(of, replicates=max(50, self.replicates // 5), seed=self.seed))
            posterior = fit_posterior(
                of,
                upper=upper_bound(np.concatenate([curve.values_C for group in of for curve in group])),
                replicates=max(50, self.replicates // 5),
                rng=np.random.default_rng(self.seed),
                in_rollouts=self.unit == "rollouts",
            )
            return tuple(fits_of(of, posterior))

        return self._once(("fits", condition.key, metric), fit)

    def comparable(self, *conditions: Condition) -> bool:
        """Whether runs can be compared: they name their problem set or model, or their rewards share one scale."""
        if all(c.ingredient("problems") or c.ingredient("model") for c in conditions):
            return True
        return on_one_scale([curve for c in conditions for curve in self._mine(c, self.metric, self.unit)])

    def _mine(self, condition: Condition, metric: str, unit: str | None) -> list[Curve]:
        curves = self.curves_in(metric, unit)
        return [curves[run.name] for run in condition.runs if run.name in curves]

    def forecast(self, run: str, *, share: float = 0.5) -> tuple[Curve, Forecast]:
        """A run's curve up to a share of its compute, and the forecast of its end from there."""
        curve = self.curves[run]
        seen = curve.until(curve.points_up_to(share * float(curve.compute_C[-1])))
        if len(seen.compute_C) < MINIMUM_POINTS:
            raise InputError(f"run '{run}': fewer than {MINIMUM_POINTS} points up to {share:.0%} of its compute.")
        return self._once(
            ("forecast", run, share), lambda: (seen, forecast(seen, float(curve.compute_C[-1]), seed=self.seed))
        )

    def outlook(self, run: str) -> Forecast:
        """The forecast of a run at twice its compute."""
        curve = self.curves[run]
        return self._once(("outlook", run), lambda: forecast(curve, 2.0 * float(curve.compute_C[-1]), seed=self.seed))

    def pass_rates(self, run: Run) -> tuple[PassRates, ...]:
        """Distributions of the pass rates of the run's problems over training; empty if none were logged."""
        return self._once(("pass rates", run.name), lambda: read_pass_rates(run, self._paths))

    def sibling(self, kind: str) -> str | None:
        """The metric's `best@k` or `worst@k`, or None if no run logs it."""
        name = self.metric.replace("avg@", f"{kind}@")
        return name if name != self.metric and any(name in run.metrics for run in self.runs) else None

    def _read(self, metric: str, unit: str | None) -> tuple[dict[str, Curve], dict[str, str]]:
        return self._once(("curves", metric, unit), lambda: _curves(self.runs, metric, unit))

    def _once(self, key: Any, make: Callable[[], T]) -> T:
        """Cache a result, or the error raised instead of it."""
        if key not in self._cache:
            try:
                self._cache[key] = make()
            except InputError as error:
                self._cache[key] = error
        found = self._cache[key]
        if isinstance(found, InputError):
            raise found
        return found  # type: ignore[no-any-return]  # a key always holds one type


def _unit(runs: RunSet, unit: str | None) -> str | None:
    """A unit that all runs count, else that most runs count; None if no run counts compute."""
    try:
        return choose_unit(runs, unit)
    except InputError:
        if unit is not None:
            raise
    able = {candidate: sum(_counts(run, candidate) for run in runs) for candidate in UNITS}
    best = max(UNITS, key=lambda candidate: able[candidate])
    return best if able[best] else None


def _counts(run: Run, unit: str) -> bool:
    try:
        return choose_unit(RunSet((run,)), unit) == unit
    except InputError:
        return False


def _curves(runs: RunSet, metric: str, unit: str | None) -> tuple[dict[str, Curve], dict[str, str]]:
    out, left_out = {}, {}
    for run in runs:
        try:
            if metric not in run.metrics:
                raise InputError(f"run '{run.name}': it has no values of '{metric}'.")
            (curve,), _, _ = curves_of(RunSet((run,), runs.source), metric=metric, unit=unit)
            usable = usable_points(curve)
            if len(usable.compute_C) < MINIMUM_POINTS or np.ptp(usable.values_C) == 0:
                raise InputError(f"run '{run.name}': it collapses before its '{metric}' gives a curve.")
        except InputError as error:
            left_out[run.name] = str(error)
        else:
            out[run.name] = curve
    return out, left_out
