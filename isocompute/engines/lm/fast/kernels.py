"""Triton kernels for decoding one token of many sequences: five a layer and one to choose the token.

Decoding a token is a few thin matrix products and a read of the cache. PyTorch takes some twenty-five launches a layer
for it; here norms go into the product that follows them, activations and residual sums into the one before, and norm,
RoPE, cache write and attention of a head are one program. Rows that have stopped are skipped by the programs
themselves, so a batch drains without anyone leaving the CUDA graph.

Numerics are those of `Decoder`: matrix products take bf16 inputs (or FP32 ones), the rest is FP32, the head's logits
are never rounded.

Names: R rows of a tile, C its columns, I its inputs, D width, K head size, S slots of a cache, V vocabulary. A `P` at
the end pads to a power of two.
"""

# Triton's language is its own: annotations of a kernel's arguments mean constants, and there are many of both.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["add_projected", "attend", "choose", "project"]


@triton.jit
def _scale_of(x_ptr, row_R, there_R, epsilon, D: tl.constexpr, I: tl.constexpr):  # noqa: E741 - inputs of a tile
    """One over the root mean square of each row."""
    sum_R = tl.zeros(row_R.shape, dtype=tl.float32)
    i_I = tl.arange(0, I)
    for start in range(0, D, I):
        in_I = start + i_I < D
        x_RI = tl.load(
            x_ptr + row_R[:, None] * D + start + i_I[None, :], mask=there_R[:, None] & in_I[None, :], other=0.0
        )
        sum_R += tl.sum(x_RI * x_RI, axis=1)
    return tl.rsqrt(sum_R / D + epsilon)


@triton.jit
def project(
    x_ptr, norm_ptr, weight_ptr, bias_ptr, out_ptr, going_ptr, rows, epsilon,
    D: tl.constexpr, OUT: tl.constexpr, R: tl.constexpr, C: tl.constexpr, I: tl.constexpr,  # noqa: E741
    GATED: tl.constexpr, BIAS: tl.constexpr, TYPE: tl.constexpr,
):  # fmt: skip
    """out = norm(x) · weightᵀ; GATED: silu(gate) · up, where the weight holds OUT rows of gate and then OUT of up."""
    row_R = tl.program_id(0) * R + tl.arange(0, R)
    there_R = row_R < rows
    going_R = tl.load(going_ptr + row_R, mask=there_R, other=0)
    if tl.max(going_R, axis=0) > 0:
        column_C = tl.program_id(1) * C + tl.arange(0, C)
        in_C = column_C < OUT
        scale_R = _scale_of(x_ptr, row_R, there_R, epsilon, D, I)
        i_I = tl.arange(0, I)
        out_RC = tl.zeros([R, C], dtype=tl.float32)
        up_RC = tl.zeros([R, C], dtype=tl.float32)
        for start in range(0, D, I):
            in_I = start + i_I < D
            x_RI = tl.load(
                x_ptr + row_R[:, None] * D + start + i_I[None, :], mask=there_R[:, None] & in_I[None, :], other=0.0
            )
            norm_I = tl.load(norm_ptr + start + i_I, mask=in_I, other=0.0).to(tl.float32)
            h_RI = (norm_I[None, :] * (x_RI * scale_R[:, None])).to(TYPE)
            at_IC = weight_ptr + column_C[None, :] * D + (start + i_I)[:, None]
            mask_IC = in_I[:, None] & in_C[None, :]
            w_IC = tl.load(at_IC, mask=mask_IC, other=0.0)
            out_RC = tl.dot(h_RI, w_IC, out_RC, input_precision="ieee")
            if GATED:
                u_IC = tl.load(at_IC + OUT * D, mask=mask_IC, other=0.0)
                up_RC = tl.dot(h_RI, u_IC, up_RC, input_precision="ieee")
        if BIAS:
            out_RC += tl.load(bias_ptr + column_C, mask=in_C, other=0.0).to(tl.float32)[None, :]
        out_RC = out_RC.to(TYPE).to(tl.float32)
        if GATED:
            out_RC = (out_RC / (1.0 + tl.exp(-out_RC))).to(TYPE).to(tl.float32) * up_RC.to(TYPE).to(tl.float32)
        tl.store(
            out_ptr + row_R[:, None] * OUT + column_C[None, :],
            out_RC.to(TYPE),
            mask=there_R[:, None] & in_C[None, :],
        )


