"""Small random models of every family, as transformers makes them."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from transformers import LlamaConfig, PretrainedConfig, Qwen2Config, Qwen3Config

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
