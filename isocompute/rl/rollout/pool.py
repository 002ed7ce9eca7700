"""A rolling pool of sequences: each decode step samples one token for all of them, and finished ones free their slots.

Sequences keep their keys and values when the weights change, so several policies may sample parts of one sequence. The
log-prob of each token and the version of the weights that sampled it are recorded.

Shapes: `_A` active sequences, `_B` rows of the records, `_T` response tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from isocompute.rl.model.config import DecoderConfig
from isocompute.rl.model.decoder import Cache, Decoder
from isocompute.rl.rollout.eager import INTERRUPTION, SamplingSettings, draw, uniform_at
from isocompute.rl.rollout.rollouts import Rollouts, left_padded


class SlotCache(Cache):
    """A cache whose sequences may differ in length; the first `active` slots are in use."""

    def __init__(self, keys_LBGSK: Tensor, values_LBGSK: Tensor) -> None:
        super().__init__(keys_LBGSK, values_LBGSK)
        _, slots, _, tokens, _ = keys_LBGSK.shape
        self._rows_B, self._columns_T = (torch.arange(size, device=keys_LBGSK.device) for size in (slots, tokens))
        self._lengths_B = torch.zeros_like(self._rows_B)
        self.active = 0
        self._longest = 0

    @classmethod
    def empty(cls, config: DecoderConfig, batch: int, slots: int, like: Tensor) -> Self:
        """Room for `slots` tokens of `batch` sequences."""
        room = Cache.empty(config, batch, slots, like)
        return cls(room.keys_LBGSK, room.values_LBGSK)

    def read(self, decoder: Decoder, tokens_A: Tensor) -> Tensor:
        """Hidden states of the next token of each active sequence."""
        lengths_A = self._lengths_B[: self.active]
        self._longest += 1
        visible_A1T = self._columns_T[: self._longest] <= lengths_A[:, None, None]
        hidden_A1D = decoder.forward(
            tokens_A[:, None], positions_BT=lengths_A[:, None], mask_BTS=visible_A1T, cache=self
        )
        lengths_A += 1
        return hidden_A1D[:, 0]

    def extend(self, layer: int, k_BGTK: Tensor, v_BGTK: Tensor) -> tuple[Tensor, Tensor]:
        """Append a layer's new keys and values to each sequence; returns all of them up to the longest sequence."""
        rows_A, at_A = self._rows_B[: self.active], self._lengths_B[: self.active]
        keys_BGTK = self.keys_LBGSK[layer, : self.active, :, : self._longest]
        values_BGTK = self.values_LBGSK[layer, : self.active, :, : self._longest]
        keys_BGTK[rows_A, :, at_A] = k_BGTK[:, :, 0]
        values_BGTK[rows_A, :, at_A] = v_BGTK[:, :, 0]
        return keys_BGTK, values_BGTK

    def compact(self, rows: Tensor) -> Tensor:
        """Move these sequences (in ascending order) to the first slots; returns the old slot of each."""
        count = len(rows)
        places = torch.arange(count, device=rows.device)
        stays = torch.zeros(count, dtype=torch.bool, device=rows.device)
        stays[rows[rows < count]] = True
        holes, moved = (~stays).nonzero()[:, 0], rows[rows >= count]
        places[holes] = moved
        if len(moved):  # others stay in place
            for stored in (self.keys_LBGSK, self.values_LBGSK):
                stored[:, holes, :, : self._longest] = stored[:, moved, :, : self._longest]
            self._lengths_B[holes] = self._lengths_B[moved]
        self.active = count
        self._longest = int(self._lengths_B[: self.active].max()) if self.active else 0
        return places

    def add(self, prompts: Cache, prompt_A: Tensor, lengths_A: Tensor) -> None:
        """Add sequences after the active ones, each with the keys and values of one of the prompts."""
        start, width = self.active, prompts.length
        self.active += len(prompt_A)
        self.keys_LBGSK[:, start : self.active, :, :width] = prompts.keys_LBGSK[:, prompt_A, :, :width]
        self.values_LBGSK[:, start : self.active, :, :width] = prompts.values_LBGSK[:, prompt_A, :, :width]
        self._lengths_B[start : self.active] = lengths_A
        self._longest = max(self._longest, width)


