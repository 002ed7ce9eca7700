"""One decoder for Llama, Qwen2 and Qwen3: RMS norm, grouped-query attention with RoPE, SwiGLU, an FP32 head.

Shapes: `_B` sequences, `_T` tokens, `_D` width, `_H` heads, `_G` key-value heads, `_K` head size, `_V` vocabulary.
The head always computes in FP32, for the sampler and the trainer alike (ScaleRL section 3.2: a bf16 head makes their
log-probs disagree). Of the rest, matrix products and attention run in the parameters' own type; the residual stream,
norms and rotations are FP32, so that two implementations round in the same few places.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isocompute.engines.lm.config import DecoderConfig

__all__ = ["Block", "Cache", "Decoder", "head_logits", "rope_frequencies"]


class Norm(nn.Module):
    """Root-mean-square norm, computed in FP32."""

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last axis; the result has the weights' type."""
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.epsilon)
        return (self.weight.float() * wide).to(self.weight.dtype)


def rope_frequencies(config: DecoderConfig) -> tuple[Tensor, float]:
    """Rotation speed of each pair of a head's channels, and the factor on cos and sin (YaRN's attention scaling)."""
    size, theta, rope = config.head_dim, config.rope_theta, config.rope
    speeds = 1.0 / (theta ** (torch.arange(0, size, 2, dtype=torch.float32) / size))
    kind = rope.get("rope_type", "default")
    if kind == "default":
        return speeds, 1.0
    factor = float(rope["factor"])
    if kind == "linear":
        return speeds / factor, 1.0
    if kind == "llama3":
        return _llama3(speeds, factor, rope), 1.0
    return _yarn(config, speeds, factor)


def _llama3(speeds: Tensor, factor: float, rope: dict[str, float]) -> Tensor:
    """Llama 3.1: slow channels are slowed by the factor, fast ones kept, those between blended."""
    original = float(rope["original_max_position_embeddings"])
    low, high = float(rope["low_freq_factor"]), float(rope["high_freq_factor"])
    turns = original * speeds / (2 * math.pi)
    blend = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - blend) * speeds / factor + blend * speeds


