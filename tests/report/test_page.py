"""The page as a file: whole, self-contained, with its landmarks, and safe against what runs are called."""

from __future__ import annotations

import json
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from isocompute.core.errors import InputError
from isocompute.core.formatting import number
from isocompute.data import Run, RunSet, RunSettings
from isocompute.report.charts.style import DARK, themed
from isocompute.report.evidence import Evidence
from isocompute.report.figures import FIGURES
from isocompute.report.html import embedded_data, inline_svg
from isocompute.report.page import Report, collapse_note, run_table, write_report
from tests.report.made_up import drawn, evidence, run, study, truth

NASTY = '</script><img src=x onerror="alert(1)">'


class Page(HTMLParser):
    """Tags, attributes and what refers to what."""

    VOID = frozenset({"meta", "img", "br"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str]] = []
        self.open: list[str] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(tag, key, value or "") for key, value in attrs]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(tag, key, value or "") for key, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open:
            self.texts.append((self.open[-1], data))

    def values(self, name: str) -> list[str]:
        return [value for _, key, value in self.attributes if key == name]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    runs = [*study(bps=(32, 64), problems="easy"), *study(problems="hard")]
    runs.append(run(32, 8, name=NASTY, problems="hard"))
    out = tmp_path_factory.mktemp("report") / "report.html"
    return write_report(evidence(runs), out=out)


@pytest.fixture(scope="module")
def text(report: Report) -> str:
    return report.path.read_text()


@pytest.fixture(scope="module")
def page(text: str) -> Page:
    return Page(text)


def test_landmarks_and_headings(page: Page) -> None:
    assert not page.open
    assert [page.tags[tag] for tag in ("html", "title", "h1", "header", "nav", "main", "footer")] == [1] * 7
    assert ("html", "lang", "en") in page.attributes
    names = ("answer", "figures", "missing", "methods", "runs")
    assert all(("section", "aria-labelledby", name) in page.attributes for name in names)


def test_nothing_is_fetched(page: Page, text: str) -> None:
    assert not set(page.values("src")) | {tag for tag in page.tags if tag in ("link", "iframe", "object", "base")}
    assert all(href.startswith("#") for href in page.values("href"))
    assert set(re.findall(r"https?://[^\"'\s<)]+", text)) <= {"http://www.w3.org/2000/svg"}
    assert "url(" not in re.sub(r"url\(#", "", text)
    assert "default-src 'none'" in text


def test_ids_are_unique_and_links_lead_somewhere(page: Page, text: str) -> None:
    ids = Counter(page.values("id"))
    assert max(ids.values()) == 1
    links = {href[1:] for href in page.values("href")} | set(page.values("aria-labelledby"))
    assert links | set(re.findall(r"url\(#([^)]+)\)", text)) <= set(ids)


def test_every_figure_is_drawn_or_says_what_it_needs(report: Report, page: Page, text: str) -> None:
    assert [figure.name for figure in report.figures] + [m.name for m in report.missing] != []
    assert len(report.figures) + len(report.missing) == len(FIGURES)
    assert page.tags["figure"] == len(report.figures)
    assert text.count("needs: ") >= len(report.missing)
    panels = sum(len(figure.panels) for figure in report.figures)
    labels = [value for tag, key, value in page.attributes if tag == "svg" and key == "aria-label"]
    assert len(labels) == panels
    assert all(any(figure.caption in label for figure in report.figures) for label in labels)


def test_a_runs_name_is_text(page: Page, text: str) -> None:
    assert page.tags["img"] == 0
    assert not [key for _, key, _ in page.attributes if key.startswith("on")]
    assert any(NASTY in data for tag, data in page.texts if tag == "th")
    for data in [data for tag, data in page.texts if tag == "script" and data.startswith('{"name"')]:
        json.loads(data)
    assert text.count("<script") == text.count("</script>")


def test_usable_by_keyboard(page: Page, text: str) -> None:
    first = next(attribute for attribute in page.attributes if attribute[1] == "href")
    assert first == ("a", "href", "#answer")
    assert ":focus-visible" in text
    assert page.values("onclick") == []
    assert page.tags["button"] > len(FIGURES) / 2


def test_every_colour_of_a_chart_has_a_dark_one(text: str) -> None:
    charts = "".join(re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL))
    used = set(re.findall(r'(?:fill|stroke)="(#[0-9a-f]+)"', charts))
    assert used <= set(DARK)
    assert f'svg.chart [fill="{next(iter(DARK))}"]' in text


def long(bp: int, n: int, problems: str, count: int = 1000) -> Run:
    """A run as trainers log it: a value for every step."""
    short = run(bp, n, name=f"{problems}-{bp}x{n}", problems=problems)
    compute = np.linspace(2e3, 1e6, count)
    noise = 0.002 * np.random.default_rng([bp, n]).standard_normal(count)
    values = np.array([truth(c, bp, n) for c in compute]) + noise
    points = {"step": range(1, count + 1), "rollouts": compute, "tokens": 500 * compute, "avg@4": values}
    return Run(short.name, short.settings, pl.DataFrame(points))


