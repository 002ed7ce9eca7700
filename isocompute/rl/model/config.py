"""Fields of a `config.json`, checked as they are read: what is wrong is said with its file and its name."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from isocompute.core.errors import InputError

__all__ = ["ARCHITECTURES", "DecoderConfig", "Fields", "read_rope"]


class Fields:
    """A table of numbers and flags; `null` counts as not there, as it does in transformers."""

    def __init__(self, table: Mapping[str, Any], where: str) -> None:
        self.table, self.where = table, where

    def has(self, name: str) -> bool:
        """Whether a value is given."""
        return self.table.get(name) is not None

    def whole(self, name: str, default: int | None = None) -> int:
        """A number of things, at least one; without a default it has to be there."""
        value = self._value(name, default)
        if not _is_number(value) or value != int(value) or value < 1:
            raise self._wrong(name, value, "a whole number above 0")
        return int(value)

    def number(self, name: str, default: float | None = None) -> float:
        """A number above 0; without a default it has to be there."""
        value = self._value(name, default)
        if not _is_number(value) or value <= 0:
            raise self._wrong(name, value, "a number above 0")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        value = self._value(name, default)
        if not isinstance(value, bool):
            raise self._wrong(name, value, "true or false")
        return value

    def part(self, name: str) -> dict[str, Any]:
        """A table in the table; empty where it is not there."""
        value = self._value(name, {})
        if not isinstance(value, dict):
            raise self._wrong(name, value, "a table")
        return value

    def _value(self, name: str, default: Any) -> Any:
        value = self.table.get(name)
        if value is not None:
            return value
        if default is None:
            raise InputError(f"{self.where}: '{name}' is missing; take the file of the whole checkpoint.")
        return default

    def _wrong(self, name: str, value: Any, wanted: str) -> InputError:
        shown = repr(value) if len(repr(value)) <= 40 else f"{repr(value)[:40]}…"
        return InputError(f"{self.where}: '{name}' is {shown}, not {wanted}; take the checkpoint's own value.")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


# How a `config.json` says RoPE is scaled, read as transformers 5 reads it (`modeling_rope_utils.py`).

_TYPES = ("default", "linear", "llama3", "yarn")
_NAMES = ("rope_type", "type", "rope_theta", "truncate", "finetuned")
"""The last one says how YaRN's authors came by the weights."""
_NUMBERS = (
    "factor",
    "original_max_position_embeddings",
    "low_freq_factor",
    "high_freq_factor",
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "mscale",
    "mscale_all_dim",
)
_NEEDS = {"linear": ("factor",), "llama3": ("factor", "low_freq_factor", "high_freq_factor"), "yarn": ("factor",)}
_ZERO_IS_NONE = ("beta_fast", "beta_slow", "mscale", "mscale_all_dim")
_ORIGINAL = "original_max_position_embeddings"
_THETA = 10000.0


def read_rope(data: Mapping[str, Any], where: str) -> tuple[float, dict[str, Any]]:
    """Theta and the scaling's table, complete and checked; the table is empty where nothing is scaled."""
    top = Fields(data, where)
    name = "rope_scaling" if data.get("rope_scaling") else "rope_parameters"
    given = top.part(name)
    table = {k: v for k, v in given.items() if v is not None and not (k in _ZERO_IS_NONE and v == 0)}
    own = Fields(table, f"{where}: {name}")
    theta = own.number("rope_theta", top.number("rope_theta", _THETA))
    kind = table.get("rope_type", table.get("type", "default"))
    if kind not in _TYPES:
        raise InputError(f"{own.where}: rope_type '{kind}' is not one of {', '.join(_TYPES)}.")
    _refuse_partial(top, own)
    unknown = sorted(set(table) - {*_NAMES, *_NUMBERS, "partial_rotary_factor"})
    if unknown:
        raise InputError(
            f"{own.where}: '{unknown[0]}' is not known to this engine, which would compute another model; "
            "use an outside trainer through engine = 'command'."
        )
    if kind == "default":
        return theta, {}
    rope = {"rope_type": kind, **{key: own.number(key) for key in _NUMBERS if key in table}}
    if kind in ("llama3", "yarn"):
        fallback = top.whole("max_position_embeddings", 2048)
        rope[_ORIGINAL] = top.whole(_ORIGINAL, own.whole(_ORIGINAL, fallback))
    if kind == "yarn":
        rope["truncate"] = own.flag("truncate", True)
        if "factor" in given and "factor" not in rope:  # null: the ratio of the lengths
            rope["factor"] = top.whole("max_position_embeddings", 2048) / rope[_ORIGINAL]
    for key in _NEEDS[kind]:
        if key not in rope:
            raise InputError(f"{own.where}: '{key}' is missing, which rope_type '{kind}' needs.")
    if kind == "llama3" and rope["high_freq_factor"] <= rope["low_freq_factor"]:
        raise InputError(
            f"{own.where}: 'high_freq_factor' is not above 'low_freq_factor'; they are swapped or damaged."
        )
    return theta, rope


def _refuse_partial(*tables: Fields) -> None:
    for table in tables:
        if table.number("partial_rotary_factor", 1.0) != 1.0:
            raise InputError(f"{table.where}: 'partial_rotary_factor' other than 1 is not supported in these families.")


# A decoder's shape, read from and written to a Hugging Face `config.json`.

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
