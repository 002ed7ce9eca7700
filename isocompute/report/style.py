"""One look for all charts: log axes, colours that survive print and colour-blindness, and the four file formats."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import altair as alt

from isocompute.errors import InputError
from isocompute.runs import files

__all__ = ["ACCENT", "FORMATS", "GREY", "check_format", "compute_axis", "ordinal_colours", "save"]

FORMATS = (".html", ".png", ".svg", ".pdf")
ACCENT, GREY = "#c44e00", "#767676"
_FONT = "Helvetica, Arial, sans-serif"


def ordinal_colours(count: int) -> list[str]:
    """Dark to light along viridis, without its palest end, which vanishes on white."""
    ramp = ["#440154", "#472d7b", "#3b528b", "#2c728e", "#21918c", "#28ae80", "#5ec962", "#addc30", "#d8c500"]
    if count <= 1:
        return [ramp[2]]
    return [ramp[round(i * (len(ramp) - 1) / (count - 1))] for i in range(count)]


def compute_axis(unit: str) -> alt.X:
    """Compute on a log scale, in short SI numbers."""
    names = {"rollouts": "rollouts", "tokens": "tokens", "gpu_hours": "GPU-hours", "steps": "update steps"}
    return alt.X(
        "compute:Q",
        title=f"compute ({names.get(unit, unit)})",
        scale=alt.Scale(type="log", nice=False),
        axis=alt.Axis(format="~s", tickCount=6, grid=True),
    )


def check_format(path: str | Path) -> Path:
    """Refuse a name whose ending is none of ours before any work is done."""
    path = Path(path)
    if path.suffix.lower() not in FORMATS:
        raise InputError(f"--chart {path}: the ending must be one of {', '.join(FORMATS)}.")
    return path


def save(chart: alt.TopLevelMixin, path: str | Path) -> Path:
    """Write a chart in the format its name asks for; HTML is self-contained and needs no network."""
    import vl_convert as vlc

    path = check_format(path)
    spec = _themed(json.loads(chart.to_json()))
    suffix = path.suffix.lower()
    data: bytes
    if suffix == ".html":
        data = vlc.vegalite_to_html(spec, bundle=True).encode()
    elif suffix == ".png":
        data = vlc.vegalite_to_png(spec, scale=2.0)
    elif suffix == ".svg":
        data = vlc.vegalite_to_svg(spec).encode()
    else:
        data = vlc.vegalite_to_pdf(spec)
    files.write_atomically(path, data)
    return path


def _themed(spec: dict[str, Any]) -> dict[str, Any]:
    config = {
        "font": _FONT,
        "background": "white",
        "view": {"stroke": None},
        "axis": {
            "labelFontSize": 11,
            "titleFontSize": 12,
            "titleFontWeight": "normal",
            "gridColor": "#ececec",
            "domainColor": "#888888",
            "tickColor": "#888888",
        },
        "legend": {"labelFontSize": 11, "titleFontSize": 11, "titleFontWeight": "normal"},
        "title": {"fontSize": 13, "fontWeight": "bold", "anchor": "start", "subtitleColor": "#555555"},
    }
    return {**spec, "config": {**spec.get("config", {}), **config}}
