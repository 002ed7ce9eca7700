"""A simulated law is read off its runs inside their range."""

from __future__ import annotations

import numpy as np
import pytest

from isocompute.law import Curve, fit_law
from isocompute.planner.as_run import AsRun, as_run
from isocompute.planner.curves import Curves
from isocompute.planner.load_law import planning_law
from isocompute.planner.stability import Falls

COMPUTE = np.geomspace(1e4, 1e6, 20)


def late(n: int, world: int, jump: float) -> Curve:
    """Level for long, then a rise that no form has, and a fall at the very end."""
    values = 0.3 + 0.05 * world + 0.02 * np.log10(COMPUTE / 1e4) + np.where(COMPUTE > 5e5, jump, 0.0)
    values[-1] -= 0.01
    return Curve(f"{world}/{n}", COMPUTE, values, 32, n, seed=world)


@pytest.fixture(scope="module")
def read() -> tuple[AsRun, Curves, list[Curve]]:
    curves = [late(n, world, jump) for n, jump in ((8, 0.0), (64, 0.1)) for world in (0, 1, 2)]
    law = fit_law(curves, metric="avg@4", unit="rollouts", replicates=200)
    made = planning_law(
        law.settings,
        law.surface,
        name="simulate",
        source="",
        metric="avg@4",
        unit="rollouts",
        falls=Falls(),
        seed=0,
        uncertainty="",
    )
    assert isinstance(made.model, Curves)
    return as_run(made.model, curves), made.model, curves


def values(model: Curves, n: int, compute: float) -> np.ndarray:
    return model.values(np.array([32.0]), np.array([float(n)]), np.array([compute]))[0]


def test_inside_its_range_a_law_says_what_was_reached(read: tuple[AsRun, Curves, list[Curve]]) -> None:
    model, fitted, curves = read
    for n in (8, 64):
        reached = np.mean([curve.values_C.max() for curve in curves if curve.rollouts_per_problem == n])
        assert values(model, n, 1e6).mean() == pytest.approx(reached, abs=0.005)
    lead, by_fit = (float((values(of, 64, 1e6) - values(of, 8, 1e6)).mean()) for of in (model, fitted))
    assert lead == pytest.approx(0.1, abs=0.002), "worlds are drawn for both settings alike"
    assert abs(by_fit - 0.1) > 0.005, "no form has such a rise"
    between = values(model, 8, float(np.sqrt(COMPUTE[3] * COMPUTE[4]))).mean()
    assert curves[0].values_C[3] + 0.04 < between < curves[0].values_C[4] + 0.06


def test_members_differ_as_worlds_do(read: tuple[AsRun, Curves, list[Curve]]) -> None:
    spread = values(read[0], 8, 1e6).std()
    assert spread == pytest.approx(0.05 * np.sqrt(2 / 3) / np.sqrt(3), rel=0.2)


def test_beyond_its_range_a_setting_goes_on_from_where_it_was(read: tuple[AsRun, Curves, list[Curve]]) -> None:
    model = read[0]
    end, further = values(model, 64, 1e6).mean(), values(model, 64, 4e6).mean()
    assert end - 0.01 < further < end + 0.1
