"""The page in a real browser: nothing fetched, nothing wrong in the console, narrow, dark, sortable, accessible."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from isocompute.data import Run, RunSettings
from isocompute.report.page import write_report
from tests.report.made_up import evidence, study

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    runs = [*study(bps=(32, 64), problems="easy"), *study(problems="hard")]
    out: Path = tmp_path_factory.mktemp("report") / "report.html"
    return write_report(evidence(runs), out=out).path.as_uri()


def test_the_page_works_from_disk(chromium: Browser, address: str) -> None:
    page = chromium.new_page(viewport={"width": 390, "height": 844})
    requests, complaints = [], []
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(address)
    assert requests == [address]
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    smallest = """Math.min(...[...document.querySelectorAll("svg.chart text")].map((text) => {
        const svg = text.ownerSVGElement;
        const scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
        return parseFloat(getComputedStyle(text).fontSize) * scale;
    }))"""
    assert page.evaluate(smallest) > 9
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the answer"
    column = "[...document.querySelectorAll('table.sortable tbody tr')].map((row) => +row.cells[3].textContent)"
    head = page.get_by_role("button", name="n", exact=True)
    for falls in (False, True):
        head.press("Enter")
        assert page.evaluate(column) == sorted(page.evaluate(column), reverse=falls)
    with page.expect_download() as download:
        page.locator("[data-download]").first.press("Enter")
    assert download.value.suggested_filename == "reward.json"
    assert complaints == []
    page.close()


def test_long_names_and_titles_of_axes_have_room(chromium: Browser, tmp_path: Path) -> None:
    """The charts are laid out in one font and shown in the reader's, which may be wider."""
    names = ("short", "sft_grpo_e1_tb256_ga64_ckpt20", "sft_grpo_e1_tb256_ga64_ckpt20_of_the_second_week")
    runs = [Run(name, RunSettings(), each.points) for name, each in zip(names, study(), strict=True)]
    page = chromium.new_page(viewport={"width": 1280, "height": 900})
    page.goto(write_report(evidence(runs), out=tmp_path / "report.html").path.as_uri())
    page.add_style_tag(content="svg text { font-family: 'DejaVu Sans', Verdana, sans-serif; }")
    assert page.locator("#fig-recipes").count() == 1
    outside = """[...document.querySelectorAll("svg.chart text")].filter((text) =>
        text.getBoundingClientRect().left < text.ownerSVGElement.getBoundingClientRect().left
    ).map((text) => text.textContent)"""
    assert page.evaluate(outside) == []
    gaps = """[...document.querySelectorAll("svg.chart")].map((svg) => {
        const texts = [...svg.querySelectorAll("text")];
        const title = texts.find((text) => text.textContent === "avg@4" && text.closest(".role-axis-title"));
        const labels = texts.filter((text) => title && text.closest(".role-axis") === title.closest(".role-axis") &&
            text.closest(".role-axis-label"));
        const right = title?.getBoundingClientRect().right;
        return title ? Math.min(...labels.map((label) => label.getBoundingClientRect().left - right)) : 99;
    })"""
    assert min(page.evaluate(gaps)) > 4
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_accessible(chromium: Browser, address: str, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    page = chromium.new_page(color_scheme=scheme)
    page.goto(address)
    found = axe.Axe().run(page).response["violations"]
    assert [(v["id"], v["impact"], v["nodes"][0]["html"]) for v in found] == []
    page.close()
