"""One decoder for Llama, Qwen2 and Qwen3: RMS norm, grouped-query attention with RoPE, SwiGLU, an FP32 head.

Shapes: `_B` sequences, `_T` tokens, `_S` slots of a cache, `_D` width, `_H` heads, `_G` key-value heads, `_K` head
size, `_V` vocabulary. The head computes in FP32 by default, for the sampler and the trainer alike (ScaleRL section 3.2:
a bf16 head makes their log-probs disagree). Other matrix products run in the parameters' own type; the residual stream,
norms and rotations are FP32.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isocompute.rl.model.config import DecoderConfig

FP32_ATTENTION_SLOTS = 256
"""Slots up to which attention computes in FP32 in a bf16 model too. Rounding in bf16 depends on the order in which
slots are read, and would cause the largest difference between the sampler's and the trainer's log-probs."""


@dataclass
class Cache:
    """Keys and values of all layers up to `length`, in slots of one size for every sequence."""

    keys_LBGSK: Tensor
    values_LBGSK: Tensor
    length: int = 0

    @classmethod
    def empty(cls, config: DecoderConfig, batch: int, slots: int, like: Tensor) -> Cache:
        """Room for `slots` tokens of `batch` sequences."""
        shape = (config.num_hidden_layers, batch, config.num_key_value_heads, slots, config.head_dim)
        return cls(like.new_zeros(shape), like.new_zeros(shape))

    def keep(self, rows: Tensor) -> Cache:
        """A cache of the sequences `rows`, which may repeat."""
        keys_LBGSK, values_LBGSK = (x.index_select(1, rows) for x in (self.keys_LBGSK, self.values_LBGSK))
        return replace(self, keys_LBGSK=keys_LBGSK, values_LBGSK=values_LBGSK)

    def extend(self, layer: int, k_BGTK: Tensor, v_BGTK: Tensor) -> tuple[Tensor, Tensor]:
        """Write a layer's new keys and values; returns all of them up to now."""
        end = self.length + k_BGTK.shape[2]
        keys_BGSK, values_BGSK = self.keys_LBGSK[layer, :, :, :end], self.values_LBGSK[layer, :, :, :end]
        keys_BGSK[:, :, self.length :] = k_BGTK
        values_BGSK[:, :, self.length :] = v_BGTK
        return keys_BGSK, values_BGSK


class Norm(nn.Module):
    """Root-mean-square norm, computed in FP32; the result has the weights' type."""

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        """w · x / √(mean x² + ε) over the last axis."""
        unit = F.rms_norm(x.float(), x.shape[-1:], None, self.epsilon)
        return (unit * self.weight.float()).to(self.weight.dtype)


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
        self.qk_norm = config.qk_norm
        if config.qk_norm:
            self.q_norm = Norm(size, config.rms_norm_eps)
            self.k_norm = Norm(size, config.rms_norm_eps)

    def forward(
        self,
        x_BTD: Tensor,
        rotation_BTK: tuple[Tensor, Tensor],
        mask_BTS: Tensor | None,
        cache: Cache | None,
        layer: int,
    ) -> Tensor:
        """Attend to the cache (where there is one) and to the tokens themselves."""
        batch, length, _ = x_BTD.shape
        q_BTHK = self.q_proj(x_BTD).view(batch, length, self.heads, self.size)
        k_BTGK = self.k_proj(x_BTD).view(batch, length, self.groups, self.size)
        v_BGSK = self.v_proj(x_BTD).view(batch, length, self.groups, self.size).transpose(1, 2)
        if self.qk_norm:
            q_BTHK, k_BTGK = self.q_norm(q_BTHK), self.k_norm(k_BTGK)
        q_BHTK = _rotate(q_BTHK, rotation_BTK).transpose(1, 2)
        k_BGSK = _rotate(k_BTGK, rotation_BTK).transpose(1, 2)
        if cache is not None:
            k_BGSK, v_BGSK = cache.extend(layer, k_BGSK, v_BGSK)
        dtype, slots = q_BHTK.dtype, k_BGSK.shape[2]
        if slots <= FP32_ATTENTION_SLOTS:
            q_BHTK, k_BGSK, v_BGSK = q_BHTK.float(), k_BGSK.float(), v_BGSK.float()
        if mask_BTS is None and 1 < length < slots:  # each token sees the slots up to its own
            mask_BTS = torch.ones((1, length, slots), dtype=torch.bool, device=x_BTD.device).tril(slots - length)
        out_BHTK = F.scaled_dot_product_attention(
            q_BHTK,
            k_BGSK,
            v_BGSK,
            attn_mask=None if mask_BTS is None else mask_BTS[:, None],
            is_causal=mask_BTS is None and length > 1,
            enable_gqa=self.heads != self.groups,
        )
        out_BTD: Tensor = self.o_proj(out_BHTK.transpose(1, 2).reshape(batch, length, -1).to(dtype))
        return out_BTD