@triton.jit
def add_projected(
    x_ptr, a_ptr, weight_ptr, going_ptr, rows,
    D: tl.constexpr, IN: tl.constexpr, R: tl.constexpr, C: tl.constexpr, I: tl.constexpr,  # noqa: E741
    TYPE: tl.constexpr,
):  # fmt: skip
    """x += a · weightᵀ, the residual stream in place."""
    row_R = tl.program_id(0) * R + tl.arange(0, R)
    there_R = row_R < rows
    going_R = tl.load(going_ptr + row_R, mask=there_R, other=0)
    if tl.max(going_R, axis=0) > 0:
        column_C = tl.program_id(1) * C + tl.arange(0, C)
        in_C = column_C < D
        i_I = tl.arange(0, I)
        out_RC = tl.zeros([R, C], dtype=tl.float32)
        for start in range(0, IN, I):
            in_I = start + i_I < IN
            a_RI = tl.load(
                a_ptr + row_R[:, None] * IN + start + i_I[None, :], mask=there_R[:, None] & in_I[None, :], other=0.0
            )
            w_IC = tl.load(
                weight_ptr + column_C[None, :] * IN + (start + i_I)[:, None],
                mask=in_I[:, None] & in_C[None, :],
                other=0.0,
            )
            out_RC = tl.dot(a_RI, w_IC, out_RC, input_precision="ieee")
        at_RC = x_ptr + row_R[:, None] * D + column_C[None, :]
        mask_RC = there_R[:, None] & in_C[None, :]
        tl.store(at_RC, tl.load(at_RC, mask=mask_RC, other=0.0) + out_RC.to(TYPE).to(tl.float32), mask=mask_RC)


@triton.jit
def _turned(ptr, norm_ptr, cos_K, sin_K, k_K, partner_K, in_K, E, epsilon, K, QK_NORM: tl.constexpr, TYPE):
    """A head's vector, normed and rotated: channel k turns with channel k ± E."""
    own_K = tl.load(ptr + k_K, mask=in_K, other=0.0).to(tl.float32)
    other_K = tl.load(ptr + partner_K, mask=in_K, other=0.0).to(tl.float32)
    if QK_NORM:
        factor = tl.rsqrt(tl.sum(own_K * own_K, axis=0) / K + epsilon)
        own_K = tl.load(norm_ptr + k_K, mask=in_K, other=0.0).to(tl.float32) * (own_K * factor)
        other_K = tl.load(norm_ptr + partner_K, mask=in_K, other=0.0).to(tl.float32) * (other_K * factor)
        own_K, other_K = own_K.to(TYPE).to(tl.float32), other_K.to(TYPE).to(tl.float32)
    return (own_K * cos_K + tl.where(k_K < E, -other_K, other_K) * sin_K).to(TYPE)


@triton.jit
def _fold(q_K, m, l, o_K, k_ptr, v_ptr, low, high, k_K, in_K, K: tl.constexpr, S: tl.constexpr):  # noqa: E741
    """Fold the slots [low, high) of a cache into a running softmax (m, l, o) of one head."""
    s_S = tl.arange(0, S)
    for start in tl.range(0, high, S, num_stages=2):
        slot_S = start + s_S
        seen_S = (slot_S >= low) & (slot_S < high)
        at_SK = slot_S[:, None] * K + k_K[None, :]
        mask_SK = seen_S[:, None] & in_K[None, :]
        key_SK = tl.load(k_ptr + at_SK, mask=mask_SK, other=0.0)
        value_SK = tl.load(v_ptr + at_SK, mask=mask_SK, other=0.0)
        score_S = tl.where(seen_S, tl.sum(q_K[None, :] * key_SK.to(tl.float32), axis=1), float("-inf"))
        top = tl.maximum(m, tl.max(score_S, axis=0))
        p_S = tl.exp(score_S - top)
        shrink = tl.exp(m - top)
        o_K = o_K * shrink + tl.sum(p_S[:, None] * value_SK.to(tl.float32), axis=0)
        l = l * shrink + tl.sum(p_S, axis=0)  # noqa: E741 - the softmax's sum, as everyone writes it
        m = top
    return m, l, o_K


