"""A study with parts: the header, the address and the page say the same one, whatever was done to get there."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.conftest import rising, write_points
from tests.sweep.tools import write_spec
from tests.web.conftest import Held, Watched, serving

NewPage = Callable[..., Watched]
EASY, HARD, WHOLE = "easy (2)", "hard (2)", "everything (4)"


def write_part(folder: Path) -> None:
    """Two runs that are named after their folder."""
    for n in (8, 32):
        points = rising(ceiling=0.5 + n / 200)
        write_points(folder / f"{folder.name}-{n}", points, problems_per_batch=32, rollouts_per_problem=n)


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two problem sets of two runs. Do not write into it."""
    folder = tmp_path_factory.mktemp("parts")
    for name in ("easy", "hard"):
        write_part(folder / name)
    return folder


@pytest.fixture(scope="module")
def parted(parts: Path) -> Iterator[str]:
    """Where they are served."""
    with serving(parts) as url:
        yield url


def expect_part(page: Page, part: str, runs: int = 2) -> None:
    """The header has chosen a part, and its runs are those on the page."""
    expect(page.locator("#part option:checked")).to_have_text(part)
    expect(page.locator("#served")).to_contain_text(f"· {runs} runs")
    expect(page.get_by_label("Runs", exact=True).locator("tbody tr")).to_have_count(runs)
    if runs == 2:
        expect(page.locator("tbody")).to_contain_text(f"{part.removesuffix(' (2)')}-8")


def without_figures(watched: Watched) -> Page:
    """A page whose figures never come: it is the runs that are looked at."""
    watched.page.route("**/api/figures/**", lambda _route: None)
    return watched.page


def test_everything_can_be_chosen_and_stays(parted: str, new_page: NewPage) -> None:
    page = without_figures(new_page())
    page.goto(f"{parted}/study")
    expect_part(page, EASY)
    page.get_by_label("part").select_option(label=WHOLE)
    expect_part(page, WHOLE, runs=4)
    assert page.url == f"{parted}/study?part="
    page.get_by_label("Metric").select_option("avg@4")
    expect(page.get_by_label("Metric")).to_have_value("avg@4")
    expect_part(page, WHOLE, runs=4)
    page.get_by_label("Pages").get_by_role("link", name="Run").click()
    expect(page.get_by_label("Run", exact=True)).to_have_value("easy/easy-32")
    page.get_by_label("Forecast to").select_option("4x")
    assert page.url == f"{parted}/run?part=&to=4x"
    page.reload()
    expect(page.locator("#part option:checked")).to_have_text(WHOLE)


def test_going_back_and_the_name_of_the_app_lead_to_the_part_of_their_address(parted: str, new_page: NewPage) -> None:
    page = without_figures(new_page())
    page.goto(f"{parted}/study")
    expect_part(page, EASY)
    page.get_by_label("part").select_option(label=HARD)
    expect_part(page, HARD)
    page.go_back()
    expect_part(page, EASY)
    page.go_forward()
    expect_part(page, HARD)
    page.get_by_role("link", name="isocompute").click()
    expect(page).to_have_url(f"{parted}/plan")
    expect(page.locator("#part option:checked")).to_have_text(EASY)


def test_an_answer_about_a_part_that_was_left_changes_nothing(parts: Path, new_page: NewPage, tmp_path: Path) -> None:
    folder = tmp_path / "parts"
    shutil.copytree(parts, folder)
    with serving(folder) as url:
        page = without_figures(new_page())
        page.goto(f"{url}/study?part=easy")
        expect_part(page, EASY)
        held = Held(page, "**/api/about?part=easy")
        with page.expect_request("**/api/about?part=easy"):
            (folder / "note").touch()  # what the page asks when the files have changed
        page.get_by_label("part").select_option(label=HARD)
        expect_part(page, HARD)
        held.let()
        with page.expect_response("**/api/pulse?part=hard"):
            pass
        expect_part(page, HARD)
        page.close()


def test_a_part_that_gets_another_name_can_be_left(new_page: NewPage, tmp_path: Path) -> None:
    for name in ("easy", "hard"):
        write_part(tmp_path / name / name)
        write_spec(tmp_path / name / "study.toml")
    with serving(tmp_path) as url:
        watched = new_page()
        watched.forgive("400")
        page = without_figures(watched)
        page.goto(f"{url}/api?part=easy")
        expect(page.locator("#part option:checked")).to_have_text("easy (2)")
        write_part(tmp_path / "easy" / "other")  # "easy" is two parts now
        expect(page.locator("main")).to_contain_text("the study has no such part")
        page.get_by_label("part").select_option(label="easy/easy (2)")
        expect(page.locator("main")).to_contain_text("OpenAPI description")
        page.goto(f"{url}/api?part=easy")
        expect(page.locator("main")).to_contain_text("the study has no such part")
        page.get_by_label("Pages").get_by_role("link", name="Compare").click()
        expect(page.get_by_label("One")).to_have_value("easy-32")
        page.close()


def test_a_page_stays_on_its_part_when_another_comes_first(new_page: NewPage, tmp_path: Path) -> None:
    folder = tmp_path / "parts"
    write_part(folder / "easy")
    with serving(folder) as url:
        page = without_figures(new_page())
        page.goto(f"{url}/study")
        expect(page.locator("#served")).to_contain_text("· 2 runs")
        write_part(folder / "another")
        expect_part(page, WHOLE, runs=4)
        assert page.url.endswith("?part=")
        assert page.get_by_label("Pages").get_by_role("link", name="Plan").get_attribute("href") == "/plan?part="
        page.close()
