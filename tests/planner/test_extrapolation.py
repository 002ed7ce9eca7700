"""Beyond the data, half of the draws continue the trend of the last points."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import isocompute
from isocompute.core.curve import Curve
from isocompute.law.law import Law, fit_law
from isocompute.planner import extrapolation as plan_curves
from isocompute.planner.extrapolation import Curves, NoiseShares, clip_keeping_mean, damped_trend, extrapolation_noise
from isocompute.planner.law import planning_law
from isocompute.planner.published import published
from tests.planner.made_up import columns

LAST = 5e5
SETTINGS = [(32, n) for n in (8, 16, 32, 64)]


@pytest.fixture
def steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draws without extrapolation noise, which laws with a trend have in another way than others."""
    for name in ("WITH_TREND", "WITHOUT_TREND"):
        monkeypatch.setattr(plan_curves, name, NoiseShares(0.0, 0.0, 0.0, 0.0))


def value(n: float, compute_C: np.ndarray, late: float) -> np.ndarray:
    """A Hill curve that is done at an eighth of `LAST`, and from there on `late` for each doubling."""
    hill_C = 0.3 + (0.2 + 0.01 * np.log2(n)) / (1 + (8e3 / compute_C) ** 2)
    return np.asarray(hill_C + late * np.maximum(np.log2(compute_C / (LAST / 8)), 0.0))


def curves_of(late: float) -> list[Curve]:
    rng, compute_C = np.random.default_rng(5), np.geomspace(1e3, LAST, 30)
    return [
        Curve(f"{n}-{seed}", compute_C, value(n, compute_C, late) + 0.002 * rng.standard_normal(30), bp, n, seed=seed)
        for bp, n in SETTINGS
        for seed in range(2)
    ]


def law_of(late: float, *, known: bool = True) -> Law:
    law = fit_law(curves_of(late), metric="avg@4", replicates=200)
    return law if known else replace(law, settings=tuple(replace(fit, trend=None) for fit in law.settings))


def expected(law: Law, compute: float) -> np.ndarray:
    return planning_law(law).model.values(*columns(*[(bp, n, compute) for bp, n in SETTINGS]))


def test_what_still_rises_is_expected_to_rise_further() -> None:
    truth_A = np.array([value(n, np.array([8 * LAST]), late=0.015)[0] for _, n in SETTINGS])
    with_AB, without_AB = expected(law_of(0.015), 8 * LAST), expected(law_of(0.015, known=False), 8 * LAST)
    missed_A, missed_without_A = truth_A - with_AB.mean(axis=1), truth_A - without_AB.mean(axis=1)
    assert (missed_without_A > 0.05).all(), "the form has levelled off"
    assert ((missed_A > 0.0) & (missed_A < missed_without_A - 0.01)).all(), (
        "a quarter of .045, where nothing overshoots"
    )


def test_what_has_levelled_off_stays() -> None:
    with_AB, without_AB = expected(law_of(0.0), 8 * LAST), expected(law_of(0.0, known=False), 8 * LAST)
    assert np.abs(with_AB.mean(axis=1) - without_AB.mean(axis=1)).max() < 0.001


def test_inside_the_data_nothing_changes() -> None:
    assert np.array_equal(expected(law_of(0.015), LAST), expected(law_of(0.015, known=False), LAST))


@pytest.mark.usefixtures("steady")
def test_settings_that_end_together_gain_the_same_under_the_same_half_of_the_members() -> None:
    gain_AB = expected(law_of(0.015), 4 * LAST) - expected(law_of(0.015, known=False), 4 * LAST)
    assert np.allclose(gain_AB, gain_AB[:1])
    assert np.mean(gain_AB[0] > 1e-6) == pytest.approx(0.5)
    assert 0.003 < gain_AB.max() < 2 * 0.7 * 0.016, "at most .7 of the trend for each of two doublings"
    further_AB = expected(law_of(0.015), 8 * LAST) - expected(law_of(0.015, known=False), 8 * LAST)
    assert np.array_equal(further_AB > 1e-6, gain_AB > 1e-6), "a look on the way says something of the end"


def test_the_choice_is_the_same_and_the_expectation_higher() -> None:
    plans = [isocompute.plan(budget=4 * LAST, law=law_of(0.015, known=known)) for known in (True, False)]
    assert plans[0].allocation == plans[1].allocation
    assert plans[0].chosen.ranked.value > plans[1].chosen.ranked.value + 0.005
    assert plans[0].chosen.ranked.regret == plans[1].chosen.ranked.regret == 0.0


def test_a_trend_goes_on_at_part_of_its_slope_and_is_never_held_against_a_setting() -> None:
    trend_S, doublings_A = np.array([0.03, 0.01]), np.array([1.0, 3.0])
    more_A = damped_trend(trend_S=trend_S, growth_SA=np.array([[0.004, 0.006], [0.0, 0.0]]), doublings_A=doublings_A)
    assert more_A == pytest.approx([0.012, 0.039])  # .7 of .02 for each doubling, less what was expected anyway
    assert (damped_trend(trend_S=-trend_S, growth_SA=np.zeros((2, 2)), doublings_A=doublings_A) == 0.0).all()


