"""Two recipes: ceilings, speeds, crossings."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from isocompute.core.curve import Curve
from isocompute.core.errors import InputError
from isocompute.law.comparison import compare
from isocompute.report.charts.commands import comparison_chart
from tests.law.made_up import hill, noisy

COMPUTE = np.linspace(1.0, 60.0, 60)


def side(ceiling: float, midpoint: float, *, efficiency: float = 1.6, seeds: int = 1, first: int = 0) -> list[Curve]:
    truth = hill(COMPUTE, 0.3, ceiling, midpoint, efficiency)
    return [noisy(f"{first + i}", COMPUTE, truth, noise=0.005, seed=first + i) for i in range(seeds)]


def test_higher_but_slower() -> None:
    result = compare(side(0.66, 12.0), side(0.56, 5.0, first=50), replicates=300)
    assert (result.higher, result.ahead_now) == ("a", "a")
    assert result.interval[0] <= result.difference <= result.interval[1]
    (crossing,) = result.overtakings
    grid = np.linspace(1, 60, 20_000)
    lead = hill(grid, 0.3, 0.66, 12.0, 1.6) - hill(grid, 0.3, 0.56, 5.0, 1.6)
    truth = grid[np.flatnonzero(lead > 0)[0]]
    assert crossing.winner == "a" and not crossing.extrapolated
    assert crossing.interval[0] <= truth * 1.05 and crossing.interval[1] >= truth * 0.95
    assert crossing.compute == pytest.approx(truth, rel=0.15)


def test_same_ceiling_twice_as_fast() -> None:
    result = compare(side(0.6, 12.0, seeds=3), side(0.6, 6.0, seeds=3, first=50), replicates=300)
    assert result.higher == "same"
    assert result.faster == "b"
    assert result.speed_ratio == pytest.approx(0.5, abs=0.06)
    assert result.efficiency_ratio == pytest.approx(1.0, abs=0.1)
    assert result.error_rule == "seeds"


def assumed_deviation(error_rule: str) -> float:
    """The standard deviation between seeds that a comparison of single seeds assumes."""
    found = re.match(r"one seed: a standard deviation of ([\d.]+) between seeds is assumed", error_rule)
    assert found
    return float(found[1])


def test_one_seed_a_side_assumes_the_margin_of_scalerl() -> None:
    """±.02 between two runs, which is two standard deviations of a difference; rises were of .2 to .3."""
    close = compare(side(0.61, 6.0), side(0.60, 6.0, first=50), replicates=300)
    assert close.higher == "same"
    assert 1.96 * np.sqrt(2) * assumed_deviation(close.error_rule) == pytest.approx(0.02, abs=0.005)
    assert close.interval[1] - close.difference >= 0.02 and close.difference - close.interval[0] >= 0.02


def test_the_level_is_that_of_the_lead_at_the_present_too() -> None:
    a, b = side(0.606, 6.0, seeds=3), side(0.600, 6.0, seeds=3, first=50)
    ahead_now = {level: compare(a, b, replicates=300, level=level).ahead_now for level in (0.5, 0.999)}
    assert ahead_now == {0.5: "a", 0.999: "same"}


def test_a_ceiling_that_is_not_in_sight_decides_nothing() -> None:
    slow = [Curve("slow", COMPUTE, 0.3 + 0.03 * np.log(COMPUTE + 1))]
    result = compare(slow, side(0.55, 6.0), replicates=300)
    assert result.a.rise_done < 0.8
    assert result.higher == "undecided"


def test_swapping_sides_swaps_the_answer() -> None:
    a, b = side(0.66, 12.0, seeds=2), side(0.56, 5.0, seeds=2, first=50)
    one, other = compare(a, b, replicates=200), compare(b, a, replicates=200)
    assert one.difference == pytest.approx(-other.difference, abs=1e-9)
    assert (one.higher, other.higher) == ("a", "b")
    assert one.overtakings[0].compute == pytest.approx(other.overtakings[0].compute, rel=1e-6)


def repetitions(rng: np.random.Generator, count: int, *, ceiling: float = 0.6, speed: float = 0.15) -> list[Curve]:
    """Seeds of one recipe, which differ by .01 in their ceiling and by `speed` in the log of their midpoint."""
    out = []
    for i in range(count):
        top, middle = ceiling + 0.01 * rng.standard_normal(), 8.0 * np.exp(speed * rng.standard_normal())
        values_C = hill(COMPUTE, 0.3, top, middle, 1.6) + 0.005 * rng.standard_normal(len(COMPUTE))
        out.append(Curve(f"{i}", COMPUTE, values_C, 32, 8, i))
    return out


@pytest.mark.parametrize("question", ["higher", "faster", "ahead_now"])
@pytest.mark.parametrize("seeds", [1, 3])
def test_a_recipe_does_not_differ_from_itself(seeds: int, question: str) -> None:
    """Nominal 5% of pairs; midpoints of repetitions differ by about 15%."""
    rng = np.random.default_rng(seeds)
    pairs = [compare(repetitions(rng, seeds), repetitions(rng, seeds), replicates=100) for _ in range(20)]
    assert sum(getattr(result, question) in ("a", "b") for result in pairs) <= 2


def test_one_seed_does_not_differ_from_five_of_its_recipe() -> None:
    rng = np.random.default_rng(0)
    pairs = [compare(repetitions(rng, 5), repetitions(rng, 1), replicates=100) for _ in range(20)]
    for question in ("higher", "faster", "ahead_now"):
        assert sum(getattr(result, question) in ("a", "b") for result in pairs) <= 2


def test_seeds_that_agree_by_chance_are_no_proof() -> None:
    """The sides differ by .012, each side's seeds by nothing."""
    rng = np.random.default_rng(0)
    sides = [
        [Curve(f"{top}-{s}", COMPUTE, hill(COMPUTE, 0.3, top, 6.0, 1.6) + 0.002 * rng.standard_normal(60), 32, 8, s)]
        for top in (0.6, 0.612)
        for s in range(2)
    ]
    result = compare([*sides[0], *sides[1]], [*sides[2], *sides[3]], replicates=200)
    assert (result.higher, result.ahead_now) == ("same", "same")


