"""Triton kernels of `embedding`: rows of a small table, and their gradient.

Names: N tokens, V vocabulary, D channels; a `T` at the end is a tile of it, a `P` pads to a power of two.
"""

# Triton's language is its own: annotations of a kernel's arguments mean constants, and there are many of both.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["look_up", "look_up_backward"]


@triton.jit(do_not_specialize=["rows", "cell_rows"])
def look_up(
    table_ptr, tokens_ptr, out_ptr, rows, cell_rows,
    V: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """Rows of the table in FP32; every `cell_rows` tokens have a table of their own."""
    row_R = tl.program_id(0) * R + tl.arange(0, R)
    i_D = tl.arange(0, DP)
    mask_RD = (row_R < rows)[:, None] & (i_D < D)[None, :]
    token_R = tl.load(tokens_ptr + row_R, mask=row_R < rows, other=0)
    from_R = (row_R // cell_rows * V + token_R).to(tl.int64) * D
    x_RD = tl.load(table_ptr + from_R[:, None] + i_D[None, :], mask=mask_RD, other=0.0)
    tl.store(out_ptr + row_R.to(tl.int64)[:, None] * D + i_D[None, :], x_RD.to(tl.float32), mask=mask_RD)


@triton.jit(do_not_specialize=["cell_rows", "chunk"])
def look_up_backward(
    tokens_ptr, grad_ptr,
    parts_ptr,  # cells × programs × V × D
    cell_rows, chunk,
    V: tl.constexpr, D: tl.constexpr, VT: tl.constexpr, DT: tl.constexpr, NT: tl.constexpr, TYPE: tl.constexpr,
):  # fmt: skip
    """What a cell's next `chunk` tokens add to a tile of the table's gradient; gradients are rounded to the table's
    type, as PyTorch does it, and added up in FP32.
    """
    part, tile, cell = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    ACROSS: tl.constexpr = (D + DT - 1) // DT
    v_V = tile // ACROSS * VT + tl.arange(0, VT)
    i_D = tile % ACROSS * DT + tl.arange(0, DT)
    sum_VD = tl.zeros([VT, DT], dtype=tl.float32)
    first = cell.to(tl.int64) * cell_rows
    for start in range(part * chunk, tl.minimum((part + 1) * chunk, cell_rows), NT):
        row_N = start + tl.arange(0, NT)
        in_N = row_N < cell_rows
        token_N = tl.load(tokens_ptr + first + row_N, mask=in_N, other=-1)
        at_ND = (first + row_N)[:, None] * D + i_D[None, :]
        grad_ND = tl.load(grad_ptr + at_ND, mask=in_N[:, None] & (i_D < D)[None, :], other=0.0).to(TYPE)
        is_VN = tl.where(v_V[:, None] == token_N[None, :], 1.0, 0.0).to(TYPE)
        sum_VD = tl.dot(is_VN, grad_ND, sum_VD, input_precision="ieee")
    to_VD = ((cell * tl.num_programs(0) + part).to(tl.int64) * V + v_V)[:, None] * D + i_D[None, :]
    tl.store(parts_ptr + to_VD, sum_VD, mask=(v_V < V)[:, None] & (i_D < D)[None, :])
