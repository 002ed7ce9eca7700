"""The report as one HTML file: the answer, the figures, what is missing, the methods, the runs.

The file is self-contained: it loads no script, style, font or picture, and its content policy forbids it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files as resources
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from isocompute._version import __version__
from isocompute.core import files
from isocompute.core.errors import InputError
from isocompute.core.formatting import count, number, pair, plural, value
from isocompute.core.run import listing
from isocompute.data.compatible import ingredients
from isocompute.law.law import RunFit
from isocompute.law.solver import FAMILIES
from isocompute.report.answer import Answer, answer_card, answers
from isocompute.report.charts.style import unit_name
from isocompute.report.evidence import Evidence, Source
from isocompute.report.figures import FIGURES, Figure, Missing, draw
from isocompute.report.html import dark_rules, embedded_data, facts, inline_svg, items, table, tag

_MOST_ANSWERS, _MOST_CONDITIONS, _MOST_RUNS = 12, 12, 1000
"""Answers, conditions and runs on a page; `report --json` has all answers."""


@dataclass(frozen=True)
class Report:
    """A report that was written."""

    path: Path
    size: int
    evidence: Evidence
    answers: tuple[Answer, ...]
    figures: tuple[Figure, ...]
    missing: tuple[Missing, ...]

    def to_json(self) -> dict[str, Any]:
        """The keys of `report --json` (docs/reference/your-runs.md); `--figure NAME --json` gives a figure's data."""
        return {
            "report": str(self.path),
            "bytes": self.size,
            "source": self.evidence.runs.source,
            "metric": self.evidence.metric,
            "unit": self.evidence.unit,
            "runs": len(self.evidence.runs),
            "left_out": self.evidence.left_out,
            "conditions": [condition.name for condition in self.evidence.conditions],
            "answers": [answer.to_json() for answer in self.answers],
            "figures": [{key: v for key, v in figure.to_json().items() if key != "data"} for figure in self.figures],
            "missing": [missing.to_json() for missing in self.missing],
        }


def check_page(out: str | Path) -> Path:
    """Check the path of a page before any work is done."""
    path = Path(out)
    if path.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"--out {path}: a report is an HTML page; end the name in .html, or give --figure NAME.")
    if path.is_dir():
        raise InputError(f"--out {path}: this is a folder; give the name of a file.")
    return path


def write_report(
    runs: Source | Evidence,
    *,
    out: str | Path = "report.html",
    budget: str | float | None = None,
    metric: str | None = None,
    unit: str | None = None,
    replicates: int = 1000,
    seed: int = 0,
) -> Report:
    """Write runs, a study or a trainer's logs as one HTML page that needs no network.

    >>> report = write_report("runs", out="report.html", replicates=100)
    >>> report.path.name, "reward" in [figure.name for figure in report.figures]
    ('report.html', True)
    """
    path = check_page(out)
    evidence = (
        runs
        if isinstance(runs, Evidence)
        else Evidence.of(runs, metric=metric, unit=unit, replicates=replicates, seed=seed)
    )
    found = answers(evidence, budget=budget)
    drawn = [draw(name, evidence) for name in FIGURES]
    data = _page(evidence, found, drawn).encode()
    files.write_atomically(path, data)
    return Report(
        path=path,
        size=len(data),
        evidence=evidence,
        answers=found,
        figures=tuple(d for d in drawn if isinstance(d, Figure)),
        missing=tuple(d for d in drawn if isinstance(d, Missing)),
    )


# The page -------------------------------------------------------------------------------------------------------------


