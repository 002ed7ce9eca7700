"""What comes of a generation."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

__all__ = ["Sampled"]


class Sampled(NamedTuple):
    """Buffers that a generation writes to."""

    tokens_BT: Tensor
    logprobs_BT: Tensor
    lengths_B: Tensor
    stopped_B: Tensor
