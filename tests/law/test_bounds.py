"""Bounds of n* if an n ended early, and records and rewards on other scales."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from isocompute.core.curve import Curve, scale_of, upper_bound
from isocompute.core.formatting import pair, value
from isocompute.law.frontier import bounds, ended, what_to_run
from isocompute.law.law import Law, fit_law
from tests.law.made_up import FIGURE_6_EASY, exponential, figure_6, hill

LAST = {4: 2e4, 8: 4e5, 16: 5e4, 32: 1e6, 64: 2e5}
"""A sweep whose runs ended at different compute; in the truth below n = 64 is the best from some 300k rollouts on."""


def ragged(last: dict[int, float] = LAST) -> list[Curve]:
    out = []
    for n, end in last.items():
        compute_C = np.geomspace(min(1200.0 * n, end / 4), end, 24)  # larger batches are evaluated later
        ceiling, midpoint = 0.5 + 0.03 * np.log2(n), 2e4 * (n / 4) ** 0.6
        values_C = hill(compute_C, 0.2, ceiling, midpoint, 1.3)
        out.append(Curve(f"n{n}", compute_C, values_C, 32, n))
    return out


@pytest.fixture(scope="module")
def law() -> Law:
    return fit_law(ragged(), metric="avg@4", replicates=60)


def test_an_optimum_is_a_lower_bound_where_the_next_larger_n_had_ended(law: Law) -> None:
    best = law.joint.rollouts
    assert best is not None
    assert best.estimate_C[-1] == 32 and best.ceiling_bound == ">=" and not best.saturates
    printed = law.to_json()
    assert printed["optimal_rollouts"]["ceiling_bound"] == ">="
    # By hand: beyond 200k rollouts only n = 8 and n = 32 went on, so n = 32 stands for itself and for n = 64.
    late = [row["bound"] for row in printed["frontier"] if row["compute"] > 2.1e5]
    assert late and set(late) == {">="}
    note = next(note for note in law.notes if "n = 64 ends at 200k rollouts" in note)
    assert "not compared" in note and "n = 4 " not in note  # what is smaller than the best bounds nothing


def test_the_next_larger_n_is_asked_not_any_larger_one(law: Law) -> None:
    fits = {fit.setting[1]: i for i, fit in enumerate(law.settings)}
    at = np.array([3e5, 3e5, 3e5, 1e5])
    best_C = np.array([fits[8], fits[32], fits[16], fits[16]])
    assert ended(law.settings, best_C, at) == [(16, 5e4), (64, 2e5), None, None]
    assert bounds(law.settings, best_C, at) == [">=", ">=", None, None]
    first, largest = np.array([fits[4]]), np.array([fits[64]])
    assert bounds(law.settings, first, np.array([1e5])) == ["<="]  # n = 8 is still running
    assert bounds(law.settings, largest, np.array([1e5])) == [">="]


def test_an_n_that_runs_on_at_another_batch_has_not_ended() -> None:
    longer = [*ragged(), *(Curve(f"64x{c.name}", c.compute_C, c.values_C, 64, 64) for c in ragged({64: 1e6}))]
    law = fit_law(longer, metric="avg@4", replicates=60)
    assert not any("n = 64 ends" in note for note in law.notes)


def test_the_papers_own_frontier_has_the_bounds_it_had() -> None:
    law = fit_law(figure_6(FIGURE_6_EASY), metric="avg@4", replicates=60)
    found = {row["rollouts_per_problem"]: row["bound"] for row in law.to_json()["frontier"]}
    assert found == {8: "<=", 32: None, 128: None, 256: None, 512: ">="}
    assert not any("not compared" in note for note in law.notes)


def test_records_do_not_depend_on_the_unit_of_the_metric() -> None:
    rng = np.random.default_rng(0)
    compute_C = np.geomspace(1e3, 1e6, 60)
    values_C = np.clip(hill(compute_C, 0.2, 0.7, 3e4, 1.0) + 0.01 * rng.standard_normal(60), 0, 1)
    counts = []
    for scale in (1.0, 100.0):
        law = fit_law([Curve("a", compute_C, scale * values_C, 32, 8)], metric="acc", replicates=60)
        counts.append(law.runs[0].records)
        assert law.bin_width == pytest.approx(0.005 * scale)
    assert counts[0] == counts[1] < 60


def test_large_rewards_are_read_in_words_and_fitted_in_silence() -> None:
    assert value(526780142884.771) == "527B" and value(-12345.0) == "-12.3k" and value(9999.5) == "9999.500"
    assert pair((5.2e11, 5.36e11)) == "520B–536B"
    compute_C = np.geomspace(1e3, 1e6, 30)
    exact_C = 1e12 * np.asarray(exponential(compute_C, 0.6, 0.4, 1e5))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit_law([Curve("a", compute_C, exact_C, 32, 8)], metric="reward", replicates=60)


def test_runs_on_different_scales_are_named() -> None:
    compute_C = np.geomspace(1e2, 1e4, 20)
    curves = [
        Curve(name, compute_C, top * np.asarray(hill(compute_C, 0.2, 0.8, 1e3, 1.0)))
        for name, top in (("rate", 1.0), ("sum", 9.0))
    ]
    assert any("different scales" in note for note in fit_law(curves, metric="train/avg", unit="steps").notes)
    assert not any("different scales" in note for note in fit_law(curves[:1], metric="train/avg", unit="steps").notes)


def test_what_to_run_where_the_end_is_a_bound() -> None:
    """An n that ended needs more compute, not a larger n."""
    cut = fit_law(ragged(), metric="avg@4", replicates=60).joint.rollouts
    edge = fit_law(figure_6(FIGURE_6_EASY), metric="avg@4", replicates=60).joint.rollouts
    assert cut is not None and edge is not None
    assert what_to_run(cut) == "n above 32 run to the end of the range: the next larger one ends before"
    assert what_to_run(edge) == "n above 512"


@pytest.mark.parametrize(
    ("low", "high", "scale", "upper"),
    [
        (0.05, 0.13, 1.0, 1.0),
        (-0.2, 0.9, 2.0, 1.0),
        (5.0, 13.0, 100.0, 93.0),  # a hard set in percent
        (20.0, 70.0, 100.0, 100.0),
        (0.0, 5.0, 5.0, 55.0),  # sums of rewards
        (0.7, 8.7, 8.0, 88.7),
        (-10.0, 10.0, 20.0, 210.0),
        (50.0, 400.0, 350.0, 3900.0),
    ],
)
def test_the_scale_and_the_bound_agree_on_what_is_percent(low: float, high: float, scale: float, upper: float) -> None:
    values = np.array([low, high])
    assert (scale_of(values), upper_bound(values)) == (pytest.approx(scale), pytest.approx(upper))


def test_a_ceiling_is_bounded_by_what_runs_of_its_study_can_reach() -> None:
    """A rate that has only begun to rise, beside runs that may be of another study, is bounded by its own scale; beside
    runs of other n, which have come further in the same metric, by theirs.
    """
    compute_C = np.geomspace(1e2, 1e4, 20)
    rate_C = 0.1 + 0.05 * compute_C / 1e4 + 0.005 * np.random.default_rng(0).standard_normal(20)
    for top in (9.0, 1.5):
        other = Curve("sum", compute_C, top * np.asarray(hill(compute_C, 0.2, 0.8, 1e3, 1.0)), 32)
        law = fit_law([Curve("rate", compute_C, rate_C, 32), other], metric="train/avg", unit="steps", replicates=60)
        assert law.runs[0].fit.ceiling_B.max() <= 1.0 < law.runs[1].fit.ceiling
    slow, fast = (hill(compute_C, 0.2, top, 5e3, 1.2) for top in (1.8, 2.9))
    sums = [Curve(f"{n}", compute_C, np.asarray(y), 32, n) for n, y in ((8, slow), (16, fast))]
    assert sums[0].values_C.max() < 1.5 and fit_law(sums, metric="avg@4", replicates=60).runs[0].fit.ceiling > 1.6


def test_the_assumed_seed_effect_is_named_where_n_are_compared_by_one_seed_each() -> None:
    compute_C = np.geomspace(1e2, 1e4, 20)
    for ns, seeds, named in (((None, None), 1, False), ((8, 16), 1, True), ((8, 16), 2, False)):
        curves = [
            Curve(f"{i}-{s}", compute_C, np.asarray(hill(compute_C, 0.2, 0.8, 1e3, 1.0)) + 0.001 * s, 32, n, s)
            for i, n in enumerate(ns)
            for s in range(seeds)
        ]
        notes = fit_law(curves, metric="avg@4", replicates=60).notes
        assert any("one seed a setting" in note and "3.0% of the rise" in note for note in notes) == named
