"""How much of a model and its training is said to fit, against counts of real decoders and hand-counted bytes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import Qwen2Config

from isocompute.core.errors import InputError
from isocompute.rl.model.config import DecoderConfig
from isocompute.rl.model.decoder import Decoder
from isocompute.rl.setup import (
    MOST_ROWS,
    Request,
    Sizes,
    adapter_parameters,
    fit,
    parameters,
    row_bytes,
    set_up,
    token_bytes,
    weight_bytes,
)
from tests.rl.cells import make_cell
from tests.rl.models import CONFIGS

GIGABYTE = 2**30
SMALL = DecoderConfig(
    model_type="llama",
    vocab_size=100,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
)
SEVEN = DecoderConfig.from_json(
    Qwen2Config(
        vocab_size=152_064,
        hidden_size=3584,
        intermediate_size=18_944,
        num_hidden_layers=28,
        num_attention_heads=28,
        num_key_value_heads=4,
    ).to_dict()
)
"""Qwen2.5-7B."""
REQUEST = Request(SEVEN, torch.bfloat16, gpu=True, free=80 * GIGABYTE, prompt_tokens=256, new_tokens=2048, rows=1024)


# Bytes


@pytest.mark.parametrize("config", [SEVEN, *(DecoderConfig.from_json(c.to_dict()) for c in CONFIGS.values())])
def test_parameters_are_those_of_the_decoder(config: DecoderConfig) -> None:
    with torch.device("meta"):
        decoder = Decoder(config)
        policy = decoder.policy(8, 2.0)
    matrices = sum(p.numel() for p in decoder.parameters() if p.ndim > 1)
    assert parameters(config) == matrices
    assert matrices > 0.97 * sum(p.numel() for p in decoder.parameters())
    assert adapter_parameters(config, 8) == sum(part.parameter.numel() for part in policy.trained())


@pytest.mark.parametrize(("dtype", "each"), [(torch.float32, 2 * 4 + 4 + 8), (torch.bfloat16, 2 * 2 + 2 + 4 + 4 + 8)])
def test_bytes_of_a_full_training(dtype: torch.dtype, each: int) -> None:
    """Sampler and policy, its gradient and AdamW's moments; in bf16 FP32 masters and their gradients too."""
    assert weight_bytes(SMALL, dtype, lora_rank=None) == parameters(SMALL) * each


def test_lora_adds_one_copy_and_adapters() -> None:
    """The policy shares the weights of the base, which is loaded already; the sampler has a copy."""
    weights = 2 * parameters(SEVEN)
    adapters = 16 * adapter_parameters(SEVEN, 32)
    found = replace(REQUEST, lora_rank=32).weights()
    assert weights + adapters <= found < weights + adapters + 2 * GIGABYTE
    assert REQUEST.weights() > 5 * found


def test_a_row_has_its_tokens_and_a_quarter_of_its_prompts() -> None:
    slot = 2 * 2 * 2 * 16 * 2  # k and v, layers, groups, channels, bytes
    assert row_bytes(SMALL, torch.bfloat16, prompt_tokens=40, new_tokens=100) == slot * (100 + 10 + 1)


def test_recomputation_keeps_a_layers_input() -> None:
    kept = token_bytes(SEVEN, torch.bfloat16, recompute=False)
    fewer = token_bytes(SEVEN, torch.bfloat16, recompute=True)
    assert 28 * 4 * 3584 < fewer < kept / 4


# Sizes


@given(
    free=st.floats(0.01, 200),
    prompt_tokens=st.integers(1, 4000),
    new_tokens=st.integers(1, 30_000),
    rows=st.integers(1, 100_000),
    lora_rank=st.sampled_from([None, 8, 64]),
    recompute=st.sampled_from([None, True, False]),
    gpu=st.booleans(),
    config=st.sampled_from([SMALL, SEVEN]),
)
def test_sizes_hold_at_least_one_sequence(
    free: float,
    prompt_tokens: int,
    new_tokens: int,
    rows: int,
    lora_rank: int | None,
    recompute: bool | None,
    gpu: bool,
    config: DecoderConfig,
) -> None:
    """Or it is said that they do not; a CPU has memory to swap to and is never refused."""
    request = Request(
        config, torch.bfloat16, gpu, int(free * GIGABYTE), prompt_tokens, new_tokens, rows, lora_rank=lora_rank
    )
    try:
        sizes = fit(request, recompute=recompute)
    except InputError:
        assert gpu
        return
    assert sizes.tokens >= prompt_tokens + new_tokens
    assert 1 <= sizes.rows <= min(rows, MOST_ROWS)
    assert recompute is None or sizes.recompute == recompute
    if gpu:
        row = row_bytes(config, torch.bfloat16, prompt_tokens=prompt_tokens, new_tokens=new_tokens)
        used = sizes.rows * row + sizes.tokens * token_bytes(config, torch.bfloat16, recompute=sizes.recompute)
        assert request.weights() + used <= request.free


