"""Every page in a real Chromium. `new_page` fails a test whose page complains or asks another machine for anything."""

from __future__ import annotations

import re
import shlex
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from fastapi.testclient import TestClient
from playwright.sync_api import Page, expect

from isocompute.law.law import Law
from isocompute.report.figures import FIGURES
from isocompute.web import results
from tests.conftest import rising, write_points
from tests.sweep.tools import finish, start, write_spec
from tests.web.conftest import Growing, Watched, serving

NewPage = Callable[..., Watched]
PAGES = {
    "/plan": ".use",
    "/study": "canvas",
    "/run": "canvas",
    "/claims": ".claim",
    "/compare": "canvas",
    "/api": "main .card",
}
WIDTHS = (390, 1280)
REFUSED = "the server responded with a status of 400"
"""What Chromium notes when the app says what is wrong with a request."""


def shown(watched: Watched, address: str, path: str, mark: str) -> Page:
    """A page, once what it is about is on it."""
    page = watched.page
    page.goto(address + path)
    page.locator(mark).first.wait_for()
    page.wait_for_load_state("networkidle")
    return page


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", PAGES)
def test_pages_are_accessible_and_fit_the_screen(
    address: str, new_page: NewPage, path: str, scheme: str, width: int
) -> None:
    page = shown(new_page(width, scheme), address, path, PAGES[path])
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    found = Axe().run(page).response["violations"]
    serious = [f"{v['id']}: {v['nodes'][0]['html']}" for v in found if v["impact"] in ("serious", "critical")]
    assert serious == []


def test_moving_the_budget_changes_the_answer_its_command_and_its_address(address: str, new_page: NewPage) -> None:
    page = shown(new_page(), address, "/plan", ".use")
    n = page.locator(".use b").nth(1)
    page.get_by_label("Budget", exact=True).fill("2e6")
    expect(n).to_have_text("64")
    page.get_by_label("Budget", exact=True).fill("2e4")
    expect(n).not_to_have_text("64")
    assert page.url.endswith("budget=2e4")
    command = page.get_by_label("the same on the command line").inner_text()
    assert shlex.split(command)[:4] == ["isocompute", "plan", "--budget", "2e4"]
    small = n.inner_text()
    slider = page.get_by_label("Budget on a log scale")
    slider.focus()
    slider.press("End")
    expect(n).to_have_text("64")
    page.go_back()
    page.goto(f"{address}/plan?budget=2e4")
    expect(n).to_have_text(small)


def test_constraints_and_the_law_change_the_answer(address: str, new_page: NewPage) -> None:
    watched = new_page()
    watched.forgive(REFUSED)
    page = shown(watched, address, "/plan?budget=1e6", ".use")
    n = page.locator(".use b").nth(1)
    page.get_by_label("Allowed n").fill("8, 16")
    page.get_by_label("Allowed n").press("Enter")
    page.get_by_label("Allowed n").blur()
    expect(n).to_have_text("16")
    page.get_by_label("Law", exact=True).select_option("isocompute/bp32-hard")
    expect(page.locator(".answer")).to_contain_text("isocompute/bp32-hard")
    page.get_by_label("Budget", exact=True).fill("nonsense")
    expect(page.locator(".answer")).to_contain_text("give a positive amount")


def test_the_plans_chart_and_tables_can_be_saved(address: str, new_page: NewPage, tmp_path: Path) -> None:
    page = shown(new_page(), address, "/plan", "canvas")
    for kind, start_ in (("PNG", b"\x89PNG"), ("SVG", b"<svg"), ("CSV", b"problems_per_batch,"), ("JSON", b"{")):
        with page.expect_download() as download:
            page.get_by_role("link", name=kind, exact=True).click()
        path = tmp_path / kind
        download.value.save_as(path)
        assert path.read_bytes().startswith(start_)


def test_the_plan_is_the_commands(address: str, new_page: NewPage, client: TestClient) -> None:
    page = shown(new_page(), address, "/plan?budget=3e5", ".use")
    plan = client.get("/api/plan?budget=3e5").json()
    numbers = [int(text.replace(",", "")) for text in page.locator(".use b").all_inner_texts()]
    assert numbers == [plan["problems_per_batch"], plan["rollouts_per_problem"], plan["update_steps"]]


