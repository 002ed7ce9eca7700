"""Triton kernels for attention over whole short sequences, forward and backward, prompts shared.

A training pass reads every prompt once and every response behind its own prompt. One program has one sequence and one
key-value head: it norms and turns q and k itself (QK norm, RoPE), so that nothing but the outputs of the products that
stand before and after attention is ever in memory, and a backward pass starts from the same input again.

Numerics are those of decoding (`kernels.attend`): q and k are rounded where `Decoder` rounds them, softmax weights are
not rounded at all. Tensor cores take bf16, so a weight goes in as two bf16 numbers, the second the rest of the first.

Where several cells stand in one batch (`attention.Layout`), a cell's tokens follow those of the cell before, and its
norms' weights too.

A head is kept as two halves, the channels that RoPE turns into each other. Names: T own tokens of a sequence, S slots
of the prompt before them, E channels of half a head, N tokens of a batch; a `P` at the end pads to a power of two.
"""

# Triton's language is its own: annotations of a kernel's arguments mean constants, and there are many of both.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["attend_sequences", "attend_sequences_backward"]

_SIZES = ["tokens", "first_prompt", "per_prompt", "slots", "problems"]
"""Of a batch: no kernel is compiled anew for them."""


@triton.jit
def _normed(ptr, norm_ptr, at_TE, in_TE, e_E, E, epsilon, QK_NORM: tl.constexpr, TYPE: tl.constexpr):
    """Both halves of a head, as they are before RoPE, and one over the root mean square."""
    a_TE = tl.load(ptr + at_TE, mask=in_TE, other=0.0).to(tl.float32)
    b_TE = tl.load(ptr + at_TE + E, mask=in_TE, other=0.0).to(tl.float32)
    scale_T = tl.rsqrt(tl.sum(a_TE * a_TE + b_TE * b_TE, axis=1) / (2 * E) + epsilon)
    if QK_NORM:
        in_E = e_E < E
        left_E = tl.load(norm_ptr + e_E, mask=in_E, other=0.0).to(tl.float32)
        right_E = tl.load(norm_ptr + E + e_E, mask=in_E, other=0.0).to(tl.float32)
        a_TE = (left_E[None, :] * (a_TE * scale_T[:, None])).to(TYPE).to(tl.float32)
        b_TE = (right_E[None, :] * (b_TE * scale_T[:, None])).to(TYPE).to(tl.float32)
    return a_TE, b_TE, scale_T


@triton.jit
def _turned(ptr, norm_ptr, cos_TE, sin_TE, at_TE, in_TE, e_E, E, epsilon, QK_NORM: tl.constexpr, TYPE: tl.constexpr):
    """Both halves of a head, normed and rotated."""
    a_TE, b_TE, _ = _normed(ptr, norm_ptr, at_TE, in_TE, e_E, E, epsilon, QK_NORM, TYPE)
    return (a_TE * cos_TE - b_TE * sin_TE).to(TYPE), (b_TE * cos_TE + a_TE * sin_TE).to(TYPE)


@triton.jit
def _turned_back(
    da_TE, db_TE, ptr, norm_ptr, cos_TE, sin_TE, at_TE, in_TE, e_E, E, epsilon,
    QK_NORM: tl.constexpr, TYPE: tl.constexpr,
):  # fmt: skip
    """Gradients of `_turned`: those of its input, and those of the norm's weights summed over tokens."""
    one_TE, two_TE = da_TE * cos_TE + db_TE * sin_TE, db_TE * cos_TE - da_TE * sin_TE
    left_grad_E, right_grad_E = tl.sum(one_TE, axis=0), tl.sum(two_TE, axis=0)
    if QK_NORM:
        in_E = e_E < E
        left_E = tl.load(norm_ptr + e_E, mask=in_E, other=0.0).to(tl.float32)
        right_E = tl.load(norm_ptr + E + e_E, mask=in_E, other=0.0).to(tl.float32)
        a_TE, b_TE, scale_T = _normed(ptr, norm_ptr, at_TE, in_TE, e_E, E, epsilon, False, TYPE)
        a_TE, b_TE = a_TE * scale_T[:, None], b_TE * scale_T[:, None]
        left_grad_E, right_grad_E = tl.sum(one_TE * a_TE, axis=0), tl.sum(two_TE * b_TE, axis=0)
        one_TE, two_TE = one_TE * left_E[None, :], two_TE * right_E[None, :]
        mean_T = tl.sum(one_TE * a_TE + two_TE * b_TE, axis=1) / (2 * E)
        one_TE = (one_TE - a_TE * mean_T[:, None]) * scale_T[:, None]
        two_TE = (two_TE - b_TE * mean_T[:, None]) * scale_T[:, None]
    return one_TE, two_TE, left_grad_E, right_grad_E


