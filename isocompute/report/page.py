"""The report as one HTML file: the answer, the figures, what is missing, the methods, the runs.

Everything is inside: no script, style, font or picture is fetched, and the content policy forbids it.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib.resources import files as resources

from isocompute import __version__
from isocompute.core.formatting import plural
from isocompute.report.answer import Answer
from isocompute.report.answer_html import answer_card
from isocompute.report.embedding import embedded_data
from isocompute.report.evidence import Evidence
from isocompute.report.html import facts, items, paragraphs, table, tag
from isocompute.report.methods import fallen_note, left_out_reasons, method_facts, run_table, setting_rows
from isocompute.report.model import Figure, Missing
from isocompute.report.svg import dark_rules, inline_svg

__all__ = ["page"]

_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
)

_MOST_ANSWERS = 12


def page(evidence: Evidence, answers: Sequence[Answer], drawn: Sequence[Figure | Missing]) -> str:
    """The whole document."""
    title = f"Report on {evidence.title}"
    figures = [d for d in drawn if isinstance(d, Figure)]
    missing = [d for d in drawn if isinstance(d, Missing)]
    body = "".join(
        (
            tag("a", "Skip to the answer", href="#answer", class_="skip"),
            _header(title, evidence, figures),
            tag(
                "main",
                _answer_section(answers, evidence.notes, fallen_note(evidence)),
                _figure_section(figures),
                _missing_section(missing),
                _methods_section(evidence),
                _runs_section(evidence),
            ),
            tag("footer", tag("p", f"isocompute {escape(__version__)}")),
            tag("script", _asset("report.js")),
        )
    )
    head = "".join(
        (
            '<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            '<meta name="color-scheme" content="light dark">',
            tag("title", escape(title)),
            tag("style", _style()),
        )
    )
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>{body}</body></html>\n'


def _style() -> str:
    dark = f"@media screen and (prefers-color-scheme: dark) {{\n{dark_rules('svg.chart')}\n}}\n"
    return _asset("report.css") + dark


def _asset(name: str) -> str:
    return resources("isocompute.report").joinpath("assets", name).read_text(encoding="utf-8")


def _header(title: str, evidence: Evidence, figures: Sequence[Figure]) -> str:
    kept = len(evidence.curves) or len(evidence.runs)
    said = f"{kept} of {len(evidence.runs)} runs" if kept < len(evidence.runs) else plural(kept, "run")
    links = [
        ("answer", "Answer"),
        ("figures", f"Figures ({len(figures)})"),
        ("missing", "Not in these data"),
        ("methods", "Methods"),
        ("runs", "Runs"),
    ]
    return tag(
        "header",
        tag("h1", escape(title)),
        tag("p", escape(f"{said} · {evidence.metric} · {evidence.runs.source}"), class_="meta"),
        tag(
            "nav",
            tag("ul", *(tag("li", tag("a", escape(text), href=f"#{where}")) for where, text in links)),
            aria_label="Sections",
        ),
    )


def _answer_section(answers: Sequence[Answer], notes: Sequence[str], fallen: str | None) -> str:
    if len(answers) > _MOST_ANSWERS:
        notes = [*notes, f"{len(answers) - _MOST_ANSWERS} more conditions have answers; report --json prints them."]
    return tag(
        "section",
        tag("h2", "The answer", id="answer", tabindex="-1"),
        tag("div", *(answer_card(answer) for answer in answers[:_MOST_ANSWERS]), class_="cards"),
        paragraphs([fallen], class_="careful fallen") if fallen else "",
        items(notes, class_="notes") if notes else "",
        aria_labelledby="answer",
    )


def _figure_section(figures: Sequence[Figure]) -> str:
    index = tag(
        "ul",
        *(tag("li", tag("a", escape(figure.title), href=f"#fig-{figure.name}")) for figure in figures),
        class_="index",
    )
    drawn = tag("div", *(_figure(figure) for figure in figures), class_="figures")
    return tag(
        "section",
        tag("h2", "What the runs show", id="figures"),
        index
        if figures
        else tag("p", "No figure can be drawn from these data; the next section says what each needs."),
        drawn,
        aria_labelledby="figures",
    )


def _figure(figure: Figure) -> str:
    panels = [
        tag(
            "div",
            inline_svg(panel, key=f"{figure.name}-{i}-", label=f"{figure.title}. {figure.caption}"),
            class_="panel",
        )
        for i, panel in enumerate(figure.panels)
    ]
    data, thinned = embedded_data(figure)
    shown = f"--figure {figure.name} --out {figure.name}.pdf"
    if thinned:
        shown += f"   # all data: --figure {figure.name} --json"
    return tag(
        "figure",
        tag("h3", escape(figure.title), tag("span", escape(figure.source), class_="source"), id=f"fig-{figure.name}"),
        tag("figcaption", items(figure.sentences) if len(figure.sentences) > 1 else escape(figure.caption)),
        tag("div", *panels, class_=f"panels columns-{min(figure.columns, 3)}"),
        tag(
            "p",
            tag(
                "button", "Data (JSON, thinned)" if thinned else "Data (JSON)", type="button", data_download=figure.name
            ),
            tag("code", escape(f"isocompute report … {shown}")),
            class_="tools",
        ),
        tag("script", data, type="application/json", id=f"data-{figure.name}"),
        class_="single" if len(panels) == 1 else "wide",
        aria_labelledby=f"fig-{figure.name}",
    )


def _missing_section(missing: Sequence[Missing]) -> str:
    if not missing:
        inside = tag("p", "Every figure of the two papers is in this report.")
    else:
        inside = tag(
            "dl",
            *(
                tag("dt", escape(m.title), tag("span", escape(m.source), class_="source"))
                + tag("dd", "needs: " + escape(m.needs))
                for m in missing
            ),
            class_="missing",
        )
    return tag("section", tag("h2", "Not in these data", id="missing"), inside, aria_labelledby="missing")


def _methods_section(evidence: Evidence) -> str:
    columns, rows = setting_rows(evidence)
    left_out = left_out_reasons(evidence)
    return tag(
        "section",
        tag("h2", "Methods", id="methods"),
        facts(method_facts(evidence)),
        tag("h3", "Settings of the runs"),
        table("Settings of the runs, apart from Bp, n and seed", columns, rows)
        if rows
        else paragraphs(["The runs say nothing of their settings."]),
        (tag("h3", f"Left out: {plural(len(evidence.left_out), 'run')}") + items(left_out)) if left_out else "",
        aria_labelledby="methods",
    )


def _runs_section(evidence: Evidence) -> str:
    columns, rows = run_table(evidence)
    return tag(
        "section",
        tag("h2", "Runs", id="runs"),
        table("All runs; the headings sort", columns, rows, sortable=True),
        aria_labelledby="runs",
    )