@dataclass
class Records:
    """The responses in progress, one per row; training on a group frees its rows."""

    responses_BT: Tensor
    logprobs_BT: Tensor
    versions_BT: Tensor
    forced_BT: Tensor
    lengths_B: Tensor
    ended_B: Tensor
    """Whether a response is complete: it stopped by itself or was truncated."""
    stopped_B: Tensor

    @classmethod
    def empty(cls, rows: int, tokens: int, device: torch.device) -> Records:
        """Room for this many responses."""
        shape = (rows, tokens)

        def flags(*size: int) -> Tensor:
            return torch.zeros(size, dtype=torch.bool, device=device)

        return cls(
            torch.zeros(shape, dtype=torch.long, device=device),
            torch.zeros(shape, device=device),
            torch.zeros(shape, dtype=torch.long, device=device),
            flags(*shape),
            torch.zeros(rows, dtype=torch.long, device=device),
            flags(rows),
            flags(rows),
        )

    def rollouts(self, rows_B: Tensor, prompts: Sequence[Sequence[int]], *, forced: bool) -> Rollouts:
        """Rows as `Rollouts` for the trainer."""
        lengths_B = self.lengths_B[rows_B]
        used = int(lengths_B.max())
        mask_BT = torch.arange(used, device=rows_B.device) < lengths_B[:, None]

        def part(x_BT: Tensor) -> Tensor:
            return torch.where(mask_BT, x_BT[rows_B, :used], torch.zeros((), dtype=x_BT.dtype, device=x_BT.device))

        return Rollouts(
            left_padded(prompts).to(rows_B.device),
            torch.tensor([len(prompt) for prompt in prompts], device=rows_B.device),
            part(self.responses_BT),
            part(self.logprobs_BT),
            mask_BT,
            self.stopped_B[rows_B],
            part(self.forced_BT) if forced else None,
            part(self.versions_BT),
        )


