"""Settings that compete on one frontier, as a panel: points, fits with 95% bands, and the frontier behind them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt
import numpy as np

from isocompute.core.formatting import number, pair, value
from isocompute.law.curve import Curve
from isocompute.law.fits import CurveFit
from isocompute.law.frontier import Frontier, frontier, luck_of
from isocompute.law.intervals import around
from isocompute.law.law import Law, Tradeoff
from isocompute.report.charts.marks import (
    band,
    chart,
    grid_of,
    named_colours,
    ordered_colours,
    panel,
    thin,
    value_axis,
)
from isocompute.report.evidence import Evidence
from isocompute.report.model import Drawing
from isocompute.report.style import INK, SIDES, compute_axis, unit_name

__all__ = [
    "Competition",
    "by_problems",
    "draw_competitions",
    "fullest",
    "label",
    "of_fits",
    "of_tradeoff",
    "reward_panel",
    "shades_of",
]


@dataclass(frozen=True)
class Competition:
    """Settings on one frontier, with their runs as they were logged."""

    title: str
    metric: str
    unit: str | None
    fits: tuple[CurveFit, ...]
    frontier: Frontier
    curves: tuple[Curve, ...]


def of_tradeoff(title: str, law: Law, tradeoff: Tradeoff) -> Competition:
    """The settings of one trade-off of a law."""
    names = {curve.name for fit in tradeoff.fits for curve in fit.curves}
    curves = tuple(run.curve for run in law.runs if run.curve.name in names)
    return Competition(title, law.metric, law.unit, tradeoff.fits, tradeoff.frontier, curves)


def of_fits(title: str, evidence: Evidence, metric: str, fits: tuple[CurveFit, ...]) -> Competition:
    """Settings of another metric than the report's own."""
    known = evidence.curves_in(metric)
    curves = tuple(known[curve.name] for fit in fits for curve in fit.curves)
    return Competition(title, metric, evidence.unit, fits, frontier(fits, luck_SB=luck_of(fits, seed=0)), curves)


def by_problems(fits: Sequence[CurveFit]) -> dict[int | None, tuple[CurveFit, ...]]:
    """The settings of each Bp that was run with two or more n, small Bp first; under None where Bp is unknown."""
    groups: dict[int | None, list[CurveFit]] = {}
    for fit in fits:
        if fit.setting[1] is not None:
            groups.setdefault(fit.setting[0], []).append(fit)
    enough = {bp: tuple(group) for bp, group in groups.items() if len({fit.setting[1] for fit in group}) > 1}
    return dict(sorted(enough.items(), key=lambda item: item[0] or 0))


def fullest(fits: Sequence[CurveFit]) -> int | None:
    """The Bp with the most n, the smallest among equals; None where runs do not say it or none has two n."""
    groups = by_problems(fits)
    return max(groups, key=lambda bp: len({fit.setting[1] for fit in groups[bp]}), default=None)


def label(rollouts: int | None, name: str) -> str:
    """What a colour stands for: n where it is known, else the run."""
    return name if rollouts is None else f"{rollouts}"


def draw_competitions(found: Sequence[Competition], *, bands: bool = True, leaders: bool = False) -> Drawing:
    """Panels with one scale of colours, a caption and the numbers."""
    shades = shades_of([fit for c in found for fit in c.fits])
    panels = [reward_panel(c, shades=shades, bands=bands, leaders=leaders) for c in found]
    sentences = [f"{c.title}: {_sentence(c)}" for c in found] if len(found) <= 4 else [_summary(found)]
    return Drawing(panels, sentences, {"panels": [_data(c) for c in found]})


def reward_panel(c: Competition, *, shades: Sequence[str], bands: bool = True, leaders: bool = False) -> Any:
    """One panel: points, fits with bands, and the frontier in thick grey behind them."""
    x, y = compute_axis(c.unit), value_axis(c.metric)
    known = c.fits[0].setting[1] is not None
    mine = shades_of(c.fits)
    colour = ordered_colours("n", "n", shades, mine) if known else named_colours("n", "run", shades, shown=mine)
    grey = 0 if known else len(set(mine) & set(shades[len(SIDES) :]))
    place = {shade: i for i, shade in enumerate(shades)}
    lines, areas = [], []
    for fit in sorted(c.fits, key=lambda fit: -place[_shade(fit)]):  # grey ones behind the others
        name = _name(fit)
        for x_, v, low, high in zip(*grid_of(fit), strict=True):
            lines.append({"compute": float(x_), "value": float(v), "n": _shade(fit), "setting": name})
            areas.append({"compute": float(x_), "low": low, "high": high, "n": _shade(fit), "setting": name})
    points = [
        {"compute": float(x_), "value": float(v), "n": label(curve.rollouts_per_problem, curve.name)}
        for curve in sorted(c.curves, key=lambda curve: -place[label(curve.rollouts_per_problem, curve.name)])
        for x_, v in zip(curve.compute_C, curve.values_C, strict=True)
        if x_ > 0
    ]
    edge = [
        {"compute": float(x_), "value": float(v)}
        for x_, v in zip(c.frontier.compute_C, c.frontier.values_C, strict=True)
        if np.isfinite(v)
    ]
    which = alt.Detail("setting:N")
    layers = [chart(edge).mark_line(color=INK, strokeWidth=6, opacity=0.16).encode(x=x, y=y)]
    if bands:
        layers.append(band(x, y, areas, colour).encode(detail=which))
    layers += [
        chart(thin(points)).mark_circle(size=11, opacity=0.5).encode(x=x, y=y, color=colour),
        chart(lines)
        .mark_line(strokeWidth=1.7 if bands else 1.2, opacity=1 if bands else 0.6)
        .encode(x=x, y=y, color=colour, detail=which),
    ]
    if leaders:
        layers += _leaders(c, x, y)
    rest = f"in colour the {len(SIDES)} runs that reached highest; {grey} more in grey" if grey else ""
    return panel(*layers, title=c.title, subtitle=rest)


