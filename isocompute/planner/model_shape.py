"""A model as its cost sees it, from a Hugging Face `config.json`: parameters, weights a token meets, cache of a token.

Covers decoders of gated feed-forward layers, dense or mixtures of experts (`FAMILIES`), with grouped or latent
attention, tied embeddings and sliding windows.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from isocompute.core import files
from isocompute.core.errors import InputError
from isocompute.planner.config_reader import ConfigReader
from isocompute.planner.model_families import ALIASES, FAMILIES, Family, mixture_layers, windowed_layers

__all__ = ["ModelShape", "model_shape", "read_model_shape"]


@dataclass(frozen=True)
class ModelShape:
    """Counts that decide FLOPs, bytes and memory."""

    family: str
    layers: int
    hidden: int
    vocabulary: int
    tied: bool
    parameters: int
    """All of them, tied embeddings once."""
    active_parameters: int
    """Those that one token meets: all but the experts it is not sent to."""
    token_weights: int
    """Weights that multiply a token inside the layers: two FLOPs each, forward."""
    expert_weights: int
    """Weights of one routed expert, over all layers with experts; 0 for a dense model."""
    experts: int
    experts_per_token: int
    pair_flops: int
    """FLOPs of one query meeting one key, over all layers: scores and weighted values."""
    decode_pair_flops: int
    """The same when decoding from the cache; latent attention does more work there, on the cache as it is stored."""
    cache_elements: int
    """Numbers that one token leaves in the cache, over all layers."""
    window: int | None
    windowed_layers: int

    @property
    def head_weights(self) -> int:
        """Weights of the output head."""
        return self.hidden * self.vocabulary

    @property
    def windowed_share(self) -> float:
        """Share of the layers that look at the window only."""
        return self.windowed_layers / self.layers


def read_model_shape(path: str) -> ModelShape:
    """From a `config.json`, or from the folder of a checkpoint that holds one."""
    address = files.join(path, "config.json") if files.is_folder(path) else path
    if not files.exists(address):
        raise InputError(f"{address}: no such file; give a model's config.json, or the folder that holds it.")
    data = files.read_bytes(address)
    try:
        config = json.loads(data)
    except ValueError as error:
        raise InputError(f"{address}: not JSON ({error}); give a model's config.json.") from error
    if not isinstance(config, dict):
        raise InputError(f"{address}: not an object; give a model's config.json.")
    return model_shape(config, where=address)


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
    get = ConfigReader({**family.defaults, **config}, where)
    layers, hidden, vocabulary = get("num_hidden_layers"), get("hidden_size"), get("vocab_size")
    attention = _latent_attention(get) if family.latent else _attention(get, family, hidden)
    moe_layers = mixture_layers(get, layers) if (experts := _experts(get)) else 0
    dense = 3 * hidden * get("intermediate_size") if moe_layers < layers else 0
    expert = 3 * hidden * (get.maybe("moe_intermediate_size") or get("intermediate_size")) if experts else 0
    per_token = min(get("num_experts_per_tok"), experts) if experts else 0
    shared = _shared_expert(get, hidden) if experts else 0
    tied = bool(config.get("tie_word_embeddings", family.tied))
    mlp_bias = 2 * get("intermediate_size") + hidden if config.get("mlp_bias") and not experts else 0
    everywhere = (
        attention.weights + attention.small + family.norms * hidden + mlp_bias
    ) * layers  # what every layer has, whatever its feed-forward part
    sparse = moe_layers * (experts * hidden + shared)
    rest = everywhere + (layers - moe_layers) * dense + sparse + vocabulary * hidden * (1 if tied else 2) + hidden
    return ModelShape(
        family=name,
        layers=layers,
        hidden=hidden,
        vocabulary=vocabulary,
        tied=tied,
        parameters=rest + moe_layers * experts * expert,
        active_parameters=rest + moe_layers * per_token * expert,
        token_weights=attention.weights * layers
        + (layers - moe_layers) * dense
        + sparse
        + moe_layers * per_token * expert,
        expert_weights=moe_layers * expert,
        experts=experts,
        experts_per_token=per_token,
        pair_flops=attention.pair_flops * layers,
        decode_pair_flops=attention.decode_pair_flops * layers,
        cache_elements=attention.cache * layers,
        window=get.maybe("sliding_window"),
        windowed_layers=windowed_layers(get, family, layers),
    )


@dataclass(frozen=True)
class _Attention:
    """One layer's attention."""

    weights: int
    small: int
    """Biases and norms: parameters that cost nothing to speak of."""
    cache: int
    pair_flops: int
    decode_pair_flops: int


