"""Sensitivity to n: the best minus the worst of several noisy values, corrected for the bias by noise."""

from __future__ import annotations

import numpy as np
import pytest

from isocompute.core.curve import Curve
from isocompute.law.fits import fit_groups
from isocompute.law.frontier import Slice, sensitivity
from isocompute.law.law import fit_law
from isocompute.law.posterior import basic

GRID = np.geomspace(1e4, 1e6, 25)
ROLLOUTS = (4, 8, 16, 32, 64, 128)


def runs_of(rng: np.random.Generator, lead: float) -> list[Curve]:
    """One run of every n, the larger half of which is better by `lead`."""
    out = []
    for i, n in enumerate(ROLLOUTS):
        values_C = 0.3 + (0.3 + lead * (i > 2)) * (1 - np.exp(-GRID / 1.5e5)) + 0.005 * rng.standard_normal(25)
        out.append(Curve(f"{n}", GRID, values_C, 32, n, 0))
    return out


def slice_of(rng: np.random.Generator, lead: float, *, seeds: bool = False) -> Slice:
    """Of the runs themselves, or of means over seeds."""
    (found,) = sensitivity(
        fit_groups([[run] for run in runs_of(rng, lead)], replicates=200, upper=1.0, with_seeds=seeds)
    )
    return found


@pytest.mark.parametrize("lead", [0.0, 0.005, 0.02])
def test_intervals_hold_the_true_range(lead: float) -> None:
    rng = np.random.default_rng(1)
    found = [slice_of(rng, lead) for _ in range(20)]
    covered = [low <= lead * (1 - np.exp(-1e6 / 1.5e5)) <= high for low, high in (s.range_interval for s in found)]
    assert sum(covered) >= 15
    assert np.mean([s.range for s in found]) == pytest.approx(lead, abs=0.004)
    assert all(low <= s.range <= high for s in found for low, high in [s.range_interval])


def test_one_seed_of_every_n_cannot_show_a_small_range() -> None:
    found = slice_of(np.random.default_rng(0), 0.01, seeds=True)
    assert found.range_interval[0] == 0.0
    assert slice_of(np.random.default_rng(0), 0.02).range_interval[0] > 0.0
    (slice_of_n,) = fit_law(runs_of(np.random.default_rng(0), 0.01), metric="avg@4", replicates=200).slices
    assert slice_of_n.range_interval[0] == 0.0


def test_half_of_what_the_best_of_equals_is_too_good_by_is_taken_off() -> None:
    """Three values of 0 with noise 1: their best is .846 too good; their replicates lie around unequal values."""
    rng = np.random.default_rng(0)
    seen = [rng.standard_normal(3) for _ in range(400)]
    best = [basic(lambda v: v.max(axis=0), v, v[:, None] + rng.standard_normal((3, 200)))[0] for v in seen]
    assert np.mean([v.max() for v in seen]) == pytest.approx(0.846, abs=0.1)
    assert 0 < np.mean(best) < 0.55 * 0.846


def test_without_replicates_the_estimate_stands_alone() -> None:
    assert basic(lambda v: np.ptp(v, axis=0), np.array([1.0, 3.0]), np.empty((2, 0))) == (2.0, (2.0, 2.0))


def test_a_setting_that_begins_after_the_others_end_is_in_no_slice() -> None:
    late = GRID * 1e3
    curves = [Curve(str(n), x, 0.3 + 0.3 * (1 - np.exp(-x / 1.5e5)), 32, n, 0) for n, x in ((8, GRID), (16, late))]
    curves[1] = Curve("16", late, np.linspace(0.3, 0.6, 25), 32, 16, 0)
    assert sensitivity(fit_groups([[c] for c in curves], replicates=50, upper=1.0)) == []
