"""The chart of the Plan page: what the best allocation is expected to reach at every budget, and the one chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from isocompute.report.charts.marks import band, chart, panel, value_axis
from isocompute.report.style import ACCENT, BLUE, GREY, compute_axis

__all__ = ["CHOSEN", "band_chart"]

CHOSEN = "chosen"
"""The table that holds the chosen plan, by name: the page moves it along the band without drawing the chart anew."""


def band_chart(
    rows: Sequence[Mapping[str, Any]], chosen: Mapping[str, Any], *, metric: str, unit: str, last: float
) -> Any:
    """Expected reward with its 80% interval over budgets; the rule is where the law's data end."""
    x, y = compute_axis(unit), value_axis(metric)
    tip = [alt.Tooltip(f"{name}:Q", format=form) for name, form in (("compute", ".3~s"), ("value", ".3f"))]
    tip += [alt.Tooltip(f"{name}:Q") for name in ("problems_per_batch", "rollouts_per_problem", "update_steps")]
    mark = alt.Chart(alt.InlineData(values=[dict(chosen)], name=CHOSEN))
    return panel(
        band(x, y, rows, alt.value(BLUE), opacity=0.2),
        chart(rows).mark_line(color=BLUE, strokeWidth=2).encode(x=x, y=y),
        chart(rows).mark_point(color=BLUE, filled=True, size=22, opacity=0.9).encode(x=x, y=y, tooltip=tip),
        chart([{"compute": last}]).mark_rule(color=GREY, strokeDash=[3, 3]).encode(x=x),
        mark.mark_rule(color=ACCENT, strokeWidth=2).encode(
            x=x, y=alt.Y("low:Q", scale=alt.Scale(zero=False)), y2="high:Q"
        ),
        mark.mark_point(color=ACCENT, filled=True, size=90, opacity=1).encode(x=x, y=y),
        title="",
        width=640,
        height=230,
    )
