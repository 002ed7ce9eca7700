"""The study: what is in it, how far its cells are, its law, and its figures."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Response

from isocompute.core.errors import InputError
from isocompute.web.answers import ChartFormat, TableFormat, chart_file, json_answer, table_answer
from isocompute.web.commands import command_line, reading_command
from isocompute.web.fitting import asked, points_of, replicates_for
from isocompute.web.request import Part, Scoped, Shared, responses
from isocompute.web.results import Results
from isocompute.web.unsaid import unsaid
from isocompute.web.wording import as_parameters

__all__ = ["router"]

router = APIRouter(tags=["study"])
Figure = Annotated[str, Path(max_length=60, pattern="^[a-z-]+$", description="a name from /api/figures")]


@router.get("/about", responses=responses())
def about(results: Shared, part: Part = None) -> Response:
    """What is served: parts, runs, metrics and what loading them had to say. The page's controls come from this."""
    snapshot = results.snapshot()
    name = snapshot.part(part)
    data: dict[str, Any] = {
        "name": results.source.name,
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
        runs = scope.runs
    except InputError as error:
        return json_answer(data | {"empty": as_parameters(str(error))})
    having: dict[str, int] = {}
    for run in runs:
        for metric in run.metrics:
            having[metric] = having.get(metric, 0) + 1
    data["runs"] = [
        {
            "run": run.name,
            "problems_per_batch": run.settings.problems_per_batch,
            "rollouts_per_problem": run.settings.rollouts_per_problem,
            "seed": run.settings.seed,
            "points": run.points.height,
        }
        for run in runs
    ]
    data |= {
        "metrics": [{"metric": metric, "runs": count} for metric, count in having.items()],
        "warnings": list(scope.warnings),
        "unplanned": unsaid(runs, results.source),
    }
    return json_answer(data)


@router.get("/pulse", responses=responses())
def pulse(results: Shared, part: Part = None) -> Response:
    """Whether anything has changed, and how far the study is. Cheap: a page asks every second or two.

    `version` changes with the files; `status` is what `isocompute study status --json` prints, null where there is no
    `study.toml`; `prefix` is what a cell's name begins with where the study has several parts.
    """
    snapshot = results.snapshot()
    name = snapshot.part(part)
    spec = snapshot.spec_of(name)
    status, prefix = None, ""
    if spec is not None:
        from isocompute import sweep as study
        from isocompute.cli.study import status_json

        folder = results.source.at(spec)
        status = status_json(folder, study.status(folder=folder))
        prefix = f"{name.removeprefix(spec).strip('/')}/".lstrip("/")
    command = None if spec is None else command_line("study", "status", results.source.at(spec))
    return json_answer({"version": snapshot.version, "status": status, "prefix": prefix}, command=command)


@router.get("/cells", responses=responses("text/csv"))
def cells(results: Shared, part: Part = None, format: TableFormat = "json") -> Response:
    """What `isocompute study runs --json` prints: every cell with its allocation, state and last evaluation."""
    from isocompute import sweep as study
    from isocompute.cli.study import run_row

    snapshot = results.snapshot()
    spec = snapshot.spec_of(snapshot.part(part))
    if spec is None:
        raise InputError(
            f"{results.source.address}: these are runs without a study.toml; cells are those of a study that "
            "`isocompute study run SPEC.toml` made."
        )
    folder = results.source.at(spec)
    rows = [run_row(cell) for cell in study.StudyFolder(folder).status(points=True)]
    data = {"folder": folder, "runs": rows}
    return table_answer(data, rows, form=format, name="cells", command=command_line("study", "runs", folder))


@router.get("/fit", responses=responses("text/csv"))
def fit(results: Shared, scope: Scoped, format: TableFormat = "json") -> Response:
    """What `isocompute fit --json` prints: curves, frontier, n*(C), trade-offs. CSV has a row a run."""
    found, fitted = results.law_json(scope)
    options = {"metric": scope.metric, "unit": scope.unit, "replicates": asked(fitted.of)}
    return table_answer(
        found.value,
        found.value["curves"],
        form=format,
        name="curves",
        command=reading_command(results.source.reading, "fit", results.source.at(scope.part), options=options),
        fresh=found.fresh,
        rough=fitted.rough,
    )


@router.get("/figures", responses=responses())
def figures() -> Response:
    """What `isocompute report --figures --json` prints: the figures there are, each with the paper's that it is."""
    from isocompute.report.figures import FIGURES

    rows = [spec.to_json() for spec in FIGURES.values()]
    return json_answer({"figures": rows}, command=command_line("report", "--figures"))


@router.get("/figures/{name}", responses=responses())
def figure(name: Figure, results: Shared, scope: Scoped) -> Response:
    """What `isocompute report --figure NAME --json` prints: the figure's numbers."""
    from isocompute.report.model import Missing

    found = results.figure(scope, name)
    drawn = found.value.figure
    if isinstance(drawn, Missing):
        raise InputError(f"figure '{name}' needs: {drawn.needs}")
    command = _command(results, scope, name)
    return json_answer(drawn.to_json(), command=command, fresh=found.fresh, rough=found.value.rough)


@router.get("/figures/{name}/needs", responses=responses())
def needs(name: Figure, results: Shared, scope: Scoped) -> Response:
    """Whether the data support the figure: `needs` is null where they do, else what they lack."""
    from isocompute.report.model import Missing

    found = results.figure(scope, name)
    drawn = found.value.figure
    data = {"name": drawn.name, "title": drawn.title, "source": drawn.source}
    lacking = drawn.needs if isinstance(drawn, Missing) else None
    return json_answer({**data, "needs": lacking}, fresh=found.fresh, rough=found.value.rough)


@router.get("/figures/{name}/chart", responses=responses("image/png", "image/svg+xml", "text/csv"))
def chart(name: Figure, results: Shared, scope: Scoped, format: ChartFormat = "vega") -> Response:
    """The figure: Vega-Lite panels for the page, or a file. `needs` stands in their place where the data lack it."""
    from isocompute.report.model import Missing

    found = results.figure(scope, name)
    drawn, command = found.value.figure, _command(results, scope, name)
    if isinstance(drawn, Missing):
        if format != "vega":
            raise InputError(f"figure '{name}' needs: {drawn.needs}")
        data = {**drawn.to_json(), "panels": []}
        return json_answer(data, command=command, fresh=found.fresh, rough=found.value.rough)
    if format == "vega":
        more = {key: getattr(drawn, key) for key in ("name", "title", "source", "caption")}
        data = {**more, "panels": found.value.panels}
        return json_answer(data, command=command, fresh=found.fresh, rough=found.value.rough)
    return chart_file(drawn.chart, form=format, name=name, command=command, fresh=found.fresh)


def _command(results: Results, scope: Scoped, name: str) -> str | None:
    replicates = asked(replicates_for(points_of(scope.runs)))
    options = {"figure": name, "metric": scope.metric, "unit": scope.unit, "replicates": replicates}
    return reading_command(results.source.reading, "report", results.source.at(scope.part), options=options)
