"""Triton kernels that choose the next token of many sequences: head, softmax, draw, and the next embedding.

`choose` has the whole vocabulary in a tile and never writes a logit. `draw` is for larger ones: it reads the logits of
a row twice, for the softmax's sum and for the place where the cumulative sum passes the random number; probabilities
are nowhere in memory either.

Names as in `kernels`; V vocabulary, C tokens of it at a time.
"""

# Triton's language is its own: annotations of a kernel's arguments mean constants, and there are many of both.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from isocompute.rl.fast.kernels import begin, scale_of, wait

__all__ = ["choose", "draw"]


@triton.jit
def _uniform(seed, row_R, position):
    """`sampler.uniforms`: a hash of (seed, row, position) in (0, 1)."""
    x_R = row_R * (-7046029254386353131) + seed * (-3372029247567499371) + position * (-2696494805208442699)
    x_R = (x_R ^ ((x_R >> 30) & 0x3FFFFFFFF)) * (-4658895280553007687)
    x_R = (x_R ^ ((x_R >> 27) & 0x1FFFFFFFFF)) * (-7723592293110705685)
    x_R = x_R ^ ((x_R >> 31) & 0x1FFFFFFFF)
    return (((x_R >> 11) & 0x1FFFFFFFFFFFFF).to(tl.float64) + 0.5) * 1.1102230246251565e-16


@triton.jit
def _ended(token, stops_ptr, stop_count):
    """1 where a token is a stop token."""
    out = token * 0
    for i in range(stop_count):
        out = out | (token == tl.load(stops_ptr + i)).to(tl.int32)
    return out


@triton.jit(do_not_specialize=["stop_count", "step", "rows", "new_slots"])
def choose(
    x_ptr, norm_ptr, head_ptr, embed_ptr, tokens_ptr, logprobs_ptr, lengths_ptr, stopped_ptr, going_ptr,
    stops_ptr, stop_count, seed_ptr, first_row_ptr, step, temperature, epsilon, rows, new_slots,
    D: tl.constexpr, V: tl.constexpr, VP: tl.constexpr, R: tl.constexpr, I: tl.constexpr,  # noqa: E741
    OVERLAP: tl.constexpr, TYPE: tl.constexpr,
):  # fmt: skip
    """Head, softmax, draw, and the embedding of what was drawn as the next input; `rows` of one cell."""
    begin(OVERLAP)
    cell = tl.program_id(1)
    norm_ptr += cell * D
    head_ptr += cell * V * D
    embed_ptr += cell * V * D
    wait(OVERLAP)
    local_R = tl.program_id(0) * R + tl.arange(0, R)
    there_R = local_R < rows
    row_R = cell * rows + local_R
    going_R = tl.load(going_ptr + row_R, mask=there_R, other=0) > 0
    if tl.max(going_R.to(tl.int32), axis=0) > 0:
        v_V, i_I = tl.arange(0, VP), tl.arange(0, I)
        in_V = v_V < V
        scale_R = scale_of(x_ptr, row_R, there_R, epsilon, D, I)
        z_RV = tl.zeros([R, VP], dtype=tl.float32)
        for start in range(0, D, I):
            in_I = start + i_I < D
            x_RI = tl.load(
                x_ptr + row_R[:, None] * D + start + i_I[None, :], mask=there_R[:, None] & in_I[None, :], other=0.0
            )
            norm_I = tl.load(norm_ptr + start + i_I, mask=in_I, other=0.0).to(tl.float32)
            h_RI = (norm_I[None, :] * (x_RI * scale_R[:, None])).to(TYPE)
            w_IV = tl.load(
                head_ptr + v_V[None, :] * D + (start + i_I)[:, None], mask=in_I[:, None] & in_V[None, :], other=0.0
            )
            # Both sides are bf16 numbers: their products are exact in the FP32 sum, and this is an FP32 head.
            z_RV = tl.dot(h_RI, w_IV, z_RV, input_precision="ieee")
        z_RV = tl.where(in_V[None, :], z_RV / temperature, float("-inf"))
        top_R = tl.max(z_RV, axis=1)
        e_RV = tl.exp(z_RV - top_R[:, None])
        sum_R = tl.sum(e_RV, axis=1)
        number_R = local_R.to(tl.int64) + tl.load(first_row_ptr + cell)
        position_R = tl.zeros([R], dtype=tl.int64) + step
        target_R = _uniform(tl.load(seed_ptr + cell), number_R, position_R).to(tl.float32) * sum_R
        token_R = tl.sum((tl.cumsum(e_RV, axis=1) <= target_R[:, None]).to(tl.int32), axis=1)
        token_R = tl.minimum(token_R, V - 1)
        chosen_R = tl.sum(tl.where(v_V[None, :] == token_R[:, None], z_RV, 0.0), axis=1)
        out_R = row_R * new_slots + step
        tl.store(tokens_ptr + out_R, token_R.to(tl.int64), mask=going_R)
        tl.store(logprobs_ptr + out_R, chosen_R - top_R - tl.log(sum_R), mask=going_R)
        tl.store(lengths_ptr + row_R, tl.zeros([R], dtype=tl.int32) + step + 1, mask=going_R)
        ended_R = _ended(token_R, stops_ptr, stop_count)
        tl.store(stopped_ptr + row_R, ended_R, mask=going_R)
        tl.store(going_ptr + row_R, (going_R & (ended_R == 0)).to(tl.int32), mask=there_R)
        for start in range(0, D, I):
            in_I = start + i_I < D
            next_RI = tl.load(
                embed_ptr + token_R[:, None] * D + start + i_I[None, :], mask=in_I[None, :], other=0.0
            ).to(tl.float32)
            tl.store(x_ptr + row_R[:, None] * D + start + i_I[None, :], next_RI, mask=there_R[:, None] & in_I[None, :])


