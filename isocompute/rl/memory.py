"""How many sequences fit: estimates that choose micro-batches, so that nobody has to."""

from __future__ import annotations

import torch

from isocompute.rl.config import DecoderConfig
from isocompute.rl.decoder import EXACT

__all__ = ["memory_budget", "sampling_rows", "training_rows"]

_CPU_BYTES = 2 * 2**30
_GPU_SHARE = 0.4
_MOST_ROWS = 8192


def memory_budget(device: torch.device) -> int:
    """Bytes that activations or a cache may take: a share of what is free on a GPU, 2 GiB on a CPU."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(_GPU_SHARE * free)
    return _CPU_BYTES


def training_rows(config: DecoderConfig, *, tokens: int, dtype: torch.dtype, budget: int) -> int:
    """Sequences of `tokens` tokens whose activations fit.

    A layer keeps about 16 widths (norms, q, k, v, attention, residuals, some in FP32) and 4 feed-forward widths a
    token, the head 4 vocabularies in FP32 (logits, their gradient, log-softmax, entropy). Short attention in FP32 may
    keep its weights too (`decoder.EXACT`), one a head and slot.
    """
    layer = (16 * config.hidden_size + 4 * config.intermediate_size) * dtype.itemsize
    if dtype != torch.float32 and tokens <= EXACT:
        layer += config.num_attention_heads * tokens * 4
    per_token = config.num_hidden_layers * layer + 4 * config.vocab_size * 4
    return max(1, min(_MOST_ROWS, budget // (per_token * tokens)))


def sampling_rows(config: DecoderConfig, *, tokens: int, dtype: torch.dtype, budget: int) -> int:
    """Sequences whose caches fit, twice over (dropping finished rows copies), beside one step's logits."""
    cache = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * dtype.itemsize * tokens
    return max(1, min(2 * _MOST_ROWS, budget // (2 * cache + 6 * config.vocab_size * 8)))
