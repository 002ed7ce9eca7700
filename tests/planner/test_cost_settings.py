"""The cost of a rollout by setting: measured if it was timed, else interpolated between other settings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

import isocompute
from isocompute.core.allocation import Allocation
from isocompute.data import Run, RunSettings
from isocompute.planner.cost.prices import Hardware, Prices, prices
from isocompute.planner.cost.throughput import Throughput, TimedSettings
from isocompute.planner.request import Budget
from tests.conftest import rising, write_points

STEP = 55.2


def steady(bp: int | None, n: int | None, *, seconds: float = STEP, batch: int | None = None, gpus: int = 8) -> Run:
    """A run whose every step takes so many seconds."""
    size = batch or (bp or 1) * (n or 1)
    points = pl.DataFrame({"rollouts": np.arange(1, 12) * size, "seconds": np.arange(1, 12) * seconds})
    settings = RunSettings(problems_per_batch=bp, rollouts_per_problem=n, gpus=gpus)
    return Run(f"{bp}x{n}", settings, points)


def priced(*runs: Run) -> Prices:
    return prices(Hardware(gpus=8, price_per_gpu_hour=2.0), runs=runs)


def steps_for(found: Prices, bp: int, n: int, dollars: float) -> float:
    return found.rates(bp, n).rollouts(Budget(dollars, "money")) / (bp * n)


@pytest.mark.parametrize("by_law", [False, True])
def test_a_setting_that_was_timed_costs_what_its_own_runs_took(by_law: bool) -> None:
    runs = [steady(64, n) for n in (4, 8, 32)]
    money = Hardware(gpus=8, price_per_gpu_hour=2.0)
    found = prices(money, law_runs=runs) if by_law else prices(money, runs=runs)
    for n in (4, 8, 32):
        assert steps_for(found, 64, n, 20.0) == pytest.approx(20 / 2 / 8 * 3600 / STEP)
        cost = found.cost(Allocation(64, n, 81))
        assert cost["seconds_per_step"] == pytest.approx(STEP)
        assert cost["seconds_interval"] == pytest.approx([81 * STEP, 81 * STEP])
        assert cost["money"] == pytest.approx(81 * STEP * 8 / 3600 * 2)


def test_settings_of_one_batch_keep_their_own_times() -> None:
    """64 prompts of 4 rollouts take longer to read than 32 of 8; a third of that batch lies between them."""
    found = priced(steady(64, 4, seconds=20.0), steady(32, 8, seconds=10.0))
    times = [found.cost(Allocation(bp, n, 1))["seconds_per_step"] for bp, n in ((64, 4), (32, 8), (16, 16))]
    assert times == pytest.approx([20.0, 10.0, np.sqrt(200.0)])


def test_seeds_of_a_setting_are_timed_together() -> None:
    found = priced(steady(32, 8, seconds=10.0), steady(32, 8, seconds=14.0), steady(32, 16, seconds=40.0))
    low, high = found.cost(Allocation(32, 8, 100))["seconds_interval"]
    assert low == pytest.approx(1000) and high == pytest.approx(1400)
    assert found.cost(Allocation(32, 16, 100))["seconds"] == pytest.approx(4000)


def test_between_timed_batches_the_rate_lies_between_theirs() -> None:
    found = priced(*(steady(64, n) for n in (4, 8, 32)))
    cost = found.cost(Allocation(64, 16, 10))
    assert cost["seconds_per_step"] == pytest.approx(
        STEP
    )  # 64 × 16 is between 64 × 8 and 64 × 32, whose steps take as long
    assert cost["seconds_interval"] == pytest.approx([10 * STEP / 2, 10 * STEP * 2])
    assert steps_for(found, 64, 16, 20.0) == pytest.approx(steps_for(found, 64, 8, 20.0))
    assert found.cost(Allocation(32, 16, 10))["seconds_per_step"] == pytest.approx(STEP)  # the batch of 64 × 8


def test_beyond_the_timed_batches_a_small_one_gets_no_cheaper_than_was_seen_and_a_large_one_neither() -> None:
    found = priced(*(steady(64, n) for n in (4, 8, 32)))
    small, large = found.cost(Allocation(64, 2, 10)), found.cost(Allocation(64, 64, 10))
    assert small["seconds_per_step"] == pytest.approx(STEP)
    assert small["seconds_interval"] == pytest.approx([10 * STEP / 2, 10 * STEP])
    assert large["seconds_per_step"] == pytest.approx(2 * STEP)
    assert large["seconds_interval"] == pytest.approx([10 * STEP, 20 * STEP])


def test_where_a_rollout_takes_as_long_in_every_batch_it_does_in_all() -> None:
    found = priced(*(steady(32, n, seconds=4.0 * n) for n in (8, 16)))
    for n in (2, 8, 12, 16, 128):
        assert found.cost(Allocation(32, n, 10))["seconds_per_step"] == pytest.approx(4.0 * n)
        assert found.doubts(Allocation(32, n, 10)) == []


def test_the_order_of_larger_batches_that_are_slower_is_kept() -> None:
    """A batch that spills out of memory takes longer for each rollout; a smaller one is not made cheaper for it."""
    timed = TimedSettings({(1, 8): Throughput(4.0, "measured"), (1, 16): Throughput(1.0, "measured")})
    assert timed.at(1, 4).rollouts_per_gpu_second == pytest.approx(4.0)
    assert timed.at(1, 32).rollouts_per_gpu_second == pytest.approx(1.0)
    assert timed.at(2, 8).rollouts_per_gpu_second == pytest.approx(1.0)
    assert timed.at(1, 32).interval == pytest.approx((1.0, 2.0))


def test_a_setting_that_was_not_timed_is_doubtful_where_timed_ones_differ() -> None:
    found = priced(*(steady(64, n) for n in (4, 8, 32)))
    assert found.doubts(Allocation(64, 8, 10)) == []
    (warning,) = found.doubts(Allocation(64, 16, 10))
    assert warning.code == "throughput_differs"
    assert "64 × 16 was not timed" in warning.message and "8 times" in warning.message
    assert "64 × 4" in warning.message and "64 × 32" in warning.message
    near = priced(steady(64, 8), steady(64, 32, seconds=3.0 * STEP))  # a rate 1.33 times as high
    assert near.doubts(Allocation(64, 16, 10)) == []


def test_runs_that_do_not_say_their_batch_give_one_rate_for_all() -> None:
    found = priced(steady(None, None, batch=512))
    assert found.cost(Allocation(64, 16, 10))["seconds_per_step"] == pytest.approx(2 * STEP)
    assert found.doubts(Allocation(64, 16, 10)) == []


def test_money_buys_as_many_steps_as_the_logs_say(tmp_path: Path) -> None:
    """Every step takes 55.2 s, whatever its n: $20 are 81 steps at any n."""
    for n in (4, 8, 32):
        points = [p | {"seconds": STEP * p["step"]} for p in rising(every=640 * n, ceiling=0.5 + 0.02 * n**0.5)]
        write_points(tmp_path / "runs" / f"n{n}", points, problems_per_batch=64, rollouts_per_problem=n, seed=0)
    law = tmp_path / "runs"
    plan = isocompute.plan(budget="$20", law=law, gpus=8, price_per_gpu_hour=2.0, replicates=60)
    options = (plan.chosen, *plan.alternatives)
    assert {(o.allocation.rollouts_per_problem, o.allocation.update_steps) for o in options} == {
        (4, 81), (8, 81), (32, 81),
    }  # fmt: skip
    cost = plan.prices.cost(plan.allocation)
    assert cost["seconds"] == pytest.approx(81 * STEP) and 19.8 < cost["money"] < 20
    assert "throughput_differs" not in {w.code for w in plan.warnings}
    asked = {"budget": "$20", "law": law, "gpus": 8, "price_per_gpu_hour": 2.0, "replicates": 60}
    other = isocompute.plan(**asked, problems_per_batch=32)
    assert "throughput_differs" in {w.code for w in other.warnings}


def test_a_budget_of_rollouts_is_planned_alike_whatever_was_timed(tmp_path: Path) -> None:
    for n in (4, 8, 32):
        for folder, clock in (("timed", {"seconds": STEP}), ("silent", {})):
            points = [p | {k: v * p["step"] for k, v in clock.items()} for p in rising(every=640 * n)]
            write_points(tmp_path / folder / f"n{n}", points, problems_per_batch=64, rollouts_per_problem=n, seed=0)
    timed, silent = (
        isocompute.plan(budget=50_000, law=tmp_path / folder, gpus=8, replicates=60) for folder in ("timed", "silent")
    )
    assert timed.targets == silent.targets and timed.allocation == silent.allocation
    assert np.array_equal(timed.values_AB, silent.values_AB)
