"""The charts of `fit --chart`, `forecast --chart` and `compare --chart`."""

from __future__ import annotations

from typing import Any

import altair as alt

from isocompute.core.curve import Curve
from isocompute.core.formatting import number, pair, value
from isocompute.law.comparison import Comparison
from isocompute.law.forecasting import Forecast, path
from isocompute.law.law import Law
from isocompute.report.charts.optimum import optimum_panel
from isocompute.report.charts.reward import of_tradeoff, reward_panel, shades_of
from isocompute.report.charts.style import (
    ACCENT,
    BLUE,
    GREY,
    band,
    chart,
    compute_axis,
    fit_rows,
    named_colours,
    panel,
    point_rows,
    thin,
    value_axis,
)

_BANDS = 12
"""More bands than this would hide each other."""


def law_chart(law: Law) -> Any:
    """Reward against compute, next to n*(C), with all settings on one frontier."""
    competition = of_tradeoff("Reward against compute; thick grey: the frontier", law, law.joint)
    reward = reward_panel(competition, shades=shades_of(competition.fits), bands=len(competition.fits) <= _BANDS)
    if law.joint.rollouts is None:
        return reward
    tried = [float(fit.setting[1] or 0) for fit in law.joint.fits]
    best = optimum_panel(law.joint.rollouts, title="Best rollouts per problem", tried=tried, unit=law.unit)
    return alt.hconcat(reward, best, spacing=40).resolve_scale(color="independent", shape="independent")


def forecast_chart(curve: Curve, made: Forecast, *, metric: str, unit: str, later: Curve | None = None) -> Any:
    """A run so far, its forecast with an interval, and the later points if they are known."""
    rows, kinds = point_rows(curve, kind="fitted"), ["fitted"]
    if later is not None:
        rows += point_rows(later, kind="held out")
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


def comparison_chart(result: Comparison, *, metric: str, unit: str, names: tuple[str, str]) -> Any:
    """Two recipes with their fits and 95% bands, and where one overtakes the other.

    The curve of a side that collapsed ends at the collapse.
    """
    far = 2.0 * max(result.a.last, result.b.last)
    collapsed = {collapse.side for collapse in result.collapses}
    rows: list[dict[str, Any]] = []
    lines: list[dict[str, Any]] = []
    for side, fit, curves, name in zip("ab", (result.a, result.b), result.sides, names, strict=True):
        end = fit.last if side in collapsed else far
        lines += fit_rows(fit, to=end, size=80, side=name)
        rows += point_rows(*curves, side=name)
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
    if collapsed:
        gone = " and ".join(names["ab".index(side)] for side in sorted(collapsed))
        subtitle = f"{gone} collapsed: the curve ends there"
    return panel(*layers, title=f"{names[0]} against {names[1]}", subtitle=subtitle, width=520, height=320)