@pytest.mark.parametrize(("seeds", "lead"), [(1, 0.1), (3, 0.06)])
def test_a_ceiling_that_is_clearly_higher_is_said_to_be(seeds: int, lead: float) -> None:
    """Seeds differ by .01, so the lead is seven standard errors or six; how slowly curves level off adds to them."""
    rng = np.random.default_rng(seeds)
    pairs = [
        compare(repetitions(rng, seeds, ceiling=0.6 + lead), repetitions(rng, seeds), replicates=100) for _ in range(10)
    ]
    assert sum(result.higher == "a" for result in pairs) >= 8
    assert all(result.ahead_now == "a" for result in pairs)


def test_the_answer_does_not_depend_on_the_scale() -> None:
    a, b = side(0.61, 6.0), side(0.60, 6.0, first=50)
    percent = [[Curve(c.name, c.compute_C, 100 * c.values_C) for c in s] for s in (a, b)]
    small, large = compare(a, b, replicates=200), compare(*percent, replicates=200)
    assert small.higher == large.higher == "same"
    np.testing.assert_allclose(np.array(large.interval) / 100, small.interval, rtol=1e-3)
    assert assumed_deviation(large.error_rule) == pytest.approx(100 * assumed_deviation(small.error_rule), rel=0.1)


def test_a_side_holds_one_setting() -> None:
    curves = [Curve(f"{n}", COMPUTE, hill(COMPUTE, 0.3, 0.6, 8.0, 1.5), 32, n) for n in (8, 16)]
    with pytest.raises(InputError, match="different Bp or n"):
        compare(curves, side(0.6, 6.0), replicates=60)


def test_a_midpoint_before_the_first_point_decides_nothing_about_speed() -> None:
    """A steep start and a long tail: with its ceiling held, the Hill curve begins far below any reward, half-way up
    before the first point. By hand, half of the rise to .63 lies near 6,000 and 7,500: no factor of thirty.
    """
    compute_C = np.arange(1, 41) * 2304.0
    steep_C = np.concatenate([[0.013, 0.176, 0.458], 0.47 + 0.09 * (1 - np.exp(-np.arange(37) / 12))])
    slow_C = 0.52 + 0.12 * compute_C / (compute_C + 9000.0)
    result = compare([Curve("a", compute_C, steep_C)], [Curve("b", compute_C, slow_C)], replicates=60)
    assert result.efficiency_a.midpoint <= compute_C[0]
    assert result.faster == "undecided"


