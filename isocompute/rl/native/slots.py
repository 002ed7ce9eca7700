"""A pool's cache on a CPU: keys and values as the C library reads them, one slot a sequence."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from isocompute.rl.cache import vacated
from isocompute.rl.native.build import call
from isocompute.rl.native.packing import POINTER, Packed, pack, padded
from isocompute.rl.native.parallel import spread

if TYPE_CHECKING:
    from isocompute.rl.cache import Cache, Joined
    from isocompute.rl.decoder import Decoder

__all__ = ["NativeSlots"]

_ROWS = 16
"""Sequences that are worth a thread of their own."""


class NativeSlots:
    """What `pipeline.slots.SlotCache` is, with one token of all sequences in a call; the first `active` are in use."""

    def __init__(self, decoder: Decoder, slots: int, tokens: int) -> None:
        config = decoder.config
        heads = slots, config.num_hidden_layers, config.num_key_value_heads
        self._room = tokens
        self._keys_ALGKS = padded(torch.zeros(*heads, config.head_dim, tokens))
        self._values_ALGSK = padded(torch.zeros(*heads, self._keys_ALGKS.shape[-1], config.head_dim))
        self._lengths_A = torch.zeros(slots, dtype=torch.long)
        self._packed: Packed | None = None
        self.joined: dict[int, Joined] = {}
        self.active = 0

    def read(self, decoder: Decoder, tokens_A: Tensor) -> Tensor:
        """Hidden states of one more token of every active sequence."""
        if self._packed is None:
            self._packed = pack(decoder, temperature=1.0, positions=self._room)
        model, tokens_A = self._packed, tokens_A.contiguous()
        hidden_AD = torch.empty(self.active, decoder.config.hidden_size)
        arrays = tokens_A, self._lengths_A, self._keys_ALGKS, self._values_ALGSK, hidden_AD
        slots = _Slots(self._room, *(x.data_ptr() for x in arrays))

        def work(first: int, last: int) -> None:
            call("read_slots", ctypes.byref(model.table), ctypes.byref(slots), first, last)

        spread(work, self.active, least=_ROWS)
        self._lengths_A[: self.active] += 1
        return hidden_AD

    def add(self, prompts: Cache, prompt_A: Tensor, lengths_A: Tensor) -> None:
        """New sequences behind the active ones, each with the keys and values of one of the prompts."""
        start, width = self.active, prompts.length
        self.active += len(prompt_A)
        new = slice(start, self.active)
        keys_ALGTK, values_ALGTK = (
            x.transpose(0, 1)[prompt_A, :, :, :width] for x in (prompts.keys_LBGTK, prompts.values_LBGTK)
        )
        self._keys_ALGKS[new, ..., :width] = keys_ALGTK.transpose(-1, -2)
        self._values_ALGSK[new, ..., :width, : values_ALGTK.shape[-1]] = values_ALGTK
        self._lengths_A[new] = lengths_A

    def compact(self, rows: Tensor) -> Tensor:
        """Drop all but these sequences, given in rising order; which one stands in each place afterwards."""
        places, holes, moved = vacated(rows)
        for stored in (self._keys_ALGKS, self._values_ALGSK, self._lengths_A):
            stored[holes] = stored[moved]
        self.active = len(rows)
        return places

    def new_weights(self) -> None:
        """What was made of the old weights is dropped; keys and values stay, as PipelineRL has it."""
        self._packed = None
        self.joined.clear()


class _Slots(ctypes.Structure):
    _fields_ = (
        ("tokens", ctypes.c_int64),
        *((name, POINTER) for name in ("token_A", "length_A", "keys_ALGKS", "values_ALGSK", "hidden_AD")),
    )