@triton.jit
def _weighted(p_TS, v_SE, TYPE: tl.constexpr):
    """p · v with unrounded weights: as a bf16 number and its rest, where the values are bf16."""
    high_TS = p_TS.to(TYPE)
    out_TE = tl.dot(high_TS, v_SE, input_precision="ieee")
    if tl.bfloat16 == TYPE:
        out_TE = tl.dot((p_TS - high_TS.to(tl.float32)).to(TYPE), v_SE, out_TE)
    return out_TE


@triton.jit
def _scores(qa_TE, qb_TE, ka_SE, kb_SE, scale, seen_TS):
    """q · k of both halves, minus infinity where nothing is to be seen."""
    out_TS = tl.dot(qa_TE, tl.trans(ka_SE), input_precision="ieee")
    out_TS = tl.dot(qb_TE, tl.trans(kb_SE), out_TS, input_precision="ieee")
    return tl.where(seen_TS, out_TS * scale, float("-inf"))


@triton.jit
def _angles(cos_ptr, sin_ptr, position_T, in_TE, e_E, E):
    at_TE = position_T[:, None] * E + e_E[None, :]
    return tl.load(cos_ptr + at_TE, mask=in_TE, other=0.0), tl.load(sin_ptr + at_TE, mask=in_TE, other=0.0)


@triton.jit
def _places(first, padding, tokens, slots, e_E, E, C, TP: tl.constexpr, PREFIX: tl.constexpr):
    """A sequence's own tokens, from `first` on: addresses, positions, and which of them see which.

    With a prefix it is a response, whose tokens see all before them. Without, it is a left-padded prompt; padding sees
    itself, so that no softmax is empty.
    """
    t_T = tl.arange(0, TP)
    if PREFIX:
        position_T, low = t_T + slots - padding, 0
    else:
        position_T, low = tl.maximum(t_T - padding, 0), padding
    in_TE = (t_T < tokens)[:, None] & (e_E < E)[None, :]
    at_TE = (first + t_T).to(tl.int64)[:, None] * C + e_E[None, :]
    out_TT = (t_T[None, :] <= t_T[:, None]) & (t_T[None, :] >= low) & (t_T[None, :] < tokens)
    out_TT = out_TT | (t_T[None, :] == t_T[:, None])
    return t_T, position_T, in_TE, at_TE, out_TT


@triton.jit
def _firsts(row, problem, tokens, first_prompt, per_prompt, slots, problems, PREFIX: tl.constexpr):
    """The cell of a sequence, where the sequence begins in the flat array, and where its prompt does.

    `first_prompt` counts from the beginning of a cell, which has this many problems.
    """
    cell = problem // problems
    start = cell * (first_prompt + problems * slots)
    prompt = start + first_prompt + (problem - cell * problems) * slots
    own = start + (row - cell * problems * per_prompt) * tokens if PREFIX else prompt
    return cell, own, prompt


