"""How the numbers of a report were made, every setting of its runs, and the table of runs."""

from __future__ import annotations

from typing import Any

import numpy as np

from isocompute.core.formatting import count, number, pair, value
from isocompute.core.run import listing
from isocompute.data.conditions import ingredients
from isocompute.law.families import FAMILIES
from isocompute.law.law import RunFit
from isocompute.report.evidence import Evidence
from isocompute.report.style import unit_name

__all__ = ["fallen_note", "left_out_reasons", "method_facts", "run_table", "setting_rows"]

_MOST_CONDITIONS = 12
_MOST_RUNS = 1000
_MOST_NAMED = 6


def method_facts(evidence: Evidence) -> list[tuple[str, str]]:
    """What was fitted to what, and how intervals were made."""
    laws = evidence.laws()
    out = [
        ("Metric", evidence.metric),
        ("Compute", unit_name(evidence.unit) if evidence.unit else "not counted by these runs"),
        (
            "Curves",
            f"{len(evidence.curves)} of {len(evidence.runs)} runs; all points up to a lasting fall, each fitted as "
            f"{', '.join(family.name for family in FAMILIES)} and weighed by Akaike's criterion",
        ),
        (
            "Intervals",
            f"{evidence.replicates} bootstrap replicates over points, seeds and forms (seed {evidence.seed}); 95% "
            "unless said otherwise; metrics beside the report's own have a fifth of the replicates",
        ),
        ("Frontier", "the upper envelope of the fitted curves; an optimum at the edge of what was run is a bound"),
        (
            "Forecast",
            "an average of curve families and simple rules, weighted by how well each predicted this run's past",
        ),
        ("Source", evidence.runs.source),
    ]
    notes = [f"{condition.name}: {note}" if condition.name else note for condition, law in laws for note in law.notes]
    return out + [("Note", note) for note in notes]


def fallen_note(evidence: Evidence) -> str | None:
    """Which runs collapsed, and after how much compute; None where none did."""
    fallen = evidence.fallen
    if not fallen:
        return None
    unit = unit_name(evidence.unit)
    named = [f"{name} after {number(at)} {unit}" for name, at in list(fallen.items())[:_MOST_NAMED]]
    more = f" and {len(fallen) - _MOST_NAMED} more" if len(fallen) > _MOST_NAMED else ""
    count = f"{len(fallen)} of {len(evidence.runs)} runs {'falls' if len(fallen) == 1 else 'fall'} for good"
    return f"{count}: {', '.join(named)}{more}. Fits use the points up to there."


def setting_rows(evidence: Evidence) -> tuple[list[str], list[list[str]]]:
    """Every setting by condition; what all runs share is in one column."""
    conditions = evidence.conditions[:_MOST_CONDITIONS]
    made_of = [ingredients(condition.runs[0]) for condition in conditions]
    keys = sorted({key for parts in made_of for key in parts}, key=lambda key: ("." in key, key))
    names = [condition.name or "all runs" for condition in conditions]
    return ["setting", *names], [[key, *(_said(parts.get(key)) for parts in made_of)] for key in keys]


def left_out_reasons(evidence: Evidence) -> list[str]:
    """Why runs give no curve: one line a reason, with the runs it holds for."""
    groups: dict[str, list[str]] = {}
    for name, why in evidence.left_out.items():
        reason = why.removeprefix(f"{evidence.runs.source}: ").replace(f"run '{name}', ", "").replace(f"'{name}'", "it")
        groups.setdefault(reason, []).append(name)
    return [f"{listing(names, 6)}: {reason}" for reason, names in groups.items()]


def _said(setting: Any) -> str:
    if setting is None:
        return "–"
    if isinstance(setting, dict):
        return ", ".join(f"{key} {_said(part)}" for key, part in setting.items()) or "–"
    return f"{setting:g}" if isinstance(setting, float) else f"{setting}"


def run_table(evidence: Evidence) -> tuple[list[str], list[list[str]]]:
    """Headings, and one row a run, the first thousand; without columns that no run fills.

    What is wrong with a run stands beside its name, where a narrow page does not cut it off.
    """
    columns = ["run", "note", "condition", "Bp", "n", "seed", "points", unit_name(evidence.unit), "last", "best"]
    columns += ["form", "ceiling", "95%", "rise done"]
    rows = _run_rows(evidence)
    kept = [i for i in range(len(columns)) if i == 0 or any(row[i] not in ("", "–") for row in rows)]
    return [columns[i] for i in kept], [[row[i] for i in kept] for row in rows]


def _run_rows(evidence: Evidence) -> list[list[str]]:
    fits: dict[str, RunFit] = {run.curve.name: run for _, law in evidence.laws() for run in law.runs}
    out = []
    for condition in evidence.conditions:
        for run in condition.runs:
            s = run.settings
            fit = fits.get(run.name)
            said = [run.name, _note(evidence, run.name, fit), condition.name]
            allocation = [count(s.problems_per_batch), count(s.rollouts_per_problem), count(s.seed)]
            out.append([*said, *allocation, *_reached(evidence, run.name), *_fitted(fit)])
    return out[:_MOST_RUNS]


def _reached(evidence: Evidence, name: str) -> list[str]:
    run = evidence.runs.named(name)
    if evidence.metric not in run.metrics:
        return ["0", "–", "–", "–"]
    values = run.points[evidence.metric].drop_nulls().to_numpy().astype(np.float64)
    curve = evidence.curves.get(name)
    last = "–" if curve is None else number(float(curve.compute_C[-1]))
    return [f"{len(values)}", last, value(float(values[-3:].mean())), value(float(values.max()))]


def _note(evidence: Evidence, name: str, run: RunFit | None) -> str:
    if run is None:
        return "no curve" if name in evidence.left_out else ""
    return "" if run.falls_after is None else f"falls after {number(run.falls_after)}"


def _fitted(run: RunFit | None) -> list[str]:
    if run is None:
        return ["–", "–", "–", "–"]
    fit = run.fit
    return [fit.family.name, value(fit.ceiling), pair(fit.ceiling_interval()), f"{fit.rise_done:.0%}"]
