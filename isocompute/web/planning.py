"""Plans for the app: the options of `isocompute plan` as a query, on a cached law, and the chart over budgets."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import altair as alt
import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from isocompute.core.curve import choose_unit
from isocompute.core.errors import InputError
from isocompute.core.formatting import plural
from isocompute.core.run import RunSet
from isocompute.data.compatible import conditions_of
from isocompute.planner.cost.prices import Hardware, Prices, prices
from isocompute.planner.decide import Plan, decide
from isocompute.planner.law import PlanningLaw, planning_law
from isocompute.planner.published import entries, published
from isocompute.planner.regime import Diagnosis, diagnose
from isocompute.planner.request import UNITS, PlanRequest, option_of, parse_budget
from isocompute.report.charts.style import ACCENT, BLUE, GREY, band, chart, compute_axis, panel, value_axis
from isocompute.web.results import Results, Scope
from isocompute.web.source import Source, command_line

STUDY = "study"
"""The name of the law that is fitted to the runs being served."""
_BAND_BUDGETS = 25
_BAND_RANGE = 4.0
"""The band extends this many times beyond the law's range, as forecasts and comparisons do."""
_EXAMPLES: dict[str, tuple[Any, str]] = {
    "problems_per_batch": (32, "problems per batch (Bp)"),
    "rollouts_per_problem": (8, "rollouts per problem (n)"),
}
_NAMED = 4
Count = Annotated[int, Field(ge=1, le=10**9)]
Amount = Annotated[float, Field(gt=0, le=1e12)]


