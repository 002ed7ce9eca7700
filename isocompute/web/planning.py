"""A plan from a request: the options of `isocompute plan` as a query, on a law that is fitted once."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from isocompute.core.errors import InputError
from isocompute.web.answers import ChartFormat
from isocompute.web.commands import command_line, reading_command
from isocompute.web.fitting import Fitted, asked
from isocompute.web.reading import Reading
from isocompute.web.results import Results, Scope
from isocompute.web.unsaid import several

if TYPE_CHECKING:
    from isocompute.planner.limits import Diagnosis
    from isocompute.planner.model import PlanningLaw
    from isocompute.planner.planner import Plan

__all__ = ["STUDY", "ChartQuery", "PlanQuery", "Planner", "planned", "planner"]

T = TypeVar("T")
STUDY = "study"
"""The name of the law that is fitted to the runs being served."""
_SUFFIXES = {"rollouts": "", "tokens": "tok", "gpu_hours": "h"}
_KEPT = "law.json"
_LOOKS = 25
"""Budgets of the band."""
_BEYOND = 4.0
"""The band goes so far beyond the law's range, as forecasts and comparisons do."""
Count = Annotated[int, Field(ge=1, le=10**9)]
Amount = Annotated[float, Field(gt=0, le=1e12)]


class PlanQuery(BaseModel):
    """The options of `isocompute plan`, with the same names; options that name files are the command's alone."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    law: str = Field(default=STUDY, max_length=80, description="'study', or a published law from /api/laws")
    budget: str | None = Field(
        default=None, max_length=30, description="2e6, 3e9tok, 500h or $2000; half of the law's range where left out"
    )
    part: str | None = Field(default=None, max_length=400, description="the part of the study that 'study' is")
    metric: str | None = Field(default=None, min_length=1, max_length=200)
    difficulty: Literal["easy", "hard"] | None = None
    problems: Count | None = Field(default=None, description="D: problems in the training set")
    problems_per_batch: Count | None = Field(default=None, description="hold Bp")
    batch: Count | None = Field(default=None, description="hold B = Bp · n")
    n: list[Count] = Field(default=[], max_length=40, description="allowed n; repeat it for several")
    stable_low: Count | None = Field(default=None, description="smallest stable Bp")
    stable_high: Count | None = Field(default=None, description="largest stable Bp")
    max_batch: Count | None = None
    min_updates: Count = 1
    truncated: Annotated[float, Field(ge=0, le=1)] | None = None
    gpus: Count | None = None
    response_tokens: Amount | None = None
    rollouts_per_second: Amount | None = None
    price_per_gpu_hour: Amount | None = None
    extrapolate: bool = False
    final: bool = Field(default=False, description="wait for the final law where only a rough one is there")


class ChartQuery(PlanQuery):
    """The same, and how the chart is wanted."""

    format: ChartFormat = "vega"


class Planner:
    """One law under one set of constraints: plans for any budget."""

    def __init__(
        self,
        query: PlanQuery,
        *,
        law: PlanningLaw,
        diagnosis: Diagnosis | None = None,
        version: str = "",
        fresh: bool = True,
        address: str = "",
        reading: Reading | None = None,
        fitted: Fitted | None = None,
    ) -> None:
        from isocompute.planner.candidates import Constraints
        from isocompute.planner.spending import Hardware, prices

        self.query, self.law, self.version, self.fresh = query, law, version, fresh
        self._diagnosis, self._address, self._reading = diagnosis, address, reading or Reading()
        self.rough = None if fitted is None else fitted.rough
        self._replicates = None if fitted is None else asked(fitted.of)
        if (query.stable_low is None) != (query.stable_high is None):
            raise InputError("a range of stable Bp has two ends; give both stable_low and stable_high, or neither.")
        stable = (query.stable_low, query.stable_high) if query.stable_low and query.stable_high else None
        self._constraints = Constraints(
            problems_per_batch=query.problems_per_batch,
            batch_size=query.batch,
            rollouts_per_problem=tuple(sorted(set(query.n))) or None,
            problems_range=stable,
            max_batch=query.max_batch,
            min_updates=query.min_updates,
            gpus=query.gpus,
            problems=query.problems,
        )
        self._constraints.check()
        hardware = Hardware(
            gpus=query.gpus,
            response_tokens=query.response_tokens,
            rollouts_per_second=query.rollouts_per_second,
            price_per_gpu_hour=query.price_per_gpu_hour,
        )
        self._prices = prices(
            hardware,
            law_gpu_hours_per_rollout=law.gpu_hours_per_rollout,
            law_response_tokens=law.response_tokens,
            law_source=law.rate_source,
        )

    @property
    def budget(self) -> str:
        """The budget asked for, or half of what the law was measured up to; an error that speaks of the law, not of a
        budget that nobody gave, where rollouts do not convert to its unit.
        """
        if self.query.budget:
            return self.query.budget
        self._prices.rates(1, 1).amount(1.0, self.law.unit)
        return self._in_unit(float(f"{self.law.last / 2:.2g}"))

    def plan(self, budget: str) -> Plan:
        """What `isocompute plan` finds for this budget."""
        from isocompute.planner.budget import parse_budget
        from isocompute.planner.planner import make_plan

        return make_plan(
            law=self.law,
            budget=parse_budget(budget),
            prices=self._prices,
            constraints=self._constraints,
            metric=self.query.metric,
            difficulty=self.query.difficulty,
            truncated=self.query.truncated,
            extrapolate=self.query.extrapolate,
            diagnosis=self._diagnosis,
        )

    def band(self) -> list[dict[str, Any]]:
        """What the best allocation is expected to reach at each of a row of budgets, where they buy one."""
        import numpy as np

        rows = []
        for compute in np.geomspace(self.law.first, _BEYOND * self.law.last, _LOOKS):
            try:
                rows.append(self.chosen(self._in_unit(float(f"{compute:.4g}"))))
            except InputError:
                if self.rough is not None:
                    raise  # the final law may know (`planned`)
        return rows

    def chosen(self, budget: str) -> dict[str, Any]:
        """The plan for a budget as a row of the band."""
        option = self.plan(budget).chosen
        a = option.allocation
        rates = self._prices.rates(a.problems_per_batch, a.rollouts_per_problem)
        return {
            "budget": budget,
            "compute": rates.amount(a.compute, self.law.unit),
            "problems_per_batch": a.problems_per_batch,
            "rollouts_per_problem": a.rollouts_per_problem,
            "update_steps": a.update_steps,
            "value": option.ranked.value,
            "low": option.ranked.interval[0],
            "high": option.ranked.interval[1],
        }

    def _in_unit(self, amount: float) -> str:
        return f"{amount:.10g}{_SUFFIXES.get(self.law.unit, '')}"

    def command(self, budget: str) -> str:
        """The command that prints the same plan; two where the runs are read in a way that only `fit` can be told."""
        q = self.query
        fitting = {"metric": q.metric, "replicates": self._replicates}
        direct = reading_command(self._reading, "plan") is not None
        law, first = (self._address if q.law == STUDY else q.law), ""
        if not direct:
            fit = reading_command(self._reading, "fit", law, options={**fitting, "out": _KEPT})
            law, first, fitting = _KEPT, f"{fit} && ", {}
        return first + command_line(
            "plan",
            options={
                "budget": budget,
                "law": law,
                **(self._reading.options if direct else {}),
                **fitting,
                "difficulty": q.difficulty,
                "problems": q.problems,
                "problems_per_batch": q.problems_per_batch,
                "batch": q.batch,
                "n": self._constraints.rollouts_per_problem,
                "stable_problems": None if q.stable_low is None else f"{q.stable_low}-{q.stable_high}",
                "max_batch": q.max_batch,
                "min_updates": q.min_updates if q.min_updates > 1 else None,
                "truncated": q.truncated,
                "gpus": q.gpus,
                "response_tokens": q.response_tokens,
                "rollouts_per_second": q.rollouts_per_second,
                "price_per_gpu_hour": q.price_per_gpu_hour,
                "extrapolate": q.extrapolate,
            },
        )


def planner(results: Results, query: PlanQuery, *, final: bool = False) -> tuple[Planner, Scope | None]:
    """The planner of a request, and what its law was fitted to; None for a published law, which never changes."""
    if query.law != STUDY:
        return Planner(query, law=_published(query.law)), None
    importlib.import_module(
        "isocompute.planner.planner"
    )  # it takes half a second to load, and the law may take as long
    scope = results.scope(query.part, query.metric, final=final or query.final)
    refused = several(scope.runs, results.source)
    if refused is not None:
        raise InputError(refused)
    found, fitted = results.planning_law(scope, query.problems_per_batch)
    # What limits the runs takes fits of its own: a rough plan does not wait for them.
    diagnosis = results.diagnosis(scope) if fitted.rough is None else None
    made = Planner(
        query,
        law=found.value,
        diagnosis=None if diagnosis is None else diagnosis.value,
        version=found.version,
        fresh=found.fresh and (diagnosis is None or diagnosis.fresh),
        address=results.source.at(scope.part),
        reading=results.source.reading,
        fitted=fitted,
    )
    return made, scope


def planned(
    results: Results, query: PlanQuery, make: Callable[[Planner, Scope | None], T], *, final: bool = False
) -> tuple[Planner, T]:
    """What `make` makes of a request's planner, and the planner.

    An error is never preliminary: a rough law has no surface, and so knows only the settings that were run.
    """
    made, scope = planner(results, query, final=final)
    try:
        return made, make(made, scope)
    except InputError:
        if made.rough is None:
            raise
    made, scope = planner(results, query, final=True)
    return made, make(made, scope)


@functools.cache
def _published(name: str) -> PlanningLaw:
    from isocompute.planner.published import entries, published

    if name not in {entry.name for entry in entries()}:
        raise InputError(f"law '{name}': it is 'study' or one of the published laws that /api/laws lists.")
    return published(name)
