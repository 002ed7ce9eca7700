"""Triton kernels for decoding one token of many sequences: five a layer (and one to choose the token, `choice`).

Decoding a token is a few thin matrix products and a read of the cache. PyTorch takes some twenty-five launches a layer
for it; here norms go into the product that follows them, activations and residual sums into the one before, and norm,
RoPE, cache write and attention of a head are one program. Rows that have stopped are skipped by the programs
themselves, so a batch drains without anyone leaving the CUDA graph. Kernels of one token wait for each other, but not
at their start (OVERLAP, Hopper and later): the next one is launched, and reads its weights, while the last one ends.

Numerics are those of `Decoder`: matrix products take bf16 inputs (or FP32 ones), the rest is FP32, the head's logits
are never rounded.

Rows may be of several cells, one cell after the other, each with weights of its own; `cell_rows` and `cell_problems`
are those of one. (The products here are for one cell: those of several are a library's, `products`.)

Names: R rows of a tile, C its columns, I its inputs, D width, K head size, S slots of a cache, V vocabulary. A `P` at
the end pads to a power of two.
"""

# Triton's language is its own: annotations of a kernel's arguments mean constants, and there are many of both.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

__all__ = ["add_projected", "attend", "begin", "keep", "project", "scale_of", "wait"]


@triton.jit
def scale_of(x_ptr, row_R, there_R, epsilon, D: tl.constexpr, I: tl.constexpr):  # noqa: E741 - inputs of a tile
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
def begin(OVERLAP: tl.constexpr):
    """Let the next kernel start while this one runs; before `wait` it may read only what no kernel here writes."""
    if OVERLAP:
        gdc_launch_dependents()


@triton.jit
def wait(OVERLAP: tl.constexpr):
    """Wait for the kernel before, and with it for all before that."""
    if OVERLAP:
        gdc_wait()


@triton.jit(do_not_specialize=["rows"])
def project(
    x_ptr, norm_ptr, weight_ptr, bias_ptr, out_ptr, going_ptr, rows, epsilon,
    D: tl.constexpr, OUT: tl.constexpr, R: tl.constexpr, C: tl.constexpr, I: tl.constexpr,  # noqa: E741
    GATED: tl.constexpr, BIAS: tl.constexpr, OVERLAP: tl.constexpr, TYPE: tl.constexpr,
):  # fmt: skip
    """out = norm(x) · weightᵀ; GATED: silu(gate) · up, where the weight holds OUT rows of gate and then OUT of up."""
    begin(OVERLAP)
    row_R = tl.program_id(0) * R + tl.arange(0, R)
    there_R = row_R < rows
    column_C = tl.program_id(1) * C + tl.arange(0, C)
    in_C = column_C < OUT
    i_I = tl.arange(0, I)
    WHOLE: tl.constexpr = D <= I  # a tile holds all inputs: one product, whose weights are read while others still run
    if WHOLE:
        at_IC = weight_ptr + column_C[None, :] * D + i_I[:, None]
        mask_IC = (i_I < D)[:, None] & in_C[None, :]
        w_IC = tl.load(at_IC, mask=mask_IC, other=0.0)
        if GATED:
            u_IC = tl.load(at_IC + OUT * D, mask=mask_IC, other=0.0)
    wait(OVERLAP)
    going_R = tl.load(going_ptr + row_R, mask=there_R, other=0)
    if tl.max(going_R, axis=0) > 0:
        out_RC = tl.zeros([R, C], dtype=tl.float32)
        up_RC = tl.zeros([R, C], dtype=tl.float32)
        if WHOLE:
            mask_RI = there_R[:, None] & (i_I < D)[None, :]
            x_RI = tl.load(x_ptr + row_R[:, None] * D + i_I[None, :], mask=mask_RI, other=0.0)
            scale_R = tl.rsqrt(tl.sum(x_RI * x_RI, axis=1) / D + epsilon)
            norm_I = tl.load(norm_ptr + i_I, mask=i_I < D, other=0.0).to(tl.float32)
            h_RI = (norm_I[None, :] * (x_RI * scale_R[:, None])).to(TYPE)
            out_RC = tl.dot(h_RI, w_IC, input_precision="ieee")
            if GATED:
                up_RC = tl.dot(h_RI, u_IC, input_precision="ieee")
        else:
            scale_R = scale_of(x_ptr, row_R, there_R, epsilon, D, I)
            for start in range(0, D, I):
                in_I = start + i_I < D
                mask_RI = there_R[:, None] & in_I[None, :]
                x_RI = tl.load(x_ptr + row_R[:, None] * D + start + i_I[None, :], mask=mask_RI, other=0.0)
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