class PlanQuery(BaseModel):
    """The options of `isocompute plan` as a query, except options that name files."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    law: str = Field(default=STUDY, max_length=80, description="'study', or a published law from /api/laws")
    budget: str | None = Field(
        default=None, max_length=30, description="2e6, 3e9tok, 500h or $2000; half of the law's range by default"
    )
    part: str | None = Field(default=None, max_length=400, description="the part of the study for law 'study'")
    metric: str | None = Field(default=None, min_length=1, max_length=200)
    difficulty: Literal["easy", "hard"] | None = None
    problems: Count | None = Field(default=None, description="D: problems in the training set")
    problems_per_batch: Count | None = Field(default=None, description="fix Bp")
    batch: Count | None = Field(default=None, description="fix B = Bp · n")
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

    def request(self) -> PlanRequest:
        """The request; a missing budget is filled in later."""
        if (self.stable_low is None) != (self.stable_high is None):
            raise InputError("a range of stable Bp needs both ends; give both stable_low and stable_high, or neither.")
        return PlanRequest.of(
            budget=self.budget or "1",
            batch_size=self.batch,
            rollouts_per_problem=self.n or None,
            stable_problems=None if self.stable_low is None else (self.stable_low, self.stable_high),
            **self.model_dump(include=PlanRequest.model_fields.keys() - {"budget", "law"}),
        )


_PARAMETERS = {"stable_problems": "stable_low and stable_high", "unit": "unit", "to": "to", "fit_until": "fit_until"}


def as_parameters(text: str) -> str:
    """A command's message with its `--options` replaced by the parameters of the API.

    Options that only the command has are kept, and so are commands in backticks.

    >>> as_parameters("--budget 1e12: outside the law; say --extrapolate, or fit with --columns.")
    'budget 1e12: outside the law; say extrapolate=true, or fit with --columns.'
    >>> as_parameters("--n 3: not run; try `isocompute plan --n 8`.")
    'n 3: not run; try `isocompute plan --n 8`.'
    """

    def parameter(option: re.Match[str]) -> str:
        name = option[1].replace("-", "_")
        field = PlanQuery.model_fields.get(name)
        if field is None:
            return _PARAMETERS.get(name, option[0])
        return f"{name}=true" if field.annotation is bool else name

    parts = text.split("`")
    parts[::2] = [re.sub(r"(?<![\w-])--([a-z](?:[a-z-]*[a-z])?)", parameter, part) for part in parts[::2]]
    return "`".join(parts)


@dataclass(frozen=True)
class Planner:
    """Plans for any budget, from one law under one set of constraints."""

    law: PlanningLaw
    request: PlanRequest
    prices: Prices
    given_budget: str | None
    scope: Scope | None = None
    """The runs that the law was fitted to."""
    diagnosis: Diagnosis | None = None
    fresh: bool = True

    @property
    def budget(self) -> str:
        """The budget asked for, or half of the law's largest compute."""
        if self.given_budget:
            return self.given_budget
        # Raises an error about the law, not the budget, if rollouts do not convert to the law's unit.
        self.prices.rates(1, 1).amount(1.0, self.law.unit)
        return self._in_unit(float(f"{self.law.last / 2:.2g}"))

    def plan(self, budget: str) -> Plan:
        """The plan that `isocompute plan` makes for this budget."""
        request = self.request.model_copy(update={"budget": parse_budget(budget)})
        return decide(law=self.law, request=request, prices=self.prices, diagnosis=self.diagnosis)

    def band(self) -> list[dict[str, Any]]:
        """The plans for a grid of budgets over the law's range and beyond, if the budget allows one."""
        rows = []
        for compute in np.geomspace(self.law.first, _BAND_RANGE * self.law.last, _BAND_BUDGETS):
            with suppress(InputError):
                rows.append(self.row(self._in_unit(float(f"{compute:.4g}"))))
        return rows

    def row(self, budget: str) -> dict[str, Any]:
        """The plan for a budget as a row of the band."""
        option = self.plan(budget).chosen
        a = option.allocation
        rates = self.prices.rates(a.problems_per_batch, a.rollouts_per_problem)
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
        suffix = next((suffix for suffix, unit in UNITS.items() if unit == self.law.unit), "")
        return f"{amount:.10g}{suffix}"

    @property
    def command(self) -> str:
        """The command that prints the same plan, after a `fit` if only that has the options to read these runs."""
        given: dict[str, Any] = {
            option_of(name).removeprefix("--"): value
            for name, field in PlanRequest.model_fields.items()
            if (value := getattr(self.request, name)) != field.default
        }
        if self.request.stable_problems is not None:
            given["stable-problems"] = "{}-{}".format(*self.request.stable_problems)
        law, first = self.law.name, ""
        if self.scope is not None:
            law = self.scope.address
            if self.scope.command("plan") is not None:
                given |= self.scope.options.given
            else:
                fitting = {name: given.pop(name, None) for name in ("metric", "replicates")}
                law, first = "law.json", f"{self.scope.command('fit', **fitting, out='law.json')} && "
        return first + command_line("plan", options=given | {"budget": self.budget, "law": law})


def planner(results: Results, query: PlanQuery) -> Planner:
    """The planner of a request."""
    request, scope, diagnosis, fresh = query.request(), None, None, True
    if query.law == STUDY:
        scope = results.scope(query.part, query.metric)
        if refused := _several_conditions(scope.runs, results.source):
            raise InputError(refused)
        found = results.law(scope)
        fitted, source = found.value, f"fitted to {plural(len(found.value.runs), 'run')}"
        try:
            law = planning_law(fitted, name=scope.address, source=source, problems_per_batch=query.problems_per_batch)
        except InputError as error:
            raise InputError(why_no_plan(scope.runs, results.source) or str(error)) from error
        request = request.model_copy(update={"replicates": fitted.replicates})
        limits = results.cached("limit", scope, lambda: diagnose(scope.runs, metric=fitted.metric))
        diagnosis, fresh = limits.value, found.fresh and limits.fresh
    else:
        law = _published(query.law)
    costs = prices(
        Hardware.of(request),
        law_runs=None if scope is None else scope.runs,
        law_gpu_hours_per_rollout=law.gpu_hours_per_rollout,
        law_response_tokens=law.response_tokens,
        law_source=law.rate_source,
    )
    return Planner(law, request, costs, query.budget, scope, diagnosis, fresh)


@functools.cache
def _published(name: str) -> PlanningLaw:
    if name not in {entry.name for entry in entries()}:
        raise InputError(f"law '{name}': it is 'study' or one of the published laws that /api/laws lists.")
    return published(name)


