"""Shared parts of all charts: colours, axes, marks, panels, and the four file formats.

Colours work in print and for colour-blind readers, and each has a counterpart for dark pages.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import polars as pl

from isocompute.core import files
from isocompute.core.curve import Curve
from isocompute.core.errors import InputError
from isocompute.law.fits import CurveFit

INK, MUTED, GRID, AXIS, PAPER = "#1f2328", "#57606a", "#e7e9ec", "#8c959f", "#ffffff"
ACCENT, BLUE, GREY = "#c44e00", "#2c728e", "#767676"
RAMP = ("#440154", "#472d7b", "#3b528b", "#2c728e", "#21918c", "#28ae80", "#5ec962", "#addc30", "#d8c500")
"""Viridis without its palest end, which is invisible on white."""
SIDES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8c6d31")
"""Okabe and Ito's colours, for names without an order."""
HEAT = ("#e3eef9", "#c6dbef", "#9dc4e3", "#6aaed6", "#3f8fc5", "#1a68ae", "#08306b")
"""Colours of shares, from small to large."""
_DARK_RAMP = ("#a98bf0", "#8f94f2", "#76a5ee", "#58b6dd", "#48c3b8", "#55d197", "#86dd78", "#c2e85a", "#f2e25a")
_DARK_SIDES = ("#57b0ea", "#ff9350", "#37cba0", "#eaa5ce", "#f7bf4f", "#a5dbfa", "#e6edf3", "#cfb07a")
_DARK_HEAT = ("#1b2633", "#1f3b58", "#24527f", "#2f6fa8", "#4a90cc", "#7db6e6", "#cfe6fb")
DARK = {
    INK: "#e6edf3",
    MUTED: "#a9b4bf",
    GRID: "#2b323b",
    AXIS: "#7d8894",
    PAPER: "#14181d",
    ACCENT: "#ff9350",
    GREY: "#a0a7ae",
    **dict(zip((*RAMP, *SIDES, *HEAT), (*_DARK_RAMP, *_DARK_SIDES, *_DARK_HEAT), strict=True)),
}
"""Each colour of a chart, and its counterpart on a dark page."""
WIDTH, HEIGHT = 330, 225
"""Size of a panel in pixels; with its axis it fits the width of a phone."""
Rows = Sequence[Mapping[str, Any]]


# Axes -----------------------------------------------------------------------------------------------------------------

_WHOLE = "abs(log(datum.value) / LN10 - round(log(datum.value) / LN10)) < 1e-6"
_DECADES = {"condition": {"test": _WHOLE, "value": 1}, "value": 0.3}
"""Grid lines at powers of ten stand out from those between."""
_LARGE = "abs(datum.value) >= 1e4 ? replace(format(datum.value, '.3~s'), 'G', 'B') : datum.label"
"""Formats large rewards as `formatting.value` does."""


def unit_name(unit: str | None) -> str:
    """A unit of compute as text."""
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


def value_axis(metric: str, field: str = "value") -> alt.Y:
    """A reward on a linear scale that need not start at zero."""
    return alt.Y(
        f"{field}:Q", title=metric, scale=alt.Scale(zero=False, nice=True), axis=alt.Axis(tickCount=5, labelExpr=_LARGE)
    )


def doubling_axis(field: str, title: str, values: Iterable[float]) -> alt.Y:
    """A quantity that doubles (n, Bp), on a log scale with a tick at every value that was run."""
    ticks = sorted({float(v) for v in values})
    return alt.Y(
        f"{field}:Q",
        title=title,
        scale=alt.Scale(type="log", base=2, domain=[ticks[0] / 1.5, ticks[-1] * 1.5], nice=False),
        axis=alt.Axis(values=ticks, format="d"),
    )


# Colours --------------------------------------------------------------------------------------------------------------


def ordered_colours(field: str, title: str, domain: Sequence[str], shown: Sequence[str] | None = None) -> alt.Color:
    """Dark to light for values with an order, such as n; the legend, below the panel, lists those that are `shown`."""
    last = max(len(domain) - 1, 1)
    ramp = [RAMP[round(i * (len(RAMP) - 1) / last)] for i in range(len(domain))] if len(domain) > 1 else [RAMP[2]]
    return _colours(field, title, domain, ramp, shown or domain)


def named_colours(
    field: str,
    title: str | None,
    domain: Sequence[str],
    colours: Sequence[str] | None = None,
    shown: Sequence[str] | None = None,
) -> alt.Color:
    """Distinct colours for names without an order; the legend lists those that are `shown`.

    When colours run out, further names are grey and not in the legend.
    """
    if colours is None:
        colours = (*SIDES[: len(domain)], *[GREY] * (len(domain) - len(SIDES)))
        kept = domain[: len(SIDES)]
        shown = [name for name in kept if name in (shown or kept)]
    return _colours(field, title, domain, colours, shown or domain)


