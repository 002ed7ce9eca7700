"""Parameter counts against transformers' own models, built on the meta device, and against published totals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from isocompute.core.errors import InputError
from isocompute.planner.cost.model import FAMILIES, model_shape, read_model_shape

TINY = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 6,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 120,
    "pad_token_id": 0,
}
QWEN_MOE = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
DEEPSEEK = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_shared_experts": 2,
    "moe_intermediate_size": 24,
    "first_k_dense_replace": 2,
    "kv_lora_rank": 20,
    "q_lora_rank": 28,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 12,
    "v_head_dim": 10,
    "n_group": 2,
    "topk_group": 1,
    "num_key_value_heads": 6,
    "head_dim": 8,
}
CASES: list[tuple[str, dict[str, Any]]] = [
    ("llama", {}),
    ("llama", {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
    ("llama", {"num_key_value_heads": None, "head_dim": None}),
    ("mistral", {"sliding_window": 32}),
    ("qwen2", {}),
    ("qwen2", {"tie_word_embeddings": True}),
    ("qwen3", {}),
    ("gemma", {}),
    ("gemma2", {}),
    ("gemma3_text", {}),
    ("phi3", {"head_dim": None}),
    ("olmo2", {"head_dim": None}),
    ("olmo3", {"head_dim": None}),
    ("granite", {"head_dim": None}),
    ("smollm3", {"head_dim": None}),
    ("glm4", {"attention_bias": True}),
    ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    ("olmoe", {"num_experts": 4, "num_experts_per_tok": 2, "head_dim": None}),
    ("qwen2_moe", {**QWEN_MOE, "shared_expert_intermediate_size": 40, "head_dim": None}),
    ("qwen3_moe", QWEN_MOE),
    ("qwen3_moe", {**QWEN_MOE, "decoder_sparse_step": 2, "mlp_only_layers": [3]}),
    ("glm4_moe", {**DEEPSEEK, "num_key_value_heads": 2, "use_qk_norm": True, "attention_bias": True, "head_dim": 16}),
    ("deepseek_v2", DEEPSEEK),
    ("deepseek_v2", {**DEEPSEEK, "q_lora_rank": None, "attention_bias": True}),
    ("deepseek_v3", DEEPSEEK),
]


@pytest.mark.parametrize(("kind", "extra"), CASES, ids=[f"{k}-{i}" for i, (k, _) in enumerate(CASES)])
def test_parameters_equal_those_of_transformers(kind: str, extra: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    fields = {key: value for key, value in {**TINY, **extra}.items() if value is not None or key == "q_lora_rank"}
    config = transformers.AutoConfig.for_model(kind, **fields)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    counted = sum(weight.numel() for weight in model.parameters())
    # As the file would be written: with every default spelled out, and as sparse as it was given.
    for written in (json.loads(config.to_json_string(use_diff=False)), {**fields, "model_type": kind}):
        shape = model_shape(written)
        assert shape.parameters == counted
        assert shape.active_parameters <= counted
        assert (shape.active_parameters == counted) == (shape.experts == 0)


def test_every_family_is_compared() -> None:
    names = {kind.removesuffix("_text") for kind, _ in CASES}
    assert names == set(FAMILIES)


QWEN3 = {"model_type": "qwen3_moe", "vocab_size": 151936, "hidden_size": 2048, "num_hidden_layers": 48}
PUBLISHED: list[tuple[str, dict[str, Any], float, float]] = [
    # Exact counts are those of the checkpoints' safetensors headers; rounded ones the makers' own figures.
    (
        "Qwen2.5-7B",
        {"model_type": "qwen2", "vocab_size": 152064, "hidden_size": 3584, "intermediate_size": 18944}
        | {"num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4},
        7_615_616_512,
        7_615_616_512,
    ),
    (
        "Mixtral-8x7B",
        {"model_type": "mixtral", "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336}
        | {"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8}
        | {"num_local_experts": 8, "num_experts_per_tok": 2},
        46_702_792_704,
        12.9e9,
    ),
    (
        "Qwen3-30B-A3B",
        QWEN3
        | {"num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 6144}
        | {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768},
        30.5e9,
        3.3e9,
    ),
    (
        "DeepSeek-V3",
        {"model_type": "deepseek_v3", "vocab_size": 129280, "hidden_size": 7168, "intermediate_size": 18432}
        | {"num_hidden_layers": 61, "num_attention_heads": 128, "kv_lora_rank": 512, "q_lora_rank": 1536}
        | {"qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "n_routed_experts": 256}
        | {"num_experts_per_tok": 8, "n_shared_experts": 1, "moe_intermediate_size": 2048, "first_k_dense_replace": 3},
        671e9,
        37e9,
    ),
]


@pytest.mark.parametrize(("config", "total", "active"), [p[1:] for p in PUBLISHED], ids=[p[0] for p in PUBLISHED])
def test_published_totals(config: dict[str, Any], total: float, active: float) -> None:
    shape = model_shape(config)
    assert shape.parameters == (total if isinstance(total, int) else pytest.approx(total, rel=0.005))
    assert shape.active_parameters == (active if isinstance(active, int) else pytest.approx(active, rel=0.03))


def test_latent_attention_caches_little() -> None:
    """DeepSeek-V3 keeps 512 + 64 numbers a token and layer, where its 128 heads of 128 would keep 32,768."""
    shape = model_shape(PUBLISHED[-1][1])
    assert shape.cache_elements == 61 * 576
    assert shape.decode_pair_flops > shape.pair_flops


def test_windows() -> None:
    gemma = {"model_type": "gemma3", "text_config": {**TINY, "model_type": "gemma3_text", "sliding_window": 512}}
    assert model_shape(gemma).windowed_layers == 5
    assert model_shape({**TINY, "model_type": "gemma2", "sliding_window": 512}).windowed_layers == 3
    qwen = {**TINY, "model_type": "qwen2", "sliding_window": 512, "max_window_layers": 4}
    assert model_shape(qwen).windowed_layers == 0
    assert model_shape({**qwen, "use_sliding_window": True}).windowed_layers == 2
    assert model_shape({**qwen, "layer_types": ["sliding_attention"] * 6}).windowed_layers == 6


def test_wrong_configs_say_what_would_work(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"model_type 'qwen3_next' is not one of .* the nearest is 'qwen3"):
        model_shape({**TINY, "model_type": "qwen3_next"})
    with pytest.raises(InputError, match="'num_hidden_layers' is missing"):
        model_shape({"model_type": "llama", "hidden_size": 8})
    with pytest.raises(InputError, match="'vocab_size' is 'big', not a whole number"):
        model_shape({**TINY, "model_type": "llama", "vocab_size": "big"})
    with pytest.raises(InputError, match="'hidden_size' is 0, not a whole number above 0"):
        model_shape({**TINY, "model_type": "llama", "hidden_size": 0})
    for missing in (tmp_path / "nope", tmp_path / "config.json"):
        with pytest.raises(InputError) as caught:
            read_model_shape(str(missing))
        assert str(caught.value) == f"{missing}: no such file; give a model's config.json, or the folder that holds it."
    with pytest.raises(InputError, match=r"config\.json: no such file"):
        read_model_shape(str(tmp_path))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(InputError, match="not JSON"):
        read_model_shape(str(tmp_path))
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(InputError, match="not a table"):
        read_model_shape(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps({**TINY, "model_type": "llama"}))
    assert read_model_shape(str(tmp_path)) == read_model_shape(str(tmp_path / "config.json"))


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("hidden_size", float("nan"), "not a whole number"),
        ("hidden_size", float("inf"), "not a whole number"),
        ("hidden_size", 10**400, "over 1,000,000,000, more than any model has"),
        ("decoder_sparse_step", "x", "not a whole number"),
        ("first_k_dense_replace", "a", "not a whole number"),
        ("mlp_only_layers", 3, "not a list"),
        ("layer_types", 5, "not a list"),
        ("max_window_layers", "x", "not a whole number"),
        ("num_attention_heads", 5000, "leaves no head_dim"),
    ],
)
def test_odd_fields_are_named(key: str, value: Any, says: str) -> None:
    odd = {**TINY, "model_type": "qwen3_moe", **QWEN_MOE, "sliding_window": 7, "use_sliding_window": True}
    odd.pop("head_dim", None)
    with pytest.raises(InputError, match=f"config.json: '?{key}'? .*{says}"):
        model_shape({**odd, key: value})


@pytest.mark.parametrize("value", ["x", -3])
def test_odd_window_patterns_are_named(value: Any) -> None:
    with pytest.raises(InputError, match=r"'sliding_window_pattern' is .*, not a whole number"):
        model_shape({**TINY, "model_type": "gemma2", "sliding_window": 7, "sliding_window_pattern": value})


def test_no_window_layers_is_as_if_they_were_not_said() -> None:
    config = {**TINY, "model_type": "qwen2", "sliding_window": 7, "use_sliding_window": True}
    assert model_shape({**config, "max_window_layers": None}) == model_shape(config)
