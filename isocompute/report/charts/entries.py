"""Named curves in one panel: recipes, baselines, whatever has no order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from isocompute.law.fits import CurveFit
from isocompute.report.charts.marks import band, chart, grid_of, named_colours, panel, thin, value_axis
from isocompute.report.style import compute_axis

__all__ = ["Entry", "entries_data", "entries_panel"]


@dataclass(frozen=True)
class Entry:
    """A fitted curve by name."""

    name: str
    fit: CurveFit


def entries_panel(title: str, entries: Sequence[Entry], *, metric: str, unit: str | None, subtitle: str = "") -> Any:
    """Points, fits and 95% bands in distinct colours."""
    x, y = compute_axis(unit), value_axis(metric)
    colour = named_colours("entry", None, [entry.name for entry in entries])
    lines, points = [], []
    for entry in entries:
        for c, v, low, high in zip(*grid_of(entry.fit), strict=True):
            lines.append({"compute": float(c), "value": float(v), "low": low, "high": high, "entry": entry.name})
        points += [
            {"compute": float(c), "value": float(v), "entry": entry.name}
            for curve in entry.fit.curves
            for c, v in zip(curve.compute_C, curve.values_C, strict=True)
            if c > 0
        ]
    return panel(
        band(x, y, lines, colour),
        chart(thin(points)).mark_circle(size=14, opacity=0.5).encode(x=x, y=y, color=colour),
        chart(lines).mark_line(strokeWidth=1.8).encode(x=x, y=y, color=colour),
        title=title,
        subtitle=subtitle,
    )


def entries_data(entries: Sequence[Entry]) -> dict[str, Any]:
    """Points, ceilings and their intervals."""
    return {
        "curves": [
            {
                "name": entry.name,
                "runs": [curve.name for curve in entry.fit.curves],
                "form": entry.fit.family.name,
                "ceiling": entry.fit.ceiling,
                "ceiling_interval": list(entry.fit.ceiling_interval()),
                "rise_done": entry.fit.rise_done,
                "parameters": entry.fit.parameters(),
                "compute": [float(c) for curve in entry.fit.curves for c in curve.compute_C],
                "value": [float(v) for curve in entry.fit.curves for v in curve.values_C],
            }
            for entry in entries
        ]
    }
