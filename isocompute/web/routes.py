"""The routes of the API. A response with a command in its header is what that command prints with `--json`."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from fastapi import Path as PathParameter

from isocompute import api, sweep
from isocompute.core.curve import choose_metric, choose_unit, curves_of
from isocompute.core.errors import InputError
from isocompute.core.run import Run
from isocompute.law.comparison import Comparison
from isocompute.law.forecasting import Forecast
from isocompute.planner.published import entries
from isocompute.report.charts import commands as charts
from isocompute.report.figures import FIGURES, Missing
from isocompute.web.cache import CachedResult
from isocompute.web.planning import PlanQuery, as_parameters, band_chart, planner, why_no_plan
from isocompute.web.responses import (
    ChartFormat,
    InScope,
    PartName,
    RunName,
    SharedResults,
    TableFormat,
    chart_response,
    described,
    json_response,
    table_response,
)
from isocompute.web.results import Results, Scope, numbers, replicates_option
from isocompute.web.source import command_line

router = APIRouter(prefix="/api")
_TABLE = described("text/csv")
_CHART = described("image/png", "image/svg+xml", "text/csv")
_JUDGING_SECONDS = 0.3
"""Time that a request spends on judging runs, short enough for other requests in between."""


# --- The study --------------------------------------------------------------------------------------------------------


@router.get("/about", responses=described())
def about(results: SharedResults, part: PartName = None) -> Response:
    """What is served: parts, runs, metrics and the warnings of loading them. The page's controls come from this."""
    snapshot = results.snapshot()
    name = snapshot.part(part)
    data: dict[str, Any] = {
        "name": Path(results.source.address).name,
        "address": results.source.at(name),
        "version": snapshot.version,
        "part": name,
        "parts": [{"part": p.name, "runs": p.runs} for p in snapshot.parts],
        "study": snapshot.spec_of(name) is not None,
        "runs": [],
        "metrics": [],
        "warnings": [],
        "empty": None,
        "unplanned": None,
    }
    try:
        scope = results.scope(name)
    except InputError as error:
        return json_response(data | {"empty": as_parameters(str(error))})
    runs_with = Counter(metric for run in scope.runs for metric in run.metrics)
    data |= {
        "runs": [_described(run) for run in scope.runs],
        "metrics": [{"metric": metric, "runs": count} for metric, count in runs_with.items()],
        "warnings": list(scope.warnings),
        "unplanned": why_no_plan(scope.runs, results.source),
    }
    return json_response(data)


def _described(run: Run) -> dict[str, Any]:
    return {
        "run": run.name,
        "problems_per_batch": run.settings.problems_per_batch,
        "rollouts_per_problem": run.settings.rollouts_per_problem,
        "seed": run.settings.seed,
        "points": run.points.height,
    }


@router.get("/pulse", responses=described())
def pulse(results: SharedResults, part: PartName = None) -> Response:
    """Whether files have changed, and the progress of the study; fast enough to ask every second.

    `version` changes with the files. `status` is what `isocompute study status --json` prints, null without a
    `study.toml`. `prefix` is the start of the cells' names if the study has several parts.
    """
    snapshot = results.snapshot()
    name = snapshot.part(part)
    spec = snapshot.spec_of(name)
    if spec is None:
        return json_response({"version": snapshot.version, "status": None, "prefix": ""})
    folder = results.source.at(spec)
    prefix = f"{name.removeprefix(spec).strip('/')}/".lstrip("/")
    status = sweep.status_to_json(folder, sweep.status(folder=folder))
    data = {"version": snapshot.version, "status": status, "prefix": prefix}
    return json_response(data, command=command_line("study", "status", folder))


@router.get("/cells", responses=_TABLE)
def cells(results: SharedResults, part: PartName = None, format: TableFormat = "json") -> Response:
    """What `isocompute study runs --json` prints: every cell with its allocation, state and last evaluation."""
    snapshot = results.snapshot()
    spec = snapshot.spec_of(snapshot.part(part))
    if spec is None:
        raise InputError(
            f"{results.source.address}: these runs have no study.toml; only a study made by "
            "`isocompute study run SPEC.toml` has cells."
        )
    folder = results.source.at(spec)
    rows = [cell.to_json() for cell in sweep.StudyFolder(folder).status(points=True)]
    data = {"folder": folder, "runs": rows}
    return table_response(data, rows, form=format, name="cells", command=command_line("study", "runs", folder))


