"""What neighbouring settings say of a setting."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import isocompute
from isocompute.law import Curve, fit_law
from isocompute.plan.api import next_cells
from isocompute.plan.load_law import load_law
from isocompute.plan.neighbours import LENGTH_PROBLEMS, LENGTH_ROLLOUTS, borrow
from tests.plan.made_up import sweep_curves

ROLLOUTS = 2.0 ** np.arange(3, 10)
PROBLEMS = np.full(7, 32.0)
HILL = 0.6 - 0.004 * (np.log2(ROLLOUTS) - 6) ** 2


def members(mean_A: np.ndarray, error: float | np.ndarray, count: int = 400, seed: int = 0) -> np.ndarray:
    """Draws around the means, exactly centred and of exactly this error, whatever all share taken out."""
    noise_AB = np.random.default_rng(seed).standard_normal((len(mean_A), count))
    noise_AB -= noise_AB.mean(axis=1, keepdims=True)
    noise_AB /= noise_AB.std(axis=1, keepdims=True)
    return mean_A[:, None] + np.broadcast_to(error, mean_A.shape)[:, None] * noise_AB


def test_it_is_the_gaussian_posterior_under_a_level_that_nobody_knows() -> None:
    """Against the textbook's conditional of one joint normal distribution, the level a variable of huge variance."""
    rng = np.random.default_rng(5)
    rollouts_A, problems_A = np.tile(ROLLOUTS[:4], 2), np.repeat([32.0, 128.0], 4)
    at = np.stack([np.log2(problems_A) / LENGTH_PROBLEMS, np.log2(rollouts_A) / LENGTH_ROLLOUTS], axis=1)
    like_AA = np.exp(-0.5 * ((at[:, None] - at[None]) ** 2).sum(axis=2))
    mean_A, count = 0.5 + 0.02 * rng.standard_normal(8), 40_000
    values_AB = members(mean_A, np.linspace(0.005, 0.03, 8), count)
    values_AB = values_AB + 0.05 * rng.standard_normal(count)  # what all share says nothing of one against another
    noise_AA = np.diag(np.linspace(0.005, 0.03, 8) ** 2)

    def posterior(scale: float) -> tuple[float, np.ndarray, np.ndarray]:
        prior_AA = scale * mean_A.var() * like_AA + 1.0  # the level's variance
        total_AA = prior_AA + noise_AA
        off_A = mean_A - 0.5
        _, size = np.linalg.slogdet(total_AA)
        likely = -0.5 * (off_A @ np.linalg.inv(total_AA) @ off_A + size)
        gain_AA = prior_AA @ np.linalg.inv(total_AA)
        return likely, 0.5 + gain_AA @ off_A, prior_AA - gain_AA @ prior_AA

    likely_S, expected_SA, covariance_SAA = map(np.array, zip(*(posterior(4.0**k) for k in range(-2, 4)), strict=True))
    chance_S = np.exp(likely_S - likely_S.max())
    chance_S /= chance_S.sum()
    out_AB, expected_A = borrow(values_AB, problems_A, rollouts_A), chance_S @ expected_SA
    out_AB = out_AB - (values_AB - members(mean_A, np.linspace(0.005, 0.03, 8), count))
    off_SA = expected_SA - expected_A
    covariance_AA = np.einsum("s,sab->ab", chance_S, covariance_SAA + off_SA[:, :, None] * off_SA[:, None, :])
    assert chance_S.max() < 0.9, "several scales count"
    assert out_AB.mean(axis=1) == pytest.approx(expected_A, abs=2e-4)
    assert np.cov(out_AB) == pytest.approx(covariance_AA, abs=0.03 * covariance_AA.max())


def test_a_lucky_setting_leans_on_its_neighbours_and_a_precise_one_does_not() -> None:
    lucky_A = HILL + 0.02 * (ROLLOUTS == 256)
    vague, sure = (borrow(members(lucky_A, e), PROBLEMS, ROLLOUTS).mean(axis=1) for e in (0.008, 0.0002))
    assert lucky_A.argmax() == 5 and vague.argmax() < 5 and sure.argmax() == 5
    assert np.abs(sure - lucky_A).max() < 0.001
    only_that = borrow(members(lucky_A, np.where(ROLLOUTS == 256, 0.03, 0.001)), PROBLEMS, ROLLOUTS).mean(axis=1)
    assert only_that == pytest.approx(HILL, abs=0.004)


@given(seed=st.integers(0, 10_000), scale=st.floats(0.01, 1e4), level=st.floats(-100, 100))
def test_units_do_not_matter(seed: int, scale: float, level: float) -> None:
    values_AB = members(HILL + 0.01 * np.random.default_rng(seed).standard_normal(7), 0.01, 50, seed)
    out_AB = borrow(values_AB, PROBLEMS, ROLLOUTS)
    assert borrow(level + scale * values_AB, PROBLEMS, ROLLOUTS) == pytest.approx(
        level + scale * out_AB, abs=1e-6 * (scale + abs(level))
    )
    assert (np.linspace(0, 1, 7) @ (out_AB - values_AB)).std() < 1, "finite"


