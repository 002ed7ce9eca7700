"""The rise of a setting where its runs end."""

from __future__ import annotations

import doctest
import json
from pathlib import Path

import numpy as np
import pytest

from isocompute.core.curve import Curve
from isocompute.law import curves as trend
from isocompute.law.curves import last_trend
from isocompute.law.law import fit_law
from isocompute.law.store import read_law, write_law
from tests.planner.made_up import sweep_curves


def bent(name: str, *, late: float, level: float = 0.0, last: float = 2.0**12) -> Curve:
    """.05 a doubling up to a quarter of its compute, then `late` a doubling; 48 points, four a doubling."""
    x_C = np.arange(0.0, np.log2(last) + 0.125, 0.25)
    turn = np.log2(last) - 2.0
    return Curve(name, 2.0**x_C, level + 0.05 * np.minimum(x_C, turn) + late * np.maximum(x_C - turn, 0.0), 32, 8)


def sparse(*doublings_before: float) -> Curve:
    """Four points at the beginning, and some so many doublings before the end, rising by .03 a doubling."""
    x_C = np.array([0.0, 1.0, 2.0, 3.0, *(12.0 - before for before in sorted(doublings_before, reverse=True))])
    return Curve("a", 2.0**x_C, 0.03 * x_C, 32, 8)


@pytest.mark.parametrize("late", [0.02, 0.007, -0.01])
def test_it_is_the_slope_of_the_last_two_doublings_alone(late: float) -> None:
    assert last_trend([bent("a", late=late)]) == pytest.approx(late)


def test_it_is_the_slope_that_numpy_finds() -> None:
    curve = bent("a", late=0.01)
    noisy_C = curve.values_C + 0.01 * np.random.default_rng(0).standard_normal(len(curve.values_C))
    x_C = np.log2(curve.compute_C)
    late_C = x_C >= x_C[-1] - 2.0
    assert last_trend([Curve("a", curve.compute_C, noisy_C)]) == pytest.approx(
        np.polyfit(x_C[late_C], noisy_C[late_C], 1)[0]
    )


def test_seeds_at_different_levels_that_end_at_different_places_have_one_slope() -> None:
    """A longer run at a lower level would tilt a slope through all points."""
    long, short = bent("a", late=0.02, level=-0.2), bent("b", late=0.02, level=0.2)
    assert last_trend([long, short.until(45)]) == pytest.approx(0.02)


def test_a_run_that_ended_long_before_the_others_says_nothing() -> None:
    assert last_trend([bent("a", late=0.02), bent("b", late=0.3, last=2.0**6)]) == pytest.approx(0.02)


@pytest.mark.parametrize(
    ("doublings_before", "known"),
    [
        ((0.0, 0.4, 0.8, 1.2), True),
        ((0.0, 0.5, 1.2), False),  # three points
        ((0.0, 0.2, 0.4, 0.6, 0.8), False),  # less than a doubling apart
        ((0.0, 0.5, 1.0, 2.5), False),  # the fourth lies too far back
    ],
)
def test_it_takes_four_points_that_are_a_doubling_apart(doublings_before: tuple[float, ...], known: bool) -> None:
    found = last_trend([sparse(*doublings_before)])
    assert found == (pytest.approx(0.03) if known else None)


def test_two_points_of_each_of_two_seeds_are_four() -> None:
    assert last_trend([sparse(0.0, 1.5), sparse(0.0, 1.5)]) == pytest.approx(0.03)


def test_records_have_none() -> None:
    """The records of noise rise."""
    curves = sweep_curves(1e5)
    assert all(fit.trend is not None for fit in fit_law(curves, metric="m", replicates=50).settings)
    assert all(fit.trend is None for fit in fit_law(curves, metric="m", replicates=50, points="records").settings)


def test_a_stored_law_keeps_it_and_older_files_have_none(tmp_path: Path) -> None:
    law = fit_law(sweep_curves(1e5), metric="m", replicates=50)
    path = tmp_path / "law.json"
    write_law(law, path)
    assert [fit.trend for fit in read_law(path).settings] == [fit.trend for fit in law.settings]
    older = json.loads(path.read_text())
    for setting in older["settings"]:
        del setting["trend"]
    path.write_text(json.dumps(older))
    assert all(fit.trend is None for fit in read_law(path).settings)


def test_its_example_runs() -> None:
    assert doctest.testmod(trend).attempted and not doctest.testmod(trend).failed