# --- Why there is no plan ---------------------------------------------------------------------------------------------


def why_no_plan(runs: RunSet, source: Source) -> str | None:
    """Why these runs give no plan, and how to start the app instead; None if nothing prevents it."""
    return _missing_settings(runs, source) or _several_conditions(runs, source)


def _missing_settings(runs: RunSet, source: Source) -> str | None:
    """A message if the runs lack Bp or n."""
    if all(run.settings.problems_per_batch and run.settings.rollouts_per_problem for run in runs):
        return None
    try:
        in_steps = choose_unit(runs) == "steps"  # their cost depends on Bp and n, so every run needs both
    except InputError as error:
        return str(error)
    enough = all if in_steps else any
    missing = [name for name in _EXAMPLES if not enough(getattr(run.settings, name) is not None for run in runs)]
    if not missing:
        return None
    words = " and ".join(f"their {_EXAMPLES[name][1]}" for name in missing)
    options = replace(source.options, **{name: _EXAMPLES[name][0] for name in missing})
    return (
        f"These runs do not log {words}, which a plan needs. "
        f"Start the app again with your numbers: `{command_line('web', source.address, options=options.given)}`"
    )


def _several_conditions(runs: RunSet, source: Source) -> str | None:
    """A message if the runs are of several problem sets or models, whose rewards cannot be compared."""
    conditions = conditions_of(runs)
    keys = list(dict.fromkeys(key for each in conditions for key in each.labels))
    if len(conditions) < 2 or all(key.startswith("recipe.") for key in keys):
        return None
    names = ", ".join(f"'{each.name}' ({len(each.runs)})" for each in conditions[:_NAMED])
    more = f" and {len(conditions) - _NAMED} more" if len(conditions) > _NAMED else ""
    text = (
        f"These runs are of {len(conditions)} conditions, {names}{more}, whose rewards do not compare: "
        "a plan needs one of them."
    )
    for each in sorted(conditions, key=lambda each: -len(each.runs)):
        settings = each.runs[0].settings
        values = {key: getattr(settings, key, None) or each.ingredient(key) for key in keys}
        if all(isinstance(value, str | int | float) and "," not in str(value) for value in values.values()):
            where = {**source.options.where, **{key: str(value) for key, value in values.items()}}
            command = command_line("web", source.address, options=replace(source.options, where=where).given)
            return f"{text} Start the app again with one of them: `{command}`"
    return f"{text} Start the app again with the folder of one of them."


# --- The chart over budgets -------------------------------------------------------------------------------------------


def band_chart(
    rows: Sequence[Mapping[str, Any]], chosen: Mapping[str, Any], *, metric: str, unit: str, last: float
) -> Any:
    """Expected reward with its 80% interval over budgets; a rule marks the end of the law's data.

    The dataset of the chosen plan is named, so that the page can move the mark without drawing the chart again.
    """
    x, y = compute_axis(unit), value_axis(metric)
    tip = [alt.Tooltip(f"{name}:Q", format=form) for name, form in (("compute", ".3~s"), ("value", ".3f"))]
    tip += [alt.Tooltip(f"{name}:Q") for name in ("problems_per_batch", "rollouts_per_problem", "update_steps")]
    mark = alt.Chart(alt.InlineData(values=[dict(chosen)], name="chosen"))
    return panel(
        band(x, y, rows, alt.value(BLUE), opacity=0.2),
        chart(rows).mark_line(color=BLUE, strokeWidth=2).encode(x=x, y=y),
        chart(rows).mark_point(color=BLUE, filled=True, size=22, opacity=0.9).encode(x=x, y=y, tooltip=tip),
        chart([{"compute": last}]).mark_rule(color=GREY, strokeDash=[3, 3]).encode(x=x),
        mark.mark_rule(color=ACCENT, strokeWidth=2).encode(
            x=x, y=alt.Y("low:Q", scale=alt.Scale(zero=False)), y2="high:Q"
        ),
        mark.mark_point(color=ACCENT, filled=True, size=90, opacity=1).encode(x=x, y=y),
        title="",
        width=640,
        height=230,
    )
