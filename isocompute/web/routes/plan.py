"""The plan: an answer for a budget, the expected reward over all budgets, and the published laws."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response

from isocompute.core.errors import InputError
from isocompute.web.answers import TableFormat, chart_answer, json_answer, table_answer
from isocompute.web.commands import command_line
from isocompute.web.planning import ChartQuery, Planner, PlanQuery, planned, planner
from isocompute.web.request import Shared, responses
from isocompute.web.results import Results, Scope

__all__ = ["router"]

router = APIRouter(tags=["plan"])
Asked = Annotated[PlanQuery, Query()]


@router.get("/plan", responses=responses())
def plan(results: Shared, query: Asked) -> Response:
    """What `isocompute plan --json` prints: allocation, recipe, expected reward, cost, alternatives, warnings."""
    made, found = planned(results, query, lambda made, _: made.plan(made.budget))
    command = made.command(made.budget)
    return json_answer(found.to_json(), command=command, fresh=made.fresh, rough=made.rough)


@router.get("/plan.csv", responses={200: {"description": "A row an allocation.", "content": {"text/csv": {}}}})
def plan_table(results: Shared, query: Asked) -> Response:
    """The chosen allocation and its alternatives as a table."""
    made, _ = planner(results, query, final=True)
    data = made.plan(made.budget).to_json()
    keys = ("problems_per_batch", "rollouts_per_problem", "update_steps", "compute", "learning_rate")
    rows = [
        {
            **{key: option[key] for key in keys},
            "metric": option["expected"]["metric"],
            "value": option["expected"]["value"],
            "low": option["expected"]["interval"][0],
            "high": option["expected"]["interval"][1],
            **{key: option[key] for key in ("probability_best", "regret", "within_one_error", "cheapest")},
        }
        for option in (data, *data["alternatives"])
    ]
    command = made.command(made.budget)
    return table_answer(data, rows, form="csv", name="plan", command=command, fresh=made.fresh)


@router.get("/plan/band", responses=responses())
def band(results: Shared, query: Asked) -> Response:
    """The plan at a row of budgets across the law's range and four times beyond: `unit`, `metric`, `range`, `rows`.

    A row is the best allocation at its budget with the expected reward and its 80% interval. The query's budget does
    not matter.
    """
    made, rows = planned(results, query, lambda made, scope: _band(results, query, made, scope))
    data = {"unit": made.law.unit, "metric": made.law.metric, "range": [made.law.first, made.law.last], "rows": rows}
    return json_answer(data, fresh=made.fresh, rough=made.rough)


@router.get("/plan/band/chart", responses=responses("image/png", "image/svg+xml", "text/csv"))
def chart(results: Shared, query: Annotated[ChartQuery, Query()]) -> Response:
    """The band as a chart, with the plan for the query's budget on it."""
    from isocompute.web.band_chart import band_chart

    def parts(made: Planner, scope: Scope | None) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        rows = _band(results, query, made, scope)
        if not rows:
            raise InputError("no budget in the law's range buys an allocation that keeps to these constraints.")
        return rows, made.chosen(made.budget)

    made, (rows, chosen) = planned(results, query, parts, final=query.format != "vega")
    drawn = band_chart(rows, chosen, metric=made.law.metric, unit=made.law.unit, last=made.law.last)
    caption = (
        f"The best allocation's expected {made.law.metric} and its 80% interval at each budget; the dashed line is "
        "where the law's data end, orange is this plan."
    )
    more = {"title": "Expected reward over budgets", "caption": caption}
    command = made.command(made.budget)
    return chart_answer(
        drawn, form=query.format, name="plan", more=more, command=command, fresh=made.fresh, rough=made.rough
    )


def _band(results: Results, query: PlanQuery, made: Planner, scope: Scope | None) -> list[dict[str, Any]]:
    if scope is None:
        return made.band()
    asked = query.model_copy(update={"budget": None}).model_dump_json(exclude={"format", "final"})
    return results.quick("band", scope, made.band, asked, made.rough, version=made.version).value


@router.get("/laws", responses=responses("text/csv"))
def laws(format: TableFormat = "json") -> Response:
    """What `isocompute plan --laws --json` prints: the published laws with source, setup and range."""
    from isocompute.planner.published import entries

    rows = [asdict(entry) | {"range": list(entry.range)} for entry in entries()]
    return table_answer({"laws": rows}, rows, form=format, name="laws", command=command_line("plan", "--laws"))
