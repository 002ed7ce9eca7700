"""The Triton kernel of `adam`."""

# Triton's language is its own: annotations of a kernel's arguments mean constants, and there are many of both.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["adamw"]


@triton.jit(do_not_specialize=["count"])
def adamw(
    weight_ptr, grad_ptr, mean_ptr, square_ptr, rate_ptr, steps_ptr, norm_ptr, count, epsilon, decay, clip,
    BETA1: tl.constexpr, BETA2: tl.constexpr,
    LOG1: tl.constexpr, LOG2: tl.constexpr,  # of the betas: what is missing of 1 after few steps needs all its digits
    N: tl.constexpr,
):  # fmt: skip
    """N weights and their moments; nothing where the norm of all gradients is not finite."""
    norm = tl.load(norm_ptr)
    if norm < float("inf"):
        at_N = tl.program_id(0).to(tl.int64) * N + tl.arange(0, N)
        in_N = at_N < count
        rate, steps = tl.load(rate_ptr), tl.load(steps_ptr).to(tl.float64)
        first = (1.0 - tl.exp(steps * LOG1)).to(tl.float32)
        second = (1.0 - tl.exp(steps * LOG2)).to(tl.float32)
        weight_N = tl.load(weight_ptr + at_N, mask=in_N, other=0.0)
        grad_N = tl.load(grad_ptr + at_N, mask=in_N, other=0.0) * tl.minimum(clip / (norm + 1e-6), 1.0)
        mean_N = BETA1 * tl.load(mean_ptr + at_N, mask=in_N, other=0.0) + (1.0 - BETA1) * grad_N
        square_N = BETA2 * tl.load(square_ptr + at_N, mask=in_N, other=0.0) + (1.0 - BETA2) * grad_N * grad_N
        weight_N -= rate * decay * weight_N
        weight_N -= rate / first * mean_N / (tl.sqrt(square_N) / tl.sqrt(second) + epsilon)
        tl.store(weight_ptr + at_N, weight_N, mask=in_N)
        tl.store(mean_ptr + at_N, mean_N, mask=in_N)
        tl.store(square_ptr + at_N, square_N, mask=in_N)
