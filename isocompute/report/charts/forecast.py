"""The chart of `isocompute forecast --chart`: a run so far, where it is expected to be, and what came."""

from __future__ import annotations

from typing import Any

import altair as alt

from isocompute.core.formatting import number, pair, value
from isocompute.law.curve import Curve
from isocompute.law.forecasting import Forecast, path
from isocompute.report.charts.marks import band, chart, panel, thin, value_axis
from isocompute.report.style import ACCENT, BLUE, GREY, compute_axis

__all__ = ["forecast_chart"]


def forecast_chart(curve: Curve, made: Forecast, *, metric: str, unit: str, later: Curve | None = None) -> Any:
    """A run so far, where it is expected on the way and at the end, and what came where that is known."""
    rows = [_point(c, v, "fitted") for c, v in zip(curve.compute_C, curve.values_C, strict=True) if c > 0]
    kinds = ["fitted"]
    if later is not None:
        rows += [_point(c, v, "held out") for c, v in zip(later.compute_C, later.values_C, strict=True)]
        kinds.append("held out")
    fan = [
        {"compute": compute, "value": expected, "low": low, "high": high}
        for compute, expected, low, high in path(curve, made.at, level=made.level)
    ]
    x, y = compute_axis(unit), value_axis(metric)
    scale = alt.Scale(domain=kinds, range=[BLUE, GREY][: len(kinds)])
    legend = alt.Undefined if later is not None else None
    colours = alt.Color("kind:N", title=None, scale=scale, legend=legend)
    line = chart(fan).mark_line(color=ACCENT, strokeWidth=2, strokeDash=[6, 4]).encode(x=x, y=y)
    end = chart(fan[-1:]).mark_point(color=ACCENT, size=60, filled=True).encode(x=x, y=y)
    subtitle = (
        f"{made.verdict}: {value(made.value)} at {number(made.at)} {unit} ({made.level:.0%}: {pair(made.interval)}); "
        f"now {value(made.now)}"
    )
    return panel(
        band(x, y, fan, alt.value(ACCENT), opacity=0.16),
        chart(thin(rows)).mark_circle(size=26).encode(x=x, y=y, color=colours),
        line,
        end,
        title=f"Forecast of {curve.name}",
        subtitle=subtitle,
        width=520,
        height=320,
    )


def _point(compute: float, value: float, kind: str) -> dict[str, Any]:
    return {"compute": float(compute), "value": float(value), "kind": kind}