class Pool:
    """Sequences in flight; `tick` samples the next token of each."""

    def __init__(
        self,
        decoder: Decoder,
        settings: SamplingSettings,
        records: Records,
        *,
        slots: int,
        prompt_tokens: int,
        seed: int,
        at_once: int | None = None,
    ) -> None:
        self.decoder, self.settings, self.records, self.seed, self.slots = decoder, settings, records, seed, slots
        self.at_once = at_once or slots
        """Rows whose logits are computed at a time."""
        room = prompt_tokens + settings.max_new_tokens
        self.cache = SlotCache.empty(decoder.config, slots, room, decoder.embed_tokens.weight)
        device = decoder.embed_tokens.weight.device
        self._stops = torch.tensor(settings.stop_tokens, dtype=torch.long, device=device)
        empty = torch.zeros(0, dtype=torch.long, device=device)
        self.rows_A = empty
        """Row of the records of each active sequence."""
        self._numbers_A, self._tokens_A, self._steps_A, self._starts_A = empty, empty, empty, empty
        self._ended_thinking_A = empty.bool()
        self._new: list[tuple[Sequence[int], Tensor, Tensor]] = []
        self.ticks = self.worked = 0

    @property
    def in_flight(self) -> int:
        """Number of sequences being sampled or about to be."""
        return len(self.rows_A) + sum(len(rows) for _, rows, _ in self._new)

    @property
    def free(self) -> int:
        """Number of free slots."""
        return self.slots - self.in_flight

    def add(self, prompt: Sequence[int], rows: Tensor, numbers: Tensor) -> None:
        """Start sequences at the next tick, recorded in `rows` and sampled with the random numbers of `numbers`."""
        self.records.ended_B[rows] = self.records.stopped_B[rows] = False
        self.records.lengths_B[rows] = 0
        self._new.append((prompt, rows, numbers))

    @torch.no_grad()
    def tick(self, version: int) -> Tensor:
        """Sample the next token of each sequence; returns the rows of those that have ended."""
        hidden = []
        if len(self.rows_A):
            hidden.append(self.cache.read(self.decoder, self._tokens_A))
        if self._new:
            hidden.append(self._read_prompts())
        tokens_A, chosen_A = self._draw(torch.cat(hidden))
        forced_A, limit_A = torch.zeros_like(self._ended_thinking_A), None
        if (interruption := self.settings.interruption) is not None:
            tokens_A, forced_A = interruption.force(tokens_A, self._steps_A, self._starts_A, self._ended_thinking_A)
            chosen_A = torch.where(forced_A, 0.0, chosen_A)
            self._ended_thinking_A = self._ended_thinking_A | interruption.ends_thinking(
                tokens_A, self._steps_A, self._starts_A
            )
            limit_A = interruption.limit(self._starts_A, self._ended_thinking_A, self.settings.max_new_tokens)
        records, at = self.records, (self.rows_A, self._steps_A)
        records.responses_BT[at] = tokens_A
        records.logprobs_BT[at] = chosen_A.float()
        records.versions_BT[at] = version
        records.forced_BT[at] = forced_A
        self._steps_A = self._steps_A + 1
        records.lengths_B[self.rows_A] = self._steps_A
        stopped_A = torch.isin(tokens_A, self._stops)
        ended_A = stopped_A | (self._steps_A >= (self.settings.max_new_tokens if limit_A is None else limit_A))
        self.ticks += 1
        self.worked += len(self.rows_A)
        self._tokens_A = tokens_A
        return self._remove_ended(stopped_A, ended_A)

    def _draw(self, hidden_AD: Tensor) -> tuple[Tensor, Tensor]:
        """The next token of each sequence, and its log-prob."""
        uniform_A = uniform_at(self.seed, self._numbers_A, self._steps_A)
        parts = [
            draw(self.decoder.logits(rows_AD, fp32=self.settings.fp32_head), self.settings, drawn_A)
            for rows_AD, drawn_A in zip(
                torch.split(hidden_AD, self.at_once), torch.split(uniform_A, self.at_once), strict=True
            )
        ]
        return torch.cat([tokens_A for tokens_A, _ in parts]), torch.cat([chosen_A for _, chosen_A in parts])

    def _read_prompts(self) -> Tensor:
        """Read the prompts of new sequences into the cache; returns the hidden states of their last tokens."""
        prompts = [prompt for prompt, _, _ in self._new]
        device = self.rows_A.device
        lengths_P = torch.tensor([len(prompt) for prompt in prompts], device=device)
        width = int(lengths_P.max())
        # Padded on the right, where causal attention ignores it; each sequence starts at the beginning of its slot.
        tokens_PT = torch.tensor([[*prompt, *[0] * (width - len(prompt))] for prompt in prompts], device=device)
        cache = Cache.empty(self.decoder.config, len(prompts), width, self.decoder.embed_tokens.weight)
        hidden_PTD = self.decoder.forward(tokens_PT, cache=cache)
        prompt_A = torch.tensor(
            [i for i, (_, rows, _) in enumerate(self._new) for _ in range(len(rows))], device=device
        )
        self.cache.add(cache, prompt_A, lengths_P[prompt_A])
        rows_A, numbers_A = torch.cat([rows for _, rows, _ in self._new]), torch.cat([n for _, _, n in self._new])
        zeros_A = torch.zeros_like(rows_A)
        starts_A = zeros_A
        if (interruption := self.settings.interruption) is not None:
            starts_A = interruption.starts(uniform_at(self.seed, numbers_A, torch.full_like(zeros_A, INTERRUPTION)))
        self.rows_A = torch.cat([self.rows_A, rows_A])
        self._numbers_A = torch.cat([self._numbers_A, numbers_A])
        self._steps_A = torch.cat([self._steps_A, zeros_A])
        self._starts_A = torch.cat([self._starts_A, starts_A])
        self._ended_thinking_A = torch.cat([self._ended_thinking_A, zeros_A.bool()])
        self._new = []
        return hidden_PTD[torch.arange(len(prompts), device=device), lengths_P - 1][prompt_A]

    def _remove_ended(self, stopped_A: Tensor, ended_A: Tensor) -> Tensor:
        """Free the slots of sequences that have ended; returns their rows."""
        ended_rows = self.rows_A[ended_A]
        if not len(ended_rows):
            return ended_rows
        self.records.ended_B[ended_rows] = True
        self.records.stopped_B[ended_rows] = stopped_A[ended_A]
        places = self.cache.compact((~ended_A).nonzero()[:, 0])
        for name in ("rows_A", "_numbers_A", "_tokens_A", "_steps_A", "_starts_A", "_ended_thinking_A"):
            setattr(self, name, getattr(self, name)[places])
        return ended_rows
