"""The fast engine: a decode step captured as one CUDA graph for each number of rows, finished rows replaced in flight.

Rows live in slots. A step reads the slots that are in use, rounded up to the next captured number of rows; lengths,
stops and draws stay on the device, and the host looks every few tokens at which rows have ended. A prompt is read once
and its keys and values are stored once for all its rows. Without a GPU the same steps run uncaptured, with the plain
twins of the kernels; tests use that.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from isocompute.core.arrays import Ints
from isocompute.rl.model.attention import PackedAttention, Packing
from isocompute.rl.model.decoder import Decoder
from isocompute.rl.rollout import kernels
from isocompute.rl.rollout.engine import (
    INTERRUPTION,
    FinishedGroup,
    PromptGroup,
    SamplingSettings,
    check_request,
    nucleus,
    stop_string_at,
    uniform_at,
)
from isocompute.rl.rollout.rollouts import Rollouts

LOOK = 8
"""Decode steps between two looks at which rows have ended."""
_FEWEST_ROWS = 64
_LOGITS = 2**27
"""Logits computed at a time."""


@dataclass
class _Request:
    """A group whose rows are waiting, in flight or done."""

    group: PromptGroup
    prompt_slot: int = -1
    started: int = 0
    """Rows that have been given a slot."""
    done: dict[int, tuple[Ints, ...]] = field(default_factory=dict)
    """Tokens, log-probs, and what else is recorded, of ended rows."""
    stopped: dict[int, bool] = field(default_factory=dict)


class CapturedEngine:
    """Decodes up to `rows` responses at a time."""

    name = "captured"

    def __init__(self, decoder: Decoder, settings: SamplingSettings, *, rows: int, prompt_tokens: int) -> None:
        self.settings, self.rows, self.device = settings, rows, decoder.device
        self.decoder = copy.deepcopy(decoder).requires_grad_(False)
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
        self._stops = torch.tensor(settings.stop_tokens or (-1,), dtype=torch.int64, device=self.device)
        self._waiting: deque[_Request] = deque()
        self._free_rows, self._free_prompts = list(range(rows - 1, -1, -1)), list(range(prompts - 1, -1, -1))
        self._row_of: dict[int, tuple[_Request, int]] = {}
        """The request of each slot in use, and the row's place in it."""
        self._checked: dict[int, int] = {}
        """Tokens of each slot that were searched for stop strings."""
        self._ticks = self._worked = 0
        self._queued = 0
        self._graphs: dict[int, tuple[Tensor, Callable[[], None]]] = {}
        self._pool: Any = None
        """Memory that all graphs share."""

    def prepare(self) -> None:
        """Capture all numbers of rows, so that no run waits for it later."""
        size = _FEWEST_ROWS
        while size < 2 * self.rows:
            self._graph(size)
            size *= 2

    @property
    def busy(self) -> int:
        """Rows in flight or waiting."""
        return len(self._row_of) + self._queued

    @property
    def use(self) -> float:
        """Share of rows × steps that sampled a token since the last time."""
        used = self._worked / max(1, self._ticks * self.rows)
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
        self._waiting.append(_Request(group))
        self._queued += len(group.streams)

    @torch.no_grad()
    def step(self) -> list[FinishedGroup]:
        """Sample up to `LOOK` tokens of each row in flight; returns the groups that are complete."""
        self._admit()
        if not self._row_of:
            return []
        slots = list(self._row_of)
        rows_A, replay = self._graph(len(slots))
        padded = np.full(len(rows_A), self.rows)
        padded[: len(slots)] = slots
        rows_A.copy_(torch.from_numpy(padded))
        for _ in range(LOOK):
            replay()
        return self._collect(slots, rows_A[: len(slots)])

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

        def attend(layer: int, q_AHK: Tensor, k_AGK: Tensor, v_AGK: Tensor) -> Tensor:
            return self._attend(state, layer, rows_A, q_AHK, k_AGK, v_AGK)

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
            logits_PV = self.decoder.logits(hidden, fp32=settings.fp32_head)
            if settings.top_p < 1:
                logits_PV = logits_PV[source]
                logits_PV = nucleus(logits_PV, self._state.temperature_R[rows], settings.top_p)
                source = torch.arange(len(rows), device=self.device)
            self._advance(self._state, settings, rows, logits_PV, source, self._stops)

    # Rows come and go

    def _admit(self) -> None:
        """Give free slots to waiting rows; read new prompts and draw the rows' first tokens."""
        new: list[tuple[_Request, int]] = []
        prompts: list[_Request] = []
        while self._waiting and len(self._free_rows) > len(new):
            request = self._waiting[0]
            if request.prompt_slot < 0:
                if not self._free_prompts:
                    break
                request.prompt_slot = self._free_prompts.pop()
                prompts.append(request)
            wanted = len(request.group.streams) - request.started
            count = min(wanted, len(self._free_rows) - len(new))
            new += [(request, request.started + i) for i in range(count)]
            request.started += count
            if count == wanted:
                self._waiting.popleft()
        if new:
            self._queued -= len(new)
            self._start(new, prompts)

    def _start(self, new: list[tuple[_Request, int]], prompts: list[_Request]) -> None:
        # A group that was cut by the end of the slots starts its other rows later, from its prompt's last token again.
        reread = [request for request in {id(r): r for r, _ in new}.values() if request not in prompts]
        asked = [*prompts, *reread]
        hidden_PD = self._read_prompts(asked)
        slots = [self._free_rows.pop() for _ in new]
        self._row_of |= dict(zip(slots, new, strict=True))
        place = {id(request): i for i, request in enumerate(asked)}
        groups = [(request.group, index) for request, index in new]
        stream_A = np.array([group.streams[index] for group, index in groups])
        start_A, limit_A = np.full(len(new), -1), np.full(len(new), self.settings.max_new_tokens)
        if (interruption := self.settings.interruption) is not None:
            chance_A = uniform_at(torch.from_numpy(stream_A), torch.tensor(INTERRUPTION))
            start_A = interruption.starts(chance_A).numpy()
            limit_A = start_A + len(interruption.phrase) + interruption.answer_tokens
        fields = np.stack(
            [
                np.array(slots),
                np.array([place[id(request)] for request, _ in new]),
                np.array([request.prompt_slot for request, _ in new]),
                np.array([len(group.prompt) for group, _ in groups]),
                stream_A,
                limit_A,
                start_A,
            ]
        )
        sent = torch.from_numpy(fields).to(self.device)
        rows_A, source_A, state = sent[0], sent[1], self._state
        for into, values in zip(
            (state.prompt_R, state.prompt_length_R, state.stream_R, state.limit_R, state.interrupt_at_R),
            sent[2:],
            strict=True,
        ):
            into[rows_A] = values.to(into.dtype)
        temperature_A = torch.tensor([group.temperature for group, _ in groups])
        state.temperature_R[rows_A] = temperature_A.to(self.device)
        state.length_R[rows_A], state.stopped_R[rows_A], state.alive_R[rows_A] = 0, 0, 1
        self._draw(rows_A, hidden_PD, source_A)

    def _read_prompts(self, requests: list[_Request]) -> Tensor:
        """Read prompts into their slots; returns the hidden state of each one's last token."""
        lengths_P = np.array([len(request.group.prompt) for request in requests])
        packing = Packing.of(lengths_P, [], np.zeros(0, dtype=np.int64), self.device)
        tokens = np.zeros(packing.tokens + packing.padding, dtype=np.int64)
        tokens[: packing.tokens] = np.concatenate([np.asarray(request.group.prompt) for request in requests])
        slots = np.repeat([request.prompt_slot for request in requests], lengths_P)
        sent = torch.from_numpy(np.stack([tokens, packing.positions])).to(self.device)
        slot_T = torch.from_numpy(slots).to(self.device)
        at_T, inside, state = sent[1, : packing.tokens], PackedAttention(packing), self._state

        def attend(layer: int, q_THK: Tensor, k_TGK: Tensor, v_TGK: Tensor) -> Tensor:
            kv_EQGSK = state.prompt_kv_LEQGSK[layer]
            kv_EQGSK[0, slot_T, :, at_T], kv_EQGSK[1, slot_T, :, at_T] = k_TGK[: len(at_T)], v_TGK[: len(at_T)]
            return inside(layer, q_THK, k_TGK, v_TGK)

        hidden_TD: Tensor = self.decoder(sent[0], sent[1], attend)
        return hidden_TD[torch.from_numpy(packing.last_of_prompt_P).to(self.device)]

    def _collect(self, slots: list[int], rows_A: Tensor) -> list[FinishedGroup]:
        """Look at which rows have ended, read them out and free their slots."""
        state = self._state
        if self.settings.stop_strings:
            self._cut(slots, rows_A)
        looked = torch.stack([state.alive_R[rows_A], state.length_R[rows_A], state.stopped_R[rows_A]]).cpu().numpy()
        alive_A, length_A, stopped_A = looked
        self._ticks += LOOK
        self._worked += LOOK * len(slots)
        ended = np.flatnonzero(alive_A == 0)
        if not len(ended):
            return []
        ended_rows, width = rows_A[torch.from_numpy(ended).to(self.device)], int(length_A[ended].max())
        kept = [state.tokens_RS, state.logprobs_RS]
        kept += [state.versions_RS] if self.settings.keep_versions else []
        kept += [state.forced_RS] if self.settings.interruption is not None else []
        read = [values[ended_rows, :width].cpu().numpy() for values in kept]
        out = []
        for place, i in enumerate(ended.tolist()):
            request, index = self._row_of.pop(slots[i])
            self._free_rows.append(slots[i])
            self._checked.pop(slots[i], None)
            request.done[index] = tuple(values[place, : length_A[i]] for values in read)
            request.stopped[index] = bool(stopped_A[i])
            if len(request.done) == len(request.group.streams):
                self._free_prompts.append(request.prompt_slot)
                out.append(self._finished(request))
        return out

    def _cut(self, slots: list[int], rows_A: Tensor) -> None:
        """End rows at a stop string."""
        state = self._state
        lengths = state.length_R[rows_A].tolist()
        tokens = state.tokens_RS[rows_A, : max(lengths)].tolist()
        for slot, length, row in zip(slots, lengths, tokens, strict=True):
            end = stop_string_at(row[:length], self.settings, checked=self._checked.get(slot, 0))
            self._checked[slot] = length
            if end is not None:
                state.length_R[slot], state.alive_R[slot], state.stopped_R[slot] = end, 0, 1

    def _finished(self, request: _Request) -> FinishedGroup:
        """The rows of a group as its result."""
        rows = [request.done[i] for i in range(len(request.done))]
        lengths = torch.tensor([len(row[0]) for row in rows])
        width = int(lengths.max())

        def padded(index: int, dtype: torch.dtype) -> Tensor:
            out = np.zeros((len(rows), width), dtype=rows[0][index].dtype)
            for place, row in enumerate(rows):
                out[place, : len(row[index])] = row[index]
            return torch.from_numpy(out).to(dtype)

        versions = self.settings.keep_versions
        rollouts = Rollouts(
            [request.group.prompt],
            torch.zeros(len(rows), dtype=torch.long),
            padded(0, torch.long),
            padded(1, torch.float32),
            lengths,
            torch.tensor([request.stopped[i] for i in range(len(rows))]),
            padded(-1, torch.bool) if self.settings.interruption is not None else None,
            padded(2, torch.long) if versions else None,
        )
        return FinishedGroup(request.group.key, rollouts)