def test_activations_are_recomputed_where_little_would_fit_otherwise() -> None:
    request = replace(REQUEST, lora_rank=32)
    found = [fit(replace(request, free=gigabytes * GIGABYTE), recompute=None) for gigabytes in range(60, 1000, 20)]
    saving = [sizes.recompute for sizes in found]
    assert saving == sorted(saving, reverse=True) and set(saving) == {True, False}
    plain = [fit(replace(request, free=gigabytes * GIGABYTE), recompute=True).tokens for gigabytes in (60, 80, 1000)]
    assert plain == sorted(plain)


def advice_by_memory(request: Request) -> list[str]:
    """What is advised on GPUs of 2 to 160 GiB that are too small, the smallest first; each advice once."""
    advice = []
    for tenths in range(20, 1600):
        try:
            fit(replace(request, free=tenths * GIGABYTE // 10), recompute=None)
        except InputError as error:
            text = str(error)
            assert f"{tenths / 10:.1f} GiB are free" in text and "one sequence of 2304 tokens" in text
            assert f"training takes {request.weights() / GIGABYTE:.1f} GiB" in text
            lora = f"({replace(request, lora_rank=32).weights() / GIGABYTE:.1f} with LoRA)"
            assert (lora in text) == (request.lora_rank is None)
            advice.append(text.partition("are free: ")[2])
    return list(dict.fromkeys(advice))


def test_a_gpu_too_small_names_what_would_fit() -> None:
    """LoRA, then recomputation, then a smaller budget, with numbers; and nothing where nothing helps."""
    both = "recipe.lora_rank = 32 and engine_options.recompute = true"
    nothing, *smaller, second, first = advice_by_memory(REQUEST)
    assert nothing == "take a smaller model or a larger GPU."
    budgets = [int(text.removeprefix(f"{both} and problems.max_new_tokens = ").split()[0]) for text in smaller]
    assert budgets and budgets == sorted(budgets) and max(budgets) < 2048
    assert second == f"{both} would fit."
    assert first == "recipe.lora_rank = 32 would fit."


def test_advice_does_not_repeat_what_is_set() -> None:
    advice = advice_by_memory(replace(REQUEST, lora_rank=8))
    assert len(advice) > 1 and not any("lora_rank" in text for text in advice)


def test_advice_is_followed_by_success() -> None:
    """What is said to fit does fit."""
    for gigabytes in (40, 60, 80, 120):
        request = replace(REQUEST, free=gigabytes * GIGABYTE)
        with pytest.raises(InputError, match=r"recipe\.lora_rank = 32"):
            fit(request, recompute=None)
        assert fit(replace(request, lora_rank=32), recompute=None).rows >= 1


def test_a_pass_is_halved_down_to_256_tokens() -> None:
    sizes = Sizes(tokens=1500, rows=8)
    assert [sizes.halve() for _ in range(4)] == [True, True, True, False]
    assert (sizes.tokens, sizes.rows) == (187, 8)


def test_sizes_of_a_cell_are_those_it_can_use() -> None:
    """8 × 4 rollouts in training, 12 × 4 in evaluation; options limit both."""
    assert set_up(make_cell()).sizes.rows == 48
    assert set_up(make_cell(rollouts_per_problem=16)).sizes.rows == 128
    assert set_up(make_cell(recipe={"name": "cispo", "off_policy_steps": 2})).sizes.rows == 64
    assert set_up(make_cell(recipe={"name": "grpo", "baseline_rollouts": 16})).sizes.rows == 128
    limited = set_up(make_cell(engine={"sample_batch": 5, "micro_batch": 3, "recompute": True})).sizes
    assert (limited.rows, limited.most_rows, limited.recompute) == (5, 3, True)
