"""Fits to the means of at most 48 bins differ from fits to all points by a fraction of the latter's error."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isocompute.core.curve import Curve
from isocompute.law import fits as fits_module
from isocompute.law.fits import bins_of, fit_groups
from isocompute.law.law import fit_law
from isocompute.law.solver import FAMILIES
from tests.law.made_up import exponential, hill, noisy

GRIDS = {
    "log-spaced": np.geomspace(100.0, 2e5, 200),
    "every step": np.arange(1.0, 201.0) * 64,
    "from the base model": np.arange(0.0, 150.0) * 64,
    "six decades": np.geomspace(1.0, 1e6, 200),
    "with a gap": np.concatenate([np.geomspace(1.0, 10.0, 100), np.linspace(900.0, 1000.0, 100)]),
}


@given(st.lists(st.sampled_from(np.geomspace(1.0, 1e6, 400).tolist()), min_size=1, max_size=300))
@settings(max_examples=50, deadline=None)
def test_bins_are_few_and_in_order_of_compute(compute: list[float]) -> None:
    bin_N = bins_of(np.array([0.0, *compute]))
    assert set(bin_N.tolist()) == set(range(bin_N.max() + 1)) and bin_N.max() < 48
    assert bin_N[0] == 0 and (bin_N[1:] > 0).all()  # the base model stays on its own
    order = np.argsort([0.0, *compute], kind="stable")
    assert (np.diff(bin_N[order]) >= 0).all()
    if len(set(compute)) < 48:
        assert bin_N.max() == len(set(compute))


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.float32, ">f8"])
def test_numbers_of_any_kind_are_numbers(kind: npt.DTypeLike) -> None:
    compute_C = GRIDS["every step"][:100]
    values_C = (100 * hill(compute_C, 0.3, 0.6, 2e3, 1.2)).round()
    plain, other = (Curve("a", compute_C.astype(k), values_C.astype(k)) for k in (np.float64, kind))
    mine, theirs = (fit_groups([[curve]], replicates=20)[0].ensemble for curve in (other, plain))
    np.testing.assert_array_equal(mine.theta_BK, theirs.theta_BK)


def curves() -> list[Curve]:
    """Soft, steep and unfinished curves, with seeds at the same and at different compute, and a base model."""
    log, steps = GRIDS["log-spaced"], GRIDS["from the base model"]
    made = {
        "soft": (log, hill(log, 0.3, 0.6, 5e3, 1.2), 8),
        "steep": (log, hill(log, 0.3, 0.6, 5e3, 9.0), 16),
        "unfinished": (log, exponential(log, 0.7, 0.4, 4e5), 32),
        "step": (steps, hill(np.maximum(steps, 1e-9), 0.2, 0.6, 2e3, 1.5), 64),
    }
    out = [
        noisy(f"{name}{seed}", compute, truth, noise=0.01, seed=10 * i + seed, rollouts_per_problem=n)
        for i, (name, (compute, truth, n)) in enumerate(made.items())
        for seed in range(2)
    ]
    short = GRIDS["log-spaced"][:120]
    out.append(noisy("short", short, hill(short, 0.3, 0.6, 5e3, 1.2), noise=0.01, seed=99, rollouts_per_problem=8))
    return out


def test_the_law_is_close_to_that_of_all_points(monkeypatch: pytest.MonkeyPatch) -> None:
    binned = fit_law(curves(), metric="avg@4", replicates=60)
    monkeypatch.setattr(fits_module, "_MOST_BINS", 10_000)
    whole = fit_law(curves(), metric="avg@4", replicates=60)
    at = np.array([1e3, 1e4, 2e5])
    for mine, theirs in zip(binned.settings, whole.settings, strict=True):
        error_C = theirs.ensemble.at(at).std(axis=0)
        assert (np.abs(mine.at(at) - theirs.at(at)) <= 0.25 * error_C).all()
        assert abs(mine.ceiling - theirs.ceiling) <= 0.5 * theirs.ensemble.ceiling_B.std()
    assert binned.surface is not None and whole.surface is not None
    n = np.array([[8.0], [24.0], [64.0]])
    got, wanted = (law.surface.at(at, n, np.array([1.0])) for law in (binned, whole) if law.surface)
    np.testing.assert_allclose(got, wanted, atol=0.003)  # the curves' noise is .01


@pytest.mark.parametrize("name", GRIDS)
def test_forms_and_intervals_are_those_of_all_points(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compute_C = GRIDS[name]
    middle = float(np.sqrt(compute_C[compute_C > 0][0] * compute_C[-1]))
    truths = [
        exponential(compute_C, 0.6, 0.3, middle),
        0.6 - 0.3 * (1 + compute_C / compute_C[1]) ** -0.3,
        hill(np.maximum(compute_C, 1e-9), 0.3, 0.6, middle, 0.8),
    ]
    groups = [[noisy(f"{i}", compute_C, truth, noise=0.01, seed=i)] for i, truth in enumerate(truths)]
    binned = fit_groups(groups, replicates=200)
    monkeypatch.setattr(fits_module, "_MOST_BINS", 10_000)
    for mine, theirs in zip(binned, fit_groups(groups, replicates=200), strict=True):
        assert mine.family is theirs.family
        assert all(mine.weights[f.name] == pytest.approx(theirs.weights[f.name], abs=0.01) for f in FAMILIES)
        assert abs(mine.ceiling - theirs.ceiling) <= 0.1 * theirs.ensemble.ceiling_B.std()
        assert np.ptp(mine.ceiling_interval()) == pytest.approx(np.ptp(theirs.ceiling_interval()), rel=0.06)


def test_squares_of_seeds_are_those_of_their_points() -> None:
    """Seeds at the same compute are fitted as their mean; the sum of squares is still that of every point."""
    log = GRIDS["log-spaced"]
    seeds = [
        noisy(f"{i}", log[: 200 - 40 * (i == 2)], np.full(200 - 40 * (i == 2), 0.5), noise=0.1, seed=i)
        for i in range(4)
    ]
    rows = fits_module._Rows.of([seeds, seeds[:1]])
    weights_GN = rows.real_GN * np.random.default_rng(0).uniform(0.3, 1.0, rows.real_GN.shape)
    assert rows.compute_GM.shape[1] <= 48
    for family in FAMILIES:
        fits = rows.solve(family, weights_GN, np.ones(2))
        residual_GN = rows.values_GN - rows.at(family, fits)
        np.testing.assert_allclose((weights_GN * residual_GN**2).sum(axis=1), fits.sse_R, rtol=1e-9)


def test_seeds_weigh_as_their_points_do() -> None:
    """A setting of three equal seeds has the curve of one of them."""
    log = GRIDS["log-spaced"]
    one = noisy("a", log, hill(log, 0.3, 0.6, 5e3, 1.2), noise=0.01, seed=0)
    pooled, alone = fit_groups([[one, one, one], [one]], replicates=50)
    np.testing.assert_allclose(pooled.at(log), alone.at(log), rtol=1e-6)