def _attention(get: ConfigReader, family: Family, hidden: int) -> _Attention:
    """Multi-head or grouped-query attention."""
    heads = get("num_attention_heads")
    kv_heads = get.maybe("num_key_value_heads") or heads
    width = get.maybe("head_dim") or hidden // heads
    if width < 1:
        raise InputError(
            f"{get.where}: num_attention_heads = {heads} with hidden_size = {hidden} leaves no head_dim; fix one."
        )
    queries, keys = heads * width, kv_heads * width
    asked = bool(get.config.get("attention_bias", get.config.get("qkv_bias", False)))
    small = (queries + 2 * keys) if (asked if family.qkv_bias == "config" else family.qkv_bias) else 0
    small += hidden if (asked if family.output_bias == "config" else family.output_bias) else 0
    norm = ("head" if get.config.get("use_qk_norm") else "none") if family.qk_norm == "config" else family.qk_norm
    small += {"none": 0, "head": 2 * width, "all": queries + keys}[norm]
    pair = 4 * queries
    return _Attention(2 * hidden * (queries + keys), small, 2 * keys, pair, pair)


def _latent_attention(get: ConfigReader) -> _Attention:
    """DeepSeek's multi-head latent attention: the cache holds a latent and one rotary key for all heads."""
    hidden, heads = get("hidden_size"), get("num_attention_heads")
    latent, rotary = get("kv_lora_rank"), get("qk_rope_head_dim")
    plain, value = get("qk_nope_head_dim"), get("v_head_dim")
    rank = get.maybe("q_lora_rank")
    queries = heads * (plain + rotary)
    weights = hidden * rank + rank * queries if rank else hidden * queries
    weights += hidden * (latent + rotary) + latent * heads * (plain + value) + heads * value * hidden
    small = latent + (rank or 0)
    if get.config.get("attention_bias"):
        small += (rank or 0) + latent + rotary + hidden
    return _Attention(
        weights, small, latent + rotary, 2 * heads * (plain + rotary + value), 2 * heads * (2 * latent + rotary)
    )


def _experts(get: ConfigReader) -> int:
    for key in ("num_experts", "num_local_experts", "n_routed_experts"):
        if get.maybe(key):
            return get(key)
    return 0


def _shared_expert(get: ConfigReader, hidden: int) -> int:
    """Weights of the experts that every token meets, Qwen2's with a gate of their own."""
    width = get.maybe("shared_expert_intermediate_size")
    if width:
        return 3 * hidden * width + hidden
    return 3 * hidden * (get.maybe("n_shared_experts") or 0) * (get.maybe("moe_intermediate_size") or 0)


def _family(config: Mapping[str, Any], where: str) -> tuple[str, Family]:
    kind = str(config.get("model_type"))
    name = ALIASES.get(kind, kind)
    if name not in FAMILIES:
        near = difflib.get_close_matches(name, FAMILIES, n=1, cutoff=0.0)[0]
        raise InputError(
            f"{where}: model_type '{kind}' is not one of {', '.join(FAMILIES)}; the nearest is '{near}': set "
            "model_type to it where the layers are alike, or give the throughput instead."
        )
    return name, FAMILIES[name]
