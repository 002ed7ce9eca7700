"""Reads a model's shape from its Hugging Face `config.json`: parameters, weights per token and cache per token.

It covers decoders with gated feed-forward layers, dense or mixtures of experts (`FAMILIES`), with grouped or latent
attention, tied embeddings and sliding windows. The families follow the modelling code of transformers 5.22;
`tests/planner/test_cost_model_shape.py` builds each of them and compares the parameter counts.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from isocompute.core import files
from isocompute.core.errors import InputError
from isocompute.core.model_config import ModelConfig, read_config_file


@dataclass(frozen=True)
class Architecture:
    """How a `model_type` departs from Llama."""

    qkv_bias: bool | Literal["config"] = "config"
    """Whether q, k and v have biases; `config`: as the keys `attention_bias` or `qkv_bias` say."""
    output_bias: bool | Literal["config"] = "config"
    qk_norm: Literal["none", "head", "all", "config"] = "none"
    """Norms of q and k: one per head, one over all heads, or per head if `use_qk_norm` is set (`config`)."""
    norms: int = 2
    """Number of norms of the hidden width in each layer."""
    tied: bool = False
    """Whether input and output embeddings are tied if the config does not say."""
    window: Literal["none", "all", "late", "pattern"] = "none"
    """Layers with a sliding window if the config has no `layer_types`.

    `all`, those from `max_window_layers` on (`late`), or all but each `sliding_window_pattern`-th (`pattern`)."""
    window_pattern: int = 0
    latent: bool = False
    """DeepSeek's latent attention: a low-rank cache instead of keys and values."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Values of keys that published configs of this family leave out."""


_GEMMA3 = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 262_208}
FAMILIES: dict[str, Architecture] = {
    "llama": Architecture(),
    "mistral": Architecture(qkv_bias=False, output_bias=False, window="all"),
    "qwen2": Architecture(qkv_bias=True, output_bias=False, window="late"),
    "qwen3": Architecture(qk_norm="head", window="late"),
    "gemma": Architecture(tied=True),
    "gemma2": Architecture(tied=True, norms=4, window="pattern", window_pattern=2),
    "gemma3": Architecture(tied=True, norms=4, qk_norm="head", window="pattern", window_pattern=6, defaults=_GEMMA3),
    "phi3": Architecture(qkv_bias=False, output_bias=False, window="all"),
    "olmo2": Architecture(qk_norm="all"),
    "olmo3": Architecture(qk_norm="all", window="pattern", window_pattern=4),
    "granite": Architecture(),
    "smollm3": Architecture(tied=True),
    "glm4": Architecture(output_bias=False, norms=4),
    "mixtral": Architecture(qkv_bias=False, output_bias=False, window="all"),
    "olmoe": Architecture(qk_norm="all"),
    "qwen2_moe": Architecture(qkv_bias=True, output_bias=False, window="late"),
    "qwen3_moe": Architecture(qk_norm="head", window="late"),
    "glm4_moe": Architecture(output_bias=False, qk_norm="config"),
    "deepseek_v2": Architecture(latent=True),
    "deepseek_v3": Architecture(latent=True),
}
_ALIASES = {
    "gemma3_text": "gemma3",
    "qwen2_5_vl": "qwen2",
    "qwen2_5_vl_text": "qwen2",
    "qwen3_vl_text": "qwen3",
    "qwen3_vl_moe_text": "qwen3_moe",
    "kimi_k2": "deepseek_v3",
}
"""Other names of the same text decoder; vision towers are not counted."""


