"""What the families of Hugging Face decoders do differently, as data: biases, norms, windows, where experts sit.

Read off the modelling code of transformers 5.22; `tests/planner/test_cost_model_shape.py` builds each family there and
compares the parameter counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from isocompute.planner.config_reader import ConfigReader

__all__ = ["ALIASES", "FAMILIES", "Family", "mixture_layers", "windowed_layers"]


@dataclass(frozen=True)
class Family:
    """How a `model_type` departs from Llama."""

    qkv_bias: bool | Literal["config"] = "config"
    """Biases of q, k and v; `config`: the keys `attention_bias` or `qkv_bias` say, none by default."""
    output_bias: bool | Literal["config"] = "config"
    qk_norm: Literal["none", "head", "all", "config"] = "none"
    """Norms of q and k: one for each head's channels, one over all of them, or where `use_qk_norm` says so."""
    norms: int = 2
    """Norms of the hidden width in a layer."""
    tied: bool = False
    """Input embeddings are the output head's, where the config does not say."""
    window: Literal["none", "all", "late", "pattern"] = "none"
    """Which layers look at the last `sliding_window` tokens only, where there is no `layer_types`: every layer with a
    window set, those from `max_window_layers` on, or all but each `sliding_window_pattern`-th."""
    window_pattern: int = 0
    latent: bool = False
    """DeepSeek's latent attention: a low-rank cache instead of keys and values."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Keys that published configs of this family leave out."""


_QWEN2 = Family(qkv_bias=True, output_bias=False, window="late")
_QWEN3 = Family(qk_norm="head", window="late")
_GLM = Family(output_bias=False)
FAMILIES: dict[str, Family] = {
    "llama": Family(),
    "mistral": Family(qkv_bias=False, output_bias=False, window="all"),
    "qwen2": _QWEN2,
    "qwen3": _QWEN3,
    "gemma": Family(tied=True),
    "gemma2": Family(tied=True, norms=4, window="pattern", window_pattern=2),
    "gemma3": Family(
        tied=True,
        norms=4,
        qk_norm="head",
        window="pattern",
        window_pattern=6,
        defaults={"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 262_208},
    ),
    "phi3": Family(qkv_bias=False, output_bias=False, window="all"),
    "olmo2": Family(qk_norm="all"),
    "olmo3": Family(qk_norm="all", window="pattern", window_pattern=4),
    "granite": Family(),
    "smollm3": Family(tied=True),
    "glm4": Family(output_bias=False, norms=4),
    "mixtral": Family(qkv_bias=False, output_bias=False, window="all"),
    "olmoe": Family(qk_norm="all"),
    "qwen2_moe": Family(qkv_bias=True, output_bias=False, window="late"),
    "qwen3_moe": _QWEN3,
    "glm4_moe": Family(output_bias=False, qk_norm="config"),
    "deepseek_v2": Family(latent=True),
    "deepseek_v3": Family(latent=True),
}
ALIASES = {
    "gemma3_text": "gemma3",
    "qwen2_5_vl": "qwen2",
    "qwen2_5_vl_text": "qwen2",
    "qwen3_vl_text": "qwen3",
    "qwen3_vl_moe_text": "qwen3_moe",
    "kimi_k2": "deepseek_v3",
}
"""Other names of the same text decoder; vision towers are not counted."""


def mixture_layers(get: ConfigReader, layers: int) -> int:
    """How many layers have experts: all, every `decoder_sparse_step`-th, or those after `first_k_dense_replace`."""
    every = get.maybe("decoder_sparse_step") or 1
    first = min(get.maybe("first_k_dense_replace") or 0, layers)
    dense: set[int] = {i for i in get.listed("mlp_only_layers") if isinstance(i, int) and first <= i < layers}
    return layers // every - first // every - sum((i + 1) % every == 0 for i in dense)


def windowed_layers(get: ConfigReader, family: Family, layers: int) -> int:
    """How many layers look at the last `sliding_window` tokens only."""
    if not get.maybe("sliding_window"):
        return 0
    kinds = get.listed("layer_types")
    if kinds:
        return min(sum(1 for kind in kinds if kind == "sliding_attention"), layers)
    if family.window == "all":
        return layers
    if family.window == "late":
        first = get.maybe("max_window_layers")
        return max(0, layers - (layers if first is None else first)) if get.config.get("use_sliding_window") else 0
    if family.window == "pattern":
        every = get.maybe("sliding_window_pattern") or family.window_pattern
        return layers - layers // every
    return 0
