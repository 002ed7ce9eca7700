"""Rollouts a second of the simulator on one core: by n, and how it grows with problems, responses and features.

python benchmarks/sim_speed.py [--seconds 3]
"""

from __future__ import annotations

import os

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"  # before numpy loads: one core is what is measured

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

from isocompute.core.allocation import Cell
from isocompute.sim import SimEngine

DEFAULT: dict[str, Any] = {"set": "easy"}


class Clock:
    """Stops a cell after some seconds, not counting the making of its world."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.rollouts = seconds, 0
        self.start: float | None = None

    def stopping(self) -> bool:
        if self.start is None:
            self.start, self.rollouts = time.perf_counter(), 0
        return time.perf_counter() - self.start > self.seconds

    def advanced(self, rollouts: int) -> None:
        self.rollouts += rollouts


def measure(bp: int, n: int, problems: dict[str, Any], seconds: float) -> tuple[float, float]:
    """Rollouts a second and updates a second."""
    clock = Clock(seconds)
    cell = Cell("speed", bp, n, 10**9, 0, {**DEFAULT, **problems}, {"name": "isocompute-easy"}, {"points": 2})
    with tempfile.TemporaryDirectory() as folder:
        SimEngine().run(cell, Path(folder), clock)
    assert clock.start is not None
    rate = clock.rollouts / (time.perf_counter() - clock.start)
    return rate, rate / (bp * n)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0)
    seconds = parser.parse_args().seconds
    print(f"{'':42s}{'rollouts/s':>14s}{'updates/s':>11s}")
    settings: list[tuple[str, int, int, dict[str, Any]]] = [
        ("Bp 32, n 8", 32, 8, {}),
        ("Bp 32, n 128", 32, 128, {}),
        ("Bp 32, n 2048", 32, 2048, {}),
        ("Bp 1024, n 8", 1024, 8, {}),
        ("Bp 32, n 128, D 20,000", 32, 128, {"size": 20_000}),
        ("Bp 32, n 128, K 128", 32, 128, {"responses": 128}),
        ("Bp 32, n 128, F 256", 32, 128, {"features": 256}),
        ("Bp 32, n 128, half of the features own", 32, 128, {"interference": 0.5}),
    ]
    for name, bp, n, problems in settings:
        rollouts, updates = measure(bp, n, problems, seconds)
        print(f"{name:42s}{rollouts:14,.0f}{updates:11,.0f}", flush=True)


if __name__ == "__main__":
    main()
