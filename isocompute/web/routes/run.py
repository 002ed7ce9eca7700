"""One run: its points, where it is going, and whether it is healthy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Query, Response

from isocompute.web.answers import ChartFormat, TableFormat, chart_answer, json_answer, table_answer
from isocompute.web.cache import Found
from isocompute.web.commands import named_run, reading_command
from isocompute.web.reading import Reading
from isocompute.web.request import Name, Scoped, Shared, responses
from isocompute.web.results import Results, Scope

if TYPE_CHECKING:
    from isocompute.data import RunSet
    from isocompute.law import Curve, Forecast

__all__ = ["router"]

router = APIRouter(tags=["run"])
To = Annotated[str, Query(max_length=20, pattern=r"^[0-9.e+]+x?$", description="how far: 2x, or a compute such as 4e6")]
Until = Annotated[float | None, Query(gt=0, le=1e30, description="fit points up to here: a share, or a compute")]


@router.get("/points", responses=responses("text/csv"))
def points(scope: Scoped, run: Name, format: TableFormat = "json") -> Response:
    """A run's settings and points, as they are on disk: `run`, `settings`, `points` (one object an evaluation)."""
    found = scope.runs.named(run)
    rows = _finite(found.points.to_dicts())
    data = {"run": found.name, "settings": found.settings.model_dump(exclude_none=True), "points": rows}
    return table_answer(data, rows, form=format, name=_file(run))


@router.get("/forecast", responses=responses())
def forecast(results: Shared, scope: Scoped, run: Name, to: To = "2x", fit_until: Until = None) -> Response:
    """What `isocompute forecast RUN --json` prints: where the run will be, with an interval and a verdict."""

    found = _forecast(results, scope, run, to, fit_until)
    command = _command(results, scope, run, to, fit_until)
    return json_answer(found.value.to_json(), command=command, fresh=found.fresh)


@router.get("/forecast/chart", responses=responses("image/png", "image/svg+xml", "text/csv"))
def forecast_chart(
    results: Shared, scope: Scoped, run: Name, to: To = "2x", fit_until: Until = None, format: ChartFormat = "vega"
) -> Response:
    """The run so far and where it is going, as `isocompute forecast --chart` draws it."""
    from isocompute.law import curves_of
    from isocompute.report import charts

    made = _forecast(results, scope, run, to, fit_until)
    (curve,), metric, unit = curves_of(_only(scope, run), metric=scope.metric, unit=scope.unit)
    end = min(made.value.fitted_points, len(curve.compute_C))
    chart = charts.forecast_chart(curve.until(end), made.value, metric=metric, unit=unit, later=_after(curve, end))
    return chart_answer(
        chart,
        form=format,
        name=f"forecast-{_file(run)}",
        more={"title": f"Forecast of {run}", "caption": made.value.reason, "metric": metric, "unit": unit},
        command=_command(results, scope, run, to, fit_until),
        fresh=made.fresh,
    )


@router.get("/health", responses=responses("text/csv"))
def health(results: Shared, scope: Scoped, run: Name, format: TableFormat = "json") -> Response:
    """What `isocompute health RUN --json` prints: a verdict, and every finding with its evidence and advice."""
    from isocompute import api

    address = named_run(results.source.at(scope.part), run)
    one = _only(scope, run)
    found = results.quick("health", scope, lambda: api.check_health(one, paths=[address])[0], run)
    looked = found.value.to_json()
    data = {"verdict": found.value.verdict, "runs": [looked]}
    rows = looked["findings"]
    command = reading_command(_chosen(results), "health", address)
    return table_answer(data, rows, form=format, name=f"health-{_file(run)}", command=command, fresh=found.fresh)


def _forecast(results: Results, scope: Scope, run: str, to: str, fit_until: float | None) -> Found[Forecast]:
    one = _only(scope, run)

    def make() -> Forecast:
        from isocompute import api

        return api.forecast(one, to=to, fit_until=fit_until, metric=scope.metric, unit=scope.unit)

    return results.quick("forecast", scope, make, run, to, fit_until)


def _only(scope: Scope, run: str) -> RunSet:
    return replace(scope.runs, runs=(scope.runs.named(run),))


def _after(curve: Curve, end: int) -> Curve | None:
    """The points that the forecast did not see."""
    if end >= len(curve.compute_C):
        return None
    return replace(curve, compute_C=curve.compute_C[end:], values_C=curve.values_C[end:])


def _command(results: Results, scope: Scope, run: str, to: str, fit_until: float | None) -> str | None:
    options = {"to": to, "fit_until": fit_until, "metric": scope.metric, "unit": scope.unit}
    address = named_run(results.source.at(scope.part), run)
    return reading_command(results.source.reading.of_one, "forecast", address, options=options)


def _chosen(results: Results) -> Reading:
    """How to read a run that is named: in a folder, which runs are meant does not matter any more."""
    reading = results.source.reading.of_one
    return replace(reading, where={}) if Path(results.source.address).is_dir() else reading


def _finite(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    """Without what JSON cannot say: a NaN or an infinity is no value."""
    return [{k: None if isinstance(v, float) and v - v != 0 else v for k, v in row.items()} for row in rows]


def _file(run: str) -> str:
    return run.replace("/", "-")
