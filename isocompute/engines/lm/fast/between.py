"""Triton kernels between a library's matrix products: residual sum with norm, and SwiGLU.

For many rows, or a wide model, the library multiplies faster than the kernels of `kernels` do; what is left between
its products is one pass over memory each. Numerics are those of `kernels`.
"""

# Triton's language is its own: annotations of a kernel's arguments mean constants, and there are many of both.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["add_and_norm", "swiglu"]


@triton.jit
def add_and_norm(
    x_ptr, y_ptr, norm_ptr, out_ptr, rows, cell_rows, epsilon,
    D: tl.constexpr, DP: tl.constexpr, R: tl.constexpr, ADD: tl.constexpr, CELLS: tl.constexpr, TYPE: tl.constexpr,
):  # fmt: skip
    """x += y, where ADD; out = norm · x / rms(x); with CELLS, every `cell_rows` rows have a norm of their own."""
    row_R = tl.program_id(0) * R + tl.arange(0, R)
    i_D = tl.arange(0, DP)
    at_RD = row_R[:, None] * D + i_D[None, :]
    mask_RD = (row_R < rows)[:, None] & (i_D < D)[None, :]
    x_RD = tl.load(x_ptr + at_RD, mask=mask_RD, other=0.0)
    if ADD:
        x_RD += tl.load(y_ptr + at_RD, mask=mask_RD, other=0.0).to(tl.float32)
        tl.store(x_ptr + at_RD, x_RD, mask=mask_RD)
    scale_R = tl.rsqrt(tl.sum(x_RD * x_RD, axis=1) / D + epsilon)
    if CELLS:
        norm_RD = tl.load(norm_ptr + (row_R // cell_rows)[:, None] * D + i_D[None, :], mask=mask_RD, other=0.0)
    else:
        norm_RD = tl.load(norm_ptr + i_D, mask=i_D < D, other=0.0)[None, :]
    tl.store(out_ptr + at_RD, (norm_RD.to(tl.float32) * (x_RD * scale_R[:, None])).to(TYPE), mask=mask_RD)


@triton.jit
def swiglu(both_ptr, out_ptr, count, F: tl.constexpr, N: tl.constexpr, TYPE: tl.constexpr):
    """silu(gate) · up of rows that hold gate and up side by side; `count` numbers in all."""
    at_N = tl.program_id(0).to(tl.int64) * N + tl.arange(0, N)
    in_N = at_N < count
    gate_ptr = both_ptr + at_N // F * (2 * F) + at_N % F
    gate_N = tl.load(gate_ptr, mask=in_N, other=0.0).to(tl.float32)
    up_N = tl.load(gate_ptr + F, mask=in_N, other=0.0).to(tl.float32)
    gate_N = (gate_N / (1.0 + tl.exp(-gate_N))).to(TYPE).to(tl.float32)
    tl.store(out_ptr + at_N, (gate_N * up_N).to(TYPE), mask=in_N)
