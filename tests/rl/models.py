"""Small random models of every family, as transformers makes them and in this engine's decoder, and samples of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor
from transformers import LlamaConfig, PretrainedConfig, Qwen2Config, Qwen3Config

from isocompute.rl.model.attention import PackedAttention, Packing
from isocompute.rl.model.config import DecoderConfig
from isocompute.rl.model.decoder import Decoder
from isocompute.rl.rollout.eager import EagerEngine
from isocompute.rl.rollout.engine import PromptGroup, Rollouts, SamplingSettings, sample, streams

BASE: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 64}
CONFIGS: dict[str, PretrainedConfig] = {
    "llama": LlamaConfig(**BASE, num_key_value_heads=4),
    "llama-gqa-tied": LlamaConfig(**BASE, num_key_value_heads=2, tie_word_embeddings=True),
    "llama-bias": LlamaConfig(**BASE, num_key_value_heads=1, attention_bias=True, mlp_bias=True),
    "llama-linear": LlamaConfig(
        **BASE, num_key_value_heads=2, rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}
    ),
    "llama-llama3": LlamaConfig(**BASE, num_key_value_heads=2, rope_parameters=LLAMA3),
    "qwen2": Qwen2Config(**BASE, num_key_value_heads=2),
    "qwen2-tied-yarn": Qwen2Config(**BASE, num_key_value_heads=4, tie_word_embeddings=True, rope_parameters=YARN),
    "qwen3": Qwen3Config(**BASE, num_key_value_heads=2, head_dim=32),
    "qwen3-tied": Qwen3Config(**BASE, num_key_value_heads=4, head_dim=16, tie_word_embeddings=True),
}


def reference(name: str, *, seed: int = 0) -> transformers.PreTrainedModel:
    """The model of a config with weights that make attention and norms matter."""
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS[name], dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.15)
    return model


def as_decoder(model: transformers.PreTrainedModel) -> Decoder:
    """The same weights in this engine's decoder."""
    decoder = Decoder(DecoderConfig.from_json(model.config.to_dict())).eval()
    weights = {name.removeprefix("model."): value for name, value in model.state_dict().items()}
    with torch.no_grad():
        for part in decoder.parts():
            part.of(part.parameter).copy_(weights[part.name])
    return decoder


def weights_of(decoder: Decoder) -> dict[str, Tensor]:
    """By the names of checkpoints, without the leading `model.`."""
    return {part.name: part.of(part.parameter.detach()).clone() for part in decoder.parts()}


def gradients_of(decoder: Decoder) -> dict[str, Tensor]:
    """By the names of checkpoints, without the leading `model.`."""
    return {p.name: p.of(p.parameter.grad).clone() for p in decoder.parts() if p.parameter.grad is not None}


@torch.no_grad()
def logits_of(decoder: Decoder, tokens_BT: Tensor) -> Tensor:
    """Logits of all tokens of rows of equal length."""
    rows, width = tokens_BT.shape
    packing = Packing.of([width] * rows, [], np.zeros(0, dtype=np.int64), tokens_BT.device)
    positions_T = torch.from_numpy(packing.positions)
    hidden_TD = decoder(tokens_BT.reshape(-1), positions_T, PackedAttention(packing))
    return decoder.logits(hidden_TD).view(rows, width, -1)


def requests(
    prompts: Sequence[Sequence[int]], *, seed: int, per_prompt: int = 1, temperature: float = 1.0
) -> list[PromptGroup]:
    """A group for each prompt; rows are numbered one after another."""
    rows_PN = np.arange(len(prompts) * per_prompt).reshape(-1, per_prompt)
    return [
        PromptGroup(key, prompt, streams(seed, rows_N), temperature)
        for key, (prompt, rows_N) in enumerate(zip(prompts, rows_PN, strict=True))
    ]


def eager(decoder: Decoder, groups: Sequence[PromptGroup], settings: SamplingSettings) -> Rollouts:
    """Sampled by the reference engine, all rows at once."""
    rows, longest = sum(len(group.streams) for group in groups), max(len(group.prompt) for group in groups)
    return sample(EagerEngine(decoder, settings, rows=rows, prompt_tokens=longest), groups)
