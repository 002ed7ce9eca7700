"""Logs that lack settings: the options that add them, where the app begins, and what it shows first."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from isocompute.cli.main import main
from isocompute.core.errors import InputError
from isocompute.web.server import bind
from isocompute.web.source import LoadOptions
from tests.conftest import rising, write_points
from tests.web.conftest import Watched, over, serving
from tests.web.test_api import printed

NewPage = Callable[..., Watched]
GIVEN = LoadOptions(problems_per_batch=32, rollouts_per_problem=8)
MEANT = LoadOptions(where={"seed": "2"})
PAIR = LoadOptions(where={"model": "b"})
REST = LoadOptions(without=("other", "odd*"))
TABLE = LoadOptions(columns={"run": "label", "value": "score", "rollouts": "used"}, without=("other",))


@pytest.mark.parametrize(
    ("options", "query"),
    [
        (GIVEN, "fit"),
        (GIVEN, "figures/records"),
        (GIVEN, "forecast?run=high"),
        (GIVEN, "health?run=high"),
        (GIVEN, "claims"),
        (MEANT, "fit"),
        (MEANT, "health?run=high"),
        (PAIR, "compare?a=one&b=two"),
        (PAIR, "plan?budget=3e4"),
        (REST, "fit"),
        (REST, "claims"),
        (REST, "forecast?run=one"),
        (REST, "health?run=one"),
        (REST, "compare?a=one&b=two"),
        (REST, "plan?budget=3e4"),
        (TABLE, "fit"),
        (TABLE, "forecast?run=one"),
        (TABLE, "compare?a=one&b=two"),
    ],
)
def test_the_command_on_a_page_reads_the_runs_as_the_app_does(
    logs: Path,
    tmp_path: Path,
    options: LoadOptions,
    query: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = logs
    if options in (PAIR, REST):
        folder = tmp_path
        named = (("one", 8, "b"), ("two", 16, "b"), ("other", 8, "c"), ("odd1", 8, "c"))
        for name, n, model in named:
            points = rising(ceiling=0.5 + n / 200)
            write_points(folder / name, points, problems_per_batch=32, rollouts_per_problem=n, model=model)
    if options == TABLE:
        folder = foreign(tmp_path / "table.csv")
    answer = over(folder, options).get(f"/api/{query}")
    assert answer.status_code == 200, answer.text
    found = printed(unquote(answer.headers["Isocompute-Command"]), capsys, monkeypatch)
    found.pop("warnings", None)  # the page says those beside the answer
    assert {key: value for key, value in answer.json().items() if key != "warnings"} == found


def foreign(path: Path) -> Path:
    """A table with other column names."""
    lines = ["label,problems_per_batch,rollouts_per_problem,used,score,other"]
    for name, n in (("one", 8), ("two", 16), ("other", 32)):
        lines += [f"{name},32,{n},{p['rollouts']},{p['avg@4'] + n / 1000},1" for p in rising()]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_table_in_other_columns_can_be_looked_at(tmp_path: Path) -> None:
    client = over(foreign(tmp_path / "table.csv"), TABLE)
    about = client.get("/api/about").json()
    assert [run["run"] for run in about["runs"]] == ["one", "two"]
    assert client.get("/api/fit").json()["metric"] == "score"
    assert client.get("/api/health?run=one").status_code == 200


def test_runs_that_are_left_out_are_left_out_of_the_whole(tmp_path: Path) -> None:
    for part in ("easy", "hard"):
        for n in (8, 16):
            write_points(tmp_path / part / f"{n}", rising(), rollouts_per_problem=n)
    about = over(tmp_path, LoadOptions(without=("easy/8",))).get("/api/about").json()
    assert [run["run"] for run in about["runs"]] == ["easy/16", "hard/16", "hard/8"]
    with pytest.raises(InputError, match="--without n8: no run has that name"):
        bind(str(tmp_path), port=0, options=LoadOptions(without=("n8",)))


def test_a_plan_of_runs_that_were_told_their_bp_takes_two_commands(
    logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = over(logs, GIVEN).get("/api/plan?budget=3e4&min_updates=2")
    fit, plan = unquote(answer.headers["Isocompute-Command"]).split(" && ")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", shlex.split(fit))
    with suppress(SystemExit):
        main()
    capsys.readouterr()
    printed_plan = printed(plan, capsys, monkeypatch)
    for key in ("problems_per_batch", "rollouts_per_problem", "update_steps"):
        assert answer.json()[key] == printed_plan[key]
    assert answer.json()["expected"]["value"] == pytest.approx(printed_plan["expected"]["value"], abs=1e-6)


def test_only_the_runs_that_are_meant_are_there(logs: Path) -> None:
    about = over(logs, MEANT).get("/api/about").json()
    assert [run["run"] for run in about["runs"]] == ["high"]


def test_whoever_says_which_runs_are_meant_gets_them_from_all_parts(tmp_path: Path) -> None:
    for part, seed in (("easy", 1), ("hard", 2)):
        for n in (8, 16):
            write_points(tmp_path / part / f"{n}", rising(), rollouts_per_problem=n, seed=seed)
    assert len(over(tmp_path).get("/api/about").json()["parts"]) == 3
    about = over(tmp_path, MEANT).get("/api/about").json()
    assert [run["run"] for run in about["runs"]] == ["hard/16", "hard/8"]
    assert len(about["parts"]) == 1


def test_a_choice_that_leaves_no_run_is_refused_before_anything_starts(logs: Path) -> None:
    with pytest.raises(InputError, match="leaves no runs"):
        bind(str(logs), port=0, options=LoadOptions(where={"seed": "3"}))


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        ("--where seed=2 --problems-per-batch 32 --rollouts-per-problem 8", LoadOptions({"seed": "2"}, 32, 8)),
        (
            "--columns run=run,value=avg@4 --without low --without lo*",
            LoadOptions(columns={"run": "run", "value": "avg@4"}, without=("low", "lo*")),
        ),
    ],
)
def test_the_command_hands_its_options_on(
    logs: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: str,
    options: LoadOptions,
) -> None:
    served = []
    monkeypatch.setattr("isocompute.web.server.serve", lambda what, **_: served.append(what))
    monkeypatch.setattr(sys, "argv", ["isocompute", "web", str(logs), *arguments.split(), "--no-browser", "--json"])
    with suppress(SystemExit):
        main()
    assert json.loads(capsys.readouterr().out)["study"] == str(logs)
    (one,) = served
    with one.socket:
        assert one.source.options == options


def test_runs_that_do_not_say_bp_and_n_are_told_the_command_that_does(logs: Path) -> None:
    client = over(logs)
    about = client.get("/api/about").json()
    (command,) = re.findall("`(.*)`", about["unplanned"])
    assert shlex.split(command) == [
        *("isocompute", "web", str(logs), "--problems-per-batch", "32", "--rollouts-per-problem", "8")
    ]
    assert client.get("/api/plan").json()["error"] == about["unplanned"]
    client = over(logs, GIVEN)
    assert client.get("/api/about").json()["unplanned"] is None
    plan = client.get("/api/plan?budget=3e4").json()
    assert (plan["problems_per_batch"], plan["rollouts_per_problem"]) == (32, 8)


def test_only_what_is_lacking_is_asked_for_and_what_was_told_is_kept(tmp_path: Path) -> None:
    for n in (8, 16):
        points = [{"step": p["step"], "avg@4": p["avg@4"]} for p in rising()]
        write_points(tmp_path / f"{n}", points, rollouts_per_problem=n, model="b c")
    message = over(tmp_path, LoadOptions(where={"model": "b c"})).get("/api/about").json()["unplanned"]
    assert f"`isocompute web {tmp_path} --where 'model=b c' --problems-per-batch 32`" in message


def test_runs_that_say_enough_can_be_planned_with(runs: Path, wide: Path) -> None:
    for folder in (runs, wide):
        assert over(folder).get("/api/about").json()["unplanned"] is None


@pytest.fixture
def two_sets(tmp_path: Path) -> Path:
    """Three runs on an easy set and one on a hard one."""
    for name, n, problems in (("a", 8, "easy"), ("b", 16, "easy"), ("c", 32, "easy"), ("d", 8, "hard")):
        write_points(tmp_path / name, rising(), problems_per_batch=32, rollouts_per_problem=n, problems=problems)
    return tmp_path


@pytest.mark.parametrize("query", ["", "?budget=3e4", "?problems_per_batch=32"])
def test_runs_of_several_sets_are_refused_with_the_command_that_takes_one(two_sets: Path, query: str) -> None:
    client = over(two_sets)
    message = client.get("/api/about").json()["unplanned"]
    assert "of 2 conditions, 'easy' (3), 'hard' (1), whose rewards do not compare" in message
    assert f"`isocompute web {two_sets} --where problems=easy`" in message
    answer = client.get(f"/api/plan{query}")
    assert (answer.status_code, answer.json()["error"]) == (400, message)
    client = over(two_sets, LoadOptions(where={"problems": "easy"}))
    assert client.get("/api/about").json()["unplanned"] is None
    assert client.get("/api/plan").status_code == 200


def test_runs_that_differ_in_their_recipe_alone_are_planned_with(tmp_path: Path) -> None:
    for name, n, rate in (("a", 8, 1e-6), ("b", 16, 1e-6), ("c", 8, 1e-5)):
        recipe = {"learning_rate": rate, "loss": "grpo"}
        write_points(tmp_path / name, rising(), problems_per_batch=32, rollouts_per_problem=n, recipe=recipe)
    assert over(tmp_path).get("/api/about").json()["unplanned"] is None


def test_a_law_in_tokens_asks_for_what_it_needs_and_not_for_a_budget_that_nobody_gave(tmp_path: Path) -> None:
    for n in (8, 16):
        points = [{"step": p["step"], "tokens": 1e5 * p["step"], "avg@4": p["avg@4"]} for p in rising()]
        write_points(tmp_path / f"{n}", points, rollouts_per_problem=n)
    client = over(tmp_path)
    error = client.get("/api/plan?problems_per_batch=32").json()["error"]
    assert error == "a law in tokens: tokens need the length of a response; say response_tokens 1500."
    assert client.get("/api/plan?problems_per_batch=32&response_tokens=1500").status_code == 200


def test_errors_of_the_plan_name_the_fields_of_the_page(new_page: NewPage, address: str) -> None:
    watched = new_page()
    watched.forgive("400")
    watched.page.goto(f"{address}/plan?stable_low=8")
    expect(watched.page.locator(".answer")).to_contain_text("give both “Stable Bp, from” and “Stable Bp, to”")


def test_a_figure_says_what_it_needs_or_that_it_can_be_drawn(logs: Path) -> None:
    client = over(logs)
    assert "rollouts per problem" in client.get("/api/figures/reward/needs").json()["needs"]
    assert client.get("/api/figures/records/needs").json()["needs"] is None


def test_the_app_begins_with_the_study_and_the_first_figures_that_can_be_drawn(new_page: NewPage, logs: Path) -> None:
    with serving(logs) as url:
        page = new_page().page
        page.goto(url)
        expect(page.get_by_role("heading", level=1)).to_have_text("Study")
        assert page.url == f"{url}/study"
        expect(page.locator("figure canvas").first).to_be_visible()
        expect(page.locator("figure.card")).to_have_count(2)
        assert "needs" not in page.locator("figure.card").all_inner_texts()
        lacking = page.locator(".figures .lacking")
        expect(lacking.first).to_contain_text("Reward against compute")
        expect(lacking.first).to_contain_text("runs at two or more rollouts per problem")
        page.get_by_role("link", name="Plan").click()
        expect(page.get_by_label("Answer")).to_contain_text("do not log")
        command = page.get_by_label("what to give").inner_text()
        assert command == f"isocompute web {logs} --problems-per-batch 32 --rollouts-per-problem 8"
        page.close()


def test_the_app_begins_with_the_plan_where_there_is_one(new_page: NewPage, address: str) -> None:
    page = new_page().page
    page.goto(address)
    expect(page.locator(".use")).to_be_visible()
    assert page.url == f"{address}/plan"


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_first_sight_is_accessible(new_page: NewPage, logs: Path, scheme: str, width: int) -> None:
    with serving(logs) as url:
        page = new_page(width, scheme).page
        for path in ("/study", "/plan"):
            page.goto(url + path)
            page.locator(".notice").first.wait_for()
            if path == "/study":
                expect(page.locator("td .chip")).to_have_count(4)
                expect(page.locator(".figures .lacking")).not_to_have_count(0)
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            found = Axe().run(page).response["violations"]
            assert [f["id"] for f in found if f["impact"] in ("serious", "critical")] == []
        page.close()
