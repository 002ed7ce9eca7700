"""Keys and values of sequences that are at different places: one slot a sequence, each filled from its own start."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor

from isocompute.rl.cache import Cache, vacated
from isocompute.rl.config import DecoderConfig
from isocompute.rl.decoder import Decoder

__all__ = ["SlotCache"]


class SlotCache(Cache):
    """A cache whose sequences need not be equally long; the first `active` slots are in use."""

    def __init__(self, keys_LBGTK: Tensor, values_LBGTK: Tensor) -> None:
        super().__init__(keys_LBGTK, values_LBGTK)
        _, slots, _, tokens, _ = keys_LBGTK.shape
        self._rows_B, self._columns_T = (torch.arange(size, device=keys_LBGTK.device) for size in (slots, tokens))
        self._lengths_B = torch.zeros_like(self._rows_B)
        self.active = 0
        self._longest = 0

    @classmethod
    def empty(cls, config: DecoderConfig, batch: int, slots: int, like: Tensor) -> Self:
        """Room for `slots` tokens of `batch` sequences."""
        room = Cache.empty(config, batch, slots, like)
        return cls(room.keys_LBGTK, room.values_LBGTK)

    def read(self, decoder: Decoder, tokens_A: Tensor) -> Tensor:
        """Hidden states of one more token of every active sequence."""
        lengths_A = self._lengths_B[: self.active]
        self._longest += 1
        visible_A1T = self._columns_T[: self._longest] <= lengths_A[:, None, None]
        hidden_A1D = decoder.forward(
            tokens_A[:, None], positions_BT=lengths_A[:, None], mask_BTS=visible_A1T, cache=self
        )
        lengths_A += 1
        return hidden_A1D[:, 0]

    def extend(self, layer: int, k_BGTK: Tensor, v_BGTK: Tensor) -> tuple[Tensor, Tensor]:
        """Write a layer's new keys and values behind those of each sequence; all of them, as far as the longest."""
        rows_A, at_A = self._rows_B[: self.active], self._lengths_B[: self.active]
        keys_BGTK = self.keys_LBGTK[layer, : self.active, :, : self._longest]
        values_BGTK = self.values_LBGTK[layer, : self.active, :, : self._longest]
        keys_BGTK[rows_A, :, at_A] = k_BGTK[:, :, 0]
        values_BGTK[rows_A, :, at_A] = v_BGTK[:, :, 0]
        return keys_BGTK, values_BGTK

    def compact(self, rows: Tensor) -> Tensor:
        """Drop all but these sequences, given in rising order; which one stands in each place afterwards."""
        places, holes, moved = vacated(rows)
        if len(moved):
            for stored in (self.keys_LBGTK, self.values_LBGTK):
                stored[:, holes, :, : self._longest] = stored[:, moved, :, : self._longest]
            self._lengths_B[holes] = self._lengths_B[moved]
        self.active = len(rows)
        self._longest = int(self._lengths_B[: self.active].max()) if self.active else 0
        return places

    def add(self, prompts: Cache, prompt_A: Tensor, lengths_A: Tensor) -> None:
        """New sequences behind the active ones, each with the keys and values of one of the prompts."""
        start, width = self.active, prompts.length
        self.active += len(prompt_A)
        self.keys_LBGTK[:, start : self.active, :, :width] = prompts.keys_LBGTK[:, prompt_A, :, :width]
        self.values_LBGTK[:, start : self.active, :, :width] = prompts.values_LBGTK[:, prompt_A, :, :width]
        self._lengths_B[start : self.active] = lengths_A
        self._longest = max(self._longest, width)

    def new_weights(self) -> None:
        """What was made of the old weights is dropped; keys and values stay, as PipelineRL has it."""
        self.joined.clear()
