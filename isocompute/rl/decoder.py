"""One decoder for Llama, Qwen2 and Qwen3: RMS norm, grouped-query attention with RoPE, SwiGLU, an FP32 head.

Shapes: `_B` sequences, `_T` tokens, `_D` width, `_H` heads, `_G` key-value heads, `_K` head size, `_V` vocabulary.
The head always computes in FP32, for the sampler and the trainer alike (ScaleRL section 3.2: a bf16 head makes their
log-probs disagree). Of the rest, matrix products and attention run in the parameters' own type; the residual stream,
norms and rotations are FP32, so that two implementations round in the same few places.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isocompute.rl.cache import Cache, Joined, Prefix
from isocompute.rl.config import DecoderConfig
from isocompute.rl.fast.exact import exact_linear
from isocompute.rl.fast.products import product
from isocompute.rl.rope import rope_frequencies

__all__ = ["EXACT", "Block", "Cache", "Decoder", "Norm", "Prefix", "head_logits"]


class Norm(nn.Module):
    """Root-mean-square norm, computed in FP32."""

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last axis; the result has the weights' type."""
        return self.normalise(x, self.weight)

    def normalise(self, x: Tensor, weight: Tensor) -> Tensor:
        """The same with weights of another shape."""
        return _normalise(x, weight, self.epsilon)


