"""A study served three ways: to a client in this process, on a port, and to a real browser."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import uvicorn
from fastapi.testclient import TestClient
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, Route

from isocompute.web.results import Results
from isocompute.web.server import bind, create_app
from isocompute.web.source import LoadOptions, Source
from tests.conftest import PATIENCE, rising, write_points
from tests.sweep.tools import write_spec

LOCAL = "http://127.0.0.1"


@pytest.fixture(scope="session")
def runs(sweep: Path) -> Path:
    """Three runs at n = 8, 16 and 64. Do not write into it."""
    return sweep / "runs"


@pytest.fixture(scope="session")
def client(runs: Path) -> TestClient:
    """The app over the three runs."""
    return over(runs)


def over(folder: Path, options: LoadOptions | None = None) -> TestClient:
    """The app over a folder."""
    results = Results(Source(str(folder), options))
    return TestClient(create_app(results), base_url=LOCAL, raise_server_exceptions=False)


@pytest.fixture
def one_run(tmp_path: Path) -> Path:
    """A study of one run."""
    write_points(tmp_path / "alone" / "32x8", rising(), problems_per_batch=32, rollouts_per_problem=8, seed=0)
    return tmp_path / "alone"


@pytest.fixture(scope="session")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight runs. Do not write into it."""
    folder = tmp_path_factory.mktemp("wide")
    for i, n in enumerate((4, 8, 16, 32, 64, 128, 256, 512)):
        points = rising(40 + i, ceiling=0.5 + 0.02 * i)
        write_points(folder / f"32x{n}", points, problems_per_batch=32, rollouts_per_problem=n, seed=0)
    return folder


@pytest.fixture(scope="session")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs that say neither Bp nor n. Do not write into it."""
    folder = tmp_path_factory.mktemp("logs")
    for name, seed, ceiling in (("low", 1, 0.5), ("high", 2, 0.7)):
        points = [{"step": point["step"], "avg@4": point["avg@4"]} for point in rising(24, ceiling)]
        write_points(folder / name, points, seed=seed)
    return folder


@pytest.fixture
def waiting(tmp_path: Path) -> Path:
    """A study that nobody has begun to run."""
    folder = tmp_path / "waiting"
    folder.mkdir()
    write_spec(folder / "study.toml")
    return folder


@contextmanager
def serving(folder: Path, *, results: Results | None = None) -> Iterator[str]:
    """The app on a free port of this machine, over a folder or over results that the test has in hand."""
    served = bind(str(folder), port=0)
    app = create_app(results or Results(served.source))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off", ws="none", access_log=False))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [served.socket]})
    thread.start()
    try:
        yield served.url.rstrip("/")
    finally:
        server.should_exit = True
        server.force_exit = True
        thread.join()
        for left in threading.enumerate():
            if left.name == "result":  # at work for a page that was left; warnings are captured for all threads alike
                left.join(timeout=60)


class Growing(NamedTuple):
    """A folder of runs that a test may write into, and where it is served."""

    folder: Path
    url: str


@pytest.fixture
def growing(runs: Path, tmp_path: Path) -> Iterator[Growing]:
    """A copy of the three runs. Ask for it before `new_page`, so that pages are closed before it is gone."""
    folder = tmp_path / "runs"
    shutil.copytree(runs, folder)
    with serving(folder) as url:
        yield Growing(folder, url)


@pytest.fixture(scope="session")
def address(runs: Path) -> Iterator[str]:
    """Where the three runs are served."""
    with serving(runs) as url:
        yield url


class Watched:
    """A page, its console errors, and every address it asked for."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.complaints: list[str] = []
        self.asked: list[str] = []
        self._forgiven = ""
        page.on("console", self._heard)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", self._seen)

    def forgive(self, text: str) -> None:
        """A complaint that the test brings about."""
        self._forgiven = text

    def _heard(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and not (self._forgiven and self._forgiven in message.text):
            self.complaints.append(message.text)

    def _seen(self, request: Request) -> None:
        self.asked.append(request.url)

    @property
    def strangers(self) -> list[str]:
        """Requests that left the machine."""
        local = (LOCAL, "data:", "blob:")
        return [url for url in self.asked if not url.startswith(local)]


class Held:
    """Requests of a page that wait until all of them are let through."""

    def __init__(self, page: Page, pattern: str) -> None:
        self._waiting: list[Route] = []
        self._let = False
        page.route(pattern, self._come)

    def _come(self, route: Route) -> None:
        if self._let:
            route.continue_()
        else:
            self._waiting.append(route)

    def let(self) -> None:
        """Those that wait, and those to come."""
        self._let = True
        for route in self._waiting:
            route.continue_()


@pytest.fixture
def new_page(chromium: Browser) -> Iterator[Callable[..., Watched]]:
    """Pages of a given width and colour scheme; none may complain or ask another machine for anything."""
    opened: list[tuple[Any, Watched]] = []

    def new(width: int = 1280, scheme: Any = "light") -> Watched:
        context = chromium.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, accept_downloads=True
        )
        context.set_default_timeout(PATIENCE)
        watched = Watched(context.new_page())
        opened.append((context, watched))
        return watched

    yield new
    for context, watched in opened:
        context.close()
        assert watched.complaints == []
        assert watched.strangers == []