def _colours(
    field: str, title: str | None, domain: Sequence[str], colours: Sequence[str], shown: Sequence[str]
) -> alt.Color:
    longest = max((len(name) for name in shown), default=1)
    columns = max(1, min(6, 52 // (longest + 4)))
    return alt.Color(
        f"{field}:N",
        title=title,
        scale=alt.Scale(domain=list(domain), range=list(colours)),
        legend=alt.Legend(
            orient="bottom",
            direction="horizontal",
            columns=columns,
            values=list(shown),
            symbolLimit=18,
            symbolOpacity=1,
            symbolType="circle",
            labelLimit=330,
            titleOrient="left" if len(shown) <= columns else "top",
        ),
    )


# Marks and panels -----------------------------------------------------------------------------------------------------


def chart(rows: Rows) -> alt.Chart:
    """A chart of a list of rows."""
    return alt.Chart(pl.DataFrame(list(rows), infer_schema_length=None))


def panel(*layers: Any, title: str, subtitle: str = "", width: int = WIDTH, height: int = HEIGHT) -> Any:
    """Layers as one panel with a title, cut at the width of the panel, and a wrapped subtitle."""
    limit = max(width, WIDTH) + 30  # pixels; the axis is at least 30 wide, a letter of the subtitle 6
    lines = textwrap.wrap(subtitle, limit // 6, break_on_hyphens=False, break_long_words=False)  # names stay whole
    heading = alt.TitleParams(title, subtitle=lines or "", limit=limit)
    return alt.layer(*layers).properties(width=width, height=height, title=heading)


def band(x: alt.X, y: alt.Y, rows: Rows, colour: Any = None, opacity: float = 0.13) -> Any:
    """The area between `low` and `high`."""
    low = y.copy(deep=True)
    low.shorthand = "low:Q"
    area = chart(rows).mark_area(opacity=opacity, color=GREY)
    encoding = {"x": x, "y": low, "y2": alt.Y2("high:Q")}
    return area.encode(**encoding) if colour is None else area.encode(color=colour, **encoding)


def fit_rows(fit: CurveFit, *, to: float | None = None, size: int = 40, **labels: Any) -> list[dict[str, Any]]:
    """A fitted curve with its 95% interval on a log grid: `compute`, `value`, `low`, `high`, and these labels."""
    grid_C = np.geomspace(fit.first, max(to or fit.last, fit.first * 1.0001), size)
    values_C = fit.at(grid_C)
    low_C, high_C = np.percentile(fit.draws_at(grid_C), [2.5, 97.5], axis=1)
    return [
        {"compute": c, "value": v, "low": min(low, v), "high": max(high, v), **labels}
        for c, v, low, high in zip(grid_C.tolist(), values_C.tolist(), low_C.tolist(), high_C.tolist(), strict=True)
    ]


def fit_data(fit: CurveFit) -> dict[str, Any]:
    """A fitted curve in a figure's data."""
    return {
        "form": fit.form,
        "base": fit.base,
        "ceiling": fit.ceiling,
        "ceiling_interval": list(fit.ceiling_interval()),
        "rise_done": fit.rise_done,
        "parameters": fit.parameters(),
    }


def point_rows(*curves: Curve, **labels: Any) -> list[dict[str, Any]]:
    """The points of curves as `compute` and `value`, with these labels; compute 0 is not on a log axis."""
    return [
        {"compute": float(c), "value": float(v), **labels}
        for curve in curves
        for c, v in zip(curve.compute_C, curve.values_C, strict=True)
        if c > 0
    ]


def title_of(*parts: str) -> str:
    """The parts that are not empty, with dots between them."""
    return " · ".join(filter(None, parts)) or "all runs"


def thin(rows: Rows, most: int = 500) -> Rows:
    """At most this many rows, evenly spaced, which keeps files small."""
    step = -(-len(rows) // most) if rows else 1
    return rows[::step]


@dataclass(frozen=True)
class Drawing:
    """What the function of a figure returns: panels of one size, a sentence for each result, the data."""

    panels: Sequence[Any]
    """Altair charts."""
    sentences: Sequence[str]
    """What these data show, with numbers and intervals; no full stops."""
    data: dict[str, Any]
    columns: int | None = None
    """Panels side by side; chosen by their number if None."""


@dataclass(frozen=True)
class Needs:
    """What the function of a figure returns if the data do not support it: the runs or metrics that it needs."""

    text: str


# Files ----------------------------------------------------------------------------------------------------------------


_FORMATS = (".html", ".png", ".svg", ".pdf")


def check_format(path: str | Path, option: str = "--chart") -> Path:
    """Check the suffix of a chart's path before any work is done."""
    path = Path(path)
    if path.suffix.lower() not in _FORMATS:
        raise InputError(f"{option} {path}: the ending must be one of {', '.join(_FORMATS)}.")
    return path


def save(chart: alt.TopLevelMixin, path: str | Path) -> Path:
    """Write a chart in the format of the path's suffix; HTML is self-contained and needs no network."""
    import vl_convert as vlc

    path, spec = check_format(path), themed(chart)
    render: dict[str, Callable[[], str | bytes]] = {
        ".html": lambda: vlc.vegalite_to_html(spec, bundle=True),
        ".png": lambda: vlc.vegalite_to_png(spec, scale=2.0),
        ".svg": lambda: vlc.vegalite_to_svg(spec),
        ".pdf": lambda: vlc.vegalite_to_pdf(spec),
    }
    data = render[path.suffix.lower()]()
    files.write_atomically(path, data.encode() if isinstance(data, str) else data)
    return path


def themed(chart: alt.TopLevelMixin, *, background: str | None = "white") -> dict[str, Any]:
    """A chart's specification with the shared fonts and colours.

    `background=None` is for pages: transparent, and without an accessible name for every mark.
    """
    spec = chart.to_dict(validate=False)
    config = {
        "font": "Helvetica, Arial, sans-serif",
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
        "axisY": {"titlePadding": 10},  # a reader's font may be wider than the one measured here
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
