"""Triton kernels behind the head: log-probs of chosen tokens and entropies from logits, and the gradient."""

# Triton's language is its own: annotations of a kernel's arguments mean constants, and there are many of both.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["score_rows", "score_rows_backward"]


@triton.jit(do_not_specialize=["rows"])
def score_rows(
    logits_ptr, tokens_ptr, logprobs_ptr, entropies_ptr, tops_ptr, logs_ptr, rows, temperature,
    VOCABULARY: tl.constexpr, WIDTH: tl.constexpr, R: tl.constexpr, V: tl.constexpr,
):  # fmt: skip
    """R rows, V columns at a time: the softmax's maximum m and sum l, and t, the sum of its weights times (logit - m).

    An entropy of log l - t / l loses nothing to large logits, and neither does a gradient that knows m and log l apart.
    Rows have WIDTH columns, of which the last may be no tokens.
    """
    row_R = tl.program_id(0) * R + tl.arange(0, R)
    in_R = row_R < rows
    token_R = tl.load(tokens_ptr + row_R, mask=in_R, other=0)
    here_R = logits_ptr + row_R.to(tl.int64) * WIDTH
    m_R = tl.full([R], -1e30, dtype=tl.float32)  # below any logit, and a number
    l_R, t_R = tl.zeros([R], dtype=tl.float32), tl.zeros([R], dtype=tl.float32)
    chosen_R = tl.zeros([R], dtype=tl.float32)
    for start in range(0, VOCABULARY, V):
        v_V = start + tl.arange(0, V)
        in_RV = in_R[:, None] & (v_V < VOCABULARY)[None, :]
        x_RV = tl.load(here_R[:, None] + v_V[None, :], mask=in_RV, other=-1e30).to(tl.float32) / temperature
        chosen_R += tl.sum(tl.where(v_V[None, :] == token_R[:, None], x_RV, 0.0), axis=1)
        top_R = tl.maximum(m_R, tl.max(x_RV, axis=1))
        shrink_R = tl.exp(m_R - top_R)
        behind_RV = tl.where(in_RV, x_RV - top_R[:, None], 0.0)
        weight_RV = tl.where(in_RV, tl.exp(behind_RV), 0.0)
        t_R = shrink_R * (t_R + l_R * (m_R - top_R)) + tl.sum(weight_RV * behind_RV, axis=1)
        l_R = shrink_R * l_R + tl.sum(weight_RV, axis=1)
        m_R = top_R
    l_R = tl.where(in_R, l_R, 1.0)
    log_R = tl.log(l_R)
    tl.store(logprobs_ptr + row_R, (chosen_R - m_R) - log_R, mask=in_R)
    tl.store(entropies_ptr + row_R, log_R - t_R / l_R, mask=in_R)
    tl.store(tops_ptr + row_R, m_R, mask=in_R)
    tl.store(logs_ptr + row_R, log_R, mask=in_R)


@triton.jit(do_not_specialize=["rows"])
def score_rows_backward(
    logits_ptr, tokens_ptr, entropies_ptr, tops_ptr, logs_ptr, logprobs_grad_ptr, entropies_grad_ptr, out_ptr,
    rows, temperature,
    VOCABULARY: tl.constexpr, WIDTH: tl.constexpr, R: tl.constexpr, V: tl.constexpr, REST: tl.constexpr,
    TYPE: tl.constexpr,
):  # fmt: skip
    """The gradient of the logits, zero beyond the vocabulary; with REST what rounding it to TYPE leaves stands in as
    many columns behind.
    """
    row_R = tl.program_id(0) * R + tl.arange(0, R)
    in_R = row_R < rows
    token_R = tl.load(tokens_ptr + row_R, mask=in_R, other=0)
    top_R = tl.load(tops_ptr + row_R, mask=in_R, other=0.0)
    log_R = tl.load(logs_ptr + row_R, mask=in_R, other=0.0)
    entropy_R = tl.load(entropies_ptr + row_R, mask=in_R, other=0.0)
    a_R = tl.load(logprobs_grad_ptr + row_R, mask=in_R, other=0.0) / temperature
    b_R = tl.load(entropies_grad_ptr + row_R, mask=in_R, other=0.0) / temperature
    here_R = logits_ptr + row_R.to(tl.int64) * WIDTH
    to_R = out_ptr + row_R.to(tl.int64) * (2 * WIDTH if REST else WIDTH)
    for start in range(0, WIDTH, V):
        v_V = start + tl.arange(0, V)
        in_RV = in_R[:, None] & (v_V < VOCABULARY)[None, :]
        x_RV = tl.load(here_R[:, None] + v_V[None, :], mask=in_RV, other=0.0).to(tl.float32) / temperature
        behind_RV = tl.where(in_RV, (x_RV - top_R[:, None]) - log_R[:, None], 0.0)
        p_RV = tl.where(in_RV, tl.exp(behind_RV), 0.0)
        d_RV = tl.where(v_V[None, :] == token_R[:, None], a_R[:, None], 0.0)
        d_RV -= p_RV * (a_R[:, None] + b_R[:, None] * (behind_RV + entropy_R[:, None]))
        high_RV = d_RV.to(TYPE)
        out_RV = in_R[:, None] & (v_V < WIDTH)[None, :]
        tl.store(to_R[:, None] + v_V[None, :], high_RV, mask=out_RV)
        if REST:
            tl.store(to_R[:, None] + WIDTH + v_V[None, :], (d_RV - high_RV.to(tl.float32)).to(TYPE), mask=out_RV)
