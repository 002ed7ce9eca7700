"""Parameters that requests share, and responses: the JSON that the command prints, or CSV, PNG or SVG."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal
from urllib.parse import quote

import vl_convert as vlc
from fastapi import Depends, Query, Request, Response
from pydantic import BaseModel

from isocompute.report.charts.style import themed
from isocompute.web.results import Results, Scope

TableFormat = Literal["json", "csv"]
ChartFormat = Literal["vega", "png", "svg", "csv"]
RunName = Annotated[str, Query(min_length=1, max_length=400)]
PartName = Annotated[str | None, Query(max_length=400, description="a part of the study; the first by default")]
Metric = Annotated[str | None, Query(min_length=1, max_length=200, description="such as avg@4; chosen by default")]
Unit = Annotated[
    Literal["rollouts", "tokens", "gpu_hours", "steps"] | None,
    Query(description="of compute; chosen by default"),
]


class Error(BaseModel):
    """What was wrong, and what to do about it."""

    error: str


RESPONSES: dict[int | str, dict[str, Any]] = {
    400: {
        "model": Error,
        "description": "The study or the request does not allow it; the message says why.",
    },
    422: {"model": Error, "description": "A parameter has the wrong type or is out of bounds."},
}
_HEADERS = {
    "Isocompute-Command": {
        "description": "The command that prints the same with `--json`, percent-encoded.",
        "schema": {"type": "string"},
    },
    "Isocompute-Stale": {
        "description": "Present if the result is of an earlier version of the files.",
        "schema": {"type": "string", "enum": ["1"]},
    },
}


def described(*kinds: str) -> dict[int | str, dict[str, Any]]:
    """The OpenAPI description of a result as JSON and as files of these media types."""
    content: dict[str, Any] = {"application/json": {"schema": {"type": "object"}}}
    content |= {kind: {"schema": {"type": "string", "format": "binary"}} for kind in kinds}
    return {200: {"description": "The result.", "headers": _HEADERS, "content": content}}


def _results(request: Request) -> Results:
    found: Results = request.app.state.results
    return found


SharedResults = Annotated[Results, Depends(_results)]


def _scope(results: SharedResults, part: PartName = None, metric: Metric = None, unit: Unit = None) -> Scope:
    return results.scope(part, metric, unit)


InScope = Annotated[Scope, Depends(_scope)]


def json_response(data: Any, *, command: str | None = None, fresh: bool = True, status: int = 200) -> Response:
    """Data as JSON, as the command prints them."""
    text = json.dumps(data, allow_nan=False, ensure_ascii=False)
    return _response(text.encode(), "application/json", command=command, fresh=fresh, status=status)


def table_response(
    data: Any,
    rows: Iterable[Mapping[str, Any]],
    *,
    form: TableFormat,
    name: str,
    command: str | None = None,
    fresh: bool = True,
) -> Response:
    """Data as JSON, or its rows as CSV."""
    if form == "json":
        return json_response(data, command=command, fresh=fresh)
    return _response(as_csv(rows), "text/csv; charset=utf-8", file=f"{name}.csv", command=command, fresh=fresh)


def chart_response(
    chart: Any,
    *,
    form: ChartFormat,
    name: str,
    more: Mapping[str, Any],
    command: str | None,
    fresh: bool = True,
    panels: Sequence[Any] = (),
) -> Response:
    """A chart as Vega-Lite panels for the page, with the keys of `more`; or as a file.

    CSV has a row for every mark, numbered by its layer.
    """
    if form == "vega":
        specs = [themed(panel, background=None) for panel in panels or [chart]]
        return json_response({**more, "panels": specs}, command=command, fresh=fresh)
    spec = themed(chart)
    if form == "csv":
        layers = enumerate(spec.get("datasets", {}).values(), start=1)
        data, kind = as_csv({"layer": i, **row} for i, rows in layers for row in rows), "text/csv; charset=utf-8"
    elif form == "png":
        data, kind = vlc.vegalite_to_png(spec, scale=2.0), "image/png"
    else:
        data, kind = vlc.vegalite_to_svg(spec).encode(), "image/svg+xml"
    return _response(data, kind, file=f"{name}.{form}", command=command, fresh=fresh)


def as_csv(rows: Iterable[Mapping[str, Any]]) -> bytes:
    """A table with the columns of all rows, in the order in which they appear; nested values are written as JSON."""
    rows = list(rows)
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_cell(row.get(name)) for name in columns] for row in rows)
    return text.getvalue().encode()


def _cell(value: Any) -> Any:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    if isinstance(value, str):
        return f"'{value}" if value.startswith(tuple("\t=+-@")) else value  # not a formula in a spreadsheet
    return value if isinstance(value, int | float) else json.dumps(value, ensure_ascii=False)


def _response(
    data: bytes, kind: str, *, file: str | None = None, command: str | None, fresh: bool, status: int = 200
) -> Response:
    headers = {"Cache-Control": "no-store"}
    if command is not None:
        headers["Isocompute-Command"] = quote(command)  # headers are ASCII
    if not fresh:
        headers["Isocompute-Stale"] = "1"
    if file is not None:
        headers["Content-Disposition"] = f"attachment; filename*=UTF-8''{quote(file, safe='')}"
    return Response(data, status_code=status, media_type=kind, headers=headers)
