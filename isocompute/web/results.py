"""Everything the app shows of a study, each thing made once for each state of its files.

Results are those of the commands with the same options. Only the number of replicates depends on the study: one with
many points is fitted with fewer, and the command that the page shows says so.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from isocompute.core.errors import InputError
from isocompute.core.formatting import plural
from isocompute.web.ahead import Ahead, Stage
from isocompute.web.cache import Cache, Found
from isocompute.web.fitting import (
    Fitted,
    Rough,
    curves_in,
    fit_fully,
    fit_roughly,
    may_be_rough,
    points_of,
    replicates_for,
)
from isocompute.web.hearing import heard
from isocompute.web.source import Snapshot, Source
from isocompute.web.standing import Judge
from isocompute.web.unsaid import unsaid

if TYPE_CHECKING:
    from isocompute.data import RunSet
    from isocompute.diagnose.claims import Claim
    from isocompute.planner.limits import Diagnosis
    from isocompute.planner.model import PlanningLaw
    from isocompute.report.model import Figure, Missing
    from isocompute.web.evidence import KnownEvidence

__all__ = ["PATIENCE", "Drawn", "Results", "Scope"]

T = TypeVar("T")
PATIENCE = 20.0
"""Seconds until an answer says that its result is still being made."""


@dataclass(frozen=True)
class Scope:
    """What a request is about: a part of the files as they are now, and how to read it."""

    snapshot: Snapshot
    part: str
    metric: str | None
    unit: str | None
    final: bool
    """Wait for the final law where there is a rough one."""
    load: Callable[[], tuple[RunSet, tuple[str, ...]]] = field(repr=False, compare=False)

    @cached_property
    def _loaded(self) -> tuple[RunSet, tuple[str, ...]]:
        return self.load()

    @property
    def runs(self) -> RunSet:
        """The part's runs, read when they are asked for: a law may be there before them."""
        return self._loaded[0]

    @property
    def count(self) -> int:
        """How many runs the part has, as far as that is known before they are read; else 0."""
        return next(part.runs for part in self.snapshot.parts if part.name == self.part)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What loading the runs had to say."""
        return self._loaded[1]


@dataclass(frozen=True)
class Drawn:
    """A figure, or what it needs, and its panels as the page draws them."""

    figure: Figure | Missing
    panels: tuple[dict[str, Any], ...]
    rough: Rough | None
    """Of the law that it rests on."""


class Results:
    """The results of one study.

    Runs, and the evidence over them, are made in the request, since that takes a moment and everything else rests on
    them; the rest comes from the cache and may be that of a moment ago.
    """

    def __init__(self, source: Source, *, patience: float = PATIENCE, ahead: Ahead | None = None) -> None:
        self.source, self._ahead = source, ahead
        self.judge = Judge()
        self._cache = Cache(patience=patience)
        self._loading, self._weighing = threading.Lock(), threading.Lock()
        self._runs: dict[str, tuple[str, RunSet | InputError, tuple[str, ...]]] = {}
        self._evidence: dict[Hashable, tuple[str, KnownEvidence, threading.Lock]] = {}

    def snapshot(self) -> Snapshot:
        """The files as they are now; an error where they are gone."""
        try:
            return self.source.snapshot()
        except OSError as error:
            raise InputError(
                f"{self.source.address}: cannot be read any more ({error.strerror}); put it back, or start the app on "
                "another folder."
            ) from error

    def close(self) -> None:
        """Leave nothing running."""
        if self._ahead is not None:
            self._ahead.close()

    def scope(
        self, part: str | None = None, metric: str | None = None, unit: str | None = None, *, final: bool = False
    ) -> Scope:
        """The runs that a request is about."""
        snapshot = self.snapshot()
        name = snapshot.part(part)
        if not snapshot.parts[-1].runs and snapshot.spec_of(name) is not None:
            raise InputError(
                f"{self.source.address}: no run of this study has a point yet. What it shows appears with the first "
                "evaluations; a study that is not running is started with `isocompute study run SPEC.toml`."
            )
        return Scope(snapshot, name, metric, unit, final, lambda: self._load(name, snapshot.version))

    def _load(self, part: str, version: str) -> tuple[RunSet, tuple[str, ...]]:
        """The runs, and what was left out of them."""
        with self._loading:
            known = self._runs.get(part)
            if known is None or known[0] != version:
                found: RunSet | InputError
                with heard() as said:
                    try:
                        found = self.source.load(part)
                    except InputError as error:
                        found = error
                known = (version, found, tuple(said))
                self._runs[part] = known
        if isinstance(known[1], InputError):
            raise InputError(str(known[1]))
        return known[1], known[2]

    def evidence(self, scope: Scope) -> KnownEvidence:
        """What figures are drawn from: metric, unit, curves, and which runs have none."""
        return self._evidence_of(scope, replicates_for(points_of(scope.runs)))[0]

    def _evidence_of(self, scope: Scope, replicates: int) -> tuple[KnownEvidence, threading.Lock]:
        """The evidence, and the lock of who works on it: it keeps what it makes, and is not made for two threads."""
        from isocompute.web.evidence import KnownEvidence

        key = (scope.part, scope.metric, scope.unit, replicates)
        with self._weighing:
            known = self._evidence.get(key)
            if known is None or known[0] != scope.snapshot.version:
                evidence = KnownEvidence.over(scope.runs, metric=scope.metric, unit=scope.unit, replicates=replicates)
                known = self._evidence[key] = (scope.snapshot.version, evidence, threading.Lock())
        return known[1], known[2]

    def figure(self, scope: Scope, name: str) -> Found[Drawn]:
        """A figure, or what it needs; drawn from the rough law while there is no other."""
        law: Found[Fitted] | None = None
        with suppress(InputError):  # the figure says what it needs
            law = self.law(scope)
        now = scope.snapshot.version
        rough = None if law is None else law.value.rough
        evidence, lock = self._evidence_of(
            scope, replicates_for(points_of(scope.runs)) if rough is None else rough.replicates
        )

        def make() -> Drawn:
            from isocompute.report.figures import Figure, draw
            from isocompute.report.style import themed

            with lock:
                if law is not None and law.version == now:
                    evidence.known = law.value.law
                figure = draw(name, evidence)
            panels = figure.panels if isinstance(figure, Figure) else ()
            return Drawn(figure, tuple(themed(panel, background=None) for panel in panels), rough)

        found = self._slow("figure", scope, make, name, rough, version=now if law is None else law.version)
        return replace(found, fresh=found.version == now)

    def law(self, scope: Scope) -> Found[Fitted]:
        """What `isocompute fit` finds, or the rough law while that is made for the first time."""

        def sent(stage: Stage) -> Fitted | None:
            first = (scope.part, scope.metric, scope.unit) == (scope.snapshot.part(None), None, None)
            return self._ahead.law(stage, scope.snapshot.version) if self._ahead is not None and first else None

        def fitted(fit: Callable[..., Fitted | None]) -> Fitted | None:
            runs = scope.runs
            with heard():  # runs without a curve say so in the table of runs
                curves, metric, unit = curves_in(runs, metric=scope.metric, unit=scope.unit)
            return fit(curves, metric=metric, unit=unit, points=points_of(scope.runs))

        def rough() -> Fitted | None:
            return sent("rough") or fitted(fit_roughly)

        def final() -> Fitted:
            found = sent("final") or fitted(fit_fully)
            assert found is not None
            return found

        return self._slow("law", scope, final, rough=rough if may_be_rough(scope.count) else None)

    def law_json(self, scope: Scope) -> tuple[Found[dict[str, Any]], Fitted]:
        """The law as `isocompute fit --json` prints it, and the law itself."""
        law = self.law(scope)
        fitted = law.value
        printed = self.quick("law as JSON", scope, fitted.law.to_json, fitted.rough, version=law.version)
        return printed, fitted

    def planning_law(self, scope: Scope, problems_per_batch: int | None) -> tuple[Found[PlanningLaw], Fitted]:
        """The law as `isocompute plan --law RUNS` sees it, and the law itself."""
        from isocompute.planner.load_law import planning_law
        from isocompute.planner.stability import falls_of

        law = self.law(scope)
        fitted = law.value
        try:
            found = planning_law(
                fitted.law.settings,
                fitted.law.surface,
                name=self.source.at(scope.part),
                source=f"fitted to {plural(len(fitted.law.runs), 'run')}",
                metric=fitted.law.metric,
                unit=fitted.law.unit,
                falls=falls_of(fitted.law),
                problems_per_batch=problems_per_batch,
            )
        except InputError as error:
            raise InputError(unsaid(scope.runs, self.source) or str(error)) from error
        return Found(found, law.version, law.fresh), fitted

    def diagnosis(self, scope: Scope) -> Found[Diagnosis]:
        """Which limit the runs are up against."""
        metric = self.evidence(scope).metric

        def make() -> Diagnosis:
            from isocompute.planner.regime import diagnose

            return diagnose(scope.runs, metric=metric)

        return self._slow("limit", scope, make)

    def claims(self, scope: Scope) -> Found[tuple[Claim, ...]]:
        """What `isocompute claims` finds."""

        def make() -> tuple[Claim, ...]:
            from isocompute.diagnose.claims import judge

            return judge(scope.runs, metric=scope.metric)

        return self._slow("claims", scope, make)

    def quick(
        self, what: str, scope: Scope, make: Callable[[], T], *more: Hashable, version: str | None = None
    ) -> Found[T]:
        """Any other result that takes a moment. One that is made of another result is of that one's `version`."""
        key = (what, scope.part, scope.metric, scope.unit, *more)
        found = self._cache.get(key, version or scope.snapshot.version, make, what=what, quick=True)
        return replace(found, fresh=found.version == scope.snapshot.version)

    def _slow(
        self,
        what: str,
        scope: Scope,
        make: Callable[[], T],
        *more: Hashable,
        version: str | None = None,
        rough: Callable[[], T | None] | None = None,
    ) -> Found[T]:
        key = (what, scope.part, scope.metric, scope.unit, *more)
        told = f"{what} of {scope.count} runs" if scope.count else what
        return self._cache.get(key, version or scope.snapshot.version, make, what=told, rough=rough, final=scope.final)