def _normalise(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """w · x / √(mean x² + ε)."""
    unit: Tensor
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():  # a compiler finds the short way by itself
        unit = _Unit.apply(x, epsilon)  # type: ignore[no-untyped-call]  # torch's gap
    else:
        unit = F.rms_norm(x.float(), x.shape[-1:], None, epsilon)
    return (unit * weight.float()).to(weight.dtype)


class _Unit(torch.autograd.Function):
    """u = x / √(mean x² + ε). Its gradient, (g - u · mean(g u)) / √(mean x² + ε), is written out, since that of
    `F.rms_norm` on a CPU reads memory more than twice as often.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, epsilon: float) -> Tensor:
        wide = x.float()
        norm = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
        scale = torch.rsqrt(norm * norm / x.shape[-1] + epsilon)
        unit = wide * scale
        ctx.save_for_backward(unit, scale)
        ctx.kind = x.dtype
        return unit

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        unit, scale = ctx.saved_tensors
        mean = (grad * unit).mean(dim=-1, keepdim=True)
        return torch.addcmul(grad, unit, mean, value=-1.0).mul_(scale).to(ctx.kind), None


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
        self.qk_norm, self.epsilon = config.qk_norm, config.rms_norm_eps
        self.bias = config.attention_bias

    def joined(self) -> Joined:
        """The weights of q, k and v side by side."""
        weight, bias = self.joined_products()
        norm_HK = None
        if self.qk_norm:
            size = self.size
            norms = self.q_norm.weight.expand(self.heads, size), self.k_norm.weight.expand(self.groups, size)
            norm_HK = torch.cat(norms)
        return Joined(weight, bias, norm_HK)

    def joined_products(self) -> tuple[Tensor, Tensor | None]:
        """Weights and biases of q, k and v side by side, of one cell or of a stack."""
        parts = (self.q_proj, self.k_proj, self.v_proj)
        bias = torch.cat([part.bias for part in parts], dim=-1) if self.bias else None
        return torch.cat([part.weight for part in parts], dim=-2), bias

    def _kept(self, cache: Cache | Prefix | None, layer: int) -> Joined:
        """The same; a cache keeps them, as they do not change while it grows."""
        if cache is None:
            return self.joined()
        if layer not in cache.joined:
            cache.joined[layer] = self.joined()
        return cache.joined[layer]

    def forward(
        self,
        x_BTD: Tensor,
        cos_BTK: Tensor,
        sin_BTK: Tensor,
        mask_BTS: Tensor | None,
        cache: Cache | Prefix | None,
        layer: int,
    ) -> Tensor:
        """Attend to the cache (where there is one) and to the tokens themselves."""
        batch, length, _ = x_BTD.shape
        weight, bias, norm_HK = self._kept(cache, layer)
        all_BTHK = F.linear(x_BTD, weight, bias).view(batch, length, -1, self.size)
        qk_BTHK, v_BTGK = torch.split(all_BTHK, [self.heads + self.groups, self.groups], dim=2)
        if norm_HK is not None:
            qk_BTHK = _normalise(qk_BTHK, norm_HK, self.epsilon)
        qk_BTHK = _rotate(qk_BTHK, cos_BTK, sin_BTK)
        q_BTHK, k_BTGK = torch.split(qk_BTHK, [self.heads, self.groups], dim=2)
        k_BGTK, v_BGTK = k_BTGK.transpose(1, 2), v_BTGK.transpose(1, 2)
        if cache is not None:
            k_BGTK, v_BGTK = cache.extend(layer, k_BGTK, v_BGTK)
        kind, slots = q_BTHK.dtype, k_BGTK.shape[2]
        if slots <= EXACT:
            q_BTHK, k_BGTK, v_BGTK = q_BTHK.float(), k_BGTK.float(), v_BGTK.float()
        few = length == 1 or length * slots <= _FEW
        attend = _attend_few if few and x_BTD.device.type == "cpu" else _attend
        out_BTD: Tensor = self.o_proj(attend(q_BTHK, k_BGTK, v_BGTK, mask_BTS).to(kind))
        return out_BTD


EXACT = 256
"""Slots up to which scores and softmax weights are FP32 numbers in a bf16 model too. What is rounded there depends on
the order in which slots are read, and would be the largest difference between a sampler and a trainer."""


def _rotate(x_BTHK: Tensor, cos_BTK: Tensor, sin_BTK: Tensor) -> Tensor:
    """RoPE in the half-split layout that these families use; the sine of the first half is negative."""
    wide = x_BTHK.float()
    turned = wide.roll(wide.shape[-1] // 2, dims=-1)
    return torch.addcmul(wide * cos_BTK[:, :, None], turned, sin_BTK[:, :, None]).to(x_BTHK.dtype)


def _attend(q_BTHK: Tensor, k_BGSK: Tensor, v_BGSK: Tensor, mask_BTS: Tensor | None) -> Tensor:
    """Attention by PyTorch's kernels; without a mask it is causal, and the last token sees all slots."""
    batch, length, heads, _ = q_BTHK.shape
    slots = k_BGSK.shape[2]
    if mask_BTS is None and 1 < length < slots:
        mask_BTS = _causal(length, slots, q_BTHK.device)
    out_BHTK = F.scaled_dot_product_attention(
        q_BTHK.transpose(1, 2),
        k_BGSK,
        v_BGSK,
        attn_mask=None if mask_BTS is None else mask_BTS[:, None],
        is_causal=mask_BTS is None and length > 1,
        enable_gqa=heads != k_BGSK.shape[1],
    )
    return out_BHTK.transpose(1, 2).reshape(batch, length, -1)


_FEW = 2048
"""Queries × slots of a head up to which `_attend_few` beats PyTorch's attention on a CPU."""


_LEAST = 16
"""Slots below which PyTorch's softmax and batched products fall back to scalar code, five times slower."""


def _attend_few(q_BTHK: Tensor, k_BGSK: Tensor, v_BGSK: Tensor, mask_BTS: Tensor | None) -> Tensor:
    """The same written out, for a CPU: one product for all the queries that share a key-value head."""
    batch, length, heads, size = q_BTHK.shape
    groups, missing = k_BGSK.shape[1], max(0, _LEAST - k_BGSK.shape[2])
    if mask_BTS is None and (length > 1 or missing):
        mask_BTS = _causal(length, k_BGSK.shape[2], q_BTHK.device)
    if missing and mask_BTS is not None:
        k_BGSK, v_BGSK = (F.pad(x, (0, 0, 0, missing)) for x in (k_BGSK, v_BGSK))
        mask_BTS = F.pad(mask_BTS, (0, missing))
    slots = k_BGSK.shape[2]
    q_NQK = q_BTHK.reshape(batch, length, groups, -1, size).permute(0, 2, 3, 1, 4).reshape(batch * groups, -1, size)
    k_NSK, v_NSK = (x.reshape(batch * groups, slots, size) for x in (k_BGSK, v_BGSK))
    bias = q_BTHK.new_zeros(1)
    if mask_BTS is not None:
        bias = q_BTHK.new_zeros(mask_BTS.shape).masked_fill_(~mask_BTS, -math.inf)
        bias = bias[:, None, None].expand(-1, groups if len(bias) > 1 else 1, heads // groups, -1, -1)
        bias = bias.reshape(-1, q_NQK.shape[1], slots)
    scores_NQS = torch.baddbmm(bias, q_NQK, k_NSK.transpose(1, 2), alpha=size**-0.5)
    out_NQK = torch.bmm(scores_NQS.softmax(dim=-1), v_NSK)
    return out_NQK.view(batch, heads, length, size).transpose(1, 2).reshape(batch, length, -1)


def _causal(length: int, slots: int, device: torch.device) -> Tensor:
    """The last of `slots` tokens sees them all, the one before it all but the last, and so on."""
    return torch.ones((1, length, slots), dtype=torch.bool, device=device).tril(slots - length)


class Mlp(nn.Module):
    """SwiGLU."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        width, inner, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        self.bias = bias
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
        self,
        x_BTD: Tensor,
        cos_BTK: Tensor,
        sin_BTK: Tensor,
        mask_BTS: Tensor | None,
        cache: Cache | Prefix | None,
        layer: int,
    ) -> Tensor:
        """Attend, then mix; both are added to the residual stream."""
        x_BTD = x_BTD + self.self_attn(self.input_layernorm(x_BTD), cos_BTK, sin_BTK, mask_BTS, cache, layer)
        out_BTD: Tensor = x_BTD + self.mlp(self.post_attention_layernorm(x_BTD))
        return out_BTD


class Decoder(nn.Module):
    """A causal language model. `forward` gives hidden states; `logits` applies the FP32 head to those one wants."""

    rope_speeds: Tensor
    cells = 1
    """How many cells' weights these are (`fast.stacked`)."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.num_hidden_layers))
        self.norm = Norm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.embed_tokens.weight
        self.block: Callable[..., Tensor] = Block.forward
        """A layer of a pass without a cache; a GPU's training has it compiled (`fast.step.compile_decoder`)."""
        self.native = True
        """Whether the C library may do its part on a CPU (native/)."""
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
        cache: Cache | Prefix | None = None,
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
        cache: Cache | Prefix | None = None,
    ) -> Tensor:
        """The residual stream after the last layer.

        `mask_BTS` is True where a token may look at a slot (the cache's slots first); None is causal attention: all
        slots of the cache, and the tokens before. The cache, if given, grows by the tokens. Without `positions_BT` all
        sequences count on from the cache.
        """
        length, start = tokens_BT.shape[1], 0 if cache is None else cache.length
        if positions_BT is None:
            positions_BT = torch.arange(start, start + length, device=tokens_BT.device)[None]
        x_BTD: Tensor = self.embed_tokens(tokens_BT).float()
        cos_BTK, sin_BTK = self.rotation(positions_BT)
        block: Callable[..., Tensor] = Block.forward if cache is not None else self.block
        for index, layer in enumerate(self.layers):
            x_BTD = block(layer, x_BTD, cos_BTK, sin_BTK, mask_BTS, cache, index if cache is not None else 0)
        if cache is not None:
            cache.length += length
        return x_BTD

    def rotation(self, positions_BT: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines of RoPE at these positions, as `_rotate` takes them."""
        angles = positions_BT[..., None].float() * self.rope_speeds.float()
        cos, sin = (f(angles) * self.rope_scale for f in (torch.cos, torch.sin))
        return torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)

    def logits(self, hidden: Tensor, *, fp32: bool = True) -> Tensor:
        """The head, in FP32 unless told otherwise."""
        return head_logits(hidden, self.lm_head.weight, fp32=fp32)


def head_logits(hidden: Tensor, weight_VD: Tensor, *, fp32: bool) -> Tensor:
    """The language-model head as FP32 numbers; `fp32` says whether it also computes in FP32. A stack's weight is
    `_GVD`.
    """
    if not fp32:
        return product(hidden, weight_VD).float()
    if hidden.is_cuda and hidden.dtype == torch.bfloat16:
        return exact_linear(hidden, weight_VD)
    return product(hidden.float(), weight_VD.float())
