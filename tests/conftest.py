"""Shared fixtures: a small sweep with a known answer, written as run folders."""

from __future__ import annotations

import os
import shutil
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import numpy as np
import pytest

from isocompute.data import RunSettings, RunWriter
from tests.commands import Call, Result

if TYPE_CHECKING:
    from playwright.sync_api import Browser

os.environ["TRITON_INTERPRET"] = "1"  # GPU kernels run on the CPU; Triton asks when it is first imported

hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=60)
hypothesis.settings.load_profile("repeatable")

PROBLEMS = 32
CEILINGS = {8: 0.54, 16: 0.60, 64: 0.68}
"""Ceiling of each n; larger n also learn later, so that n* rises with compute."""

PATIENCE = 60_000
"""Milliseconds that a browser waits for something that will happen, on a machine that is busy."""

WriteRun = Callable[..., Path]


def write_points(folder: Path, points: Iterable[dict[str, Any]], **settings: Any) -> Path:
    """A run folder with these points."""
    with RunWriter(folder, RunSettings(**settings)) as writer:
        for point in points:
            writer.append(point)
    return folder


def rising(count: int = 20, ceiling: float = 0.6, every: int = 2560) -> list[dict[str, Any]]:
    """Points of a run that rises to a ceiling, with a little noise."""
    rng = np.random.default_rng(count)
    out = []
    for i in range(1, count + 1):
        value = ceiling - (ceiling - 0.3) * np.exp(-5 * i / count) + 0.004 * rng.standard_normal()
        out.append({"step": 10 * i, "rollouts": every * i, "avg@4": round(float(value), 5)})
    return out


@pytest.fixture(scope="session")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `runs/easy-32x8`, `-32x16` and `-32x64`. Do not write into it."""
    root = tmp_path_factory.mktemp("sweep")
    rng = np.random.default_rng(0)
    for n, ceiling in CEILINGS.items():
        points = []
        for step in np.unique(np.geomspace(2000 / n, 2e6 / (PROBLEMS * n), 30).round().astype(int)):
            rollouts = int(step) * PROBLEMS * n
            value = 0.4 + (ceiling - 0.4) / (1 + (3e4 * n**0.4 / rollouts) ** 1.4) + 0.004 * rng.standard_normal()
            # best@4 is evaluated half as often, as costly metrics are.
            point = {"step": int(step), "rollouts": rollouts, "avg@4": round(float(value), 5)}
            points.append(point | ({"best@4": round(float(value) + 0.1, 5)} if len(points) % 2 else {}))
        write_points(
            root / "runs" / f"easy-{PROBLEMS}x{n}", points, problems_per_batch=PROBLEMS, rollouts_per_problem=n, seed=0
        )
    return root


@pytest.fixture
def in_sweep(sweep: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The sweep as the working folder, for examples that say `runs/`."""
    monkeypatch.chdir(sweep)
    return sweep


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    """The command line as its entry point runs it, without the cost of a new process."""
    from isocompute.cli.main import main

    def run(*args: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["isocompute", *map(str, args)])
        code: object = 0
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            try:
                main()
            except SystemExit as stop:
                code = stop.code or 0
        captured = capsys.readouterr()
        assert isinstance(code, int)
        return Result(code, captured.out, captured.err)

    return run


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """A real browser, one for all tests of a process, in which playwright starts only once. Root, as CI is, has no
    sandbox to use.
    """
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        pytest.skip("no Chromium on PATH; `make browser` installs one")
    from playwright.sync_api import expect, sync_playwright

    with sync_playwright() as playwright:
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=path, args=arguments)
        expect.set_options(timeout=PATIENCE)
        yield browser
        browser.close()
