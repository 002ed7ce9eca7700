"""One decoder for Llama, Qwen2 and Qwen3: RMS norm, grouped-query attention with RoPE, SwiGLU, an FP32 head.

The decoder reads tokens one after another in one flat axis `_T`; which of them belong together is the business of the
attention that a caller passes (`model.attention`, the caches of the rollout engines). Training, prefill and decoding
therefore run the same code in the same precision, and a token's result does not depend on padding or on its neighbours.
Further shapes: `_D` width, `_H` heads, `_G` key-value heads, `_K` head size, `_V` vocabulary.

Matrix products run in the parameters' own type; the residual stream, norms and rotations are FP32. The head computes
in FP32 by default, for the sampler and the trainer alike (ScaleRL section 3.2: a bf16 head makes them disagree).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple, Protocol, Self

import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import Tensor, nn

from isocompute.rl.model.config import DecoderConfig


class Attend(Protocol):
    """Attention of one layer: what tokens see of each other and of a cache."""

    def __call__(self, layer: int, qkv_TEK: Tensor, heads: int) -> Tensor:
        """The attention output of each token and query head.

        `_E` is `heads` query heads, then the key heads, then as many value heads; queries and keys are rotated.
        """
        ...


class Norm(nn.Module):
    """Root-mean-square norm, computed in FP32; the result has the weights' type."""

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        """w · x / √(mean x² + ε) over the last axis."""
        return _norm(x, self.weight, self.epsilon)


class Projection(nn.Module):
    """One or several linear maps of the same input as one product; optionally each with a low-rank adapter.

    The adapter is added to the weight before the product, so that the trainer rounds a weight exactly as the sampler
    does, which has the sums alone.
    """

    def __init__(self, width: int, sizes: tuple[int, ...], *, bias: bool) -> None:
        super().__init__()
        self.sizes = sizes
        self.weight = nn.Parameter(torch.empty(sum(sizes), width))
        self.bias = nn.Parameter(torch.zeros(sum(sizes))) if bias else None
        self.scale = 0.0
        self.lora_a: nn.ParameterList | None = None
        self.lora_b: nn.ParameterList | None = None
        nn.init.normal_(self.weight, std=0.02)

    def add_adapter(self, rank: int, scale: float, generator: torch.Generator) -> None:
        """Adapters of PEFT's form: a weight becomes W + scale · B A, with B = 0 at the start."""
        device, width = self.weight.device, self.weight.shape[1]
        self.scale = scale
        drawn = [(2 * torch.rand(rank, width, generator=generator) - 1) * width**-0.5 for _ in self.sizes]
        self.lora_a = nn.ParameterList(a.to(device) for a in drawn)
        self.lora_b = nn.ParameterList(torch.zeros(size, rank, device=device) for size in self.sizes)

    def effective(self) -> Tensor:
        """The weight with its adapters."""
        if self.lora_a is None or self.lora_b is None:
            return self.weight
        change = torch.cat([b @ a for a, b in zip(self.lora_a, self.lora_b, strict=True)])
        return (self.weight.float() + self.scale * change).to(self.weight.dtype)


class Attention(nn.Module):
    """The weights of a layer's attention; q, k and v are one product."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        heads, groups, size = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        sizes = (heads * size, groups * size, groups * size)
        self.qkv_proj = Projection(config.hidden_size, sizes, bias=config.attention_bias)
        self.o_proj = Projection(heads * size, (config.hidden_size,), bias=config.output_bias)
        self.q_norm = Norm(size, config.rms_norm_eps) if config.qk_norm else None
        self.k_norm = Norm(size, config.rms_norm_eps) if config.qk_norm else None


class Mlp(nn.Module):
    """The weights of SwiGLU; gate and up are one product."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        inner = config.intermediate_size
        self.gate_up_proj = Projection(config.hidden_size, (inner, inner), bias=config.mlp_bias)
        self.down_proj = Projection(inner, (config.hidden_size,), bias=config.mlp_bias)


