"""The reference engine: plain PyTorch on any device, one decode step at a time, bookkeeping in Python."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from isocompute.rl.model.attention import PackedAttention, packed_prompts
from isocompute.rl.model.decoder import Decoder
from isocompute.rl.rollout.engine import (
    INTERRUPTION,
    FinishedGroup,
    PromptGroup,
    Rollouts,
    SamplingSettings,
    check_request,
    draw,
    nucleus,
    stop_string_at,
    uniform_at,
)


@dataclass
class Row:
    """One response in progress."""

    group: PromptGroup
    stream: int
    limit: int
    interrupt_at: int | None = None
    """Where a phrase will be forced on it."""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    forced: list[bool] = field(default_factory=list)
    ended: bool = False
    stopped: bool = False


def finished(group: PromptGroup, rows: list[Row], settings: SamplingSettings) -> FinishedGroup:
    """The rows of a group as its result."""
    lengths = [len(row.tokens) for row in rows]

    def padded(name: str, dtype: torch.dtype) -> Tensor:
        out = np.zeros((len(rows), max(lengths)), dtype=np.float32 if dtype == torch.float32 else np.int64)
        for place, row in enumerate(rows):
            out[place, : lengths[place]] = getattr(row, name)
        return torch.from_numpy(out).to(dtype)

    rollouts = Rollouts(
        [group.prompt],
        torch.zeros(len(rows), dtype=torch.long),
        padded("tokens", torch.long),
        padded("logprobs", torch.float32),
        torch.tensor(lengths),
        torch.tensor([row.stopped for row in rows]),
        padded("forced", torch.bool) if settings.interruption is not None else None,
        padded("versions", torch.long) if settings.keep_versions else None,
    )
    return FinishedGroup(group.key, rollouts)


class _Cache:
    """Keys and values of the rows in flight, in slots of one size; the first slots are in use."""

    def __init__(self, decoder: Decoder, rows: int, tokens: int) -> None:
        config = decoder.config
        shape = (config.num_hidden_layers, rows, 2 * config.num_key_value_heads, tokens, config.head_dim)
        self.kv_LRESK = torch.zeros(shape, dtype=decoder.dtype, device=decoder.device)
        self.lengths_R = torch.zeros(rows, dtype=torch.long, device=decoder.device)
        self.columns_S = torch.arange(tokens, device=decoder.device)
        self.rows_R = torch.arange(rows, device=decoder.device)
        self.active = self.longest = 0

    def read_next(self, decoder: Decoder, tokens_A: Tensor) -> Tensor:
        """Hidden states of the next token of each row."""
        lengths_A = self.lengths_R[: self.active]
        self.longest += 1
        visible_AS = self.columns_S[: self.longest] <= lengths_A[:, None]
        mask_A11S = torch.zeros((), dtype=decoder.dtype, device=decoder.device).where(visible_AS, -torch.inf)[
            :, None, None
        ]

        def attend(layer: int, qkv_AEK: Tensor, heads: int) -> Tensor:
            kv_AESK = self.kv_LRESK[layer, : self.active]
            kv_AESK[self.rows_R[: self.active], :, lengths_A] = qkv_AEK[:, heads:]
            k_AGSK, v_AGSK = kv_AESK[:, :, : self.longest].chunk(2, dim=1)
            rows, groups, _, size = k_AGSK.shape
            # The query heads that share a key head are as many queries of it.
            q_AGHK = qkv_AEK[:, :heads].reshape(rows, groups, heads // groups, size)
            out_AGHK = F.scaled_dot_product_attention(q_AGHK, k_AGSK, v_AGSK, attn_mask=mask_A11S)
            return out_AGHK.reshape(rows, heads, size)

        hidden_AD: Tensor = decoder(tokens_A, lengths_A, attend)
        lengths_A += 1
        return hidden_AD

    def read_prompts(self, decoder: Decoder, groups: list[PromptGroup]) -> Tensor:
        """Read each prompt once and copy its keys and values for its rows; hidden states of the rows' last tokens."""
        tokens_T, positions_T, packing = packed_prompts([group.prompt for group in groups], decoder.device)
        inside, lengths_P = PackedAttention(packing), packing.prompts_P
        starts = np.cumsum(lengths_P) - lengths_P

        def attend(layer: int, qkv_TEK: Tensor, heads: int) -> Tensor:
            kv_ETK, slot = qkv_TEK[:, heads:].transpose(0, 1), self.active
            for group, start, length in zip(groups, starts.tolist(), lengths_P.tolist(), strict=True):
                rows = slice(slot, slot + len(group.streams))
                self.kv_LRESK[layer, rows, :, :length] = kv_ETK[:, start : start + length]
                slot += len(group.streams)
            return inside(layer, qkv_TEK, heads)

        device = decoder.device
        hidden_TD: Tensor = decoder(tokens_T, positions_T, attend)
        per_prompt = [len(group.streams) for group in groups]
        rows = slice(self.active, self.active + sum(per_prompt))
        self.lengths_R[rows] = torch.from_numpy(np.repeat(lengths_P, per_prompt)).to(device)
        self.active, self.longest = rows.stop, max(self.longest, int(lengths_P.max()))
        return hidden_TD[torch.from_numpy(np.repeat(packing.last_of_prompt_P, per_prompt)).to(device)]

    def keep(self, rows: list[int]) -> list[int]:
        """Move these rows (in ascending order) to the first slots; returns the old slot of each."""
        staying = {row for row in rows if row < len(rows)}
        holes = [slot for slot in range(len(rows)) if slot not in staying]
        moved = [row for row in rows if row >= len(rows)]
        if moved:  # the others stay in place
            self.kv_LRESK[:, holes, :, : self.longest] = self.kv_LRESK[:, moved, :, : self.longest]
            self.lengths_R[holes] = self.lengths_R[moved]
        self.active = len(rows)
        self.longest = int(self.lengths_R[: self.active].max()) if rows else 0
        places = list(range(len(rows)))
        for hole, row in zip(holes, moved, strict=True):
            places[hole] = row
        return places


