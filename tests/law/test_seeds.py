"""Seed effects from few seeds: distributions of whole curves, with Student's t and shrunken variances."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from isocompute.core.curve import Curve
from isocompute.law.comparison import compare
from isocompute.law.fits import fit_groups
from isocompute.law.frontier import seed_noise
from isocompute.law.surface import fit_surface
from isocompute.law.uncertainty import SEED_MARGIN, SeedSpread, seed_deviation, seed_effects, single_seed_deviation

GRID = np.geomspace(1e4, 1e6, 25)
BASE, CEILING = 0.3, 0.6


def rising(ceiling: float, compute_C: np.ndarray = GRID) -> np.ndarray:
    return BASE + (ceiling - BASE) * (1 - np.exp(-compute_C / 1.5e5))


def seeds_of(ceilings: list[float], grids: list[np.ndarray] | None = None) -> tuple[list[Curve], np.ndarray]:
    """Curves without noise, and the mean of all at their points."""
    grids = grids or [GRID] * len(ceilings)
    curves = [Curve(f"{i}", x, rising(c, x), 32, 8, i) for i, (c, x) in enumerate(zip(ceilings, grids, strict=True))]
    return curves, np.concatenate([rising(float(np.mean(ceilings)), x) for x in grids])


def spread_of(ceilings: list[float], grids: list[np.ndarray] | None = None) -> SeedSpread:
    curves, pooled_N = seeds_of(ceilings, grids)
    return SeedSpread.of(curves, pooled_N, np.concatenate([c.values_C for c in curves]))


def test_the_variance_is_that_of_the_seeds_levels() -> None:
    ceilings = [0.58, 0.6, 0.65]
    end = [rising(c)[-1] for c in ceilings]
    assert spread_of(ceilings).variance == pytest.approx(np.var(end, ddof=1), rel=0.06)


def test_what_seeds_differ_in_before_the_rise_is_not_scaled_up_to_it() -> None:
    """A rise at the very end, and levels that differ by .01 throughout."""
    late_C = 0.3 + 0.3 * (GRID > 0.9e6)
    curves = [Curve(f"{i}", GRID, late_C + off, 32, 8, i) for i, off in enumerate((-0.01, 0.0, 0.01))]
    found = SeedSpread.of(curves, np.tile(late_C, 3), np.concatenate([c.values_C for c in curves]))
    assert found.variance == pytest.approx(1e-4)


def test_seeds_at_other_compute_show_the_same_spread() -> None:
    other = [GRID, np.geomspace(1.3e4, 0.9e6, 19), np.geomspace(1e4, 1e6, 40)]
    ceilings = [0.58, 0.6, 0.65]
    assert spread_of(ceilings, other).variance == pytest.approx(spread_of(ceilings).variance, rel=0.05)


def test_draws_have_the_standard_error_that_is_told() -> None:
    (effect,) = seed_effects([spread_of([0.58, 0.6, 0.65])], 1.0)
    drawn_BN = effect.draw(20_000, np.random.default_rng(0))
    assert drawn_BN[:, 24].std() == pytest.approx(effect.level, rel=0.03)
    assert drawn_BN[:, 0].std() < 0.15 * effect.level  # repetitions begin at one base


def test_many_seeds_need_neither_prior_nor_widening() -> None:
    rng = np.random.default_rng(0)
    ceilings = (CEILING + 0.02 * rng.standard_normal(400)).tolist()
    end = [rising(c)[-1] for c in ceilings]
    (effect,) = seed_effects([spread_of(ceilings)], 1.0)
    assert effect.level == pytest.approx(np.std(end, ddof=1) / 20, rel=0.04)


def test_two_seeds_that_agree_by_chance_keep_the_margin() -> None:
    """Their own variance is 0; ScaleRL's margin and their own degree of freedom give half of it, with Student's t."""
    (effect,) = seed_effects([spread_of([0.6, 0.6])], 1.0)
    t_over_z = stats.t.ppf(0.975, 2) / stats.norm.ppf(0.975)
    assert effect.level == pytest.approx(t_over_z * seed_deviation(SEED_MARGIN) / np.sqrt(2) / np.sqrt(2), rel=1e-3)


def test_one_odd_setting_does_not_widen_the_others() -> None:
    calm = [spread_of([0.595, 0.6, 0.605]) for _ in range(5)]
    (before, *_), (after, *_) = seed_effects(calm, 1.0), seed_effects([*calm, spread_of([0.3, 0.6, 0.9])], 1.0)
    assert after.level == pytest.approx(before.level, rel=0.05)


def test_two_seeds_that_agree_learn_from_settings_whose_seeds_do_not() -> None:
    agree, differ = spread_of([0.6, 0.6]), [spread_of([0.56, 0.6, 0.64]) for _ in range(4)]
    (alone,), (among, *others) = seed_effects([agree], 1.0), seed_effects([agree, *differ], 1.0)
    assert 2 * alone.level < among.level < 1.5 * others[0].level


def test_the_joint_law_moves_with_the_luck_of_each_setting() -> None:
    """By as much as a fit to curves that are moved by it, one setting at a time."""
    groups = [
        [Curve(f"{n}-{s}", GRID, rising(c + off), 32, n, s) for s, off in enumerate((-0.02, 0.0, 0.02))]
        for n, c in ((4, 0.5), (16, 0.56), (64, 0.6))
    ]
    fits = fit_groups(groups, replicates=200, upper=1.0)
    end = (GRID[-1:], np.array([16.0]), np.array([32.0]))
    calm = [replace(fit, seed_error=0.0) for fit in fits]
    surfaces = [fit_surface(each, upper=1.0, replicates=4000) for each in (fits, calm)]
    with_luck, without = (s.replicates_at(*end).var() for s in surfaces if s is not None)

    def moved(by: int) -> float:
        curves = tuple(
            replace(c, values_C=c.values_C + fits[by].seed_error * fits[by].risen(c.compute_C)) for c in fits[by].curves
        )
        surface = fit_surface([replace(f, curves=curves) if i == by else f for i, f in enumerate(calm)], upper=1.0)
        assert surface is not None
        return float(surface.at(*end)[0])

    assert surfaces[1] is not None
    by_setting = [moved(i) - float(surfaces[1].at(*end)[0]) for i in range(3)]
    assert with_luck - without == pytest.approx(sum(x**2 for x in by_setting), rel=0.15)


def test_the_margin_is_of_the_scale() -> None:
    (rate,), (percent,) = (seed_effects([spread_of([0.6, 0.6])], scale) for scale in (1.0, 100.0))
    assert percent.level == pytest.approx(100 * rate.level)


@pytest.mark.parametrize("seeds", [2, 3])
def test_intervals_of_a_few_seeds_hold_the_mean_of_many(seeds: int) -> None:
    """Nominal 95%, of 60 settings; whole runs drawn with replacement hold 77 to 83%."""
    rng = np.random.default_rng(seeds)

    def run(name: str, seed: int) -> Curve:
        values_C = rising(CEILING + 0.02 * rng.standard_normal()) + 0.005 * rng.standard_normal(25)
        return Curve(name, GRID, values_C, 32, 8, seed)

    groups = [[run(f"{i}-{s}", s) for s in range(seeds)] for i in range(60)]
    truth, covered = rising(CEILING)[-1], 0
    for fit in fit_groups(groups, replicates=200, upper=1.0):
        low, high = np.percentile(fit.ensemble.at(GRID[-1:])[:, 0], [2.5, 97.5])
        covered += bool(low <= truth <= high)
    assert covered >= 53  # fewer in one of a hundred draws at 95%


def test_two_seeds_a_side_that_agree_by_chance_are_no_proof() -> None:
    """The sides differ by .012, each side's seeds by nothing."""
    rng = np.random.default_rng(0)
    sides = [
        [Curve(f"{c}-{s}", GRID, rising(c) + 0.002 * rng.standard_normal(25), 32, 8, s) for s in range(2)]
        for c in (0.6, 0.612)
    ]
    assert compare(*sides, replicates=200).higher == "same"