def test_what_cannot_be_compared_stays_as_it_is() -> None:
    two_AB = members(HILL[:2], 0.01)
    assert borrow(two_AB, PROBLEMS[:2], ROLLOUTS[:2]) is two_AB
    same_AB = np.full((5, 20), 0.3)
    assert borrow(same_AB, PROBLEMS[:5], ROLLOUTS[:5]) is same_AB


def test_it_loses_less_than_following_the_highest_value() -> None:
    """Noise of one seed on a hill: what is lost against the top, over 300 sweeps."""
    rng = np.random.default_rng(9)
    lost = []
    for _ in range(300):
        values_AB = members(HILL + 0.007 * rng.standard_normal(7), 0.007, 60)
        found = borrow(values_AB, PROBLEMS, ROLLOUTS).mean(axis=1).argmax()
        lost.append(HILL.max() - HILL[[values_AB.mean(axis=1).argmax(), found]])
    raw, leaning = np.mean(lost, axis=0)
    assert leaning < 0.7 * raw


def test_members_cover_what_is_true() -> None:
    """Truths drawn from the model itself: 80% intervals of all settings hold them in about 80% of cases."""
    rng = np.random.default_rng(2)
    apart = (np.log2(ROLLOUTS)[:, None] - np.log2(ROLLOUTS)) / LENGTH_ROLLOUTS
    root = np.linalg.cholesky(0.02**2 * np.exp(-0.5 * apart**2) + 1e-12 * np.eye(7))
    held = []
    for draw in range(150):
        true_A = 0.5 + root @ rng.standard_normal(7)
        out_AB = borrow(members(true_A + 0.01 * rng.standard_normal(7), 0.01, 300, draw), PROBLEMS, ROLLOUTS, seed=draw)
        low_A, high_A = np.quantile(out_AB, [0.1, 0.9], axis=1)
        held.append((low_A <= true_A) & (true_A <= high_A))
    assert 0.75 < np.mean(held) < 0.9


def test_plans_of_runs_borrow_and_those_of_published_curves_do_not() -> None:
    law = load_law(fit_law(sweep_curves(1e6), metric="m", replicates=60))
    assert law.borrows and not load_law("isocompute/bp32-easy").borrows
    alone, borrowed = (isocompute.plan(budget=5e5, law=replace(law, borrows=b)) for b in (False, True))
    apart = np.abs(alone.values_AB.mean(axis=1) - borrowed.values_AB.mean(axis=1))
    assert 0 < apart.max() < law.seed_error
    both = {option.allocation: option.ranked for option in (alone.chosen, *alone.alternatives)}
    for option in (borrowed.chosen, *borrowed.alternatives):  # what each is expected to reach is its own
        if option.allocation in both:
            assert option.ranked.value == pytest.approx(both[option.allocation].value, abs=1e-9)
            assert option.ranked.interval == pytest.approx(both[option.allocation].interval, abs=1e-9)


def lucky_sweep(lead: float) -> list[Curve]:
    """One seed of n = 8…512 on a hill with its top at 64, of which n = 256 had luck."""
    compute_C = np.geomspace(2e4, 1e6, 24)
    out = []
    for n, top in zip(ROLLOUTS, HILL, strict=True):
        values_C = top + (lead if n == 256 else 0.0) - 0.2 * np.exp(-compute_C / 1e5)
        noise_C = 0.002 * np.random.default_rng(int(n)).standard_normal(24)
        out.append(Curve(f"n{n:g}", compute_C, values_C + noise_C, 32, int(n), seed=0))
    return out


def test_a_setting_that_measured_higher_by_itself_is_named() -> None:
    law = load_law(fit_law(lucky_sweep(0.022), metric="avg@4", replicates=100))
    plan = isocompute.plan(budget=1e6, law=law)
    (warning,) = [w for w in plan.warnings if w.code == "neighbours"]
    assert plan.allocation.rollouts_per_problem in (64, 128)
    assert "32 × 256 measured higher by itself" in warning.message
    assert isocompute.plan(budget=1e6, law=replace(law, borrows=False)).allocation.rollouts_per_problem == 256
    calm = isocompute.plan(budget=1e6, law=fit_law(lucky_sweep(0.0), metric="avg@4", replicates=100))
    assert "neighbours" not in {w.code for w in calm.warnings}


def test_a_look_at_one_setting_teaches_of_its_neighbours() -> None:
    """With what neighbours share a look is worth no less for a decision between them than it costs to be certain."""
    law = load_law(fit_law(sweep_curves(2e5), metric="m", replicates=100))
    plan = isocompute.plan(budget=1e6, law=law, extrapolate=True)
    proposals = next_cells(plan, 2)
    assert proposals and all(0 < p.gain < 0.1 for p in proposals)
