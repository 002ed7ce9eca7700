"""A decoder's shape, read from and written to a Hugging Face `config.json`.

One compact decoder covers the Llama, Qwen2 and Qwen3 families: they differ in whether q, k and v have biases (Qwen2),
whether q and k are normalised per head (Qwen3), and in how RoPE is scaled for long contexts.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from isocompute.core.errors import InputError
from isocompute.rl.fields import Fields
from isocompute.rl.rope_table import read_rope

__all__ = ["ARCHITECTURES", "DecoderConfig"]

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}


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
    rope_theta: float = 10000.0
    rope: dict[str, Any] = field(default_factory=dict)
    """RoPE scaling: `rope_type` and what that type needs; empty for none."""
    max_position_embeddings: int = 2048
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
    def from_json(cls, data: dict[str, Any], *, where: str = "config.json") -> DecoderConfig:
        """From the content of a `config.json` of transformers 4 or 5."""
        kind = data.get("model_type")
        if kind not in ARCHITECTURES:
            raise InputError(
                f"{where}: model_type '{kind}' is not supported; this engine reads {', '.join(ARCHITECTURES)}. "
                "Use an outside trainer through engine = 'command'."
            )
        if data.get("hidden_act", "silu") != "silu":
            raise InputError(f"{where}: hidden_act '{data['hidden_act']}' is not supported; these families use silu.")
        _refuse_windows(data, where)
        fields = Fields(data, where)
        hidden, heads = fields.whole("hidden_size"), fields.whole("num_attention_heads")
        theta, rope = read_rope(data, where)
        config = cls(
            model_type=kind,
            vocab_size=fields.whole("vocab_size"),
            hidden_size=hidden,
            intermediate_size=fields.whole("intermediate_size"),
            num_hidden_layers=fields.whole("num_hidden_layers"),
            num_attention_heads=heads,
            num_key_value_heads=fields.whole("num_key_value_heads", heads),
            head_dim=fields.whole("head_dim", hidden // heads),
            rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
            rope_theta=theta,
            rope=rope,
            max_position_embeddings=fields.whole("max_position_embeddings", 2048),
            tie_word_embeddings=fields.flag("tie_word_embeddings", False),
            attention_bias=fields.flag("attention_bias", kind == "qwen2"),
            mlp_bias=fields.flag("mlp_bias", False),
            extra=dict(data),
        )
        if heads % config.num_key_value_heads:
            raise InputError(
                f"{where}: 'num_attention_heads' is {heads}, no multiple of the {config.num_key_value_heads} of "
                "'num_key_value_heads'; take the checkpoint's own values."
            )
        if config.head_dim % 2:
            raise InputError(f"{where}: 'head_dim' is {config.head_dim}; RoPE turns pairs of channels, so it is even.")
        return config

    @classmethod
    def read(cls, folder: Path) -> DecoderConfig:
        """From a checkpoint's folder."""
        path = folder / "config.json"
        try:
            data = json.loads(path.read_text())
        except OSError as error:
            raise InputError(f"{path}: cannot be read; a checkpoint folder holds config.json.") from error
        except ValueError as error:
            raise InputError(f"{path}: not JSON ({error}).") from error
        if not isinstance(data, dict):
            raise InputError(f"{path}: not a table of fields; take the checkpoint's own config.json.")
        return cls.from_json(data, where=str(path))

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


def _refuse_windows(data: dict[str, Any], where: str) -> None:
    """Every layer here sees the whole context."""
    if data.get("use_sliding_window"):
        raise InputError(f"{where}: sliding-window attention is not supported; set use_sliding_window to false.")
    kinds = data.get("layer_types") or []
    others = [kind for kind in kinds if kind != "full_attention"] if isinstance(kinds, list) else [kinds]
    if others:
        raise InputError(f"{where}: layer_types names '{others[0]}'; only full_attention is supported.")
