"""How each run does, in the API and in the table of the Study page."""

from __future__ import annotations

import csv
import io
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from playwright.sync_api import expect

from isocompute.data import Run, load
from isocompute.web import results
from isocompute.web.results import RunStatus, numbers
from tests.conftest import rising, write_points
from tests.web.conftest import Watched, over, serving


def judged(client: TestClient) -> dict[str, Any]:
    """All runs by name, when all are judged."""
    while True:
        data = client.get("/api/runs?judge=true").json()
        if not data["left"]:
            return {row["run"]: row for row in data["runs"]}


def one(folder: Path, values: list[float | None]) -> Run:
    points = [{"step": i, "reward": value} for i, value in enumerate(values, start=1) if value is not None]
    return load(str(write_points(folder / "run", points))).runs[0]


def test_last_and_best_are_the_runs_own(tmp_path: Path) -> None:
    found = numbers(one(tmp_path, [0.1, 0.5, 0.4]), "reward")
    assert found == {"last": 0.4, "best": 0.5, "line": [0.1, 0.5, 0.4]}


def test_a_long_line_is_averaged_between_its_ends(tmp_path: Path) -> None:
    """78 values: the ends, and between them 38 means of two neighbours."""
    found = numbers(one(tmp_path, [float(i) for i in range(78)]), "reward")
    assert found["line"] == [0.0, *(1.5 + 2 * i for i in range(38)), 77.0]


def test_a_run_without_the_metric_has_no_numbers(tmp_path: Path) -> None:
    assert numbers(one(tmp_path, [0.1, 0.2]), "other") == {"last": None, "best": None, "line": []}


def test_verdicts_are_those_of_forecast_and_health(runs: Path) -> None:
    client = over(runs)
    first = client.get("/api/runs").json()
    assert first["left"] == 3 and all(row["forecast"] is None and row["health"] is None for row in first["runs"])
    for name, row in judged(client).items():
        forecast = client.get("/api/forecast", params={"run": name}).json()
        assert (row["forecast"], row["reason"]) == (forecast["verdict"], forecast["reason"])
        assert row["health"] == client.get("/api/health", params={"run": name}).json()["verdict"]


def test_a_run_that_cannot_be_forecast_says_why(tmp_path: Path) -> None:
    write_points(tmp_path / "begun", rising(1), problems_per_batch=32, rollouts_per_problem=8)
    row = judged(over(tmp_path))["begun"]
    assert row["forecast"] is None and "begun" in row["reason"] and row["health"]


def test_a_run_is_judged_again_only_when_its_points_change(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, made = tmp_path / "runs", []
    shutil.copytree(runs, folder)
    verdict = results._verdict

    def noted(run: Run, *how: Any) -> results.Verdict:
        made.append(run.name)
        return verdict(run, *how)

    monkeypatch.setattr(results, "_verdict", noted)
    client = over(folder)
    judged(client)
    write_points(folder / "new", rising(), problems_per_batch=32, rollouts_per_problem=32)
    judged(client)
    assert sorted(made) == ["easy-32x16", "easy-32x64", "easy-32x8", "new"]


def test_a_request_judges_for_its_time_and_leaves_the_rest(runs: Path) -> None:
    status, loaded = RunStatus(), load(str(runs))
    how: dict[str, Any] = {"address": str(runs), "metric": "avg@4", "unit": "rollouts"}
    status.judge(loaded, seconds=-1.0, **how)
    assert all(status.known(run, *how.values()) is None for run in loaded)
    status.judge(loaded, seconds=60.0, **how)
    assert all(status.known(run, *how.values()) for run in loaded)


def test_the_table_can_be_saved_with_every_verdict(runs: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(over(runs).get("/api/runs?format=csv").text)))
    assert len(rows) == 3 and all(row["forecast"] and row["health"] and row["last"] for row in rows)
    assert "line" not in rows[0]


def test_the_table_shows_how_runs_stand_and_sorts_by_it(new_page: Callable[..., Watched], logs: Path) -> None:
    with serving(logs) as url:
        page = new_page().page
        page.goto(f"{url}/study")
        row = page.locator("tbody tr", has=page.get_by_role("link", name="high", exact=True))
        last = rising(24, 0.7)[-1]["avg@4"]
        expect(row).to_contain_text(f"{last:.3f}".removeprefix("0"))
        expect(row.locator("svg.spark polyline")).to_have_count(1)
        expect(row.locator(".chip")).to_have_count(2)
        page.get_by_role("button", name="last", exact=True).click()
        page.get_by_role("button", name="last", exact=True).click()
        expect(page.locator("tbody tr").first).to_contain_text("high")
        expect(page.locator("tbody tr").first.locator(".chip")).to_have_count(2)  # they go with their row
        page.close()


def test_runs_without_a_curve_are_left_out_of_the_law_without_a_word_on_the_console(logs: Path, tmp_path: Path) -> None:
    """`filterwarnings = error`: a warning would be an error of the app."""
    folder = tmp_path / "logs"
    shutil.copytree(logs, folder)
    write_points(folder / "begun", [{"step": 10, "avg@4": 0.3}])
    client = over(folder)
    assert [curve["run"] for curve in client.get("/api/fit").json()["curves"]] == ["high", "low"]
    assert judged(client)["begun"]["forecast"] is None