@triton.jit(do_not_specialize=["rows"])
def add_projected(
    x_ptr, a_ptr, weight_ptr, going_ptr, rows,
    D: tl.constexpr, IN: tl.constexpr, R: tl.constexpr, C: tl.constexpr, I: tl.constexpr,  # noqa: E741
    OVERLAP: tl.constexpr, TYPE: tl.constexpr,
):  # fmt: skip
    """x += a · weightᵀ, the residual stream in place."""
    begin(OVERLAP)
    row_R = tl.program_id(0) * R + tl.arange(0, R)
    there_R = row_R < rows
    column_C = tl.program_id(1) * C + tl.arange(0, C)
    in_C = column_C < D
    i_I = tl.arange(0, I)
    FIRST: tl.constexpr = I if OVERLAP else 0  # the inputs before it are done outside of the loop
    if OVERLAP:
        w_IC = tl.load(
            weight_ptr + column_C[None, :] * IN + i_I[:, None], mask=(i_I < IN)[:, None] & in_C[None, :], other=0.0
        )
    wait(OVERLAP)
    going_R = tl.load(going_ptr + row_R, mask=there_R, other=0)
    if tl.max(going_R, axis=0) > 0:
        out_RC = tl.zeros([R, C], dtype=tl.float32)
        if OVERLAP:
            a_RI = tl.load(
                a_ptr + row_R[:, None] * IN + i_I[None, :], mask=there_R[:, None] & (i_I < IN)[None, :], other=0.0
            )
            out_RC = tl.dot(a_RI, w_IC, out_RC, input_precision="ieee")
        for start in range(FIRST, IN, I):
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


@triton.jit(do_not_specialize=["slots", "cell_problems"])
def keep(
    qkv_ptr, k_norm_ptr, cos_ptr, sin_ptr, padding_ptr, k_ptr, v_ptr, slots, cell_problems, epsilon,
    H: tl.constexpr, G: tl.constexpr, K: tl.constexpr, KP: tl.constexpr, QK_NORM: tl.constexpr, TYPE: tl.constexpr,
):  # fmt: skip
    """One token of a left-padded prompt and one group: norm and turn k, and write k and v to the cache."""
    token, group = tl.program_id(0), tl.program_id(1)
    problem, slot = token // slots, token % slots
    E: tl.constexpr = K // 2
    k_K = tl.arange(0, KP)
    in_K = k_K < K
    partner_K = tl.where(k_K < E, k_K + E, k_K - E)
    turn_K = tl.maximum(slot - tl.load(padding_ptr + problem), 0) * E + k_K % E
    cos_K = tl.load(cos_ptr + turn_K, mask=in_K, other=0.0)
    sin_K = tl.load(sin_ptr + turn_K, mask=in_K, other=0.0)
    here_ptr = qkv_ptr + token.to(tl.int64) * (H + 2 * G) * K
    k_norm_ptr += problem // cell_problems * K
    key_K = _turned(
        here_ptr + (H + group) * K, k_norm_ptr, cos_K, sin_K, k_K, partner_K, in_K, E, epsilon, K, QK_NORM, TYPE
    )
    at_K = ((problem * G + group).to(tl.int64) * slots + slot) * K + k_K
    tl.store(k_ptr + at_K, key_K, mask=in_K)
    tl.store(v_ptr + at_K, tl.load(here_ptr + (H + G + group) * K + k_K, mask=in_K, other=0.0), mask=in_K)


@triton.jit
def _block(k_ptr, v_ptr, start, low, high, k_K, in_K, K: tl.constexpr, S: tl.constexpr):
    """Keys and values of S slots of a cache, and which of them are in [low, high)."""
    slot_S = start + tl.arange(0, S)
    seen_S = (slot_S >= low) & (slot_S < high)
    at_SK = slot_S[:, None] * K + k_K[None, :]
    mask_SK = seen_S[:, None] & in_K[None, :]
    return tl.load(k_ptr + at_SK, mask=mask_SK, other=0.0), tl.load(v_ptr + at_SK, mask=mask_SK, other=0.0), seen_S


@triton.jit
def _fold(q_K, m, l, o_K, key_SK, value_SK, seen_S):  # noqa: E741 - the softmax's sum, as everyone writes it
    """Fold a block of slots into a running softmax (m, l, o) of one head."""
    score_S = tl.where(seen_S, tl.sum(q_K[None, :] * key_SK.to(tl.float32), axis=1), float("-inf"))
    top = tl.maximum(m, tl.max(score_S, axis=0))
    p_S, shrink = tl.exp(score_S - top), tl.exp(m - top)
    o_K = o_K * shrink + tl.sum(p_S[:, None] * value_SK.to(tl.float32), axis=0)
    return top, l * shrink + tl.sum(p_S, axis=0), o_K


@triton.jit
def _fold_all(q_K, m, l, o_K, k_ptr, v_ptr, low, high, k_K, in_K, K: tl.constexpr, S: tl.constexpr):  # noqa: E741
    """Fold all the slots [low, high) of a cache. Asking for blocks ahead pays where heads are large alone."""
    STAGES: tl.constexpr = 1 if K <= 64 else 2
    for start in tl.range(0, high, S, num_stages=STAGES):
        key_SK, value_SK, seen_S = _block(k_ptr, v_ptr, start, low, high, k_K, in_K, K, S)
        m, l, o_K = _fold(q_K, m, l, o_K, key_SK, value_SK, seen_S)  # noqa: E741
    return m, l, o_K


