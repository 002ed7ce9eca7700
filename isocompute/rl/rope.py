"""Rotations of RoPE, and their speeds under its scalings: linear, Llama 3.1 and YaRN."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from isocompute.rl.config import DecoderConfig

__all__ = ["rope_frequencies", "rope_turns"]


def rope_turns(speeds_E: Tensor, scale: float, slots: int) -> tuple[Tensor, Tensor]:
    """`_TE`: cosines and sines of as many positions."""
    angles_TE = torch.arange(slots, device=speeds_E.device)[:, None].float() * speeds_E.float()
    return angles_TE.cos() * scale, angles_TE.sin() * scale


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

    low, high = channel(float(rope.get("beta_fast") or 32.0)), channel(float(rope.get("beta_slow") or 1.0))
    if rope.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    width = high - low or 0.001
    ramp = ((torch.arange(size // 2, dtype=torch.float32) - low) / width).clamp(0.0, 1.0)
    return (1 - ramp) * speeds + ramp * speeds / factor, _attention_factor(rope, factor)


def _attention_factor(rope: dict[str, float], factor: float) -> float:
    """YaRN's factor on cos and sin: given, or by the paper's rule, which DeepSeek's two mscales bend."""

    def rule(mscale: float) -> float:
        return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0

    given, mscale, all_dim = rope.get("attention_factor"), rope.get("mscale"), rope.get("mscale_all_dim")
    if given is not None:
        return float(given)
    return rule(mscale) / rule(all_dim) if mscale and all_dim else rule(1.0)
