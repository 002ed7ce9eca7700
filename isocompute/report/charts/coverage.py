"""The best n for coverage and for sharpening (IsoCompute figure 8)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import numpy as np

from isocompute.law.fits import CurveFit
from isocompute.law.frontier import live, reached
from isocompute.report.charts.competition import by_problems
from isocompute.report.charts.marks import chart, doubling_axis, named_colours, panel
from isocompute.report.evidence import Evidence
from isocompute.report.model import Drawing, Needs

__all__ = ["other_metrics"]


def other_metrics(evidence: Evidence) -> Drawing | Needs:
    """Figure 8: the n that is best for best@k (coverage) and for worst@k (sharpening), for each Bp."""
    best, worst = evidence.sibling("best"), evidence.sibling("worst")
    if best is None or worst is None:
        return Needs("best@k and worst@k of the same evaluation (their names beside avg@k)")
    rows: list[dict[str, Any]] = []
    for metric in (best, worst):
        for condition in evidence.conditions:
            groups = by_problems(evidence.fits(condition, metric=metric))
            name = condition.name or "all runs"
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
    """The best n at the largest compute that all settings have, with its interval."""
    compute = min(fit.last for fit in settings)
    at = np.array([compute])
    fits = [fit for fit, begun in zip(settings, live(settings, at)[:, 0], strict=True) if begun]
    n_S = np.array([float(fit.setting[1] or 0) for fit in fits])
    best_B = n_S[np.stack([fit.ensemble.at(at)[:, 0] for fit in fits]).argmax(axis=0)]
    low, high = np.percentile(best_B, [2.5, 97.5], method="inverted_cdf")
    n = float(n_S[int(np.argmax([float(reached(fit, at)[0]) for fit in fits]))])
    return {
        "problems_per_batch": bp,
        "compute": compute,
        "n": int(n),
        "low": int(min(low, n)),
        "high": int(max(high, n)),
        "tried": sorted(int(v) for v in set(n_S.tolist())),
    }


def _winners_panel(name: str, rows: Sequence[dict[str, Any]], metrics: Sequence[str], tried: Sequence[int]) -> Any:
    shown = [{key: row[key] for key in ("metric", "n", "low", "high")} | {"Bp": _bp(row)} for row in rows]
    order = list(dict.fromkeys(row["Bp"] for row in shown))
    x = alt.X("Bp:N", title="problems per batch Bp", sort=order, axis=alt.Axis(labelAngle=0, grid=False))
    offset = alt.XOffset("metric:N", sort=list(metrics))
    y = doubling_axis("n", "best n", tried)
    low = doubling_axis("low", "best n", tried)
    colour = named_colours("metric", None, list(metrics))
    whiskers = chart(shown).mark_rule(strokeWidth=2).encode(x=x, xOffset=offset, y=low, y2="high:Q", color=colour)
    dots = chart(shown).mark_point(filled=True, size=60, opacity=1).encode(x=x, xOffset=offset, y=y, color=colour)
    return panel(whiskers, dots, title=name)


def _bp(row: dict[str, Any]) -> str:
    return "–" if row["problems_per_batch"] is None else f"{row['problems_per_batch']}"


def _span(values: Sequence[int]) -> str:
    return f"{min(values)}" if min(values) == max(values) else f"{min(values)}–{max(values)}"
