"""A sweep whose truth is known, and allocations as the planner asks for them."""

from __future__ import annotations

import numpy as np

from isocompute.law.curve import Curve


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