@triton.jit(do_not_specialize=_SIZES)
def attend_sequences(
    qkv_ptr, q_norm_ptr, k_norm_ptr, cos_ptr, sin_ptr, padding_ptr, out_ptr,
    tokens, first_prompt, per_prompt, slots, problems, epsilon,
    H: tl.constexpr, G: tl.constexpr, E: tl.constexpr, EP: tl.constexpr, TP: tl.constexpr, SP: tl.constexpr,
    PREFIX: tl.constexpr, QK_NORM: tl.constexpr, TYPE: tl.constexpr,
):  # fmt: skip
    """Attention of one sequence's tokens to themselves and, with a prefix, to their prompt; one group of heads."""
    row, group = tl.program_id(0), tl.program_id(1)
    C: tl.constexpr = (H + 2 * G) * 2 * E
    scale = 1.0 / tl.sqrt(2.0 * E)
    fold = scale * 1.4426950408889634  # scores in powers of two
    problem = row // per_prompt if PREFIX else row
    padding = tl.load(padding_ptr + problem)
    e_E = tl.arange(0, EP)
    cell, first, prompt = _firsts(row, problem, tokens, first_prompt, per_prompt, slots, problems, PREFIX)
    q_norm_ptr += cell * 2 * E
    k_norm_ptr += cell * 2 * E
    t_T, position_T, in_TE, at_TE, own_TT = _places(first, padding, tokens, slots, e_E, E, C, TP, PREFIX)
    cos_TE, sin_TE = _angles(cos_ptr, sin_ptr, position_T, in_TE, e_E, E)
    k_ptr, v_ptr = qkv_ptr + (H + group) * 2 * E, qkv_ptr + (H + G + group) * 2 * E
    ka_TE, kb_TE = _turned(k_ptr, k_norm_ptr, cos_TE, sin_TE, at_TE, in_TE, e_E, E, epsilon, QK_NORM, TYPE)
    va_TE = tl.load(v_ptr + at_TE, mask=in_TE, other=0.0)
    vb_TE = tl.load(v_ptr + at_TE + E, mask=in_TE, other=0.0)
    if PREFIX:
        s_S = tl.arange(0, SP)
        in_SE = ((s_S >= padding) & (s_S < slots))[:, None] & (e_E < E)[None, :]
        at_SE = (prompt + s_S).to(tl.int64)[:, None] * C + e_E[None, :]
        cos_SE, sin_SE = _angles(cos_ptr, sin_ptr, s_S - padding, in_SE, e_E, E)
        pa_SE, pb_SE = _turned(k_ptr, k_norm_ptr, cos_SE, sin_SE, at_SE, in_SE, e_E, E, epsilon, QK_NORM, TYPE)
        wa_SE = tl.load(v_ptr + at_SE, mask=in_SE, other=0.0)
        wb_SE = tl.load(v_ptr + at_SE + E, mask=in_SE, other=0.0)
        before_TS = ((s_S >= padding) & (s_S < slots))[None, :] & (t_T >= 0)[:, None]
    for sub in range(H // G):
        head = group * (H // G) + sub
        qa_TE, qb_TE = _turned(
            qkv_ptr + head * 2 * E, q_norm_ptr, cos_TE, sin_TE, at_TE, in_TE, e_E, E, epsilon, QK_NORM, TYPE
        )
        own = _scores(qa_TE, qb_TE, ka_TE, kb_TE, fold, own_TT)
        top_T = tl.max(own, axis=1)
        if PREFIX:
            before = _scores(qa_TE, qb_TE, pa_SE, pb_SE, fold, before_TS)
            top_T = tl.maximum(top_T, tl.max(before, axis=1))
            before = tl.exp2(before - top_T[:, None])
        own = tl.exp2(own - top_T[:, None])
        sum_T = tl.sum(own, axis=1)
        oa_TE, ob_TE = _weighted(own, va_TE, TYPE), _weighted(own, vb_TE, TYPE)
        if PREFIX:
            sum_T += tl.sum(before, axis=1)
            oa_TE += _weighted(before, wa_SE, TYPE)
            ob_TE += _weighted(before, wb_SE, TYPE)
        to_TE = (first + t_T).to(tl.int64)[:, None] * (H * 2 * E) + head * 2 * E + e_E[None, :]
        share_T = 1.0 / sum_T
        tl.store(out_ptr + to_TE, (oa_TE * share_T[:, None]).to(TYPE), mask=in_TE)
        tl.store(out_ptr + to_TE + E, (ob_TE * share_T[:, None]).to(TYPE), mask=in_TE)


@triton.jit(do_not_specialize=_SIZES)
def attend_sequences_backward(  # noqa: PLR0915 - what a kernel keeps in registers is one function
    qkv_ptr, q_norm_ptr, k_norm_ptr, cos_ptr, sin_ptr, padding_ptr, grad_ptr,
    out_ptr,  # gradient of qkv
    prefix_ptr,  # responses × groups × slots × (k, v): what a response adds to the gradient of its prompt
    norms_ptr,  # a cell's responses, then its prompts, × groups × (q, k) × head: gradients of the norms' weights
    tokens, first_prompt, per_prompt, slots, problems, epsilon,
    H: tl.constexpr, G: tl.constexpr, E: tl.constexpr, EP: tl.constexpr, TP: tl.constexpr, SP: tl.constexpr,
    PREFIX: tl.constexpr, QK_NORM: tl.constexpr, TYPE: tl.constexpr,
):  # fmt: skip
    """The gradient of `attend_sequences`; prompts come after their responses, whose parts they add up."""
    row, group = tl.program_id(0), tl.program_id(1)
    C: tl.constexpr = (H + 2 * G) * 2 * E
    scale = 1.0 / tl.sqrt(2.0 * E)
    fold = scale * 1.4426950408889634  # scores in powers of two
    problem = row // per_prompt if PREFIX else row
    padding = tl.load(padding_ptr + problem)
    e_E = tl.arange(0, EP)
    cell, first, prompt = _firsts(row, problem, tokens, first_prompt, per_prompt, slots, problems, PREFIX)
    q_norm_ptr += cell * 2 * E
    k_norm_ptr += cell * 2 * E
    t_T, position_T, in_TE, at_TE, own_TT = _places(first, padding, tokens, slots, e_E, E, C, TP, PREFIX)
    cos_TE, sin_TE = _angles(cos_ptr, sin_ptr, position_T, in_TE, e_E, E)
    k_ptr, v_ptr = qkv_ptr + (H + group) * 2 * E, qkv_ptr + (H + G + group) * 2 * E
    ka_TE, kb_TE = _turned(k_ptr, k_norm_ptr, cos_TE, sin_TE, at_TE, in_TE, e_E, E, epsilon, QK_NORM, TYPE)
    va_TE = tl.load(v_ptr + at_TE, mask=in_TE, other=0.0)
    vb_TE = tl.load(v_ptr + at_TE + E, mask=in_TE, other=0.0)
    dka_TE, dkb_TE = tl.zeros([TP, EP], dtype=tl.float32), tl.zeros([TP, EP], dtype=tl.float32)
    dva_TE, dvb_TE = tl.zeros([TP, EP], dtype=tl.float32), tl.zeros([TP, EP], dtype=tl.float32)
    left_E, right_E = tl.zeros([EP], dtype=tl.float32), tl.zeros([EP], dtype=tl.float32)
    s_S = tl.arange(0, SP)
    in_SE = ((s_S >= padding) & (s_S < slots))[:, None] & (e_E < E)[None, :]
    if PREFIX:
        at_SE = (prompt + s_S).to(tl.int64)[:, None] * C + e_E[None, :]
        cos_SE, sin_SE = _angles(cos_ptr, sin_ptr, s_S - padding, in_SE, e_E, E)
        pa_SE, pb_SE = _turned(k_ptr, k_norm_ptr, cos_SE, sin_SE, at_SE, in_SE, e_E, E, epsilon, QK_NORM, TYPE)
        wa_SE = tl.load(v_ptr + at_SE, mask=in_SE, other=0.0)
        wb_SE = tl.load(v_ptr + at_SE + E, mask=in_SE, other=0.0)
        before_TS = ((s_S >= padding) & (s_S < slots))[None, :] & (t_T >= 0)[:, None]
        dpa_SE, dpb_SE = tl.zeros([SP, EP], dtype=tl.float32), tl.zeros([SP, EP], dtype=tl.float32)
        dwa_SE, dwb_SE = tl.zeros([SP, EP], dtype=tl.float32), tl.zeros([SP, EP], dtype=tl.float32)
    for sub in range(H // G):
        head = group * (H // G) + sub
        q_ptr = qkv_ptr + head * 2 * E
        qa_TE, qb_TE = _turned(q_ptr, q_norm_ptr, cos_TE, sin_TE, at_TE, in_TE, e_E, E, epsilon, QK_NORM, TYPE)
        own = _scores(qa_TE, qb_TE, ka_TE, kb_TE, fold, own_TT)
        top_T = tl.max(own, axis=1)
        if PREFIX:
            before = _scores(qa_TE, qb_TE, pa_SE, pb_SE, fold, before_TS)
            top_T = tl.maximum(top_T, tl.max(before, axis=1))
            before = tl.exp2(before - top_T[:, None])
        own = tl.exp2(own - top_T[:, None])
        sum_T = tl.sum(own, axis=1)
        if PREFIX:
            sum_T += tl.sum(before, axis=1)
        share_T = 1.0 / sum_T
        if PREFIX:
            before *= share_T[:, None]
        own *= share_T[:, None]
        to_TE = (first + t_T).to(tl.int64)[:, None] * (H * 2 * E) + head * 2 * E + e_E[None, :]
        ga_TE = tl.load(grad_ptr + to_TE, mask=in_TE, other=0.0)
        gb_TE = tl.load(grad_ptr + to_TE + E, mask=in_TE, other=0.0)
        share_TT = tl.trans(own.to(TYPE))
        dva_TE = tl.dot(share_TT, ga_TE, dva_TE, input_precision="ieee")
        dvb_TE = tl.dot(share_TT, gb_TE, dvb_TE, input_precision="ieee")
        d_own = tl.dot(ga_TE, tl.trans(va_TE), input_precision="ieee")
        d_own = tl.dot(gb_TE, tl.trans(vb_TE), d_own, input_precision="ieee")
        mean_T = tl.sum(own * d_own, axis=1)
        if PREFIX:
            share_ST = tl.trans(before.to(TYPE))
            dwa_SE = tl.dot(share_ST, ga_TE, dwa_SE, input_precision="ieee")
            dwb_SE = tl.dot(share_ST, gb_TE, dwb_SE, input_precision="ieee")
            d_before = tl.dot(ga_TE, tl.trans(wa_SE), input_precision="ieee")
            d_before = tl.dot(gb_TE, tl.trans(wb_SE), d_before, input_precision="ieee")
            mean_T += tl.sum(before * d_before, axis=1)
        own = (own * (d_own - mean_T[:, None]) * scale).to(TYPE)
        dqa_TE = tl.dot(own, ka_TE, input_precision="ieee")
        dqb_TE = tl.dot(own, kb_TE, input_precision="ieee")
        dka_TE = tl.dot(tl.trans(own), qa_TE, dka_TE, input_precision="ieee")
        dkb_TE = tl.dot(tl.trans(own), qb_TE, dkb_TE, input_precision="ieee")
        if PREFIX:
            before = (before * (d_before - mean_T[:, None]) * scale).to(TYPE)
            dqa_TE = tl.dot(before, pa_SE, dqa_TE, input_precision="ieee")
            dqb_TE = tl.dot(before, pb_SE, dqb_TE, input_precision="ieee")
            dpa_SE = tl.dot(tl.trans(before), qa_TE, dpa_SE, input_precision="ieee")
            dpb_SE = tl.dot(tl.trans(before), qb_TE, dpb_SE, input_precision="ieee")
        dqa_TE, dqb_TE, more_left_E, more_right_E = _turned_back(
            dqa_TE, dqb_TE, q_ptr, q_norm_ptr, cos_TE, sin_TE, at_TE, in_TE, e_E, E, epsilon, QK_NORM, TYPE
        )
        left_E += more_left_E
        right_E += more_right_E
        tl.store(out_ptr + head * 2 * E + at_TE, dqa_TE.to(TYPE), mask=in_TE)
        tl.store(out_ptr + head * 2 * E + at_TE + E, dqb_TE.to(TYPE), mask=in_TE)
    if PREFIX:
        here_SE = ((row * G + group).to(tl.int64) * slots + s_S)[:, None] * 4 * E + e_E[None, :]
        tl.store(prefix_ptr + here_SE, dpa_SE, mask=in_SE)
        tl.store(prefix_ptr + here_SE + E, dpb_SE, mask=in_SE)
        tl.store(prefix_ptr + here_SE + 2 * E, dwa_SE, mask=in_SE)
        tl.store(prefix_ptr + here_SE + 3 * E, dwb_SE, mask=in_SE)
    else:
        seen_TE = in_TE & (t_T >= padding)[:, None]
        for response in range(per_prompt):
            here_TE = (((row * per_prompt + response) * G + group).to(tl.int64) * slots + t_T)[:, None] * 4 * E
            here_TE += e_E[None, :]
            dka_TE += tl.load(prefix_ptr + here_TE, mask=seen_TE, other=0.0)
            dkb_TE += tl.load(prefix_ptr + here_TE + E, mask=seen_TE, other=0.0)
            dva_TE += tl.load(prefix_ptr + here_TE + 2 * E, mask=seen_TE, other=0.0)
            dvb_TE += tl.load(prefix_ptr + here_TE + 3 * E, mask=seen_TE, other=0.0)
    tl.store(out_ptr + (H + G + group) * 2 * E + at_TE, dva_TE.to(TYPE), mask=in_TE)
    tl.store(out_ptr + (H + G + group) * 2 * E + at_TE + E, dvb_TE.to(TYPE), mask=in_TE)
    dka_TE, dkb_TE, k_left_E, k_right_E = _turned_back(
        dka_TE, dkb_TE, k_ptr, k_norm_ptr, cos_TE, sin_TE, at_TE, in_TE, e_E, E, epsilon, QK_NORM, TYPE
    )
    tl.store(out_ptr + (H + group) * 2 * E + at_TE, dka_TE.to(TYPE), mask=in_TE)
    tl.store(out_ptr + (H + group) * 2 * E + at_TE + E, dkb_TE.to(TYPE), mask=in_TE)
    if QK_NORM:
        place = row + cell * problems if PREFIX else row + (cell + 1) * problems * per_prompt
        to_E = norms_ptr + (place * G + group) * 4 * E + e_E
        in_E = e_E < E
        tl.store(to_E, left_E, mask=in_E)
        tl.store(to_E + E, right_E, mask=in_E)
        tl.store(to_E + 2 * E, k_left_E, mask=in_E)
        tl.store(to_E + 3 * E, k_right_E, mask=in_E)
