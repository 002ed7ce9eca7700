"""Sampling with the decode kernels: fixed shapes, buffers that stay in place, nothing read back by the host."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from isocompute.engines.lm.config import DecoderConfig
from isocompute.engines.lm.decoder import Block, Cache, Decoder
from isocompute.engines.lm.fast.attention import Layout, attend_shared, fits_attention, padded
from isocompute.engines.lm.fast.layers import through_layers
from isocompute.engines.lm.fast.products import embedded, normed
from isocompute.engines.lm.fast.tiles import tiles_for, tiles_of, triton_type
from isocompute.engines.lm.fast.weights import LayerWeights, join_weights
from isocompute.engines.lm.sampler import Rollouts

__all__ = ["Generator", "fits_kernels"]

_TILE_OF_VOCABULARY = 1024
"""Tokens up to which one program has all logits of a row in registers."""


def fits_kernels(config: DecoderConfig, *, top_p: float, temperature: float) -> bool:
    """Whether the kernels can do it: plain sampling, no output biases."""
    return not config.output_bias and not config.mlp_bias and top_p >= 1.0 and temperature > 0.0


class Generator:
    """Responses to `problems` prompts, `per_prompt` each, always of the same shape; of a stack, to so many of each
    cell, one cell after the other.
    """

    def __init__(
        self,
        decoder: Decoder,
        *,
        problems: int,
        per_prompt: int,
        prompt_slots: int,
        new_slots: int,
        stop_tokens: tuple[int, ...],
        temperature: float,
        weights: list[LayerWeights] | None = None,
    ) -> None:
        self.decoder, self.weights = decoder, weights or join_weights(decoder)
        self.per_prompt, self.temperature = per_prompt, temperature
        weight, config = decoder.embed_tokens.weight, decoder.config
        device, cells = weight.device, decoder.cells
        self.problems, problems = problems, cells * problems
        rows = problems * per_prompt
        self.rows, self.cell_rows, self.new_slots = rows, rows // cells, new_slots
        self.tiles = tiles_for(rows, config.hidden_size, cells=cells)
        self.overlap = _overlap(device, wanted=self.tiles.overlap)
        self.prompts_PT = torch.zeros((problems, prompt_slots), dtype=torch.long, device=device)
        self.padding_P = torch.zeros(problems, dtype=torch.int32, device=device)
        self.cache = Cache.empty(config, problems, prompt_slots, weight)
        shape = (config.num_hidden_layers, rows, config.num_key_value_heads, new_slots, config.head_dim)
        self.keys_LBGTK, self.values_LBGTK = weight.new_zeros(shape), weight.new_zeros(shape)
        heads, groups = config.num_attention_heads, config.num_key_value_heads
        self.x_BD = torch.zeros((rows, config.hidden_size), device=device)
        self.qkv_BC = weight.new_zeros((rows, (heads + 2 * groups) * config.head_dim))
        self.attended_BC = weight.new_zeros((rows, heads * config.head_dim))
        self.mixed_BF = weight.new_zeros((rows, config.intermediate_size))
        self.tokens_BT = torch.zeros((rows, new_slots), dtype=torch.long, device=device)
        self.logprobs_BT = torch.zeros((rows, new_slots), device=device)
        self.lengths_B, self.stopped_B, self.going_B = (
            torch.zeros(rows, dtype=torch.int32, device=device) for _ in range(3)
        )
        self.stops = torch.tensor(stop_tokens or (-1,), dtype=torch.int32, device=device)
        self.seed, self.first_row = (torch.zeros(cells, dtype=torch.long, device=device) for _ in range(2))
        angles = torch.arange(prompt_slots + new_slots, device=device)[:, None].float() * decoder.rope_speeds.float()
        self.cos, self.sin = (f(angles) * decoder.rope_scale for f in (torch.cos, torch.sin))
        self.steps_T = torch.arange(new_slots, device=device)

    @torch.no_grad()
    def run(self) -> Rollouts:
        """Sample from the prompts, seed and first row that stand in the buffers."""
        self.tokens_BT.zero_()
        self.logprobs_BT.zero_()
        self.going_B.fill_(1)
        self.x_BD.copy_(self._prefill().repeat_interleave(self.per_prompt, dim=0))
        for step in range(self.new_slots):
            self._choose(step)
            if step + 1 < self.new_slots:
                self._decode(step)
        mask_BT = self.steps_T[None] < self.lengths_B[:, None]
        lengths_P = self.prompts_PT.shape[1] - self.padding_P.long()
        return Rollouts(
            self.prompts_PT.repeat_interleave(self.per_prompt, dim=0),
            lengths_P.repeat_interleave(self.per_prompt),
            self.tokens_BT,
            self.logprobs_BT,
            mask_BT,
            self.stopped_B.bool(),
        )

    def _prefill(self) -> Tensor:
        """Read each prompt once; the residual stream of its last token, before the last norm.

        Attention is that of the trainer, which reads prompts the same way while they are short (`fits_shared`): both
        have the same prompt in mind, to the last bit but for the order of sums.
        """
        problems, slots = self.prompts_PT.shape
        if not fits_attention(slots=slots, tokens=0, head_dim=self.decoder.config.head_dim):
            return self._prefill_long()
        x_ND = embedded(self.decoder, self.prompts_PT).view(problems * slots, -1)
        through_layers(self.decoder, self.weights, x_ND, self._attend_prompts)
        return x_ND.view(problems, slots, -1)[:, -1]

    def _prefill_long(self) -> Tensor:
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

    def _choose(self, step: int) -> None:
        """Draw the tokens of this step; their embeddings become the residual stream."""
        from isocompute.engines.lm.fast import choice

        decoder, config = self.decoder, self.decoder.config
        out = (self.tokens_BT, self.logprobs_BT, self.lengths_B, self.stopped_B, self.going_B)
        numbers = (self.stops, len(self.stops), self.seed, self.first_row, step, self.temperature)
        if config.vocab_size > _TILE_OF_VOCABULARY:
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
        from isocompute.engines.lm.fast import kernels

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
        from isocompute.engines.lm.fast import kernels

        config, attention = self.decoder.config, self._layer(index).self_attn
        kernels.attend[(self.rows, config.num_attention_heads)](
            qkv_BC,
            attention.q_norm.weight if config.qk_norm else self.cos,
            attention.k_norm.weight if config.qk_norm else self.cos,
            self.cos,
            self.sin,
            self.cache.keys_LBGTK[index],
            self.cache.values_LBGTK[index],
            self.padding_P,
            self.keys_LBGTK[index],
            self.values_LBGTK[index],
            self.attended_BC,
            self.going_B,
            step,
            self.per_prompt,
            self.prompts_PT.shape[1],
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
        from isocompute.engines.lm.fast import kernels

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

    def _attend_prompts(self, index: int, qkv_NC: Tensor) -> Tensor:
        """Attention of a layer over the prompts, whose keys and values go to the cache."""
        from isocompute.engines.lm.fast import kernels

        (problems, slots), config = self.prompts_PT.shape, self.decoder.config
        attention, groups = self._layer(index).self_attn, config.num_key_value_heads
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


def _overlap(device: torch.device, *, wanted: bool) -> dict[str, bool]:
    """Launch options: whether a kernel may start while the one before it ends, which takes a Hopper GPU."""
    able = wanted and device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)
    return {"OVERLAP": True, "launch_pdl": True} if able else {"OVERLAP": False}
