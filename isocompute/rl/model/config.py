"""The configuration of a decoder, read from and written to a Hugging Face `config.json`.

One compact decoder covers the Llama, Qwen2 and Qwen3 families: they differ in whether q, k and v have biases (Qwen2),
whether q and k are normalised per head (Qwen3), and in how RoPE is scaled for long contexts. What this engine does not
compute is refused, since a model with slightly wrong RoPE fails silently: it still writes plausible text.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from isocompute.core.errors import InputError
from isocompute.core.model_config import ModelConfig, RopeScaling, read_config_file

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
_ROPE_NEEDS = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor",),
}
"""RoPE types, and the fields that each needs."""
_ZERO_IS_NONE = ("beta_fast", "beta_slow", "mscale", "mscale_all_dim")
_ROPE_THETA, _CONTEXT = 10000.0, 2048
"""transformers' defaults."""


@dataclass(frozen=True)
class DecoderConfig:
    """What the decoder needs of `config.json`; `extra` keeps the rest so that writing it back loses nothing."""

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float = 1e-6
    rope_theta: float = _ROPE_THETA
    rope: dict[str, Any] = field(default_factory=dict)
    """RoPE scaling: `rope_type` and what that type needs; empty for none."""
    max_position_embeddings: int = _CONTEXT
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    """Biases of q, k and v (Qwen2 has them; Llama may, and then also on the output projection)."""
    mlp_bias: bool = False
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def qk_norm(self) -> bool:
        """Qwen3 normalises each head of q and k."""
        return self.model_type == "qwen3"

    @property
    def output_bias(self) -> bool:
        """Llama's attention_bias covers the output projection too; Qwen2's does not."""
        return self.attention_bias and self.model_type != "qwen2"

    @classmethod
    def read(cls, folder: Path) -> DecoderConfig:
        """From a checkpoint's folder."""
        path = folder / "config.json"
        if not path.is_file():
            raise InputError(f"{path}: cannot be read; a checkpoint folder holds config.json.")
        return cls.from_json(read_config_file(str(path)), where=str(path))

    @classmethod
    def from_json(cls, data: dict[str, Any], *, where: str = "config.json") -> DecoderConfig:
        """From the content of a `config.json` of transformers 4 or 5."""
        model = ModelConfig.of(data, where=where)
        _refuse_others(model, where)
        hidden, heads = model.need("hidden_size", where=where), model.need("num_attention_heads", where=where)
        kv_heads = model.num_key_value_heads or heads
        head_dim = model.head_dim or hidden // heads
        if heads % kv_heads:
            raise InputError(
                f"{where}: 'num_attention_heads' is {heads}, no multiple of the {kv_heads} of "
                "'num_key_value_heads'; take the checkpoint's own values."
            )
        if head_dim % 2:
            raise InputError(f"{where}: 'head_dim' is {head_dim}; RoPE turns pairs of channels, so it is even.")
        theta, rope = _rope(model, where)
        return cls(
            model_type=model.model_type,
            vocab_size=model.need("vocab_size", where=where),
            hidden_size=hidden,
            intermediate_size=model.need("intermediate_size", where=where),
            num_hidden_layers=model.need("num_hidden_layers", where=where),
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            head_dim=head_dim,
            rms_norm_eps=model.rms_norm_eps or 1e-6,
            rope_theta=theta,
            rope=rope,
            max_position_embeddings=model.max_position_embeddings or _CONTEXT,
            tie_word_embeddings=bool(model.tie_word_embeddings),
            attention_bias=model.model_type == "qwen2" if model.attention_bias is None else model.attention_bias,
            mlp_bias=bool(model.mlp_bias),
            extra=dict(data),
        )

    def to_json(self) -> dict[str, Any]:
        """What transformers and vLLM read; keys that came with the checkpoint are kept."""
        rope = {"rope_theta": self.rope_theta, **(self.rope or {"rope_type": "default"})}
        out = {
            **self.extra,
            "architectures": [ARCHITECTURES[self.model_type]],
            "model_type": self.model_type,
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_hidden_layers,
            "num_attention_heads": self.num_attention_heads,
            "num_key_value_heads": self.num_key_value_heads,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "rms_norm_eps": self.rms_norm_eps,
            "rope_theta": self.rope_theta,
            "rope_parameters": rope,
            "rope_scaling": self.rope or None,
            "max_position_embeddings": self.max_position_embeddings,
            "tie_word_embeddings": self.tie_word_embeddings,
            "attention_bias": self.attention_bias,
        }
        if self.model_type == "llama":
            out["mlp_bias"] = self.mlp_bias
        return out


