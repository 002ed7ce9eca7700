"""The sampler's loop over tokens by the C library: what it can do, and its arguments."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from isocompute.engines.lm.native.build import library
from isocompute.engines.lm.native.parallel import spread
from isocompute.engines.lm.native.scoring import fits_native

if TYPE_CHECKING:
    from isocompute.engines.lm.cache import Cache
    from isocompute.engines.lm.decoder import Block, Decoder
    from isocompute.engines.lm.sampler import SamplingSettings

__all__ = ["Drawn", "can_be_native", "native_rows"]


class Drawn(NamedTuple):
    """What was drawn for each row: `length` tokens, then whatever was in memory."""

    responses_BT: Tensor
    logprobs_BT: Tensor
    lengths_B: Tensor


def can_be_native(decoder: Decoder, settings: SamplingSettings) -> bool:
    """Whether the library does all that is asked of it."""
    config = decoder.config
    plain = settings.top_p >= 1.0 and settings.interruption is None and not config.mlp_bias and not config.output_bias
    return plain and fits_native(decoder)


def native_rows(
    decoder: Decoder,
    settings: SamplingSettings,
    *,
    cache: Cache,
    logits_PV: Tensor,
    padding_P: Tensor | None,
    problem_B: Tensor,
    uniform_TB: Tensor,
) -> Drawn:
    """Responses to prompts that the cache holds, whose next tokens have these logits."""
    rows, new = len(problem_B), settings.max_new_tokens
    drawn = Drawn(torch.empty(rows, new, dtype=torch.long), torch.empty(rows, new), torch.empty(rows, dtype=torch.long))
    kept: list[Any] = []  # what C reads must outlive the call
    model = _model(decoder, settings, positions=cache.length + new, kept=kept)
    batch = _batch(settings, cache, logits_PV, padding_P, problem_B, uniform_TB, drawn, kept)
    library_ = library()
    assert library_ is not None

    def work(first: int, last: int) -> int:
        mine = _Batch.from_buffer_copy(batch)
        mine.first, mine.last = first, last
        return int(library_.generate(ctypes.byref(model), ctypes.byref(mine)))

    if any(spread(work, rows, least=_ROWS)):
        raise MemoryError(f"there is no memory to sample {rows} rows of {new} tokens.")
    return drawn


_ROWS = 16
"""Rows that are worth a thread of their own."""
_POINTER = ctypes.c_void_p


class _Model(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("layers", "width", "heads", "groups", "size", "inner", "vocabulary")),
        ("qk_norm", ctypes.c_int64),
        ("epsilon", ctypes.c_float),
        ("temperature", ctypes.c_float),
        *((name, _POINTER) for name in ("embedding_VD", "norm_D", "head_DV", "cos_PK", "sin_PK", "layer")),
    )


class _Batch(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("first", "last", "width", "tokens", "problems", "stops")),
        *((name, _POINTER) for name in ("problem_B", "padding_P", "stop")),
        *((name, _POINTER) for name in ("logits_PV", "keys_LPGKT", "values_LPGTK", "uniform_SB")),
        ("rows", ctypes.c_int64),
        *((name, _POINTER) for name in ("response_BS", "length_B", "logprob_BS")),
    )


def _model(decoder: Decoder, settings: SamplingSettings, *, positions: int, kept: list[Any]) -> _Model:
    config = decoder.config
    cos_PK, sin_PK = (x[0] for x in decoder.rotation(torch.arange(positions)[None]))
    layers = [_at(x, kept) for layer in decoder.layers for x in _layer(cast("Block", layer))]
    table = (_POINTER * len(layers))(*layers)
    kept.append(table)
    return _Model(
        config.num_hidden_layers,
        config.hidden_size,
        config.num_attention_heads,
        config.num_key_value_heads,
        config.head_dim,
        config.intermediate_size,
        config.vocab_size,
        int(config.qk_norm),
        config.rms_norm_eps,
        settings.temperature,
        _at(_padded(decoder.embed_tokens.weight), kept),
        _at(_padded(decoder.norm.weight), kept),
        _at(_packed(decoder.lm_head.weight), kept),
        _at(cos_PK, kept),
        _at(sin_PK, kept),
        ctypes.cast(table, _POINTER),
    )


def _layer(block: Block) -> tuple[Tensor, ...]:
    """A layer's arrays in the order of the enumeration in generate.c."""
    weight, bias, norm_HK = block.self_attn.joined()
    return (
        _padded(block.input_layernorm.weight),
        _packed(weight),
        torch.zeros(len(weight)) if bias is None else bias,
        torch.ones(1) if norm_HK is None else norm_HK,
        _packed(block.self_attn.o_proj.weight),
        _padded(block.post_attention_layernorm.weight),
        _packed(block.mlp.gate_proj.weight),
        _packed(block.mlp.up_proj.weight),
        _packed(block.mlp.down_proj.weight),
    )


def _batch(
    settings: SamplingSettings,
    cache: Cache,
    logits_PV: Tensor,
    padding_P: Tensor | None,
    problem_B: Tensor,
    uniform_TB: Tensor,
    drawn: Drawn,
    kept: list[Any],
) -> _Batch:
    keys_LPGTK, values_LPGTK = (x[:, :, :, : cache.length] for x in (cache.keys_LBGTK, cache.values_LBGTK))
    stops = torch.tensor(settings.stop_tokens, dtype=torch.long)
    padding = torch.zeros(len(logits_PV), dtype=torch.long) if padding_P is None else padding_P
    return _Batch(
        0,
        len(problem_B),
        cache.length,
        settings.max_new_tokens,
        len(logits_PV),
        len(stops),
        *(_at(x, kept) for x in (problem_B, padding, stops, logits_PV)),
        _at(_padded(keys_LPGTK.transpose(-1, -2)), kept),
        _at(_padded(values_LPGTK), kept),
        _at(uniform_TB, kept),
        len(problem_B),
        *(x.data_ptr() for x in (drawn.responses_BT, drawn.lengths_B, drawn.logprobs_BT)),
    )


def _at(x: Tensor, kept: list[Any]) -> int:
    """The address of an array's numbers."""
    kept.append(x := x.detach().contiguous())
    return x.data_ptr()


def _padded(x: Tensor) -> Tensor:
    """The last axis with zeros up to whole vectors."""
    lanes = _lanes()
    return F.pad(x.detach(), (0, -x.shape[-1] % lanes))


def _packed(weight_NK: Tensor) -> Tensor:
    """A product's weights in panels of columns, the columns of one input side by side, the last panel narrower."""
    library_ = library()
    assert library_ is not None
    panel = _lanes() * int(library_.wide())
    padded_NK = F.pad(weight_NK.detach(), (0, 0, 0, -len(weight_NK) % _lanes()))
    whole = len(padded_NK) // panel * panel
    first = padded_NK[:whole].view(-1, panel, padded_NK.shape[1]).transpose(1, 2)
    return torch.cat([first.reshape(-1), padded_NK[whole:].t().reshape(-1)])


def _lanes() -> int:
    library_ = library()
    assert library_ is not None
    return int(library_.lanes())
