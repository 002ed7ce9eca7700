"""A small set caps n (IsoCompute figure 13), and a warning names a setting whose runs ended long before the budget."""

from __future__ import annotations

import numpy as np
import pytest

import isocompute
from isocompute.core.curve import Curve
from isocompute.law.law import Law, fit_law
from tests.law.made_up import hill

LARGE = 4e6
"""Where n = 512 leads on the paper's 6,000 easy problems (figure 6)."""


def n_of(plan: isocompute.Plan) -> int:
    return plan.allocation.rollouts_per_problem


def message_of(plan: isocompute.Plan, code: str) -> str:
    return " ".join(w.message for w in plan.warnings if w.code == code)


@pytest.mark.parametrize(
    ("law", "problems", "n"),
    [
        ("isocompute/bp32-easy", 6000, 512),
        ("isocompute/bp32-easy", 1001, 512),
        ("isocompute/bp32-easy", 1000, 256),
        ("isocompute/bp32-easy", 500, 256),  # figure 13: on D = 500 the frontier ends at n = 256
    ],
)
def test_a_published_law_of_a_large_set_is_capped_on_a_small_one(law: str, problems: int, n: int) -> None:
    plan = isocompute.plan(budget=LARGE, law=law, problems=problems, replicates=60)
    assert n_of(plan) == n
    assert all(a.rollouts_per_problem <= max(n, 256) for a in plan.targets)
    message = message_of(plan, "small_set")
    assert ("left out" in message and "--n 512" in message) == (n == 256)


def test_a_file_of_pass_rates_may_be_a_sample_of_the_set() -> None:
    """Its rows warn; only `--problems` says how many there are."""
    for rows in (3, 500):
        plan = isocompute.plan(budget=LARGE, law="isocompute/bp32-easy", pass_rates=[0.4] * rows, replicates=60)
        assert n_of(plan) == 512
        assert "overfit" in message_of(plan, "small_set")


def test_n_that_is_asked_for_stays_with_the_warning() -> None:
    plan = isocompute.plan(
        budget=LARGE, law="isocompute/bp32-easy", problems=500, rollouts_per_problem=[256, 512], replicates=60
    )
    assert n_of(plan) == 512
    assert "overfits" in message_of(plan, "small_set") and "left out" not in message_of(plan, "small_set")


def test_the_cap_gives_way_where_nothing_else_is_left() -> None:
    only = isocompute.plan(
        budget=2e6, law="isocompute/batch8192-easy", problems_per_batch=16, problems=500, replicates=60
    )
    assert n_of(only) == 512  # B = 8,192 with Bp = 16 is n = 512 and nothing else


def sweep(last: dict[int, float], ceiling: float = 0.03) -> Law:
    rng = np.random.default_rng(1)
    curves = []
    for n, end in last.items():
        compute_C = np.geomspace(1e4, end, 24)
        values_C = hill(compute_C, 0.2, 0.4 + ceiling * np.log2(n), 2e4 * (n / 8) ** 0.3, 1.2)
        curves.append(Curve(f"n{n}", compute_C, values_C + 0.002 * rng.standard_normal(24), 32, n))
    return fit_law(curves, metric="avg@4", replicates=100)


def test_a_law_of_ones_own_runs_is_not_capped() -> None:
    plan = isocompute.plan(budget=1e6, law=sweep({128: 1e6, 256: 1e6, 512: 1e6}), problems=500)
    assert n_of(plan) == 512
    assert "left out" not in message_of(plan, "small_set")


def test_a_setting_that_ended_before_the_budget_is_named_with_the_run_that_would_tell() -> None:
    even = isocompute.plan(budget=1e6, law=sweep({8: 1e6, 32: 1e6, 128: 1e6}))
    assert n_of(even) == 128 and not message_of(even, "extrapolated_setting")
    short = isocompute.plan(budget=1e6, law=sweep({8: 1e6, 32: 1e6, 128: 2e5}))
    assert n_of(short) == 128
    message = message_of(short, "extrapolated_setting")
    assert "it was run to 200k rollouts" in message and "run 32 × 128 to 500k rollouts to find out" in message
    near = isocompute.plan(budget=1e6, law=sweep({8: 1e6, 32: 1e6, 128: 9e5}))
    assert n_of(near) == 128 and not message_of(near, "extrapolated_setting")  # within a quarter


def test_beyond_the_whole_law_the_run_that_would_tell_is_named_too() -> None:
    plan = isocompute.plan(budget=4e6, law=sweep({8: 1e6, 32: 1e6, 128: 1e6}))
    assert "4 times above the range" in message_of(plan, "extrapolation")
    assert "run 32 × 128 to 2M rollouts to find out" in message_of(plan, "extrapolated_setting")
