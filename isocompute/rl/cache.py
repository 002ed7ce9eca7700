"""Keys and values that tokens attend to: of a generation as it grows, or of prompts that responses share."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from isocompute.rl.config import DecoderConfig

__all__ = ["Cache", "Joined", "Prefix", "vacated"]


class Joined(NamedTuple):
    """Weights of a layer's q, k and v side by side: one product, one norm and one rotation serve them all."""

    weight: Tensor
    bias: Tensor | None
    norm_HK: Tensor | None


@dataclass
class Cache:
    """Keys and values of all layers up to `length`, in slots of one size for every sequence."""

    keys_LBGTK: Tensor
    values_LBGTK: Tensor
    length: int = 0
    joined: dict[int, Joined] = field(default_factory=dict)
    """Weights of the layers, joined when the first tokens were read."""

    @classmethod
    def empty(cls, config: DecoderConfig, batch: int, slots: int, like: Tensor) -> Cache:
        """Room for `slots` tokens of `batch` sequences."""
        shape = (config.num_hidden_layers, batch, config.num_key_value_heads, slots, config.head_dim)
        return cls(like.new_zeros(shape), like.new_zeros(shape))

    def keep(self, rows: Tensor) -> Cache:
        """Only some of the sequences."""
        keys_LBGTK, values_LBGTK = (x.index_select(1, rows) for x in (self.keys_LBGTK, self.values_LBGTK))
        return replace(self, keys_LBGTK=keys_LBGTK, values_LBGTK=values_LBGTK)

    def extend(self, layer: int, k_BGTK: Tensor, v_BGTK: Tensor) -> tuple[Tensor, Tensor]:
        """Write a layer's new keys and values; all of them up to now."""
        end = self.length + k_BGTK.shape[2]
        keys_BGTK, values_BGTK = self.keys_LBGTK[layer, :, :, :end], self.values_LBGTK[layer, :, :, :end]
        keys_BGTK[:, :, self.length :] = k_BGTK
        values_BGTK[:, :, self.length :] = v_BGTK
        return keys_BGTK, values_BGTK


@dataclass
class Prefix:
    """Keys and values of prompts that many responses share, as a cache that gradients pass through.

    The decoder reads the prompts with it first; after `share`, it reads each response behind its own prompt.
    """

    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)
    length: int = 0
    prompt_B: Tensor | None = None
    joined: dict[int, Joined] = field(default_factory=dict)

    def share(self, prompt_B: Tensor) -> None:
        """From now on sequence b goes on from prompt `prompt_B[b]`."""
        self.prompt_B = prompt_B

    def extend(self, layer: int, k_BGTK: Tensor, v_BGTK: Tensor) -> tuple[Tensor, Tensor]:
        """Keep a layer's keys and values of the prompts, or put them before those of the responses."""
        if self.prompt_B is None:
            self.keys.append(k_BGTK)
            self.values.append(v_BGTK)
            return k_BGTK, v_BGTK
        before = (stored[layer].index_select(0, self.prompt_B) for stored in (self.keys, self.values))
        k_BGSK, v_BGSK = (torch.cat(pair, dim=2) for pair in zip(before, (k_BGTK, v_BGTK), strict=True))
        return k_BGSK, v_BGSK


def vacated(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """How to keep only these sequences, given in rising order, in the first places: which one stands in each place
    afterwards, the places that come free, and who moves there. Only those are copied.
    """
    count = len(rows)
    places = torch.arange(count, device=rows.device)
    stays = torch.zeros(count, dtype=torch.bool, device=rows.device)
    stays[rows[rows < count]] = True
    holes, moved = (~stays).nonzero()[:, 0], rows[rows >= count]
    places[holes] = moved
    return places, holes, moved
