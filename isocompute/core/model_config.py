"""A Hugging Face `config.json`, checked as it is read: the fields that the decoder and the cost model use."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from isocompute.core import files
from isocompute.core.errors import InputError

_LARGEST = 10**9
"""No model has a larger count; with larger ones, costs would overflow."""


def _number(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise ValueError("not a number above 0")
    return value


def _count(value: Any, *, least: int = 1) -> Any:
    is_number = isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))
    if not is_number or isinstance(value, bool) or value != int(value) or value < least:
        raise ValueError(f"not a whole number above {least - 1}" if least else "not a whole number")
    if value > _LARGEST:
        raise ValueError(f"over {_LARGEST:,}, more than any model has")
    return int(value)


def _flag(value: Any) -> Any:
    if not isinstance(value, bool):
        raise ValueError("not true or false")
    return value


def _list(value: Any) -> Any:
    if not isinstance(value, list | tuple):
        raise ValueError("not a list")
    return value


def _table(value: Any) -> Any:
    if not isinstance(value, Mapping):
        raise ValueError("not a table")
    return value


Number = Annotated[float, BeforeValidator(_number)]
Count = Annotated[int, BeforeValidator(_count)]
CountOrZero = Annotated[int, BeforeValidator(lambda value: _count(value, least=0))]
Flag = Annotated[bool, BeforeValidator(_flag)]
List = Annotated[list[Any], BeforeValidator(_list)]
Table = Annotated[dict[str, Any], BeforeValidator(_table)]


class _Fields(BaseModel):
    """A config table. A missing field equals null, as in transformers; `need` raises for a field that is required."""

    model_config = ConfigDict(frozen=True, protected_namespaces=())

    @classmethod
    def of(cls, data: Mapping[str, Any], *, where: str = "config.json") -> Self:
        """Parse a table; an error names the field, its value and what it should be."""
        try:
            return cls(**{key: value for key, value in data.items() if value is not None})
        except ValidationError as error:
            first = error.errors()[0]
            shown = repr(first["input"]) if len(repr(first["input"])) <= 40 else f"{repr(first['input'])[:40]}…"
            why = str(first["msg"]).removeprefix("Value error, ")
            raise InputError(
                f"{where}: '{first['loc'][0]}' is {shown}, {why}; take the checkpoint's own value."
            ) from error

    def need(self, name: str, *, where: str = "config.json", otherwise: Any = None) -> Any:
        """The value of a required field, or `otherwise` if it is missing."""
        value = getattr(self, name)
        value = otherwise if value is None else value
        if value is None:
            raise InputError(f"{where}: '{name}' is missing; take the config.json of the whole checkpoint.")
        return value


class RopeScaling(_Fields):
    """The table `rope_scaling` (transformers 4) or `rope_parameters` (5)."""

    model_config = ConfigDict(extra="allow")

    rope_type: str | None = None
    type: str | None = None
    rope_theta: Number | None = None
    factor: Number | None = None
    original_max_position_embeddings: Count | None = None
    low_freq_factor: Number | None = None
    high_freq_factor: Number | None = None
    attention_factor: Number | None = None
    beta_fast: Number | None = None
    beta_slow: Number | None = None
    mscale: Number | None = None
    mscale_all_dim: Number | None = None
    truncate: Flag | None = None
    finetuned: Any = None
    """Whether YaRN's weights were fine-tuned; not used."""
    partial_rotary_factor: Number | None = None


class ModelConfig(_Fields):
    """The fields of a decoder; others are kept in `model_extra`."""

    model_config = ConfigDict(extra="allow")

    model_type: Any = None
    vocab_size: Count | None = None
    hidden_size: Count | None = None
    intermediate_size: Count | None = None
    num_hidden_layers: Count | None = None
    num_attention_heads: Count | None = None
    num_key_value_heads: Count | None = None
    head_dim: Count | None = None
    hidden_act: Any = None
    rms_norm_eps: Number | None = None
    max_position_embeddings: Count | None = None
    original_max_position_embeddings: Count | None = None
    tie_word_embeddings: Flag | None = None
    attention_bias: Flag | None = None
    qkv_bias: Flag | None = None
    mlp_bias: Flag | None = None
    use_qk_norm: Flag | None = None

    rope_theta: Number | None = None
    rope_scaling: Table | None = None
    rope_parameters: Table | None = None
    partial_rotary_factor: Number | None = None

    sliding_window: CountOrZero | None = None
    use_sliding_window: Flag | None = None
    sliding_window_pattern: CountOrZero | None = None
    max_window_layers: CountOrZero | None = None
    layer_types: List | None = None

    num_experts: CountOrZero | None = None
    num_local_experts: CountOrZero | None = None
    n_routed_experts: CountOrZero | None = None
    num_experts_per_tok: Count | None = None
    moe_intermediate_size: CountOrZero | None = None
    shared_expert_intermediate_size: CountOrZero | None = None
    n_shared_experts: CountOrZero | None = None
    decoder_sparse_step: CountOrZero | None = None
    first_k_dense_replace: CountOrZero | None = None
    mlp_only_layers: List | None = None

    kv_lora_rank: Count | None = None
    q_lora_rank: CountOrZero | None = None
    qk_rope_head_dim: Count | None = None
    qk_nope_head_dim: Count | None = None
    v_head_dim: Count | None = None


def read_config_file(path: str) -> dict[str, Any]:
    """The content of a `config.json`."""
    try:
        data = json.loads(files.read_bytes(path))
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: not JSON ({error}); take the checkpoint's own config.json.") from error
    if not isinstance(data, dict):
        raise InputError(f"{path}: not a table of fields; take the checkpoint's own config.json.")
    return data