@triton.jit(do_not_specialize=["step", "per_prompt", "prompt_slots", "new_slots", "cell_rows"])
def attend(
    qkv_ptr, q_norm_ptr, k_norm_ptr, cos_ptr, sin_ptr,
    prompt_k_ptr, prompt_v_ptr, padding_ptr,  # problems × groups × prompt slots × K
    new_k_ptr, new_v_ptr,  # rows × groups × new slots × K
    out_ptr, going_ptr, step, per_prompt, prompt_slots, new_slots, cell_rows, epsilon,
    H: tl.constexpr, G: tl.constexpr, K: tl.constexpr, KP: tl.constexpr, S: tl.constexpr,
    QK_NORM: tl.constexpr, OVERLAP: tl.constexpr, TYPE: tl.constexpr,
):  # fmt: skip
    """One row and head: norm and turn q and k, write k and v to the cache, attend to prompt and response.

    With OVERLAP, blocks of the cache are asked for before the vectors that meet them are ready, which pays while the
    GPU is not full.
    """
    begin(OVERLAP)
    row, head = tl.program_id(0), tl.program_id(1)
    group = head // (H // G)
    problem = row // per_prompt
    q_norm_ptr += row // cell_rows * K
    k_norm_ptr += row // cell_rows * K
    E: tl.constexpr = K // 2
    k_K = tl.arange(0, KP)
    in_K = k_K < K
    partner_K = tl.where(k_K < E, k_K + E, k_K - E)
    padding = tl.load(padding_ptr + problem)
    turn_K = (prompt_slots - padding + step) * E + k_K % E
    cos_K = tl.load(cos_ptr + turn_K, mask=in_K, other=0.0)
    sin_K = tl.load(sin_ptr + turn_K, mask=in_K, other=0.0)
    prompt = (problem * G + group).to(tl.int64) * prompt_slots * K
    prompt_k_ptr += prompt
    prompt_v_ptr += prompt
    if OVERLAP:  # prompts were read before the first token: like weights, they need no waiting
        key_SK, value_SK, seen_S = _block(prompt_k_ptr, prompt_v_ptr, 0, padding, prompt_slots, k_K, in_K, K, S)
    wait(OVERLAP)
    if tl.load(going_ptr + row) > 0:
        new = (row * G + group).to(tl.int64) * new_slots * K
        new_k_ptr += new
        new_v_ptr += new
        if OVERLAP:
            next_key_SK, next_value_SK, next_S = _block(new_k_ptr, new_v_ptr, 0, 0, step, k_K, in_K, K, S)
        here_ptr = qkv_ptr + row * (H + 2 * G) * K
        own_K = _turned(
            here_ptr + (H + group) * K, k_norm_ptr, cos_K, sin_K, k_K, partner_K, in_K, E, epsilon, K, QK_NORM, TYPE
        )
        own_value_K = tl.load(here_ptr + (H + G + group) * K + k_K, mask=in_K, other=0.0)
        if head % (H // G) == 0:
            tl.store(new_k_ptr + step * K + k_K, own_K, mask=in_K)
            tl.store(new_v_ptr + step * K + k_K, own_value_K, mask=in_K)
        q_K = _turned(here_ptr + head * K, q_norm_ptr, cos_K, sin_K, k_K, partner_K, in_K, E, epsilon, K, QK_NORM, TYPE)
        q_K = q_K.to(tl.float32) * (1.0 / tl.sqrt(K * 1.0))
        # The token itself comes first: the running maximum is a number from the start.
        m = tl.sum(q_K * own_K.to(tl.float32), axis=0)
        total, o_K = m * 0.0 + 1.0, own_value_K.to(tl.float32)
        if OVERLAP:
            m, total, o_K = _fold(q_K, m, total, o_K, key_SK, value_SK, seen_S)
            for start in range(S, prompt_slots, S):
                key_SK, value_SK, seen_S = _block(
                    prompt_k_ptr, prompt_v_ptr, start, padding, prompt_slots, k_K, in_K, K, S
                )
                m, total, o_K = _fold(q_K, m, total, o_K, key_SK, value_SK, seen_S)
            for start in range(S, step + S, S):
                m, total, o_K = _fold(q_K, m, total, o_K, next_key_SK, next_value_SK, next_S)
                next_key_SK, next_value_SK, next_S = _block(new_k_ptr, new_v_ptr, start, 0, step, k_K, in_K, K, S)
        else:
            m, total, o_K = _fold_all(
                q_K, m, total, o_K, prompt_k_ptr, prompt_v_ptr, padding, prompt_slots, k_K, in_K, K, S
            )
            m, total, o_K = _fold_all(q_K, m, total, o_K, new_k_ptr, new_v_ptr, 0, step, k_K, in_K, K, S)
        tl.store(out_ptr + (row * H + head) * K + k_K, (o_K / total).to(TYPE), mask=in_K)
