"""The results that the app shows, each computed once for each version of the study's files.

They are those of the commands with the same options. Only the number of bootstrap replicates depends on the study:
studies with many points get fewer, and the command that the page shows includes that option.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from isocompute import api
from isocompute.core.curve import curves_of
from isocompute.core.errors import InputError, recorded
from isocompute.core.run import Run, RunSet
from isocompute.data.compatible import Condition
from isocompute.law.law import Law, fit_law
from isocompute.report import figures
from isocompute.report.evidence import Evidence
from isocompute.report.figures import Figure, Missing
from isocompute.web.cache import CachedResult, ResultCache
from isocompute.web.source import LoadOptions, OptionValue, Snapshot, Source

T = TypeVar("T")
_REPLICATES, _FEWER_REPLICATES, _MANY_POINTS = 1000, 200, 10_000
"""With fewer replicates, intervals take a fifth of the time and change by a few percent of their width."""
_LINE = 40
"""Points of a sparkline."""


@contextmanager
def captured_warnings() -> Iterator[list[str]]:
    """Collect the distinct warnings raised inside, for the pages to show; the list is filled at the end."""
    messages: list[str] = []
    with recorded() as caught:
        yield messages
        messages += dict.fromkeys(str(warning.message) for warning in caught)


@dataclass(frozen=True)
class Scope:
    """The runs that a request concerns: a part of the study as it is now, and how to read it."""

    snapshot: Snapshot
    part: str
    metric: str | None
    unit: str | None
    runs: RunSet
    warnings: tuple[str, ...]
    """Warnings of loading the runs."""
    address: str
    options: LoadOptions

    def at(self, run: str) -> str:
        """The address of a run for a command."""
        return f"{self.address}::{run}"

    def only(self, run: str) -> RunSet:
        """One run of the part, as a set of runs."""
        return replace(self.runs, runs=(self.runs.named(run),))

    def command(self, name: str, *runs: str, **options: OptionValue) -> str | None:
        """A command on the part or on some of its runs that reads them as the app does; None if it cannot."""
        load = self.options
        if runs:  # named runs need no selection, but the rows of a table may
            load = replace(load, without=(), where={} if Path(self.address).is_dir() else load.where)
        return load.command(name, *([self.at(run) for run in runs] or [self.address]), options=options)

    @property
    def replicates(self) -> int:
        """Number of bootstrap replicates for its law."""
        return _FEWER_REPLICATES if sum(run.points.height for run in self.runs) > _MANY_POINTS else _REPLICATES


def replicates_option(replicates: int) -> int | None:
    """The value of `--replicates` for a command; None if it is the default."""
    return None if replicates == _REPLICATES else replicates


class FittedEvidence(Evidence):
    """Evidence for figures that reuses the app's law if all runs share a condition and have curves."""

    fitted: Law | None = None

    def law(self, condition: Condition, *, unit: str | None = None) -> Law:
        """The law of a condition's runs."""
        if self.fitted is not None and unit in (None, self.unit) and len(self.conditions) == 1 and not self.left_out:
            return self.fitted
        return super().law(condition, unit=unit)