@dataclass(frozen=True)
class ModelShape:
    """Counts that determine FLOPs, bytes and memory."""

    family: str
    layers: int
    hidden: int
    vocabulary: int
    tied: bool
    parameters: int
    """All parameters, with tied embeddings counted once."""
    active_parameters: int
    """Parameters that one token uses: all but the experts that it is not routed to."""
    token_weights: int
    """Weights that multiply a token inside the layers, with two FLOPs each in a forward pass."""
    expert_weights: int
    """Weights of one routed expert, over all layers with experts; 0 for a dense model."""
    experts: int
    experts_per_token: int
    pair_flops: int
    """FLOPs of a pair of query and key over all layers: scores and weighted values."""
    decode_pair_flops: int
    """FLOPs of such a pair when decoding; latent attention needs more, since it works on the compressed cache."""
    cache_elements: int
    """Elements of one token in the cache, over all layers."""
    window: int | None
    windowed_layers: int

    @property
    def head_weights(self) -> int:
        """Weights of the output head."""
        return self.hidden * self.vocabulary

    @property
    def windowed_share(self) -> float:
        """Share of the layers that attend to the window only."""
        return self.windowed_layers / self.layers


def read_model_shape(path: str) -> ModelShape:
    """The shape of a model, from its `config.json` or the folder of a checkpoint with one."""
    address = files.join(path, "config.json") if files.is_folder(path) else path
    if not files.exists(address):
        raise InputError(f"{address}: no such file; give a model's config.json, or the folder that holds it.")
    return model_shape(read_config_file(address), where=address)


def model_shape(config: Mapping[str, Any], *, where: str = "config.json") -> ModelShape:
    """The shape of the model that a config describes.

    >>> shape = model_shape({"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    ...     "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256})
    >>> f"{shape.parameters:,}"
    '8,030,261,248'
    """
    text = config.get("text_config")
    config = {**config, **text} if isinstance(text, dict) else config
    name, family = _family(config, where)
    fields = ModelConfig.of({**family.defaults, **config}, where=where)
    need = partial(fields.need, where=where)
    layers, hidden, vocabulary = need("num_hidden_layers"), need("hidden_size"), need("vocab_size")
    attention = _latent_attention(fields, where) if family.latent else _attention(fields, family, hidden, where)
    experts = fields.num_experts or fields.num_local_experts or fields.n_routed_experts or 0
    moe_layers = _mixture_layers(fields, layers) if experts else 0
    dense = 3 * hidden * need("intermediate_size") if moe_layers < layers else 0
    expert = 3 * hidden * (fields.moe_intermediate_size or need("intermediate_size")) if experts else 0
    per_token = min(need("num_experts_per_tok"), experts) if experts else 0
    shared = _shared_expert(fields, hidden) if experts else 0
    tied = family.tied if fields.tie_word_embeddings is None else fields.tie_word_embeddings
    mlp_bias = 2 * need("intermediate_size") + hidden if fields.mlp_bias and not experts else 0
    everywhere = (attention.weights + attention.small + family.norms * hidden + mlp_bias) * layers
    sparse = moe_layers * (experts * hidden + shared)
    feed_forward = (layers - moe_layers) * dense + sparse
    rest = everywhere + feed_forward + vocabulary * hidden * (1 if tied else 2) + hidden
    return ModelShape(
        family=name,
        layers=layers,
        hidden=hidden,
        vocabulary=vocabulary,
        tied=tied,
        parameters=rest + moe_layers * experts * expert,
        active_parameters=rest + moe_layers * per_token * expert,
        token_weights=attention.weights * layers + feed_forward + moe_layers * per_token * expert,
        expert_weights=moe_layers * expert,
        experts=experts,
        experts_per_token=per_token,
        pair_flops=attention.pair_flops * layers,
        decode_pair_flops=attention.decode_pair_flops * layers,
        cache_elements=attention.cache * layers,
        window=fields.sliding_window,
        windowed_layers=_windowed_layers(fields, family, layers),
    )


def _family(config: Mapping[str, Any], where: str) -> tuple[str, Architecture]:
    kind = str(config.get("model_type"))
    name = _ALIASES.get(kind, kind)
    if name not in FAMILIES:
        near = difflib.get_close_matches(name, FAMILIES, n=1, cutoff=0.0)[0]
        raise InputError(
            f"{where}: model_type '{kind}' is not one of {', '.join(FAMILIES)}; the nearest is '{near}': set "
            "model_type to it where the layers are alike, or give the throughput instead."
        )
    return name, FAMILIES[name]


