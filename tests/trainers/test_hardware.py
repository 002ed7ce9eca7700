"""Splitting an update over GPUs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isocompute.core.errors import InputError
from isocompute.trainers import RunPlan, TrainingHardware, make_plan
from isocompute.trainers.plan_input import nearest_divisible, share_out
from tests.trainers.plans import cases


@given(case=cases())
def test_shares_add_up_and_fit(case: tuple[RunPlan, TrainingHardware]) -> None:
    plan, hardware = case
    share = share_out(plan, hardware)
    assert share.gpus * share.micro_batch * share.accumulation == plan.batch_size
    if hardware.max_sequences is not None:
        assert share.micro_batch <= hardware.max_sequences
    if hardware.max_tokens is not None:
        assert share.micro_batch * (plan.max_prompt_length + plan.max_response_length) <= hardware.max_tokens


@given(problems=st.integers(1, 60), rollouts=st.integers(2, 60), gpus=st.integers(1, 40))
def test_nearest_divisible_are_the_nearest_that_divide(problems: int, rollouts: int, gpus: int) -> None:
    found = nearest_divisible(problems, rollouts, gpus)
    assert all(bp * n % gpus == 0 and n >= 2 for bp, n in found)
    if problems * rollouts % gpus:
        rows = [bp for bp in range(1, problems + gpus + 1) if bp * rollouts % gpus == 0]
        columns = [n for n in range(2, rollouts + gpus + 1) if problems * n % gpus == 0]
        best = {(min(b for b in rows if b > problems), rollouts), (problems, min(n for n in columns if n > rollouts))}
        below = {(b, rollouts) for b in rows if b < problems}, {(problems, n) for n in columns if n < rollouts}
        best |= {max(side) for side in below if side}
        assert set(found) == best


def test_an_impossible_plan_names_the_nearest_possible_ones() -> None:
    with pytest.raises(InputError, match=r"33 × 7 = 231 .* 8 GPUs.*: 32 × 7, 33 × 8, 40 × 7"):
        share_out(make_plan({"Bp": 33, "n": 7, "M": 10}), TrainingHardware(gpus=8))


def test_nodes_are_whole() -> None:
    assert (TrainingHardware(gpus=16).nodes, TrainingHardware(gpus=16).gpus_on_node) == (2, 8)
    assert (TrainingHardware(gpus=6).nodes, TrainingHardware(gpus=6).gpus_on_node) == (1, 6)
    with pytest.raises(InputError, match="12 GPUs are not a whole number of nodes of 8; take 8 or 16"):
        TrainingHardware(gpus=12)


def test_a_sequence_must_fit() -> None:
    plan = make_plan({"Bp": 8, "n": 8, "M": 1, "max_prompt_length": 100, "max_response_length": 1000})
    with pytest.raises(InputError, match=r"1000 tokens per device do not fit a sequence of 100 \+ 1000"):
        share_out(plan, TrainingHardware(max_tokens=1000))
