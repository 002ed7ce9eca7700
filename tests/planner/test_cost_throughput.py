"""Throughput and efficiency from runs that log their times."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import polars as pl
import pytest

from isocompute.core.allocation import Allocation
from isocompute.core.errors import InputError
from isocompute.data import Run, RunSettings
from isocompute.planner.cost.hardware import Efficiency, find_gpu, step_cost
from isocompute.planner.cost.throughput import Throughput, calibrate, measure, modelled, plan_cost
from tests.planner.test_cost import QWEN_7B

H100 = find_gpu("H100")
KNOWN: dict[str, Any] = {"shape": QWEN_7B, "gpu": H100, "prompt_tokens": 200}


def timed_run(*, slow: float = 1.0, noise: float = 0.0, n: int = 16, gpus: int | None = 8, **columns: Any) -> Run:
    """A run that takes `slow` times what the model says, with responses that get longer."""
    rng = np.random.default_rng(n)
    lengths = np.linspace(600, 2400, 30)
    each = [
        10
        * slow
        * step_cost(**KNOWN, gpus=gpus or 8, allocation=Allocation(32, n, 300), response_tokens=length).seconds
        for length in lengths
    ]
    table = {
        "step": np.arange(1, 31) * 10,
        "rollouts": np.arange(1, 31) * 10 * 32 * n,
        "seconds": np.cumsum(np.array(each) * np.exp(noise * rng.standard_normal(30))),
        "response_length": lengths,
        **columns,
    }
    points = pl.DataFrame({name: values for name, values in table.items() if values is not None})
    settings = RunSettings(problems_per_batch=32, rollouts_per_problem=n, update_steps=300, gpus=gpus)
    return Run(f"32x{n}", settings, points)


def test_calibration_finds_the_factor_it_was_made_with() -> None:
    default = Efficiency()
    exact = calibrate([timed_run(slow=2.5)], **KNOWN)
    assert exact.source == "measured"
    assert exact.decode == pytest.approx(default.decode / 2.5)
    assert exact.training / exact.decode == pytest.approx(default.training / default.decode)
    noisy = calibrate([timed_run(slow=2.5, noise=0.2), timed_run(slow=2.5, noise=0.2, n=64)], **KNOWN)
    assert noisy.interval is not None
    assert noisy.interval[0] < 1 < noisy.interval[1]
    assert noisy.decode == pytest.approx(default.decode / 2.5, rel=0.1)
    # Calibrated at n = 16, it holds at n = 64 and four times the response length.
    step = step_cost(**KNOWN, gpus=16, allocation=Allocation(32, 64, 10), response_tokens=6000, efficiency=exact)
    plain = step_cost(**KNOWN, gpus=16, allocation=Allocation(32, 64, 10), response_tokens=6000)
    assert step.seconds == pytest.approx(2.5 * plain.seconds)


def test_response_length_from_tokens_or_from_the_user() -> None:
    run = timed_run()
    lengths = run.points["response_length"].to_numpy()
    tokens = np.cumsum(lengths) * 10 * 32 * 16
    from_tokens = calibrate([timed_run(response_length=None, tokens=tokens)], **KNOWN)
    assert from_tokens.decode == pytest.approx(calibrate([run], **KNOWN).decode)
    with pytest.raises(InputError, match="logs neither 'response_length' nor 'tokens'"):
        calibrate([timed_run(response_length=None)], **KNOWN)
    assert calibrate([timed_run(response_length=None)], **KNOWN, response_tokens=1500).decode > 0


def test_throughput_is_a_median_that_pauses_do_not_move() -> None:
    run = timed_run()
    plain = measure([run])
    assert plain.source == "measured" and plain.interval is not None
    assert plain.interval[0] <= plain.rollouts_per_gpu_second <= plain.interval[1]
    paused = run.points["seconds"].to_numpy().copy()
    paused[20:] += 1e6
    again = paused.copy()
    again[15:] -= again[15] - 1.0  # the clock of a resumed run starts anew
    assert measure([timed_run(seconds=paused)]).rollouts_per_gpu_second == pytest.approx(
        plain.rollouts_per_gpu_second, rel=0.05
    )
    assert measure([timed_run(seconds=again)]).rollouts_per_gpu_second == pytest.approx(
        plain.rollouts_per_gpu_second, rel=0.05
    )
    halved = Run(run.name, run.settings.model_copy(update={"gpus": 16}), run.points)
    assert measure([halved]).rollouts_per_gpu_second == pytest.approx(plain.rollouts_per_gpu_second / 2)
    from_steps = measure([timed_run(rollouts=None)])
    assert from_steps.rollouts_per_gpu_second == pytest.approx(plain.rollouts_per_gpu_second)


def test_runs_without_times_are_refused() -> None:
    with pytest.raises(InputError, match="run '32x16': it logs no 'seconds'"):
        measure([timed_run(seconds=None)])
    with pytest.raises(InputError, match=r"run '32x16' \(and 1 more like it\): it logs no 'seconds'"):
        calibrate([timed_run(seconds=None), timed_run(seconds=None)], **KNOWN)
    uncounted = Run("bare", RunSettings(gpus=8), timed_run(rollouts=None, step=None).points)
    with pytest.raises(InputError, match="'seconds' but no 'rollouts'"):
        measure([uncounted])
    unknown = Run("bare", RunSettings(gpus=8), timed_run().points)
    with pytest.raises(InputError, match="rollouts_per_problem are unknown"):
        calibrate([unknown], **KNOWN)
    with pytest.raises(InputError, match="above 0"):
        Throughput(0.0, "given")


def test_gpus_are_the_run_s_else_the_user_s_else_refused() -> None:
    steady = {"seconds": np.arange(1, 31) * 64.0, "rollouts": np.arange(1, 31) * 512}  # 8 a second in all
    silent, telling = timed_run(gpus=None, **steady), timed_run(gpus=4, **steady)
    assert measure([silent], gpus=8).rollouts_per_gpu_second == pytest.approx(1.0)
    assert measure([telling], gpus=8).rollouts_per_gpu_second == pytest.approx(2.0)
    for use in (lambda: measure([silent]), lambda: calibrate([silent], **KNOWN)):
        with pytest.raises(InputError, match="run '32x16': its GPUs are unknown; say --gpus: how many the runs used"):
            use()
    assert calibrate([silent], **KNOWN, gpus=8).decode > 0


def test_phases_of_a_step_are_summed_where_there_is_no_step_time() -> None:
    """veRL's logs of 2024 time the phases alone; evaluations are not part of a step."""
    phases = {"gen": 20.0, "ref": 4.0, "values": 5.0, "adv": 1.0, "update_critic": 14.0, "update_actor": 20.0}
    columns = {f"timing/{name}": np.full(30, seconds) for name, seconds in phases.items()}
    found = measure([timed_run(seconds=None, **columns, **{"timing/testing": np.full(30, 900.0)})])
    assert found.rollouts_per_gpu_second == pytest.approx(32 * 16 / 64.0 / 8)
    assert found.response_tokens == pytest.approx(1500.0)
    with pytest.raises(InputError, match="it logs no 'seconds'"):
        measure([timed_run(seconds=None, **{"timing/gen": np.full(30, 20.0)})])


