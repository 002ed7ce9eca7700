"""The batched solver against scipy, finite differences and closed forms."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import least_squares

from isocompute.core.arrays import Array
from isocompute.law.solver import FAMILIES, HILL, Family, FitRows, evaluate, solve
from tests.law.made_up import hill

COMPUTE = np.geomspace(1.0, 120.0, 40)


def one_group(
    values_RC: Array, *, upper: float = 1.0, weights_RC: Array | None = None, pinned: bool = False
) -> FitRows:
    return FitRows(
        COMPUTE[None],
        COMPUTE[-1:],
        np.zeros(len(values_RC), dtype=np.int64),
        values_RC,
        np.ones_like(values_RC) if weights_RC is None else weights_RC,
        upper,
        pinned,
    )


def scipy_best(family: Family, values_C: Array, weights_C: Array, upper: float) -> float:
    """The best of many starts of scipy's bounded least squares over (ceiling, gain, θ)."""
    box = family.bounds(float(COMPUTE[-1]))
    grid = family.grid(float(COMPUTE[-1]))

    def residual(p: Array) -> Array:
        g = family.shape(family.coordinate(COMPUTE), p[2:])
        return np.sqrt(weights_C) * (p[0] - p[1] * (1.0 - g) - values_C)

    best = np.inf
    for start in grid[:: max(1, len(grid) // 14)]:
        found = least_squares(
            residual,
            np.r_[min(values_C.max(), upper - 1e-6), 0.2, start],
            bounds=(np.r_[-5.0, 0.0, box[:, 0] - 1e-9], np.r_[upper, 5.0, box[:, 1] + 1e-9]),
            xtol=1e-12,
            ftol=1e-12,
        )
        best = min(best, 2.0 * float(found.cost))
    return best


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.name)
def test_derivatives_match_finite_differences(family: Family) -> None:
    rng = np.random.default_rng(0)
    box = family.bounds(120.0)
    theta_RK = box[:, 0] + rng.uniform(0.2, 0.8, (6, len(box))) * (box[:, 1] - box[:, 0])
    x, theta_K = family.coordinate(COMPUTE)[None], theta_RK.T[:, :, None]
    for k, derivative in enumerate(family.slopes(x, theta_K, family.shape(x, theta_K))):
        step = np.zeros((len(box), 1, 1))
        step[k] = 1e-6
        numeric = (family.shape(x, theta_K + step) - family.shape(x, theta_K - step)) / 2e-6
        np.testing.assert_allclose(derivative, numeric, atol=1e-8)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.name)
def test_shapes_rise_from_zero_to_one(family: Family) -> None:
    theta_SK = family.grid(120.0)
    compute = np.array([0.0, *np.geomspace(1e-3, 1e9, 60)])
    g_SC = family.shape(family.coordinate(compute)[None], theta_SK.T[:, :, None])
    assert (np.diff(g_SC, axis=1) >= -1e-12).all()
    np.testing.assert_allclose(g_SC[:, 0], 0.0, atol=2e-2)  # the flattest Hill curves start slowly
    assert (g_SC <= 1.0 + 1e-12).all()


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.name)
def test_never_worse_than_scipy(family: Family) -> None:
    rng = np.random.default_rng(1)
    rows = []
    for _ in range(6):
        base, gain = rng.uniform(0.1, 0.5), rng.uniform(-0.05, 0.45)
        rows.append(hill(COMPUTE, base, base + gain, 10 ** rng.uniform(0.2, 2.2), rng.uniform(0.5, 4.0)))
    values_RC = np.array(rows) + 0.01 * rng.standard_normal((6, len(COMPUTE)))
    weights_RC = rng.integers(0, 3, size=values_RC.shape).astype(float)
    fits = solve(family, one_group(values_RC, weights_RC=weights_RC))
    for row in range(6):
        assert fits.sse_R[row] <= scipy_best(family, values_RC[row], weights_RC[row], 1.0) * (1 + 1e-3)


