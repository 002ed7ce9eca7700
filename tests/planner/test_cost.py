"""The roofline: FLOPs against torch's counter, a known bandwidth bound, limits of the formulas, bad input."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isocompute.core.allocation import Allocation
from isocompute.core.errors import InputError
from isocompute.planner.cost.hardware import (
    SPREAD,
    Efficiency,
    Gpu,
    attended_pairs,
    find_gpu,
    forward_flops,
    gpus,
    step_cost,
)
from isocompute.planner.cost.model import ModelShape, model_shape
from tests.planner.test_cost_model_shape import DEEPSEEK, QWEN_MOE, TINY

QWEN_7B = model_shape(
    {"model_type": "qwen2", "vocab_size": 152064, "hidden_size": 3584, "intermediate_size": 18944}
    | {"num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4}
)
LLAMA_70B = model_shape(
    {"model_type": "llama", "vocab_size": 128256, "hidden_size": 8192, "intermediate_size": 28672}
    | {"num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8}
)
FULL = Efficiency(1.0, 1.0, 1.0, "given")


def cost(shape: ModelShape = QWEN_7B, gpu: str = "H100", count: int = 8, bp: int = 32, n: int = 32, **changes: Any):
    settings: dict[str, Any] = {"prompt_tokens": 200, "response_tokens": 1500, "efficiency": FULL} | changes
    return step_cost(shape=shape, gpu=find_gpu(gpu), gpus=count, allocation=Allocation(bp, n, 100), **settings)


@pytest.mark.parametrize(
    ("kind", "extra"),
    [
        ("llama", {}),
        ("qwen2", {}),
        ("qwen3", {}),
        ("gemma2", {}),
        ("qwen3_moe", QWEN_MOE),
        ("deepseek_v3", DEEPSEEK),
    ],
)
def test_flops_are_those_torch_counts(kind: str, extra: dict[str, Any]) -> None:
    """Forward and backward of a whole model under torch's own counter, which counts all T × T pairs."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from torch.utils.flop_counter import FlopCounterMode

    fields = {**TINY, **extra}
    config = transformers.AutoConfig.for_model(kind, **fields, attn_implementation="eager")
    config._experts_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config)
    rows, length = 3, 40
    with FlopCounterMode(display=False) as forward:
        logits = model(input_ids=torch.zeros(rows, length, dtype=torch.long)).logits
    with FlopCounterMode(display=False) as backward:
        logits.sum().backward()
    shape = model_shape({**fields, "model_type": kind})
    expected = rows * forward_flops(shape, tokens=length, pairs=length * length, logits=length)
    # The angles of the rotary embedding are a tiny product of their own, which we leave out.
    assert forward.get_total_flops() == pytest.approx(expected, rel=2e-3)
    assert backward.get_total_flops() == pytest.approx(2 * expected, rel=2e-3)


def test_pairs_are_counted_one_by_one() -> None:
    dense = model_shape({**TINY, "model_type": "llama"})
    windowed = model_shape({**TINY, "model_type": "gemma2", "sliding_window": 7})
    for start in (0, 3, 7, 20):
        for tokens in (1, 4, 15):
            seen = [start + i + 1 for i in range(tokens)]
            assert attended_pairs(dense, start=start, tokens=tokens) == sum(seen)
            half = 0.5 * sum(seen) + 0.5 * sum(min(i, 7) for i in seen)
            assert attended_pairs(windowed, start=start, tokens=tokens) == pytest.approx(half)


