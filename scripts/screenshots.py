"""The pictures of the web app in docs/images: a study of the simulator, served, and photographed by Chromium.

    python scripts/screenshots.py [--study FOLDER]

Without --study it runs one first, which takes about two minutes on two cores.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import threading
from pathlib import Path

import uvicorn
from playwright.sync_api import Browser, sync_playwright

from isocompute import sweep as study
from isocompute.web.results import Results
from isocompute.web.server import bind, create_app

IMAGES = Path(__file__).parents[1] / "docs" / "images"
LARGEST = 300_000
SPEC = """engine = "sim"
problems = [{set = "easy"}, {set = "hard"}]
recipe = {name = "isocompute-easy"}
grid = {problems_per_batch = [32, 128], rollouts_per_problem = [8, 16, 32, 64, 128, 256, 512]}
budget = {rollouts = 4_000_000}
"""
SIZE = (1280, 900)
PICTURES = (
    ("plan", "/plan?part=easy&budget=2e6", ".page.plan canvas", "light"),
    ("study", "/study?part=hard&metric=exact%2Favg%404", "figure:nth-of-type(2) canvas", "dark"),
    ("run", "/run?part=easy&run=32x128-s0&fit_until=0.5&to=2x", "canvas", "light"),
)


def main() -> None:
    """Run or take a study, serve it, and take every picture."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--study", type=Path, help="a study with the parts easy and hard, instead of running one")
    given = parser.parse_args().study
    with tempfile.TemporaryDirectory() as folder:
        known = None if given is None else given.resolve()
        os.chdir(folder)  # the commands on the pages name the study as a user would
        if known is None:
            Path("sweep.toml").write_text(SPEC)
            study.run(spec="sweep.toml", out="sweep")
        else:
            Path("sweep").symlink_to(known)
        _photograph("sweep")


def _photograph(address: str) -> None:
    served = bind(address, port=0)
    app = create_app(Results(served.source))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off", ws="none"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [served.socket]})
    thread.start()
    try:
        with sync_playwright() as playwright:
            arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
            found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
            browser = playwright.chromium.launch(executable_path=found, args=arguments)
            for picture in PICTURES:
                _picture(browser, served.url.rstrip("/"), *picture)
            browser.close()
    finally:
        server.should_exit = server.force_exit = True
        thread.join()


def _picture(browser: Browser, url: str, name: str, path: str, mark: str, scheme: str) -> None:
    page = browser.new_page(
        viewport={"width": SIZE[0], "height": SIZE[1]}, color_scheme="dark" if scheme == "dark" else "light"
    )
    page.set_default_timeout(300_000)
    page.goto(url + path)
    page.locator(mark).first.wait_for()
    page.wait_for_load_state("networkidle")
    file = IMAGES / f"{name}.png"
    IMAGES.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=file)
    page.close()
    taken = file.stat().st_size
    print(f"{file.name}: {taken / 1000:.0f} kB")
    if taken > LARGEST:
        raise SystemExit(f"{file} is larger than {LARGEST / 1000:.0f} kB")


if __name__ == "__main__":
    main()
