"""Attention over packed sequences: prompts, and the responses to them, one after another without padding.

The n responses to a problem share its prompt, whose tokens are computed once. Each prompt and each response is a
segment that attends causally to itself; a response also attends to its whole prompt. In bf16 on a GPU both parts run as
flash attention and are merged by their log-sum-exps; `_gathered` is the same in plain PyTorch, for everything else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from isocompute.core.arrays import Ints
from isocompute.rl.model.decoder import run_compiled

_ALIGN = 64
"""On a GPU the number of tokens is rounded up to a multiple of this, which keeps matrix products fast."""


@dataclass(frozen=True)
class Packing:
    """The layout of a packed pass: all prompts, then all responses, grouped by prompt, then padding (its own segment).

    `_P` prompts, `_B` responses. Lengths of responses are what the pass reads of them; some may be 0.
    """

    prompts_P: Ints
    """Tokens of each prompt."""
    responses_B: Ints
    prompt_B: Ints
    """The prompt of each response; never decreasing."""
    padding: int
    device: torch.device

    @classmethod
    def of(
        cls, prompts_P: Sequence[int] | Ints, responses_B: Sequence[int] | Ints, prompt_B: Ints, device: torch.device
    ) -> Packing:
        """The layout of these lengths."""
        prompts, responses = np.asarray(prompts_P, dtype=np.int64), np.asarray(responses_B, dtype=np.int64)
        padding = -int(prompts.sum() + responses.sum()) % _ALIGN if device.type == "cuda" else 0
        made = cls(prompts, responses, prompt_B, padding, device)
        if device.type == "cuda":
            _ = made.cumulative  # sent before the pass begins, since sending waits for the device
        return made

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts; the responses begin there."""
        return int(self.prompts_P.sum())

    @property
    def tokens(self) -> int:
        """Tokens of the pass without padding."""
        return self.prompt_tokens + int(self.responses_B.sum())

    @cached_property
    def segments(self) -> Ints:
        """Lengths of all segments."""
        return np.concatenate([self.prompts_P, self.responses_B, [self.padding]])

    @cached_property
    def starts_B(self) -> Ints:
        """Where each response begins."""
        return self.prompt_tokens + np.cumsum(self.responses_B) - self.responses_B

    @cached_property
    def positions(self) -> Ints:
        """The position of each token in its sequence."""
        ends = np.cumsum(self.segments)
        offset = np.concatenate([np.zeros_like(self.prompts_P), self.prompts_P[self.prompt_B], [0]])
        at: Ints = np.arange(ends[-1]) - np.repeat(ends - self.segments - offset, self.segments)
        return at

    @cached_property
    def last_of_prompt_P(self) -> Ints:
        """The last token of each prompt, which predicts the first of each response."""
        return np.cumsum(self.prompts_P) - 1

    @cached_property
    def cumulative(self) -> tuple[Tensor, Tensor, Tensor]:
        """Where segments, the responses of each prompt, and prompts begin and end, as flash attention wants it."""
        of_P = np.bincount(self.prompt_B, weights=self.responses_B, minlength=len(self.prompts_P)).astype(np.int64)
        segments = self.segments[self.segments > 0]
        lengths = (segments, of_P, self.prompts_P)
        ends = [np.concatenate([[0], np.cumsum(some)]).astype(np.int32) for some in lengths]
        a, b, c = (torch.from_numpy(each).to(self.device) for each in ends)
        return a, b, c

    @cached_property
    def most(self) -> tuple[int, int, int]:
        """The longest segment, the most response tokens of one prompt, the longest prompt."""
        of_P = np.bincount(self.prompt_B, weights=self.responses_B, minlength=len(self.prompts_P))
        return int(self.segments.max()), int(of_P.max()), int(self.prompts_P.max())

    @cached_property
    def gathering(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Rows of queries and of keys, what is added to their scores, and where each token's output lies."""
        rows = len(self.prompts_P) + len(self.responses_B) + (self.padding > 0)
        lengths = self.segments[:rows]
        starts = np.cumsum(lengths) - lengths
        prefix = np.zeros_like(lengths)
        prefix_start = np.zeros_like(lengths)
        some = slice(len(self.prompts_P), len(self.prompts_P) + len(self.responses_B))
        prefix[some] = self.prompts_P[self.prompt_B]
        prefix_start[some] = (np.cumsum(self.prompts_P) - self.prompts_P)[self.prompt_B]
        query, key = np.arange(lengths.max()), np.arange((prefix + lengths).max())
        before = key < prefix[:, None]
        own = key - prefix[:, None]
        queries = np.where(query < lengths[:, None], starts[:, None] + query, 0)
        keys = np.where(before, prefix_start[:, None] + key, starts[:, None] + own)
        keys = np.where(own < lengths[:, None], keys, 0)
        # A query beyond its row sees the first key, so that no row of the softmax is empty.
        mask = (own[:, None] <= query[None, :, None]) & (query < lengths[:, None])[..., None] | (key == 0)
        back = np.repeat(np.arange(rows) * len(query) - starts, lengths) + np.arange(lengths.sum())
        added = np.where(mask, 0.0, -np.inf).astype(np.float32)[:, None]
        made = [torch.from_numpy(each).to(self.device) for each in (queries, keys, added, back)]
        return made[0], made[1], made[2], made[3]


def packed_prompts(prompts: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor, Packing]:
    """Tokens and positions of a pass over prompts alone, and its layout."""
    packing = Packing.of([len(prompt) for prompt in prompts], [], np.zeros(0, dtype=np.int64), device)
    tokens = np.zeros(packing.tokens + packing.padding, dtype=np.int64)
    tokens[: packing.tokens] = np.concatenate([np.asarray(prompt) for prompt in prompts])
    sent = torch.from_numpy(np.stack([tokens, packing.positions])).to(device)
    return sent[0], sent[1], packing


class PackedAttention:
    """Attention of a packed pass."""

    def __init__(self, packing: Packing) -> None:
        self.packing = packing

    def __call__(self, _: int, qkv_TEK: Tensor, heads: int) -> Tensor:
        """Attend within segments, and from responses to their prompts."""
        if qkv_TEK.is_cuda and qkv_TEK.dtype == torch.bfloat16:
            out_THK: Tensor = _Flash.apply(qkv_TEK, heads, self.packing)  # type: ignore[no-untyped-call]
            return out_THK
        return _gathered(qkv_TEK, heads, self.packing)


def _gathered(qkv_TEK: Tensor, heads: int, packing: Packing) -> Tensor:
    """One row for each segment, padded; the keys of a response are those of its prompt and its own."""
    queries_BW, keys_BS, mask_B1WS, back_T = packing.gathering
    (rows, width), groups, size = queries_BW.shape, (qkv_TEK.shape[1] - heads) // 2, qkv_TEK.shape[2]
    q_THK, kv_TEK = torch.split(qkv_TEK, [heads, 2 * groups], dim=1)
    q_BWHK = q_THK.index_select(0, queries_BW.view(-1)).view(rows, width, heads, size)
    kv_BESK = kv_TEK.index_select(0, keys_BS.view(-1)).view(rows, -1, 2 * groups, size).transpose(1, 2)
    k_BGSK, v_BGSK = torch.split(kv_BESK, groups, dim=1)
    out_BHWK = F.scaled_dot_product_attention(
        q_BWHK.transpose(1, 2), k_BGSK, v_BGSK, attn_mask=mask_B1WS.to(q_BWHK.dtype), enable_gqa=heads != groups
    )
    return out_BHWK.transpose(1, 2).reshape(rows * width, heads, size).index_select(0, back_T)


def _merge(out_THK: Tensor, lse_HT: Tensor, more_THK: Tensor, more_lse_HT: Tensor) -> tuple[Tensor, Tensor]:
    """Attention to two sets of keys from the attention to each."""
    whole_HT = torch.logaddexp(lse_HT, more_lse_HT)
    share_TH1 = (lse_HT - whole_HT).exp().T[..., None]
    return (out_THK * share_TH1 + more_THK * (1.0 - share_TH1)).to(out_THK.dtype), whole_HT


class _Flash(torch.autograd.Function):
    """Two calls of flash attention, merged. Backward calls get the merged output and log-sum-exp, which makes each
    compute its share of the exact gradient."""

    @staticmethod
    def forward(ctx: Any, qkv_TEK: Tensor, heads: int, packing: Packing) -> Tensor:
        own, of_prompt, prompts = packing.cumulative
        longest, most, longest_prompt = packing.most
        q, k, v = _parts(qkv_TEK, heads)
        first, last = packing.prompt_tokens, packing.tokens
        forward = torch.ops.aten._flash_attention_forward
        out, lse_HT, state, unused, _ = forward(q, k, v, own, own, longest, longest, 0.0, True, False)
        if last > first:
            asked = (q[first:last], k[:first], v[:first], of_prompt, prompts, most, longest_prompt)
            more, more_lse_HT, *_ = forward(*asked, 0.0, False, False)
            merged = run_compiled(_merge, 0, out[first:last], lse_HT[:, first:last], more, more_lse_HT)
            out[first:last], lse_HT[:, first:last] = merged
        ctx.save_for_backward(qkv_TEK, out, lse_HT, state, unused)
        ctx.packing, ctx.heads = packing, heads
        return out  # type: ignore[no-any-return]  # the operator is untyped

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        qkv_TEK, out, lse_HT, state, unused = ctx.saved_tensors
        packing: Packing = ctx.packing
        own, of_prompt, prompts = packing.cumulative
        longest, most, longest_prompt = packing.most
        first, last = packing.prompt_tokens, packing.tokens
        grad, (q, k, v) = grads[0].contiguous(), _parts(qkv_TEK, ctx.heads)
        backward = torch.ops.aten._flash_attention_backward
        sizes = (own, own, longest, longest, 0.0, True)
        dq, dk, dv = backward(grad, q, k, v, out, lse_HT, *sizes, state, unused)
        if last > first:
            asked = (grad[first:last], q[first:last], k[:first], v[:first], out[first:last])
            sizes = (of_prompt, prompts, most, longest_prompt, 0.0, False)
            more_q, more_k, more_v = backward(*asked, lse_HT[:, first:last].contiguous(), *sizes, state, unused)
            dq[first:last] += more_q
            dk[:first] += more_k
            dv[:first] += more_v
        return torch.cat([dq, dk, dv], dim=1), None, None


def _parts(qkv_TEK: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    groups = (qkv_TEK.shape[1] - heads) // 2
    return qkv_TEK[:, :heads], qkv_TEK[:, heads : heads + groups], qkv_TEK[:, heads + groups :]
