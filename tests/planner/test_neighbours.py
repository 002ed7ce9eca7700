"""What neighbouring settings say of a setting."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import isocompute
from isocompute.cli.plan_display import show
from isocompute.law import Curve, fit_law
from isocompute.planner.api import next_cells, stages
from isocompute.planner.decision import rank
from isocompute.planner.load_law import load_law
from isocompute.planner.model import PlanningLaw
from isocompute.planner.neighbours import LENGTH, borrow, own_errors
from isocompute.planner.planner import Plan

ROLLOUTS = tuple(2**i for i in range(3, 10))
KEYS = [(32, n) for n in ROLLOUTS]
HILL = 0.6 - 0.004 * (np.log2(ROLLOUTS) - 6) ** 2
"""Its top is at n = 64."""


def members(mean_R: np.ndarray, error: float | np.ndarray, count: int = 400, seed: int = 0) -> np.ndarray:
    """Draws around the means, exactly centred and of exactly this error."""
    noise_RB = np.random.default_rng(seed).standard_normal((len(mean_R), count))
    noise_RB -= noise_RB.mean(axis=1, keepdims=True)
    noise_RB /= noise_RB.std(axis=1, keepdims=True)
    return mean_R[:, None] + np.broadcast_to(error, mean_R.shape)[:, None] * noise_RB


def expected(values_RB: np.ndarray, keys: list[tuple[int, int]]) -> np.ndarray:
    return borrow(values_RB, keys, keys).mean(axis=1)


def test_it_is_the_gaussian_posterior_under_a_level_that_nobody_knows() -> None:
    """Against the textbook's conditional of one joint normal distribution, the level a variable of large variance.

    Errors that all share, or that grow along n, are no neighbour's business; two settings that were not run are asked
    for, too.
    """
    rng = np.random.default_rng(5)
    measured, asked = [(bp, n) for bp in (32, 128) for n in (8, 16, 32, 64)], [(32, 16), (64, 32), (128, 512)]
    places, count = [*measured, *asked[1:]], 60_000
    at = np.log2(np.array(places)) / LENGTH
    like = np.exp(-0.5 * ((at[:, None] - at[None]) ** 2).sum(axis=2))
    mean, own = 0.5 + 0.02 * rng.standard_normal(8), 0.012
    tilt = np.log2([n for _, n in measured]) - 4.5
    shared = 0.03 * rng.standard_normal(count) + 0.01 * tilt[:, None] * rng.standard_normal(count)
    apart = members(mean, own, count)
    values, noise = apart + shared - shared.mean(axis=1, keepdims=True), own**2 * np.eye(8)
    unit = mean.var() + np.diag(noise).mean()

    def posterior(scale: float, alone: float) -> tuple[float, np.ndarray, np.ndarray]:
        prior = scale * unit * ((1 - alone) * like + alone * np.eye(10)) + 1.0  # the level's variance
        total = prior[:8, :8] + noise
        _, size = np.linalg.slogdet(total)
        likely = -0.5 * ((mean - 0.5) @ np.linalg.inv(total) @ (mean - 0.5) + size)
        gain = prior[:, :8] @ np.linalg.inv(total)
        return likely, 0.5 + gain @ (mean - 0.5), prior - gain @ prior[:8]

    tried = [posterior(4.0**k, alone) for k in range(-3, 4) for alone in (0.0, 0.03, 0.3)]
    likely_S, mean_SU, covariance_SUU = map(np.array, zip(*tried, strict=True))
    chance_S = np.exp(likely_S - likely_S.max())
    chance_S /= chance_S.sum()
    assert chance_S.max() < 0.8, "several priors count"
    mean_U = chance_S @ mean_SU
    off_SU = mean_SU - mean_U
    covariance_UU = np.einsum("s,sab->ab", chance_S, covariance_SUU + off_SU[:, :, None] * off_SU[:, None, :])
    out, rows = borrow(apart, measured, asked), [places.index(key) for key in asked]
    assert out.mean(axis=1) == pytest.approx(mean_U[rows], abs=3e-4)
    assert np.cov(out) == pytest.approx(covariance_UU[np.ix_(rows, rows)], abs=0.06 * covariance_UU.max())
    assert expected(values, measured) == pytest.approx(mean_U[:8], abs=3e-4)
    assert borrow(values, measured, measured).std(axis=1).min() > 0.03, "members keep what they share"


def test_a_lucky_setting_leans_on_its_neighbours_and_a_precise_one_does_not() -> None:
    lucky = HILL + 0.02 * (np.array(ROLLOUTS) == 256)
    vague, sure = (expected(members(lucky, error), KEYS) for error in (0.008, 0.0002))
    assert lucky.argmax() == 5 and vague.argmax() < 5 and sure.argmax() == 5
    assert np.abs(sure - lucky).max() < 0.001
    only_that = expected(members(lucky, np.where(np.array(ROLLOUTS) == 256, 0.03, 0.001)), KEYS)
    assert only_that == pytest.approx(HILL, abs=0.006)


@pytest.mark.parametrize("depth", [0.03, 0.1, 0.5])
def test_one_that_collapsed_takes_nobody_down(depth: float) -> None:
    """n = 64 is far below for sure: those beside it stay where they are, and the best of them is still the best."""
    fallen = HILL - depth * (np.array(ROLLOUTS) == 64)
    found = expected(members(fallen, 0.003), KEYS)
    assert np.abs(found - fallen).max() < 0.004
    assert ROLLOUTS[int(found.argmax())] in (32, 128)


def test_a_step_does_not_ring() -> None:
    step = np.where(np.array(ROLLOUTS) < 64, 0.4, 0.6)
    assert np.abs(expected(members(step, 0.005), KEYS) - step).max() < 0.01


def test_values_that_are_nearly_equal_are_not_sure_for_it() -> None:
    """Three settings .0002 apart whose errors are .007: a difference is off by about as much as before."""
    near = members(np.array([0.5, 0.5002, 0.4999]), 0.007, 2000)
    out = borrow(near, KEYS[:3], KEYS[:3])
    assert 0.002 < (out[0] - out[1]).std() < (near[0] - near[1]).std()


def test_a_large_error_of_one_setting_is_none_of_the_others() -> None:
    """Beside a level and a trend that all share."""
    rng, tilt = np.random.default_rng(4), np.linspace(-1, 1, 7)[:, None]
    own = np.array([0.003] * 6 + [0.1])
    values = members(HILL, own, 2000) + 0.03 * rng.standard_normal(2000) + 0.01 * tilt * rng.standard_normal(2000)
    assert own_errors(values, KEYS)[:6] == pytest.approx(0.003, rel=0.4)
    assert own_errors(values, KEYS)[6] == pytest.approx(0.1, rel=0.1)


@given(seed=st.integers(0, 10_000), scale=st.floats(0.01, 1e4), level=st.floats(-100, 100))
@settings(deadline=None, max_examples=30)
def test_units_do_not_matter(seed: int, scale: float, level: float) -> None:
    values = members(HILL + 0.01 * np.random.default_rng(seed).standard_normal(7), 0.01, 50, seed)
    out = borrow(values, KEYS, KEYS)
    assert borrow(level + scale * values, KEYS, KEYS) == pytest.approx(
        level + scale * out, abs=1e-5 * (scale + abs(level))
    )


def test_what_all_members_agree_on_stays() -> None:
    same = np.full((5, 20), 0.3)
    assert borrow(same, KEYS[:5], KEYS[:5]) == pytest.approx(0.3, abs=1e-3)


def test_it_loses_less_than_following_the_highest_value() -> None:
    """Noise of one seed on a hill: what is lost against the top, over 300 sweeps."""
    rng = np.random.default_rng(9)
    lost = []
    for _ in range(300):
        values = members(HILL + 0.007 * rng.standard_normal(7), 0.007, 60)
        lost.append(HILL.max() - HILL[[values.mean(axis=1).argmax(), expected(values, KEYS).argmax()]])
    raw, leaning = np.mean(lost, axis=0)
    assert leaning < 0.7 * raw


def test_members_cover_what_is_true() -> None:
    """Truths drawn from a smooth prior: 80% intervals of all settings hold them in about 80% of cases."""
    rng = np.random.default_rng(2)
    apart = np.subtract.outer(np.log2(ROLLOUTS), np.log2(ROLLOUTS)) / LENGTH
    root = np.linalg.cholesky(0.02**2 * np.exp(-0.5 * apart**2) + 1e-12 * np.eye(7))
    held = []
    for draw in range(150):
        true = 0.5 + root @ rng.standard_normal(7)
        out = borrow(members(true + 0.01 * rng.standard_normal(7), 0.01, 300, draw), KEYS, KEYS, seed=draw)
        low, high = np.quantile(out, [0.1, 0.9], axis=1)
        held.append((low <= true) & (true <= high))
    assert 0.75 < np.mean(held) < 0.9


def test_equals_are_told_apart_by_their_own_values() -> None:
    own = np.array([[0.3, 0.3], [0.5, 0.5], [0.5002, 0.5002]])
    alike = np.array([[0.4, 0.4001], [0.4001, 0.4], [0.4, 0.4]])
    best = rank(own, compared_AB=alike)[0]
    assert best.index == 1 and best.value == 0.5  # the earlier of two that are equal by themselves


# --- plans


def sweep(lead: float = 0.0, *, last: float = 1e6, noise: float = 0.002, seed: int = 0) -> list[Curve]:
    """One seed of n = 8…512 on the hill, of which n = 256 had luck."""
    compute = np.geomspace(2e4, last, 24)
    out = []
    for n, top in zip(ROLLOUTS, HILL, strict=True):
        values = top + (lead if n == 256 else 0.0) - 0.2 * np.exp(-compute / 1e5)
        errors = noise * np.random.default_rng([n, seed]).standard_normal(24)
        out.append(Curve(f"n{n}", compute, values + errors, 32, n, seed=0))
    return out


def law_of(curves: list[Curve], replicates: int = 100) -> PlanningLaw:
    return load_law(fit_law(curves, metric="avg@4", replicates=replicates))


def n_of(plan: Plan) -> int:
    return plan.allocation.rollouts_per_problem


@pytest.fixture(scope="module")
def lucky() -> PlanningLaw:
    return law_of(sweep(0.022))


def test_plans_of_runs_borrow_and_those_of_published_curves_do_not(lucky: PlanningLaw) -> None:
    published = isocompute.plan(budget=2e6, law="isocompute/bp32-easy", replicates=50)
    assert published.compared_AB is None
    alone, borrowed = (isocompute.plan(budget=1e6, law=replace(lucky, borrows=b)) for b in (False, True))
    assert alone.compared_AB is None and n_of(alone) == 256
    assert borrowed.compared_AB is not None and n_of(borrowed) in (64, 128)
    both = {option.allocation: option.ranked for option in (alone.chosen, *alone.alternatives)}
    for option in (borrowed.chosen, *borrowed.alternatives):  # what each is expected to reach is its own
        assert option.ranked.value == both[option.allocation].value
        assert option.ranked.interval == both[option.allocation].interval


def test_a_setting_that_comes_out_higher_by_itself_is_named(lucky: PlanningLaw) -> None:
    (warning,) = [w for w in isocompute.plan(budget=1e6, law=lucky).warnings if w.code == "neighbours"]
    assert warning.message.startswith("by itself 32 × 256 comes out higher")
    calm = isocompute.plan(budget=1e6, law=law_of(sweep()))
    assert "neighbours" not in {w.code for w in calm.warnings}


def test_what_may_be_chosen_does_not_change_what_is_true(lucky: PlanningLaw) -> None:
    assert n_of(isocompute.plan(budget=1e6, law=lucky, rollouts_per_problem=[128, 256])) == 128


@pytest.mark.parametrize("allowed", [None, [128, 256], [64, 256], [128, 192, 256]])
def test_a_run_whose_n_grows_ends_where_the_plan_is(lucky: PlanningLaw, allowed: list[int] | None) -> None:
    plan = isocompute.plan(budget=1e6, law=lucky, rollouts_per_problem=allowed)
    assert stages(plan).stages[-1].rollouts_per_problem == n_of(plan)
    if allowed:
        return
    assert stages(isocompute.plan(budget=1e6, law=replace(lucky, borrows=False))).stages[-1].rollouts_per_problem == 256


def test_settings_that_were_not_run_are_no_measurements() -> None:
    """57 n between the seven that were run: the top stays where it is."""
    law = law_of(sweep())
    assert law.model.interpolates()
    many = isocompute.plan(budget=1e6, law=law, rollouts_per_problem=list(range(8, 513, 8)))
    assert 40 <= n_of(many) <= 100 and abs(n_of(isocompute.plan(budget=1e6, law=law)) - 64) <= 32


@pytest.mark.parametrize("seeds", [1, 2])
def test_beyond_the_data_no_n_wins_for_being_the_smallest(seeds: int) -> None:
    """A law that ends at an eighth of the budget, whose errors are shared and tilted along n."""
    lost = []
    for draw in range(8):
        curves = [
            replace(curve, name=f"{curve.name}-{s}", seed=s)
            for s in range(seeds)
            for curve in sweep(last=1.25e5, noise=0.004, seed=10 * draw + s)
        ]
        law = law_of(curves, 60)
        plans = [isocompute.plan(budget=1e6, law=replace(law, borrows=b), extrapolate=True) for b in (False, True)]
        lost.append([HILL.max() - HILL[ROLLOUTS.index(n_of(plan))] for plan in plans])
    alone, borrowed = np.mean(lost, axis=0)
    assert borrowed < alone + 0.002


def test_neighbours_do_not_make_good_what_did_badly() -> None:
    """The largest n has three seeds, one of which fell far: by its neighbours alone it would be as good as they."""
    compute = np.geomspace(2e4, 1e6, 24)
    curves = [
        Curve(f"n{n}-{s}", compute, 0.98 - 0.3 * np.exp(-compute / 5e4) - low, 32, n, seed=s)
        for n in ROLLOUTS
        for s, low in enumerate((0.0, 0.001, 0.1) if n == 512 else (0.0, 0.001, 0.0005))
    ]
    plan = isocompute.plan(budget=1e6, law=law_of(curves))
    ranked = {o.allocation.rollouts_per_problem: o.ranked for o in (plan.chosen, *plan.alternatives)}
    own_loss = plan.chosen.ranked.value - ranked[512].value
    assert own_loss > 0.02 and 0.3 * own_loss < ranked[512].regret <= own_loss + 0.001
    beside = isocompute.plan(budget=1e6, law=law_of(curves), rollouts_per_problem=[128, 384, 500, 512])
    assert n_of(beside) == 128, "nor what was not run beside it"


def test_a_look_at_one_setting_teaches_of_its_neighbours() -> None:
    """Under a member that has n = 64 high, n = 128 is likely high, too; by themselves they have nothing in common."""
    law = law_of(sweep(), 400)
    plan = isocompute.plan(budget=1e6, law=law)
    assert plan.compared_AB is not None
    places = [a.rollouts_per_problem for a in plan.targets]
    one, other, far = (places.index(n) for n in (64, 128, 8))
    off = plan.compared_AB - plan.compared_AB.mean(axis=0)
    assert np.corrcoef(off[one], off[other])[0, 1] > np.corrcoef(off[one], off[far])[0, 1] + 0.3
    proposals = next_cells(isocompute.plan(budget=4e6, law=law, extrapolate=True), 3)
    assert proposals and all(0 < p.gain < law.seed_error for p in proposals)
    assert len({p.allocation.rollouts_per_problem for p in proposals}) == len(proposals)


def test_output_says_whether_neighbours_were_asked(lucky: PlanningLaw, capsys: pytest.CaptureFixture[str]) -> None:
    for borrows in (False, True):
        plan = isocompute.plan(budget=1e6, law=replace(lucky, borrows=borrows))
        show(plan)
        assert plan.to_json()["law"]["neighbours"] is borrows
        assert ("best and regret count" in " ".join(capsys.readouterr().out.split())) is borrows


def test_where_every_member_has_the_same_there_is_no_error_and_nothing_moves() -> None:
    """As where all rates are held to 1: seven settings, so that trends would be fitted to their errors."""
    settings = [(32, 2**k) for k in range(3, 10)]
    values_RB = np.ones((len(settings), 50))
    assert (own_errors(values_RB, settings) == 0.0).all()
    assert np.allclose(borrow(values_RB, settings, settings), 1.0, atol=1e-3)