@triton.jit(do_not_specialize=["step"])
def attend(
    qkv_ptr, q_norm_ptr, k_norm_ptr, cos_ptr, sin_ptr,
    prompt_k_ptr, prompt_v_ptr, padding_ptr,  # problems × groups × prompt slots × K
    new_k_ptr, new_v_ptr,  # rows × groups × new slots × K
    out_ptr, going_ptr, step, per_prompt, prompt_slots, new_slots, epsilon,
    H: tl.constexpr, G: tl.constexpr, K: tl.constexpr, KP: tl.constexpr, S: tl.constexpr,
    QK_NORM: tl.constexpr, TYPE: tl.constexpr,
):  # fmt: skip
    """One row and group: norm and turn q and k, write k and v to the cache, attend to prompt and response."""
    row, group = tl.program_id(0), tl.program_id(1)
    if tl.load(going_ptr + row) > 0:
        E: tl.constexpr = K // 2
        problem = row // per_prompt
        padding = tl.load(padding_ptr + problem)
        k_K = tl.arange(0, KP)
        in_K = k_K < K
        partner_K = tl.where(k_K < E, k_K + E, k_K - E)
        turn_K = (prompt_slots - padding + step) * E + k_K % E
        cos_K = tl.load(cos_ptr + turn_K, mask=in_K, other=0.0)
        sin_K = tl.load(sin_ptr + turn_K, mask=in_K, other=0.0)
        here_ptr = qkv_ptr + row * (H + 2 * G) * K
        key_K = _turned(
            here_ptr + (H + group) * K, k_norm_ptr, cos_K, sin_K, k_K, partner_K, in_K, E, epsilon, K, QK_NORM, TYPE
        )
        value_K = tl.load(here_ptr + (H + G + group) * K + k_K, mask=in_K, other=0.0)
        new = (row * G + group).to(tl.int64) * new_slots * K
        tl.store(new_k_ptr + new + step * K + k_K, key_K, mask=in_K)
        tl.store(new_v_ptr + new + step * K + k_K, value_K, mask=in_K)
        prompt = (problem * G + group).to(tl.int64) * prompt_slots * K
        for sub in range(H // G):
            head = group * (H // G) + sub
            q_K = _turned(
                here_ptr + head * K, q_norm_ptr, cos_K, sin_K, k_K, partner_K, in_K, E, epsilon, K, QK_NORM, TYPE
            )
            q_K = q_K.to(tl.float32) * (1.0 / tl.sqrt(K * 1.0))
            # The token itself comes first: the running maximum is a number from the start.
            m = tl.sum(q_K * key_K.to(tl.float32), axis=0)
            m, total, o_K = _fold(
                q_K, m, m * 0.0 + 1.0, value_K.to(tl.float32), prompt_k_ptr + prompt, prompt_v_ptr + prompt, padding,
                prompt_slots, k_K, in_K, K, S,
            )  # fmt: skip
            m, total, o_K = _fold(q_K, m, total, o_K, new_k_ptr + new, new_v_ptr + new, 0, step, k_K, in_K, K, S)
            tl.store(out_ptr + (row * H + head) * K + k_K, (o_K / total).to(TYPE), mask=in_K)


@triton.jit
def _uniform(seed, row_R, position):
    """`sampler.uniforms`: a hash of (seed, row, position) in (0, 1)."""
    x_R = row_R * (-7046029254386353131) + seed * (-3372029247567499371) + position * (-2696494805208442699)
    x_R = (x_R ^ ((x_R >> 30) & 0x3FFFFFFFF)) * (-4658895280553007687)
    x_R = (x_R ^ ((x_R >> 27) & 0x1FFFFFFFFF)) * (-7723592293110705685)
    x_R = x_R ^ ((x_R >> 31) & 0x1FFFFFFFF)
    return (((x_R >> 11) & 0x1FFFFFFFFFFFFF).to(tl.float64) + 0.5) * 1.1102230246251565e-16


@triton.jit(do_not_specialize=["step"])
def choose(
    x_ptr, norm_ptr, head_ptr, embed_ptr, tokens_ptr, logprobs_ptr, lengths_ptr, stopped_ptr, going_ptr,
    stops_ptr, stop_count, seed_ptr, first_row_ptr, step, temperature, epsilon, rows, new_slots,
    D: tl.constexpr, V: tl.constexpr, VP: tl.constexpr, R: tl.constexpr, I: tl.constexpr,  # noqa: E741
    TYPE: tl.constexpr,
):  # fmt: skip
    """Head, softmax, draw, and the embedding of what was drawn as the next input."""
    row_R = tl.program_id(0) * R + tl.arange(0, R)
    there_R = row_R < rows
    going_R = tl.load(going_ptr + row_R, mask=there_R, other=0) > 0
    if tl.max(going_R.to(tl.int32), axis=0) > 0:
        v_V, i_I = tl.arange(0, VP), tl.arange(0, I)
        in_V = v_V < V
        scale_R = _scale_of(x_ptr, row_R, there_R, epsilon, D, I)
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
        number_R = row_R.to(tl.int64) + tl.load(first_row_ptr)
        position_R = tl.zeros([R], dtype=tl.int64) + step
        target_R = _uniform(tl.load(seed_ptr), number_R, position_R).to(tl.float32) * sum_R
        token_R = tl.sum((tl.cumsum(e_RV, axis=1) <= target_R[:, None]).to(tl.int32), axis=1)
        token_R = tl.minimum(token_R, V - 1)
        chosen_R = tl.sum(tl.where(v_V[None, :] == token_R[:, None], z_RV, 0.0), axis=1)
        out_R = row_R * new_slots + step
        tl.store(tokens_ptr + out_R, token_R.to(tl.int64), mask=going_R)
        tl.store(logprobs_ptr + out_R, chosen_R - top_R - tl.log(sum_R), mask=going_R)
        tl.store(lengths_ptr + row_R, tl.zeros([R], dtype=tl.int32) + step + 1, mask=going_R)
        ended_R = tl.zeros([R], dtype=tl.int32)
        for i in range(stop_count):
            ended_R = ended_R | (token_R == tl.load(stops_ptr + i)).to(tl.int32)
        tl.store(stopped_ptr + row_R, ended_R, mask=going_R)
        tl.store(going_ptr + row_R, (going_R & (ended_R == 0)).to(tl.int32), mask=there_R)
        for start in range(0, D, I):
            in_I = start + i_I < D
            next_RI = tl.load(
                embed_ptr + token_R[:, None] * D + start + i_I[None, :], mask=in_I[None, :], other=0.0
            ).to(tl.float32)
            tl.store(x_ptr + row_R[:, None] * D + start + i_I[None, :], next_RI, mask=there_R[:, None] & in_I[None, :])