def _leaders(c: Competition, x: alt.X, y: alt.Y) -> list[Any]:
    """Where the lead on the frontier changes: a dot, and the (Bp, n) that leads from there on."""
    rows: list[dict[str, Any]] = [
        {"compute": float(c.frontier.compute_C[0]), "value": float(c.frontier.values_C[0]), "name": _first(c)},
        *({"compute": s.compute, "value": s.value, "name": _name(c.fits[s.after])} for s in c.frontier.switches),
    ]
    ends = [*(row["compute"] for row in rows[1:]), float(c.frontier.compute_C[-1])]
    # Leads of a moment are left without a name: they are noise where curves lie on each other.
    lasting = [row for row, end in zip(rows, ends, strict=True) if end > 1.5 * row["compute"]]
    named: list[dict[str, Any]] = []
    for row in lasting:
        # The first name stands right of its dot, the others left of theirs.
        apart = 16.0 if named and named[-1] is rows[0] else 4.0
        if not named or row["compute"] > apart * named[-1]["compute"]:
            named.append(row)
    dots = chart(lasting or rows).mark_point(color=INK, size=26, filled=True, opacity=1).encode(x=x, y=y)
    first = named[:1] if named and named[0] is rows[0] else []
    later = named[len(first) :]
    text = []
    if first:
        text.append(chart(first).mark_text(color=INK, align="left", dx=4, dy=-9))
    if later:
        text.append(chart(later).mark_text(color=INK, align="right", dx=-4, dy=-9))
    return [dots, *(mark.encode(x=x, y=y, text="name:N") for mark in text)]


def _first(c: Competition) -> str:
    return _name(c.fits[int(c.frontier.best_C[0])])


def _sentence(c: Competition) -> str:
    """Who leads first and last, where the lead changes, and what is reached."""
    front = c.frontier
    begin, end = (c.fits[int(i)] for i in (front.best_C[0], front.best_C[-1]))
    last = float(front.compute_C[-1])
    interval = around(float(front.values_C[-1]), front.values_BC[:, -1])
    crossings = [s for s in front.switches if s.crosses]
    lead = (
        f"{_called(begin)} leads at small and at large budgets"
        if begin is end
        else f"the lead passes from {_called(begin)} to {_called(end)}"
    )
    places = ", ".join(number(s.compute) for s in crossings)
    at = f" (crossing{'s' * (len(crossings) > 1)} at {places})" if 0 < len(crossings) <= 5 else ""
    reached = f"{c.metric} {value(float(front.values_C[-1]))} (95% {pair(interval)})"
    return f"{lead}{at}, which reaches {reached} at {number(last)} {unit_name(c.unit)}"


def _summary(shown: Sequence[Competition]) -> str:
    """Many panels in one sentence: who leads at the end of each."""
    ends = [(c.title, c.fits[int(c.frontier.best_C[-1])], float(c.frontier.values_C[-1])) for c in shown]
    parts = ", ".join(f"{title}: {_called(fit)} ({value(v)})" for title, fit, v in ends)
    return f"Leading at the largest compute, with the value reached there: {parts}"


def _called(fit: CurveFit) -> str:
    problems, rollouts = fit.setting
    if rollouts is None:
        return fit.curves[0].name
    return f"n = {rollouts}" if problems is None else f"{problems} × {rollouts}"


def _data(c: Competition) -> dict[str, Any]:
    return {
        "title": c.title,
        "metric": c.metric,
        "unit": c.unit,
        "runs": [
            {
                "run": curve.name,
                "problems_per_batch": curve.problems_per_batch,
                "rollouts_per_problem": curve.rollouts_per_problem,
                "compute": curve.compute_C.tolist(),
                "value": curve.values_C.tolist(),
            }
            for curve in c.curves
        ],
        "fits": [_fit_data(fit) for fit in c.fits],
        "switches": [
            {
                "compute": s.compute,
                "from": _name(c.fits[s.before]),
                "to": _name(c.fits[s.after]),
                "value": s.value,
                "crosses": s.crosses,
            }
            for s in c.frontier.switches
        ],
    }


def _fit_data(fit: CurveFit) -> dict[str, Any]:
    return {
        "problems_per_batch": fit.setting[0],
        "rollouts_per_problem": fit.setting[1],
        "runs": [curve.name for curve in fit.curves],
        "form": fit.family.name,
        "base": fit.base,
        "ceiling": fit.ceiling,
        "ceiling_interval": list(fit.ceiling_interval()),
        "rise_done": fit.rise_done,
        "parameters": fit.parameters(),
    }


def _name(fit: CurveFit) -> str:
    problems, rollouts = fit.setting
    if rollouts is None:
        return fit.curves[0].name
    return f"{rollouts}" if problems is None else f"{problems} × {rollouts}"


def _shade(fit: CurveFit) -> str:
    return label(fit.setting[1], fit.curves[0].name)


def shades_of(fits: Sequence[CurveFit]) -> list[str]:
    """The domain of the colours: every n, small ones first, or every run, the one that reached highest first."""
    ordered = sorted(fits, key=lambda fit: (fit.setting[1] or 0, -float(fit.at(np.array([fit.last]))[0])))
    return list(dict.fromkeys(_shade(fit) for fit in ordered))
