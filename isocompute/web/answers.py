"""How a result becomes an answer: the command's own JSON, or the same as CSV, PNG or SVG to keep."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping
from typing import Any, Literal
from urllib.parse import quote

from fastapi import Response

from isocompute.web.fitting import Rough

__all__ = [
    "COMMAND",
    "PRELIMINARY",
    "STALE",
    "ChartFormat",
    "TableFormat",
    "chart_answer",
    "chart_file",
    "json_answer",
    "table_answer",
]

COMMAND = "Isocompute-Command"
"""Header with the command line that prints this answer, percent-encoded since headers are ASCII."""
STALE = "Isocompute-Stale"
"""Header of an answer that rests on the files of a moment ago, while the next one is being made."""
PRELIMINARY = "Isocompute-Preliminary"
"""Header of an answer that rests on a rough law while the final one is being made: `50/200` replicates."""
TableFormat = Literal["json", "csv"]
ChartFormat = Literal["vega", "png", "svg", "csv"]
_ASIDE = "\t=+-@"
"""A cell that begins so is a formula to a spreadsheet."""


def json_answer(
    data: Any, *, command: str | None = None, fresh: bool = True, rough: Rough | None = None, status: int = 200
) -> Response:
    """Data as the command prints it; what rests on a rough law says so."""
    if rough is not None:
        data = {**data, "preliminary": True, "replicates": rough.replicates}
    text = json.dumps(data, allow_nan=False, ensure_ascii=False)
    answer = _answer(text.encode(), "application/json", command=command, fresh=fresh, status=status)
    if rough is not None:
        answer.headers[PRELIMINARY] = f"{rough.replicates}/{rough.of}"
    return answer


def table_answer(
    data: Any,
    rows: Iterable[Mapping[str, Any]],
    *,
    form: TableFormat,
    name: str,
    command: str | None = None,
    fresh: bool = True,
    rough: Rough | None = None,
) -> Response:
    """Data as JSON, or its rows as CSV."""
    if form == "json":
        return json_answer(data, command=command, fresh=fresh, rough=rough)
    return _answer(as_csv(rows), "text/csv; charset=utf-8", file=f"{name}.csv", command=command, fresh=fresh)


def chart_answer(
    chart: Any,
    *,
    form: ChartFormat,
    name: str,
    more: Mapping[str, Any],
    command: str | None,
    fresh: bool = True,
    rough: Rough | None = None,
) -> Response:
    """A chart of one panel: as Vega-Lite for the page, with what it is to say beside it, or as a file."""
    from isocompute.report.style import themed

    if form != "vega":
        return chart_file(chart, form=form, name=name, command=command, fresh=fresh)
    panels = [themed(chart, background=None)]
    return json_answer({**more, "panels": panels}, command=command, fresh=fresh, rough=rough)


def chart_file(
    chart: Any, *, form: Literal["png", "svg", "csv"], name: str, command: str | None, fresh: bool = True
) -> Response:
    """A chart to keep. CSV has a row for every mark."""
    from isocompute.report.style import themed

    spec = themed(chart)
    data: bytes
    if form == "csv":
        data, kind = as_csv(_marks(spec)), "text/csv; charset=utf-8"
    else:
        import vl_convert as vlc

        if form == "png":
            data, kind = vlc.vegalite_to_png(spec, scale=2.0), "image/png"
        else:
            data, kind = vlc.vegalite_to_svg(spec).encode(), "image/svg+xml"
    return _answer(data, kind, file=f"{name}.{form}", command=command, fresh=fresh)


def _marks(spec: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of a chart's data, numbered by the layer they belong to."""
    tables = spec.get("datasets", {}).values()
    return [{"layer": layer, **row} for layer, rows in enumerate(tables, start=1) for row in rows]


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
        return f"'{value}" if value[:1] and value[0] in _ASIDE else value
    return value if isinstance(value, int | float) else json.dumps(value, ensure_ascii=False)


def _answer(
    data: bytes, kind: str, *, file: str | None = None, command: str | None, fresh: bool, status: int = 200
) -> Response:
    headers = {"Cache-Control": "no-store"}
    if command is not None:
        headers[COMMAND] = quote(command)
    if not fresh:
        headers[STALE] = "1"
    if file is not None:
        headers["Content-Disposition"] = f"attachment; filename*=UTF-8''{quote(file, safe='')}"
    return Response(data, status_code=status, media_type=kind, headers=headers)
