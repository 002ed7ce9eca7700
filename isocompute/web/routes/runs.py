"""All runs side by side: where each stands, and what forecast and health say of it."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Response

from isocompute.web.answers import TableFormat, table_answer
from isocompute.web.request import Scoped, Shared, responses
from isocompute.web.standing import numbers

__all__ = ["router"]

router = APIRouter(tags=["study"])
_SLICE = 0.3
"""Seconds of a request that judges runs: other requests get a word in between."""
Judging = Annotated[
    bool, Query(description="judge some of the runs that are not judged yet; ask again while `left` is not 0")
]


@router.get("/runs", responses=responses("text/csv"))
def runs(results: Shared, scope: Scoped, judge: Judging = False, format: TableFormat = "json") -> Response:
    """Every run's settings, last and best value, course in few values, and verdicts.

    `metric`, `unit`, `left` (runs that are not judged yet) and `runs`: `forecast` is the verdict of `isocompute
    forecast RUN` with its `reason`, `health` that of `isocompute health RUN`; null where it is not made yet, and
    `forecast` also where there can be none. CSV waits for all of them.
    """
    evidence = results.evidence(scope)
    metric, unit, address = evidence.metric, evidence.unit, results.source.at(scope.part)
    if judge or format == "csv":
        seconds = float("inf") if format == "csv" else _SLICE
        results.judge.judge(scope.runs, address=address, metric=metric, unit=unit, seconds=seconds)
    rows: list[dict[str, Any]] = []
    left = 0
    for run in scope.runs:
        verdict = results.judge.known(run, address, metric, unit)
        left += verdict is None
        rows.append(
            {
                "run": run.name,
                "problems_per_batch": run.settings.problems_per_batch,
                "rollouts_per_problem": run.settings.rollouts_per_problem,
                "seed": run.settings.seed,
                "points": run.points.height,
                **numbers(run, metric),
                "forecast": None if verdict is None else verdict.forecast,
                "reason": None if verdict is None else verdict.reason,
                "health": None if verdict is None else verdict.health,
            }
        )
    data = {"metric": metric, "unit": unit, "left": left, "runs": rows}
    table = [{key: value for key, value in row.items() if key != "line"} for row in rows]
    return table_answer(data, table, form=format, name="runs")