def test_forty_runs_of_a_thousand_points_stay_under_five_megabytes(tmp_path: Path) -> None:
    runs = [
        long(bp, n, s) for s in ("easy", "hard") for bp in (32, 64, 128, 256, 512, 1024, 2048) for n in (8, 32, 128)
    ][:40]
    report = write_report(evidence(runs, replicates=50), out=tmp_path / "report.html")
    assert len(report.evidence.runs) == 40
    assert report.size == report.path.stat().st_size < 5e6
    text = report.path.read_text()
    embedded = {
        name: json.loads(data)
        for name, data in re.findall(r'<script[^>]* id="data-([^"]+)"[^>]*>(.*?)</script>', text, flags=re.DOTALL)
    }
    assert set(embedded) == {figure.name for figure in report.figures}
    thinned = embedded["reward"]
    assert "report --figure reward --json has all of them" in thinned["thinned"]
    assert "Data (JSON, thinned)" in text
    assert "# all data: --figure reward --json" in text
    (whole,) = [figure.data for figure in report.figures if figure.name == "reward"]
    for some, every in zip(thinned["data"]["panels"], whole["panels"], strict=True):
        assert [r["run"] for r in some["runs"]] == [r["run"] for r in every["runs"]]
        for few, all_of in zip(some["runs"], every["runs"], strict=True):
            pairs = set(zip(all_of["compute"], all_of["value"], strict=True))
            assert 10 < len(few["value"]) < len(pairs) == 1000
            assert pairs.issuperset(zip(few["compute"], few["value"], strict=True))


def test_data_that_are_few_are_embedded_whole() -> None:
    figure = drawn("reward", study())
    text, thinned = embedded_data(figure)
    assert not thinned
    assert json.loads(text) == json.loads(json.dumps(figure.to_json()))


def test_the_answer_is_a_plan_or_a_reason(tmp_path: Path) -> None:
    planned = write_report(evidence(study()), out=tmp_path / "a.html", budget="5e5").answers[0]
    assert planned.plan is not None
    assert planned.plan.allocation.compute <= 5e5
    assert "leads by" in planned.expectation
    alone = write_report(evidence([run(32, 8)]), out=tmp_path / "b.html").answers[0]
    assert alone.plan is None
    assert "share one Bp and n" in (alone.why_not or "")
    assert "Best so far" in alone.headline
    assert json.dumps(alone.to_json(), allow_nan=False)


def fallen(name: str) -> Run:
    """A run that rises and then loses all of it."""
    whole = run(32, 8, name=name)
    count = whole.points.height
    late = pl.int_range(pl.len()) >= count - 8
    falling = pl.when(late).then(0.05).otherwise(pl.col("avg@4")).alias("avg@4")
    return Run(name, whole.settings, whole.points.with_columns(falling))


def test_a_collapse_is_told_beside_the_answer_and_beside_the_runs_name(tmp_path: Path) -> None:
    known = evidence([*study(), fallen("lost")])
    (after,) = known.collapsed.values()
    text = write_report(known, out=tmp_path / "a.html").path.read_text()
    answer = text[text.index('id="answer"') : text.index('id="figures"')]
    assert f"1 of 4 runs collapses: lost after {number(after)} rollouts" in answer
    assert "collapsed runs" in answer and "1 of 2" in answer
    whole = write_report(evidence(study()), out=tmp_path / "b.html").path.read_text()
    assert "collapsed runs" not in whole
    columns, rows = run_table(known)
    assert columns[:2] == ["run", "note"]
    assert {row[0]: row[1] for row in rows}["lost"] == f"collapses after {number(after)}"
    steady = evidence(study())
    assert collapse_note(steady) is None
    assert "note" not in run_table(steady)[0]


def test_the_table_of_runs_leaves_out_columns_that_no_run_fills() -> None:
    unsaid = [Run(r.name, RunSettings(), r.points) for r in study()]
    assert {"Bp", "n", "seed"} <= set(run_table(evidence(study()))[0])
    columns, rows = run_table(evidence(unsaid))
    assert not {"Bp", "n", "seed", "condition"} & set(columns)
    assert {len(row) for row in rows} == {len(columns)}


def test_end_points_still_make_a_page(tmp_path: Path) -> None:
    runs = [Run(r.name, r.settings, r.points.tail(1).drop("step", "rollouts", "tokens")) for r in study()]
    report = write_report(RunSet(tuple(runs), "table"), out=tmp_path / "report.html")
    assert [figure.name for figure in report.figures] == ["sensitivity"]
    assert report.answers[0].headline == "No plan and no forecast yet"
    assert len(report.evidence.left_out) == 3


def test_names_that_are_no_page(tmp_path: Path) -> None:
    (tmp_path / "folder.html").mkdir()
    for name, message in (("report.png", "end the name in .html"), ("folder.html", "this is a folder")):
        with pytest.raises(InputError, match=message):
            write_report(evidence(study()), out=tmp_path / name)


def test_the_same_runs_make_the_same_page(tmp_path: Path) -> None:
    first, second = (write_report(evidence(study()), out=tmp_path / f"{i}.html").path.read_bytes() for i in range(2))
    assert first == second


def test_svg_keeps_every_dot_and_every_number() -> None:
    import vl_convert as vlc

    panel = drawn("reward", study()).panels[0]
    plain = vlc.vegalite_to_svg(themed(panel, background=None))
    small = inline_svg(panel, key="k-", label='a "name"')
    dots = sum(r.points.height for r in study())
    assert len(re.findall(r"M[\d.]+,[\d.]+h0(?=M|\")", small)) == dots
    assert re.findall(r"<text[^>]*>([^<]*)</text>", small) == re.findall(r"<text[^>]*>([^<]*)</text>", plain)
    assert len(small) < 0.7 * len(plain)
    assert 'aria-label="a &quot;name&quot;"' in small


def test_nothing_is_fitted_twice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from isocompute.report import evidence as module

    fitted: list[int] = []
    real = module.fit_law

    def counting(curves: list[object], **options: object) -> object:
        fitted.append(len(curves))
        return real(curves, **options)  # type: ignore[arg-type]  # handed on as they came

    monkeypatch.setattr(module, "fit_law", counting)
    known = Evidence.of(RunSet((*study(problems="easy"), *study(problems="hard")), "made-up"), replicates=50)
    write_report(known, out=tmp_path / "report.html")
    assert sorted(fitted) == [3, 3, 3, 3]  # two sets, in rollouts and in tokens
