"""Two runs side by side."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fastapi import APIRouter, Response

from isocompute.core.errors import InputError
from isocompute.web.answers import ChartFormat, chart_answer, json_answer
from isocompute.web.cache import Found
from isocompute.web.commands import named_run, reading_command
from isocompute.web.request import Name, Scoped, Shared, responses
from isocompute.web.results import Results, Scope

if TYPE_CHECKING:
    from isocompute.data import RunSet
    from isocompute.law import Comparison

__all__ = ["router"]

router = APIRouter(tags=["compare"])


@router.get("/compare", responses=responses())
def compare(results: Shared, scope: Scoped, a: Name, b: Name) -> Response:
    """What `isocompute compare A B --json` prints. `a` and `b` are runs of the part."""

    found = _compare(results, scope, a, b)
    return json_answer(found.value.to_json(), command=_command(results, scope, a, b), fresh=found.fresh)


@router.get("/compare/chart", responses=responses("image/png", "image/svg+xml", "text/csv"))
def compare_chart(results: Shared, scope: Scoped, a: Name, b: Name, format: ChartFormat = "vega") -> Response:
    """The two with their fits, as `isocompute compare --chart` draws them."""
    from isocompute.law.from_runs import choose_metric, choose_unit
    from isocompute.report.charts import comparison_chart

    found = _compare(results, scope, a, b)
    side = _side(scope, a)
    metric, unit = choose_metric(side, scope.metric), choose_unit(side, scope.unit)
    chart = comparison_chart(found.value, metric=metric, unit=unit, names=(a, b))
    return chart_answer(
        chart,
        form=format,
        name="compare",
        more={"title": f"{a} against {b}", "caption": "", "metric": metric, "unit": unit},
        command=_command(results, scope, a, b),
        fresh=found.fresh,
    )


def _compare(results: Results, scope: Scope, a: str, b: str) -> Found[Comparison]:
    if a == b:
        raise InputError(f"both sides are '{a}': choose two different runs.")
    sides = _side(scope, a), _side(scope, b)

    def make() -> Comparison:
        from isocompute import api

        return api.compare(*sides, metric=scope.metric, unit=scope.unit)

    return results.quick("comparison", scope, make, a, b)


def _side(scope: Scope, run: str) -> RunSet:
    return replace(scope.runs, runs=(scope.runs.named(run),))


def _command(results: Results, scope: Scope, a: str, b: str) -> str | None:
    at = results.source.at(scope.part)
    options = {"metric": scope.metric, "unit": scope.unit}
    return reading_command(
        results.source.reading.of_one, "compare", named_run(at, a), named_run(at, b), options=options
    )