@router.get("/runs", responses=_TABLE)
def runs(
    results: SharedResults,
    scope: InScope,
    judge: Annotated[
        bool, Query(description="judge some runs without a verdict; repeat the request while `left` is not 0")
    ] = False,
    format: TableFormat = "json",
) -> Response:
    """Every run's settings, last and best value, sparkline, and verdicts.

    The keys are `metric`, `unit`, `left` (runs without a verdict) and `runs`. A run's `forecast` and `reason` are from
    `isocompute forecast RUN`, and its `health` is from `isocompute health RUN`. Verdicts are null until computed, and
    `forecast` also if there can be none. CSV waits for all verdicts.
    """
    evidence = results.evidence(scope)
    metric, unit, address = evidence.metric, evidence.unit, results.source.at(scope.part)
    if judge or format == "csv":
        seconds = float("inf") if format == "csv" else _JUDGING_SECONDS
        results.status.judge(scope.runs, address=address, metric=metric, unit=unit, seconds=seconds)
    verdicts = {run.name: results.status.known(run, address, metric, unit) for run in scope.runs}
    rows: list[dict[str, Any]] = [
        {
            **_described(run),
            **numbers(run, metric),
            **{key: getattr(verdicts[run.name], key, None) for key in ("forecast", "reason", "health")},
        }
        for run in scope.runs
    ]
    data = {"metric": metric, "unit": unit, "left": sum(v is None for v in verdicts.values()), "runs": rows}
    table = [{key: value for key, value in row.items() if key != "line"} for row in rows]
    return table_response(data, table, form=format, name="runs")


@router.get("/fit", responses=_TABLE)
def fit(results: SharedResults, scope: InScope, format: TableFormat = "json") -> Response:
    """What `isocompute fit --json` prints: curves, frontier, n*(C), trade-offs. CSV has a row for each run."""
    law = results.law(scope)
    data = law.value.to_json()
    replicates = replicates_option(law.value.replicates)
    command = scope.command("fit", metric=scope.metric, unit=scope.unit, replicates=replicates)
    return table_response(data, data["curves"], form=format, name="curves", command=command, fresh=law.fresh)


@router.get("/claims", responses=_TABLE)
def claims(results: SharedResults, scope: InScope, format: TableFormat = "json") -> Response:
    """What `isocompute claims --json` prints: each claim with its statistic, interval, verdict and runs."""
    found = results.cached("claims", scope, lambda: api.judge_claims(scope.runs, metric=scope.metric))
    rows = [claim.to_json() for claim in found.value]
    command = scope.command("claims", metric=scope.metric)
    return table_response({"claims": rows}, rows, form=format, name="claims", command=command, fresh=found.fresh)


# --- Figures ----------------------------------------------------------------------------------------------------------

FigureName = Annotated[str, PathParameter(max_length=60, pattern="^[a-z-]+$", description="a name from /api/figures")]


@router.get("/figures", responses=described())
def figures() -> Response:
    """What `isocompute report --figures --json` prints: the figures, each with its source in a paper."""
    rows = [spec.to_json() for spec in FIGURES.values()]
    return json_response({"figures": rows}, command=command_line("report", "--figures"))


@router.get("/figures/{name}", responses=described())
def figure(name: FigureName, results: SharedResults, scope: InScope) -> Response:
    """What `isocompute report --figure NAME --json` prints: the data of the figure."""
    found = results.figure(scope, name)
    drawn = found.value
    if isinstance(drawn, Missing):
        raise InputError(f"figure '{name}' needs: {drawn.needs}")
    return json_response(drawn.to_json(), command=_figure_command(scope, name), fresh=found.fresh)


@router.get("/figures/{name}/needs", responses=described())
def figure_needs(name: FigureName, results: SharedResults, scope: InScope) -> Response:
    """Whether the data support the figure: `needs` is null if so, else what they lack."""
    found = results.figure(scope, name)
    drawn = found.value
    needs = drawn.needs if isinstance(drawn, Missing) else None
    data = {"name": drawn.name, "title": drawn.title, "source": drawn.source, "needs": needs}
    return json_response(data, fresh=found.fresh)


