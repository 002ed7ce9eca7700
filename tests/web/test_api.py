"""The API against the commands: what it answers is what the command in its header prints."""

from __future__ import annotations

import csv
import io
import json
import shlex
import shutil
import sys
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import httpx
import pytest
from fastapi.testclient import TestClient

from isocompute.cli.main import main
from isocompute.web.responses import as_csv
from tests.conftest import rising, write_points
from tests.sweep.tools import PATIENCE, finish, start, write_spec
from tests.web.conftest import over

RUN = "easy-32x8"
SAME = [
    "plan",
    "plan?budget=3e5&min_updates=20&n=8&n=16&difficulty=hard&problems=500",
    "plan?budget=8e5&problems_per_batch=32&max_batch=1024&gpus=8&rollouts_per_second=12&price_per_gpu_hour=2.5",
    "plan?budget=3e5&metric=best@4&stable_low=8&stable_high=64&truncated=0.2",
    "plan?law=isocompute/bp32-easy&budget=2e6",
    "plan?law=scalerl/8b&budget=5000h&extrapolate=true",
    "laws",
    "fit",
    "fit?metric=best@4",
    "figures",
    "figures/reward",
    "figures/optimum?metric=avg@4&unit=rollouts",
    f"forecast?run={RUN}&to=4x",
    f"forecast?run={RUN}&fit_until=0.5&metric=avg@4",
    f"health?run={RUN}",
    "compare?a=easy-32x8&b=easy-32x64",
    "claims",
]


def printed(command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """What a command prints with --json."""
    monkeypatch.setattr(sys, "argv", [*shlex.split(command), "--json"])
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        with suppress(SystemExit):
            main()
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("query", SAME)
def test_the_answer_is_what_the_command_in_its_header_prints(
    client: TestClient, query: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = client.get(f"/api/{query}")
    assert answer.status_code == 200, answer.text
    assert answer.json() == printed(unquote(answer.headers["Isocompute-Command"]), capsys, monkeypatch)


def test_a_studys_state_and_cells_are_those_of_the_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, _, err = finish(start("run", write_spec(tmp_path / "s.toml"), "--out", tmp_path / "study"))
    assert code == 0, err
    client = over(tmp_path / "study")
    pulse, cells = client.get("/api/pulse"), client.get("/api/cells")
    assert pulse.json()["status"] == printed(unquote(pulse.headers["Isocompute-Command"]), capsys, monkeypatch)
    assert cells.json() == printed(unquote(cells.headers["Isocompute-Command"]), capsys, monkeypatch)
    assert pulse.json()["status"]["finished"] == 4


def test_the_band_agrees_with_the_plan_at_its_budgets(client: TestClient) -> None:
    rows = client.get("/api/plan/band").json()["rows"]
    assert len(rows) > 10
    for row in rows[::6]:
        plan = client.get("/api/plan", params={"budget": row["budget"]}).json()
        assert row["rollouts_per_problem"] == plan["rollouts_per_problem"]
        assert row["value"] == pytest.approx(plan["expected"]["value"])
        assert [row["low"], row["high"]] == pytest.approx(plan["expected"]["interval"])


CHARTS = [
    "figures/reward/chart",
    "plan/band/chart",
    f"forecast/chart?run={RUN}",
    "compare/chart?a=easy-32x8&b=easy-32x64",
]


@pytest.mark.parametrize("path", CHARTS)
def test_charts_come_as_vega_png_svg_and_csv(client: TestClient, path: str) -> None:
    more = "&" if "?" in path else "?"
    panels = client.get(f"/api/{path}").json()["panels"]
    assert panels and all("$schema" in panel for panel in panels)
    assert client.get(f"/api/{path}{more}format=png").content.startswith(b"\x89PNG")
    assert client.get(f"/api/{path}{more}format=svg").text.startswith("<svg")
    answer = client.get(f"/api/{path}{more}format=csv")
    assert "attachment" in answer.headers["Content-Disposition"]
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert len(rows) > 5 and {"layer", "compute", "value"} <= set(rows[0])


@pytest.mark.parametrize(
    "path", ["plan.csv", "fit?format=csv", f"points?run={RUN}&format=csv", f"health?run={RUN}&format=csv"]
)
def test_tables_come_as_csv(client: TestClient, path: str) -> None:
    answer = client.get(f"/api/{path}")
    assert answer.headers["Content-Type"].startswith("text/csv")
    assert list(csv.reader(io.StringIO(answer.text)))


def test_points_are_the_runs_own(client: TestClient, runs: Path) -> None:
    lines = [json.loads(line) for line in (runs / RUN / "points.jsonl").read_text().splitlines()]
    points = client.get(f"/api/points?run={RUN}").json()["points"]
    assert [{k: v for k, v in point.items() if v is not None} for point in points] == lines


def test_csv_keeps_text_from_being_a_formula() -> None:
    table = list(csv.reader(io.StringIO(as_csv([{"run": "=1+1", "value": -0.5}, {"run": "a", "more": [1]}]).decode())))
    assert table == [["run", "value", "more"], ["'=1+1", "-0.5", ""], ["a", "", "[1]"]]


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "evil.example:80", "", "[::1]"])
def test_requests_by_other_names_are_refused(client: TestClient, host: str) -> None:
    for path in ("/plan", "/api/about", "/static/app.js", "/vega.js"):
        answer = client.get(path, headers={"Host": host})
        assert answer.status_code == 400 and "Invalid host" in answer.text


