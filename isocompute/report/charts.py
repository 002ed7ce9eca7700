"""Charts of the law, one function each; they take results and know nothing of files."""

from __future__ import annotations

from typing import Any

import altair as alt
import numpy as np
import polars as pl

from isocompute.law.comparison import Comparison
from isocompute.law.curve import Curve
from isocompute.law.fits import CurveFit
from isocompute.law.forecasting import Forecast
from isocompute.law.law import Law
from isocompute.report.style import ACCENT, GREY, compute_axis, ordinal_colours

__all__ = ["comparison_chart", "forecast_chart", "law_chart", "optimum_chart", "reward_chart"]

_WIDTH, _HEIGHT = 460, 320


def law_chart(law: Law) -> Any:
    """The two figures of a study side by side: reward against compute, and n*(C)."""
    if law.joint.rollouts is None:
        return reward_chart(law)
    return alt.hconcat(reward_chart(law), optimum_chart(law), spacing=40).resolve_scale(color="shared")


def reward_chart(law: Law) -> Any:
    """Reward against compute for each n with fits and the frontier (IsoCompute figure 6)."""
    rows = [
        {"compute": float(c), "value": float(v), "setting": _name(run.fit), "n": _shade(run.fit)}
        for run in law.runs
        for c, v in zip(run.curve.compute_C, run.curve.values_C, strict=True)
        if c > 0
    ]
    lines = [row for fit in law.settings for row in _line(fit)]
    front = law.joint.frontier
    edge = [{"compute": float(c), "value": float(v)} for c, v in zip(front.compute_C, front.values_C, strict=True)]
    # Colour says n, the quantity that is optimised; settings that differ in Bp alone are separate lines of one colour.
    shades = list(dict.fromkeys(_shade(fit) for fit in law.settings))
    colour = alt.Color(
        "n:N",
        title="run" if law.settings[0].setting[1] is None else "n",
        scale=alt.Scale(domain=shades, range=ordinal_colours(len(shades))),
        legend=alt.Legend(columns=1 + len(shades) // 20),
    )
    which = alt.Detail("setting:N")
    y = alt.Y("value:Q", title=law.metric, scale=alt.Scale(zero=False))
    x = compute_axis(law.unit)
    frontier_line = _chart(edge).mark_line(color="black", strokeWidth=5, opacity=0.22)
    points = _chart(_thin(rows)).mark_circle(size=14, opacity=0.45)
    fits = _chart(lines).mark_line(strokeWidth=1.6)
    return alt.layer(
        frontier_line.encode(x=x, y=y),
        points.encode(x=x, y=y, color=colour),
        fits.encode(x=x, y=y, color=colour, detail=which),
    ).properties(width=_WIDTH, height=_HEIGHT, title=_title("Reward against compute", "thick grey: the frontier"))


def optimum_chart(law: Law) -> Any:
    """n*(C) with its 95% interval and the fitted sigmoid (IsoCompute figure 7)."""
    best = law.joint.rollouts
    if best is None:
        raise ValueError("this law has no n*(C)")
    rows = [
        {
            "compute": float(x),
            "n": float(n),
            "low": float(low),
            "high": float(high),
            "sigmoid": float(s),
            "kind": "edge" if n in (best.smallest, best.largest) else "inside",
        }
        for x, n, (low, high), s in zip(best.x_C, best.estimate_C, best.interval_C2, best.sigmoid_C, strict=True)
    ]
    domain = [best.smallest / 1.6, best.largest * 1.6]
    ticks = sorted({float(fit.setting[1] or 0) for fit in law.joint.fits})

    def y(field: str) -> alt.Y:
        return alt.Y(
            f"{field}:Q",
            title="best rollouts per problem n*",
            scale=alt.Scale(type="log", base=2, domain=domain, nice=False),
            axis=alt.Axis(values=ticks, format="d"),
        )

    x = compute_axis(law.unit)
    chart = _chart(rows)
    band = chart.mark_area(color=GREY, opacity=0.18, interpolate="step-after").encode(
        x=x, y=y("low"), y2=alt.Y2("high:Q")
    )
    points = chart.mark_point(filled=True, size=26).encode(
        x=x,
        y=y("n"),
        color=alt.value("#2c728e"),
        shape=alt.Shape(
            "kind:N",
            scale=alt.Scale(domain=["inside", "edge"], range=["circle", "triangle-up"]),
            legend=None,
        ),
    )
    line = chart.mark_line(color=ACCENT, strokeWidth=2.4).encode(x=x, y=y("sigmoid"))
    return alt.layer(band, line, points).properties(
        width=_WIDTH,
        height=_HEIGHT,
        title=_title(
            "Optimal rollouts per problem",
            "line: fitted sigmoid; band: 95%; triangles: the smallest or largest n that was run",
        ),
    )


def forecast_chart(curve: Curve, made: Forecast, *, metric: str, unit: str, later: Curve | None = None) -> Any:
    """A run so far, where it is expected to be, and what came where that is known."""
    rows = [
        {"compute": float(c), "value": float(v), "kind": "fitted"}
        for c, v in zip(curve.compute_C, curve.values_C, strict=True)
        if c > 0
    ]
    if later is not None:
        rows += [
            {"compute": float(c), "value": float(v), "kind": "held out"}
            for c, v in zip(later.compute_C, later.values_C, strict=True)
        ]
    last = float(curve.compute_C[-1])
    fan = [
        {"compute": last, "value": made.now, "low": made.now, "high": made.now},
        {"compute": made.at, "value": made.value, "low": made.interval[0], "high": made.interval[1]},
    ]
    x, y = compute_axis(unit), alt.Y("value:Q", title=metric, scale=alt.Scale(zero=False))
    kinds = alt.Color("kind:N", title=None, scale=alt.Scale(domain=["fitted", "held out"], range=["#2c728e", GREY]))
    points = _chart(_thin(rows)).mark_circle(size=26).encode(x=x, y=y, color=kinds)
    base = _chart(fan)
    band = base.mark_area(color=ACCENT, opacity=0.16).encode(
        x=x, y=alt.Y("low:Q", title=metric, scale=alt.Scale(zero=False)), y2=alt.Y2("high:Q")
    )
    line = base.mark_line(color=ACCENT, strokeWidth=2, strokeDash=[6, 4]).encode(x=x, y=y)
    end = _chart(fan[1:]).mark_point(color=ACCENT, size=60, filled=True).encode(x=x, y=y)
    subtitle = (
        f"{made.verdict}: {made.value:.3f} at {made.at:.3g} ({made.level:.0%}: {made.interval[0]:.3f} to "
        f"{made.interval[1]:.3f})"
    )
    return alt.layer(band, points, line, end).properties(
        width=_WIDTH + 120, height=_HEIGHT, title=_title(f"Forecast of {curve.name}", subtitle)
    )


def comparison_chart(result: Comparison, *, metric: str, unit: str, names: tuple[str, str]) -> Any:
    """Two recipes with their fits and 95% bands, and where one overtakes the other."""
    far = 2.0 * max(result.a.last, result.b.last)
    rows, lines, bands = [], [], []
    for fit, name in zip((result.a, result.b), names, strict=True):
        grid_C = np.geomspace(fit.first, far, 80)
        low_C, high_C = np.percentile(fit.ensemble.at(grid_C), [2.5, 97.5], axis=0)
        lines += [
            {"compute": float(c), "value": float(v), "side": name} for c, v in zip(grid_C, fit.at(grid_C), strict=True)
        ]
        bands += [
            {"compute": float(c), "low": float(lo), "high": float(hi), "side": name}
            for c, lo, hi in zip(grid_C, low_C, high_C, strict=True)
        ]
        rows += [
            {"compute": float(c), "value": float(v), "side": name}
            for curve in fit.curves
            for c, v in zip(curve.compute_C, curve.values_C, strict=True)
            if c > 0
        ]
    colour = alt.Color("side:N", title=None, scale=alt.Scale(domain=list(names), range=["#2c728e", ACCENT]))
    x, y = compute_axis(unit), alt.Y("value:Q", title=metric, scale=alt.Scale(zero=False))
    layers = [
        _chart(bands)
        .mark_area(opacity=0.15)
        .encode(x=x, y=alt.Y("low:Q", title=metric, scale=alt.Scale(zero=False)), y2=alt.Y2("high:Q"), color=colour),
        _chart(_thin(rows)).mark_circle(size=18, opacity=0.5).encode(x=x, y=y, color=colour),
        _chart(lines).mark_line(strokeWidth=2).encode(x=x, y=y, color=colour),
    ]
    crossings = [{"compute": o.compute} for o in result.overtakings if o.compute <= far]
    if crossings:
        layers.append(_chart(crossings).mark_rule(strokeDash=[3, 3], color=GREY).encode(x=x))
    subtitle = (
        f"ceilings {result.a.ceiling:.3f} and {result.b.ceiling:.3f}; beyond the data the curves are extrapolated"
    )
    return alt.layer(*layers).properties(
        width=_WIDTH + 120, height=_HEIGHT, title=_title(f"{names[0]} against {names[1]}", subtitle)
    )


def _chart(rows: list[dict[str, Any]]) -> alt.Chart:
    return alt.Chart(pl.DataFrame(rows))


def _title(text: str, subtitle: str) -> alt.TitleParams:
    return alt.TitleParams(text, subtitle=subtitle)


def _name(fit: CurveFit) -> str:
    problems, rollouts = fit.setting
    if rollouts is None:
        return fit.curves[0].name
    return f"{rollouts}" if problems is None else f"{problems} × {rollouts}"


def _shade(fit: CurveFit) -> str:
    """n where it is known, else the run."""
    return fit.curves[0].name if fit.setting[1] is None else f"{fit.setting[1]}"


def _line(fit: CurveFit) -> list[dict[str, Any]]:
    grid_C = np.geomspace(fit.first, max(fit.last, fit.first * 1.0001), 60)
    return [
        {"compute": float(c), "value": float(v), "setting": _name(fit), "n": _shade(fit)}
        for c, v in zip(grid_C, fit.at(grid_C), strict=True)
    ]


def _thin(rows: list[dict[str, Any]], most: int = 4000) -> list[dict[str, Any]]:
    """At most so many marks: a browser draws them quickly and a page stays small."""
    step = -(-len(rows) // most) if rows else 1
    return rows[::step]
