"""A sweep with known truth, timed runs, and allocations for the tests of the planner."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from isocompute.core.curve import Curve
from tests.conftest import write_points


def columns(*rows: tuple[float, float, float]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    bp_A, n_A, compute_A = np.array(rows, dtype=np.float64).T
    return bp_A, n_A, compute_A


def sweep_curves(last: float, ns: tuple[int, ...] = (8, 16, 32, 64)) -> list[Curve]:
    rng = np.random.default_rng(0)
    out = []
    for bp in (32, 64):
        for n in ns:
            compute_C = np.geomspace(2e3, last, 30)
            value_C = 0.3 + 0.3 / (1 + (2e4 * (n / 8) ** 0.5 / compute_C) ** 1.2)
            out.append(Curve(f"{bp}x{n}", compute_C, value_C + 0.003 * rng.standard_normal(30), bp, n, seed=0))
    return out


def write_timed(folder: Path, rates: Mapping[int, float]) -> Path:
    """A run of Bp = 32 on 8 GPUs for each n, at so many rollouts a second."""
    for n, rate in rates.items():
        points = [{"step": s, "rollouts": s * 32 * n, "seconds": s * 32 * n / rate} for s in range(1, 8)]
        write_points(folder / f"n{n}", points, problems_per_batch=32, rollouts_per_problem=n, gpus=8)
    return folder