def test_a_known_bandwidth_bound() -> None:
    """8,192 × 64 tokens after 14-token prompts from a 1.8M-parameter decoder on one H200: about 17 ms."""
    small = model_shape(
        {"model_type": "llama", "hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 4}
        | {"num_attention_heads": 4, "vocab_size": 64, "tie_word_embeddings": True}
    )
    assert small.parameters == pytest.approx(1.8e6, rel=0.02)
    step = cost(small, "H200", 1, bp=1024, n=8, prompt_tokens=14, response_tokens=64)
    assert step.decode.limited_by == "bandwidth" and not step.waiting
    assert step.decode.seconds == pytest.approx(0.017, rel=0.1)


def test_one_response_reads_the_weights_once_a_token() -> None:
    """Decoding a single response is weights over bandwidth: 15.2 GB at 3.35 TB/s less the embeddings' table."""
    step = cost(count=1, bp=1, n=1, prompt_tokens=1, response_tokens=100)
    weights = 2 * (QWEN_7B.parameters - QWEN_7B.head_weights)
    assert step.decode.seconds / 100 == pytest.approx(weights / 3.35e12, rel=1e-3)
    assert step.bound == "decode_bandwidth" and step.concurrent == 1


def test_experts_are_read_as_they_are_met() -> None:
    mixture = model_shape({**TINY, "model_type": "qwen3_moe", **QWEN_MOE})
    one = cost(mixture, count=1, bp=1, n=1, prompt_tokens=1, response_tokens=1)
    many = cost(mixture, count=1, bp=1, n=4096, prompt_tokens=1, response_tokens=1)
    cache = 2 * mixture.cache_elements
    table = mixture.head_weights
    assert one.decode.bytes == pytest.approx(2 * (mixture.active_parameters - table) + 3 * cache)
    assert many.decode.bytes == pytest.approx(2 * (mixture.parameters - table) + 4096 * 3 * cache, rel=1e-6)


def test_memory_for_the_cache_limits_how_many_decode_at_once() -> None:
    roomy, tight = cost(n=512), cost(n=512, gpu="4090")
    per_response = 2 * QWEN_7B.cache_elements * (1500 + 200 / 512)
    assert roomy.concurrent == pytest.approx((0.9 * 80e9 - 2 * QWEN_7B.parameters) / per_response)
    assert roomy.gpus_per_copy == 1 and tight.waiting
    assert cost(n=512, gpu="4090", efficiency=replace(FULL, decode=0.01)).bound == "kv_memory"


def test_a_copy_is_spread_until_the_cache_has_room() -> None:
    """70B in bf16 fill 140 of the 144 GB of two H100, which would decode four responses at a time."""
    times = {length: cost(LLAMA_70B, count=16, response_tokens=length).seconds for length in (4000, 8000, 9000, 16000)}
    step = cost(LLAMA_70B, count=16, response_tokens=8000)
    assert step.gpus_per_copy == 8 and step.concurrent > 100
    # Time grows at most with the square of the length (attention), and never falls.
    for (short, before), (long, after) in pairwise(times.items()):
        assert before < after <= before * (long / short) ** 2 * 1.01
    # No other spread that holds the model is faster; what GPUs lose to one another counts.
    assert cost(LLAMA_70B, count=2, n=1, bp=1).gpus_per_copy == 2
    small = cost(n=512)
    assert small.gpus_per_copy == 1 and small.decode.seconds == pytest.approx(small.decode.memory_seconds)
    assert step.decode.seconds == pytest.approx(step.decode.memory_seconds / SPREAD**3)
    assert cost(LLAMA_70B, count=64, n=1, bp=1).gpus_per_copy == 8  # within a machine


def test_layers_with_a_window_keep_no_more_than_it() -> None:
    windowed = replace(QWEN_7B, window=1000, windowed_layers=21)
    plain, less = (cost(shape, n=512, gpu="L40S", count=1, response_tokens=8000) for shape in (QWEN_7B, windowed))
    assert plain.waiting and less.waiting
    length = 8000 + 200 / 512
    assert less.concurrent / plain.concurrent == pytest.approx(length / (0.25 * length + 0.75 * 1000))
    same = cost(windowed, n=512, gpu="L40S", count=1, response_tokens=900)
    assert same.concurrent == pytest.approx(cost(n=512, gpu="L40S", count=1, response_tokens=900).concurrent)


def test_what_bounds_a_step() -> None:
    assert cost(n=256).bound == "training_compute"
    assert cost(n=8, bp=8).bound == "decode_bandwidth"
    assert cost(n=1, bp=512, prompt_tokens=20_000, response_tokens=1, scoring_passes=0).bound == "training_compute"
    slow = Efficiency(0.001, 1.0, 1.0)
    assert cost(n=1, prompt_tokens=20_000, response_tokens=1, efficiency=slow).bound == "prefill_compute"
    wide = Gpu("wide", 80e9, 1e15, 1e14, "")
    step = step_cost(
        shape=QWEN_7B, gpu=wide, gpus=1, allocation=Allocation(32, 8, 1), prompt_tokens=9, response_tokens=99,
        efficiency=Efficiency(1.0, 0.01, 1.0),
    )  # fmt: skip
    assert step.bound == "decode_compute"


@given(
    bp=st.integers(1, 512),
    n=st.integers(1, 512),
    response=st.floats(1, 20_000),
    prompt=st.floats(0, 4000),
    name=st.sampled_from(["H100", "H200", "B200", "A100", "L40S"]),
)
def test_costs_grow_with_work_and_shrink_with_gpus(bp: int, n: int, response: float, prompt: float, name: str) -> None:
    settings: dict[str, Any] = {"prompt_tokens": prompt, "response_tokens": response}
    step = cost(gpu=name, bp=bp, n=n, **settings)
    assert step.seconds > 0
    assert cost(gpu=name, bp=2 * bp, n=n, **settings).seconds >= step.seconds * (1 - 1e-9)
    assert cost(gpu=name, bp=bp, n=n, **{**settings, "response_tokens": 2 * response}).seconds > step.seconds
    assert cost(gpu=name, bp=bp, n=n, count=16, **settings).seconds <= step.seconds * (1 + 1e-9)
    # No faster than the sum of its FLOPs at the peak of all GPUs, or of its bytes at their bandwidth.
    for phase in (step.prefill, step.decode, step.training):
        assert phase.seconds >= phase.flops / (8 * step.gpu.peak) * (1 - 1e-9)
        assert phase.seconds >= phase.bytes / (8 * step.gpu.bandwidth) * (1 - 1e-9)
    # A rollout of a larger batch is never dearer.
    assert cost(gpu=name, bp=bp, n=2 * n, **settings).seconds / 2 <= step.seconds * (1 + 1e-9)


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("nvidia h200", "H200"),
        ("A100-SXM4-80GB", "A100"),
        ("a100 40gb", "A100-40GB"),
        ("A100-PCIE-40GB", "A100-40GB"),
        ("NVIDIA A100 80GB PCIe", "A100-PCIe"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 PCIe", "H100-PCIe"),
        ("NVIDIA GeForce RTX 4090", "4090"),
        ("RTX4090", "4090"),
        ("B200 192GB", "B200"),
        ("H20", "H20"),
        ("H800", "H800"),
    ],
)
def test_gpu_names(written: str, name: str) -> None:
    assert find_gpu(written).name == name