def test_a_seed_counts_by_its_points() -> None:
    """A fit weighs points: a seed of most of them is nearly alone, where all have as many each counts the same."""
    few, many = np.geomspace(1e4, 1e6, 10), np.geomspace(1e4, 1e6, 200)
    assert spread_of([0.58, 0.6, 0.65]).share == 1 / 3
    assert spread_of([0.58, 0.6, 0.65], [many, few, few]).share == pytest.approx((200**2 + 2 * 10**2) / 220**2)


def test_seeds_that_ended_leave_the_curve_to_those_that_go_on() -> None:
    early, late = np.linspace(1e4, 2e5, 20), np.linspace(1e4, 1e6, 100)
    spread = spread_of([0.58, 0.6, 0.65], [late, early, early])
    assert spread.share == 1.0
    assert spread.share_N[0] == pytest.approx(1 / 3)  # with one more point up to there they would weigh as much
    assert spread.variance == pytest.approx(np.var([0.58, 0.6, 0.65], ddof=1), rel=0.1)
    (effect,) = seed_effects([spread], 1.0)
    assert effect.draw(20_000, np.random.default_rng(0))[:, 99].std() == pytest.approx(effect.level, rel=0.03)


def test_seeds_that_ended_before_the_rise_do_not_speak_for_all_of_it() -> None:
    """They differ by noise of .005, where a hundredth of the rise is done."""
    rng = np.random.default_rng(0)
    grids = [GRID, GRID[:5], GRID[:5]]
    curves, pooled_N = seeds_of([0.6] * 3, grids)
    own_N = pooled_N + 0.005 * np.repeat(rng.standard_normal(3), [25, 5, 5])
    assert np.sqrt(SeedSpread.of(curves, pooled_N, own_N).variance) < 0.03


