"""What all charts are built of: tables as marks, axes, colours by n, and panels of one size."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np
import polars as pl

from isocompute.core.arrays import Array
from isocompute.law.fits import CurveFit
from isocompute.report.style import GREY, SIDES, ordinal_colours

__all__ = [
    "HEIGHT",
    "WIDTH",
    "band",
    "chart",
    "doubling_axis",
    "grid_of",
    "named_colours",
    "ordered_colours",
    "panel",
    "thin",
    "value_axis",
]

WIDTH, HEIGHT = 330, 225
"""A panel with its axis fits a telephone's width at its own size."""
_BESIDE = 30
"""At least this much of a panel's width is axis."""
_LETTER = 6
"""Pixels of a subtitle."""
_LARGE = "abs(datum.value) >= 1e4 ? replace(format(datum.value, '.3~s'), 'G', 'B') : datum.label"
"""Large rewards as `words.value` has them."""
Rows = Sequence[Mapping[str, Any]]


def chart(rows: Rows) -> alt.Chart:
    """A chart of a list of rows."""
    return alt.Chart(pl.DataFrame(list(rows), infer_schema_length=None))


def panel(*layers: Any, title: str, subtitle: str = "", width: int = WIDTH, height: int = HEIGHT) -> Any:
    """Layers as one panel with a heading: a title that is cut where the panel ends, and lines below it."""
    limit = max(width, WIDTH) + _BESIDE
    # Names of runs stay whole.
    lines = textwrap.wrap(subtitle, limit // _LETTER, break_on_hyphens=False, break_long_words=False)
    heading = alt.TitleParams(title, subtitle=lines or "", limit=limit)
    return alt.layer(*layers).properties(width=width, height=height, title=heading)


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


def ordered_colours(field: str, title: str, domain: Sequence[str], shown: Sequence[str] | None = None) -> alt.Color:
    """Dark to light for values with an order, such as n; the legend, below the panel, lists those that are `shown`."""
    return _colours(field, title, domain, ordinal_colours(len(domain)), shown or domain)


def named_colours(
    field: str,
    title: str | None,
    domain: Sequence[str],
    colours: Sequence[str] | None = None,
    shown: Sequence[str] | None = None,
) -> alt.Color:
    """Distinct colours for names without an order; the names after those that there are colours for are grey and not in
    the legend, which lists those that are `shown`.
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


def band(x: alt.X, y: alt.Y, rows: Rows, colour: Any = None, opacity: float = 0.13) -> Any:
    """The area between `low` and `high`."""
    low = y.copy(deep=True)
    low.shorthand = "low:Q"
    area = chart(rows).mark_area(opacity=opacity, color=GREY)
    encoding = {"x": x, "y": low, "y2": alt.Y2("high:Q")}
    return area.encode(**encoding) if colour is None else area.encode(color=colour, **encoding)


def grid_of(fit: CurveFit, *, to: float | None = None, size: int = 40) -> tuple[Array, Array, Array, Array]:
    """A fitted curve and its 95% interval on a log grid: compute, value, low, high."""
    last = max(to or fit.last, fit.first * 1.0001)
    grid_C = np.geomspace(fit.first, last, size)
    values_C = fit.at(grid_C)
    low_C, high_C = np.percentile(fit.ensemble.at(grid_C), [2.5, 97.5], axis=0)
    return grid_C, values_C, np.minimum(low_C, values_C), np.maximum(high_C, values_C)


def thin(rows: Rows, most: int = 500) -> Rows:
    """At most this many marks, evenly: a page stays small and a printer does not choke."""
    step = -(-len(rows) // most) if rows else 1
    return rows[::step]
