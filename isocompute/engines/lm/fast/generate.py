"""Sampling with the decode kernels: fixed shapes, buffers that stay in place, nothing read back by the host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isocompute.engines.lm.config import DecoderConfig
from isocompute.engines.lm.decoder import Block, Cache, Decoder
from isocompute.engines.lm.fast.attention import padded
from isocompute.engines.lm.fast.weights import LayerWeights, join_weights
from isocompute.engines.lm.sampler import Rollouts

__all__ = ["Generator", "Tiles", "fits_kernels", "tiles_for"]

_TILE_OF_VOCABULARY = 1024
"""Tokens up to which one program has all logits of a row in registers."""


def fits_kernels(config: DecoderConfig, *, top_p: float, temperature: float) -> bool:
    """Whether the kernels can do it: plain sampling, no output biases."""
    return not config.output_bias and not config.mlp_bias and top_p >= 1.0 and temperature > 0.0


@dataclass(frozen=True)
class Tiles:
    """Sizes of the kernels' tiles: rows, columns and inputs of a product, slots of the cache, warps of a product."""

    rows: int
    columns: int
    inputs: int
    slots: int = 16
    warps: int = 4
    stages: int = 2
    overlap: bool = True
    """Whether a kernel is launched while the one before it ends; pays where it has weights to read meanwhile."""


def tiles_for(rows: int, width: int) -> Tiles:
    """Small tiles while that is what fills the GPU, larger ones beyond; all inputs at once where a model is narrow."""
    if rows > 4096:
        return Tiles(rows=64, columns=128, inputs=64, overlap=False)
    if width > 256:
        small = rows <= 512
        return Tiles(rows=16 if small else 32, columns=64 if small else 128, inputs=64, stages=3, overlap=False)
    if rows > 512:
        return Tiles(rows=64, columns=64, inputs=256)
    return Tiles(rows=16, columns=32, inputs=256, warps=2)


class Generator:
    """Responses to `problems` prompts, `per_prompt` each, always of the same shape."""

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
        self.problems, self.per_prompt, self.temperature = problems, per_prompt, temperature
        weight, config = decoder.embed_tokens.weight, decoder.config
        device, rows = weight.device, problems * per_prompt
        self.rows, self.new_slots, self.tiles = rows, new_slots, tiles_for(rows, config.hidden_size)
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
        self.seed, self.first_row = (torch.zeros((), dtype=torch.long, device=device) for _ in range(2))
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
        """Read each prompt once; the residual stream of its last token, before the last norm."""
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
            logits_BV = decoder.logits(decoder.norm(self.x_BD)).contiguous()
            choice.draw[(self.rows,)](
                logits_BV,
                decoder.embed_tokens.weight,
                self.x_BD,
                *out,
                *numbers,
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
        choice.choose[(_tiles(self.rows, rows),)](
            self.x_BD,
            decoder.norm.weight,
            decoder.lm_head.weight,
            decoder.embed_tokens.weight,
            *out,
            *numbers,
            config.rms_norm_eps,
            self.rows,
            self.new_slots,
            D=config.hidden_size,
            V=config.vocab_size,
            VP=padded(config.vocab_size),
            R=rows,
            I=64,
            TYPE=_type(decoder.norm.weight),
            **self.overlap,
        )

    def _decode(self, step: int) -> None:
        """One token through all layers; the residual stream is in place."""
        from isocompute.engines.lm.fast import kernels

        config, tiles, going = self.decoder.config, self.tiles, self.going_B
        width, heads, groups, head = (
            config.hidden_size,
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
        )
        product: dict[str, Any] = {
            "R": tiles.rows,
            "C": tiles.columns,
            "I": tiles.inputs,
            "TYPE": _type(self.qkv_BC),
            "num_warps": tiles.warps,
            "num_stages": tiles.stages,
            **self.overlap,
        }
        high = _tiles(self.rows, tiles.rows)
        for index, (layer, joined) in enumerate(zip(self.decoder.layers, self.weights, strict=True)):
            assert isinstance(layer, Block)
            attention, mlp = layer.self_attn, layer.mlp
            columns = (heads + 2 * groups) * head
            kernels.project[(high, _tiles(columns, tiles.columns))](
                self.x_BD,
                layer.input_layernorm.weight,
                joined.qkv,
                joined.qkv if joined.bias is None else joined.bias,
                self.qkv_BC,
                going,
                self.rows,
                config.rms_norm_eps,
                D=width,
                OUT=columns,
                GATED=False,
                BIAS=joined.bias is not None,
                **product,
            )
            kernels.attend[(self.rows, heads)](
                self.qkv_BC,
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
                going,
                step,
                self.per_prompt,
                self.prompts_PT.shape[1],
                self.new_slots,
                config.rms_norm_eps,
                H=heads,
                G=groups,
                K=head,
                KP=padded(head),
                S=tiles.slots,
                QK_NORM=config.qk_norm,
                TYPE=product["TYPE"],
                num_warps=1,
                **self.overlap,
            )
            kernels.add_projected[(high, _tiles(width, tiles.columns))](
                self.x_BD,
                self.attended_BC,
                attention.o_proj.weight,
                going,
                self.rows,
                D=width,
                IN=heads * head,
                **product,
            )
            kernels.project[(high, _tiles(config.intermediate_size, tiles.columns))](
                self.x_BD,
                layer.post_attention_layernorm.weight,
                joined.gate_up,
                joined.gate_up,
                self.mixed_BF,
                going,
                self.rows,
                config.rms_norm_eps,
                D=width,
                OUT=config.intermediate_size,
                GATED=True,
                BIAS=False,
                **product,
            )
            kernels.add_projected[(high, _tiles(width, tiles.columns))](
                self.x_BD,
                self.mixed_BF,
                mlp.down_proj.weight,
                going,
                self.rows,
                D=width,
                IN=config.intermediate_size,
                **product,
            )


def _overlap(device: torch.device, *, wanted: bool) -> dict[str, bool]:
    """Launch options: whether a kernel may start while the one before it ends, which takes a Hopper GPU."""
    able = wanted and device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)
    return {"OVERLAP": True, "launch_pdl": True} if able else {"OVERLAP": False}


def _type(tensor: Tensor) -> Any:
    import triton.language as tl

    return tl.bfloat16 if tensor.dtype == torch.bfloat16 else tl.float32


def _tiles(size: int, tile: int) -> int:
    return -(-size // tile)
