"""The chart of `isocompute compare --chart`: two recipes with their fits, and where one overtakes the other."""

from __future__ import annotations

from typing import Any

from isocompute.core.formatting import value
from isocompute.law.comparison import Comparison
from isocompute.report.charts.marks import band, chart, grid_of, named_colours, panel, thin, value_axis
from isocompute.report.style import GREY, compute_axis

__all__ = ["comparison_chart"]


def comparison_chart(result: Comparison, *, metric: str, unit: str, names: tuple[str, str]) -> Any:
    """Two recipes with their fits and 95% bands, and where one overtakes the other; the curve of a side that fell ends
    where its runs did.
    """
    far = 2.0 * max(result.a.last, result.b.last)
    fell = {fall.side for fall in result.falls}
    rows, lines = [], []
    for side, fit, curves, name in zip("ab", (result.a, result.b), result.sides, names, strict=True):
        end = fit.last if side in fell else far
        for c, v, low, high in zip(*grid_of(fit, to=end, size=80), strict=True):
            lines.append({"compute": float(c), "value": float(v), "low": low, "high": high, "side": name})
        rows += [
            {"compute": float(c), "value": float(v), "side": name}
            for curve in curves
            for c, v in zip(curve.compute_C, curve.values_C, strict=True)
            if c > 0
        ]
    x, y, colour = compute_axis(unit), value_axis(metric), named_colours("side", None, names)
    layers = [
        band(x, y, lines, colour, opacity=0.15),
        chart(thin(rows)).mark_circle(size=18, opacity=0.5).encode(x=x, y=y, color=colour),
        chart(lines).mark_line(strokeWidth=2).encode(x=x, y=y, color=colour),
    ]
    crossings = [{"compute": o.compute} for o in result.overtakings if o.compute <= far]
    if crossings:
        layers.append(chart(crossings).mark_rule(strokeDash=[3, 3], color=GREY).encode(x=x))
    subtitle = (
        f"ceilings {value(result.a.ceiling)} and {value(result.b.ceiling)}; beyond the data the curves are extrapolated"
    )
    if fell:
        gone = " and ".join(names["ab".index(side)] for side in sorted(fell))
        subtitle = f"{gone} fell for good: the curve is of what came before"
    return panel(*layers, title=f"{names[0]} against {names[1]}", subtitle=subtitle, width=520, height=320)