class Results:
    """The results of one study.

    Runs and their evidence are read within the request, which is fast. Slow results come from the cache and may be
    stale.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.status = RunStatus()
        self._cache = ResultCache()
        self._loading, self._drawing = threading.Lock(), threading.Lock()
        self._runs: dict[str, tuple[str, RunSet | InputError, tuple[str, ...]]] = {}
        self._evidence: dict[Hashable, tuple[str, FittedEvidence]] = {}

    def snapshot(self) -> Snapshot:
        """The current files; an error if they are gone."""
        try:
            return self.source.snapshot()
        except OSError as error:
            raise InputError(
                f"{self.source.address}: cannot be read any more ({error.strerror}); put it back, or start the app on "
                "another folder."
            ) from error

    def scope(self, part: str | None = None, metric: str | None = None, unit: str | None = None) -> Scope:
        """The scope of a request: its part, metric and unit, with the runs loaded."""
        snapshot = self.snapshot()
        name = snapshot.part(part)
        if not snapshot.parts[-1].runs and snapshot.spec_of(name) is not None:
            raise InputError(
                f"{self.source.address}: no run of this study has a point yet. What it shows appears with the first "
                "evaluations; a study that is not running is started with `isocompute study run SPEC.toml`."
            )
        with self._loading:
            version, runs, warnings = self._runs.get(name, ("", None, ()))
            if runs is None or version != snapshot.version:
                with captured_warnings() as messages:
                    try:
                        runs = self.source.load(name)
                    except InputError as error:
                        runs = error
                warnings = tuple(messages)
                self._runs[name] = (snapshot.version, runs, warnings)
        if isinstance(runs, InputError):
            raise InputError(str(runs))
        return Scope(snapshot, name, metric, unit, runs, warnings, self.source.at(name), self.source.options)

    def evidence(self, scope: Scope) -> FittedEvidence:
        """The evidence that figures are drawn from."""
        key = (scope.part, scope.metric, scope.unit)
        with self._loading:
            version, evidence = self._evidence.get(key, ("", None))
            if evidence is None or version != scope.snapshot.version:
                evidence = FittedEvidence.of(
                    scope.runs, metric=scope.metric, unit=scope.unit, replicates=scope.replicates
                )
                self._evidence[key] = (scope.snapshot.version, evidence)
        return evidence

    def law(self, scope: Scope) -> CachedResult[Law]:
        """The law that `isocompute fit` finds."""

        def fit() -> Law:
            with captured_warnings():  # the table of runs shows which have no curve
                curves, metric, unit = curves_of(scope.runs, metric=scope.metric, unit=scope.unit)
            return fit_law(curves, metric=metric, unit=unit, replicates=scope.replicates)

        return self.cached("law", scope, fit)

    def figure(self, scope: Scope, name: str) -> CachedResult[Figure | Missing]:
        """A figure, or what it needs to be drawn."""
        law: CachedResult[Law] | None = None
        with suppress(InputError):  # the figure says what it needs
            law = self.law(scope)
        evidence = self.evidence(scope)

        def draw() -> Figure | Missing:
            with self._drawing:  # evidence caches results and is not thread-safe
                if law is not None and law.fresh:
                    evidence.fitted = law.value
                return figures.draw(name, evidence)

        # A figure has the version of its law, so it is drawn again with the next law.
        return self.cached("figure", scope, draw, name, version=None if law is None else law.version)

    def cached(
        self, what: str, scope: Scope, make: Callable[[], T], *more: Hashable, version: str | None = None
    ) -> CachedResult[T]:
        """A slow result; `version` is that of another result that it is computed from, if any."""
        now = scope.snapshot.version
        found = self._cache.get((what, scope.part, scope.metric, scope.unit, *more), version or now, make)
        return CachedResult(found.value, found.version, found.version == now)


# --- The status of each run -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Verdict:
    """The verdicts of forecast and health on a run; if there is no forecast, `reason` says why."""

    forecast: str | None
    reason: str
    health: str


class RunStatus:
    """Verdicts on runs, each computed once for the run's points.

    The forecasts of a large study take seconds, so each request judges only a few runs.
    """

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[Run, Verdict]] = {}
        self._working = threading.Lock()

    def known(self, run: Run, *key: Hashable) -> Verdict | None:
        """The verdict on a run with its current points, if there is one."""
        judged, verdict = self._known.get((run.name, *key), (None, None))
        return verdict if judged is run or (judged is not None and judged.points.equals(run.points)) else None

    def judge(self, runs: Iterable[Run], *, address: str, metric: str, unit: str | None, seconds: float) -> None:
        """Judge runs without a verdict until this many seconds have passed; one caller at a time."""
        end = time.monotonic() + seconds
        with self._working:
            for run in runs:
                if time.monotonic() > end:
                    return
                if self.known(run, address, metric, unit) is None:
                    self._known[run.name, address, metric, unit] = (run, _verdict(run, address, metric, unit))


def _verdict(run: Run, address: str, metric: str, unit: str | None) -> Verdict:
    one = RunSet((run,), address)
    health = api.check_health(one, paths=[f"{address}::{run.name}"])[0].verdict
    try:
        forecast = api.forecast(one, metric=metric, unit=unit)
    except InputError as error:
        return Verdict(None, str(error), health)
    return Verdict(forecast.verdict, forecast.reason, health)


def numbers(run: Run, metric: str) -> dict[str, Any]:
    """The last and the best value of a metric, and its sparkline."""
    values = run.points[metric].to_list() if metric in run.metrics else []
    finite = [float(value) for value in values if value is not None and math.isfinite(value)]
    return {"last": finite[-1] if finite else None, "best": max(finite, default=None), "line": _averaged(finite)}


def _averaged(values: list[float]) -> list[float]:
    """At most `_LINE` values: the two ends, and means of the values between them."""
    if len(values) <= _LINE:
        return values
    inner = values[1:-1]
    edges = [len(inner) * i // (_LINE - 2) for i in range(_LINE - 1)]
    means = [sum(inner[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
    return [values[0], *means, values[-1]]
