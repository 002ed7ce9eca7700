"""How much the reward depends on n and how much on Bp (IsoCompute figure 10)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import numpy as np

from isocompute.law.sensitivity import Slice
from isocompute.report.charts.marks import chart, panel, value_axis
from isocompute.report.evidence import Evidence
from isocompute.report.model import Drawing, Needs
from isocompute.report.style import BLUE
from isocompute.runs.conditions import Condition
from isocompute.words import number, value

__all__ = ["sensitivity"]

_SYMBOLS = {"rollouts_per_problem": ("n", "Bp"), "problems_per_batch": ("Bp", "n")}


def sensitivity(evidence: Evidence) -> Drawing | Needs:
    """The reward at one compute along n and along Bp, the other held; the widest slice of each."""
    panels, sentences, data = [], [], []
    for condition, law in evidence.laws():
        name = condition.name or "all runs"
        for varied, (symbol, held) in _SYMBOLS.items():
            found = [s for s in law.slices if s.varied == varied and len(set(s.settings)) > 1]
            if not found:
                continue
            widest = found[0]
            fixed = "" if widest.fixed is None else f" · {held} = {widest.fixed}"
            panels.append(_slice_panel(f"{name}{fixed}", widest, symbol, law.metric))
            low, high = widest.range_interval
            sentences.append(
                f"{name}{fixed}: {law.metric} at {number(widest.compute)} spans {value(widest.range)} "
                f"(95% {value(low)}–{value(high)}) over {symbol} = {widest.settings[0]}–{widest.settings[-1]}"
            )
            data.append({"title": f"{name}{fixed}", **_data(widest)})
    if not panels:
        return _end_points(evidence)
    return Drawing(panels, sentences, {"panels": data})


def _slice_panel(title: str, s: Slice, symbol: str, metric: str) -> Any:
    rows = [
        {"setting": f"{setting}", "value": v, "low": low, "high": high}
        for setting, v, (low, high) in zip(s.settings, s.values, s.intervals, strict=True)
    ]
    subtitle = f"at {number(s.compute)}; whiskers: 95%; range {value(s.range)}"
    return _whiskers(title, rows, symbol, metric, subtitle)


def _whiskers(title: str, rows: Sequence[dict[str, Any]], symbol: str, metric: str, subtitle: str) -> Any:
    order = [row["setting"] for row in rows]
    x = alt.X("setting:N", title=symbol, sort=order, axis=alt.Axis(labelAngle=0, grid=False))
    y, low = value_axis(metric), value_axis(metric, "low")
    base = chart(rows)
    return panel(
        base.mark_line(color=BLUE, strokeWidth=1.2, opacity=0.6).encode(x=x, y=y),
        base.mark_rule(color=BLUE, strokeWidth=2).encode(x=x, y=low, y2="high:Q"),
        base.mark_point(color=BLUE, filled=True, size=55, opacity=1).encode(x=x, y=y),
        title=title,
        subtitle=subtitle,
    )


def _data(s: Slice) -> dict[str, Any]:
    return {
        "varied": s.varied,
        "fixed": s.fixed,
        "compute": s.compute,
        "settings": list(s.settings),
        "values": list(s.values),
        "intervals": [list(interval) for interval in s.intervals],
        "range": s.range,
        "range_interval": list(s.range_interval),
    }


def _end_points(evidence: Evidence) -> Drawing | Needs:
    """The last value of every run by its n: what a table of results without learning curves can still say."""
    panels, sentences, data = [], [], []
    for condition in evidence.conditions:
        by_n = _last_values(condition, evidence.metric)
        if len(by_n) < 2:
            continue
        name = condition.name or "all runs"
        rows = [{"setting": f"{n}", **_mean(values)} for n, values in sorted(by_n.items())]
        shown = "mean over runs; whiskers: twice its standard error"
        panels.append(_whiskers(name, rows, "n", evidence.metric, shown))
        top = max(rows, key=lambda row: float(row["value"]))
        sentences.append(
            f"{name}: the mean of the last {evidence.metric} is highest at n = {top['setting']}, {value(top['value'])} "
            f"({value(top['low'])}–{value(top['high'])}, {top['runs']} runs)"
        )
        data.append({"title": name, "rows": rows})
    if not panels:
        return Needs("runs at two or more n (at one Bp) or at two or more Bp (at one n)")
    return Drawing(panels, sentences, {"panels": data})


def _last_values(condition: Condition, metric: str) -> dict[int, list[float]]:
    out: dict[int, list[float]] = {}
    for run in condition.runs:
        n = run.settings.rollouts_per_problem
        if n is not None and metric in run.metrics:
            out.setdefault(n, []).append(float(run.points[metric].drop_nulls()[-1]))
    return out


def _mean(values: Sequence[float]) -> dict[str, Any]:
    mean = float(np.mean(values))
    error = 2.0 * float(np.std(values, ddof=1)) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return {"value": mean, "low": mean - error, "high": mean + error, "runs": len(values)}
