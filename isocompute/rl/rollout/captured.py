"""The fast engine: a decode step captured as one CUDA graph for each number of rows, finished rows replaced in flight.

Rows live in slots. A step reads the slots that are in use, rounded up to the next captured number of rows; lengths,
stops and draws stay on the device, and the host looks every few tokens at which rows have ended. A prompt is read once
and its keys and values are stored once for all its rows. Without a GPU the same steps run uncaptured, with the plain
twins of the kernels; tests use that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from isocompute.core.arrays import Ints
from isocompute.rl.model.attention import PackedAttention, packed_prompts
from isocompute.rl.model.decoder import Decoder
from isocompute.rl.rollout import kernels
from isocompute.rl.rollout.engine import (
    INTERRUPTION,
    FinishedGroup,
    PromptGroup,
    Rollouts,
    SamplingSettings,
    check_request,
    nucleus,
    stop_string_at,
    uniform_at,
)

LOOK = 8
"""Decode steps between two looks at which rows have ended."""
_FEWEST_ROWS = 64
_LOGITS = 2**27
"""Logits computed at a time."""


class _Request:
    """A group whose rows are waiting, in flight or done, with the results of those that are done."""

    def __init__(self, group: PromptGroup, settings: SamplingSettings) -> None:
        self.group, self.prompt_slot = group, -1
        self.started = self.ended = 0
        """Rows that have been given a slot, and those of them that have ended."""
        rows, new = len(group.streams), settings.max_new_tokens
        self.lengths_N, self.stopped_N = np.zeros(rows, dtype=np.int64), np.zeros(rows, dtype=np.bool_)
        self.results = [np.zeros((rows, new), dtype=dtype) for dtype in (np.int64, np.float32)]
        """Tokens and log-probs; versions and forced tokens where they are recorded."""
        self.results += [np.zeros((rows, new), dtype=np.int64)] if settings.keep_versions else []
        self.results += [np.zeros((rows, new), dtype=np.bool_)] if settings.interruption is not None else []

    def finished(self, settings: SamplingSettings) -> FinishedGroup:
        """The result of the whole group."""
        width = int(self.lengths_N.max())
        inside_NT = np.arange(width) < self.lengths_N[:, None]
        tokens, logprobs, *more = (torch.from_numpy(each[:, :width] * inside_NT) for each in self.results)
        rollouts = Rollouts(
            [self.group.prompt],
            torch.zeros(len(self.lengths_N), dtype=torch.long),
            tokens,
            logprobs,
            torch.from_numpy(self.lengths_N),
            torch.from_numpy(self.stopped_N),
            more.pop() if settings.interruption is not None else None,
            more.pop() if settings.keep_versions else None,
        )
        return FinishedGroup(self.group.key, rollouts)


@dataclass(frozen=True)
class _Ended:
    """Rows that have ended, on their way to the host."""

    owners: Ints
    """The number of each row's request."""
    places: Ints
    """Its place in the request."""
    lengths: Ints
    stopped: Ints
    values: list[Tensor]
    event: torch.cuda.Event | None
    """After it, `values` are there."""


def _sent_home(values: Tensor) -> Tensor:
    """A copy in host memory, which may still be under way."""
    if values.device.type != "cuda":
        return values
    home = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    return home.copy_(values, non_blocking=True)


