"""A law that takes long is preceded by a rough one, which says so wherever it is seen and makes way by itself."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from playwright.sync_api import expect

from isocompute import api
from isocompute.law import law_to_json
from isocompute.web import results as results_module
from isocompute.web.app import create_app
from isocompute.web.fitting import Fitted, fit_fully
from isocompute.web.results import Results
from isocompute.web.source import Source
from tests.sweep.tools import until
from tests.web.conftest import LOCAL, Watched, over, serving

ROUGH = "50/1000"


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """The final law is made when this is set."""
    event = threading.Event()

    def later(*args: Any, **how: Any) -> Fitted:
        event.wait(60)
        return fit_fully(*args, **how)

    monkeypatch.setattr(results_module, "fit_fully", later)
    yield event
    event.set()


def impatient(folder: Path) -> TestClient:
    """An app that says at once that something is being made."""
    results = Results(Source(str(folder)), patience=0.01)
    return TestClient(create_app(results), base_url=LOCAL, raise_server_exceptions=False)


def answered(client: TestClient, path: str, when: Callable[[Any], bool] = lambda _: True) -> Any:
    """The answer, once it is there and as it should be."""
    found: list[Any] = []

    def there() -> bool:
        found.append(client.get(path))
        return found[-1].status_code != 202 and when(found[-1])

    until(there)
    return found[-1]


@pytest.mark.parametrize(
    "path", ["fit", "plan", "plan?budget=5e4", "plan/band", "plan/band/chart", "figures/reward", "figures/reward/chart"]
)
def test_what_rests_on_the_rough_law_says_so_until_the_final_one_is_there(
    wide: Path, gate: threading.Event, path: str
) -> None:
    client = impatient(wide)
    first = answered(client, f"/api/{path}")
    assert first.headers["Isocompute-Preliminary"] == ROUGH
    assert (first.json()["preliminary"], first.json()["replicates"]) == (True, 50)
    gate.set()
    last = answered(client, f"/api/{path}", lambda answer: "Isocompute-Preliminary" not in answer.headers)
    assert "preliminary" not in last.json()
    assert last.headers.get("Isocompute-Command") == first.headers.get("Isocompute-Command")


@pytest.mark.parametrize("path", ["plan?n=24", "plan/band?n=24"])
def test_no_error_is_preliminary(wide: Path, gate: threading.Event, path: str) -> None:
    """A setting that nobody ran is on the surface, which the rough law does not have."""
    client = impatient(wide)
    answered(client, "/api/fit")  # the rough one is there
    assert client.get(f"/api/{path}").status_code == 202
    gate.set()
    last = answered(client, f"/api/{path}")
    assert "Isocompute-Preliminary" not in last.headers
    assert (last.json().get("rollouts_per_problem") or last.json()["rows"][-1]["rollouts_per_problem"]) == 24


def test_the_final_law_is_that_of_fit_and_the_rough_one_is_near_it(wide: Path, gate: threading.Event) -> None:
    client = impatient(wide)
    rough = answered(client, "/api/fit").json()
    gate.set()
    final = answered(client, "/api/fit?final=true").json()
    assert final == law_to_json(api.fit(str(wide)))
    for a, b in zip(rough["curves"], final["curves"], strict=True):
        low, high = b["asymptote_interval"]
        assert low - (high - low) <= a["asymptote"] <= high + (high - low)


@pytest.mark.parametrize(
    "path",
    [
        "plan.csv",
        "fit?format=csv",
        "figures/reward/chart?format=csv",
        "figures/reward/chart?format=svg",
        "plan/band/chart?format=csv",
        "plan?final=true",
        "figures/reward?final=true",
    ],
)
def test_what_is_kept_waits_for_the_final_law(wide: Path, gate: threading.Event, path: str) -> None:
    client = impatient(wide)
    answered(client, "/api/fit")  # the rough one is there
    assert client.get(f"/api/{path}").status_code == 202
    gate.set()
    last = answered(client, f"/api/{path}")
    assert last.status_code == 200 and "Isocompute-Preliminary" not in last.headers


def test_a_small_study_has_no_preliminary_law(client: TestClient) -> None:
    answer = client.get("/api/fit")
    assert "Isocompute-Preliminary" not in answer.headers and answer.json()["replicates"] == 1000


def test_the_description_says_what_preliminary_is(wide: Path) -> None:
    described = over(wide).get("/api/openapi.json").json()
    for path in ("/api/fit", "/api/plan", "/api/figures/{name}/chart"):
        operation = described["paths"][path]["get"]
        assert "final" in {parameter["name"] for parameter in operation["parameters"]}
        assert "Isocompute-Preliminary" in operation["responses"]["200"]["headers"]


def test_the_pages_show_the_rough_law_and_then_the_final_one(
    wide: Path, gate: threading.Event, new_page: Callable[..., Watched]
) -> None:
    with serving(wide, results=Results(Source(str(wide)))) as url:
        plan, study = new_page().page, new_page(390).page
        plan.goto(f"{url}/plan")
        study.goto(f"{url}/study")
        told = "50 of 1000 bootstrap replicates"
        expect(plan.get_by_label("Answer")).to_contain_text(told)
        expect(plan.get_by_label("Answer")).to_contain_text("probability about")
        expect(study.locator("figure .notice.rough")).to_have_count(2)
        for link in plan.locator(".downloads a").all():
            address = str(link.get_attribute("href"))
            assert "final=true" in address or "csv" in address or "format=" in address
        gate.set()
        expect(plan.locator(".notice.rough")).to_have_count(0)
        expect(plan.get_by_label("Answer")).not_to_contain_text("probability about")
        expect(study.locator(".notice.rough")).to_have_count(0)
        expect(study.locator("canvas")).to_have_count(2)
        plan.close()
        study.close()
