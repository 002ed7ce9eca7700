"""How much the reward depends on n and how much on Bp (IsoCompute figure 10)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import altair as alt
import numpy as np

from isocompute.core.formatting import number, value
from isocompute.data.conditions import Condition
from isocompute.law.sensitivity import Slice
from isocompute.report.charts.marks import chart, panel, value_axis
from isocompute.report.charts.strata import Cells, Strata, means, strata_of
from isocompute.report.evidence import Evidence
from isocompute.report.model import Drawing, Needs
from isocompute.report.style import BLUE

__all__ = ["sensitivity"]

_GROUPS = 3
"""Panels of an end-point table: groups of strata that were run with the same n."""
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
    """The last value of every run by its n, inside strata: what a table of results without learning curves can say."""
    panels, sentences, data = [], [], []
    for condition in evidence.conditions:
        by_n = _last_values(condition, evidence.metric)
        if len(by_n) < 2:
            continue
        name = condition.name or "all runs"
        found = strata_of(condition.runs.runs, evidence.metric)
        if found.told_apart_by and found.compared:
            panels += [_stratum_panel(name, ns, cells, evidence.metric) for ns, cells in found.compared[:_GROUPS]]
            sentences.append(f"{name}: {_inside(found, evidence.metric)}")
            data.append({"title": name, **_strata_data(found)})
            continue
        rows = [{"setting": f"{n}", **_mean(values)} for n, values in sorted(by_n.items())]
        shown = "mean over runs; whiskers: twice its standard error"
        panels.append(_whiskers(name, rows, "n", evidence.metric, shown))
        sentences.append(f"{name}: {_over_runs(found, rows, evidence.metric)}")
        data.append({"title": name, "rows": rows})
    if not panels:
        return Needs("runs at two or more n (at one Bp) or at two or more Bp (at one n)")
    return Drawing(panels, sentences, {"panels": data})


def _stratum_panel(name: str, ns: Sequence[int], cells: Cells, metric: str) -> Any:
    many = f"{len(cells)} {'stratum' if len(cells) == 1 else 'strata'}"
    shown = f"mean over {many} with each of these n; whiskers: twice its error inside them"
    return _whiskers(f"{name} · n = {', '.join(map(str, ns))}", means(cells), "n", metric, shown)


def _inside(found: Strata, metric: str) -> str:
    """Which n is highest where strata are balanced over n; else what n changes inside them, step by step."""
    apart = f"{len(found.cells)} strata (told apart by {', '.join(found.told_apart_by)})"
    if found.balanced:
        top = max(means(found.cells), key=lambda row: float(row["value"]))
        return (
            f"the last {metric}, averaged inside {apart}, is highest at n = {top['setting']}, {value(top['value'])} "
            f"({value(top['low'])}–{value(top['high'])})"
        )
    steps = ", ".join(
        f"from n = {c.before} to {c.after} by {c.mean:+.3f}"
        + (f" ± {c.error:.3f}" if c.strata > 1 else "")
        + f" ({c.strata})"
        for c in found.changes()
    )
    return (
        f"not every one of {apart} has every n, so a mean over all runs of an n does not compare; inside strata that "
        f"have both, the last {metric} changes {steps} (± twice the standard error; number of strata)"
    )


def _over_runs(found: Strata, rows: Sequence[dict[str, Any]], metric: str) -> str:
    if found.told_apart_by:
        return (
            f"no two runs differ in n alone ({', '.join(found.told_apart_by)} differ too), so the means of the last "
            f"{metric} do not compare n"
        )
    top = max(rows, key=lambda row: float(row["value"]))
    return (
        f"the mean of the last {metric} is highest at n = {top['setting']}, {value(top['value'])} "
        f"({value(top['low'])}–{value(top['high'])}, {top['runs']} runs)"
    )


def _strata_data(found: Strata) -> dict[str, Any]:
    return {
        "told_apart_by": list(found.told_apart_by),
        "balanced": found.balanced,
        "strata": [{"stratum": name, "values": dict(sorted(by_n.items()))} for name, by_n in found.cells.items()],
        "changes": [asdict(change) for change in found.changes()],
    }


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
