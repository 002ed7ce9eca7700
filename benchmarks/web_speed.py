"""How fast the web app answers: a plan's update, a study of 200 runs × 200 points, the first page.

    python benchmarks/web_speed.py [--runs 200] [--points 200]

Makes runs, starts `isocompute web` as a process of its own, and asks it over HTTP as the page does. First the law and
the plan of apps that have just started, asked for as soon as the first page is there. Then, in one app, every question
before its result was ever made and again and again afterwards.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from isocompute.data import RunSettings, RunWriter

WANTED = {"plan update": 100, "study": 500, "first page": 1000}
_BP, _N = (16, 32, 64, 128, 256), (8, 16, 32, 64, 128, 256, 512, 1024)


def write_runs(root: Path, runs: int, points: int) -> None:
    """Curves that rise towards a ceiling which grows with n; larger n rise later."""
    rng = np.random.default_rng(0)
    grid = [(bp, n) for bp in _BP for n in _N]
    for i in range(runs):
        (bp, n), seed = grid[i % len(grid)], i // len(grid)
        ceiling = 0.4 + 0.3 / (1 + (30 / n) ** 0.5)
        compute = np.unique(np.geomspace(max(2000, bp * n), 4e6, points).astype(int))
        with RunWriter(
            root / f"{bp}x{n}-s{seed}", RunSettings(problems_per_batch=bp, rollouts_per_problem=n, seed=seed)
        ) as writer:
            for step, c in enumerate(compute, start=1):
                value = 0.4 + (ceiling - 0.4) / (1 + (3e4 * n**0.4 / c) ** 1.4) + 0.004 * rng.standard_normal()
                writer.append({"step": step, "rollouts": int(c), "avg@4": round(float(value), 5)})


def ask(url: str) -> float:
    """Milliseconds until the whole answer is there."""
    began = time.perf_counter()
    with urllib.request.urlopen(url, timeout=600) as response:
        response.read()
    return 1000 * (time.perf_counter() - began)


def report(name: str, first: float, later: list[float], wanted: int | None) -> None:
    middle, worst = float(np.median(later)), float(np.max(later))
    limit = "" if wanted is None else f"  wanted {wanted} ms"
    print(f"{name:42s} first {first:9.0f} ms   then {middle:6.1f} ms (worst {worst:6.1f}){limit}", flush=True)


def measure(name: str, urls: Callable[[int], str], repeats: int, wanted: int | None = None) -> None:
    first = ask(urls(0))
    report(name, first, [ask(urls(i)) for i in range(1, repeats + 1)], wanted)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--points", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--starts", type=int, default=3, help="apps whose first law and first plan are timed")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_runs(Path(folder), args.runs, args.points)
        print(f"{args.runs} runs × {args.points} points, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
        for name, path in (("law", "api/fit"), ("plan", "api/plan")):
            for _ in range(args.starts):
                with app(folder) as (url, started):
                    _measure_first(name, f"{url}{path}", started)
        with app(folder) as (url, started):
            print(f"{'from the command to the first page':42s} {1000 * (time.perf_counter() - started):15.0f} ms")
            _measure_all(url, args.repeats)


@contextmanager
def app(folder: str) -> Iterator[tuple[str, float]]:
    """An app whose first page has just been read: its address, and when its command was given."""
    command = [sys.executable, "-m", "isocompute", "web", folder, "--no-browser", "--json"]
    started = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = json.loads(process.stdout.readline())["url"]
            ask(f"{url}plan")
            yield url, started
        finally:
            process.terminate()


def _measure_first(name: str, url: str, started: float) -> None:
    """The first answer to a question that the app was just started with."""
    waited = ask(url)
    print(
        f"{f'{name} of an app just started':42s} {waited:15.0f} ms   "
        f"{1000 * (time.perf_counter() - started):.0f} ms after the command",
        flush=True,
    )


def _measure_all(url: str, repeats: int) -> None:
    page = [
        ask(f"{url}{path}")
        for path in ("plan", "static/style.css", "static/app.js", "api/about", "static/pages/plan.js")
    ]
    print(f"{'first page: its files and its runs':42s} {sum(page):15.0f} ms  wanted {WANTED['first page']} ms")
    measure("pulse while the law is being fitted", lambda _: f"{url}api/pulse", repeats)
    measure("runs while the law is being fitted", lambda _: f"{url}api/about", repeats, WANTED["study"])
    measure(
        "plan on a published law",
        lambda i: f"{url}api/plan?law=isocompute/joint-easy&budget={2e5 * 1.2**i:.0f}",
        repeats,
        WANTED["plan update"],
    )
    measure("study: law", lambda _: f"{url}api/fit", repeats, WANTED["study"])
    measure("study: figure 6", lambda _: f"{url}api/figures/reward/chart", repeats, WANTED["study"])
    measure("study: figure 7", lambda _: f"{url}api/figures/optimum/chart", repeats, WANTED["study"])
    measure(
        "plan on the study, budget moved",
        lambda i: f"{url}api/plan?budget={1e5 * 1.15**i:.0f}",
        repeats,
        WANTED["plan update"],
    )
    measure(
        "plan on the study, constraints changed",
        lambda i: f"{url}api/plan?budget=1e6&min_updates={i + 1}",
        repeats,
        WANTED["plan update"],
    )
    measure("band over budgets", lambda _: f"{url}api/plan/band", repeats, WANTED["study"])
    measure("run: forecast", lambda i: f"{url}api/forecast?run=32x{_N[i % len(_N)]}-s0", 2 * len(_N), WANTED["study"])
    measure("run: health", lambda i: f"{url}api/health?run=32x{_N[i % len(_N)]}-s0", 2 * len(_N), WANTED["study"])


if __name__ == "__main__":
    main()