def test_pages_say_that_the_law_is_being_fitted(wide: Path, new_page: NewPage, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, fit_law = threading.Event(), results.fit_law

    def later(*args: Any, **options: Any) -> Law:
        gate.wait(60)
        return fit_law(*args, **options)

    monkeypatch.setattr(results, "fit_law", later)
    with serving(wide) as url:
        plan, study = new_page().page, new_page(390).page
        plan.goto(f"{url}/plan")
        study.goto(f"{url}/study")
        expect(plan.get_by_label("Answer")).to_have_text("Fitting the law…")
        expect(study.locator("figure .working")).to_have_count(2)
        gate.set()
        expect(plan.locator(".use")).to_be_visible()
        expect(study.locator("canvas")).to_have_count(2)
        expect(study.locator("figure .working")).to_have_count(0)
        plan.close()
        study.close()


def test_the_plan_says_how_many_runs_of_a_setting_fell(runs: Path, new_page: NewPage, tmp_path: Path) -> None:
    heads = []
    for name, height in (("held", 0.6), ("fell", 0.05)):
        folder = tmp_path / name
        shutil.copytree(runs, folder)
        points = [*rising(30, every=60_000)[:12], *({**p, "avg@4": height} for p in rising(30, every=60_000)[12:])]
        write_points(folder / "more", points, problems_per_batch=32, rollouts_per_problem=16, seed=1)
        with serving(folder) as url:
            page = shown(new_page(), url, "/plan?budget=1e6", ".use")
            expect(page.get_by_role("table", name="alternatives")).to_be_visible()
            heads.append(page.get_by_role("table", name="alternatives").locator("thead").inner_text())
            if name == "fell":
                expect(page.get_by_role("table", name="alternatives")).to_contain_text("1 of 2")
            page.close()
    assert ["collapsed runs" in head for head in heads] == [False, True]


def test_every_figure_opens_or_says_what_it_needs(address: str, new_page: NewPage) -> None:
    page = shown(new_page(), address, "/study", "canvas")
    drawn = 0
    for name, spec in FIGURES.items():
        page.get_by_label("Figures").get_by_role("link", name=spec.title, exact=True).click()
        card = page.locator("figure.card")
        expect(card).to_have_count(1)  # the page before it has two, and no figure's text is asked of both
        expect(card.locator("h2")).to_contain_text(spec.title)
        card.locator("canvas, .notice").first.wait_for()
        assert page.url.endswith(f"figure={name}")
        if card.locator("canvas").count():
            drawn += 1
            assert card.locator("figcaption").inner_text()
        else:
            assert "needs" in card.inner_text()
    assert drawn >= 3


def test_a_table_sorts_by_its_head_and_leads_to_the_run(address: str, new_page: NewPage) -> None:
    page = shown(new_page(), address, "/study", "canvas")
    page.get_by_role("button", name="n", exact=True).click()
    first = page.locator("tbody tr").first
    expect(first).to_contain_text("easy-32x8")
    page.get_by_role("button", name="n", exact=True).click()
    expect(first).to_contain_text("easy-32x64")
    first.get_by_role("link").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Run")
    expect(page.get_by_label("Run", exact=True)).to_have_value("easy-32x64")


def test_a_runs_forecast_follows_its_controls(address: str, new_page: NewPage) -> None:
    page = shown(new_page(), address, "/run?run=easy-32x8", "canvas")
    forecast = page.get_by_label("Forecast", exact=True)
    before = forecast.inner_text()
    assert re.search(r"avg@4 \.\d+ at [\d.]+M rollouts", before)
    assert re.search(r"points up to [\d.]+M rollouts", before)
    page.get_by_label("Forecast to").select_option("8x")
    expect(forecast.get_by_label("the same on the command line")).to_contain_text("--to 8x")
    assert forecast.inner_text() != before
    assert "to=8x" in page.url
    expect(page.get_by_label("Health")).to_contain_text("isocompute health")


def test_claims_can_be_narrowed_to_a_verdict(address: str, new_page: NewPage) -> None:
    page = shown(new_page(), address, "/claims", ".claim")
    everything = page.locator(".claim").count()
    page.get_by_role("button", name="undecided").click()
    undecided = page.locator(".claim")
    assert 0 < undecided.count() <= everything
    assert all(text.startswith("undecided") for text in undecided.all_inner_texts())
    assert "verdict=undecided" in page.url


def test_two_runs_are_compared(address: str, new_page: NewPage) -> None:
    watched = new_page()
    watched.forgive(REFUSED)
    page = shown(watched, address, "/compare?a=easy-32x8&b=easy-32x64", "canvas")
    expect(page.get_by_label("Answer")).to_contain_text("easy-32x64 has the higher ceiling")
    for words in ("Difference in avg@4", "midpoint (rollouts)", "midpoint are at the common ceiling ."):
        expect(page.get_by_label("Answer")).to_contain_text(words)
    page.get_by_label("The other").select_option("easy-32x8")
    expect(page.get_by_label("Answer")).to_contain_text("two different runs")


def test_a_run_that_fell_is_named_where_it_is_compared(new_page: NewPage, tmp_path: Path) -> None:
    for name, low in (("steady", 1.0), ("fallen", 0.1)):
        points = [{**point, "avg@4": point["avg@4"] * (low if i > 20 else 1.0)} for i, point in enumerate(rising(30))]
        write_points(tmp_path / name, points, problems_per_batch=32, rollouts_per_problem=8)
    with serving(tmp_path) as url:
        page = shown(new_page(), url, "/compare?a=steady&b=fallen", "canvas")
        expect(page.get_by_label("Answer")).to_contain_text("fallen collapsed")
        expect(page.get_by_label("Answer")).to_contain_text("steady is ahead now")
        page.close()


def test_the_whole_app_works_from_the_keyboard(address: str, new_page: NewPage) -> None:
    page = shown(new_page(), address, "/plan", ".use")
    page.keyboard.press("Tab")
    expect(page.locator(":focus")).to_have_text("Skip to content")
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    expect(page.locator(":focus")).to_have_id("budget")
    page.keyboard.press("Shift+Tab")
    page.get_by_role("link", name="Study").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Study")


def test_the_theme_can_be_turned_and_is_kept(address: str, new_page: NewPage) -> None:
    page = shown(new_page(), address, "/plan", "canvas")
    colour = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(colour)
    page.get_by_role("button", name="Light or dark").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    dark = page.evaluate(colour)
    assert dark != light
    page.reload()
    assert page.evaluate(colour) == dark


def test_a_study_that_is_running_is_followed(new_page: NewPage, tmp_path: Path) -> None:
    spec = write_spec(
        tmp_path / "s.toml",
        seeds=[0],
        grid={"problems_per_batch": [2], "rollouts_per_problem": [2, 4]},
        budget={"rollouts": 400},
        engine_options={"pause": 0.05},
    )
    folder = tmp_path / "study"
    folder.mkdir()
    shutil.copy(spec, folder / "study.toml")
    with serving(folder) as url:
        page = shown(new_page(), url, "/study", "tbody tr")
        expect(page.locator(".chip.waiting")).to_have_count(3)  # two cells and the count of them
        expect(page.locator("main")).to_contain_text("no run of this study has a point yet")
        (folder / "study.toml").unlink()
        running = start("run", spec, "--out", folder)
        try:
            expect(page.locator("#live")).to_contain_text("running")
            expect(page.locator("td .chip.running").first).to_be_visible()
            expect(page.locator("canvas").first).to_be_visible()
            expect(page.locator("td .chip.finished")).to_have_count(2)
        finally:
            code, _, err = finish(running)
        assert code == 0, err
        expect(page.locator("#live")).to_have_text("2/2 cells")
        page.close()


def test_a_study_that_disappears_is_said_and_seen_again(growing: Growing, new_page: NewPage, tmp_path: Path) -> None:
    folder, url = growing
    watched = new_page()
    watched.forgive(REFUSED)
    page = shown(watched, url, "/study", "canvas")
    folder.rename(tmp_path / "away")
    expect(page.locator("#live")).to_have_text("not there")
    (tmp_path / "away").rename(folder)
    write_points(folder / "32x128", rising(), problems_per_batch=32, rollouts_per_problem=128)
    expect(page.locator("tbody")).to_contain_text("32x128")
    expect(page.locator("#live")).not_to_have_text("not there")


def test_one_run_says_what_the_best_n_needs(new_page: NewPage, one_run: Path) -> None:
    with serving(one_run) as url:
        page = shown(watched := new_page(), url, "/study", ".notice")
        expect(page.locator("main")).to_contain_text("This study has one run. n*(C) needs two n")
        shown(watched, url, "/compare", ".notice")
        expect(page.locator("main")).to_contain_text("A comparison needs two runs; there is one.")
        page.close()


def test_a_run_may_be_named_anything(new_page: NewPage, tmp_path: Path) -> None:
    name = "<img src=x onerror=alert(1)> & 'q' ünï"
    for n in (8, 32):
        write_points(
            tmp_path / f"{name} {n}", rising(ceiling=0.5 + n / 200), problems_per_batch=32, rollouts_per_problem=n
        )
    with serving(tmp_path) as url:
        page = shown(new_page(), url, "/study", "canvas")
        page.get_by_role("link", name=f"{name} 8").click()
        expect(page.locator("canvas")).to_have_count(1)  # the run's, when the study's two are gone
        expect(page.get_by_label("Run", exact=True)).to_have_value(f"{name} 8")
        assert page.locator("main img").count() == 0
        page.close()