def _rotate(x_BTHK: Tensor, rotation_BTK: tuple[Tensor, Tensor]) -> Tensor:
    """RoPE in the half-split layout that these families use; the sine of the first half is negative."""
    cos_BTK, sin_BTK = rotation_BTK
    wide = x_BTHK.float()
    turned = wide.roll(wide.shape[-1] // 2, dims=-1)
    return torch.addcmul(wide * cos_BTK[:, :, None], turned, sin_BTK[:, :, None]).to(x_BTHK.dtype)


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
    """One layer; attributes have the names of the checkpoints' weights."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.input_layernorm = Norm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = Norm(config.hidden_size, config.rms_norm_eps)
        self.mlp = Mlp(config)

    def forward(
        self,
        x_BTD: Tensor,
        rotation_BTK: tuple[Tensor, Tensor],
        mask_BTS: Tensor | None,
        cache: Cache | None,
        layer: int,
    ) -> Tensor:
        """Attend, then mix; both are added to the residual stream."""
        x_BTD = x_BTD + self.self_attn(self.input_layernorm(x_BTD), rotation_BTK, mask_BTS, cache, layer)
        out_BTD: Tensor = x_BTD + self.mlp(self.post_attention_layernorm(x_BTD))
        return out_BTD


class Decoder(nn.Module):
    """A causal language model. `forward` returns hidden states; `logits` applies the head to selected ones."""

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
        self.rope_scale = 1.0
        self.register_buffer("rope_speeds", torch.empty(config.head_dim // 2), persistent=False)
        self.reset_rope()

    def reset_rope(self) -> None:
        """Compute the RoPE frequencies, which checkpoints lack; call it again after building on the meta device."""
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
        """Hidden states of the tokens, ready for the head.

        `mask_BTS` is True where a token may attend to a slot, with the slots of the cache first. None is causal
        attention to the cache and to earlier tokens. The cache, if given, grows by the tokens. Without `positions_BT`,
        all sequences continue from the cache.
        """
        length, start = tokens_BT.shape[1], 0 if cache is None else cache.length
        if positions_BT is None:
            positions_BT = torch.arange(start, start + length, device=tokens_BT.device)[None]
        x_BTD: Tensor = self.embed_tokens(tokens_BT).float()
        rotation_BTK = self._rotation(positions_BT)
        for index, layer in enumerate(self.layers):
            x_BTD = layer(x_BTD, rotation_BTK, mask_BTS, cache, index)
        if cache is not None:
            cache.length += length
        out_BTD: Tensor = self.norm(x_BTD)
        return out_BTD

    def _rotation(self, positions_BT: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines of RoPE at these positions, as `_rotate` takes them."""
        angles = positions_BT[..., None].float() * self.rope_speeds.float()
        cos, sin = (f(angles) * self.rope_scale for f in (torch.cos, torch.sin))
        return torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)

    def logits(self, hidden: Tensor, *, fp32: bool = True) -> Tensor:
        """The head, in FP32 unless asked otherwise; the result is FP32."""
        return head_logits(hidden, self.lm_head.weight, fp32=fp32)


def head_logits(hidden: Tensor, weight_VD: Tensor, *, fp32: bool) -> Tensor:
    """Logits as FP32 numbers; `fp32` says whether the product also computes in FP32."""
    if fp32:
        return F.linear(hidden.float(), weight_VD.float())
    return F.linear(hidden, weight_VD).float()


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
    """Llama 3.1: slow channels are slowed by the factor, fast ones kept, and those between are blended."""
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

    low, high = channel(float(rope.get("beta_fast") or 32.0)), channel(float(rope.get("beta_slow") or 1.0))
    if rope.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    width = high - low or 0.001
    ramp = ((torch.arange(size // 2, dtype=torch.float32) - low) / width).clamp(0.0, 1.0)
    return (1 - ramp) * speeds + ramp * speeds / factor, _attention_factor(rope, factor)


def _attention_factor(rope: dict[str, float], factor: float) -> float:
    """YaRN's factor on cos and sin: given, or from the paper's rule, which DeepSeek's two mscales modify."""

    def rule(mscale: float) -> float:
        return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0

    given, mscale, all_dim = rope.get("attention_factor"), rope.get("mscale"), rope.get("mscale_all_dim")
    if given is not None:
        return float(given)
    return rule(mscale) / rule(all_dim) if mscale and all_dim else rule(1.0)
