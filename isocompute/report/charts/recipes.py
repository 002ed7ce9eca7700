"""Charts of recipes, baselines and forecasts (ScaleRL figures 1, 2, 5 and 7, IsoCompute figure 26)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import altair as alt
import numpy as np

from isocompute.core.arrays import Array
from isocompute.core.curve import MINIMUM_POINTS, Curve
from isocompute.core.errors import InputError
from isocompute.core.formatting import number, pair, value
from isocompute.data.compatible import Condition, ingredients
from isocompute.law.comparison import compare
from isocompute.law.curves import usable_points
from isocompute.law.fits import CEILING_SEEN, CurveFit, fit_groups
from isocompute.law.forecasting import Forecast
from isocompute.law.law import Law
from isocompute.law.posterior import around
from isocompute.law.solver import HILL, FitRows, solve
from isocompute.report.charts.style import (
    ACCENT,
    BLUE,
    GREY,
    PAPER,
    Drawing,
    Needs,
    band,
    chart,
    compute_axis,
    fit_data,
    fit_rows,
    named_colours,
    panel,
    point_rows,
    thin,
    title_of,
    unit_name,
    value_axis,
)
from isocompute.report.evidence import Evidence

_MOST_RUNS, _MOST_RECIPES = 4, 8
_ONE_PART = 3
"""Fields that may change together as one part of a recipe, such as a loss and its clips."""
_RISE_SHOWN = (0.03, 0.97)
"""Outside this share of the rise, noise dominates the straightened points."""


# Named curves in one panel --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Entry:
    """A fitted curve by name."""

    name: str
    fit: CurveFit


def _entries_panel(title: str, entries: Sequence[_Entry], evidence: Evidence) -> Any:
    """Points, fits and 95% bands in distinct colours."""
    x, y = compute_axis(evidence.unit), value_axis(evidence.metric)
    colour = named_colours("entry", None, [entry.name for entry in entries])
    lines = [row for entry in entries for row in fit_rows(entry.fit, entry=entry.name)]
    points = [row for entry in entries for row in point_rows(*entry.fit.curves, entry=entry.name)]
    return panel(
        band(x, y, lines, colour),
        chart(thin(points)).mark_circle(size=14, opacity=0.5).encode(x=x, y=y, color=colour),
        chart(lines).mark_line(strokeWidth=1.8).encode(x=x, y=y, color=colour),
        title=title,
    )


def _entries_data(entries: Sequence[_Entry]) -> dict[str, Any]:
    """Points, ceilings and their intervals."""
    return {
        "curves": [
            {
                "name": entry.name,
                "runs": [curve.name for curve in entry.fit.curves],
                **fit_data(entry.fit),
                "compute": [float(c) for curve in entry.fit.curves for c in curve.compute_C],
                "value": [float(v) for curve in entry.fit.curves for v in curve.values_C],
            }
            for entry in entries
        ]
    }


def baselines(evidence: Evidence) -> Drawing | Needs:
    """IsoCompute figure 26: small groups with a baseline from more rollouts, against plain groups."""
    key = "recipe.baseline_rollouts"
    laws = evidence.laws()
    plain = {c.rest(key): law.settings for c, law in laws if not c.ingredient(key)}
    entries: list[_Entry] = []
    for condition, law in laws:
        estimated = condition.ingredient(key)
        for fit in law.settings if estimated and not entries else ():
            bp, n = fit.setting
            same = [f for f in plain.get(condition.rest(key), ()) if f.setting in ((bp, n), (bp, estimated))]
            if same and not entries:
                entries.append(_Entry(f"{n}/{estimated}", fit))
                entries += [_Entry(f"{f.setting[1]}/{f.setting[1]}", f) for f in same]
    if not entries:
        return Needs(
            "runs of one Bp with a decoupled baseline (such as recipe.baseline_rollouts = 256 at n = 64), and plain "
            "runs of that n and of that many rollouts"
        )
    at = min(entry.fit.last for entry in entries)
    reached = {entry.name: _at(entry.fit, at) for entry in entries}
    order = sorted(reached, key=lambda name: -reached[name][0])
    caption = f"At {number(at)} {evidence.unit} (n trained on / n the baseline is estimated on): " + ", ".join(
        f"{name} reaches {value(reached[name][0])} (95% {pair(reached[name][1])})" for name in order
    )
    shown = _entries_panel("n trained on / estimated on", entries, evidence)
    return Drawing([shown], [caption], _entries_data(entries) | {"at": at, "reached": reached})


def _at(fit: CurveFit, compute: float) -> tuple[float, tuple[float, float]]:
    at = np.array([compute])
    estimate = float(fit.at(at)[0])
    return estimate, around(estimate, fit.draws_at(at)[0])


# Half a run predicts the rest -----------------------------------------------------------------------------------------


def extrapolation(evidence: Evidence) -> Drawing | Needs:
    """ScaleRL figure 1: a fit to the first half with its band, and the second half."""
    panels, sentences, data = [], [], []
    for run in _longest(evidence):
        whole = evidence.curves[run]
        seen, made = evidence.forecast(run)
        kept = usable_points(seen)
        if len(kept.compute_C) < MINIMUM_POINTS or np.ptp(kept.values_C) == 0:
            continue
        (fit,) = fit_groups(
            [[kept]], replicates=max(100, evidence.replicates // 2), seed=evidence.seed, with_seeds=False
        )
        count = len(seen.compute_C)
        later = replace(whole, compute_C=whole.compute_C[count:], values_C=whole.values_C[count:])
        panels.append(_extrapolation_panel(run, seen, later, fit, made, evidence))
        end = np.array([float(whole.compute_C[-1])])
        expected = float(fit.at(end)[0])
        band_at_end = around(expected, fit.draws_at(end)[0])
        reached = float(later.values_C[-3:].mean())
        sentences.append(
            f"{run}: fitted up to {number(float(seen.compute_C[-1]))} {unit_name(evidence.unit)}, the curve expects "
            f"{value(expected)} (95% {pair(band_at_end)}) at {number(float(end[0]))}, the forecast "
            f"{value(made.value)} ({made.level:.0%} {pair(made.interval)}); {value(reached)} was reached"
        )
        data.append(
            {
                "run": run,
                "fitted": {"compute": seen.compute_C.tolist(), "value": seen.values_C.tolist()},
                "held_out": {"compute": later.compute_C.tolist(), "value": later.values_C.tolist()},
                "form": fit.form,
                "parameters": fit.parameters(),
                "expected": expected,
                "expected_interval": list(band_at_end),
                "forecast": made.value,
                "forecast_interval": list(made.interval),
                "forecast_level": made.level,
                "reached": reached,
            }
        )
    if not panels:
        return Needs("a run with at least eight evaluations, four of them in the first half of its compute")
    return Drawing(panels, sentences, {"runs": data})


def _longest(evidence: Evidence) -> list[str]:
    """For each condition the run with the most compute, the highest end among equals, if both halves are long."""
    out = []
    for condition in evidence.conditions:
        curves = [evidence.curves[run.name] for run in condition.runs if run.name in evidence.curves]
        for curve in sorted(curves, key=lambda c: (-round(np.log(c.compute_C[-1]), 1), -float(c.values_C[-3:].mean()))):
            half = int((curve.compute_C <= 0.5 * curve.compute_C[-1]).sum())
            if len(curve.compute_C) >= 8 and 4 <= half <= len(curve.compute_C) - 2:
                out.append(curve.name)
                break
    return out[:_MOST_RUNS]


def _extrapolation_panel(run: str, seen: Curve, later: Curve, fit: CurveFit, made: Forecast, evidence: Evidence) -> Any:
    x, y = compute_axis(evidence.unit), value_axis(evidence.metric)
    grid = fit_rows(fit, to=float(later.compute_C[-1]), size=80)
    inside = [row for row in grid if row["compute"] <= fit.last]
    extrapolated = grid[len(inside) - 1 :]
    points = [*point_rows(seen, kind="fitted"), *point_rows(later, kind="held out")]
    kinds = named_colours("kind", None, ("fitted", "held out"), (BLUE, GREY))
    ahead = [{"compute": made.at, "value": made.value, "low": made.interval[0], "high": made.interval[1]}]
    low = value_axis(evidence.metric, "low")
    return panel(
        band(x, y, grid, alt.value(ACCENT), opacity=0.15),
        chart(thin(points)).mark_circle(size=20, opacity=0.8).encode(x=x, y=y, color=kinds),
        chart(inside).mark_line(color=ACCENT, strokeWidth=2).encode(x=x, y=y),
        chart(extrapolated).mark_line(color=ACCENT, strokeWidth=2, strokeDash=[6, 4]).encode(x=x, y=y),
        chart(ahead).mark_rule(color=BLUE, strokeWidth=2).encode(x=x, y=low, y2="high:Q"),
        chart(ahead).mark_point(color=BLUE, shape="diamond", filled=True, size=70).encode(x=x, y=y),
        title=run,
        subtitle="line: fit to the first half, 95% band; diamond: forecast, 80%",
    )


# Which recipes compare ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _RecipeSet:
    """Recipes that can be compared, each as one fitted curve."""

    title: str
    entries: tuple[_Entry, ...]
    fields: tuple[Mapping[str, Any], ...]
    """The recipe fields of each entry; empty if they are not logged."""

    def single_changes(self) -> tuple[_Entry, list[_Entry]] | None:
        """The recipe from which the most others differ in one field, and its neighbours; None if there are none.

        Neighbours differ in up to three fields, since one part of a recipe may be several fields.
        """
        apart_EE = [[len(self._differences(i, j)) for j in range(len(self.entries))] for i in range(len(self.entries))]
        centre = max(range(len(self.entries)), key=lambda i: apart_EE[i].count(1), default=0)
        if not self.entries or not apart_EE[centre].count(1):
            return None
        near = [
            _Entry(self._change(centre, j), entry.fit)
            for j, entry in enumerate(self.entries)
            if 1 <= apart_EE[centre][j] <= _ONE_PART
        ]
        reference = self.entries[centre]
        return _Entry(f"{reference.name} (reference)", reference.fit), near

    def _differences(self, i: int, j: int) -> list[str]:
        a, b = self.fields[i], self.fields[j]
        return [key for key in sorted({*a, *b}) if a.get(key) != b.get(key)]

    def _change(self, i: int, j: int) -> str:
        return ", ".join(
            f"{key.removeprefix('recipe.')} = {self.fields[j].get(key, 'off')}" for key in self._differences(i, j)
        )


def _recipe_sets(evidence: Evidence) -> list[_RecipeSet]:
    """All sets of at least two recipes, the largest first.

    Runs without a logged allocation count as recipes by their names, if there are no others. Runs without a model and a
    problem set are not compared if their rewards have different scales.
    """
    groups: dict[str, list[tuple[Condition, Law]]] = {}
    for condition, law in evidence.laws():
        groups.setdefault(condition.rest("recipe."), []).append((condition, law))
    alike = [group for group in groups.values() if evidence.comparable(*(condition for condition, _ in group))]
    out = [found for group in alike if (found := _set(group)) is not None]
    return sorted(out, key=lambda group: -len(group.entries))


def _set(group: Sequence[tuple[Condition, Law]]) -> _RecipeSet | None:
    if len(group) == 1:
        condition, law = group[0]
        named = tuple(_Entry(fit.curves[0].name, fit) for fit in law.settings if fit.setting[1] is None)
        return _RecipeSet(condition.name or "runs", named, ({},) * len(named)) if len(named) > 1 else None
    shared = set.intersection(*({fit.setting for fit in law.settings} for _, law in group))
    if not shared:
        return None
    setting = max(shared, key=lambda s: min(f.last for _, law in group for f in law.settings if f.setting == s))
    entries = tuple(
        _Entry(condition.recipe_name, next(fit for fit in law.settings if fit.setting == setting))
        for condition, law in group
    )
    fields = tuple(
        {key: v for key, v in ingredients(condition.runs[0]).items() if key.startswith("recipe.")}
        for condition, _ in group
    )
    bp, n = setting
    problems = group[0][0].ingredient("problems")
    title = title_of(str(problems or ""), f"{bp} × {n}" if n else "") if problems or n else "recipes"
    return _RecipeSet(title, entries, fields)


# Recipes by ceiling, and one change at a time -------------------------------------------------------------------------


def recipes(evidence: Evidence) -> Drawing | Needs:
    """ScaleRL figures 2 and 5: recipes that differ in nothing else, with fits and ceilings."""
    found = _recipe_sets(evidence)
    if not found and not evidence.comparable(*evidence.conditions):
        return Needs(
            "runs that name their problem set and model: these do not, and their values are on different scales"
        )
    if not found:
        return Needs("two or more recipes on one model and problem set (they differ in recipe fields of run.json)")
    panels, sentences, data = [], [], []
    for group in found[:_MOST_RUNS]:
        ranked = sorted(group.entries, key=lambda e: (e.fit.rise_done < CEILING_SEEN, -e.fit.ceiling))[:_MOST_RECIPES]
        panels += [_entries_panel(group.title, ranked, evidence), _ceilings_panel(ranked, evidence.metric)]
        top = ", ".join(f"{entry.name} {_ceiling(entry.fit)}" for entry in ranked[:4])
        sentences.append(f"{group.title}: fitted ceilings {top}{_comparison(ranked, evidence)}")
        data.append({"title": group.title, **_entries_data(group.entries)})
    return Drawing(panels, sentences, {"panels": data}, columns=2)


def _ceiling(fit: CurveFit) -> str:
    unseen = "" if fit.rise_done >= CEILING_SEEN else f", {fit.rise_done:.0%} of the rise done"
    return f"{value(fit.ceiling)} (95% {pair(fit.ceiling_interval())}{unseen})"


def _comparison(ranked: Sequence[_Entry], evidence: Evidence) -> str:
    """The verdict of `isocompute compare` on the two highest recipes."""
    try:
        sides = ranked[0].fit.curves, ranked[1].fit.curves
        result = compare(*sides, replicates=max(100, evidence.replicates // 2), seed=evidence.seed)
    except InputError:
        return ""
    a, b = ranked[0].name, ranked[1].name
    higher = {
        "a": f"{a} reaches higher than {b}",
        "b": f"{b} reaches higher than {a}",
        "same": f"the ceilings of {a} and {b} do not differ by more than the error ({result.error_rule})",
        "undecided": f"which of {a} and {b} reaches higher is undecided",
    }
    return f"; {higher[result.higher]}"


def _ceilings_panel(ranked: Sequence[_Entry], metric: str) -> Any:
    rows = []
    for entry in ranked:
        low, high = entry.fit.ceiling_interval()
        state = "seen" if entry.fit.rise_done >= CEILING_SEEN else "extrapolated"
        rows.append({"entry": entry.name, "value": entry.fit.ceiling, "low": low, "high": high, "state": state})
    return _forest(rows, f"ceiling of {metric}", "Ceilings", "whiskers: 95%; hollow: under 80% of the rise is done")


def _forest(rows: Sequence[dict[str, Any]], axis: str, title: str, subtitle: str, even: float | None = None) -> Any:
    names = [row["entry"] for row in rows]
    room = min(300, 7 * max(map(len, names)))  # 7 pixels per letter: a reader's font may be wide
    y = alt.Y("entry:N", title=None, sort=names, axis=alt.Axis(labelLimit=240, minExtent=room))
    ends = [v for row in rows for v in (row["low"], row["high"])] + ([] if even is None else [even])
    pad = 0.06 * (max(ends) - min(ends)) or 0.01
    scale = alt.Scale(domain=[min(ends) - pad, max(ends) + pad], nice=False)
    x = alt.X("value:Q", title=axis, scale=scale, axis=alt.Axis(tickCount=5))
    low = alt.X("low:Q", title=axis, scale=scale)
    solid = alt.condition("datum.state == 'seen'", alt.value(BLUE), alt.value(PAPER))
    dots = chart(rows).mark_point(size=60, filled=True, opacity=1, stroke=BLUE, strokeWidth=2)
    layers = [
        chart(rows).mark_rule(color=BLUE, strokeWidth=2).encode(x=low, x2="high:Q", y=y),
        dots.encode(x=x, y=y, fill=solid),
    ]
    if even is not None:
        layers.insert(0, chart([{"value": even}]).mark_rule(color=GREY, strokeDash=[3, 3]).encode(x=x))
    width = min(200, max(140, 390 - room))  # names of recipes take the rest
    return panel(*layers, title=title, subtitle=subtitle, width=width, height=max(60, 26 * len(rows)))


def leave_one_out(evidence: Evidence) -> Drawing | Needs:
    """ScaleRL figure 7: recipes that change one field of a reference, as lines whose slope is the efficiency B."""
    for group in _recipe_sets(evidence):
        found = group.single_changes()
        if found is not None:
            return _leave_one_out(group, *found, evidence)
    return Needs("a reference recipe and runs that change one field of it each (leave-one-out), at the same Bp and n")


def _leave_one_out(group: _RecipeSet, reference: _Entry, others: Sequence[_Entry], evidence: Evidence) -> Drawing:
    everyone = [reference, *others]
    reached = max(float(entry.fit.at(np.array([entry.fit.last]))[0]) for entry in everyone)
    common = max(float(np.mean([entry.fit.ceiling for entry in everyone])), reached + 1e-6)
    points, lines, slopes = [], [], {}
    for entry in everyone:
        efficiency, midpoint, base = _pinned(entry.fit, common)
        slopes[entry.name] = efficiency
        if len(slopes) > _MOST_RECIPES:  # more lines than colours: the others are in the other panel
            continue
        points += _straightened(entry, common, base)
        lines += [
            {"compute": float(c), "value": efficiency * float(np.log10(c / midpoint)), "entry": entry.name}
            for c in np.geomspace(entry.fit.first, entry.fit.last, 20)
            if _RISE_SHOWN[0] < 1 / (1 + (midpoint / c) ** efficiency) < _RISE_SHOWN[1]
        ]
    x = compute_axis(evidence.unit)
    y = alt.Y("value:Q", title="log10 (R − R0) / (A − R)", axis=alt.Axis(tickCount=5))
    colour = named_colours("entry", None, [entry.name for entry in everyone[:_MOST_RECIPES]])
    straight = panel(
        chart(thin(points or lines)).mark_circle(size=14, opacity=0.5).encode(x=x, y=y, color=colour),
        chart(lines or points).mark_line(strokeWidth=1.9).encode(x=x, y=y, color=colour),
        title=group.title,
        subtitle=f"slope = efficiency B at the common ceiling {value(common)}",
    )
    rows: list[dict[str, Any]] = []
    for entry in everyone[1:]:
        result = compare(entry.fit.curves, reference.fit.curves, replicates=max(100, evidence.replicates // 2))
        low, high = result.efficiency_ratio_interval
        rows.append(
            {
                "entry": entry.name,
                "value": result.efficiency_ratio,
                "low": low,
                "high": high,
                "state": "seen",
                "ceiling_difference": result.difference,
                "ceiling_interval": list(result.interval),
                "slope": slopes[entry.name],
            }
        )
    ratios = _forest(
        [{key: row[key] for key in ("entry", "value", "low", "high", "state")} for row in rows],
        f"B over that of {reference.name}",
        "Efficiency",
        "whiskers: 95%",
        even=1.0,
    )
    sentences = [
        f"{row['entry']} against {reference.name}: B is {row['value']:.2f} times (95% {row['low']:.2f}–"
        f"{row['high']:.2f}), the ceiling differs by {row['ceiling_difference']:+.3f} "
        f"({row['ceiling_interval'][0]:+.3f} to {row['ceiling_interval'][1]:+.3f})"
        for row in rows
    ]
    data = {"reference": reference.name, "slope": slopes[reference.name], "common_ceiling": common, "changes": rows}
    return Drawing([straight, ratios], sentences, data)


def _pinned(fit: CurveFit, ceiling: float) -> tuple[float, float, float]:
    """Efficiency, midpoint and base of the Hill curve with this ceiling through the points."""
    compute_C = np.concatenate([c.compute_C for c in fit.curves])
    values_C = np.concatenate([c.values_C for c in fit.curves])
    span = np.array([max(fit.last / fit.first, 1.0 + 1e-9)])
    ones_RC: Array = np.ones((1, len(values_C)))
    solved = solve(
        HILL,
        FitRows(
            (compute_C / fit.first)[None], span, np.zeros(1, np.int64), values_C[None], ones_RC, ceiling, pinned=True
        ),
    )
    midpoint, efficiency = np.exp(solved.theta_RK[0])
    return float(efficiency), float(midpoint) * fit.first, float(solved.base_R[0])


def _straightened(entry: _Entry, ceiling: float, base: float) -> list[dict[str, Any]]:
    out = []
    for curve in entry.fit.curves:
        for c, v in zip(curve.compute_C, curve.values_C, strict=True):
            done = (v - base) / (ceiling - base) if ceiling > base else 0.0
            if c > 0 and _RISE_SHOWN[0] < done < _RISE_SHOWN[1]:
                out.append({"compute": float(c), "value": float(np.log10(done / (1 - done))), "entry": entry.name})
    return out
