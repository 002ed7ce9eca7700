"""Triton kernels between a library's matrix products: residual sum with norm, and SwiGLU, and their gradients, and the
sum of what the programs of a gradient leave behind.

For many rows, or a wide model, the library multiplies faster than the kernels of `kernels` do; what is left between
its products is one pass over memory each. Numerics are those of `kernels`. No number of rows is compiled into them, so
that a new shape of batch costs no time.
"""

# Triton's language is its own: annotations of a kernel's arguments mean constants, and there are many of both.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["add_and_norm", "add_and_norm_backward", "sum_rows", "swiglu", "swiglu_backward"]


@triton.jit
def _scale(x_RD, in_R, epsilon, D: tl.constexpr):
    """One over the root mean square of rows, and 1 for those that are not there, whose mean may be zero."""
    return tl.rsqrt(tl.where(in_R, tl.sum(x_RD * x_RD, axis=1) / D + epsilon, 1.0))


@triton.jit(do_not_specialize=["rows", "cell_rows"])
def add_and_norm(
    x_ptr, y_ptr, sum_ptr, norm_ptr, out_ptr, rows, cell_rows, epsilon,
    D: tl.constexpr, DP: tl.constexpr, R: tl.constexpr, ADD: tl.constexpr, CELLS: tl.constexpr, TYPE: tl.constexpr,
):  # fmt: skip
    """sum = x + y, where ADD, else x; out = norm · sum / rms(sum); with CELLS, every `cell_rows` rows have a norm of
    their own. The sum may be written over x.
    """
    row_R = tl.program_id(0) * R + tl.arange(0, R)
    i_D = tl.arange(0, DP)
    at_RD = row_R.to(tl.int64)[:, None] * D + i_D[None, :]
    mask_RD = (row_R < rows)[:, None] & (i_D < D)[None, :]
    x_RD = tl.load(x_ptr + at_RD, mask=mask_RD, other=0.0)
    if ADD:
        x_RD += tl.load(y_ptr + at_RD, mask=mask_RD, other=0.0).to(tl.float32)
        tl.store(sum_ptr + at_RD, x_RD, mask=mask_RD)
    scale_R = _scale(x_RD, row_R < rows, epsilon, D)
    if CELLS:
        norm_RD = tl.load(norm_ptr + (row_R // cell_rows)[:, None] * D + i_D[None, :], mask=mask_RD, other=0.0)
    else:
        norm_RD = tl.load(norm_ptr + i_D, mask=i_D < D, other=0.0)[None, :]
    tl.store(out_ptr + at_RD, (norm_RD.to(tl.float32) * (x_RD * scale_R[:, None])).to(TYPE), mask=mask_RD)


@triton.jit(do_not_specialize=["cell_rows", "chunk"])
def add_and_norm_backward(
    x_ptr, norm_ptr,
    later_ptr,  # gradient of the sum by what reads it later, where LATER
    grad_ptr,  # gradient of what was normed
    dx_ptr, dy_ptr,  # gradient of the sum, in FP32 and, where ADD, in the products' type
    parts_ptr,  # cells × programs × D: gradients of the norm's weights
    cell_rows, chunk, epsilon,
    D: tl.constexpr, DP: tl.constexpr, R: tl.constexpr, ADD: tl.constexpr, LATER: tl.constexpr, TYPE: tl.constexpr,
):  # fmt: skip
    """A cell's next `chunk` rows, R at a time; `x` is the sum of the forward pass."""
    part, cell = tl.program_id(0), tl.program_id(1)
    i_D = tl.arange(0, DP)
    in_D = i_D < D
    norm_D = tl.load(norm_ptr + cell * D + i_D, mask=in_D, other=0.0).to(tl.float32)
    weights_RD = tl.zeros([R, DP], dtype=tl.float32)  # added up once, at the end: rows are on different warps
    first = cell.to(tl.int64) * cell_rows
    for start in range(part * chunk, tl.minimum((part + 1) * chunk, cell_rows), R):
        row_R = start + tl.arange(0, R)
        at_RD = (first + row_R)[:, None] * D + i_D[None, :]
        mask_RD = (row_R < cell_rows)[:, None] & in_D[None, :]
        x_RD = tl.load(x_ptr + at_RD, mask=mask_RD, other=0.0)
        grad_RD = tl.load(grad_ptr + at_RD, mask=mask_RD, other=0.0).to(tl.float32)
        scale_R = _scale(x_RD, row_R < cell_rows, epsilon, D)
        unit_RD = x_RD * scale_R[:, None]
        weights_RD += grad_RD * unit_RD
        grad_RD *= norm_D[None, :]
        mean_R = tl.sum(grad_RD * unit_RD, axis=1) / D
        dx_RD = (grad_RD - unit_RD * mean_R[:, None]) * scale_R[:, None]
        if LATER:
            dx_RD += tl.load(later_ptr + at_RD, mask=mask_RD, other=0.0)
        tl.store(dx_ptr + at_RD, dx_RD, mask=mask_RD)
        if ADD:
            tl.store(dy_ptr + at_RD, dx_RD.to(TYPE), mask=mask_RD)
    tl.store(parts_ptr + (cell * tl.num_programs(0) + part) * D + i_D, tl.sum(weights_RD, axis=0), mask=in_D)


@triton.jit
def swiglu(both_ptr, out_ptr, count, F: tl.constexpr, N: tl.constexpr, TYPE: tl.constexpr):
    """silu(gate) · up of rows that hold gate and up side by side; `count` numbers in all.

    The compiler may know that 16 divides them: threads load several at a time then.
    """
    at_N = tl.program_id(0).to(tl.int64) * N + tl.arange(0, N)
    in_N = at_N < count
    gate_ptr = both_ptr + at_N // F * (2 * F) + at_N % F
    gate_N = tl.load(gate_ptr, mask=in_N, other=0.0).to(tl.float32)
    up_N = tl.load(gate_ptr + F, mask=in_N, other=0.0).to(tl.float32)
    gate_N = (gate_N / (1.0 + tl.exp(-gate_N))).to(TYPE).to(tl.float32)
    tl.store(out_ptr + at_N, (gate_N * up_N).to(TYPE), mask=in_N)


@triton.jit
def swiglu_backward(both_ptr, grad_ptr, out_ptr, count, F: tl.constexpr, N: tl.constexpr, TYPE: tl.constexpr):
    """Gradients of gate and up, side by side as they are; what PyTorch rounds on the way is rounded."""
    at_N = tl.program_id(0).to(tl.int64) * N + tl.arange(0, N)
    in_N = at_N < count
    to_N = at_N // F * (2 * F) + at_N % F
    gate_N = tl.load(both_ptr + to_N, mask=in_N, other=0.0).to(tl.float32)
    up_N = tl.load(both_ptr + to_N + F, mask=in_N, other=0.0).to(tl.float32)
    grad_N = tl.load(grad_ptr + at_N, mask=in_N, other=0.0).to(tl.float32)
    share_N = 1.0 / (1.0 + tl.exp(-gate_N))
    open_N = (gate_N * share_N).to(TYPE).to(tl.float32)
    tl.store(out_ptr + to_N + F, (grad_N * open_N).to(TYPE), mask=in_N)
    grad_N = (grad_N * up_N).to(TYPE).to(tl.float32)
    slope_N = share_N * (1.0 + gate_N * (1.0 - share_N))
    tl.store(out_ptr + to_N, (grad_N * slope_N).to(TYPE), mask=in_N)


@triton.jit(do_not_specialize=["rows"])
def sum_rows(x_ptr, out_ptr, rows, width, R: tl.constexpr, C: tl.constexpr, TYPE: tl.constexpr):
    """Every R rows of a cell's `rows` as one."""
    part, cell = tl.program_id(0), tl.program_id(2)
    row_R = part * R + tl.arange(0, R)
    i_C = tl.program_id(1) * C + tl.arange(0, C)
    at_RC = (cell.to(tl.int64) * rows + row_R)[:, None] * width + i_C[None, :]
    x_RC = tl.load(x_ptr + at_RC, mask=(row_R < rows)[:, None] & (i_C < width)[None, :], other=0.0)
    to_C = (cell * tl.num_programs(0) + part).to(tl.int64) * width + i_C
    tl.store(out_ptr + to_C, tl.sum(x_RC, axis=0).to(TYPE), mask=i_C < width)