def _refuse_others(model: ModelConfig, where: str) -> None:
    """Refuse families, activations and attention windows that the decoder does not compute."""
    if model.model_type not in ARCHITECTURES:
        raise InputError(
            f"{where}: model_type '{model.model_type}' is not supported; this engine reads "
            f"{', '.join(ARCHITECTURES)}. Use an outside trainer through engine = 'command'."
        )
    if model.hidden_act not in (None, "silu"):
        raise InputError(f"{where}: hidden_act '{model.hidden_act}' is not supported; these families use silu.")
    if model.use_sliding_window:
        raise InputError(f"{where}: sliding-window attention is not supported; set use_sliding_window to false.")
    others = [kind for kind in model.layer_types or () if kind != "full_attention"]
    if others:
        raise InputError(f"{where}: layer_types names '{others[0]}'; only full_attention is supported.")


def _rope(model: ModelConfig, where: str) -> tuple[float, dict[str, Any]]:
    """Theta and the checked scaling table, as transformers 5 reads them (`modeling_rope_utils.py`).

    If both are given, `rope_scaling` (transformers 4) replaces `rope_parameters` (5) entirely. Theta and the original
    length may be inside the table or beside it. The table is empty without scaling.
    """
    name = "rope_scaling" if model.rope_scaling else "rope_parameters"
    given, where = getattr(model, name) or {}, f"{where}: {name}"
    table = {key: value for key, value in given.items() if not (key in _ZERO_IS_NONE and value == 0)}
    own = RopeScaling.of(table, where=where)
    theta = own.rope_theta or model.rope_theta or _ROPE_THETA
    kind = own.rope_type or own.type or "default"
    if kind not in _ROPE_NEEDS:
        raise InputError(f"{where}: rope_type '{kind}' is not one of {', '.join(_ROPE_NEEDS)}.")
    if {model.partial_rotary_factor, own.partial_rotary_factor} - {None, 1.0}:
        raise InputError(f"{where}: 'partial_rotary_factor' other than 1 is not supported in these families.")
    if own.model_extra:
        raise InputError(
            f"{where}: '{min(own.model_extra)}' is not known to this engine, which would compute another model; "
            "use an outside trainer through engine = 'command'."
        )
    if kind == "default":
        return theta, {}
    unused = {"rope_type", "type", "rope_theta", "truncate", "finetuned", "partial_rotary_factor"}
    rope: dict[str, Any] = {"rope_type": kind, **own.model_dump(exclude_none=True, exclude=unused)}
    if kind in ("llama3", "yarn"):
        context = model.max_position_embeddings or _CONTEXT
        original = model.original_max_position_embeddings or own.original_max_position_embeddings or context
        rope["original_max_position_embeddings"] = original
    if kind == "yarn":
        rope["truncate"] = own.truncate is not False
        if "factor" in given and own.factor is None:  # null: the ratio of the lengths
            rope["factor"] = context / original
    for key in _ROPE_NEEDS[kind]:
        if key not in rope:
            raise InputError(f"{where}: '{key}' is missing, which rope_type '{kind}' needs.")
    if kind == "llama3" and rope["high_freq_factor"] <= rope["low_freq_factor"]:
        raise InputError(f"{where}: 'high_freq_factor' is not above 'low_freq_factor'; they are swapped or damaged.")
    return theta, rope