@pytest.mark.parametrize(
    ("points", "last"), [((120, 6, 6), (1e6, 1e6, 1e6)), ((30, 6, 6), (1e6, 2e5, 2e5))], ids=["points", "length"]
)
def test_intervals_of_unequal_seeds_hold_the_mean_of_many(points: tuple[int, ...], last: tuple[float, ...]) -> None:
    """Nominal 95%, of 60 settings; as if each seed counted the same they hold 70 to 75%."""
    rng = np.random.default_rng(0)

    def run(name: str, seed: int) -> Curve:
        compute_C = np.linspace(1e4, last[seed], points[seed])
        values_C = rising(CEILING + 0.02 * rng.standard_normal(), compute_C)
        return Curve(name, compute_C, values_C + 0.005 * rng.standard_normal(len(compute_C)), 32, 8, seed)

    truth, covered = rising(CEILING)[-1], 0
    groups = [[run(f"{i}-{s}", s) for s in range(len(points))] for i in range(60)]
    for fit in fit_groups(groups, replicates=200, upper=1.0):
        low, high = np.percentile(fit.ensemble.at(GRID[-1:])[:, 0], [2.5, 97.5])
        covered += bool(low <= truth <= high)
    assert covered >= 53


def test_a_setting_of_one_seed_learns_from_those_of_several() -> None:
    several = [spread_of([0.56, 0.6, 0.64]), spread_of([0.57, 0.6, 0.63])]
    assert single_seed_deviation([], 1.0) == 0.0
    assert 0.03 < single_seed_deviation(several, 1.0) < 0.08  # their spread of .035, with Student's t of five degrees
    assert single_seed_deviation([spread_of([0.6, 0.6])], 1.0) > seed_deviation(
        SEED_MARGIN
    )  # two that agree say next to nothing


def test_which_setting_is_best_allows_for_what_the_seeds_of_others_show() -> None:
    single = [Curve("8-0", GRID, rising(0.6), 32, 8, 0)]
    several = [Curve(f"16-{s}", GRID, rising(c), 32, 16, s) for s, c in enumerate((0.56, 0.6, 0.64))]
    fits = fit_groups([single, several], replicates=2000, upper=1.0)
    seed_noise_SB = seed_noise(fits, seed=0)
    assert seed_noise_SB[0].std() == pytest.approx(fits[0].seed_deviation, rel=0.05) and fits[0].seed_deviation > 0.03
    assert not seed_noise_SB[1].any()
    alone = seed_noise(fit_groups([single], replicates=2000, upper=1.0), seed=0)
    assert alone.std() == pytest.approx(seed_deviation(SEED_MARGIN), rel=0.05)


def test_one_run_beside_seeds_that_differ_is_not_told_apart() -> None:
    """5 against 1, all of one recipe; by ScaleRL's margin alone a third of such pairs are."""
    rng = np.random.default_rng(0)

    def side(count: int) -> list[Curve]:
        tops = CEILING + 0.02 * rng.standard_normal(count)
        return [Curve(f"{s}", GRID, rising(c) + 0.005 * rng.standard_normal(25), 32, 8, s) for s, c in enumerate(tops)]

    found = [compare(side(5), side(1), replicates=100) for _ in range(40)]
    assert sum(one.higher in ("a", "b") for one in found) <= 5
    assert sum(one.ahead_now in ("a", "b") for one in found) <= 5


def test_after_a_fall_one_run_is_as_uncertain_as_the_seeds_beside_it() -> None:
    """All end at a tenth, its own evaluations without noise."""

    def with_collapse(name: str, ceiling: float, end: float) -> Curve:
        values_C = rising(ceiling)
        values_C[-5:] = end
        return Curve(name, GRID, values_C, 32, 8)

    several = [with_collapse(f"{i}", c, 0.1 + c - CEILING) for i, c in enumerate((0.55, 0.6, 0.65))]
    apart = [with_collapse("one", 0.6, 0.2)]
    assert compare(several, apart, replicates=100).ahead_now == "same"
    assert compare(several[1:2], apart, replicates=100).ahead_now == "b"
