"""Rollouts, and the groups of n rollouts per problem that go from the sampler to the trainer; all in host memory."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from isocompute.core.arrays import Ints
from isocompute.rl.model.attention import Packing


@dataclass(frozen=True)
class Packed:
    """Sequences as the tokens of one pass, on the device; `_S` are the tokens of the responses."""

    tokens_T: Tensor
    positions_T: Tensor
    predictor_S: Tensor
    """The token of the pass that predicts each response token."""
    chosen_S: Tensor
    """The response tokens."""
    place_S: Tensor
    """Where each of them is in the flat array of rows × steps."""
    packing: Packing
    shape: tuple[int, ...]
    """Rows × steps."""

    def spread(self, values_S: Tensor) -> Tensor:
        """Values of response tokens as an array of rows × steps, with zeros elsewhere."""
        flat = torch.zeros(math.prod(self.shape), dtype=values_S.dtype, device=values_S.device)
        return flat.scatter(0, self.place_S, values_S).view(self.shape)


@dataclass(frozen=True)
class Rollouts:
    """Prompts, and the responses to them, padded on the right with zeros; the rows of a prompt are consecutive."""

    prompts: Sequence[Sequence[int]]
    prompt_B: Tensor
    """The prompt of each response; never decreasing."""
    responses_BT: Tensor
    logprobs_BT: Tensor
    lengths_B: Tensor
    """Tokens of each response, its stop token included."""
    stopped_B: Tensor
    """Whether the response ended by itself: with a stop token or string."""
    forced_BT: Tensor | None = None
    """True for tokens that an interruption forced; None if there are none."""
    versions_BT: Tensor | None = None
    """The number of updates made when each token was sampled; None if the batch is on-policy."""

    @cached_property
    def mask_BT(self) -> Tensor:
        """True where the response has a token."""
        return torch.arange(self.responses_BT.shape[1]) < self.lengths_B[:, None]

    @property
    def sampled_BT(self) -> Tensor:
        """True for tokens that the policy chose; losses and statistics average over these."""
        return self.mask_BT if self.forced_BT is None else self.mask_BT & ~self.forced_BT

    @property
    def interrupted_B(self) -> Tensor:
        """Which responses were interrupted."""
        return torch.zeros_like(self.stopped_B) if self.forced_BT is None else self.forced_BT.any(dim=1)

    def __len__(self) -> int:
        return len(self.responses_BT)

    def staleness(self, step: int) -> tuple[float, int]:
        """Updates since the tokens were sampled, before update `step`: the mean and the largest."""
        if self.versions_BT is None:
            return 0.0, 0
        age_BT = (step - self.versions_BT) * self.sampled_BT
        return float(age_BT.sum() / self.sampled_BT.sum()), int(age_BT.max())

    def take(self, rows: Tensor) -> Rollouts:
        """Some of the rows, without the padding that none of them needs; rows of a prompt must stay together."""
        asked, prompt_B = torch.unique(self.prompt_B[rows], return_inverse=True)
        lengths_B = self.lengths_B[rows]
        used = int(lengths_B.max()) if len(rows) else 0
        return Rollouts(
            [self.prompts[i] for i in asked.tolist()],
            prompt_B,
            self.responses_BT[rows, :used],
            self.logprobs_BT[rows, :used],
            lengths_B,
            self.stopped_B[rows],
            None if self.forced_BT is None else self.forced_BT[rows, :used],
            None if self.versions_BT is None else self.versions_BT[rows, :used],
        )

    @classmethod
    def join(cls, parts: Sequence[Rollouts]) -> Rollouts:
        """Several batches as one, padded to a common width."""
        if len(parts) == 1:
            return parts[0]
        width = max(part.responses_BT.shape[1] for part in parts)
        before = np.cumsum([0, *(len(part.prompts) for part in parts)])

        def wide(name: str) -> Tensor:
            return torch.cat([F.pad(x, (0, width - x.shape[1])) for x in (getattr(part, name) for part in parts)])

        return cls(
            [prompt for part in parts for prompt in part.prompts],
            torch.cat([part.prompt_B + int(start) for part, start in zip(parts, before[:-1], strict=True)]),
            wide("responses_BT"),
            wide("logprobs_BT"),
            torch.cat([part.lengths_B for part in parts]),
            torch.cat([part.stopped_B for part in parts]),
            None if parts[0].forced_BT is None else wide("forced_BT"),
            None if parts[0].versions_BT is None else wide("versions_BT"),
        )

    def stored(self) -> dict[str, Tensor]:
        """What a checkpoint keeps; prompts are read from the problems again."""
        names = ("responses_BT", "logprobs_BT", "lengths_B", "stopped_B", "forced_BT", "versions_BT")
        tensors = {name: getattr(self, name) for name in names}
        return {name: x for name, x in tensors.items() if x is not None}

    def packed(self, device: torch.device) -> Packed:
        """The tokens of one pass over all sequences.

        The last token of a response predicts nothing that is needed, so the pass leaves it out.
        """
        lengths_B, prompt_B, responses_BT = (x.numpy() for x in (self.lengths_B, self.prompt_B, self.responses_BT))
        read_B, width = np.maximum(lengths_B - 1, 0), responses_BT.shape[1]
        packing = Packing.of([len(prompt) for prompt in self.prompts], read_B, prompt_B, device)
        inside_BT = np.arange(width) < lengths_B[:, None]
        place_S = np.flatnonzero(inside_BT)
        rows_S, steps_S = np.divmod(place_S, width) if width else (place_S, place_S)
        chosen_S = responses_BT[inside_BT]
        first, last = packing.prompt_tokens, packing.tokens
        tokens = np.zeros(last + packing.padding, dtype=np.int64)
        tokens[:first] = np.concatenate([np.asarray(prompt) for prompt in self.prompts])
        tokens[first:last] = chosen_S[steps_S < read_B[rows_S]]
        first_S = packing.last_of_prompt_P[prompt_B[rows_S]]
        predictor_S = np.where(steps_S == 0, first_S, packing.starts_B[rows_S] + steps_S - 1)
        sent = torch.from_numpy(np.concatenate([tokens, packing.positions, predictor_S, chosen_S, place_S])).to(device)
        count, read = len(place_S), len(tokens)
        own_T, position_T, predictor, chosen, place = torch.split(sent, [read, read, count, count, count])
        return Packed(own_T, position_T, predictor, chosen, place, packing, responses_BT.shape)

    def micro_batches(self, *, tokens: int, rows: int | None = None) -> Iterator[Tensor]:
        """Consecutive rows whose packed pass has at most about this many tokens, and at most so many rows."""
        own_B = self.lengths_B.tolist()
        start = used = 0
        last = -1
        for row, prompt in enumerate(self.prompt_B.tolist()):
            more = own_B[row] + (len(self.prompts[prompt]) if prompt != last or row == start else 0)
            if row > start and (used + more > tokens or (rows is not None and row - start == rows)):
                yield torch.arange(start, row)
                start, used = row, 0
                more = own_B[row] + len(self.prompts[prompt])
            used, last = used + more, prompt
        yield torch.arange(start, len(self))


@dataclass(frozen=True)
class Groups:
    """Rollouts of a batch of problems; the n rows of a problem are consecutive."""

    index_P: Ints
    rollouts: Rollouts
    scores_PN: Tensor
    """Scores of the verifier."""
    rewards_PN: Tensor
    """Rewards to train on: the scores after length control."""
    dropped: float = 0.0
    """Groups that a refill dropped, per group kept."""
    dropped_score: float = 0.0
    """Mean score of the dropped groups."""

    def __len__(self) -> int:
        return len(self.index_P)

    @classmethod
    def join(cls, parts: Sequence[Groups]) -> Groups:
        """Several batches as one; `dropped` and `dropped_score` are those of the first."""
        return replace(
            parts[0],
            index_P=np.concatenate([part.index_P for part in parts]),
            rollouts=Rollouts.join([part.rollouts for part in parts]),
            scores_PN=torch.cat([part.scores_PN for part in parts]),
            rewards_PN=torch.cat([part.rewards_PN for part in parts]),
        )