def with_collapse(curve: Curve, after: int, to: float) -> Curve:
    values_C = curve.values_C.copy()
    values_C[after:] = to
    return replace(curve, values_C=values_C)


def test_a_run_that_fell_is_named_and_is_not_ahead_now() -> None:
    steady, higher = side(0.6, 6.0)[0], side(0.75, 6.0, first=50)[0]
    result = compare([steady], [with_collapse(higher, 40, 0.05)], replicates=200)
    assert result.higher == "b" and result.ahead_now == "a"
    (fall,) = result.collapses
    assert (fall.side, fall.run, fall.value) == ("b", "50", pytest.approx(0.05))
    assert fall.after == COMPUTE[39]


def test_a_run_that_fell_at_its_last_evaluation_is_where_that_is() -> None:
    steady, higher = side(0.6, 6.0)[0], side(0.9, 6.0, first=50)[0]
    result = compare([steady], [with_collapse(higher, 59, 0.05)], replicates=200)
    (fall,) = result.collapses
    assert fall.value == pytest.approx(0.05) and result.ahead_now == "a"


def test_runs_that_all_fell_are_compared_by_what_they_have_now() -> None:
    a, b = side(0.66, 6.0, seeds=2), side(0.6, 6.0, seeds=2, first=50)
    low, lower = [with_collapse(c, 40, 0.2) for c in a], [with_collapse(c, 40, 0.1) for c in b]
    assert compare(lower, low, replicates=200).ahead_now == "b"
    assert len(compare(lower, low, replicates=200).collapses) == 4


def test_a_short_run_that_has_not_begun_to_rise_decides_nothing() -> None:
    started = noisy("warm", COMPUTE[:8], np.full(8, 0.3), noise=0.002, seed=3)
    result = compare(side(0.66, 12.0), [started], replicates=200)
    assert (result.higher, result.unrisen) == ("undecided", "b")
    whole = noisy("flat", COMPUTE, np.full(60, 0.3), noise=0.002, seed=3)
    assert compare(side(0.66, 12.0), [whole], replicates=200).unrisen is None


def test_two_copies_of_a_curve_do_not_overtake_each_other() -> None:
    found = [compare(side(0.6, 6.0, first=i), side(0.6, 6.0, first=50 + i), replicates=100) for i in range(6)]
    assert sum(len(result.overtakings) for result in found) <= 1


def test_the_chart_draws_the_curve_of_a_side_that_fell_up_to_there() -> None:
    steady, higher = side(0.6, 6.0)[0], side(0.66, 6.0, first=50)[0]
    result = compare([steady], [with_collapse(higher, 40, 0.05)], replicates=50)
    data = comparison_chart(result, metric="avg@4", unit="rollouts", names=("steady", "collapsed")).to_dict()[
        "datasets"
    ]
    lines = [row for rows in data.values() for row in rows if "low" in row]
    ends = {name: max(row["compute"] for row in lines if row["side"] == name) for name in ("steady", "collapsed")}
    assert ends["collapsed"] == pytest.approx(COMPUTE[39]) and ends["steady"] > COMPUTE[-1]


def test_the_answer_of_a_hard_set_does_not_depend_on_the_scale_either() -> None:
    """Pass rates from .05 to .13, as shares and in percent."""
    low = [[replace(c, values_C=0.4 * (c.values_C - 0.18)) for c in side(top, 6.0)] for top in (0.5, 0.53)]
    rates, percent = (
        compare(*([replace(c, values_C=by * c.values_C) for c in mine] for mine in low), replicates=100)
        for by in (1.0, 100.0)
    )
    assert assumed_deviation(percent.error_rule) == pytest.approx(100 * assumed_deviation(rates.error_rule), rel=0.3)
    assert (rates.higher, rates.ahead_now) == (percent.higher, percent.ahead_now)