@router.get("/figures/{name}/chart", responses=_CHART)
def figure_chart(name: FigureName, results: SharedResults, scope: InScope, format: ChartFormat = "vega") -> Response:
    """The figure as Vega-Lite panels for the page, or as a file; `needs` says what the data lack."""
    found = results.figure(scope, name)
    drawn, command = found.value, _figure_command(scope, name)
    if isinstance(drawn, Missing):
        if format != "vega":
            raise InputError(f"figure '{name}' needs: {drawn.needs}")
        return json_response({**drawn.to_json(), "panels": []}, command=command, fresh=found.fresh)
    more = {key: getattr(drawn, key) for key in ("name", "title", "source", "caption")}
    return chart_response(
        drawn.chart, form=format, name=name, more=more, command=command, fresh=found.fresh, panels=drawn.panels
    )


def _figure_command(scope: Scope, name: str) -> str | None:
    replicates = replicates_option(scope.replicates)
    return scope.command("report", figure=name, metric=scope.metric, unit=scope.unit, replicates=replicates)


# --- Plans ------------------------------------------------------------------------------------------------------------


class ChartQuery(PlanQuery):
    """The options of a plan, and the format of its chart."""

    format: ChartFormat = "vega"


@router.get("/plan", responses=described())
def plan(results: SharedResults, query: Annotated[PlanQuery, Query()]) -> Response:
    """What `isocompute plan --json` prints: allocation, recipe, expected reward, cost, alternatives, warnings."""
    made = planner(results, query)
    return json_response(made.plan(made.budget).to_json(), command=made.command, fresh=made.fresh)


@router.get("/plan.csv", responses={200: {"description": "A row for each allocation.", "content": {"text/csv": {}}}})
def plan_table(results: SharedResults, query: Annotated[PlanQuery, Query()]) -> Response:
    """The chosen allocation and its alternatives as a table."""
    made = planner(results, query)
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
    return table_response(data, rows, form="csv", name="plan", command=made.command, fresh=made.fresh)


@router.get("/plan/band", responses=described())
def band(results: SharedResults, query: Annotated[PlanQuery, Query()]) -> Response:
    """Plans for budgets across the law's range and four times beyond: `unit`, `metric`, `range`, `rows`.

    A row is the best allocation at its budget with the expected reward and its 80% interval. The query's budget is not
    used.
    """
    made = planner(results, query)
    law = made.law
    data = {"unit": law.unit, "metric": law.metric, "range": [law.first, law.last], "rows": made.band()}
    return json_response(data, fresh=made.fresh)


@router.get("/plan/band/chart", responses=_CHART)
def plan_chart(results: SharedResults, query: Annotated[ChartQuery, Query()]) -> Response:
    """The band as a chart, with the plan for the query's budget on it."""
    made = planner(results, query)
    rows = made.band()
    if not rows:
        raise InputError("no budget in the law's range allows an allocation under these constraints.")
    law = made.law
    chart = band_chart(rows, made.row(made.budget), metric=law.metric, unit=law.unit, last=law.last)
    caption = (
        f"The best allocation's expected {law.metric} and its 80% interval at each budget; the dashed line is "
        "the end of the law's data, and this plan is orange."
    )
    more = {"title": "Expected reward over budgets", "caption": caption}
    return chart_response(chart, form=query.format, name="plan", more=more, command=made.command, fresh=made.fresh)


@router.get("/laws", responses=_TABLE)
def laws(format: TableFormat = "json") -> Response:
    """What `isocompute plan --laws --json` prints: the published laws with source, setup and range."""
    rows = [asdict(entry) | {"range": list(entry.range)} for entry in entries()]
    return table_response({"laws": rows}, rows, form=format, name="laws", command=command_line("plan", "--laws"))


# --- One run ----------------------------------------------------------------------------------------------------------

To = Annotated[str, Query(max_length=20, pattern=r"^[0-9.e+]+x?$", description="compute to forecast, as 2x or 4e6")]
Until = Annotated[float | None, Query(gt=0, le=1e30, description="fit only points up to this share or compute")]


