"""Record-breaking points: what the IsoCompute paper keeps of a run, and what it reads off them (figures 5 and 15)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from isocompute.core.formatting import number
from isocompute.law.law import Law
from isocompute.law.records import record_points
from isocompute.report.charts.competition import label
from isocompute.report.charts.marks import chart, doubling_axis, named_colours, ordered_colours, panel, thin, value_axis
from isocompute.report.charts.reward import fullest_tradeoff
from isocompute.report.evidence import Evidence
from isocompute.report.model import Drawing, Needs
from isocompute.report.style import ACCENT, GREY, INK, compute_axis

__all__ = ["records"]

_KINDS = ("other", "record")


def records(evidence: Evidence) -> Drawing | Needs:
    """All points with the record-breaking ones marked, and the records of all n in the plane of n and compute."""
    panels, sentences, data = [], [], []
    for condition, law in evidence.laws():
        name = condition.name or "all runs"
        rows = _rows(law)
        panels.append(_points_panel(name, rows, law, together=evidence.comparable(condition)))
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
    for run in law.runs:
        curve = run.curve
        marked = set(record_points(curve.compute_C, curve.values_C, bin_width=law.bin_width).tolist())
        out += [
            {
                "compute": float(c),
                "value": float(v),
                "run": curve.name,
                "n": curve.rollouts_per_problem,
                "kind": _KINDS[i in marked],
            }
            for i, (c, v) in enumerate(zip(curve.compute_C, curve.values_C, strict=True))
            if c > 0
        ]
    return out


def _points_panel(name: str, rows: Sequence[dict[str, Any]], law: Law, *, together: bool) -> Any:
    """The frontier only through runs that may be held `together`: on different scales it is of nothing."""
    x, y = compute_axis(law.unit), value_axis(law.metric)
    colour = named_colours("kind", None, _KINDS, (GREY, ACCENT))
    other, marked = ([row for row in rows if row["kind"] == kind] for kind in _KINDS)
    front = law.joint.frontier
    edge = [{"compute": float(c), "value": float(v)} for c, v in zip(front.compute_C, front.values_C, strict=True)]
    layers = [
        chart(thin(other or rows)).mark_circle(size=12, opacity=0.6).encode(x=x, y=y, color=colour),
        chart(thin(marked or rows)).mark_circle(size=16, opacity=0.8).encode(x=x, y=y, color=colour),
    ]
    if together:
        layers.append(chart(edge).mark_line(strokeDash=[5, 4], strokeWidth=1.8, color=INK).encode(x=x, y=y))
    dashed = "dashed: the frontier of the fits" if together else "no frontier: the runs lie on different scales"
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
