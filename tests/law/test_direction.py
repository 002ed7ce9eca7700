"""Whether n* moves: clear crossings, worlds where n makes no difference, and the test against closed forms."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.stats import norm

from isocompute.core.arrays import Array
from isocompute.core.curve import Curve
from isocompute.law.frontier import Grid, Movement, Optimum, Reading, fit_optima, movement
from isocompute.law.law import Law, fit_law
from tests.law.made_up import all_equal, hill, larger_wins, noisy, smaller_wins, smallest_leads, sweep

NS = (8, 16, 32, 64, 128)


def law_of(truth: Callable[[Array, int], Array], *, seed: int = 0, seeds: int = 1, ns: tuple[int, ...] = NS) -> Law:
    groups = sweep(truth, ns, seed=seed, seeds=seeds)
    return fit_law([curve for group in groups for curve in group], metric="avg@4", replicates=100)


def optimum_of(law: Law) -> Optimum:
    assert law.joint.rollouts is not None
    return law.joint.rollouts


# Verdicts.


@pytest.mark.parametrize(
    ("truth", "direction"), [(larger_wins, "rises"), (smaller_wins, "falls")], ids=["rises", "falls"]
)
def test_a_clear_crossing_is_said_to_be_one(truth: Callable[[Array, int], Array], direction: str) -> None:
    for seed in range(6):
        best = optimum_of(law_of(truth, seed=seed))
        likely, unlikely = (best.movement.rises, best.movement.falls)[:: 1 if direction == "rises" else -1]
        assert best.direction == direction and best.rises == (direction == "rises")
        assert likely < 0.05 and unlikely > 0.5
        assert best.movement.lead_interval[0] > 0


@pytest.mark.parametrize("truth", [all_equal, smallest_leads])
def test_an_optimum_that_stays_is_not_said_to_move(truth: Callable[[Array, int], Array]) -> None:
    """All n start at the base model's value, where noise decides who leads."""
    said = [optimum_of(law_of(truth, seed=seed, seeds=1 + seed % 2)).direction for seed in range(12)]
    assert said.count("rises") + said.count("falls") <= 1
    assert set(said) <= {"rises", "falls", "flat", "unclear"}


def test_where_the_smallest_n_is_the_best_throughout_n_is_flat() -> None:
    best = optimum_of(law_of(smallest_leads))
    assert best.direction == "flat" and set(best.estimate_C.tolist()) == {8.0}
    assert (best.floor_bound, best.ceiling_bound) == ("<=", "<=")


@pytest.mark.parametrize("spacing", ["steps", "log"])
def test_runs_of_equal_length_in_steps_do_not_make_n_rise(spacing: str) -> None:
    """The same curve for every n; larger n begin later and, in steps, end later."""
    directions, probabilities = [], []
    for draw in range(6):
        curves = []
        for n in NS:
            steps = np.arange(0, 401, 10) if spacing == "steps" else np.geomspace(2, 1e6 / (32 * n), 40)
            compute_C = steps * 32.0 * n
            curve = noisy(f"{n}", compute_C, all_equal(compute_C, n), noise=0.01, seed=100 * draw + n)
            curves.append(Curve(f"{n}", compute_C, curve.values_C, 32, n))
        best = optimum_of(fit_law(curves, metric="avg@4", replicates=100))
        directions.append(best.direction)
        probabilities.append(best.probability_rises)
    assert directions.count("rises") + directions.count("falls") <= 1
    assert max(probabilities) < 0.97


@pytest.mark.parametrize(("lead", "least", "most"), [(0.0, 0, 2), (0.06, 9, 10)])
def test_n_rises_where_larger_n_lead_not_where_all_are_equal(lead: float, least: int, most: int) -> None:
    """Five n of three seeds, of which the smallest leads at first; `lead` is that of the largest at the end."""
    rng, compute_C = np.random.default_rng(5), np.geomspace(1e4, 1e6, 25)
    rises = 0
    for _ in range(10):
        curves = []
        for i, n in enumerate((4, 8, 16, 32, 64)):
            for seed in range(3):
                rise = 0.3 + lead * i / 4 + 0.007 * rng.standard_normal()
                values_C = 0.3 + rise * (1 - np.exp(-compute_C / (2e4 * (n / 4) ** 0.6)))
                values_C = values_C + 0.005 * rng.standard_normal(25)
                curves.append(Curve(f"{n}-{seed}", compute_C, values_C, 32, n, seed))
        rises += optimum_of(fit_law(curves, metric="avg@4", replicates=100)).rises
    assert least <= rises <= most


# What is printed.


@pytest.mark.parametrize("truth", [larger_wins, smaller_wins, all_equal, smallest_leads])
def test_no_optimum_is_one_that_was_not_run(truth: Callable[[Array, int], Array]) -> None:
    law = law_of(truth)
    best, data = optimum_of(law), law.to_json()
    assert set(best.estimate_C.tolist()) <= set(NS) and set(best.interval_C2.ravel().tolist()) <= set(NS)
    assert (best.interval_C2[:, 0] <= best.estimate_C).all() and (best.estimate_C <= best.interval_C2[:, 1]).all()
    assert best.estimate_C.min() * (1 - 1e-9) <= best.ceiling <= best.estimate_C.max() * (1 + 1e-9)
    assert {row["rollouts_per_problem"] for row in data["frontier"]} <= set(NS)
    assert {int(n) for row in data["best"] for n in row["probability"]} <= set(NS)
    assert all(sum(row["probability"].values()) == pytest.approx(1.0) for row in data["best"])


