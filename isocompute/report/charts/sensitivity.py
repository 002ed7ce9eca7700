"""How much the reward depends on n and how much on Bp (IsoCompute figure 10).

Without learning curves, a table of end points can still compare n within strata. Its rows are runs of several models
or learning rates, rarely with every n of each, so a mean over all rows with one n would compare models instead. The
runs of a stratum share Bp, their names without n, and all columns that are not results.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import altair as alt
import numpy as np

from isocompute.core.formatting import number, plural, value
from isocompute.core.run import Run
from isocompute.law.frontier import Slice
from isocompute.report.charts.style import BLUE, Drawing, Needs, chart, panel, title_of, value_axis
from isocompute.report.evidence import Evidence

_GROUPS = 3
"""Panels of an end-point table: groups of strata that were run with the same n."""
_SYMBOLS = {"rollouts_per_problem": ("n", "Bp"), "problems_per_batch": ("Bp", "n")}


def sensitivity(evidence: Evidence) -> Drawing | Needs:
    """IsoCompute figure 10: reward at one compute along n and along Bp, the other fixed."""
    panels, sentences, data = [], [], []
    for condition, law in evidence.laws():
        for varied, (symbol, fixed) in _SYMBOLS.items():
            widest = next((s for s in law.slices if s.varied == varied and len(set(s.settings)) > 1), None)
            if widest is None:
                continue
            title = title_of(condition.name)
            title += "" if widest.fixed is None else f" · {fixed} = {widest.fixed}"
            panels.append(_slice_panel(title, widest, symbol, law.metric))
            low, high = widest.range_interval
            sentences.append(
                f"{title}: {law.metric} at {number(widest.compute)} spans {value(widest.range)} "
                f"(95% {value(low)}–{value(high)}) over {symbol} = {widest.settings[0]}–{widest.settings[-1]}"
            )
            data.append({"title": title, **_slice_data(widest)})
    return Drawing(panels, sentences, {"panels": data}) if panels else _end_points(evidence)


def _slice_panel(title: str, s: Slice, symbol: str, metric: str) -> Any:
    rows = [
        {"setting": f"{setting}", "value": v, "low": low, "high": high}
        for setting, v, (low, high) in zip(s.settings, s.values, s.intervals, strict=True)
    ]
    subtitle = f"at {number(s.compute)}; whiskers: 95%; range {value(s.range)}"
    return _whiskers(title, rows, symbol, metric, subtitle)


def _slice_data(s: Slice) -> dict[str, Any]:
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


# Tables of end points -------------------------------------------------------------------------------------------------


def _end_points(evidence: Evidence) -> Drawing | Needs:
    """The last value of every run by its n, within strata."""
    metric = evidence.metric
    panels, sentences, data = [], [], []
    for condition in evidence.conditions:
        by_n: dict[int, list[float]] = {}
        for run in condition.runs:
            n = run.settings.rollouts_per_problem
            if n is not None and metric in run.metrics:
                by_n.setdefault(n, []).append(_last(run, metric))
        if len(by_n) < 2:
            continue
        name = title_of(condition.name)
        found = strata_of(condition.runs.runs, metric)
        if found.differing and found.compared:
            for ns, cells in found.compared[:_GROUPS]:
                many = f"{len(cells)} {'stratum' if len(cells) == 1 else 'strata'}"
                subtitle = f"mean over {many} with each of these n; whiskers: twice its error within them"
                panels.append(_whiskers(f"{name} · n = {', '.join(map(str, ns))}", means(cells), "n", metric, subtitle))
            sentences.append(f"{name}: {_inside(found, metric)}")
            changes = [asdict(change) for change in found.changes()]
            strata = [{"stratum": s, "values": dict(sorted(values.items()))} for s, values in found.cells.items()]
            balanced = {"told_apart_by": list(found.differing), "balanced": found.balanced}
            data.append({"title": name, **balanced, "strata": strata, "changes": changes})
            continue
        rows = []
        for n, values in sorted(by_n.items()):
            mean, error = float(np.mean(values)), _twice_error(values)
            row = {"setting": f"{n}", "value": mean, "low": mean - error, "high": mean + error, "runs": len(values)}
            rows.append(row)
        subtitle = "mean over runs; whiskers: twice its standard error"
        panels.append(_whiskers(name, rows, "n", metric, subtitle))
        sentences.append(f"{name}: {_over_runs(found, rows, metric)}")
        data.append({"title": name, "rows": rows})
    if not panels:
        return Needs("runs at two or more n (at one Bp) or at two or more Bp (at one n)")
    return Drawing(panels, sentences, {"panels": data})


def _inside(found: Strata, metric: str) -> str:
    """The best n if every stratum has every n; else the changes from each n to the next within strata."""
    strata = f"{len(found.cells)} strata (they differ in {', '.join(found.differing)})"
    if found.balanced:
        top = max(means(found.cells), key=lambda row: float(row["value"]))
        return (
            f"the last {metric}, averaged within {strata}, is highest at n = {top['setting']}, {value(top['value'])} "
            f"({value(top['low'])}–{value(top['high'])})"
        )
    steps = ", ".join(
        f"from n = {c.before} to {c.after} by {c.mean:+.3f}"
        + (f" ± {c.error:.3f}" if c.strata > 1 else "")
        + f" ({c.strata})"
        for c in found.changes()
    )
    return (
        f"not every one of {strata} has every n, so means over all runs do not compare n; within strata that "
        f"have both, the last {metric} changes {steps} (± twice the standard error; number of strata)"
    )


def _over_runs(found: Strata, rows: Sequence[dict[str, Any]], metric: str) -> str:
    if found.differing:
        differ = ", ".join(found.differing)
        return (
            f"no two runs differ in n alone ({differ} differ too), so the means of the last {metric} do not compare n"
        )
    top = max(rows, key=lambda row: float(row["value"]))
    return (
        f"the mean of the last {metric} is highest at n = {top['setting']}, {value(top['value'])} "
        f"({value(top['low'])}–{value(top['high'])}, {plural(top['runs'], 'run')})"
    )


_Cells = Mapping[str, Mapping[int, float]]
"""The mean of the last values by stratum and n."""


@dataclass(frozen=True)
class Change:
    """The change from one n to the next, within the strata that have both."""

    before: int
    after: int
    mean: float
    error: float
    """Twice the standard error over the strata; 0 if there is only one."""
    strata: int


@dataclass(frozen=True)
class Strata:
    """The runs of a table, grouped by what they share besides n."""

    differing: tuple[str, ...]
    """What differs between strata; empty if there is one stratum."""
    cells: _Cells

    @property
    def compared(self) -> list[tuple[tuple[int, ...], _Cells]]:
        """Groups of strata that have the same two or more n, the largest group first."""
        groups: dict[tuple[int, ...], dict[str, Mapping[int, float]]] = {}
        for name, by_n in self.cells.items():
            if len(by_n) > 1:
                groups.setdefault(tuple(sorted(by_n)), {})[name] = by_n
        return sorted(groups.items(), key=lambda item: (-len(item[1]), -len(item[0])))

    @property
    def balanced(self) -> bool:
        """Whether every stratum has every n."""
        return len({tuple(sorted(by_n)) for by_n in self.cells.values()}) == 1

    def changes(self) -> list[Change]:
        """From each n to the next, over the strata that have both."""
        every = sorted({n for by_n in self.cells.values() for n in by_n})
        out = []
        for before, after in pairwise(every):
            moved = [by_n[after] - by_n[before] for by_n in self.cells.values() if before in by_n and after in by_n]
            if moved:
                out.append(Change(before, after, float(np.mean(moved)), _twice_error(moved), len(moved)))
        return out


def means(cells: _Cells) -> list[dict[str, Any]]:
    """The mean of each n over strata that all have it, with the error of differences within strata."""
    levels = {name: float(np.mean(list(by_n.values()))) for name, by_n in cells.items()}
    out = []
    for n in sorted(next(iter(cells.values()))):
        mean = float(np.mean([by_n[n] for by_n in cells.values()]))
        error = _twice_error([by_n[n] - levels[name] for name, by_n in cells.items()])
        out.append({"setting": f"{n}", "value": mean, "low": mean - error, "high": mean + error, "strata": len(cells)})
    return out


def strata_of(runs: Sequence[Run], metric: str) -> Strata:
    """The last value of every run that logs its n, by stratum."""
    known = [run for run in runs if run.settings.rollouts_per_problem is not None and metric in run.metrics]
    parts = _parts(known, metric)
    varying = tuple(key for key, values in parts.items() if len(set(values)) > 1)
    values: dict[str, dict[int, list[float]]] = {}
    for i, run in enumerate(known):
        stratum = " · ".join(parts[key][i] for key in varying)
        n = int(run.settings.rollouts_per_problem or 0)
        values.setdefault(stratum, {}).setdefault(n, []).append(_last(run, metric))
    cells = {s: {n: float(np.mean(found)) for n, found in by_n.items()} for s, by_n in values.items()}
    return Strata(varying, cells)


_RESULT = re.compile(
    r"acc|reward|score|loss|return|pass|solve|success|correct|entrop|kl|grad|norm|len|token|time|second|hour|step|best|"
    r"final|last|train|val|eval|test"
)
_ROLLOUTS = re.compile(r"(?<![A-Za-z])(?:n|g|r|rollouts?|groups?|gens?|generations?|samples?)[ _=-]?(\d+)(?!\d)")
_ROLLOUTS_GLUED = re.compile(r"(?:rollouts?|groups?|generations?|samples?)[ _=-]?(\d+)(?!\d)")
_SEED = re.compile(r"(?<![A-Za-z])(?:s|seed)[ _=-]?\d+(?![\d.])")


def _parts(runs: Sequence[Run], metric: str) -> dict[str, list[str]]:
    """The settings that runs log besides n, as text by name; results are left out."""
    out = {"Bp": [f"{run.settings.problems_per_batch}" for run in runs]}
    for column in dict.fromkeys(name for run in runs for name in run.points.columns):
        if column == metric or _RESULT.search(column.lower()):
            continue
        logged = [run.points[column].unique() if column in run.points.columns else None for run in runs]
        if all(each is not None and len(each) == 1 for each in logged):
            texts = [f"{each[0]}" for each in logged if each is not None]
            if 2 * len(set(texts)) <= len(texts):  # values that few runs share are measured, not set
                out[column] = texts
    without = [_without_n(run.name, int(run.settings.rollouts_per_problem or 0)) for run in runs]
    if all(each is not None for each in without):
        out["name"] = [f"{each}" for each in without]
    return out


def _without_n(name: str, n: int) -> str | None:
    """A run's name without its n and seed; None if its n is not in the name.

    >>> _without_n("grpo0.5B-b32-r32-p0.1", 32), _without_n("batch32rollout8", 8), _without_n("first", 8)
    ('grpo0.5B-b32-#-p0.1', 'batch32#', None)
    """
    for pattern in (_ROLLOUTS, _ROLLOUTS_GLUED):
        found = next((m for m in pattern.finditer(name) if int(m[1]) == n), None)
        if found is not None:
            return _SEED.sub("", f"{name[: found.start()]}#{name[found.end() :]}")
    return None


def _last(run: Run, metric: str) -> float:
    return float(run.points[metric].drop_nulls()[-1])


def _twice_error(values: Sequence[float]) -> float:
    return 2.0 * float(np.std(values, ddof=1)) / len(values) ** 0.5 if len(values) > 1 else 0.0