@triton.jit(do_not_specialize=["stop_count", "step", "cell_rows", "new_slots"])
def draw(
    logits_ptr, embed_ptr, x_ptr, tokens_ptr, logprobs_ptr, lengths_ptr, stopped_ptr, going_ptr,
    stops_ptr, stop_count, seed_ptr, first_row_ptr, step, temperature, cell_rows, new_slots,
    D: tl.constexpr, V: tl.constexpr, C: tl.constexpr, I: tl.constexpr,  # noqa: E741
    OVERLAP: tl.constexpr,
):  # fmt: skip
    """One row: a token from its logits, and its embedding as the next input."""
    begin(OVERLAP)
    wait(OVERLAP)
    row = tl.program_id(0)
    cell = row // cell_rows
    embed_ptr += cell.to(tl.int64) * V * D
    if tl.load(going_ptr + row) > 0:
        here_ptr = logits_ptr + row.to(tl.int64) * V
        c_C = tl.arange(0, C)
        m_C = tl.full([C], float("-inf"), dtype=tl.float32)
        l_C = tl.zeros([C], dtype=tl.float32)
        for start in range(0, V, C):
            z_C = tl.load(here_ptr + start + c_C, mask=start + c_C < V, other=float("-inf")) / temperature
            # A column may have seen nothing but minus infinity; it then counts from zero, and nothing is added.
            top_C = tl.maximum(m_C, z_C)
            safe_C = tl.where(top_C > float("-inf"), top_C, 0.0)
            l_C = l_C * tl.exp(m_C - safe_C) + tl.exp(z_C - safe_C)
            m_C = top_C
        top = tl.max(m_C, axis=0)
        total = tl.sum(l_C * tl.exp(m_C - top), axis=0)
        number = (row - cell * cell_rows).to(tl.int64) + tl.load(first_row_ptr + cell)
        target = _uniform(tl.load(seed_ptr + cell), number, step.to(tl.int64)).to(tl.float32) * total
        token = row * 0
        before = total * 0.0
        for start in range(0, V, C):
            z_C = tl.load(here_ptr + start + c_C, mask=start + c_C < V, other=float("-inf")) / temperature
            e_C = tl.exp(z_C - top)
            token += tl.sum(((before + tl.cumsum(e_C, axis=0) <= target) & (start + c_C < V)).to(tl.int32), axis=0)
            before += tl.sum(e_C, axis=0)
        token = tl.minimum(token, V - 1)
        chosen = tl.load(here_ptr + token) / temperature
        tl.store(tokens_ptr + row * new_slots + step, token.to(tl.int64))
        tl.store(logprobs_ptr + row * new_slots + step, chosen - top - tl.log(total))
        tl.store(lengths_ptr + row, step + 1)
        ended = _ended(token, stops_ptr, stop_count)
        tl.store(stopped_ptr + row, ended)
        tl.store(going_ptr + row, 1 - ended)
        for start in range(0, D, I):
            i_I = start + tl.arange(0, I)
            next_I = tl.load(embed_ptr + token.to(tl.int64) * D + i_I, mask=i_I < D, other=0.0)
            tl.store(x_ptr + row * D + i_I, next_I.to(tl.float32), mask=i_I < D)