def test_a_setting_that_has_hardly_begun_does_not_speak_for_the_others() -> None:
    """Its form expects .5 of it, its trend says as little."""
    growth_SA = np.array([[0.0], [0.0], [0.0], [0.5]])
    more_A = damped_trend(trend_S=np.array([0.02, 0.02, 0.02, 0.001]), growth_SA=growth_SA, doublings_A=np.array([2.0]))
    assert more_A == pytest.approx([0.028])


def test_a_trend_does_not_go_on_for_ever() -> None:
    far_A = np.array([4.0, 10.0, 20.0])
    more_A = damped_trend(trend_S=np.array([0.05]), growth_SA=np.zeros((1, 3)), doublings_A=far_A)
    assert more_A == pytest.approx([0.14, 0.14, 0.14])


def with_others(*, collapsed: bool) -> list[Curve]:
    """n = 8 and 16 were run to `LAST` and have levelled off. Most others were not: pilots that were cut off in their
    steep part, or, with `collapsed`, steeper ones that went twice as far and all fell for good at the end.
    """
    rng, curves = np.random.default_rng(6), []
    for n in (8, 16, 32, 64, 128):
        for seed in range(2):
            other = n > 16
            compute_C = np.geomspace(1e3, LAST * (2 if collapsed else 1 / 32) if other else LAST, 30)
            value_C = value(n, compute_C, late=0.05 if other and collapsed else 0.0) + 0.002 * rng.standard_normal(30)
            if other and collapsed:
                value_C[-3:] = 0.05
            curves.append(Curve(f"{n}-{seed}", compute_C, value_C, 32, n, seed=seed))
    return curves


@pytest.mark.parametrize("collapsed", [False, True])
@pytest.mark.parametrize("budget", [LAST, 4 * LAST])
def test_pilots_and_fallen_runs_are_no_trend_and_have_none_to_gain(budget: float, collapsed: bool) -> None:
    law = fit_law(with_others(collapsed=collapsed), metric="avg@4", replicates=100)
    blind = replace(law, settings=tuple(replace(fit, trend=None) for fit in law.settings))
    plans = [isocompute.plan(budget=budget, law=each) for each in (law, blind)]
    assert np.median([fit.trend or 0.0 for fit in law.settings]) > 0.02, "most are steep"
    assert plans[0].allocation == plans[1].allocation
    assert np.abs(plans[0].values_AB.mean(axis=1) - plans[1].values_AB.mean(axis=1)).max() < 0.002


@pytest.mark.usefixtures("steady")
def test_settings_that_end_apart_gain_the_same_at_one_compute() -> None:
    curves = [curve.until(27) if curve.rollouts_per_problem == 64 else curve for curve in curves_of(0.015)]
    law = fit_law(curves, metric="avg@4", replicates=100)
    blind = replace(law, settings=tuple(replace(fit, trend=None) for fit in law.settings))
    gain_AB = expected(law, 4 * LAST) - expected(blind, 4 * LAST)
    assert gain_AB.max() > 0.01 and np.allclose(gain_AB, gain_AB[:1])


def test_published_curves_have_no_points_and_no_trend() -> None:
    law = published("isocompute/bp32-easy", replicates=100)
    assert isinstance(law.model, Curves) and all(fit.trend is None for fit in law.model.fits)
    assert np.isfinite(law.model.values(*columns((32, 512, 2 * law.last)))).all()


def test_laws_that_know_where_they_were_heading_are_surer_of_the_level_and_less_of_differences() -> None:
    """Of what has levelled off both expect the same."""
    known_AB, blind_AB = (expected(law_of(0.0, known=known), 8 * LAST) for known in (True, False))
    assert known_AB.mean(axis=0).std() < 0.6 * blind_AB.mean(axis=0).std()
    assert (known_AB[0] - known_AB[-1]).std() > 1.2 * (blind_AB[0] - blind_AB[-1]).std()


def test_noise_is_shared_tilted_and_own_by_its_shares() -> None:
    """Standard deviations for the first and last of the settings along n, three doublings out, of a rise of .2."""
    bp_A, n_A = columns(*[(bp, n, 1.0) for bp, n in SETTINGS])[:2]

    def spread(shares: NoiseShares, doublings: float = 3.0) -> np.ndarray:
        out_AB = extrapolation_noise(
            settings=SETTINGS,
            problems_A=bp_A,
            rollouts_A=n_A,
            doublings_A=np.full(len(SETTINGS), doublings),
            rise=0.2,
            shares=shares,
            draws=20_000,
            seed=0,
        )
        assert np.abs(out_AB.mean(axis=1)).max() < 1e-12
        return np.array([out_AB[0].std(), (out_AB[0] - out_AB[-1]).std(), (out_AB[1] - out_AB[2]).std()])

    assert spread(NoiseShares(0.05, 0.0, 0.0, 0.0)) == pytest.approx([0.03, 0.0, 0.0], abs=5e-4)
    assert spread(NoiseShares(0.0, 0.05, 0.0, 0.0)) == pytest.approx([0.03, 0.06, 0.02], abs=1e-3)
    assert spread(NoiseShares(0.0, 0.0, 0.05, 0.0)) == pytest.approx([0.0, 0.0, 0.0], abs=1e-12), "one Bp"
    assert spread(NoiseShares(0.0, 0.0, 0.0, 0.05)) == pytest.approx([0.03, 0.0424, 0.0424], abs=1e-3)
    assert spread(NoiseShares(0.05, 0.05, 0.05, 0.05), doublings=0.0) == pytest.approx([0.0, 0.0, 0.0])