def _page(evidence: Evidence, answers: Sequence[Answer], drawn: Sequence[Figure | Missing]) -> str:
    """Fill in the template `assets/report.html`."""
    assets = resources("isocompute.report") / "assets"
    html, style, script = ((assets / f"report.{kind}").read_text(encoding="utf-8") for kind in ("html", "css", "js"))
    dark = f"@media screen and (prefers-color-scheme: dark) {{\n{dark_rules('svg.chart')}\n}}\n"
    figures = [d for d in drawn if isinstance(d, Figure)]
    fitted, every = len(evidence.curves) or len(evidence.runs), len(evidence.runs)
    runs = f"{fitted} of {every} runs" if fitted < every else plural(every, "run")
    columns, rows = run_table(evidence)
    return Template(html).substitute(
        title=escape(f"Report on {evidence.title}"),
        style=style + dark,
        about=escape(f"{runs} · {evidence.metric} · {evidence.runs.source}"),
        count=len(figures),
        answer=_answers(answers, evidence.notes, collapse_note(evidence)),
        figures=_figures(figures),
        missing=_missing([d for d in drawn if isinstance(d, Missing)]),
        methods=_methods(evidence),
        runs=table("All runs; the headings sort", columns, rows, sortable=True),
        version=escape(__version__),
        script=script,
    )


def _answers(answers: Sequence[Answer], notes: Sequence[str], collapses: str | None) -> str:
    if len(answers) > _MOST_ANSWERS:
        notes = [*notes, f"{len(answers) - _MOST_ANSWERS} more conditions have answers; report --json prints them."]
    cards = tag("div", *(answer_card(answer) for answer in answers[:_MOST_ANSWERS]), class_="cards")
    warning = tag("p", escape(collapses), class_="warning collapsed") if collapses else ""
    return cards + warning + (items(notes, class_="notes") if notes else "")


def _figures(figures: Sequence[Figure]) -> str:
    index = [tag("li", tag("a", escape(figure.title), href=f"#fig-{figure.name}")) for figure in figures]
    if not figures:
        return tag("p", "No figure can be drawn from these data; the next section lists what each needs.")
    return tag("ul", *index, class_="index") + tag("div", *(_figure(figure) for figure in figures), class_="figures")


def _figure(figure: Figure) -> str:
    name, label = figure.name, f"{figure.title}. {figure.caption}"
    panels = [
        tag("div", inline_svg(panel, key=f"{name}-{i}-", label=label), class_="panel")
        for i, panel in enumerate(figure.panels)
    ]
    data, thinned = embedded_data(figure)
    button = tag("button", f"Data (JSON{', thinned' if thinned else ''})", type="button", data_download=name)
    command = f"isocompute report … --figure {name} --out {name}.pdf"
    if thinned:
        command += f"   # all data: --figure {name} --json"
    return tag(
        "figure",
        tag("h3", escape(figure.title), tag("span", escape(figure.source), class_="source"), id=f"fig-{name}"),
        tag("figcaption", items(figure.sentences) if len(figure.sentences) > 1 else escape(figure.caption)),
        tag("div", *panels, class_=f"panels columns-{min(figure.columns, 3)}"),
        tag("p", button, tag("code", escape(command)), class_="tools"),
        tag("script", data, type="application/json", id=f"data-{name}"),
        class_="single" if len(panels) == 1 else "wide",
        aria_labelledby=f"fig-{name}",
    )


def _missing(missing: Sequence[Missing]) -> str:
    if not missing:
        return tag("p", "Every figure of the two papers is in this report.")
    rows = [
        tag("dt", escape(m.title), tag("span", escape(m.source), class_="source"))
        + tag("dd", "needs: " + escape(m.needs))
        for m in missing
    ]
    return tag("dl", *rows, class_="missing")


def _methods(evidence: Evidence) -> str:
    columns, rows = _setting_rows(evidence)
    out = facts(_method_facts(evidence)) + tag("h3", "Settings of the runs")
    if rows:
        out += table("Settings of the runs, apart from Bp, n and seed", columns, rows)
    else:
        out += tag("p", "The runs log no settings.")
    left_out = _left_out_reasons(evidence)
    if left_out:
        out += tag("h3", f"Left out: {plural(len(evidence.left_out), 'run')}") + items(left_out)
    return out


# Methods and runs -----------------------------------------------------------------------------------------------------