@pytest.mark.parametrize("host", ["127.0.0.1:8321", "localhost:9", "localhost"])
def test_this_machines_names_are_answered(client: TestClient, host: str) -> None:
    assert client.get("/plan", headers={"Host": host}).status_code == 200


def test_pages_of_another_site_cannot_make_the_app_work(client: TestClient) -> None:
    for site, status in (("cross-site", 403), ("same-origin", 200), ("none", 200)):
        assert client.get("/api/about", headers={"Sec-Fetch-Site": site}).status_code == status
    assert client.get("/plan", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 200  # a link to the app


def test_every_answer_forbids_scripts_from_elsewhere(client: TestClient) -> None:
    for path in ("/", "/plan", "/api/about", "/api/nothing", "/static/app.js", "/static/missing.js"):
        policy = client.get(path).headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy


@pytest.mark.parametrize(
    "path",
    [
        "/api/points?run=../../../../etc/passwd",
        "/api/points?run=/etc/passwd",
        "/api/about?part=..",
        "/api/fit?part=/etc",
        "/api/plan?law=/etc/passwd",
        "/api/plan?law=../law.json",
        "/api/plan?part=..",
        "/api/compare?a=..&b=/etc",
        "/static/..%2f..%2fapp.py",
        "/static/%2e%2e/app.py",
        "/api/figures/..%2fx",
    ],
)
def test_nothing_outside_the_study_can_be_asked_for(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert 400 <= answer.status_code < 500
    assert set(answer.json()) == {"error"}
    assert "root:" not in answer.text and "create_app" not in answer.text


@pytest.mark.parametrize(
    ("path", "status", "says"),
    [
        ("/api/plan?budget=x", 400, "budget x: give a positive amount"),
        ("/api/plan?n=-3", 422, "greater than or equal to 1"),
        ("/api/plan?gpus=2000000000", 422, "less than or equal"),
        ("/api/plan?nonsense=1", 422, "nonsense"),
        ("/api/plan?stable_low=8", 400, "both stable_low and stable_high"),
        ("/api/plan?budget=1e12", 400, "extrapolate=true"),
        ("/api/forecast?run=easy-32x8&to=far", 422, "to"),
        ("/api/forecast", 422, "run: field required"),
        ("/api/compare?a=easy-32x8&b=easy-32x8", 400, "two different runs"),
        ("/api/fit?metric=nothing", 400, "no run has a metric 'nothing'"),
        ("/api/figures/nothing/chart", 400, "there is no figure"),
        ("/api/cells", 400, "study.toml"),
        ("/api/nothing", 404, "/api/nothing"),
        ("/api/plan?budget=" + "1" * 9000, 422, "at most 30 characters"),
    ],
)
def test_wrong_requests_say_what_is_wrong(client: TestClient, path: str, status: int, says: str) -> None:
    answer = client.get(path)
    assert answer.status_code == status
    assert says in answer.json()["error"]


@pytest.mark.parametrize("path", ["/plan", "/static/app.js", "/api/about", "/api/nothing", "/api/plan.csv"])
def test_head_is_get_without_the_body(address: str, path: str) -> None:
    head, get = httpx.head(address + path, timeout=PATIENCE), httpx.get(address + path, timeout=PATIENCE)
    assert head.status_code == get.status_code and head.content == b""
    assert head.headers["Content-Length"] == get.headers["Content-Length"]


def test_nothing_can_be_changed(client: TestClient) -> None:
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        answer = client.request(method, "/api/plan")
        assert answer.status_code == 405 and "GET only" in answer.json()["error"]


def test_a_mistake_of_ours_shows_nothing_of_the_inside(
    runs: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("secret detail")

    client = over(runs)
    monkeypatch.setattr("isocompute.web.results.Results.snapshot", broken)
    answer = client.get("/api/about")
    assert answer.status_code == 500
    assert "secret" not in answer.text and "Traceback" not in answer.text
    assert "secret detail" in caplog.text  # the terminal has it


def test_a_study_nobody_ran_says_that_it_has_no_points(waiting: Path) -> None:
    client = over(waiting)
    about = client.get("/api/about").json()
    assert about["study"] and about["runs"] == [] and about["empty"]
    assert client.get("/api/pulse").json()["status"]["waiting"] == 4
    for path in ("plan", "fit", "claims", "figures/reward/chart"):
        answer = client.get(f"/api/{path}")
        assert answer.status_code == 400
        assert "no run of this study has a point yet" in answer.json()["error"]


def test_one_run_has_a_forecast_but_no_best_n(one_run: Path) -> None:
    client = over(one_run)
    assert client.get("/api/forecast?run=32x8").json()["verdict"]
    chart = client.get("/api/figures/optimum/chart").json()
    assert chart["panels"] == [] and "n" in chart["needs"]


def test_a_metric_that_half_of_the_runs_lack_leaves_them_out_of_the_figures(tmp_path: Path) -> None:
    for n, metric in ((8, "avg@4"), (16, "avg@4"), (32, "reward"), (64, "reward")):
        points = [
            {"step": p["step"], "rollouts": p["rollouts"], metric: p["avg@4"]} for p in rising(ceiling=0.5 + n / 500)
        ]
        write_points(tmp_path / f"32x{n}", points, problems_per_batch=32, rollouts_per_problem=n)
    client = over(tmp_path)
    assert {m["metric"]: m["runs"] for m in client.get("/api/about").json()["metrics"]} == {"avg@4": 2, "reward": 2}
    assert client.get("/api/figures/reward/chart?metric=avg@4").json()["panels"]
    assert "avg@4" in client.get("/api/fit?metric=avg@4").json()["error"]


def test_a_study_that_grows_is_seen_and_one_that_goes_away_comes_back(tmp_path: Path, runs: Path) -> None:
    folder = tmp_path / "runs"
    shutil.copytree(runs, folder)
    client = over(folder)
    first = client.get("/api/about").json()
    write_points(folder / "32x32", rising(), problems_per_batch=32, rollouts_per_problem=32)
    second = client.get("/api/about").json()
    assert (len(first["runs"]), len(second["runs"])) == (3, 4)
    assert first["version"] != second["version"] == client.get("/api/pulse").json()["version"]
    folder.rename(tmp_path / "away")
    gone = client.get("/api/pulse")
    assert gone.status_code == 400 and "put it back" in gone.json()["error"]
    (tmp_path / "away").rename(folder)
    assert client.get("/api/pulse").json()["version"] == second["version"]


def test_a_table_is_served_like_runs(tmp_path: Path) -> None:
    rows = [
        {
            "run": f"n{n}",
            "problems_per_batch": 32,
            "rollouts_per_problem": n,
            "rollouts": p["rollouts"],
            "avg@4": p["avg@4"] * n**0.05,
        }
        for n in (8, 16)
        for p in rising()
    ]
    (tmp_path / "t.csv").write_bytes(as_csv(rows))
    client = over(tmp_path / "t.csv")
    assert [run["run"] for run in client.get("/api/about").json()["runs"]] == ["n8", "n16"]
    answer = client.get("/api/forecast?run=n8")
    assert answer.status_code == 200
    assert unquote(answer.headers["Isocompute-Command"]).split()[2].endswith("t.csv::n8")
