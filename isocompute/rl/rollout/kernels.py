"""The two kernels of the captured engine, in Triton, each with its plain twin in PyTorch.

`attend`: one decode step of attention, with a row's own keys and values in its slot and its prompt's stored once for
all rows of the group; each row reads exactly the tokens it has. `advance`: draw each row's next token from its logits,
in one pass over the vocabulary, record it, and see whether the row has ended.

Shapes: `_A` rows of a step, `_R` slots (the last one is for padding), `_Q` slots of prompts, `_S` tokens of a slot.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from isocompute.rl.model.config import DecoderConfig
from isocompute.rl.rollout.engine import SamplingSettings, draw, uniform_at

AVAILABLE = importlib.util.find_spec("triton") is not None
"""Without Triton there are no kernels; the twins run everywhere."""
if AVAILABLE or TYPE_CHECKING:
    import triton
    import triton.language as tl


@dataclass
class State:
    """Everything about the rows in flight that lives on the device."""

    prompt_kv_LQESK: Tensor
    """Of prompts: the key heads, then the value heads."""
    own_kv_LRESK: Tensor
    """Of responses."""
    prompt_R: Tensor
    prompt_length_R: Tensor
    length_R: Tensor
    """Tokens of the response so far; the last one is not yet in the cache."""
    token_R: Tensor
    stream_R: Tensor
    temperature_R: Tensor
    limit_R: Tensor
    interrupt_at_R: Tensor
    """Where a phrase is forced; -1 where none will be."""
    alive_R: Tensor
    stopped_R: Tensor
    tokens_RS: Tensor
    logprobs_RS: Tensor
    versions_RS: Tensor
    forced_RS: Tensor
    version: Tensor
    stops: Tensor
    phrase: Tensor

    @classmethod
    def empty(
        cls,
        config: DecoderConfig,
        settings: SamplingSettings,
        *,
        rows: int,
        prompts: int,
        prompt_tokens: int,
        like: Tensor,
    ) -> State:
        """Room for so many rows and prompts."""
        layers, groups, size = config.num_hidden_layers, config.num_key_value_heads, config.head_dim
        slots, new = rows + 1, settings.max_new_tokens
        marks = (slots, new) if settings.keep_versions else (1, 1)
        forced = (slots, new) if settings.interruption is not None else (1, 1)

        phrase = (-1,) if settings.interruption is None else settings.interruption.phrase

        def integers(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=like.device)

        return cls(
            prompt_kv_LQESK=like.new_zeros((layers, prompts, 2 * groups, prompt_tokens, size)),
            own_kv_LRESK=like.new_zeros((layers, slots, 2 * groups, new, size)),
            prompt_R=integers(slots),
            prompt_length_R=integers(slots),
            length_R=integers(slots),
            token_R=integers(slots, dtype=torch.int64),
            stream_R=integers(slots, dtype=torch.int64),
            temperature_R=torch.ones(slots, device=like.device),
            limit_R=integers(slots),
            interrupt_at_R=integers(slots) - 1,
            alive_R=integers(slots),
            stopped_R=integers(slots),
            tokens_RS=integers(slots, new),
            logprobs_RS=torch.zeros((slots, new), device=like.device),
            versions_RS=integers(*marks),
            forced_RS=integers(*forced, dtype=torch.int8),
            version=integers(1),
            stops=torch.tensor(settings.stop_tokens or (-1,), dtype=torch.int64, device=like.device),
            phrase=torch.tensor(phrase, dtype=torch.int64, device=like.device),
        )


# Attention


def attend_plain(state: State, layer: int, rows_A: Tensor, qkv_AEK: Tensor, heads: int) -> Tensor:
    """The twin of `attend`."""
    at_A = (state.length_R[rows_A] - 1).clamp(min=0).long()
    prompts_QESK, own_RESK = state.prompt_kv_LQESK[layer], state.own_kv_LRESK[layer]
    own_RESK[rows_A, :, at_A] = qkv_AEK[:, heads:]
    kv_AESK = torch.cat([prompts_QESK[state.prompt_R[rows_A].long()], own_RESK[rows_A]], dim=2)
    width, column_S = prompts_QESK.shape[2], torch.arange(kv_AESK.shape[2], device=rows_A.device)
    prompt_AS = column_S < state.prompt_length_R[rows_A][:, None].clamp(min=1)
    own_AS = (column_S >= width) & (column_S - width <= at_A[:, None])
    mask_A11S = (prompt_AS & (column_S < width) | own_AS)[:, None, None]
    k_AGSK, v_AGSK = kv_AESK.chunk(2, dim=1)
    return F.scaled_dot_product_attention(
        qkv_AEK[:, :heads, None], k_AGSK, v_AGSK, attn_mask=mask_A11S, enable_gqa=heads != k_AGSK.shape[1]
    )[:, :, 0]


def attend(state: State, layer: int, rows_A: Tensor, qkv_AEK: Tensor, heads: int) -> Tensor:
    """Append each row's new key and value, and attend to its prompt and its response."""
    count, both, size = qkv_AEK.shape
    groups = (both - heads) // 2
    out_AHK = qkv_AEK.new_empty((count, heads, size))
    _attend_kernel[(count, groups)](
        qkv_AEK.contiguous(),
        out_AHK,
        state.prompt_kv_LQESK[layer],
        state.own_kv_LRESK[layer],
        rows_A,
        state.prompt_R,
        state.prompt_length_R,
        state.length_R,
        state.alive_R,
        size**-0.5 * 1.4426950408889634,
        GROUPS=groups,
        SHARED=heads // groups,
        HEADS=max(16, triton.next_power_of_2(heads // groups)),
        SIZE=size,
        PROMPT_SLOT=state.prompt_kv_LQESK.shape[3],
        OWN_SLOT=state.own_kv_LRESK.shape[3],
        BLOCK=32 if size <= 64 else 16,  # the fastest of 48 forms on an H200, for three shapes of models
        EXACT=qkv_AEK.dtype == torch.float32,
        num_warps=1,
        num_stages=3,
    )
    return out_AHK


# Drawing and bookkeeping


def advance_plain(
    state: State, settings: SamplingSettings, rows_A: Tensor, logits_PV: Tensor, source_A: Tensor
) -> None:
    """The twin of `advance`."""
    alive_A = state.alive_R[rows_A] > 0
    rows_A, source_A = rows_A[alive_A], source_A[alive_A]
    if not len(rows_A):
        return
    at_A = state.length_R[rows_A].long()
    uniform_A = uniform_at(state.stream_R[rows_A], at_A)
    tokens_A, logprobs_A = draw(logits_PV[source_A], state.temperature_R[rows_A], uniform_A)
    if (interruption := settings.interruption) is not None:
        start_A = state.interrupt_at_R[rows_A].long()
        tokens_A, forced_A = interruption.force(tokens_A, at_A, start_A, start_A < 0)
        logprobs_A = torch.where(forced_A, 0.0, logprobs_A)
        state.forced_RS[rows_A, at_A] = forced_A.to(torch.int8)
        free_A = ~forced_A & interruption.ends_thinking(tokens_A, at_A, start_A)
        state.interrupt_at_R[rows_A[free_A]] = -1
        state.limit_R[rows_A[free_A]] = settings.max_new_tokens
    state.tokens_RS[rows_A, at_A] = tokens_A.to(torch.int32)
    state.logprobs_RS[rows_A, at_A] = logprobs_A
    if settings.keep_versions:
        state.versions_RS[rows_A, at_A] = state.version
    stopped_A = torch.isin(tokens_A, state.stops)
    state.token_R[rows_A] = tokens_A
    state.length_R[rows_A] = (at_A + 1).to(torch.int32)
    state.stopped_R[rows_A] = stopped_A.to(torch.int32)
    state.alive_R[rows_A] = (~stopped_A & (at_A + 1 < state.limit_R[rows_A])).to(torch.int32)


def advance(state: State, settings: SamplingSettings, rows_A: Tensor, logits_PV: Tensor, source_A: Tensor) -> None:
    """Draw, record and advance each row that is alive; `source_A` says which logits are whose."""
    interruption, vocabulary = settings.interruption, logits_PV.shape[1]
    block = min(4096, triton.next_power_of_2(vocabulary))
    _advance_kernel[(len(rows_A),)](
        logits_PV,
        rows_A,
        source_A,
        state.length_R,
        state.token_R,
        state.stream_R,
        state.temperature_R,
        state.limit_R,
        state.interrupt_at_R,
        state.alive_R,
        state.stopped_R,
        state.tokens_RS,
        state.logprobs_RS,
        state.versions_RS,
        state.forced_RS,
        state.version,
        state.stops,
        state.phrase,
        len(state.stops),
        -1 if interruption is None or interruption.marker is None else interruption.marker,
        settings.max_new_tokens,
        VOCABULARY=vocabulary,
        BLOCK=block,
        BLOCKS=triton.next_power_of_2(triton.cdiv(vocabulary, block)),
        PHRASE=0 if interruption is None else len(interruption.phrase),
        VERSIONS=settings.keep_versions,
        num_warps=8 if block >= 2048 else 4,
    )


if AVAILABLE:

    @triton.jit
    def _add_block(
        q, m, total, acc, keys, values, start, end, SIZE: tl.constexpr, BLOCK: tl.constexpr, EXACT: tl.constexpr
    ) -> Any:
        """One block of online softmax."""
        at = start + tl.arange(0, BLOCK)
        inside = at < end
        size = tl.arange(0, SIZE)
        k = tl.load(keys + at[:, None] * SIZE + size[None, :], mask=inside[:, None], other=0.0)
        v = tl.load(values + at[:, None] * SIZE + size[None, :], mask=inside[:, None], other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee" if EXACT else "tf32")
        scores = tl.where(inside[None, :], scores, float("-inf"))
        larger = tl.maximum(m, tl.max(scores, axis=1))
        shrink = tl.exp2(m - larger)
        p = tl.exp2(scores - larger[:, None])
        total = total * shrink + tl.sum(p, axis=1)
        acc = acc * shrink[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee" if EXACT else "tf32")
        return larger, total, acc

    @triton.jit
    def _attend_kernel(
        qkv_AEK,
        out_AHK,
        prompt_kv,
        own_kv,
        rows_A,
        prompt_R,
        prompt_length_R,
        length_R,
        alive_R,
        scale,
        GROUPS: tl.constexpr,
        SHARED: tl.constexpr,
        HEADS: tl.constexpr,
        SIZE: tl.constexpr,
        PROMPT_SLOT: tl.constexpr,
        OWN_SLOT: tl.constexpr,
        BLOCK: tl.constexpr,
        EXACT: tl.constexpr,
    ):
        """A row and a key-value head: all query heads that share it."""
        place, group = tl.program_id(0).to(tl.int64), tl.program_id(1)
        row = tl.load(rows_A + place)
        if tl.load(alive_R + row) == 0:
            return
        head, size = tl.arange(0, HEADS), tl.arange(0, SIZE)
        mine = (group * SHARED + head[:, None]) * SIZE + size[None, :]
        qkv = qkv_AEK + place * (GROUPS * SHARED + 2 * GROUPS) * SIZE
        q = tl.load(qkv + mine, mask=head[:, None] < SHARED, other=0.0)
        k_new = tl.load(qkv + (GROUPS * SHARED + group) * SIZE + size)
        v_new = tl.load(qkv + (GROUPS * SHARED + GROUPS + group) * SIZE + size)
        own_k = own_kv + (row * 2 * GROUPS + group) * OWN_SLOT * SIZE
        own_v = own_k + GROUPS * OWN_SLOT * SIZE
        used = tl.load(length_R + row) - 1
        tl.store(own_k + used * SIZE + size, k_new)
        tl.store(own_v + used * SIZE + size, v_new)
        q = (q.to(tl.float32) * scale).to(qkv_AEK.dtype.element_ty)
        m = tl.sum(q.to(tl.float32) * k_new.to(tl.float32)[None, :], axis=1)
        total = tl.full([HEADS], 1.0, tl.float32)
        acc = tl.zeros([HEADS, SIZE], tl.float32) + v_new.to(tl.float32)[None, :]
        prompt_k = prompt_kv + (tl.load(prompt_R + row).to(tl.int64) * 2 * GROUPS + group) * PROMPT_SLOT * SIZE
        prompt_v = prompt_k + GROUPS * PROMPT_SLOT * SIZE
        read = tl.load(prompt_length_R + row)
        for start in range(0, read, BLOCK):
            m, total, acc = _add_block(q, m, total, acc, prompt_k, prompt_v, start, read, SIZE, BLOCK, EXACT)
        for start in range(0, used, BLOCK):
            m, total, acc = _add_block(q, m, total, acc, own_k, own_v, start, used, SIZE, BLOCK, EXACT)
        out = out_AHK + place * GROUPS * SHARED * SIZE + mine
        tl.store(out, (acc / total[:, None]).to(out_AHK.dtype.element_ty), mask=head[:, None] < SHARED)

    @triton.jit
    def _uniform(stream, position):
        """`engine.uniform_at`."""
        x = stream.to(tl.uint64) + position.to(tl.uint64) * 0xDA942042E4DD58B5
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB
        x = x ^ (x >> 31)
        return ((x >> 41).to(tl.float32) + 0.5) * (1.0 / 8388608.0)

    @triton.jit
    def _advance_kernel(  # noqa: PLR0915 - one kernel, so that the host launches one
        logits_PV,
        rows_A,
        source_A,
        length_R,
        token_R,
        stream_R,
        temperature_R,
        limit_R,
        interrupt_at_R,
        alive_R,
        stopped_R,
        tokens_RS,
        logprobs_RS,
        versions_RS,
        forced_RS,
        version,
        stops,
        phrase,
        stop_count,
        marker,
        most,
        VOCABULARY: tl.constexpr,
        BLOCK: tl.constexpr,
        BLOCKS: tl.constexpr,
        PHRASE: tl.constexpr,
        VERSIONS: tl.constexpr,
    ):
        """A row: its softmax in blocks, the block in which the drawn number falls, the token in that block."""
        place = tl.program_id(0)
        row = tl.load(rows_A + place)
        if tl.load(alive_R + row) == 0:
            return
        logits = logits_PV + tl.load(source_A + place).to(tl.int64) * VOCABULARY
        temperature = tl.load(temperature_R + row)
        greedy = temperature == 0.0
        scale = 1.0 / tl.where(greedy, 1.0, temperature)
        block, inside = tl.arange(0, BLOCKS), tl.arange(0, BLOCK)
        largest = tl.full([BLOCKS], float("-inf"), tl.float32)
        sums = tl.zeros([BLOCKS], tl.float32)
        for i in range(0, (VOCABULARY + BLOCK - 1) // BLOCK):
            at = i * BLOCK + inside
            z = tl.load(logits + at, mask=at < VOCABULARY, other=float("-inf")) * scale
            high = tl.max(z, axis=0)
            base = tl.where(high == float("-inf"), 0.0, high)
            largest = tl.where(block == i, high, largest)
            sums = tl.where(block == i, tl.sum(tl.exp(z - base), axis=0), sums)
        highest = tl.max(largest, axis=0)
        weights = sums * tl.exp(largest - highest)
        whole = tl.sum(weights, axis=0)
        at_row = tl.load(length_R + row)
        target = _uniform(tl.load(stream_R + row), at_row) * whole
        reached = tl.cumsum(weights, axis=0)
        last_block = tl.max(tl.where(weights > 0.0, block, 0), axis=0)
        chosen = tl.minimum(tl.sum((reached <= target).to(tl.int32), axis=0), last_block)
        chosen = tl.where(greedy, tl.min(tl.where(largest == highest, block, BLOCKS), axis=0), chosen)
        before = tl.sum(tl.where(block < chosen, weights, 0.0), axis=0)
        at = chosen * BLOCK + inside
        z = tl.load(logits + at, mask=at < VOCABULARY, other=float("-inf")) * scale
        p = tl.exp(z - highest)
        place_in = tl.sum((before + tl.cumsum(p, axis=0) <= target).to(tl.int32), axis=0)
        place_in = tl.minimum(place_in, tl.max(tl.where(p > 0.0, inside, 0), axis=0))
        best = tl.max(z, axis=0)
        place_in = tl.where(greedy, tl.min(tl.where(z == best, inside, BLOCK), axis=0), place_in)
        token = (chosen * BLOCK + place_in).to(tl.int64)
        drawn = tl.sum(tl.where(inside == place_in, z, 0.0), axis=0)
        logprob = drawn - highest - tl.log(whole)
        out = row * most + at_row
        limit = tl.load(limit_R + row)
        if PHRASE > 0:
            start = tl.load(interrupt_at_R + row)
            forced = (start >= 0) & (at_row >= start) & (at_row < start + PHRASE)
            word = tl.load(phrase + tl.minimum(tl.maximum(at_row - start, 0), PHRASE - 1))
            token = tl.where(forced, word, token)
            logprob = tl.where(forced, 0.0, logprob)
            tl.store(forced_RS + out, forced.to(tl.int8))
            free = (token == marker) & (at_row < start)
            limit = tl.where(free, most, limit)
            tl.store(interrupt_at_R + row, tl.where(free, -1, start))
            tl.store(limit_R + row, limit)
        tl.store(tokens_RS + out, token.to(tl.int32))
        tl.store(logprobs_RS + out, logprob)
        if VERSIONS:
            tl.store(versions_RS + out, tl.load(version))
        stopped = token < 0
        for i in range(0, stop_count):
            stopped = stopped | (token == tl.load(stops + i))
        tl.store(token_R + row, token)
        tl.store(length_R + row, at_row + 1)
        tl.store(stopped_R + row, stopped.to(tl.int32))
        tl.store(alive_R + row, ((at_row + 1 < limit) & (stopped == 0)).to(tl.int32))