@dataclass(frozen=True)
class _Attention:
    """One layer's attention."""

    weights: int
    small: int
    """Biases and norms: parameters of negligible cost."""
    cache: int
    pair_flops: int
    decode_pair_flops: int


def _attention(fields: ModelConfig, family: Architecture, hidden: int, where: str) -> _Attention:
    """Multi-head or grouped-query attention."""
    heads: int = fields.need("num_attention_heads", where=where)
    kv_heads = fields.num_key_value_heads or heads
    width = fields.head_dim or hidden // heads
    if width < 1:
        raise InputError(
            f"{where}: num_attention_heads = {heads} with hidden_size = {hidden} leaves no head_dim; fix one."
        )
    queries, keys = heads * width, kv_heads * width
    asked = bool(fields.qkv_bias if fields.attention_bias is None else fields.attention_bias)
    small = (queries + 2 * keys) if (asked if family.qkv_bias == "config" else family.qkv_bias) else 0
    small += hidden if (asked if family.output_bias == "config" else family.output_bias) else 0
    norm = ("head" if fields.use_qk_norm else "none") if family.qk_norm == "config" else family.qk_norm
    small += {"none": 0, "head": 2 * width, "all": queries + keys}[norm]
    return _Attention(2 * hidden * (queries + keys), small, 2 * keys, 4 * queries, 4 * queries)


def _latent_attention(fields: ModelConfig, where: str) -> _Attention:
    """DeepSeek's multi-head latent attention, whose cache has one latent and one rotary key for all heads."""
    need = partial(fields.need, where=where)
    hidden, heads = need("hidden_size"), need("num_attention_heads")
    latent, rotary = need("kv_lora_rank"), need("qk_rope_head_dim")
    plain, value, rank = need("qk_nope_head_dim"), need("v_head_dim"), fields.q_lora_rank
    queries = heads * (plain + rotary)
    weights = hidden * rank + rank * queries if rank else hidden * queries
    weights += hidden * (latent + rotary) + latent * heads * (plain + value) + heads * value * hidden
    small = latent + (rank or 0)
    if fields.attention_bias:
        small += (rank or 0) + latent + rotary + hidden
    return _Attention(
        weights, small, latent + rotary, 2 * heads * (plain + rotary + value), 2 * heads * (2 * latent + rotary)
    )


def _mixture_layers(fields: ModelConfig, layers: int) -> int:
    """How many layers have experts: all, every `decoder_sparse_step`-th, or those after `first_k_dense_replace`."""
    every = fields.decoder_sparse_step or 1
    first = min(fields.first_k_dense_replace or 0, layers)
    dense: set[int] = {i for i in (fields.mlp_only_layers or []) if isinstance(i, int) and first <= i < layers}
    return layers // every - first // every - sum((i + 1) % every == 0 for i in dense)


def _shared_expert(fields: ModelConfig, hidden: int) -> int:
    """Weights of the shared experts, which every token uses; Qwen2's have a gate."""
    width = fields.shared_expert_intermediate_size
    if width:
        return 3 * hidden * width + hidden
    return 3 * hidden * (fields.n_shared_experts or 0) * (fields.moe_intermediate_size or 0)


def _windowed_layers(fields: ModelConfig, family: Architecture, layers: int) -> int:
    """How many layers attend to the last `sliding_window` tokens only."""
    if not fields.sliding_window:
        return 0
    kinds = fields.layer_types or []
    if kinds:
        return min(sum(1 for kind in kinds if kind == "sliding_attention"), layers)
    if family.window == "all":
        return layers
    if family.window == "late" and fields.use_sliding_window:
        first = fields.max_window_layers
        return max(0, layers - (layers if first is None else first))
    if family.window == "pattern":
        every = fields.sliding_window_pattern or family.window_pattern
        return layers - layers // every
    return 0
