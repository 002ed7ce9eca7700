"""Beyond the data half of the members let the trend of the last points go on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import isocompute
from isocompute.law import Law, fit_law
from isocompute.law.curve import Curve
from isocompute.plan.beyond import going_on
from isocompute.plan.curves import Curves
from isocompute.plan.load_law import load_law
from tests.plan.made_up import columns

LAST = 5e5
SETTINGS = [(32, n) for n in (8, 16, 32, 64)]


def value(n: float, compute_C: np.ndarray, late: float) -> np.ndarray:
    """A Hill curve that is done at an eighth of `LAST`, and from there on `late` for each doubling."""
    hill_C = 0.3 + (0.2 + 0.01 * np.log2(n)) / (1 + (8e3 / compute_C) ** 2)
    return np.asarray(hill_C + late * np.maximum(np.log2(compute_C / (LAST / 8)), 0.0))


def law_of(late: float, *, known: bool = True) -> Law:
    rng = np.random.default_rng(5)
    curves = []
    for bp, n in SETTINGS:
        for seed in range(2):
            compute_C = np.geomspace(1e3, LAST, 30)
            noisy_C = value(n, compute_C, late) + 0.002 * rng.standard_normal(30)
            curves.append(Curve(f"{n}-{seed}", compute_C, noisy_C, bp, n, seed=seed))
    law = fit_law(curves, metric="avg@4", replicates=200)
    return law if known else replace(law, settings=tuple(replace(fit, trend=None) for fit in law.settings))


def expected(law: Law, compute: float) -> np.ndarray:
    return load_law(law).model.values(*columns(*[(bp, n, compute) for bp, n in SETTINGS]))


def test_what_still_rises_is_expected_to_rise_further() -> None:
    truth_A = np.array([value(n, np.array([8 * LAST]), late=0.015)[0] for _, n in SETTINGS])
    with_AB, without_AB = expected(law_of(0.015), 8 * LAST), expected(law_of(0.015, known=False), 8 * LAST)
    missed_A, missed_without_A = truth_A - with_AB.mean(axis=1), truth_A - without_AB.mean(axis=1)
    assert (missed_without_A > 0.05).all(), "the form has levelled off"
    assert ((missed_A > 0.0) & (missed_A < missed_without_A - 0.01)).all(), (
        "a quarter of .045, where nothing overshoots"
    )
    assert (with_AB.std(axis=1) > without_AB.std(axis=1)).all(), "two forms are less sure than one"


def test_what_has_levelled_off_stays() -> None:
    with_AB, without_AB = expected(law_of(0.0), 8 * LAST), expected(law_of(0.0, known=False), 8 * LAST)
    assert np.abs(with_AB - without_AB).max() < 0.002


def test_inside_the_data_nothing_changes() -> None:
    assert np.array_equal(expected(law_of(0.015), LAST), expected(law_of(0.015, known=False), LAST))


def test_settings_that_end_together_gain_the_same_under_the_same_half_of_the_members() -> None:
    gain_AB = expected(law_of(0.015), 4 * LAST) - expected(law_of(0.015, known=False), 4 * LAST)
    assert np.allclose(gain_AB, gain_AB[:1])
    assert np.mean(gain_AB[0] > 1e-6) == pytest.approx(0.5)
    further_AB = expected(law_of(0.015), 8 * LAST) - expected(law_of(0.015, known=False), 8 * LAST)
    assert np.array_equal(further_AB > 1e-6, gain_AB > 1e-6), "a look on the way says something of the end"


def test_the_choice_is_the_same_and_the_expectation_higher() -> None:
    plans = [isocompute.plan(budget=4 * LAST, law=law_of(0.015, known=known)) for known in (True, False)]
    assert plans[0].allocation == plans[1].allocation
    assert plans[0].chosen.ranked.value > plans[1].chosen.ranked.value + 0.005
    assert plans[0].chosen.ranked.regret == plans[1].chosen.ranked.regret == 0.0


def test_a_trend_goes_on_at_half_its_slope_and_is_never_held_against_a_setting() -> None:
    trend_S, doublings_D = np.array([0.03, 0.01]), np.array([1.0, 3.0])
    more_D = going_on(trend_S=trend_S, growth_SD=np.array([[0.004, 0.006], [0.0, 0.0]]), doublings_D=doublings_D)
    assert more_D == pytest.approx([0.008, 0.027])  # half of .02 for each doubling, less what was expected anyway
    assert (going_on(trend_S=-trend_S, growth_SD=np.zeros((2, 2)), doublings_D=doublings_D) == 0.0).all()


def test_published_curves_have_no_points_and_no_trend() -> None:
    law = load_law("isocompute/bp32-easy", replicates=100)
    assert isinstance(law.model, Curves) and all(fit.trend is None for fit in law.model.fits)
    assert np.isfinite(law.model.values(*columns((32, 512, 2 * law.last)))).all()