def _method_facts(evidence: Evidence) -> list[tuple[str, str]]:
    """How curves were fitted and intervals computed."""
    laws = evidence.laws()
    out = [
        ("Metric", evidence.metric),
        ("Compute", unit_name(evidence.unit) if evidence.unit else "not counted by these runs"),
        (
            "Curves",
            f"{len(evidence.curves)} of {len(evidence.runs)} runs; all points up to a collapse, each fitted as "
            f"{', '.join(family.name for family in FAMILIES)} and weighted by Akaike's criterion",
        ),
        (
            "Intervals",
            f"{evidence.replicates} bootstrap replicates over points, seeds and forms (seed {evidence.seed}); 95% "
            "unless stated otherwise; other metrics have a fifth of the replicates",
        ),
        ("Frontier", "the upper envelope of the fitted curves; an optimum at the edge of the grid is a bound"),
        (
            "Forecast",
            "an average of curve families and simple rules, weighted by how well each predicted this run's past",
        ),
        ("Source", evidence.runs.source),
    ]
    notes = [f"{condition.name}: {note}" if condition.name else note for condition, law in laws for note in law.notes]
    return out + [("Note", note) for note in notes]


def collapse_note(evidence: Evidence) -> str | None:
    """Which runs collapsed, and after how much compute; None if none did."""
    collapsed = evidence.collapsed
    if not collapsed:
        return None
    named = [f"{name} after {number(at)} {unit_name(evidence.unit)}" for name, at in list(collapsed.items())[:6]]
    more = f" and {len(collapsed) - 6} more" if len(collapsed) > 6 else ""
    verb = "collapses" if len(collapsed) == 1 else "collapse"
    runs = f"{len(collapsed)} of {len(evidence.runs)} runs {verb}"
    return f"{runs}: {', '.join(named)}{more}. Fits use the points up to there."


def _setting_rows(evidence: Evidence) -> tuple[list[str], list[list[str]]]:
    """Every setting, with a column for each condition."""
    conditions = evidence.conditions[:_MOST_CONDITIONS]
    made_of = [ingredients(condition.runs[0]) for condition in conditions]
    keys = sorted({key for parts in made_of for key in parts}, key=lambda key: ("." in key, key))
    names = [condition.name or "all runs" for condition in conditions]
    return ["setting", *names], [[key, *(_text(parts.get(key)) for parts in made_of)] for key in keys]


def _text(setting: Any) -> str:
    if setting is None:
        return "–"
    if isinstance(setting, dict):
        return ", ".join(f"{key} {_text(part)}" for key, part in setting.items()) or "–"
    return f"{setting:g}" if isinstance(setting, float) else f"{setting}"


def _left_out_reasons(evidence: Evidence) -> list[str]:
    """Why runs give no curve: each reason with its runs."""
    groups: dict[str, list[str]] = {}
    for name, why in evidence.left_out.items():
        reason = why.removeprefix(f"{evidence.runs.source}: ").replace(f"run '{name}', ", "").replace(f"'{name}'", "it")
        groups.setdefault(reason, []).append(name)
    return [f"{listing(names, 6)}: {reason}" for reason, names in groups.items()]


def run_table(evidence: Evidence) -> tuple[list[str], list[list[str]]]:
    """Headings and a row for each of the first thousand runs, without empty columns.

    Notes stand next to the names, where a narrow page does not cut them off.
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
            s, fit, curve = run.settings, fits.get(run.name), evidence.curves.get(run.name)
            note = "no curve" if run.name in evidence.left_out else ""
            fitted = ["–"] * 4
            if fit is not None:
                note = "" if fit.collapse_after is None else f"collapses after {number(fit.collapse_after)}"
                interval, rise = pair(fit.fit.ceiling_interval()), f"{fit.fit.rise_done:.0%}"
                fitted = [fit.fit.form, value(fit.fit.ceiling), interval, rise]
            reached = ["0", "–", "–", "–"]
            if evidence.metric in run.metrics:
                values = run.points[evidence.metric].drop_nulls().to_numpy().astype(np.float64)
                last = "–" if curve is None else number(float(curve.compute_C[-1]))
                reached = [f"{len(values)}", last, value(float(values[-3:].mean())), value(float(values.max()))]
            allocation = [count(s.problems_per_batch), count(s.rollouts_per_problem), count(s.seed)]
            out.append([run.name, note, condition.name, *allocation, *reached, *fitted])
    return out[:_MOST_RUNS]