@router.get("/points", responses=_TABLE)
def points(scope: InScope, run: RunName, format: TableFormat = "json") -> Response:
    """A run's settings and points as they are on disk: `run`, `settings`, `points` (one object per evaluation)."""
    found = scope.runs.named(run)
    rows = [
        {key: None if isinstance(value, float) and value - value != 0 else value for key, value in row.items()}
        for row in found.points.to_dicts()
    ]  # JSON has no NaN and no infinity
    data = {"run": found.name, "settings": found.settings.model_dump(exclude_none=True), "points": rows}
    return table_response(data, rows, form=format, name=_file_name(run))


@router.get("/forecast", responses=described())
def forecast(scope: InScope, run: RunName, to: To = "2x", fit_until: Until = None) -> Response:
    """What `isocompute forecast RUN --json` prints: where the run will be, with an interval and a verdict."""
    found, command = _forecast(scope, run, to, fit_until)
    return json_response(found.to_json(), command=command)


@router.get("/forecast/chart", responses=_CHART)
def forecast_chart(
    scope: InScope, run: RunName, to: To = "2x", fit_until: Until = None, format: ChartFormat = "vega"
) -> Response:
    """The run so far and its forecast, as `isocompute forecast --chart` draws it."""
    found, command = _forecast(scope, run, to, fit_until)
    (curve,), metric, unit = curves_of(scope.only(run), metric=scope.metric, unit=scope.unit)
    end = min(found.fitted_points, len(curve.compute_C))
    later = replace(curve, compute_C=curve.compute_C[end:], values_C=curve.values_C[end:])  # not used by the forecast
    chart = charts.forecast_chart(
        curve.until(end), found, metric=metric, unit=unit, later=later if len(later.compute_C) else None
    )
    return chart_response(
        chart,
        form=format,
        name=f"forecast-{_file_name(run)}",
        more={"title": f"Forecast of {run}", "caption": found.reason, "metric": metric, "unit": unit},
        command=command,
    )


def _forecast(scope: Scope, run: str, to: str, fit_until: float | None) -> tuple[Forecast, str | None]:
    """The forecast, and the command that prints it."""
    options: dict[str, Any] = {"to": to, "fit_until": fit_until, "metric": scope.metric, "unit": scope.unit}
    return api.forecast(scope.only(run), **options), scope.command("forecast", run, **options)


@router.get("/health", responses=_TABLE)
def health(scope: InScope, run: RunName, format: TableFormat = "json") -> Response:
    """What `isocompute health RUN --json` prints: a verdict, and every finding with its evidence and advice."""
    found = api.check_health(scope.only(run), paths=[scope.at(run)])[0]
    report = found.to_json()
    data = {"verdict": found.verdict, "runs": [report]}
    name, command = f"health-{_file_name(run)}", scope.command("health", run)
    return table_response(data, report["findings"], form=format, name=name, command=command)


def _file_name(run: str) -> str:
    return run.replace("/", "-")


# --- Two runs ---------------------------------------------------------------------------------------------------------


@router.get("/compare", responses=described())
def compare(results: SharedResults, scope: InScope, a: RunName, b: RunName) -> Response:
    """What `isocompute compare A B --json` prints. `a` and `b` are runs of the part."""
    found, command = _compare(results, scope, a, b)
    return json_response(found.value.to_json(), command=command, fresh=found.fresh)


@router.get("/compare/chart", responses=_CHART)
def compare_chart(
    results: SharedResults, scope: InScope, a: RunName, b: RunName, format: ChartFormat = "vega"
) -> Response:
    """The two runs with their fits, as `isocompute compare --chart` draws them."""
    found, command = _compare(results, scope, a, b)
    one = scope.only(a)
    metric, unit = choose_metric(one, scope.metric), choose_unit(one, scope.unit)
    return chart_response(
        charts.comparison_chart(found.value, metric=metric, unit=unit, names=(a, b)),
        form=format,
        name="compare",
        more={"title": f"{a} against {b}", "caption": "", "metric": metric, "unit": unit},
        command=command,
        fresh=found.fresh,
    )


def _compare(results: Results, scope: Scope, a: str, b: str) -> tuple[CachedResult[Comparison], str | None]:
    """The comparison, and the command that prints it."""
    if a == b:
        raise InputError(f"both sides are '{a}': choose two different runs.")
    options: dict[str, Any] = {"metric": scope.metric, "unit": scope.unit}
    one, other = scope.only(a), scope.only(b)
    found = results.cached("comparison", scope, lambda: api.compare(one, other, **options), a, b)
    return found, scope.command("compare", a, b, **options)
