"""How a `config.json` says RoPE is scaled, read as transformers 5 reads it (`modeling_rope_utils.py`).

Of two tables `rope_scaling` (transformers 4) wins over `rope_parameters` (5), whole; theta and the original length may
stand in the table or beside it. What this engine does not compute is refused: RoPE that is slightly off still talks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from isocompute.core.errors import InputError
from isocompute.rl.fields import Fields

__all__ = ["read_rope"]

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
