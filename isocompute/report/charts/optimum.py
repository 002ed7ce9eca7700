"""The best n (or Bp) along compute, with its interval (IsoCompute figures 7, 9, 21 and 24)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from isocompute.core.formatting import number
from isocompute.law.law import Law, Tradeoff
from isocompute.law.optimum import Optimum, at_end
from isocompute.report.charts.marks import band, chart, doubling_axis, named_colours, panel
from isocompute.report.charts.reward import fullest_tradeoff
from isocompute.report.evidence import Evidence
from isocompute.report.model import Drawing, Needs
from isocompute.report.style import ACCENT, BLUE, compute_axis, unit_name

__all__ = ["batch_tradeoff", "best_n", "in_tokens", "joint_best_n", "optimum_panel"]

_BATCHES = 3
_BOUND = "smallest or largest run so far"
_SAME_RANGE = "runs at two or more n over the same range of compute"


def best_n(evidence: Evidence) -> Drawing | Needs:
    """Figure 7: n*(C) at the Bp that was run with the most n."""
    found = [
        (_at(condition.name, tradeoff), law, tradeoff)
        for condition, law in evidence.laws()
        if (tradeoff := fullest_tradeoff(law)) is not None
    ]
    return _draw(found)


def joint_best_n(evidence: Evidence) -> Drawing | Needs:
    """Figure 21: n*(C) with Bp free."""
    found = [
        (condition.name or "all runs", law, law.joint)
        for condition, law in evidence.laws()
        if len({fit.setting[0] for fit in law.settings}) > 1
    ]
    if not found:
        return Needs("runs at two or more problems per batch (Bp) as well as n")
    return _draw(found)


def in_tokens(evidence: Evidence) -> Drawing | Needs:
    """Figure 24: whether n* depends on counting compute in rollouts or in tokens."""
    units = ("tokens", "rollouts")
    counted = all(evidence.curves_in(evidence.metric, unit) for unit in units)
    laws = [(condition, law) for unit in units for condition, law in evidence.laws(unit=unit)] if counted else []
    found = [
        (f"{condition.name} · {law.unit}".strip(" ·"), law, tradeoff)
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
        sentences.append(f"{title}: {optimum_sentence(best, law.unit)}")
        data.append({"title": title, "unit": law.unit, **optimum_data(best)})
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


def optimum_sentence(best: Optimum, unit: str) -> str:
    """Where the optimum begins and ends, with what the interval and the edges allow to say."""
    low, high = best.ceiling_interval
    ends = f"{at_end(best.ceiling, best.ceiling_bound, best)} (95% {low:.0f}–{high:.0f})"
    if best.direction == "flat":
        return f"the best n stays at {ends} from {number(float(best.x_C[0]))} to {number(float(best.x_C[-1]))}"
    if best.direction == "unclear":
        return f"whether the best n moves is undecided; it is {ends} at {number(float(best.x_C[-1]))} {unit_name(unit)}"
    tail = (
        "and levels off there"
        if best.saturates
        else "the edge of what was run so far"
        if best.ceiling_bound is not None
        else "without levelling off inside the data"
    )
    return (
        f"the best n {best.direction} from {at_end(best.floor, best.floor_bound, best)} to {ends}, half-way at "
        f"{number(10.0**best.log10_C0)} {unit_name(unit)}, {tail}"
    )


def optimum_data(best: Optimum) -> dict[str, Any]:
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


def batch_tradeoff(evidence: Evidence) -> Drawing | Needs:
    """Figure 9: at one batch size B, the best n and the best Bp as updates grow; the fullest three B of a condition."""
    panels, sentences, data = [], [], []
    for condition, law in evidence.laws():
        both = [t for t in law.by_batch if t.rollouts is not None and t.problems is not None]
        fullest_first = sorted(both, key=lambda t: (-len(t.fits), t.value or 0))[:_BATCHES]
        for t in sorted(fullest_first, key=lambda t: t.value or 0):
            n, bp = t.rollouts, t.problems
            if n is None or bp is None:
                continue
            title = f"{condition.name} · B = {t.value}".strip(" ·")
            panels.append(_batch_panel(title, n, bp))
            sentences.append(
                f"{title}: from {n.x_C[0]:.0f} to {n.x_C[-1]:.0f} updates the best n goes from {n.estimate_C[0]:.0f} "
                f"to {n.estimate_C[-1]:.0f} (95% {n.interval_C2[-1][0]:.0f}–{n.interval_C2[-1][1]:.0f}) and the best "
                f"Bp from {bp.estimate_C[0]:.0f} to {bp.estimate_C[-1]:.0f} (95% {bp.interval_C2[-1][0]:.0f}–"
                f"{bp.interval_C2[-1][1]:.0f})"
            )
            data.append({"title": title, "rollouts": optimum_data(n), "problems": optimum_data(bp)})
    if not panels:
        return Needs("runs with the same batch size B = Bp · n and different n, over the same range of updates")
    return Drawing(panels, sentences, {"panels": data}, columns=_BATCHES)


def _batch_panel(title: str, n: Optimum, bp: Optimum) -> Any:
    rows = [
        {"compute": float(x), "n": float(v), "low": float(low), "high": float(high), "what": what}
        for what, o in (("best n", n), ("best Bp", bp))
        for x, v, (low, high) in zip(o.x_C, o.estimate_C, o.interval_C2, strict=True)
    ]
    tried = {v for o in (n, bp) for v in (o.smallest, o.largest, *o.estimate_C.tolist())}
    x = compute_axis("steps", title="update steps M")
    y = doubling_axis("n", "best n, best Bp", tried)
    colour = named_colours("what", None, ("best n", "best Bp"), (ACCENT, BLUE))
    area = band(x, y, rows, colour, opacity=0.16)
    area.mark.interpolate = "step-after"
    line = chart(rows).mark_line(strokeWidth=2, interpolate="step-after").encode(x=x, y=y, color=colour)
    return panel(area, line, title=title, subtitle="bands: 95%")


def _at(condition: str, tradeoff: Tradeoff) -> str:
    fixed = f"Bp = {tradeoff.value}" if tradeoff.value is not None else ""
    return " · ".join(filter(None, (condition, fixed))) or "all runs"
