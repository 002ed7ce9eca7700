"""Charts on the pages: they have the room, the colours and the size of the page, and leave with it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from playwright.sync_api import Page, expect

from isocompute.report.charts.style import DARK, INK
from tests.conftest import rising, write_points
from tests.web.conftest import Held, Watched, serving

NewPage = Callable[..., Watched]
WATCH = """
    window.drawn = [];  // every chart so far: its view, the specification that it was drawn from, whether it was let go
    Object.defineProperty(window, "vegaEmbed", {
        get() { return this.embed; },
        set(embed) {
            this.embed = async (element, spec, how) => {
                const made = await embed(element, spec, how);
                const chart = { view: made.view, spec, released: false };
                const finalize = made.view.finalize.bind(made.view);
                made.view.finalize = () => { chart.released = true; return finalize(); };
                window.drawn.push(chart);
                document.documentElement.dataset.drawn = window.drawn.length;
                return made;
            };
        },
    });
"""
LAST = "window.drawn.at(-1)"
END = f"""{LAST}.view.scenegraph().root.items[0].bounds.x2 + {LAST}.view.origin()[0]"""
"""Where the last chart's marks, axes, title and legends end, in pixels from its left edge."""


def watched_charts(watched: Watched) -> Page:
    """A page that notes its charts."""
    watched.page.add_init_script(WATCH)
    return watched.page


def wait_for_charts(page: Page, count: int) -> None:
    """The page has drawn so many, or more."""
    expect(page.locator("html")).to_have_attribute("data-drawn", re.compile(f"[{count}-9]"))


@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_below_moves_when_the_figures_come(address: str, new_page: NewPage, width: int) -> None:
    page = new_page(width).page
    held = Held(page, "**/api/figures/*/needs*")
    page.goto(f"{address}/study")
    table = page.get_by_label("Runs", exact=True)
    expect(table.locator("tbody tr")).to_have_count(3)
    expect(page.locator("figure.card").first).to_have_text("Fitting the law…")
    expect(page.locator("figure.card")).to_have_count(2)
    before = table.bounding_box()
    held.let()
    expect(page.locator("figure.card canvas")).to_have_count(2)
    after = table.bounding_box()
    assert before is not None and after is not None
    assert abs(after["y"] - before["y"]) < 50


@pytest.mark.parametrize("width", [360, 1280])
def test_a_long_name_leaves_the_plot_its_width(new_page: NewPage, tmp_path: Path, width: int) -> None:
    name = "lr3e-6-bs128-qwen2.5-math-1.5b-instruct-grpo-dapo-clip-higher-seed42-" * 3
    write_points(tmp_path / name, rising(), problems_per_batch=32, rollouts_per_problem=8)
    with serving(tmp_path) as url:
        page = watched_charts(new_page(width))
        page.goto(f"{url}/run")
        wait_for_charts(page, 1)
        room = page.locator(".panel").evaluate("panel => panel.clientWidth")
        assert page.evaluate(f"{LAST}.view.width()") > 0.7 * room
        assert page.evaluate(END) <= room
        subtitle = page.evaluate(f"{LAST}.spec.title.subtitle")
        assert (len(subtitle) > 1) is (width == 360)
        page.close()


def test_a_legend_ends_where_a_narrow_page_does(new_page: NewPage, tmp_path: Path) -> None:
    for n in range(1024, 1030):
        write_points(tmp_path / f"{n}", rising(), problems_per_batch=32, rollouts_per_problem=n)
    with serving(tmp_path) as url:
        page = watched_charts(new_page(390))
        page.goto(f"{url}/study?figure=reward")
        wait_for_charts(page, 1)
        assert page.evaluate(END) <= page.locator(".panel").evaluate("panel => panel.clientWidth")
        page.close()


def test_dark_charts_have_the_reports_dark_colours(address: str, new_page: NewPage, client: TestClient) -> None:
    assert client.get("/dark.json").json() == DARK
    page = watched_charts(new_page(scheme="dark"))
    page.goto(f"{address}/study?figure=reward")
    wait_for_charts(page, 1)
    text = page.evaluate(f"JSON.stringify({LAST}.spec)")
    assert f'"{DARK[INK]}"' in text
    assert [light for light in DARK if f'"{light}"' in text] == []


def test_charts_of_a_page_that_was_left_are_let_go(address: str, new_page: NewPage) -> None:
    page = watched_charts(new_page())
    page.goto(f"{address}/run")
    wait_for_charts(page, 1)
    page.get_by_label("Pages").get_by_role("link", name="Compare").click()
    wait_for_charts(page, 2)
    assert page.evaluate("window.drawn.map((chart) => chart.released)") == [True, False]


def test_charts_follow_the_windows_width(address: str, new_page: NewPage) -> None:
    page = watched_charts(new_page())
    page.goto(f"{address}/compare")
    wait_for_charts(page, 1)
    before = page.evaluate(f"{LAST}.view.width()")
    page.set_viewport_size({"width": 390, "height": 900})
    wait_for_charts(page, 2)
    assert page.evaluate(f"{LAST}.view.width()") < 390 < before
    panel = page.locator(".panel")
    assert panel.evaluate("panel => panel.scrollWidth") <= panel.evaluate("panel => panel.clientWidth")


def test_the_mark_of_a_plan_stays_when_its_chart_is_drawn_again(address: str, new_page: NewPage) -> None:
    page = watched_charts(new_page())
    page.goto(f"{address}/plan?budget=1e6")
    wait_for_charts(page, 1)
    page.get_by_label("Budget", exact=True).fill("2e4")
    expect(page.get_by_label("the same on the command line")).to_contain_text("--budget 2e4")
    chosen = page.evaluate(f"{LAST}.view.data('chosen')[0].compute")
    assert chosen < 3e4
    page.get_by_role("button", name="Light or dark").click()
    wait_for_charts(page, 2)
    assert page.evaluate(f"{LAST}.view.data('chosen')[0].compute") == chosen