def levelled(off: dict[int, float], ends: dict[int, float] | None = None) -> list[Curve]:
    """Settings that have levelled off at .5, give or take, two seeds each; some were stopped earlier."""
    rng, curves = np.random.default_rng(8), []
    for n in (8, 16, 32, 64, 128):
        compute_C = np.geomspace(1e3, LAST * (ends or {}).get(n, 1.0), 30)
        value_C = 0.3 + (0.2 + off.get(n, 0.0)) / (1 + (4e3 / compute_C) ** 2)
        curves += [
            Curve(f"{n}-{s}", compute_C, value_C + 0.001 * rng.standard_normal(30), 32, n, seed=s) for s in (0, 1)
        ]
    return curves


@pytest.mark.parametrize("ahead", [2, 4, 8])
def test_being_less_sure_of_the_ends_of_n_makes_them_no_better(ahead: int) -> None:
    """Members drift most at the ends: whatever lifted their means there would plan n = 8 or 128."""
    plan = isocompute.plan(budget=ahead * LAST, law=fit_law(levelled({32: 0.006}), metric="avg@4", replicates=200))
    assert plan.allocation.rollouts_per_problem == 32
    assert plan.values_AB.mean(axis=1) == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize(("n", "end"), [(8, 1 / 8), (128, 1 / 16)])
def test_a_pilot_does_not_win_by_what_is_not_known_of_it(n: int, end: float) -> None:
    law = fit_law(levelled({n: -0.01}, {n: end}), metric="avg@4", replicates=200)
    for ahead in (1, 4):
        assert isocompute.plan(budget=ahead * LAST, law=law).allocation.rollouts_per_problem != n


def test_what_is_held_to_bounds_keeps_its_mean() -> None:
    values_AB = np.random.default_rng(9).normal([[0.5], [0.99], [0.02], [1.2], [-0.3]], 0.05, (5, 4000))
    out_AB = clip_keeping_mean(values_AB, 0.0, 1.0)
    assert out_AB.min() >= 0.0 and out_AB.max() <= 1.0
    assert out_AB[:3].mean(axis=1) == pytest.approx(values_AB[:3].mean(axis=1), abs=1e-6)
    assert np.array_equal(out_AB[3:], np.clip(values_AB[3:], 0.0, 1.0)), "a mean that is outside cannot be kept"
    assert np.array_equal(out_AB[0], values_AB[0]), "nothing was outside"
    order = np.argsort(values_AB[1])
    assert (np.diff(out_AB[1][order]) >= 0.0).all(), "draws stay in their order"
    above = clip_keeping_mean(values_AB, -np.inf, 1.0)
    assert above[1].mean() == pytest.approx(values_AB[1].mean(), abs=1e-6) and np.array_equal(above[4], values_AB[4])


def test_near_the_ceiling_of_a_rate_nothing_is_lost() -> None:
    """Runs that are at .985 were expected at .965 of four times their compute: cut at 1, draws could only go down."""
    rng, compute_C = np.random.default_rng(7), np.geomspace(1e3, LAST, 30)
    value_C = 0.3 + 0.685 / (1 + (8e3 / compute_C) ** 2)
    curves = [
        Curve(f"{n}-{seed}", compute_C, np.minimum(value_C + 0.002 * rng.standard_normal(30), 1.0), 32, n, seed=seed)
        for n in (8, 16, 32)
        for seed in range(2)
    ]
    plan = isocompute.plan(budget=4 * LAST, law=fit_law(curves, metric="avg@4", replicates=200))
    assert plan.chosen.ranked.value == pytest.approx(0.985, abs=0.005) and plan.chosen.ranked.interval[1] <= 1.0


def test_a_trend_that_leads_through_a_ceiling_is_not_certain_of_it() -> None:
    """Half of the draws reach 1 and the mean would lie above it: kept there, all draws would be 1."""
    rng, compute_C = np.random.default_rng(7), np.geomspace(1e3, LAST, 30)
    value_C = 0.3 + 0.55 / (1 + (8e3 / compute_C) ** 2) + 0.03 * np.maximum(np.log2(compute_C / (LAST / 8)), 0.0)
    curves = [
        Curve(f"{n}-{seed}", compute_C, np.minimum(value_C + 0.002 * rng.standard_normal(30), 1.0), 32, n, seed=seed)
        for n in (8, 16, 32, 64)
        for seed in range(2)
    ]
    plan = isocompute.plan(budget=8 * LAST, law=fit_law(curves, metric="avg@4", replicates=200))
    low, high = plan.chosen.ranked.interval
    assert high - low > 0.02 and high <= 1.0 and 0.9 < plan.chosen.ranked.value < 0.999
