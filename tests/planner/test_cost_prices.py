"""The cost of a rollout: the throughput and its source, the reference model's pass, memory for training."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from isocompute.core.allocation import Allocation
from isocompute.core.errors import InputError
from isocompute.core.recipe import make_recipe
from isocompute.data import Run, RunSettings
from isocompute.planner.cost.hardware import check_training_memory, find_gpu
from isocompute.planner.cost.prices import Hardware, prices
from isocompute.planner.request import Budget, PlanRequest
from tests.planner.test_cost import QWEN_7B

QWEN = {"model_type": "qwen2", "vocab_size": 152064, "hidden_size": 3584, "intermediate_size": 18944} | {
    "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4,
}  # fmt: skip
ALLOCATION = Allocation(32, 16, 100)


@pytest.fixture
def hardware(tmp_path: Path) -> Hardware:
    (tmp_path / "config.json").write_text(json.dumps(QWEN))
    return Hardware(gpus=8, gpu="H100", model=str(tmp_path), prompt_tokens=200.0, response_tokens=2000.0)


def timed(*, gpus: int | None = 8, length: float = 800.0, **columns: Any) -> Run:
    """Eight rollouts a second in all."""
    table = {"rollouts": np.arange(1, 12) * 512, "seconds": np.arange(1, 12) * 64.0, **columns}
    points = pl.DataFrame({name: values for name, values in table.items() if values is not None})
    points = points.with_columns(pl.lit(length).alias("response_length"))
    return Run("timed", RunSettings(problems_per_batch=32, rollouts_per_problem=16, gpus=gpus), points)


def test_two_throughputs_are_refused(hardware: Hardware) -> None:
    given = replace(hardware, rollouts_per_second=5.0)
    with pytest.raises(InputError, match=r"--rollouts-per-second 5 .* so does --model with --gpu; say one of them"):
        prices(given)
    with pytest.raises(InputError, match=r"--rollouts-per-second 5 .* so does --throughput-from; say one of them"):
        prices(Hardware(gpus=8, rollouts_per_second=5.0), runs=[timed()])
    with pytest.raises(InputError, match="--throughput-from and --model with --gpu"):
        prices(given, runs=[timed()])
    alone = prices(Hardware(gpus=8, rollouts_per_second=5.0)).cost(ALLOCATION)
    assert alone["seconds"] == pytest.approx(32 * 16 * 100 / 5) and alone["source"] == "given"


@pytest.mark.parametrize("name", ["prompt_tokens", "response_tokens", "rollouts_per_second", "price_per_gpu_hour"])
@pytest.mark.parametrize("value", [float("inf"), float("nan"), 0.0, -1.0])
def test_numbers_are_finite_and_above_0(name: str, value: float) -> None:
    with pytest.raises(InputError, match=f"--{name.replace('_', '-')} .*: give a finite number above 0"):
        PlanRequest.of(budget=1e6, gpus=8, **{name: value})


def test_times_at_another_response_length() -> None:
    near = prices(Hardware(gpus=8, response_tokens=900.0), runs=[timed(length=800.0)])
    assert near.warnings == ()
    far = prices(Hardware(gpus=8, response_tokens=1000.0), runs=[timed(length=3562.0)])
    (warning,) = far.warnings
    assert warning.code == "response_length"
    assert "3,562-token responses and yours have 1,000" in warning.message and "--model and --gpu" in warning.message
    law = prices(Hardware(gpus=8, response_tokens=1000.0), law_gpu_hours_per_rollout=0.0065, law_response_tokens=8000.0)
    assert [w.code for w in law.warnings] == ["response_length"]


def test_a_known_model_scales_times_to_another_length(hardware: Hardware) -> None:
    """Calibrated at 800 tokens, a rollout of 2,000 takes longer by what the roofline says, not the same time."""
    same = prices(replace(hardware, response_tokens=800.0), runs=[timed()])
    longer = prices(hardware, runs=[timed()])
    assert longer.warnings == ()
    assert same.cost(ALLOCATION)["seconds"] == pytest.approx(32 * 16 * 100 / 8, rel=1e-6)
    plain = [
        prices(replace(hardware, response_tokens=length)).cost(ALLOCATION)["seconds"] for length in (800.0, 2000.0)
    ]
    assert longer.cost(ALLOCATION)["seconds"] == pytest.approx(32 * 16 * 100 / 8 * plain[1] / plain[0])


def test_a_kl_term_costs_the_reference_model_s_pass(hardware: Hardware) -> None:
    """B rollouts of 2,200 tokens forward once more at .35 of the peak of 8 × 989.4 TFLOP/s: 95 s, as worked by hand."""
    allocation = Allocation(32, 256, 244)
    found = prices(hardware)
    plain = found.cost(allocation)["seconds_per_step"]
    scored = found.of_recipe(make_recipe({"kl_coef": 0.001}))
    anchored = scored.cost(allocation)["seconds_per_step"]
    assert plain == pytest.approx(590, abs=1) and anchored == pytest.approx(685, abs=1)
    assert scored.rates(32, 256).rollouts(Budget(100.0, "gpu_hours")) < found.rates(32, 256).rollouts(
        Budget(100.0, "gpu_hours")
    )


def test_training_has_to_fit() -> None:
    """16 bytes a parameter: 122 GB for Qwen2.5-7B, 1,120 GB for 70B; 90% of 80 GB is 72."""
    h100 = find_gpu("H100")
    assert check_training_memory(QWEN_7B, h100, 2) == []
    (warning,) = check_training_memory(QWEN_7B, h100, 1)
    assert warning.code == "training_memory"
    assert (
        "take 122 GB to train" in warning.message
        and "1 × H100 has 72 GB" in warning.message
        and "use 2" in warning.message
    )
    large = replace(QWEN_7B, parameters=70_000_000_000)
    with pytest.raises(InputError, match=r"take 1,120 GB .* 2 × H100 has 144 GB .* \(280 GB\); use at least 4, 16 to"):
        check_training_memory(large, h100, 2)
    for count in (4, 8):
        assert [w.code for w in check_training_memory(large, h100, count)] == ["training_memory"]
    assert check_training_memory(large, h100, 16) == []


def test_prices_check_memory_unless_runs_show_that_it_fits(hardware: Hardware) -> None:
    assert prices(hardware).warnings == ()
    single = replace(hardware, gpus=1)
    assert [w.code for w in prices(single).warnings] == ["training_memory"]
    assert prices(single, runs=[timed(gpus=1)]).warnings == ()
    assert [w.code for w in prices(single, runs=[timed(gpus=8)]).warnings] == ["training_memory"]
    with pytest.raises(InputError, match=r"1 × 4090 has 22 GB .* offloaded \(30 GB\); use at least 2, 8 to"):
        prices(replace(single, gpu="4090"))


def test_the_law_s_runs_fill_in_length_and_throughput() -> None:
    found = prices(Hardware(), law_runs=[timed()])
    rates = found.rates(32, 16)
    assert rates.rollouts(Budget(8e8, "tokens")) == pytest.approx(1e6)
    assert rates.rollouts(Budget(10.0, "gpu_hours")) == pytest.approx(36_000)  # one a second and GPU
    cost = found.cost(ALLOCATION)
    assert cost["source"] == "measured on the law's runs" and cost["response_source"] == "the law's runs"
    assert cost["response_tokens"] == 800.0 and cost["tokens"] == 800 * ALLOCATION.compute
    taken = prices(Hardware(gpus=4), law_runs=[timed(gpus=None)])
    assert taken.rates(32, 16).rollouts(Budget(10.0, "gpu_hours")) == pytest.approx(72_000)
    source = taken.cost(ALLOCATION)["source"]
    assert source == "measured on the law's runs, which are taken to have used 4 GPUs"


def test_what_the_user_says_stands_before_the_law_s_runs(hardware: Hardware) -> None:
    given = prices(Hardware(gpus=8, rollouts_per_second=16.0, response_tokens=100.0), law_runs=[timed()])
    assert given.rates(32, 16).rollouts(Budget(1.0, "gpu_hours")) == pytest.approx(7200)
    assert given.cost(ALLOCATION)["response_source"] == "given"
    other = prices(Hardware(), runs=[timed(length=50.0)], law_runs=[timed()])
    assert other.cost(ALLOCATION)["source"] == "measured" and other.cost(ALLOCATION)["response_tokens"] == 50.0
    assert prices(hardware, law_runs=[timed()]).cost(ALLOCATION)["source"] == "modelled"


def test_law_runs_without_gpus_or_times_price_what_they_can() -> None:
    silent = prices(Hardware(), law_runs=[timed(gpus=None), timed(seconds=None)])
    assert silent.rates(32, 16).rollouts(Budget(8e8, "tokens")) == pytest.approx(1e6)
    with pytest.raises(InputError, match="GPU-hours need a throughput"):
        silent.rates(32, 16).rollouts(Budget(10.0, "gpu_hours"))
    cost = silent.cost(ALLOCATION)
    assert cost["source"] is None and cost["tokens"] == 800 * ALLOCATION.compute


def test_updates_on_a_batch_cost_their_passes(hardware: Hardware) -> None:
    """An update is four forward passes and the old log-probs are one: two updates are 9 / 5 of the FLOPs of one."""
    found = prices(hardware)
    once, twice = (found.of_recipe(make_recipe({"updates_per_batch": k})).cost(ALLOCATION)["phases"] for k in (1, 2))
    scored = 2  # `grpo` has a KL term
    assert twice["training"]["flops"] / once["training"]["flops"] == pytest.approx((scored + 8) / (scored + 4))
    assert twice["decode"] == once["decode"]
    run = timed()
    repeated = replace(run, settings=run.settings.model_copy(update={"recipe": {"updates_per_batch": 2}}))
    plain, calibrated = (prices(hardware, runs=[each]) for each in (run, repeated))
    assert plain.efficiency is not None and calibrated.efficiency is not None
    assert calibrated.efficiency.training > 1.2 * plain.efficiency.training  # as long a time for more work


def of_model(run: Run, model: str) -> Run:
    return replace(run, settings=run.settings.model_copy(update={"model": model}))


def test_times_of_several_models_are_refused() -> None:
    runs = [of_model(timed(), "Qwen2.5-7B"), of_model(timed(), "Qwen2.5-0.5B"), timed()]
    with pytest.raises(InputError, match=r"--throughput-from: .* 2 models, Qwen2\.5-7B and Qwen2\.5-0\.5B, .* of one"):
        prices(Hardware(gpus=8), runs=runs)
    assert prices(Hardware(gpus=8), runs=[runs[0], runs[2]]).timed is not None
    elsewhere = of_model(timed(), "/models/Qwen/qwen2.5-7B/")
    assert prices(Hardware(gpus=8), runs=[runs[0], elsewhere]).timed is not None


def test_another_models_runs_do_not_show_that_training_fits(hardware: Hardware, tmp_path: Path) -> None:
    (tmp_path / "Qwen2.5-7B").mkdir()
    (tmp_path / "Qwen2.5-7B" / "config.json").write_text(json.dumps(QWEN))
    single = replace(hardware, gpus=1, model=str(tmp_path / "Qwen2.5-7B" / "config.json"))
    assert prices(single, runs=[of_model(timed(gpus=1), "Qwen/Qwen2.5-7B")]).warnings == ()
    other = prices(single, runs=[of_model(timed(gpus=1), "Qwen/Qwen2.5-0.5B")]).warnings
    assert [w.code for w in other] == ["training_memory", "other_model"]
    assert "Qwen/Qwen2.5-0.5B" in other[1].message
    (tmp_path / "config.json").write_text(json.dumps(QWEN))  # of which no name tells whose it is
    unnamed = replace(single, model=str(tmp_path / "config.json"))
    assert prices(unnamed, runs=[of_model(timed(gpus=1), "Qwen/Qwen2.5-7B")]).warnings == ()


@pytest.mark.parametrize("name", ["prompt_tokens", "response_tokens", "rollouts_per_second", "price_per_gpu_hour"])
@pytest.mark.parametrize("value", [1e308, 1e-320])
def test_numbers_that_make_no_finite_cost_are_refused(name: str, value: float) -> None:
    with pytest.raises(InputError, match=f"--{name.replace('_', '-')} .*: no run has that; give a number from 1e-12"):
        PlanRequest.of(budget=1e6, gpus=8, model="m", gpu="H100", **{name: value})


def test_a_unit_that_nobody_knows_is_not_money() -> None:
    found = prices(Hardware(gpus=8, rollouts_per_second=5.0, price_per_gpu_hour=2.0)).rates(32, 16)
    with pytest.raises(InputError, match="it is none of rollouts, tokens, gpu_hours and money"):
        found.amount(1.0, "x")
