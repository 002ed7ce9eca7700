"""A page that redraws itself keeps focus, sorting and choices."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Locator, Page, expect

from isocompute.report.figures import FIGURES
from tests.conftest import rising, write_points
from tests.web.conftest import Growing, Held, Watched, serving

NewPage = Callable[..., Watched]


def still_link(page: Page, address: str) -> Locator:
    """The pointer over a link of the runs' table, where nothing will move it: the figures above are never drawn."""
    page.route("**/api/figures/**", lambda _route: None)
    page.goto(f"{address}/study")
    expect(page.get_by_label("Progress")).to_be_hidden()
    link = page.locator("tbody").get_by_role("link", name="easy-32x64")
    link.hover()
    return link


def test_a_link_that_is_drawn_anew_while_it_is_pressed_still_leads_on(address: str, new_page: NewPage) -> None:
    page = new_page().page
    link = still_link(page, address)
    page.mouse.down()
    link.evaluate("link => link.replaceWith(link.cloneNode(true))")
    page.mouse.up()
    expect(page.get_by_role("heading", level=1)).to_have_text("Run")
    assert page.evaluate("history.length") == 3  # gone to once: blank, the study, the run


def test_a_press_that_ends_elsewhere_leads_nowhere(address: str, new_page: NewPage) -> None:
    page = new_page().page
    still_link(page, address)
    page.mouse.down()
    page.get_by_role("heading", level=1).hover()
    page.mouse.up()
    expect(page.get_by_role("heading", level=1)).to_have_text("Study")


def test_the_list_of_figures_waits_for_the_pointer_to_leave(logs: Path, new_page: NewPage) -> None:
    with serving(logs) as url:
        page = new_page().page
        held = Held(page, f"**/api/figures/{list(FIGURES)[-1]}/needs*")
        page.goto(f"{url}/study")
        needing = page.get_by_role("heading", name="These need")
        figures = page.get_by_label("Figures")
        with page.expect_request(f"**/api/figures/{list(FIGURES)[-1]}/needs*"):
            pass
        figures.get_by_role("link", name="Overview").hover()
        with page.expect_response(f"**/api/figures/{list(FIGURES)[-1]}/needs*"):
            held.let()
        page.wait_for_load_state("networkidle")
        expect(needing).to_have_count(0)
        page.get_by_role("heading", level=1).hover()
        expect(needing).to_be_visible()
        page.close()


def test_a_table_stays_sorted_when_runs_come_in(growing: Growing, new_page: NewPage) -> None:
    folder, url = growing
    page = new_page().page
    page.goto(f"{url}/study")
    head = page.get_by_role("button", name="n", exact=True)
    head.click()
    head.click()
    first = page.locator("tbody tr").first
    expect(first).to_contain_text("easy-32x64")
    write_points(folder / "easy-32x128", rising(), problems_per_batch=32, rollouts_per_problem=128)
    expect(page.locator("tbody")).to_contain_text("easy-32x128")
    expect(first).to_contain_text("easy-32x128")
    expect(page.locator("th[aria-sort=descending]")).to_have_text("n")


def test_pages_may_be_left_before_they_are_drawn(logs: Path, wide: Path, new_page: NewPage) -> None:
    for folder in (logs, wide):
        with serving(folder) as url:
            page = new_page().page
            page.goto(f"{url}/api")
            for _ in range(3):
                for name in ("Study", "Plan", "Run", "Claims", "Compare", "Study", "Compare"):
                    page.get_by_label("Pages").get_by_role("link", name=name).click()
            expect(page.get_by_role("heading", level=1)).to_have_text("Compare")
            page.wait_for_load_state("networkidle")
            page.close()


def test_focus_and_what_was_opened_stay_when_a_study_grows(growing: Growing, new_page: NewPage) -> None:
    folder, url = growing
    page = new_page().page
    still_link(page, url).focus()
    write_points(folder / "more", rising(), problems_per_batch=32, rollouts_per_problem=128)
    expect(page.locator("tbody")).to_contain_text("more")
    expect(page.locator(":focus")).to_have_text("easy-32x64")
    page.goto(f"{url}/run?run=more")
    metrics, health = page.get_by_label("Metrics", exact=True), page.get_by_label("Health", exact=True)
    health.get_by_text("need more of the log").click()
    metrics.get_by_text("Settings", exact=True).click()
    metrics.get_by_text("Settings", exact=True).focus()
    expect(metrics.get_by_role("row", name="avg@4")).to_contain_text("20")
    with (folder / "more" / "points.jsonl").open("a") as file:
        file.write('{"step": 210, "rollouts": 60000, "avg@4": 0.6}\n')
    expect(metrics.get_by_role("row", name="avg@4")).to_contain_text("21")
    expect(metrics.locator("details")).to_have_attribute("open", "")
    expect(health.locator("details")).to_have_attribute("open", "")
    expect(page.locator(":focus")).to_have_text("Settings")


def test_what_was_opened_of_a_claim_stays_open(growing: Growing, new_page: NewPage) -> None:
    folder, url = growing
    page = new_page().page
    page.goto(f"{url}/claims")
    opened = page.locator(".claim").filter(has_text="levels off.").locator("details")
    opened.locator("summary").click()
    page.get_by_role("button", name="all").focus()
    write_points(folder / "more", rising(), problems_per_batch=32, rollouts_per_problem=128)
    expect(opened).to_contain_text("4 runs")
    expect(opened).to_have_attribute("open", "")
    expect(page.locator(":focus")).to_contain_text("all")


def test_a_choice_that_draws_the_page_anew_keeps_the_focus(address: str, new_page: NewPage) -> None:
    page = new_page().page
    still_link(page, address)
    page.route("**/api/claims*", lambda _route: None)
    for path in ("study", "claims"):
        page.goto(f"{address}/{path}")
        page.get_by_label("Metric").focus()
        page.keyboard.press("ArrowDown")
        expect(page).to_have_url(re.compile("metric=avg"))
        expect(page.get_by_label("Metric")).to_be_focused()


def test_a_trainers_config_is_offered_of_a_plan_that_there_is(address: str, new_page: NewPage) -> None:
    watched = new_page()
    watched.forgive("400")
    page = watched.page
    held = Held(page, "**/api/plan?*")
    page.goto(f"{address}/plan?budget=1e6")
    config = page.get_by_text("As your trainer's config")
    expect(page.get_by_label("Allowed n")).to_be_visible()
    expect(config).to_be_hidden()
    held.let()
    config.click()
    command = page.get_by_label("the plan as a trainer's config")
    expect(command).to_contain_text("--budget 1e6")
    page.get_by_label("Budget", exact=True).fill("nonsense")
    expect(page.locator(".answer")).to_contain_text("give a positive amount")
    expect(command).to_be_hidden()
    page.get_by_label("Budget", exact=True).fill("2e6")
    expect(command).to_contain_text("--budget 2e6")


def test_the_focus_stays_on_the_same_one_of_several_of_a_name(address: str, new_page: NewPage) -> None:
    page = new_page().page
    page.goto(f"{address}/api")
    script = """async (kept) => {
        const { fill, h } = await import("/static/dom.js");
        const box = document.body.appendChild(h("div"));
        const copies = () => [0, 1, 2].map(() => h("button", {}, "Copy"));
        fill(box, copies());
        const before = [...box.children];
        before[1].focus();
        fill(box, kept ? [h("p", {}, "new"), before] : copies());
        return [...box.querySelectorAll("button")].indexOf(document.activeElement);
    }"""
    assert [page.evaluate(script, kept) for kept in (False, True)] == [1, 1]
