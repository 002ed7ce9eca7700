"""Budgets, allocations and the choice among them, against exact enumeration and scipy."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

import isocompute
from isocompute import InputError
from isocompute.core.curve import Curve
from isocompute.law.law import fit_law
from isocompute.planner.candidates import Allocation, Constraints, allocations
from isocompute.planner.cost.prices import Rates
from isocompute.planner.decide import EQUAL, TIE, rank
from isocompute.planner.next_runs import propose
from isocompute.planner.request import Budget, PlanRequest, parse_budget

POWERS = [2**i for i in range(1, 12)]
values = st.lists(st.sampled_from(POWERS), min_size=1, max_size=4, unique=True)
some = st.one_of(st.none(), st.integers(1, 4096))


@pytest.mark.parametrize(
    ("text", "amount", "unit"),
    [
        ("2e6", 2e6, "rollouts"),
        ("2M", 2e6, "rollouts"),
        ("1_000", 1000.0, "rollouts"),
        ("1,000,000", 1e6, "rollouts"),
        ("12,500.5h", 12500.5, "gpu_hours"),
        (500, 500.0, "rollouts"),
        ("3e9tok", 3e9, "tokens"),
        ("3Btok", 3e9, "tokens"),
        ("500h", 500.0, "gpu_hours"),
        ("1.5kh", 1500.0, "gpu_hours"),
        ("$2000", 2000.0, "money"),
        ("$2,000", 2000.0, "money"),
        ("$2k", 2000.0, "money"),
    ],
)
def test_budgets_as_people_write_them(text: str | float, amount: float, unit: str) -> None:
    assert parse_budget(text) == Budget(amount, unit)


@pytest.mark.parametrize("text", ["", "h", "-5", "0", "2e6x", "$5h", "1.2.3", "nan", "inf", "tok", "two"])
def test_what_is_no_budget_is_refused_with_examples(text: str) -> None:
    with pytest.raises(InputError, match="3e9tok"):
        parse_budget(text)


@pytest.mark.parametrize(
    ("text", "instead"),
    [
        ("2,5h", "2.5h"),
        ("1,5e6", "1.5e6"),
        ("$2,50", "$2.50"),
        ("10,00", "10.00"),
        ("1,0000", "1.0000"),
        (",5h", ".5h"),
    ],
)
def test_a_decimal_comma_is_not_taken_for_thousands(text: str, instead: str) -> None:
    with pytest.raises(InputError, match=rf"commas go between thousands, as in 1,000,000, or {re.escape(instead)} "):
        parse_budget(text)


@given(st.floats(1, 1e5), st.floats(1e-6, 1), st.floats(0.1, 10), st.floats(1, 1e8))
def test_conversions_are_consistent(tokens: float, hours: float, price: float, amount: float) -> None:
    rates = Rates(tokens, hours, price)
    for unit in ("rollouts", "tokens", "gpu_hours", "money"):
        rollouts = rates.rollouts(Budget(amount, unit))
        assert rates.amount(rollouts, unit) == pytest.approx(amount)


@pytest.mark.parametrize(
    ("unit", "option"), [("tokens", "--response-tokens"), ("gpu_hours", "--rollouts-per-second"), ("money", "through")]
)
def test_a_conversion_that_lacks_a_number_names_its_option(unit: str, option: str) -> None:
    with pytest.raises(InputError, match=option):
        Rates().rollouts(Budget(1.0, unit))


@given(
    budget=st.integers(1, 3_000_000),
    problems=values,
    rollouts=values,
    max_batch=some,
    gpus=st.one_of(st.none(), st.sampled_from([1, 2, 3, 8, 64])),
    min_updates=st.integers(1, 50),
    size=some,
    low=st.sampled_from([1, 8, 64]),
    n=st.one_of(st.none(), values),
)
def test_allocations_are_the_exact_enumeration(
    budget: int,
    problems: list[int],
    rollouts: list[int],
    max_batch: int | None,
    gpus: int | None,
    min_updates: int,
    size: int | None,
    low: int,
    n: list[int] | None,
) -> None:
    constraints = Constraints(
        max_batch=max_batch,
        gpus=gpus,
        min_updates=min_updates,
        problems=size,
        stable_problems=(low, 1024),
        rollouts_per_problem=None if n is None else tuple(n),
    )
    expected = set()
    for bp, each in itertools.product(problems, rollouts):
        if max_batch is not None and bp * each > max_batch:
            continue
        if gpus is not None and (bp * each) % gpus:
            continue
        if size is not None and bp > size:
            continue
        if not low <= bp <= 1024 or (n is not None and each not in n):
            continue
        updates = max(m for m in (budget // (bp * each), budget // (bp * each) + 1) if m * bp * each <= budget)
        if updates >= min_updates:
            expected.add((bp, each, updates))
    pairs = list(itertools.product(problems, rollouts))
    if not expected:
        with pytest.raises(InputError):
            allocations(budget=budget, settings=pairs, constraints=constraints)
        return
    found = allocations(budget=budget, settings=pairs, constraints=constraints)
    assert {(a.problems_per_batch, a.rollouts_per_problem, a.update_steps) for a in found} == expected
    for a in found:
        most = max(
            m * a.batch_size
            for m in range(max(1, a.update_steps - 2), a.update_steps + 3)
            if m * a.batch_size <= budget
        )
        assert a.compute <= budget
        assert a.compute >= 0.99 * most


@given(st.integers(1, 400), st.integers(1, 400))
def test_a_budget_under_one_batch_names_the_smallest_that_works(budget: int, size: int) -> None:
    assume(budget < size)
    with pytest.raises(InputError, match=f"{size:,}"):
        allocations(budget=budget, settings=[(size, 1)])


@pytest.mark.parametrize(
    ("constraints", "message"),
    [
        (Constraints(batch_size=100, problems_per_batch=32), "--batch 256"),
        (Constraints(batch_size=500, problems_per_batch=32), "--batch 512"),
        (Constraints(batch_size=100, gpus=8), "--batch 256"),
        (Constraints(rollouts_per_problem=(20,)), "--n 16"),
        (Constraints(rollouts_per_problem=(64,), max_batch=128), "32 × 8 would with --n 8 and --max-batch 256"),
        (Constraints(problems_per_batch=64, rollouts_per_problem=(4,)), "--problems-per-batch 32 and --n 8"),
        (Constraints(problems_per_batch=512, problems=400), "32 × 8 would with --problems-per-batch 32"),
        (Constraints(max_batch=128), "--max-batch 256"),
        (Constraints(gpus=3), "--gpus 4"),
        (Constraints(gpus=6), "--gpus 8"),
        (Constraints(batch_size=512, gpus=3), "--gpus 4"),
        (Constraints(rollouts_per_problem=(5,)), "--n 8"),
        (Constraints(min_updates=10_000), "--min-updates 3906"),
    ],
)
def test_contradictions_are_named_with_what_would_work(constraints: Constraints, message: str) -> None:
    with pytest.raises(InputError, match=message):
        allocations(budget=1e6, settings=[(32, 8), (32, 16)], constraints=constraints)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"batch_size": 100, "max_batch": 64}, "--max-batch to 100"),
        ({"stable_problems": (64, 32)}, "32-64"),
        ({"problems_per_batch": 512, "stable_problems": (32, 256)}, "--problems-per-batch 256"),
        ({"problms": 3}, "problms: plan has no such argument; it has budget, law"),
        ({"law": None, "budget": "two"}, "--budget two: give a positive amount"),
    ],
)
def test_a_request_that_contradicts_itself_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        PlanRequest.of(**{"budget": 1e6} | given)


NOT_COUNTS: list[tuple[dict[str, Any], str]] = [
    ({"rollouts_per_problem": [0]}, "--n 0: give whole numbers of at least 1, such as 8,16,32"),
    ({"rollouts_per_problem": 0}, "--n 0: give whole numbers"),
    ({"rollouts_per_problem": []}, "give whole numbers"),
    ({"rollouts_per_problem": [8.5]}, "--n 8.5: give whole numbers"),
    ({"gpus": 0}, "--gpus 0: give a whole number of at least 1, such as 8"),
    ({"problems_per_batch": -3}, "--problems-per-batch -3: give a whole number"),
    ({"batch_size": 2.5}, "--batch 2.5: give a whole number"),
    ({"max_batch": 0}, "--max-batch 0: give a whole number"),
    ({"min_updates": 0}, "--min-updates 0: give a whole number"),
    ({"problems": 0}, "--problems 0: give a whole number"),
    ({"stable_problems": (0, 64)}, "--stable-problems 0-64: give the smallest and the largest Bp"),
]


@pytest.mark.parametrize(("given", "message"), NOT_COUNTS)
def test_constraints_from_python_are_whole_numbers(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        isocompute.plan(budget=2e6, law="isocompute/bp32-easy", replicates=20, **given)


def test_one_n_is_a_list_of_one() -> None:
    one, listed = (
        isocompute.plan(budget=2e6, law="isocompute/bp32-easy", replicates=20, rollouts_per_problem=n).allocation
        for n in (32, [32])
    )
    assert one == listed == Allocation(32, 32, 2_000_000 // (32 * 32))


@pytest.mark.parametrize("law", ["isocompute/bp32-easy", "isocompute/joint-easy", "isocompute/batch8192-easy"])
@pytest.mark.parametrize(
    "constraints",
    [{"gpus": 3}, {"gpus": 6}, {"gpus": 12, "batch_size": 8192}, {"problems_per_batch": 48, "batch_size": 8192}],
)
def test_what_is_suggested_works(law: str, constraints: dict[str, Any]) -> None:
    """Every `--option N` of a refusal, tried on its own."""
    options = {"--gpus": "gpus", "--problems-per-batch": "problems_per_batch", "--batch": "batch_size"}
    if law == "isocompute/bp32-easy" and constraints.get("problems_per_batch"):
        constraints = {"problems_per_batch": 32, "batch_size": 8000}
    with pytest.raises(InputError) as refused:
        isocompute.plan(budget=2e6, law=law, replicates=20, **constraints)
    suggested = str(refused.value).partition(";")[2]
    found = re.findall(r"(--gpus|--problems-per-batch|--batch) (\d+)", suggested)
    assert found, refused.value
    for alternative in suggested.split(", or "):
        changed = {options[option]: int(n) for option, n in re.findall(r"(--[a-z-]+) (\d+)", alternative)}
        plan = isocompute.plan(budget=2e6, law=law, replicates=20, **(constraints | changed))
        assert plan.allocation.batch_size % (plan.constraints.gpus or 1) == 0


@pytest.mark.parametrize(
    ("budget", "options"),
    [
        ("100", {"law": "isocompute/bp32-easy"}),
        ("100", {"law": "isocompute/joint-easy", "min_updates": 100}),
        ("1000tok", {"law": "isocompute/bp32-easy", "response_tokens": 1000}),
        (".001h", {"law": "isocompute/bp32-easy", "rollouts_per_second": 12.0, "gpus": 8}),
        ("1h", {"law": "scalerl/8b"}),
        ("2000", {"law": "isocompute/bp32-easy"}),
        ("4600", {"law": "isocompute/bp32-easy"}),
    ],
)
def test_the_smallest_budget_that_is_named_works_and_less_does_not(budget: str, options: dict[str, Any]) -> None:
    with pytest.raises(InputError) as refused:
        isocompute.plan(budget=budget, replicates=20, **options)
    found = re.search(r"(?:that works is|at least --budget) ([\d,.]+(?:h|tok)?)(?=[.,;]? ?)", str(refused.value))
    assert found is not None, refused.value
    named = found[1].rstrip(".,")
    assert isocompute.plan(budget=named, replicates=20, **options).allocation.update_steps >= 1
    amount = parse_budget(named)
    with pytest.raises(InputError):
        isocompute.plan(budget=replace(amount, amount=0.98 * amount.amount), replicates=20, **options)


def test_ranking_agrees_with_a_loop_over_samples() -> None:
    rng = np.random.default_rng(0)
    values_AB = rng.normal(size=(6, 500)) * 0.05 + np.linspace(0, 0.1, 6)[:, None]
    ranking = rank(values_AB)
    wins = [int(np.argmax(column)) for column in values_AB.T]
    best = int(values_AB.mean(axis=1).argmax())
    assert ranking[0].index == best
    assert ranking[0].regret == 0.0
    assert sum(r.probability_best or 0.0 for r in ranking) == pytest.approx(1.0)
    for r in ranking:
        assert r.probability_best == pytest.approx(wins.count(r.index) / 500)
        assert r.regret == pytest.approx(np.mean([values_AB[best, b] - values_AB[r.index, b] for b in range(500)]))
    assert [r.value for r in ranking] == sorted((r.value for r in ranking), reverse=True)


def test_of_equal_allocations_the_first_is_chosen() -> None:
    values_AB = np.array([[0.5, 0.6], [0.5002, 0.6002], [0.4, 0.4]])
    assert rank(values_AB)[0].index == 0
    values_AB[1] += EQUAL
    assert rank(values_AB)[0].index == 1
    assert rank(100 * values_AB, scale=100.0)[0].index == 1
    assert rank(100 * values_AB, scale=1000.0)[0].index == 0


def test_the_choice_at_smaller_budgets_stands_among_equals() -> None:
    values_AB = np.array([[0.5, 0.6], [0.5009, 0.6009], [0.4, 0.4]])
    assert rank(values_AB)[0].index == 1
    assert rank(values_AB, incumbent=0)[0].index == 0
    values_AB[1] += 2 * EQUAL
    assert rank(values_AB, incumbent=0)[0].index == 1, "it is distinctly better"


def test_more_budget_never_means_less_reward_and_few_changes() -> None:
    """Ten n of one ceiling but the smallest, which overfits: budgets over three decades, 12% apart."""
    rng, curves = np.random.default_rng(0), []
    for n in (4, 8, 16, 32, 64, 128):
        compute_C = np.geomspace(64.0 * n, 1e6, 40)
        values_C = 0.3 + 0.3 / (1 + (1e4 * (n / 8) ** 0.5 / compute_C) ** 1.2)
        values_C -= 0.02 * np.log(np.maximum(compute_C / 1e5, 1.0)) * (n == 4)
        curves += [Curve(f"{n}", compute_C, values_C + 0.004 * rng.standard_normal(40), 32, n, seed=0)]
    law = fit_law(curves, metric="avg@4", replicates=200)
    plans = [isocompute.plan(budget=float(b), law=law) for b in np.geomspace(2e4, 8e6, 53)]
    values_K = np.array([plan.chosen.ranked.value for plan in plans])
    assert np.diff(values_K).min() > -2e-4, "whole updates spend budgets to within a batch"
    names = [plan.allocation.rollouts_per_problem for plan in plans]
    assert names == sorted(names) and len(set(names)) <= 4


def test_ties_lose_at_most_the_tolerance_or_one_standard_error() -> None:
    """Three rows .002, .004 and .02 behind the best; the last is as noisy as it is behind."""
    rng = np.random.default_rng(3)
    z_B = rng.standard_normal(4000)
    z_B = (z_B - z_B.mean()) / z_B.std()
    values_AB = 0.6 - np.outer([0.0, 0.002, 0.004, 0.02], np.ones(4000)) + np.outer([0, 0, 0, 0.0201], z_B)
    ties = {r.index: r.ties for r in rank(values_AB)}
    assert ties == {0: True, 1: True, 2: False, 3: True}
    (_, _, third, fourth) = sorted(rank(values_AB), key=lambda r: r.index)
    assert (third.tolerance, fourth.tolerance) == (TIE, pytest.approx(0.0201))
    in_percent = {r.index: r.ties for r in rank(100 * values_AB, scale=100.0)}
    assert in_percent == ties


def test_beyond_the_data_no_chance_of_being_the_best_is_given() -> None:
    values_AB = np.random.default_rng(0).normal(0.5, 0.01, (3, 100))
    assert all(r.probability_best is not None for r in rank(values_AB, inside=True))
    assert all(r.probability_best is None for r in rank(values_AB, inside=False))


def test_the_value_of_one_look_at_one_of_two_is_the_textbook_one() -> None:
    """Two settings, one known to be 0, the other N(m, s²): the gain of a look is s̃ φ(m/s̃) - |m| Φ(-|m|/s̃)."""
    rng = np.random.default_rng(1)
    m, s, noise = -0.01, 0.02, 0.005
    z = rng.standard_normal(200_000)
    z = (z - z.mean()) / z.std(ddof=1)
    values_AB = np.stack([np.zeros_like(z), m + s * z])
    cells = [Allocation(1, 2, 1), Allocation(1, 4, 1)]
    found = propose(values_AB=values_AB, observed_EB=values_AB, cells=cells, count=1, noise=noise)
    moved = s * s / math.sqrt(s * s + noise * noise)
    expected = moved * stats.norm.pdf(m / moved) - abs(m) * stats.norm.cdf(-abs(m) / moved)
    assert found[0].allocation.rollouts_per_problem == 4
    assert found[0].gain == pytest.approx(expected, rel=0.1)


def test_what_cannot_change_the_decision_is_not_proposed() -> None:
    rng = np.random.default_rng(2)
    values_AB = np.array([[0.9], [0.1]]) + 0.001 * rng.standard_normal((2, 400))
    cells = [Allocation(1, 2, 1), Allocation(1, 4, 1)]
    assert propose(values_AB=values_AB, observed_EB=values_AB, cells=cells, count=2, noise=0.003) == []


def test_proposals_are_one_study() -> None:
    rng = np.random.default_rng(3)
    cells = [Allocation(bp, n, 6400 // (bp * n)) for bp in (4, 8) for n in (2, 4, 8)]
    values_AB = 0.05 * rng.standard_normal((6, 400))
    found = propose(values_AB=values_AB, observed_EB=values_AB, cells=cells, count=3, noise=0.003)
    assert len(found) == 3
    assert len({p.allocation.problems_per_batch for p in found}) == 1
    assert len({p.allocation.rollouts_per_problem for p in found}) == 3
