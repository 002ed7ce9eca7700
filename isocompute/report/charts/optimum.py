"""The best n along compute and for other metrics, and record points: IsoCompute figures 5, 7 to 9, 15, 21 and 24."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import numpy as np

from isocompute.core.formatting import count, number
from isocompute.law.curves import record_points
from isocompute.law.fits import CurveFit
from isocompute.law.frontier import Optimum, at_end, live, reached
from isocompute.law.law import Law, Tradeoff
from isocompute.law.posterior import shortest
from isocompute.report.charts.reward import by_problems, fullest_tradeoff, label
from isocompute.report.charts.style import (
    ACCENT,
    BLUE,
    GREY,
    INK,
    Drawing,
    Needs,
    band,
    chart,
    compute_axis,
    doubling_axis,
    named_colours,
    ordered_colours,
    panel,
    thin,
    title_of,
    unit_name,
    value_axis,
)
from isocompute.report.evidence import Evidence

_BATCHES = 3
"""Batch sizes of a condition that are drawn."""
_BOUND = "smallest or largest run so far"
_SAME_RANGE = "runs at two or more n over the same range of compute"


def best_n(evidence: Evidence) -> Drawing | Needs:
    """IsoCompute figure 7: n*(C) at one Bp, with its interval and the fitted sigmoid."""
    found = [
        (title_of(condition.name, "" if tradeoff.value is None else f"Bp = {tradeoff.value}"), law, tradeoff)
        for condition, law in evidence.laws()
        if (tradeoff := fullest_tradeoff(law)) is not None
    ]
    return _draw(found)


def joint_best_n(evidence: Evidence) -> Drawing | Needs:
    """IsoCompute figure 21: n*(C) among all (Bp, n)."""
    found = [
        (title_of(condition.name), law, law.joint)
        for condition, law in evidence.laws()
        if len({fit.setting[0] for fit in law.settings}) > 1
    ]
    if not found:
        return Needs("runs at two or more problems per batch (Bp) as well as n")
    return _draw(found)


def in_tokens(evidence: Evidence) -> Drawing | Needs:
    """IsoCompute figure 24: n*(C) with compute in tokens and in rollouts."""
    units = ("tokens", "rollouts")
    counted = all(evidence.curves_in(evidence.metric, unit) for unit in units)
    laws = [(condition, law) for unit in units for condition, law in evidence.laws(unit=unit)] if counted else []
    found = [
        (title_of(condition.name, law.unit), law, tradeoff)
        for condition, law in sorted(laws, key=lambda item: evidence.conditions.index(item[0]))
        if (tradeoff := fullest_tradeoff(law)) is not None and tradeoff.rollouts is not None
    ]
    return _draw(found) if found else Needs(f"{_SAME_RANGE} that log tokens beside rollouts")


def _draw(found: Sequence[tuple[str, Law, Tradeoff]]) -> Drawing | Needs:
    panels, sentences, data = [], [], []
    for title, law, tradeoff in found:
        best = tradeoff.rollouts
        if best is None:
            continue
        tried = [float(fit.setting[1] or 0) for fit in tradeoff.fits]
        panels.append(optimum_panel(best, title=title, tried=tried, unit=law.unit))
        sentences.append(f"{title}: {_sentence(best, law.unit)}")
        data.append({"title": title, "unit": law.unit, **_data(best)})
    if not panels:
        return Needs(_SAME_RANGE)
    return Drawing(panels, sentences, {"panels": data})


def optimum_panel(best: Optimum, *, title: str, tried: Sequence[float], unit: str) -> Any:
    """The optimum on the frontier, its 95% interval, and the fitted sigmoid."""
    rows = [
        {
            "compute": float(x),
            "n": float(n),
            "low": float(low),
            "high": float(high),
            "sigmoid": float(s),
            "kind": "inside" if bound is None else _BOUND,
        }
        for x, n, (low, high), s, bound in zip(
            best.x_C, best.estimate_C, best.interval_C2, best.sigmoid_C, best.bound_C, strict=True
        )
    ]
    x = compute_axis(unit)
    y = doubling_axis("n", "best n", tried)
    line_y = doubling_axis("sigmoid", "best n", tried)
    shape = alt.Shape(
        "kind:N",
        title=None,
        scale=alt.Scale(domain=["inside", _BOUND], range=["circle", "triangle-up"]),
        legend=alt.Legend(orient="bottom", labelLimit=300),
    )
    area = band(x, y, rows, opacity=0.2)
    area.mark.interpolate = "step-after"
    line = chart(rows).mark_line(color=ACCENT, strokeWidth=2.4).encode(x=x, y=line_y)
    dots = chart(rows[::2]).mark_point(filled=True, size=22, color=BLUE).encode(x=x, y=y, shape=shape)
    return panel(area, line, dots, title=title, subtitle="line: fitted sigmoid; band: 95%")


def _sentence(best: Optimum, unit: str) -> str:
    """The optimum at the start and the end of the range, as far as intervals and bounds allow."""
    low, high = best.ceiling_interval
    ends = f"{at_end(best.ceiling, best.ceiling_bound)} (95% {low:.0f}–{high:.0f})"
    if best.direction == "flat":
        return f"the best n stays at {ends} from {number(float(best.x_C[0]))} to {number(float(best.x_C[-1]))}"
    if best.direction == "unclear":
        return f"whether the best n moves is undecided; it is {ends} at {number(float(best.x_C[-1]))} {unit_name(unit)}"
    tail = (
        "and levels off there"
        if best.saturates
        else "the edge of the grid so far"
        if best.ceiling_bound is not None
        else "without levelling off inside the data"
    )
    return (
        f"the best n {best.direction} from {at_end(best.floor, best.floor_bound)} to {ends}, half-way at "
        f"{number(best.halfway)} {unit_name(unit)}, {tail}"
    )


def _data(best: Optimum) -> dict[str, Any]:
    """The numbers behind a panel."""
    return {
        "x": best.x_C.tolist(),
        "estimate": best.estimate_C.tolist(),
        "interval": best.interval_C2.tolist(),
        "sigmoid": best.sigmoid_C.tolist(),
        "L": best.L,
        "k": best.k,
        "log10_x0": best.log10_C0,
        "b": best.b,
        "ceiling": best.ceiling,
        "ceiling_interval": list(best.ceiling_interval),
        "ceiling_bound": best.ceiling_bound,
        "floor_bound": best.floor_bound,
        "direction": best.direction,
        "saturates": best.saturates,
    }


def one_batch(evidence: Evidence) -> Drawing | Needs:
    """IsoCompute figure 9: n*(M) and Bp*(M) at fixed B = Bp · n."""
    panels, sentences, data = [], [], []
    for condition, law in evidence.laws():
        both = [t for t in law.by_batch if t.rollouts is not None and t.problems is not None]
        fullest_first = sorted(both, key=lambda t: (-len(t.fits), t.value or 0))[:_BATCHES]
        for t in sorted(fullest_first, key=lambda t: t.value or 0):
            n, bp = t.rollouts, t.problems
            if n is None or bp is None:
                continue
            title = title_of(condition.name, f"B = {t.value}")
            panels.append(_batch_panel(title, n, bp))
            sentences.append(
                f"{title}: from {n.x_C[0]:.0f} to {n.x_C[-1]:.0f} updates the best n goes from {n.estimate_C[0]:.0f} "
                f"to {n.estimate_C[-1]:.0f} (95% {n.interval_C2[-1][0]:.0f}–{n.interval_C2[-1][1]:.0f}) and the best "
                f"Bp from {bp.estimate_C[0]:.0f} to {bp.estimate_C[-1]:.0f} (95% {bp.interval_C2[-1][0]:.0f}–"
                f"{bp.interval_C2[-1][1]:.0f})"
            )
            data.append({"title": title, "rollouts": _data(n), "problems": _data(bp)})
    if not panels:
        return Needs("runs with the same batch size B = Bp · n and different n, over the same range of updates")
    return Drawing(panels, sentences, {"panels": data}, columns=_BATCHES)


def _batch_panel(title: str, n: Optimum, bp: Optimum) -> Any:
    rows = [
        {"compute": float(x), "n": float(v), "low": float(low), "high": float(high), "quantity": quantity}
        for quantity, o in (("best n", n), ("best Bp", bp))
        for x, v, (low, high) in zip(o.x_C, o.estimate_C, o.interval_C2, strict=True)
    ]
    tried = {v for o in (n, bp) for v in (o.smallest, o.largest, *o.estimate_C.tolist())}
    x = compute_axis("steps", title="update steps M")
    y = doubling_axis("n", "best n, best Bp", tried)
    colour = named_colours("quantity", None, ("best n", "best Bp"), (ACCENT, BLUE))
    area = band(x, y, rows, colour, opacity=0.16)
    area.mark.interpolate = "step-after"
    line = chart(rows).mark_line(strokeWidth=2, interpolate="step-after").encode(x=x, y=y, color=colour)
    return panel(area, line, title=title, subtitle="bands: 95%")


# Coverage and sharpening ----------------------------------------------------------------------------------------------


def other_metrics(evidence: Evidence) -> Drawing | Needs:
    """IsoCompute figure 8: the best n for best@k and for worst@k, at each Bp."""
    best, worst = evidence.sibling("best"), evidence.sibling("worst")
    if best is None or worst is None:
        return Needs("best@k and worst@k of the same evaluation (logged next to avg@k)")
    rows: list[dict[str, Any]] = []
    for metric in (best, worst):
        for condition in evidence.conditions:
            groups = by_problems(evidence.fits(condition, metric=metric))
            name = title_of(condition.name)
            rows += [{"condition": name, "metric": metric, **_winner(bp, fits)} for bp, fits in groups.items()]
    if not rows:
        return Needs(f"runs at two or more n over the same range of compute, with {best} and {worst}")
    panels, sentences = [], []
    tried = sorted({n for row in rows for n in row["tried"]})
    for name in dict.fromkeys(row["condition"] for row in rows):
        mine = [row for row in rows if row["condition"] == name]
        panels.append(_winners_panel(name, mine, (best, worst), tried))
        spans = [_span([row["n"] for row in mine if row["metric"] == metric]) for metric in (best, worst)]
        sentences.append(
            f"{name}: at the largest common compute n = {spans[0]} is best for {best}, n = {spans[1]} for {worst} "
            "(whiskers: 95%)"
        )
    return Drawing(panels, sentences, {"rows": rows})


def _winner(bp: int | None, settings: Sequence[CurveFit]) -> dict[str, Any]:
    """The best n at the largest compute that all settings reached, with its interval."""
    compute = min(fit.last for fit in settings)
    at = np.array([compute])
    fits = [fit for fit, begun in zip(settings, live(settings, at)[:, 0], strict=True) if begun]
    n_S = np.array([float(fit.setting[1] or 0) for fit in fits])
    best_B = n_S[np.stack([fit.draws_at(at)[0] for fit in fits]).argmax(axis=0)]
    n = float(n_S[int(np.argmax([float(reached(fit, at)[0]) for fit in fits]))])
    low, high = shortest(best_B, n)
    return {
        "problems_per_batch": bp,
        "compute": compute,
        "n": int(n),
        "low": int(low),
        "high": int(high),
        "tried": sorted(int(v) for v in set(n_S.tolist())),
    }


def _winners_panel(name: str, rows: Sequence[dict[str, Any]], metrics: Sequence[str], tried: Sequence[int]) -> Any:
    shown = [
        {key: row[key] for key in ("metric", "n", "low", "high")} | {"Bp": count(row["problems_per_batch"])}
        for row in rows
    ]
    order = list(dict.fromkeys(row["Bp"] for row in shown))
    x = alt.X("Bp:N", title="problems per batch Bp", sort=order, axis=alt.Axis(labelAngle=0, grid=False))
    offset = alt.XOffset("metric:N", sort=list(metrics))
    y = doubling_axis("n", "best n", tried)
    low = doubling_axis("low", "best n", tried)
    colour = named_colours("metric", None, list(metrics))
    whiskers = chart(shown).mark_rule(strokeWidth=2).encode(x=x, xOffset=offset, y=low, y2="high:Q", color=colour)
    dots = chart(shown).mark_point(filled=True, size=60, opacity=1).encode(x=x, xOffset=offset, y=y, color=colour)
    return panel(whiskers, dots, title=name)


def _span(values: Sequence[int]) -> str:
    return f"{min(values)}" if min(values) == max(values) else f"{min(values)}–{max(values)}"


# Record-breaking points -----------------------------------------------------------------------------------------------

_KINDS = ("other", "record")


def records(evidence: Evidence) -> Drawing | Needs:
    """IsoCompute figures 5 and 15: the points that the paper's fits keep, and the n that set them."""
    panels, sentences, data = [], [], []
    for condition, law in evidence.laws():
        name = title_of(condition.name)
        rows = _rows(law)
        panels.append(_points_panel(name, rows, law, one_scale=evidence.comparable(condition)))
        marked = sum(row["kind"] == "record" for row in rows)
        sentences.append(
            f"{name}: {marked} of {len(rows)} points ({marked / max(len(rows), 1):.0%}) lie in a higher bin of "
            f"{number(law.bin_width)} than every earlier point of their run"
        )
        data.append({"title": name, "bin_width": law.bin_width, "points": rows})
        tradeoff = fullest_tradeoff(law)
        if tradeoff is not None and tradeoff.rollouts is not None:
            panels.append(_plane_panel(name, rows, law))
    if not panels:
        return Needs("runs with at least four evaluations each")
    return Drawing(panels, sentences, {"panels": data}, columns=2)