def test_recovers_scalerl_parameters_without_noise() -> None:
    truth = (0.4017, 0.6446, 10.92, 1.682)  # the curve ScaleRL draws through its 8B run
    fits = solve(HILL, one_group(hill(COMPUTE, *truth)[None]))
    got = (fits.base_R[0], fits.ceiling_R[0], *np.exp(fits.theta_RK[0]))
    np.testing.assert_allclose(got, truth, rtol=1e-4)


def test_sum_of_squares_belongs_to_the_returned_curve() -> None:
    rng = np.random.default_rng(2)
    values_RC = 0.5 + 0.1 * rng.standard_normal((5, len(COMPUTE)))
    for family in FAMILIES:
        fits = solve(family, one_group(values_RC))
        curve_RC = evaluate(family, fits, COMPUTE[None])
        np.testing.assert_allclose(((values_RC - curve_RC) ** 2).sum(axis=1), fits.sse_R, rtol=1e-9)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.floats(-2.0, 3.0), min_size=40, max_size=40),
    st.sampled_from(FAMILIES),
    st.sampled_from([1.0, 3.5, np.inf]),
)
def test_any_data_give_a_monotone_curve_below_the_bound(values: list[float], family: Family, upper: float) -> None:
    values_RC = np.minimum(np.array([values]), upper)
    fits = solve(family, one_group(values_RC, upper=upper))
    curve_C = evaluate(family, fits, COMPUTE[None])[0]
    assert np.isfinite(curve_C).all()
    assert (np.diff(curve_C) >= -1e-9).all()
    assert fits.ceiling_R[0] <= upper + 1e-9
    # Never worse than the best constant, which every family contains.
    assert fits.sse_R[0] <= ((values_RC - values_RC.mean()) ** 2).sum() * (1 + 1e-9) + 1e-12


def test_weights_are_repetitions() -> None:
    rng = np.random.default_rng(3)
    values_C = hill(COMPUTE, 0.3, 0.6, 12.0, 1.5) + 0.01 * rng.standard_normal(40)
    weights_C = rng.integers(0, 4, 40)
    weighted = solve(HILL, one_group(values_C[None], weights_RC=weights_C[None].astype(float)))
    index = np.repeat(np.arange(40), weights_C)
    repeated = solve(
        HILL,
        FitRows(
            COMPUTE[None, index] / COMPUTE[0],
            COMPUTE[-1:],
            np.zeros(1, dtype=np.int64),
            values_C[None, index],
            np.ones((1, len(index))),
            1.0,
        ),
    )
    np.testing.assert_allclose(weighted.ceiling_R, repeated.ceiling_R, rtol=1e-6)
    np.testing.assert_allclose(weighted.sse_R, repeated.sse_R, rtol=1e-6)


def test_pinned_ceiling_is_held_and_optimal() -> None:
    rng = np.random.default_rng(4)
    values_C = hill(COMPUTE, 0.3, 0.6, 12.0, 1.5) + 0.005 * rng.standard_normal(40)
    fits = solve(HILL, one_group(values_C[None], upper=0.66, pinned=True))
    assert fits.ceiling_R[0] == pytest.approx(0.66, abs=1e-12)

    def residual(p: Array) -> Array:
        return hill(COMPUTE, p[0], 0.66, np.exp(p[1]), np.exp(p[2])) - values_C

    scipy_found = min(
        (least_squares(residual, [0.3, np.log(m), np.log(b)]) for m in (5.0, 20.0) for b in (0.7, 2.0)),
        key=lambda found: found.cost,
    )
    assert fits.sse_R[0] <= 2 * scipy_found.cost * (1 + 1e-4)


def test_rows_do_not_depend_on_their_batch() -> None:
    rng = np.random.default_rng(5)
    values_RC = hill(COMPUTE, 0.3, 0.6, 12.0, 1.5) + 0.01 * rng.standard_normal((7, 40))
    together = solve(HILL, one_group(values_RC))
    alone = solve(HILL, one_group(values_RC[3:4]))
    np.testing.assert_allclose(together.theta_RK[3], alone.theta_RK[0], rtol=1e-5)
