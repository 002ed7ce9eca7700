"""Decoding with some kernels for each token: fixed shapes, buffers that stay in place, no question to the device."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from isocompute.rl.decoder import Block, Decoder
from isocompute.rl.fast.attention import padded
from isocompute.rl.fast.layers import through_layers
from isocompute.rl.fast.products import normed
from isocompute.rl.fast.prompts import Read
from isocompute.rl.fast.sampled import Sampled
from isocompute.rl.fast.tiles import tiles_for, tiles_of, triton_type
from isocompute.rl.fast.weights import LayerWeights
from isocompute.rl.rope import rope_turns

__all__ = ["TILE_OF_VOCABULARY", "Lane"]

TILE_OF_VOCABULARY = 1024
"""Tokens up to which one program has all logits of a row in registers."""


class Lane:
    """Responses to the prompts of a reader."""

    def __init__(
        self,
        decoder: Decoder,
        weights: list[LayerWeights],
        read: Read,
        sampled: Sampled,
        *,
        first_row: Tensor,
        seed: Tensor,
        stop_tokens: tuple[int, ...],
        temperature: float,
    ) -> None:
        self.decoder, self.weights, self.temperature = decoder, weights, temperature
        self.last_PD, self.padding_P, self.prompt_keys_LPGSK, self.prompt_values_LPGSK = read
        self.tokens_BT, self.logprobs_BT, self.lengths_B, self.stopped_B = sampled
        weight, config = decoder.embed_tokens.weight, decoder.config
        device, cells = weight.device, decoder.cells
        self.prompt_slots, (rows, new_slots) = self.prompt_keys_LPGSK.shape[3], self.tokens_BT.shape
        self.per_prompt = rows // len(self.padding_P)
        self.rows, self.cell_rows, self.new_slots = rows, rows // cells, new_slots
        self.tiles = tiles_for(rows, config.hidden_size, cells=cells)
        self.overlap = _overlap(device, wanted=self.tiles.overlap)
        shape = (config.num_hidden_layers, rows, config.num_key_value_heads, new_slots, config.head_dim)
        self.keys_LBGTK, self.values_LBGTK = weight.new_zeros(shape), weight.new_zeros(shape)
        heads, groups = config.num_attention_heads, config.num_key_value_heads
        self.x_BD = torch.zeros((rows, config.hidden_size), device=device)
        self.qkv_BC = weight.new_zeros((rows, (heads + 2 * groups) * config.head_dim))
        self.attended_BC = weight.new_zeros((rows, heads * config.head_dim))
        self.mixed_BF = weight.new_zeros((rows, config.intermediate_size))
        self.going_B = torch.zeros(rows, dtype=torch.int32, device=device)
        self.stops = torch.tensor(stop_tokens or (-1,), dtype=torch.int32, device=device)
        self.seed, self.first_row = seed, first_row
        self.cos, self.sin = rope_turns(decoder.rope_speeds, decoder.rope_scale, self.prompt_slots + new_slots)

    @torch.no_grad()
    def decode(self) -> None:
        """Sample responses to the prompts that have been read."""
        self.going_B.fill_(1)
        self.x_BD.copy_(self.last_PD.repeat_interleave(self.per_prompt, dim=0))
        for step in range(self.new_slots):
            self._choose(step)
            if step + 1 < self.new_slots:
                self._decode(step)

    def _choose(self, step: int) -> None:
        """Draw the tokens of this step; their embeddings become the residual stream."""
        from isocompute.rl.fast import choice

        decoder, config = self.decoder, self.decoder.config
        out = (self.tokens_BT, self.logprobs_BT, self.lengths_B, self.stopped_B, self.going_B)
        numbers = (self.stops, len(self.stops), self.seed, self.first_row, step, self.temperature)
        if config.vocab_size > TILE_OF_VOCABULARY:
            logits_BV = decoder.logits(normed(self.x_BD, decoder.norm)).contiguous()
            choice.draw[(self.rows,)](
                logits_BV,
                decoder.embed_tokens.weight,
                self.x_BD,
                *out,
                *numbers,
                self.cell_rows,
                self.new_slots,
                D=config.hidden_size,
                V=config.vocab_size,
                C=4096,
                I=1024,
                num_warps=8,
                **self.overlap,
            )
            return
        rows = 16
        choice.choose[(tiles_of(self.cell_rows, rows), decoder.cells)](
            self.x_BD,
            decoder.norm.weight,
            decoder.lm_head.weight,
            decoder.embed_tokens.weight,
            *out,
            *numbers,
            config.rms_norm_eps,
            self.cell_rows,
            self.new_slots,
            D=config.hidden_size,
            V=config.vocab_size,
            VP=padded(config.vocab_size),
            R=rows,
            I=64,
            TYPE=triton_type(decoder.norm.weight),
            **self.overlap,
        )

    def _decode(self, step: int) -> None:
        """One token through all layers; the residual stream is in place."""
        if self.tiles.library:
            through_layers(self.decoder, self.weights, self.x_BD, partial(self._attend, step=step))
            return
        for index in range(len(self.weights)):
            self._project(index)
            self._attend(index, self.qkv_BC, step=step)
            self._add_parts(index)

    def _layer(self, index: int) -> Block:
        layer = self.decoder.layers[index]
        assert isinstance(layer, Block)
        return layer

    @property
    def _product(self) -> dict[str, Any]:
        """What the kernels of products share."""
        tiles = self.tiles
        sizes = {"R": tiles.rows, "C": tiles.columns, "I": tiles.inputs, "TYPE": triton_type(self.qkv_BC)}
        return {**sizes, "num_warps": tiles.warps, "num_stages": tiles.stages, **self.overlap}

    def _project(self, index: int) -> None:
        """q, k and v of a layer."""
        from isocompute.rl.fast import kernels

        joined, (rows, columns) = self.weights[index], self.qkv_BC.shape
        kernels.project[(tiles_of(rows, self.tiles.rows), tiles_of(columns, self.tiles.columns))](
            self.x_BD,
            self._layer(index).input_layernorm.weight,
            joined.qkv,
            joined.qkv if joined.bias is None else joined.bias,
            self.qkv_BC,
            self.going_B,
            rows,
            self.decoder.config.rms_norm_eps,
            D=self.x_BD.shape[1],
            OUT=columns,
            GATED=False,
            BIAS=joined.bias is not None,
            **self._product,
        )

    def _attend(self, index: int, qkv_BC: Tensor, *, step: int) -> Tensor:
        """Attention of a layer, and what it adds to the cache."""
        from isocompute.rl.fast import kernels

        config, attention = self.decoder.config, self._layer(index).self_attn
        kernels.attend[(self.rows, config.num_attention_heads)](
            qkv_BC,
            attention.q_norm.weight if config.qk_norm else self.cos,
            attention.k_norm.weight if config.qk_norm else self.cos,
            self.cos,
            self.sin,
            self.prompt_keys_LPGSK[index],
            self.prompt_values_LPGSK[index],
            self.padding_P,
            self.keys_LBGTK[index],
            self.values_LBGTK[index],
            self.attended_BC,
            self.going_B,
            step,
            self.per_prompt,
            self.prompt_slots,
            self.new_slots,
            self.cell_rows,
            config.rms_norm_eps,
            H=config.num_attention_heads,
            G=config.num_key_value_heads,
            K=config.head_dim,
            KP=padded(config.head_dim),
            S=self.tiles.slots,
            QK_NORM=config.qk_norm,
            TYPE=triton_type(self.qkv_BC),
            num_warps=1,
            **self.overlap,
        )
        return self.attended_BC

    def _add_parts(self, index: int) -> None:
        """What follows attention, a kernel for each product."""
        from isocompute.rl.fast import kernels

        layer, config, going = self._layer(index), self.decoder.config, self.going_B
        width, inner, high = config.hidden_size, config.intermediate_size, tiles_of(self.rows, self.tiles.rows)
        add = kernels.add_projected[(high, tiles_of(width, self.tiles.columns))]
        add(
            self.x_BD,
            self.attended_BC,
            layer.self_attn.o_proj.weight,
            going,
            self.rows,
            D=width,
            IN=self.attended_BC.shape[1],
            **self._product,
        )
        gate_up = self.weights[index].gate_up
        kernels.project[(high, tiles_of(inner, self.tiles.columns))](
            self.x_BD,
            layer.post_attention_layernorm.weight,
            gate_up,
            gate_up,
            self.mixed_BF,
            going,
            self.rows,
            config.rms_norm_eps,
            D=width,
            OUT=inner,
            GATED=True,
            BIAS=False,
            **self._product,
        )
        down = layer.mlp.down_proj.weight
        add(self.x_BD, self.mixed_BF, down, going, self.rows, D=width, IN=inner, **self._product)


def _overlap(device: torch.device, *, wanted: bool) -> dict[str, bool]:
    """Launch options: whether a kernel may start while the one before it ends, which takes a Hopper GPU."""
    able = wanted and device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)
    return {"OVERLAP": True, "launch_pdl": True} if able else {"OVERLAP": False}