class EagerEngine:
    """Decodes all rows in flight one token further at each step; new groups fill the slots of ended rows."""

    name = "eager"

    def __init__(
        self, decoder: Decoder, settings: SamplingSettings, *, rows: int, prompt_tokens: int, at_once: int | None = None
    ) -> None:
        self.settings, self.decoder, self.version, self.rows = settings, decoder, 0, rows
        self.at_once = at_once or rows
        """Rows whose logits are computed at a time."""
        self._cache = _Cache(decoder, rows, prompt_tokens + settings.max_new_tokens)
        self._waiting: deque[PromptGroup] = deque()
        self._active: list[Row] = []
        self._groups: dict[int, tuple[PromptGroup, list[Row]]] = {}
        self._ticks = self._worked = 0
        self._streams_A = torch.zeros(0, dtype=torch.long, device=decoder.device)
        self._temperature_A = torch.zeros(0, device=decoder.device)

    @property
    def busy(self) -> int:
        """Rows in flight or waiting."""
        return len(self._active) + sum(len(group.streams) for group in self._waiting)

    def take_use(self) -> tuple[int, int]:
        """Rows in flight, summed over decode steps, and these steps, since the last call."""
        used = (self._worked, self._ticks)
        self._ticks = self._worked = 0
        return used

    def load(self, weights: Decoder, version: int) -> None:
        """Use these weights, which are not copied."""
        self.decoder, self.version = weights, version

    def submit(self, group: PromptGroup) -> None:
        """Queue a group; one that has more rows than the engine is sampled in pieces."""
        check_request(self.decoder, group, self.settings)
        self._groups[group.key] = (group, [])
        for start in range(0, len(group.streams), self.rows):
            streams = group.streams[start : start + self.rows]
            self._waiting.append(PromptGroup(group.key, group.prompt, streams, group.temperature))

    @torch.inference_mode()
    def step(self) -> list[FinishedGroup]:
        """Sample the next token of each row in flight."""
        hidden = []
        if self._active:
            tokens_A = torch.tensor([row.tokens[-1] for row in self._active], device=self.decoder.device)
            hidden.append(self._cache.read_next(self.decoder, tokens_A))
        if new := self._admitted():
            hidden.append(self._cache.read_prompts(self.decoder, new))
        if not hidden:
            return []
        steps_A = torch.tensor([len(row.tokens) for row in self._active], device=self.decoder.device)
        uniform_A = uniform_at(self._streams_A, steps_A)
        drawn = [
            self._draw(*parts)
            for parts in zip(
                torch.split(torch.cat(hidden), self.at_once),
                torch.split(self._temperature_A, self.at_once),
                torch.split(uniform_A, self.at_once),
                strict=True,
            )
        ]
        tokens = [token for some, _ in drawn for token in some.tolist()]
        logprobs = [logprob for _, some in drawn for logprob in some.tolist()]
        self._ticks += 1
        self._worked += len(self._active)
        for row, token, logprob in zip(self._active, tokens, logprobs, strict=True):
            self._append(row, token, logprob)
        return self._remove_ended()

    def _draw(self, hidden_AD: Tensor, temperature_A: Tensor, uniform_A: Tensor) -> tuple[Tensor, Tensor]:
        logits_AV = self.decoder.logits(hidden_AD, fp32=self.settings.fp32_head)
        if self.settings.top_p < 1:
            logits_AV = nucleus(logits_AV, temperature_A, self.settings.top_p)
        return draw(logits_AV, temperature_A, uniform_A)

    def _admitted(self) -> list[PromptGroup]:
        """Groups that fit into the free slots, in the order they came; their rows are now in flight."""
        new = []
        while self._waiting and len(self._active) + len(self._waiting[0].streams) <= self.rows:
            group = self._waiting.popleft()
            rows = [Row(group, stream, self.settings.max_new_tokens) for stream in group.streams.tolist()]
            if (interruption := self.settings.interruption) is not None:
                for row in rows:
                    chance = uniform_at(torch.tensor([row.stream]), torch.tensor([INTERRUPTION]))
                    row.interrupt_at = int(interruption.starts(chance))
                    row.limit = row.interrupt_at + len(interruption.phrase) + interruption.answer_tokens
            self._active += rows
            self._groups[group.key][1].extend(rows)
            new.append(group)
        if new:
            self._index()
        return new

    def _append(self, row: Row, token: int, logprob: float) -> None:
        """Add a token to a row, or that of the phrase that is forced there, and see whether the row has ended."""
        at, forced, settings = len(row.tokens), False, self.settings
        if (interruption := settings.interruption) is not None and row.interrupt_at is not None:
            if 0 <= at - row.interrupt_at < len(interruption.phrase):
                token, logprob, forced = interruption.phrase[at - row.interrupt_at], 0.0, True
            elif token == interruption.marker and at < row.interrupt_at:  # it ended thinking by itself
                row.interrupt_at, row.limit = None, settings.max_new_tokens
        row.tokens.append(token)
        row.logprobs.append(logprob)
        row.versions.append(self.version)
        row.forced.append(forced)
        row.stopped = token in settings.stop_tokens
        if settings.stop_strings and stop_string_at(row.tokens, settings, checked=at) is not None:
            row.stopped = True
        row.ended = row.stopped or len(row.tokens) >= row.limit

    def _remove_ended(self) -> list[FinishedGroup]:
        """Free the slots of ended rows; returns the groups that are complete."""
        staying = [slot for slot, row in enumerate(self._active) if not row.ended]
        if len(staying) == len(self._active):
            return []
        ended = {row.group.key for row in self._active if row.ended}
        self._active = [self._active[slot] for slot in self._cache.keep(staying)]
        self._index()
        out = []
        for key in sorted(ended):
            group, rows = self._groups[key]
            if len(rows) == len(group.streams) and all(row.ended for row in rows):
                del self._groups[key]
                out.append(finished(group, rows, self.settings))
        return out

    def _index(self) -> None:
        device = self.decoder.device
        self._streams_A = torch.tensor([row.stream for row in self._active], dtype=torch.long, device=device)
        self._temperature_A = torch.tensor([row.group.temperature for row in self._active], device=device)