def _yarn(config: DecoderConfig, speeds: Tensor, factor: float) -> tuple[Tensor, float]:
    """YaRN (Peng et al. 2023): the same idea by the number of turns over the original context."""
    rope, size = config.rope, config.head_dim
    original = float(rope.get("original_max_position_embeddings") or config.max_position_embeddings)

    def channel(turns: float) -> float:
        return size * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(config.rope_theta))

    low = max(math.floor(channel(float(rope.get("beta_fast") or 32.0))), 0)
    high = min(math.ceil(channel(float(rope.get("beta_slow") or 1.0))), size - 1)
    ramp = ((torch.arange(size // 2, dtype=torch.float32) - low) / max(high - low, 0.001)).clamp(0.0, 1.0)
    scaled = (1 - ramp) * speeds + ramp * speeds / factor
    attention = rope.get("attention_factor")
    return scaled, float(attention) if attention is not None else 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0


@dataclass
class Cache:
    """Keys and values of all layers up to `length`, in slots of one size for every sequence."""

    keys_LBGTK: Tensor
    values_LBGTK: Tensor
    length: int = 0

    @classmethod
    def empty(cls, config: DecoderConfig, batch: int, slots: int, like: Tensor) -> Cache:
        """Room for `slots` tokens of `batch` sequences."""
        shape = (config.num_hidden_layers, batch, config.num_key_value_heads, slots, config.head_dim)
        return cls(like.new_zeros(shape), like.new_zeros(shape))

    def keep(self, rows: Tensor) -> Cache:
        """Only some of the sequences."""
        return Cache(self.keys_LBGTK[:, rows], self.values_LBGTK[:, rows], self.length)


class Attention(nn.Module):
    """Grouped-query attention with RoPE, and per-head norms of q and k where the family has them."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        width, size = config.hidden_size, config.head_dim
        self.heads, self.groups, self.size = config.num_attention_heads, config.num_key_value_heads, size
        self.q_proj = nn.Linear(width, self.heads * size, bias=config.attention_bias)
        self.k_proj = nn.Linear(width, self.groups * size, bias=config.attention_bias)
        self.v_proj = nn.Linear(width, self.groups * size, bias=config.attention_bias)
        self.o_proj = nn.Linear(self.heads * size, width, bias=config.output_bias)
        if config.qk_norm:
            self.q_norm = Norm(size, config.rms_norm_eps)
            self.k_norm = Norm(size, config.rms_norm_eps)
        self.qk_norm = config.qk_norm

    def forward(
        self, x_BTD: Tensor, cos_BTK: Tensor, sin_BTK: Tensor, mask_BTS: Tensor | None, cache: Cache | None, layer: int
    ) -> Tensor:
        """Attend to the cache (where there is one) and to the tokens themselves."""
        batch, length, _ = x_BTD.shape
        q = self.q_proj(x_BTD).view(batch, length, self.heads, self.size)
        k = self.k_proj(x_BTD).view(batch, length, self.groups, self.size)
        v_BGTK = self.v_proj(x_BTD).view(batch, length, self.groups, self.size).transpose(1, 2)
        if self.qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        q_BHTK = _rotate(q.transpose(1, 2), cos_BTK, sin_BTK)
        k_BGTK = _rotate(k.transpose(1, 2), cos_BTK, sin_BTK)
        if cache is not None:
            end = cache.length + length
            cache.keys_LBGTK[layer, :, :, cache.length : end] = k_BGTK
            cache.values_LBGTK[layer, :, :, cache.length : end] = v_BGTK
            k_BGTK, v_BGTK = cache.keys_LBGTK[layer, :, :, :end], cache.values_LBGTK[layer, :, :, :end]
        out_BHTK = F.scaled_dot_product_attention(
            q_BHTK,
            k_BGTK,
            v_BGTK,
            attn_mask=None if mask_BTS is None else mask_BTS[:, None],
            is_causal=mask_BTS is None and length > 1,
            enable_gqa=self.heads != self.groups,
        )
        out_BTD: Tensor = self.o_proj(out_BHTK.transpose(1, 2).reshape(batch, length, -1))
        return out_BTD


def _rotate(x_BHTK: Tensor, cos_BTK: Tensor, sin_BTK: Tensor) -> Tensor:
    """RoPE in the half-split layout that these families use."""
    wide = x_BHTK.float()
    first, second = wide.chunk(2, dim=-1)
    turned = torch.cat([-second, first], dim=-1)
    return (wide * cos_BTK[:, None] + turned * sin_BTK[:, None]).to(x_BHTK.dtype)


class Mlp(nn.Module):
    """SwiGLU."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        width, inner, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        self.gate_proj = nn.Linear(width, inner, bias=bias)
        self.up_proj = nn.Linear(width, inner, bias=bias)
        self.down_proj = nn.Linear(inner, width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Gate, multiply, project back."""
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Block(nn.Module):
    """One layer; names are those of the checkpoints."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.input_layernorm = Norm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = Norm(config.hidden_size, config.rms_norm_eps)
        self.mlp = Mlp(config)

    def forward(
        self, x_BTD: Tensor, cos_BTK: Tensor, sin_BTK: Tensor, mask_BTS: Tensor | None, cache: Cache | None, layer: int
    ) -> Tensor:
        """Attend, then mix; both are added to the residual stream."""
        x_BTD = x_BTD + self.self_attn(self.input_layernorm(x_BTD), cos_BTK, sin_BTK, mask_BTS, cache, layer)
        out_BTD: Tensor = x_BTD + self.mlp(self.post_attention_layernorm(x_BTD))
        return out_BTD


class Decoder(nn.Module):
    """A causal language model. `forward` gives hidden states; `logits` applies the FP32 head to those one wants."""

    rope_speeds: Tensor

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.num_hidden_layers))
        self.norm = Norm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.embed_tokens.weight
        self.block: Callable[..., Tensor] | None = None
        """A compiled `Block.forward`, used where there is no cache."""
        self.head_scores: Callable[..., tuple[Tensor, Tensor]] | None = None
        """A compiled `scoring.head_scores`."""
        self.rope_scale = 1.0
        self.register_buffer("rope_speeds", torch.empty(config.head_dim // 2), persistent=False)
        self.reset_rope()

    def reset_rope(self) -> None:
        """Compute what is not in the weights; needed again after building on the meta device."""
        speeds, self.rope_scale = rope_frequencies(self.config)
        self.rope_speeds = speeds.to(self.rope_speeds.device)

    def forward(
        self,
        tokens_BT: Tensor,
        *,
        positions_BT: Tensor | None = None,
        mask_BTS: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """Hidden states of the tokens, ready for the head (see `residual`)."""
        residual_BTD = self.residual(tokens_BT, positions_BT=positions_BT, mask_BTS=mask_BTS, cache=cache)
        out_BTD: Tensor = self.norm(residual_BTD)
        return out_BTD

    def residual(
        self,
        tokens_BT: Tensor,
        *,
        positions_BT: Tensor | None = None,
        mask_BTS: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """The residual stream after the last layer.

        `mask_BTS` is True where a token may look at a slot (the cache's slots first); None is plain causal attention
        without a cache, or one new token that sees the whole cache. The cache, if given, grows by the tokens.
        """
        batch, length = tokens_BT.shape
        if positions_BT is None:
            start = cache.length if cache is not None else 0
            positions_BT = torch.arange(start, start + length, device=tokens_BT.device).expand(batch, -1)
        x_BTD: Tensor = self.embed_tokens(tokens_BT).float()
        angles = positions_BT[..., None].float() * self.rope_speeds.float()
        angles = torch.cat([angles, angles], dim=-1)
        cos_BTK, sin_BTK = (f(angles) * self.rope_scale for f in (torch.cos, torch.sin))
        for index, layer in enumerate(self.layers):
            if cache is None and self.block is not None:
                x_BTD = self.block(layer, x_BTD, cos_BTK, sin_BTK, mask_BTS, None, 0)
            else:
                x_BTD = layer(x_BTD, cos_BTK, sin_BTK, mask_BTS, cache, index)
        if cache is not None:
            cache.length += length
        return x_BTD

    def logits(self, hidden: Tensor, *, fp32: bool = True) -> Tensor:
        """The head, in FP32 unless told otherwise."""
        return head_logits(hidden, self.lm_head.weight, fp32=fp32)


def head_logits(hidden: Tensor, weight_VD: Tensor, *, fp32: bool) -> Tensor:
    """The language-model head as FP32 numbers; `fp32` says whether it also computes in FP32."""
    if not fp32:
        return F.linear(hidden, weight_VD).float()
    return F.linear(hidden.float(), weight_VD.float())
