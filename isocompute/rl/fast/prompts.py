"""Prompts of a generation, read once a problem into buffers that stay in place."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from isocompute.rl.decoder import Block, Cache, Decoder
from isocompute.rl.fast.attention import Layout, attend_shared, fits_attention, padded
from isocompute.rl.fast.layers import through_layers
from isocompute.rl.fast.products import embedded
from isocompute.rl.fast.tiles import triton_type
from isocompute.rl.fast.weights import LayerWeights
from isocompute.rl.rope import rope_turns

__all__ = ["PromptReader", "Read"]


class Read(NamedTuple):
    """What responses start from, by problem."""

    last_PD: Tensor
    """Residual stream of the prompts' last tokens, before the last norm."""
    padding_P: Tensor
    keys_LPGSK: Tensor
    values_LPGSK: Tensor


class PromptReader:
    """Reads what stands in `prompts_PT`, left-padded, this many problems of each cell."""

    def __init__(
        self, decoder: Decoder, weights: list[LayerWeights], *, problems: int, slots: int, per_prompt: int
    ) -> None:
        self.decoder, self.weights, self.per_prompt, self.problems = decoder, weights, per_prompt, problems
        weight, count = decoder.embed_tokens.weight, decoder.cells * problems
        self.prompts_PT = torch.zeros((count, slots), dtype=torch.long, device=weight.device)
        self.padding_P = torch.zeros(count, dtype=torch.int32, device=weight.device)
        self.last_PD = torch.zeros((count, decoder.config.hidden_size), device=weight.device)
        self.cache = Cache.empty(decoder.config, count, slots, weight)
        self.cos, self.sin = rope_turns(decoder.rope_speeds, decoder.rope_scale, slots)

    @property
    def done(self) -> Read:
        """Where the results stand."""
        return Read(self.last_PD, self.padding_P, self.cache.keys_LBGTK, self.cache.values_LBGTK)

    def read(self) -> None:
        """Read each prompt once, by kernels where it is short enough for them."""
        slots, size = self.prompts_PT.shape[1], self.decoder.config.head_dim
        short = fits_attention(slots=slots, tokens=0, head_dim=size)
        self.last_PD.copy_(self._last_of_short() if short else self._last_of_long())

    def _last_of_short(self) -> Tensor:
        """The residual stream of the prompts' last tokens.

        Attention is that of the trainer, which reads prompts the same way while they are short (`fits_shared`): both
        have the same prompt in mind, to the last bit but for the order of sums.
        """
        problems, slots = self.prompts_PT.shape
        x_ND = embedded(self.decoder, self.prompts_PT).view(problems * slots, -1)
        through_layers(self.decoder, self.weights, x_ND, self._attend)
        return x_ND.view(problems, slots, -1)[:, -1]

    def _last_of_long(self) -> Tensor:
        """The same by the decoder itself."""
        slots = self.prompts_PT.shape[1]
        at = torch.arange(slots, device=self.prompts_PT.device)
        visible_PTS = (at[None, None, :] <= at[None, :, None]) & (at >= self.padding_P[:, None])[:, None]
        visible_PTS = visible_PTS | (at[:, None] == at[None])
        positions_PT = (at[None] - self.padding_P[:, None]).clamp(min=0)
        self.cache.length = 0
        self.cache.joined.clear()  # the weights have changed since
        hidden_PTD = self.decoder.residual(
            self.prompts_PT, positions_BT=positions_PT, mask_BTS=visible_PTS, cache=self.cache
        )
        return hidden_PTD[:, -1]

    def _attend(self, index: int, qkv_NC: Tensor) -> Tensor:
        """Attention of a layer, whose keys and values go to the cache."""
        from isocompute.rl.fast import kernels

        (problems, slots), config = self.prompts_PT.shape, self.decoder.config
        layer, groups = self.decoder.layers[index], config.num_key_value_heads
        assert isinstance(layer, Block)
        attention = layer.self_attn
        q_norm_K, k_norm_K = (attention.q_norm.weight, attention.k_norm.weight) if config.qk_norm else (None, None)
        kernels.keep[(problems * slots, groups)](
            qkv_NC,
            self.cos if k_norm_K is None else k_norm_K,
            self.cos,
            self.sin,
            self.padding_P,
            self.cache.keys_LBGTK[index],
            self.cache.values_LBGTK[index],
            slots,
            self.problems,
            config.rms_norm_eps,
            H=config.num_attention_heads,
            G=groups,
            K=config.head_dim,
            KP=padded(config.head_dim),
            QK_NORM=config.qk_norm,
            TYPE=triton_type(qkv_NC),
            num_warps=1,
        )
        return attend_shared(
            qkv_NC,
            q_norm_K,
            k_norm_K,
            self.cos,
            self.sin,
            self.padding_P,
            Layout(problems, self.per_prompt, slots, 0, self.decoder.cells),
            heads=config.num_attention_heads,
            groups=groups,
            epsilon=config.rms_norm_eps,
        )