def test_the_p_values_and_the_lead_are_printed() -> None:
    for truth in (larger_wins, all_equal):
        law = law_of(truth)
        printed, best = law.to_json()["optimal_rollouts"], optimum_of(law)
        assert (printed["p_rises"], printed["p_falls"]) == (best.movement.rises, best.movement.falls)
        assert 0.0 <= min(printed["p_rises"], printed["p_falls"]) <= max(printed["p_rises"], printed["p_falls"]) <= 1.0
        low, high = printed["final_lead_interval"]
        assert low <= printed["final_lead"] <= high


def test_the_final_lead_is_that_of_the_truth() -> None:
    """Two n at the largest compute; without seed effects the interval also holds a mean over seeds."""
    truth = float(np.diff([larger_wins(np.array([1e6]), n)[0] for n in (8, 64)])[0])
    inside = 0
    for seed in range(10):
        low, high = optimum_of(law_of(larger_wins, seed=seed, ns=(8, 64))).movement.lead_interval
        inside += low <= truth <= high
    assert inside >= 9


# The test itself.


def moved(values_SCB: Array, ns: tuple[int, ...]) -> Movement:
    """The movement along a grid whose samples are given, configurations × compute × samples."""
    fits = [SimpleNamespace(setting=(32, n), posterior=SimpleNamespace(rise=1e-9)) for n in ns]
    size = values_SCB.shape[1]
    samples = values_SCB.astype(np.float32)
    return movement(fits, Grid(np.geomspace(1, 10, size), samples, samples), slice(0, size), 1)  # type: ignore[arg-type]


def crossing(early: float, late: float, *, samples: int = 40_000) -> Array:
    """Two configurations: the first leads by `early` deviations at first and trails by `late` at the end."""
    rng = np.random.default_rng(0)
    lead_C2 = np.array([early, -late])
    first = lead_C2[:, None] + rng.standard_normal((2, samples))
    return np.stack([first, np.zeros_like(first)])


@pytest.mark.parametrize(("early", "late"), [(2.0, 1.0), (1.0, 2.0), (0.3, 3.0)])
def test_the_p_value_is_the_larger_of_those_of_both_leads(early: float, late: float) -> None:
    found = moved(crossing(early, late), (8, 64))
    assert found.rises == pytest.approx(norm.sf(min(early, late)), abs=0.01)
    assert found.falls == pytest.approx(norm.sf(-max(early, late)), abs=0.01)
    assert found.lead == pytest.approx(late, abs=0.03)
    assert found.lead_interval == pytest.approx((late - 1.96, late + 1.96), abs=0.05)


def test_exchanging_n_exchanges_rise_and_fall() -> None:
    values_SCB = crossing(1.5, 2.0)
    up, down = moved(values_SCB, (8, 64)), moved(values_SCB, (64, 8))
    assert (up.rises, up.falls) == (down.falls, down.rises)
    assert up.direction == "rises" and down.direction == "falls"


def test_a_lead_at_one_end_alone_is_no_movement() -> None:
    assert moved(crossing(5.0, 0.0), (8, 64)).direction is None
    assert moved(crossing(0.0, 5.0), (8, 64)).direction is None
    assert moved(crossing(5.0, 5.0), (8, 64)).direction == "rises"


def test_several_larger_n_that_may_each_lead_are_not_added_up() -> None:
    """One of three larger n leads in every sample, but none of them in most."""
    rng = np.random.default_rng(0)
    values_SCB = np.zeros((4, 2, 6000))
    values_SCB[0, 0] = 5.0
    values_SCB[1:, 1] = -1.0
    values_SCB[1 + rng.integers(0, 3, 6000), 1, np.arange(6000)] = 1.0
    assert moved(values_SCB, (8, 16, 32, 64)).rises == pytest.approx(2 / 3, abs=0.03)


def test_curves_without_noise_cross_where_their_formulas_do() -> None:
    compute_C = np.geomspace(1e4, 1e6, 40)
    curves = [
        Curve(f"{n}", compute_C, hill(compute_C, 0.3, top, middle, 1.2), 32, n)
        for n, top, middle in ((8, 0.5, 3e4), (64, 0.65, 2e5))
    ]
    law = fit_law(curves, metric="avg@4", replicates=100)
    (switch,) = law.joint.frontier.switches
    fine_C = np.geomspace(1e4, 1e6, 100_000)
    lead_C = hill(fine_C, 0.3, 0.65, 2e5, 1.2) - hill(fine_C, 0.3, 0.5, 3e4, 1.2)
    assert switch.crosses and switch.compute == pytest.approx(fine_C[np.flatnonzero(lead_C > 0)[0]], rel=0.05)


@pytest.mark.parametrize(
    ("optimum", "said", "ends"),
    [
        ([32, 8, 8, 16, 16, 64], "rises", (8, 64)),  # the first is noise
        ([16, 32, 16, 16, 16, 16], "unclear", (16, 16)),  # the frontier does not rise, whatever the samples do
        ([8, 8, 16, 16, 16, 16], "rises", (8, 16)),
    ],
)
def test_n_rises_from_the_smallest_that_led_to_the_one_at_the_end(
    optimum: list[float], said: str, ends: tuple[float, float]
) -> None:
    moved = Movement(rises=0.01, falls=0.9, lead=0.02, lead_interval=(0.01, 0.03))
    x_C, optimum_C = np.geomspace(1e4, 1e6, 6), np.array(optimum, dtype=np.float64)
    reading = Reading(x_C, optimum_C, np.tile(optimum_C, (20, 1)), np.array([8.0, 16, 32, 64, 128]), moved)
    (best,) = fit_optima([reading])
    assert best.direction == said
    assert (best.floor, best.ceiling) == ends and best.floor in optimum and best.ceiling in optimum
    assert best.saturates == (said == "rises" and len(set(optimum[-2:])) == 1)
    if said == "rises":
        assert best.floor < optimum[x_C.tolist().index(best.halfway)] <= best.ceiling