class CapturedEngine:
    """Decodes up to `rows` responses at a time."""

    name = "captured"

    def __init__(self, decoder: Decoder, settings: SamplingSettings, *, rows: int, prompt_tokens: int) -> None:
        self.settings, self.rows, self.device = settings, rows, decoder.device
        self.decoder = decoder.merged()
        self.decoder.compiled = self.decoder.compiled or self.device.type == "cuda"
        fast = self.device.type == "cuda" and kernels.AVAILABLE
        self._attend = kernels.attend if fast else kernels.attend_plain
        self._advance = kernels.advance if fast else kernels.advance_plain
        prompts = max(1, rows // 4)
        self._state = kernels.State.empty(
            decoder.config,
            settings,
            rows=rows,
            prompts=prompts,
            prompt_tokens=prompt_tokens,
            like=decoder.embed_tokens.weight,
        )
        self._waiting: deque[int] = deque()
        self._submitted = 0
        self._free_rows, self._free_prompts = list(range(rows - 1, -1, -1)), list(range(prompts - 1, -1, -1))
        self._requests: dict[int, _Request] = {}
        """Requests that are waiting or in flight, by a number of our own."""
        self._used: list[int] = []
        """Slots in use."""
        self._owner_R, self._place_R = np.zeros(rows, dtype=np.int64), np.zeros(rows, dtype=np.int64)
        """The request of each slot in use, and the row's place in it."""
        self._checked_R = np.zeros(rows, dtype=np.int64)
        """Tokens of each slot that were searched for stop strings."""
        self._ticks = self._worked = 0
        self._queued = 0
        self._window: tuple[Ints, Tensor] | None = None
        """Slots whose next tokens are under way."""
        self._graphs: dict[int, tuple[Tensor, Callable[[], None]]] = {}
        self._pool: Any = None
        """Memory that all graphs share."""

    def capture(self) -> None:
        """Capture all numbers of rows, so that no run waits for it later."""
        size = _FEWEST_ROWS
        while size < 2 * self.rows:
            self._graph(size)
            size *= 2

    @property
    def busy(self) -> int:
        """Rows in flight or waiting."""
        return len(self._used) + self._queued

    def take_use(self) -> tuple[int, int]:
        """Rows in flight, summed over decode steps, and these steps, since the last call."""
        used = (self._worked, self._ticks)
        self._ticks = self._worked = 0
        return used

    @torch.no_grad()
    def load(self, weights: Decoder, version: int) -> None:
        """Copy these weights, with their adapters added."""
        self.decoder.copy_weights(weights)
        self._state.version.fill_(version)

    def submit(self, group: PromptGroup) -> None:
        """Queue a group; its rows start as slots become free."""
        check_request(self.decoder, group, self.settings)
        self._requests[self._submitted] = _Request(group, self.settings)
        self._waiting.append(self._submitted)
        self._submitted += 1
        self._queued += len(group.streams)

    @torch.no_grad()
    def step(self) -> list[FinishedGroup]:
        """Sample up to `LOOK` tokens of each row in flight; returns the groups that are complete.

        The next tokens are under way while the host reads out rows that have ended, and while the caller uses them.
        """
        if self._window is None:
            self._launch()
        if self._window is None:
            return []
        ended = self._look(*self._window)
        self._launch()
        return [] if ended is None else self._read(ended)

    def _launch(self) -> None:
        """Start waiting rows, and the next steps of all rows in flight."""
        self._admit()
        self._window = None
        if not self._used:
            return
        slots = np.array(self._used)
        rows_A, replay = self._graph(len(slots))
        padded = np.full(len(rows_A), self.rows)
        padded[: len(slots)] = slots
        rows_A.copy_(torch.from_numpy(padded))
        for _ in range(LOOK):
            replay()
        self._ticks += LOOK
        self._worked += LOOK * len(slots)
        self._window = (slots, rows_A[: len(slots)])

    # Decode steps

    def _graph(self, rows: int) -> tuple[Tensor, Callable[[], None]]:
        """The rows that a step reads, and the step itself, for at least so many rows."""
        size = min(max(_FEWEST_ROWS, 1 << (rows - 1).bit_length()), max(self.rows, _FEWEST_ROWS))
        if size not in self._graphs:
            self._graphs[size] = self._capture(size)
        return self._graphs[size]

    def _capture(self, size: int) -> tuple[Tensor, Callable[[], None]]:
        rows_A = torch.full((size,), self.rows, dtype=torch.int64, device=self.device)
        if self.device.type != "cuda":
            return rows_A, lambda: self._decode(rows_A)
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch's own gap
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):  # compiles what is not compiled yet; the padding slot is never alive
                self._decode(rows_A)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            self._decode(rows_A)
        self._pool = graph.pool()
        return rows_A, graph.replay

    def _decode(self, rows_A: Tensor) -> None:
        """One step: the last token of each row goes in, its next one is drawn."""
        state = self._state

        def attend(layer: int, qkv_AEK: Tensor, heads: int) -> Tensor:
            return self._attend(state, layer, rows_A, qkv_AEK, heads)

        positions_A = state.prompt_length_R[rows_A] + state.length_R[rows_A] - 1
        hidden_AD = self.decoder(state.token_R[rows_A], positions_A, attend)
        self._draw(rows_A, hidden_AD, torch.arange(len(rows_A), device=self.device))

    def _draw(self, rows_A: Tensor, hidden_PD: Tensor, source_A: Tensor) -> None:
        """Draw the next token of each row from the hidden state that `source_A` names."""
        settings, whole = self.settings, len(hidden_PD) * self.decoder.config.vocab_size <= _LOGITS
        if whole or len(hidden_PD) != len(rows_A):
            parts = [(rows_A, hidden_PD, source_A)]
        else:
            size = max(1, _LOGITS // self.decoder.config.vocab_size)
            parts = [
                (rows, hidden, source_A[: len(rows)])
                for rows, hidden in zip(torch.split(rows_A, size), torch.split(hidden_PD, size), strict=True)
            ]
        for rows, hidden, source in parts:
            logits_PV, whose = self.decoder.logits(hidden, fp32=settings.fp32_head), source
            if settings.top_p < 1:
                logits_PV = nucleus(logits_PV[source], self._state.temperature_R[rows], settings.top_p)
                whose = torch.arange(len(rows), device=self.device)
            self._advance(self._state, settings, rows, logits_PV, whose)

    # Rows come and go

    def _admit(self) -> None:
        """Give free slots to waiting rows; read their prompts and draw their first tokens."""
        new: list[tuple[int, int, int]] = []  # a request, the first of its rows that starts now, and how many start
        free = len(self._free_rows)
        while self._waiting and free:
            number = self._waiting[0]
            request = self._requests[number]
            if request.prompt_slot < 0:
                if not self._free_prompts:
                    break
                request.prompt_slot = self._free_prompts.pop()
            count = min(len(request.group.streams) - request.started, free)
            new.append((number, request.started, count))
            request.started, free = request.started + count, free - count
            if request.started == len(request.group.streams):
                self._waiting.popleft()
        if new:
            self._start(new)

    def _start(self, new: list[tuple[int, int, int]]) -> None:
        # A group whose rows start at two times has its prompt read twice, for the hidden state of its last token.
        asked, counts = [self._requests[number] for number, _, _ in new], [count for _, _, count in new]
        hidden_PD = self._read_prompts(asked)
        slots = np.array([self._free_rows.pop() for _ in range(sum(counts))])
        self._used += slots.tolist()
        self._queued -= len(slots)
        self._owner_R[slots] = np.repeat([number for number, _, _ in new], counts)
        self._place_R[slots] = np.concatenate([np.arange(first, first + count) for _, first, count in new])
        self._checked_R[slots] = 0
        streams = [request.group.streams[first : first + n] for request, (_, first, n) in zip(asked, new, strict=True)]
        stream_A = np.concatenate(streams)
        start_A, limit_A = np.full(len(slots), -1), np.full(len(slots), self.settings.max_new_tokens)
        if (interruption := self.settings.interruption) is not None:
            chance_A = uniform_at(torch.from_numpy(stream_A), torch.tensor(INTERRUPTION))
            start_A = interruption.starts(chance_A).numpy()
            limit_A = start_A + len(interruption.phrase) + interruption.answer_tokens
        per_group = np.array(
            [[i, r.prompt_slot, len(r.group.prompt), _bits(r.group.temperature)] for i, r in enumerate(asked)]
        )
        per_row = np.stack([slots, stream_A, limit_A, start_A])
        sent = torch.from_numpy(np.concatenate([per_row, np.repeat(per_group, counts, axis=0).T])).to(self.device)
        rows_A, source_A, state = sent[0], sent[4], self._state
        state.stream_R[rows_A] = sent[1]
        for into, values in zip(
            (state.limit_R, state.interrupt_at_R, state.prompt_R, state.prompt_length_R),
            sent[[2, 3, 5, 6]],
            strict=True,
        ):
            into[rows_A] = values.int()
        state.temperature_R[rows_A] = sent[7].int().view(torch.float32)
        state.length_R[rows_A], state.stopped_R[rows_A], state.alive_R[rows_A] = 0, 0, 1
        self._draw(rows_A, hidden_PD, source_A)

    def _read_prompts(self, requests: list[_Request]) -> Tensor:
        """Read prompts into their slots; returns the hidden state of each one's last token."""
        tokens_T, position_T, packing = packed_prompts([request.group.prompt for request in requests], self.device)
        slots = np.repeat([request.prompt_slot for request in requests], packing.prompts_P)
        slot_T = torch.from_numpy(slots).to(self.device)
        at_T, inside, state = position_T[: packing.tokens], PackedAttention(packing), self._state

        def attend(layer: int, qkv_TEK: Tensor, heads: int) -> Tensor:
            state.prompt_kv_LQESK[layer][slot_T, :, at_T] = qkv_TEK[: len(at_T), heads:]
            return inside(layer, qkv_TEK, heads)

        hidden_TD: Tensor = self.decoder(tokens_T, position_T, attend)
        return hidden_TD[torch.from_numpy(packing.last_of_prompt_P).to(self.device)]

    def _look(self, slots: Ints, rows_A: Tensor) -> _Ended | None:
        """Look at which rows have ended, free their slots, and begin to read them out."""
        state = self._state
        if self.settings.stop_strings:
            self._cut(slots, rows_A)
        looked = torch.stack([state.alive_R[rows_A], state.length_R[rows_A], state.stopped_R[rows_A]]).cpu().numpy()
        ended = np.flatnonzero(looked[0] == 0)
        if not len(ended):
            return None
        self._used, slots = slots[looked[0] > 0].tolist(), slots[ended]
        self._free_rows += slots.tolist()
        lengths, stopped = looked[1:, ended]
        rows, width = torch.from_numpy(slots).to(self.device), int(lengths.max())
        kept = [state.tokens_RS, state.logprobs_RS]
        kept += [state.versions_RS] if self.settings.keep_versions else []
        kept += [state.forced_RS] if self.settings.interruption is not None else []
        values = [_sent_home(each[rows, :width]) for each in kept]
        event = None
        if self.device.type == "cuda":
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch's own gap
            event.record()
        return _Ended(self._owner_R[slots], self._place_R[slots], lengths, stopped, values, event)

    def _read(self, ended: _Ended) -> list[FinishedGroup]:
        """Give ended rows to their requests; returns the groups that are complete."""
        if ended.event is not None:
            ended.event.synchronize()
        values, out = [each.numpy() for each in ended.values], []
        width = values[0].shape[1]
        for number in np.unique(ended.owners).tolist():
            own, request = ended.owners == number, self._requests[number]
            place_N = ended.places[own]
            for into, each in zip(request.results, values, strict=True):
                into[place_N, :width] = each[own]
            request.lengths_N[place_N], request.stopped_N[place_N] = ended.lengths[own], ended.stopped[own]
            request.ended += len(place_N)
            if request.ended == len(request.group.streams):
                self._free_prompts.append(request.prompt_slot)
                out.append(self._requests.pop(number).finished(self.settings))
        return out

    def _cut(self, slots: Ints, rows_A: Tensor) -> None:
        """End rows at a stop string."""
        state = self._state
        lengths = state.length_R[rows_A].tolist()
        tokens = state.tokens_RS[rows_A, : max(lengths)].tolist()
        for slot, length, row in zip(slots.tolist(), lengths, tokens, strict=True):
            end = stop_string_at(row[:length], self.settings, checked=int(self._checked_R[slot]))
            self._checked_R[slot] = length
            if end is not None:
                state.length_R[slot], state.alive_R[slot], state.stopped_R[slot] = end, 0, 1


def _bits(value: float) -> int:
    """A number's bits in FP32, to send it among integers."""
    return int(np.float32(value).view(np.int32))