def test_unknown_gpus_are_refused_with_those_near_them() -> None:
    with pytest.raises(InputError, match=r"gpu 'H300' is not one of H100, .*; near it are H\d00"):
        find_gpu("H300")
    with pytest.raises(InputError, match=r"gpu 'H100 NVL 94GB' .* near it are H100, H100-PCIe"):
        find_gpu("H100 NVL 94GB")
    with pytest.raises(InputError, match=r"gpu 'H20 141GB' .* H20"):  # another memory than the table's
        find_gpu("H20 141GB")
    with pytest.raises(InputError, match=r"L40S: name one, or give the throughput"):
        find_gpu("abacus")
    for gpu in gpus().values():
        assert gpu.source and 30 < gpu.peak / gpu.bandwidth < 450


def test_a_reference_model_is_one_more_forward_pass() -> None:
    """On all GPUs at the peak: 2 FLOPs a weight and token, 2 · 2 · heads · width a pair and layer, the head."""
    plain, scored = cost(scoring_passes=1), cost(scoring_passes=2)
    tokens, rollouts = 200 + 1500, 32 * 32
    layers = 2 * tokens * QWEN_7B.token_weights + 28 * 4 * 3584 * tokens * (tokens + 1) / 2
    head = 2 * 1500 * 3584 * 152064
    assert scored.seconds - plain.seconds == pytest.approx(rollouts * (layers + head) / (8 * 989.4e12), rel=1e-6)


def test_wrong_input_says_what_would_work() -> None:
    with pytest.raises(InputError, match=r"1 × 4090: 70\.0B parameters do not fit .* use at least 8, or 1 × B200"):
        cost(replace(QWEN_7B, parameters=70_000_000_000), "4090", 1)
    with pytest.raises(InputError, match="gpus = 0; give at least 1"):
        cost(count=0)
    with pytest.raises(InputError, match="0 response tokens"):
        cost(response_tokens=0)
    for lengths in ({"response_tokens": float("inf")}, {"prompt_tokens": float("nan")}):
        with pytest.raises(InputError, match="tokens; give at least 0 and 1"):
            cost(**lengths)
    with pytest.raises(InputError, match=r"efficiency\.decode = 0"):
        Efficiency(decode=0.0)
