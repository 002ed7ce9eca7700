"""How many sequences are said to fit, by hand-counted bytes of a small model."""

from __future__ import annotations

import pytest
import torch

from isocompute.rl.model.config import DecoderConfig
from isocompute.rl.setup import sampling_rows, training_rows

MODEL = DecoderConfig(
    model_type="llama",
    vocab_size=100,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
)
WIDTHS = 16 * 64 + 4 * 128
"""Numbers of a token and layer."""
HEAD = 4 * 100 * 4


@pytest.mark.parametrize(
    ("dtype", "tokens", "bytes_a_token"),
    [
        (torch.float32, 100, 2 * 4 * WIDTHS + HEAD),
        (torch.bfloat16, 100, 2 * (2 * WIDTHS + 4 * 100 * 4) + HEAD),  # short: a weight in FP32 for each head and slot
        (torch.bfloat16, 257, 2 * 2 * WIDTHS + HEAD),
    ],
    ids=["float32", "short-bfloat16", "long-bfloat16"],
)
def test_training_rows_are_what_the_budget_holds(dtype: torch.dtype, tokens: int, bytes_a_token: int) -> None:
    row = bytes_a_token * tokens
    assert training_rows(MODEL, tokens=tokens, dtype=dtype, budget=10 * row) == 10
    assert training_rows(MODEL, tokens=tokens, dtype=dtype, budget=10 * row - 1) == 9
    assert training_rows(MODEL, tokens=tokens, dtype=dtype, budget=1) == 1


def test_sampling_rows_hold_the_cache_twice_and_a_steps_logits() -> None:
    cache = 2 * 2 * 2 * 16 * 2 * 100  # k and v, layers, groups, channels, bytes, tokens
    row = 2 * cache + 6 * 100 * 8
    assert sampling_rows(MODEL, tokens=100, dtype=torch.bfloat16, budget=7 * row) == 7
    assert sampling_rows(MODEL, tokens=100, dtype=torch.bfloat16, budget=7 * row - 1) == 6