class Block(nn.Module):
    """One layer, in the two halves before and after attention."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.input_layernorm = Norm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = Norm(config.hidden_size, config.rms_norm_eps)
        self.mlp = Mlp(config)
        self.shape = (config.num_attention_heads, config.num_key_value_heads, config.head_dim)
        self.epsilon = config.rms_norm_eps

    def before(self, x_TD: Tensor, cos_TK: Tensor, sin_TK: Tensor, *, compiled: bool) -> Tensor:
        """Rotated queries and keys, and values, one after another on the axis of heads."""
        attention = self.self_attn
        q_norm = None if attention.q_norm is None else attention.q_norm.weight
        k_norm = None if attention.k_norm is None else attention.k_norm.weight
        qkv = attention.qkv_proj
        weights = (self.input_layernorm.weight, qkv.effective(), qkv.bias, q_norm, k_norm)
        arguments = (x_TD, cos_TK, sin_TK, *weights, self.shape, self.epsilon)
        out_TEK: Tensor = run_compiled(_before, 3, *arguments) if compiled else _before(*arguments)
        return out_TEK

    def after(self, x_TD: Tensor, out_THK: Tensor, *, compiled: bool) -> Tensor:
        """The residual stream with attention's output and the feed-forward's added."""
        o, up, down = self.self_attn.o_proj, self.mlp.gate_up_proj, self.mlp.down_proj
        norm = self.post_attention_layernorm.weight
        weights = (o.effective(), o.bias, norm, up.effective(), up.bias, down.effective(), down.bias)
        arguments = (x_TD, out_THK, *weights, self.epsilon)
        out_TD: Tensor = run_compiled(_after, 2, *arguments) if compiled else _after(*arguments)
        return out_TD


def _norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    unit = F.rms_norm(x.float(), x.shape[-1:], None, epsilon)
    return (unit * weight.float()).to(weight.dtype)


def _before(
    x_TD: Tensor,
    cos_TK: Tensor,
    sin_TK: Tensor,
    norm: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    shape: tuple[int, int, int],
    epsilon: float,
) -> Tensor:
    """The first half of a layer as a function of tensors alone, so that one compilation serves all layers.

    RoPE is in the half-split layout that these families use; `_K` of cosines and sines is half a head.
    """
    heads, groups, size = shape
    qkv_TEK = F.linear(_norm(x_TD, norm, epsilon), weight, bias).view(-1, heads + 2 * groups, size)
    qk_TEK, v_TEK = torch.split(qkv_TEK, [heads + groups, groups], dim=1)
    if q_norm is not None and k_norm is not None:
        qk_TEK = _norm(qk_TEK, torch.cat([q_norm.expand(heads, -1), k_norm.expand(groups, -1)]), epsilon)
    a, b = qk_TEK.float().view(-1, heads + groups, 2, size // 2).unbind(2)
    cos, sin = cos_TK[:, None], sin_TK[:, None]
    turned = torch.stack([a * cos - b * sin, b * cos + a * sin], dim=2).view_as(qk_TEK)
    return torch.cat([turned.to(v_TEK.dtype), v_TEK], dim=1)


def _after(
    x_TD: Tensor,
    out_THK: Tensor,
    o: Tensor,
    o_bias: Tensor | None,
    norm: Tensor,
    up: Tensor,
    up_bias: Tensor | None,
    down: Tensor,
    down_bias: Tensor | None,
    epsilon: float,
) -> Tensor:
    """The second half of a layer."""
    x_TD = x_TD + F.linear(out_THK.flatten(1), o, o_bias)
    gate, value = F.linear(_norm(x_TD, norm, epsilon), up, up_bias).chunk(2, dim=-1)
    return x_TD + F.linear(F.silu(gate) * value, down, down_bias)


@cache
def _compile_once(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function)


def run_compiled(function: Callable[..., Any], tokens: int, *arguments: Any) -> Any:
    """Run a function compiled; the first axis of the first `tokens` arguments may have any length."""
    torch._dynamo.config.recompile_limit = 64  # several models, with and without gradients, share the functions
    for each in arguments[:tokens]:
        torch._dynamo.maybe_mark_dynamic(each, 0)
    return _compile_once(function)(*arguments)


class Part(NamedTuple):
    """A weight as checkpoints name it, and where it lies: rows of one of the decoder's parameters."""

    name: str
    parameter: nn.Parameter
    start: int
    size: int

    def of(self, like: Tensor) -> Tensor:
        """Its part of a tensor with the parameter's first axis: the parameter itself, its master or a moment."""
        return like[self.start : self.start + self.size]


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
        self.compiled = False
        """Whether layers run compiled; pays on a GPU, after some seconds of compilation."""
        self.recompute = False
        """Whether training recomputes layers in the backward pass instead of keeping their activations."""
        self.rope_scale = 1.0
        self.register_buffer("rope_speeds", torch.empty(config.head_dim // 2), persistent=False)
        self.reset_rope()

    def reset_rope(self) -> None:
        """Compute the RoPE frequencies, which checkpoints lack; call it again after building on the meta device."""
        speeds, self.rope_scale = rope_frequencies(self.config)
        self.rope_speeds = speeds.to(self.rope_speeds.device)

    @property
    def tied(self) -> bool:
        """Whether the head is the embedding."""
        return self.lm_head.weight is self.embed_tokens.weight

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.embed_tokens.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """The type of the weights."""
        return self.embed_tokens.weight.dtype

    def projections(self) -> Iterator[tuple[tuple[str, ...], str, Projection]]:
        """The linear maps of the layers: their names in checkpoints, the module they belong to, and their weights."""
        for name, module in self.named_modules():
            if isinstance(module, Projection):
                owner, _, own = name.rpartition(".")
                yield _JOINED.get(own, (own,)), owner, module

    def parts(self) -> Iterator[Part]:
        """The weights of a checkpoint, without the leading `model.`, in transformers' order."""
        joined = {id(module): (names, owner) for names, owner, module in self.projections()}
        for name, module in self.named_modules():
            if isinstance(module, Projection):
                names, owner = joined[id(module)]
                start = 0
                for one, size in zip(names, module.sizes, strict=True):
                    yield Part(f"{owner}.{one}.weight", module.weight, start, size)
                    if module.bias is not None:
                        yield Part(f"{owner}.{one}.bias", module.bias, start, size)
                    start += size
            elif isinstance(module, (Norm, nn.Embedding)) or (module is self.lm_head and not self.tied):
                assert isinstance(module.weight, nn.Parameter)
                yield Part(f"{name}.weight", module.weight, 0, len(module.weight))

    def policy(self, lora_rank: int | None = None, lora_scale: float = 1.0, *, seed: int = 0) -> Self:
        """A copy to train; with adapters, it shares the weights, which stay as they are."""
        if lora_rank is None:
            return copy.deepcopy(self).requires_grad_(True)
        made = copy.deepcopy(self, {id(p): p for p in self.parameters()}).requires_grad_(False)
        generator = torch.Generator().manual_seed(seed)
        for _, _, projection in made.projections():
            projection.add_adapter(lora_rank, lora_scale, generator)
        return made

    def merged(self) -> Self:
        """A copy of the weights with the adapters added, which is not trained."""
        made = copy.deepcopy(self).requires_grad_(False)
        for _, _, projection in made.projections():
            projection.weight.data = projection.effective().detach()
            projection.lora_a = projection.lora_b = None
        return made

    def trained(self) -> list[Part]:
        """The weights that training changes: the adapters, where there are some."""
        lora = [Part(name, p, 0, len(p)) for name, p in self.named_parameters() if "lora_" in name]
        return lora or list(self.parts())

    def _weighted(self) -> Iterator[nn.Module]:
        return (module for module in self.modules() if isinstance(module, (Projection, Norm, nn.Embedding, nn.Linear)))

    @torch.no_grad()
    def reset(self, base: Decoder) -> None:
        """Back to the weights of the base: with adapters, these count nothing."""
        for name, parameter in self.named_parameters():
            if "lora_b" in name:
                parameter.zero_()
        if all("lora_" not in name for name, _ in self.named_parameters()):
            self.copy_weights(base)

    @torch.no_grad()
    def copy_weights(self, other: Decoder) -> None:
        """Take over the weights of a decoder of the same configuration, with its adapters added."""
        for mine, theirs in zip(self._weighted(), other._weighted(), strict=True):
            if isinstance(mine, Projection):
                assert isinstance(theirs, Projection)
                mine.weight.copy_(theirs.effective())
                if mine.bias is not None and theirs.bias is not None:
                    mine.bias.copy_(theirs.bias)
            else:
                assert isinstance(mine.weight, Tensor)
                assert isinstance(theirs.weight, Tensor)
                mine.weight.copy_(theirs.weight)

    def forward(self, tokens_T: Tensor, positions_T: Tensor, attend: Attend) -> Tensor:
        """Hidden states of the tokens, ready for the head."""
        x_TD: Tensor = self.embed_tokens(tokens_T).float()
        cos_TK, sin_TK = self._rotation(positions_T)
        for index, layer in enumerate(self.layers):
            assert isinstance(layer, Block)
            if self.recompute and torch.is_grad_enabled():
                x_TD = torch.utils.checkpoint.checkpoint(
                    self._layer, layer, index, x_TD, cos_TK, sin_TK, attend, use_reentrant=False
                )
            else:
                x_TD = self._layer(layer, index, x_TD, cos_TK, sin_TK, attend)
        out_TD: Tensor = self.norm(x_TD)
        return out_TD

    def _layer(self, layer: Block, index: int, x_TD: Tensor, cos_TK: Tensor, sin_TK: Tensor, attend: Attend) -> Tensor:
        qkv_TEK = layer.before(x_TD, cos_TK, sin_TK, compiled=self.compiled)
        out_THK = attend(index, qkv_TEK, self.config.num_attention_heads)
        return layer.after(x_TD, out_THK, compiled=self.compiled)

    def _rotation(self, positions_T: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines of RoPE at these positions."""
        angles = positions_T[:, None].float() * self.rope_speeds.float()
        return torch.cos(angles) * self.rope_scale, torch.sin(angles) * self.rope_scale

    def logits(self, hidden: Tensor, *, fp32: bool = True) -> Tensor:
        """The head, in FP32 unless asked otherwise; the result is FP32."""
        return head_logits(hidden, self.lm_head.weight, fp32=fp32)


_JOINED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
"""Projections that hold several of a checkpoint's weights."""


def head_logits(hidden: Tensor, weight_VD: Tensor, *, fp32: bool) -> Tensor:
    """Logits as FP32 numbers; `fp32` says whether the product also computes in FP32.

    On a GPU, products of bf16 numbers are exact in FP32, and the matrix units add them up in FP32.
    """
    if not fp32:
        return F.linear(hidden, weight_VD).float()
    if hidden.is_cuda and hidden.dtype == torch.bfloat16 and weight_VD.dtype == torch.bfloat16:
        return torch.mm(hidden, weight_VD.T, out_dtype=torch.float32)
    return F.linear(hidden.float(), weight_VD.float())


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
