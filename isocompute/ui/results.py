"""Everything the app shows of a study, each thing made once for each state of its files.

Results are those of the commands with the same options. Only the number of replicates depends on the study: one with
many points is fitted with fewer, and the command that the page shows says so.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from isocompute.errors import InputError
from isocompute.ui.cache import Cache, Found
from isocompute.ui.source import Snapshot, Source

if TYPE_CHECKING:
    from isocompute.claims import Claim
    from isocompute.law import Law
    from isocompute.plan.model import PlanningLaw
    from isocompute.plan.regime import Diagnosis
    from isocompute.report.evidence import Evidence
    from isocompute.report.model import Figure, Missing
    from isocompute.runs import RunSet

__all__ = ["PATIENCE", "REPLICATES", "Drawn", "Results", "Scope"]

T = TypeVar("T")
PATIENCE = 20.0
"""Seconds until an answer says that its result is still being made."""
REPLICATES = 1000
_FEWER, _MANY_POINTS = 200, 10_000
"""A fifth of the wait, and intervals that are still good to a few percent of their width."""


@dataclass(frozen=True)
class Scope:
    """What a request is about: a part of the files as they are now, and how to read it."""

    snapshot: Snapshot
    part: str
    runs: RunSet
    warnings: tuple[str, ...]
    """What loading the runs had to say."""
    metric: str | None
    unit: str | None
    replicates: int

    @property
    def asked_replicates(self) -> int | None:
        """What a command must be told; None where its default is meant."""
        return None if self.replicates == REPLICATES else self.replicates


@dataclass(frozen=True)
class Drawn:
    """A figure, or what it needs, and its panels as the page draws them."""

    figure: Figure | Missing
    panels: tuple[dict[str, Any], ...]


class Results:
    """The results of one study.

    Runs, and the evidence over them, are made in the request, since that takes a moment and everything else rests on
    them; the rest comes from the cache and may be that of a moment ago.
    """

    def __init__(self, source: Source, *, patience: float = PATIENCE) -> None:
        self.source = source
        self._cache = Cache(patience=patience)
        self._loading, self._weighing = threading.Lock(), threading.Lock()
        self._runs: dict[str, tuple[str, RunSet | InputError, tuple[str, ...]]] = {}
        self._evidence: dict[Hashable, tuple[str, Evidence, threading.Lock]] = {}

    def snapshot(self) -> Snapshot:
        """The files as they are now; an error where they are gone."""
        try:
            return self.source.snapshot()
        except OSError as error:
            raise InputError(
                f"{self.source.address}: cannot be read any more ({error.strerror}); put it back, or start the app on "
                "another folder."
            ) from error

    def scope(self, part: str | None = None, metric: str | None = None, unit: str | None = None) -> Scope:
        """The runs that a request is about."""
        snapshot = self.snapshot()
        name = snapshot.part(part)
        if not snapshot.parts[-1].runs and snapshot.spec_of(name) is not None:
            raise InputError(
                f"{self.source.address}: no run of this study has a point yet. What it shows appears with the first "
                "evaluations; a study that is not running is started with `isocompute study run SPEC.toml`."
            )
        runs, told = self._load(name, snapshot.version)
        points = sum(run.points.height for run in runs)
        return Scope(snapshot, name, runs, told, metric, unit, _FEWER if points > _MANY_POINTS else REPLICATES)

    def _load(self, part: str, version: str) -> tuple[RunSet, tuple[str, ...]]:
        """One load at a time: warnings, which say what was left out, can be caught by one thread only."""
        with self._loading:
            known = self._runs.get(part)
            if known is None or known[0] != version:
                from isocompute.runs import load

                found: RunSet | InputError
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    try:
                        found = load(self.source.at(part))
                    except InputError as error:
                        found = error
                known = (version, found, tuple(dict.fromkeys(str(warning.message) for warning in caught)))
                self._runs[part] = known
        if isinstance(known[1], InputError):
            raise InputError(str(known[1]))
        return known[1], known[2]

    def evidence(self, scope: Scope) -> Evidence:
        """What figures are drawn from: metric, unit, curves, and which runs have none."""
        return self._evidence_of(scope)[0]

    def _evidence_of(self, scope: Scope) -> tuple[Evidence, threading.Lock]:
        """The evidence, and the lock of who works on it: it keeps what it makes, and is not made for two threads."""
        from isocompute.report.evidence import Evidence

        key = (scope.part, scope.metric, scope.unit)
        with self._weighing:
            known = self._evidence.get(key)
            if known is None or known[0] != scope.snapshot.version:
                evidence = Evidence.of(scope.runs, metric=scope.metric, unit=scope.unit, replicates=scope.replicates)
                known = self._evidence[key] = (scope.snapshot.version, evidence, threading.Lock())
        return known[1], known[2]

    def figure(self, scope: Scope, name: str) -> Found[Drawn]:
        """A figure, or what it needs."""
        evidence, lock = self._evidence_of(scope)

        def make() -> Drawn:
            from isocompute.report.figures import Figure, draw
            from isocompute.report.style import themed

            with lock:
                figure = draw(name, evidence)
            panels = figure.panels if isinstance(figure, Figure) else ()
            return Drawn(figure, tuple(themed(panel, background=None) for panel in panels))

        return self._slow("figure", scope, make, name)

    def law(self, scope: Scope) -> Found[Law]:
        """What `isocompute fit` finds."""
        evidence, lock = self._evidence_of(scope)

        def make() -> Law:
            with lock:
                if len(evidence.conditions) == 1 and not evidence.left_out:
                    return evidence.law(evidence.conditions[0])  # the same curves: figures need this law too
            from isocompute import api

            return api.fit(scope.runs, metric=scope.metric, unit=scope.unit, replicates=scope.replicates)

        return self._slow("law", scope, make)

    def law_json(self, scope: Scope) -> Found[dict[str, Any]]:
        """The law as `isocompute fit --json` prints it."""
        from isocompute.law import law_to_json

        law = self.law(scope)
        return self.quick("law as JSON", scope, lambda: law_to_json(law.value), version=law.version)

    def planning_law(self, scope: Scope, problems_per_batch: int | None) -> Found[PlanningLaw]:
        """The law as `isocompute plan --law RUNS` sees it."""
        from isocompute.plan.load_law import planning_law

        law = self.law(scope)
        found = planning_law(
            law.value.settings,
            law.value.surface,
            name=scope.runs.source,
            source=f"fitted to {len(law.value.runs)} runs",
            metric=law.value.metric,
            unit=law.value.unit,
            problems_per_batch=problems_per_batch,
        )
        return Found(found, law.version, law.fresh)

    def diagnosis(self, scope: Scope) -> Found[Diagnosis]:
        """Which limit the runs are up against."""
        metric = self.evidence(scope).metric

        def make() -> Diagnosis:
            from isocompute.plan.regime import diagnose

            return diagnose(scope.runs, metric=metric)

        return self._slow("limit", scope, make)

    def claims(self, scope: Scope) -> Found[tuple[Claim, ...]]:
        """What `isocompute claims` finds."""

        def make() -> tuple[Claim, ...]:
            from isocompute.claims import judge

            return judge(scope.runs, metric=scope.metric)

        return self._slow("claims", scope, make)

    def quick(
        self, what: str, scope: Scope, make: Callable[[], T], *more: Hashable, version: str | None = None
    ) -> Found[T]:
        """Any other result that takes a moment. One that is made of another result is of that one's `version`."""
        key = (what, scope.part, scope.metric, scope.unit, *more)
        found = self._cache.get(key, version or scope.snapshot.version, make, what=what, quick=True)
        return replace(found, fresh=found.version == scope.snapshot.version)

    def _slow(self, what: str, scope: Scope, make: Callable[[], T], *more: Hashable) -> Found[T]:
        key = (what, scope.part, scope.metric, scope.unit, *more)
        return self._cache.get(key, scope.snapshot.version, make, what=f"{what} of {len(scope.runs)} runs")
