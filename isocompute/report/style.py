"""One look for all charts: log axes, colours that survive print and colour-blindness, and the four file formats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import altair as alt

from isocompute.core import files
from isocompute.core.errors import InputError

__all__ = [
    "ACCENT",
    "BLUE",
    "DARK",
    "FORMATS",
    "GREY",
    "HEAT",
    "INK",
    "PAPER",
    "RAMP",
    "SIDES",
    "check_format",
    "compute_axis",
    "ordinal_colours",
    "save",
    "themed",
    "unit_name",
]

FORMATS = (".html", ".png", ".svg", ".pdf")
INK, MUTED, GRID, AXIS, PAPER = "#1f2328", "#57606a", "#e7e9ec", "#8c959f", "#ffffff"
ACCENT, BLUE, GREY = "#c44e00", "#2c728e", "#767676"
RAMP = ("#440154", "#472d7b", "#3b528b", "#2c728e", "#21918c", "#28ae80", "#5ec962", "#addc30", "#d8c500")
"""Viridis without its palest end, which vanishes on white."""
SIDES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8c6d31")
"""Okabe and Ito's colours, for things without an order."""
HEAT = ("#e3eef9", "#c6dbef", "#9dc4e3", "#6aaed6", "#3f8fc5", "#1a68ae", "#08306b")
"""Shares from nearly none to nearly all."""
DARK = {
    INK: "#e6edf3",
    MUTED: "#a9b4bf",
    GRID: "#2b323b",
    AXIS: "#7d8894",
    PAPER: "#14181d",
    ACCENT: "#ff9350",
    GREY: "#a0a7ae",
    **dict(
        zip(
            RAMP,
            ("#a98bf0", "#8f94f2", "#76a5ee", "#58b6dd", "#48c3b8", "#55d197", "#86dd78", "#c2e85a", "#f2e25a"),
            strict=True,
        )
    ),
    **dict(
        zip(
            SIDES,
            ("#57b0ea", "#ff9350", "#37cba0", "#eaa5ce", "#f7bf4f", "#a5dbfa", "#e6edf3", "#cfb07a"),
            strict=True,
        )
    ),
    **dict(zip(HEAT, ("#1b2633", "#1f3b58", "#24527f", "#2f6fa8", "#4a90cc", "#7db6e6", "#cfe6fb"), strict=True)),
}
"""What each colour of a chart becomes on a dark page."""
_WHOLE = "abs(log(datum.value) / LN10 - round(log(datum.value) / LN10)) < 1e-6"
_DECADES = {"condition": {"test": _WHOLE, "value": 1}, "value": 0.3}
"""Grid lines at powers of ten stand out from those between."""
_FONT = "Helvetica, Arial, sans-serif"
_ROOM = 10
"""Pixels between labels and title of a y-axis: a page's reader may have a wider font than the one that was measured."""


def ordinal_colours(count: int) -> list[str]:
    """Dark to light along viridis."""
    if count <= 1:
        return [RAMP[2]]
    return [RAMP[round(i * (len(RAMP) - 1) / (count - 1))] for i in range(count)]


def unit_name(unit: str | None) -> str:
    """A unit of compute as a reader says it."""
    return {"gpu_hours": "GPU-hours", "steps": "update steps", None: "compute"}.get(unit, str(unit))


def compute_axis(unit: str | None, field: str = "compute", title: str | None = None) -> alt.X:
    """Compute on a log scale, in short SI numbers."""
    return alt.X(
        f"{field}:Q",
        title=title or f"compute ({unit_name(unit)})",
        scale=alt.Scale(type="log", nice=False),
        axis=alt.Axis(
            format="~s", tickCount=5, grid=True, gridOpacity=_DECADES, labelOverlap="greedy", labelSeparation=8
        ),
    )


def check_format(path: str | Path, option: str = "--chart") -> Path:
    """Refuse a name whose ending is none of ours before any work is done."""
    path = Path(path)
    if path.suffix.lower() not in FORMATS:
        raise InputError(f"{option} {path}: the ending must be one of {', '.join(FORMATS)}.")
    return path


def save(chart: alt.TopLevelMixin, path: str | Path) -> Path:
    """Write a chart in the format its name asks for; HTML is self-contained and needs no network."""
    import vl_convert as vlc

    path = check_format(path)
    spec = themed(chart)
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


def themed(chart: alt.TopLevelMixin, *, background: str | None = "white") -> dict[str, Any]:
    """A chart's specification with our fonts and colours; for a page, without background and names for every mark."""
    spec = chart.to_dict(validate=False)
    config = {
        "font": _FONT,
        "background": background,
        "aria": background is not None,
        "view": {"stroke": None},
        "axis": {
            "labelFontSize": 11,
            "titleFontSize": 11.5,
            "titleFontWeight": "normal",
            "labelColor": MUTED,
            "titleColor": INK,
            "gridColor": GRID,
            "domainColor": AXIS,
            "tickColor": AXIS,
        },
        "axisY": {"titlePadding": _ROOM},
        "legend": {
            "labelFontSize": 11,
            "titleFontSize": 11,
            "titleFontWeight": "normal",
            "labelColor": INK,
            "titleColor": INK,
            "symbolStrokeWidth": 2.5,
        },
        "title": {
            "fontSize": 12.5,
            "fontWeight": "bold",
            "anchor": "start",
            "color": INK,
            "subtitleColor": MUTED,
            "subtitleFontSize": 11,
        },
        "text": {"fontSize": 10.5, "color": INK},
    }
    return {**spec, "config": {**spec.get("config", {}), **config}}