def _rows(law: Law) -> list[dict[str, Any]]:
    out = []
    for curve in (run.curve for run in law.runs):
        marked = set(record_points(curve.compute_C, curve.values_C, bin_width=law.bin_width).tolist())
        labels = {"run": curve.name, "n": curve.rollouts_per_problem}
        out += [
            {"compute": float(c), "value": float(v), **labels, "kind": _KINDS[i in marked]}
            for i, (c, v) in enumerate(zip(curve.compute_C, curve.values_C, strict=True))
            if c > 0
        ]
    return out


def _points_panel(name: str, rows: Sequence[dict[str, Any]], law: Law, *, one_scale: bool) -> Any:
    """All points, with records marked; the frontier is drawn only if the runs share one scale."""
    x, y = compute_axis(law.unit), value_axis(law.metric)
    colour = named_colours("kind", None, _KINDS, (GREY, ACCENT))
    other, marked = ([row for row in rows if row["kind"] == kind] for kind in _KINDS)
    front = law.joint.frontier
    edge = [{"compute": float(c), "value": float(v)} for c, v in zip(front.compute_C, front.values_C, strict=True)]
    layers = [
        chart(thin(other or rows)).mark_circle(size=12, opacity=0.6).encode(x=x, y=y, color=colour),
        chart(thin(marked or rows)).mark_circle(size=16, opacity=0.8).encode(x=x, y=y, color=colour),
    ]
    if one_scale:
        layers.append(chart(edge).mark_line(strokeDash=[5, 4], strokeWidth=1.8, color=INK).encode(x=x, y=y))
    dashed = "dashed: the frontier of the fits" if one_scale else "no frontier: the runs lie on different scales"
    return panel(*layers, title=name, subtitle=f"records in bins of {number(law.bin_width)}; {dashed}")


def _plane_panel(name: str, rows: Sequence[dict[str, Any]], law: Law) -> Any:
    best = law.joint.rollouts
    tried = sorted({row["n"] for row in rows if row["n"] is not None})
    x, y = compute_axis(law.unit), doubling_axis("n", "n", tried)
    marked = [{**row, "shade": label(row["n"], row["run"])} for row in rows if row["kind"] == "record" and row["n"]]
    colour = ordered_colours("shade", "n", [f"{n}" for n in tried])
    layers = [chart(thin(marked, 700)).mark_circle(size=18, opacity=0.55).encode(x=x, y=y, color=colour)]
    if best is not None:
        fitted = [{"compute": float(c), "n": float(s)} for c, s in zip(best.x_C, best.sigmoid_C, strict=True)]
        layers.append(chart(fitted).mark_line(color=ACCENT, strokeWidth=2.4, strokeDash=[6, 4]).encode(x=x, y=y))
    last = number(float(law.joint.frontier.compute_C[-1]))
    return panel(*layers, title=f"{name}: records of each n", subtitle=f"dashed: n*(C), up to {last}")
