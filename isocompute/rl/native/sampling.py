"""The sampler's loop over tokens by the C library: what it can do, and its arguments."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from isocompute.rl.native.build import call
from isocompute.rl.native.packing import POINTER, address, pack, padded
from isocompute.rl.native.parallel import spread
from isocompute.rl.native.scoring import fits_native

if TYPE_CHECKING:
    from isocompute.rl.cache import Cache
    from isocompute.rl.decoder import Decoder
    from isocompute.rl.sampler import SamplingSettings

__all__ = ["Begun", "Drawn", "can_be_native", "fits_native_decoding", "native_rows"]


class Begun(NamedTuple):
    """Prompts as they were read, and what the rows behind them need."""

    cache: Cache
    logits_PV: Tensor
    """Of each prompt's next token."""
    padding_P: Tensor | None
    problem_B: Tensor
    uniform_TB: Tensor


class Drawn(NamedTuple):
    """What was drawn for each row: `length` tokens, then whatever was in memory."""

    responses_BT: Tensor
    logprobs_BT: Tensor
    lengths_B: Tensor


def fits_native_decoding(decoder: Decoder) -> bool:
    """Whether the library can read a token: it knows no output biases."""
    return fits_native(decoder) and not decoder.config.mlp_bias and not decoder.config.output_bias


def can_be_native(decoder: Decoder, settings: SamplingSettings) -> bool:
    """Whether the library does all that is asked of it."""
    return fits_native_decoding(decoder) and settings.top_p >= 1.0 and settings.interruption is None


def native_rows(decoder: Decoder, settings: SamplingSettings, begun: Begun) -> Drawn:
    """Responses to prompts that have been read."""
    rows, new = len(begun.problem_B), settings.max_new_tokens
    drawn = Drawn(torch.empty(rows, new, dtype=torch.long), torch.empty(rows, new), torch.empty(rows, dtype=torch.long))
    model = pack(decoder, temperature=settings.temperature, positions=begun.cache.length + new)
    kept: list[Any] = []
    batch = _batch(settings, begun, drawn, kept)

    def work(first: int, last: int) -> None:
        mine = _Batch.from_buffer_copy(batch)
        mine.first, mine.last = first, last
        call("generate", ctypes.byref(model.table), ctypes.byref(mine))

    spread(work, rows, least=_ROWS)
    return drawn


_ROWS = 16
"""Rows that are worth a thread of their own."""


class _Batch(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("first", "last", "width", "tokens", "problems", "stops")),
        *((name, POINTER) for name in ("problem_B", "padding_P", "stop")),
        *((name, POINTER) for name in ("logits_PV", "keys_LPGKT", "values_LPGTK", "uniform_SB")),
        ("rows", ctypes.c_int64),
        *((name, POINTER) for name in ("response_BS", "length_B", "logprob_BS")),
    )


def _batch(settings: SamplingSettings, begun: Begun, drawn: Drawn, kept: list[Any]) -> _Batch:
    cache, logits_PV, padding_P, problem_B, uniform_TB = begun
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
        *(address(x, kept) for x in (problem_B, padding, stops, logits_PV)),
        address(padded(keys_LPGTK.transpose(-1, -2)), kept),
        address(padded(values_LPGTK), kept),
        address(uniform_TB, kept),
        len(problem_B),
        *(x.data_ptr() for x in (drawn.responses_BT, drawn.lengths_B, drawn.logprobs_BT)),
    )
