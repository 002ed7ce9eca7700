"""Few points that say the same as many: against Gauss's own nodes, against scipy on all points, and end to end."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.polynomial.legendre import leggauss
from scipy.optimize import least_squares

from isocompute.core.arrays import Array
from isocompute.law import Curve, fit_law
from isocompute.law import strands as strands_module
from isocompute.law.condense import NODES, TOLERANCE, condense
from isocompute.law.families import FAMILIES, HILL
from isocompute.law.fits import fit_groups
from isocompute.law.product import product
from isocompute.law.rows import Rows
from tests.law.made_up import exponential, hill, noisy

GRIDS = {
    "log-spaced": np.geomspace(100.0, 2e5, 200),
    "every step": np.arange(1.0, 201.0) * 64,
    "from the base model": np.arange(0.0, 150.0) * 64,
    "sixty": np.linspace(1.0, 60.0, 60),
    "six decades": np.geomspace(1.0, 1e6, 200),
    "eight decades": np.geomspace(1.0, 1e8, 200),
    "every step of five decades": np.arange(1.0, 2e5, 700.0),
    "evaluated four times": np.repeat(np.geomspace(1.0, 1e3, 48), 4),
    "with a gap": np.concatenate([np.geomspace(1.0, 10.0, 100), np.linspace(900.0, 1000.0, 100)]),
}


def test_the_nodes_of_even_points_are_gausss() -> None:
    found = condense(np.exp(np.linspace(-1.0, 1.0, 20_000)))
    assert found is not None
    nodes, weights = leggauss(NODES)
    np.testing.assert_allclose(np.log(found.compute_M), nodes, atol=2e-4)
    np.testing.assert_allclose(found.weights_M / 10_000, weights, rtol=2e-3)


@pytest.mark.parametrize("name", GRIDS)
@settings(max_examples=15, deadline=None)
@given(st.lists(st.floats(-1.0, 1.0), min_size=NODES, max_size=NODES), st.integers(0, 10**6))
def test_sums_of_squares_are_those_of_all_points(name: str, coefficients: list[float], seed: int) -> None:
    """Around any two polynomials they differ by the same amount as they do on all points."""
    compute_C = GRIDS[name]
    found = condense(compute_C)
    assert found is not None
    values_C = np.random.default_rng(seed).standard_normal(len(compute_C))
    positive_C = np.log(compute_C[compute_C > 0])
    scale = (positive_C.min(), np.ptp(positive_C))

    def polynomial(compute: Array) -> Array:
        x = 2.0 * (np.log(np.maximum(compute, compute_C[compute_C > 0].min())) - scale[0]) / scale[1] - 1.0
        return np.asarray(np.polynomial.chebyshev.chebval(x, coefficients))

    whole = [float(((values_C - around) ** 2).sum()) for around in (polynomial(compute_C), 0.0)]
    few_M = values_C @ found.project_CM
    few = [float((found.weights_M * (few_M - around) ** 2).sum()) for around in (polynomial(found.compute_M), 0.0)]
    assert few[0] - few[1] == pytest.approx(whole[0] - whole[1], rel=1e-8, abs=1e-8)
    assert found.weights_M.sum() == pytest.approx(len(compute_C))
    assert (found.weights_M > 0).all()


def test_short_curves_and_the_base_model_stay_as_they_are() -> None:
    assert condense(np.linspace(1.0, 40.0, 40)) is None
    found = condense(GRIDS["from the base model"])
    assert found is not None
    assert found.compute_M[0] == 0.0 and found.weights_M[0] == 1.0
    assert found.project_CM[0].tolist() == [1.0] + [0.0] * NODES


def test_points_at_few_compute_values_stay_as_they_are() -> None:
    """There are no more orthogonal polynomials on them than values."""
    ten = np.repeat(np.geomspace(1.0, 1e3, 10), 20)
    assert condense(ten) is None
    assert condense(np.repeat(np.geomspace(1.0, 1e3, 47), 4)) is None
    assert condense(np.full(200, 5.0)) is None
    bunched = np.sort(ten * (1.0 + 1e-12 * np.random.default_rng(0).random(200)))
    assert len(np.unique(bunched)) > 100
    assert condense(bunched) is None


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.float32, ">f8"])
def test_numbers_of_any_kind_are_numbers(kind: npt.DTypeLike) -> None:
    compute_C = GRIDS["every step"][:100]
    values_C = (100 * hill(compute_C, 0.3, 0.6, 2e3, 1.2)).round()
    plain, other = (Curve("a", compute_C.astype(k), values_C.astype(k)) for k in (np.float64, kind))
    mine, theirs = (fit_groups([[curve]], replicates=20)[0].ensemble for curve in (other, plain))
    np.testing.assert_array_equal(mine.theta_BK, theirs.theta_BK)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.name)
@pytest.mark.parametrize("name", [name for name in GRIDS if name != "from the base model"])
def test_curves_up_to_the_steepest_are_polynomials_enough(name: str, family: object) -> None:
    """What a fit sees of a curve and of its slopes by θ, from the condensed points, is what all points show."""
    compute_C = GRIDS[name]
    found = condense(compute_C)
    assert found is not None
    (each,) = [f for f in FAMILIES if f is family]
    theta_SK = each.grid(float(compute_C[-1] / compute_C[0]))
    theta_SK = theta_SK[each.steepness(theta_SK.T) <= found.steepest]
    if each is not HILL and found.steepest < 2.0:
        assert not len(theta_SK)  # all are fitted to all points
        return
    theta_K = theta_SK.T[:, :, None]
    x_C, x_M = (each.coordinate(c / compute_C[0])[None] for c in (compute_C, found.compute_M))
    g_C, g_M = each.shape(x_C, theta_K), each.shape(x_M, theta_K)
    pairs = [(g_C, g_M), *zip(each.slopes(x_C, theta_K, g_C), each.slopes(x_M, theta_K, g_M), strict=True)]
    for whole_SC, few_SM in pairs:
        centred_SC = whole_SC - whole_SC.mean(axis=1, keepdims=True)
        seen_SC = (found.weights_M * (few_SM - whole_SC.mean(axis=1, keepdims=True))) @ found.project_CM.T
        size_S = np.linalg.norm(centred_SC, axis=1)
        error_S = np.linalg.norm(centred_SC - seen_SC, axis=1)
        assert (error_S <= 1.5 * TOLERANCE * np.maximum(size_S, 1e-2 * size_S.max())).all()


def test_a_fit_to_the_condensed_points_is_scipys_to_all_points() -> None:
    compute_C, truth = GRIDS["log-spaced"] / 100.0, (0.3, 0.62, 60.0, 1.4)
    found = condense(compute_C)
    assert found is not None
    rng = np.random.default_rng(0)
    values_RC = hill(compute_C, *truth) + 0.01 * rng.standard_normal((12, len(compute_C)))
    few_RM = values_RC @ found.project_CM

    def best(compute: Array, values: Array, weights: Array) -> Array:
        def residual(p: Array) -> Array:
            return np.sqrt(weights) * (hill(compute, p[0], p[1], np.exp(p[2]), np.exp(p[3])) - values)

        start = [0.3, 0.6, np.log(50.0), np.log(1.5)]
        return np.asarray(least_squares(residual, start, xtol=1e-14, ftol=1e-14, gtol=1e-14).x)

    whole_RP = np.array([best(compute_C, values_C, np.ones_like(compute_C)) for values_C in values_RC])
    few_RP = np.array([best(found.compute_M, values_M, found.weights_M) for values_M in few_RM])
    assert (np.abs(few_RP - whole_RP) <= TOLERANCE * whole_RP.std(axis=0)).all()


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


def test_the_law_is_that_of_all_points(monkeypatch: pytest.MonkeyPatch) -> None:
    few = fit_law(curves(), metric="avg@4", replicates=60)
    monkeypatch.setattr(strands_module, "condense", lambda _: None)
    whole = fit_law(curves(), metric="avg@4", replicates=60)
    last = np.array([1e3, 1e4, 2e5])
    for mine, theirs in zip(few.settings, whole.settings, strict=True):
        np.testing.assert_allclose(mine.at(last), theirs.at(last), rtol=1e-6)
        values_BC, other_BC = mine.ensemble.at(last), theirs.ensemble.at(last)
        assert (np.abs(values_BC - other_BC) <= 0.01 * other_BC.std(axis=0)).all()
        ceiling_B = theirs.ensemble.ceiling_B
        assert np.mean(np.abs(mine.ensemble.ceiling_B - ceiling_B) <= 0.01 * ceiling_B.std()) > 0.98
    assert few.surface is not None and whole.surface is not None
    n = np.array([[8.0], [24.0], [64.0]])
    got, wanted = (law.surface.at(last, n, np.array([1.0])) for law in (few, whole) if law.surface)
    np.testing.assert_allclose(got, wanted, atol=1e-5)


@pytest.mark.parametrize("decades", [6, 8])
def test_replicates_over_wide_compute_are_those_of_all_points(decades: int, monkeypatch: pytest.MonkeyPatch) -> None:
    log = np.geomspace(1.0, 10.0**decades, 200)
    middle = 10.0 ** (decades / 2)
    truths = [exponential(log, 0.6, 0.3, middle), 0.6 - 0.3 * (1 + log) ** -0.3, hill(log, 0.3, 0.6, middle, 0.8)]
    groups = [[noisy(f"{i}", log, truth, noise=0.01, seed=i)] for i, truth in enumerate(truths)]
    few = fit_groups(groups, replicates=200)
    monkeypatch.setattr(strands_module, "condense", lambda _: None)
    for mine, theirs, form in zip(
        few, fit_groups(groups, replicates=200), ("exponential", "power", "hill"), strict=True
    ):
        assert theirs.family.name == form
        values_BC, other_BC = mine.ensemble.at(log), theirs.ensemble.at(log)
        assert (np.abs(values_BC - other_BC) <= TOLERANCE * other_BC.std(axis=0)).all()


@pytest.mark.parametrize(
    ("span", "truth"),
    [
        (1e6, lambda log, i: exponential(log, 0.6, 0.3, 300.0 * 4.0**i)),
        # The joint fit is soft enough for the condensed points; those without one n are not.
        (1e4, lambda log, i: hill(log, 0.3, 0.6, 100.0, (0.5, 2.6, 2.6, 0.5)[i])),
    ],
    ids=["too wide", "too steep where one n is left out"],
)
def test_the_surface_is_that_of_all_points(
    span: float, truth: Callable[[Array, int], Array], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = np.geomspace(1.0, span, 200)
    runs = [noisy(f"{i}", log, truth(log, i), noise=0.01, seed=i, rollouts_per_problem=8 * 2**i) for i in range(4)]
    few = fit_law(runs, metric="avg@4", replicates=5).surface
    monkeypatch.setattr(strands_module, "condense", lambda _: None)
    whole = fit_law(runs, metric="avg@4", replicates=5).surface
    assert few is not None and whole is not None
    assert few.family is whole.family
    np.testing.assert_allclose(few.coefficients_Q, whole.coefficients_Q, rtol=1e-5, atol=1e-5)
    mine, theirs = ([each.rmse for each in surface.left_out] for surface in (few, whole))
    np.testing.assert_allclose(mine, theirs, rtol=1e-5)


def test_squares_of_seeds_are_those_of_their_points() -> None:
    """Seeds at the same compute are fitted as their mean; the sum of squares is still that of every point."""
    log = GRIDS["log-spaced"]
    seeds = [
        noisy(f"{i}", log[: 200 - 40 * (i == 2)], np.full(200 - 40 * (i == 2), 0.5), noise=0.1, seed=i)
        for i in range(4)
    ]
    rows = Rows.of([seeds, seeds[:1]])
    weights_GN = rows.real_GN * np.random.default_rng(0).uniform(0.3, 1.0, rows.real_GN.shape)
    assert rows.compute_GC.shape[1] == 360
    for family in FAMILIES:
        fits = rows.solve(family, weights_GN, 1.0)
        residual_GN = rows.values_GN - rows.at(family, fits)
        np.testing.assert_allclose((weights_GN * residual_GN**2).sum(axis=1), fits.sse_R, rtol=1e-9)


def test_seeds_weigh_as_their_points_do() -> None:
    """A setting of three equal seeds has the curve of one of them."""
    log = GRIDS["log-spaced"]
    one = noisy("a", log, hill(log, 0.3, 0.6, 5e3, 1.2), noise=0.01, seed=0)
    pooled, alone = fit_groups([[one, one, one], [one]], replicates=50)
    np.testing.assert_allclose(pooled.at(log), alone.at(log), rtol=1e-6)


def test_products_are_matrix_products() -> None:
    rng = np.random.default_rng(0)
    for rows, inner, columns in ((1, 3, 2), (700, 32, 192), (5, 600, 700)):
        a, b = rng.standard_normal((rows, inner)), rng.standard_normal((inner, columns))
        np.testing.assert_allclose(product(a, b), a @ b, rtol=1e-10, atol=1e-10)