def test_calibration_counts_the_reference_model_of_the_runs() -> None:
    """The same times with one more pass to do mean a higher efficiency, by the ratio of the two steps."""
    run = timed_run(response_length=np.full(30, 1500.0))
    anchored = Run(run.name, run.settings.model_copy(update={"recipe": {"kl_coef": 0.001}}), run.points)
    step = {**KNOWN, "gpus": 8, "allocation": Allocation(32, 16, 300), "response_tokens": 1500}
    ratio = step_cost(**step, scoring_passes=2).seconds / step_cost(**step).seconds
    assert calibrate([anchored], **KNOWN).training == pytest.approx(ratio * calibrate([run], **KNOWN).training)


def test_the_cost_block() -> None:
    allocation = Allocation(32, 64, 200)
    step = step_cost(**KNOWN, gpus=8, allocation=allocation, response_tokens=1500)
    cost = plan_cost(allocation=allocation, throughput=modelled(step), gpus=8, price_per_gpu_hour=2.5, step=step)
    assert json.loads(json.dumps(cost)) == cost
    assert cost["seconds"] == pytest.approx(200 * step.seconds)
    assert cost["gpu_hours"] == pytest.approx(step.gpu_hours) == pytest.approx(cost["seconds"] * 8 / 3600)
    assert cost["money"] == pytest.approx(2.5 * cost["gpu_hours"])
    assert cost["tokens"] == 1500 * allocation.compute
    assert cost["source"] == "modelled" and cost["bound"] == step.bound
    assert sum(phase["seconds"] for phase in cost["phases"].values()) == pytest.approx(cost["seconds_per_step"])
    measured = plan_cost(allocation=allocation, throughput=Throughput(2.0, "measured", (1.0, 4.0)), gpus=8)
    assert measured["seconds"] == pytest.approx(allocation.compute / 16)
    assert measured["seconds_interval"] == pytest.approx([allocation.compute / 32, allocation.compute / 8])
    assert measured["bound"] is None and measured["money"] is None and measured["tokens"] is None
    assert modelled(step).gpu_hours_per_rollout * allocation.compute == pytest.approx(step.gpu_hours)
