"""Rollouts, and the groups of n rollouts per problem that go from the sampler to the trainer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from isocompute.core.arrays import Ints


@dataclass(frozen=True)
class Rollouts:
    """Prompts left-padded, responses right-padded; everything on the decoder's device."""

    prompts_BT: Tensor
    prompt_lengths_B: Tensor
    responses_BT: Tensor
    logprobs_BT: Tensor
    mask_BT: Tensor
    """True where the response has a token (its stop token included)."""
    stopped_B: Tensor
    """Whether the response ended with a stop token."""
    forced_BT: Tensor | None = None
    """True for tokens that an interruption forced; None if there are none."""
    versions_BT: Tensor | None = None
    """The number of updates made when each token was sampled; None if the batch is on-policy."""

    @property
    def lengths_B(self) -> Tensor:
        """Tokens of each response."""
        return self.mask_BT.sum(dim=1)

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

    def take(self, rows: Tensor) -> Rollouts:
        """Some of the rows, without the padding that none of them needs."""
        mask_BT, lengths_B = self.mask_BT[rows], self.prompt_lengths_B[rows]
        used, start = mask_BT.shape[1], 0
        if len(rows):
            used = int(mask_BT.any(dim=0).sum())
            start = self.prompts_BT.shape[1] - int(lengths_B.max())
        return Rollouts(
            self.prompts_BT[rows, start:],
            lengths_B,
            self.responses_BT[rows, :used],
            self.logprobs_BT[rows, :used],
            mask_BT[:, :used],
            self.stopped_B[rows],
            None if self.forced_BT is None else self.forced_BT[rows, :used],
            None if self.versions_BT is None else self.versions_BT[rows, :used],
        )

    @classmethod
    def join(cls, parts: Sequence[Rollouts]) -> Rollouts:
        """Several batches as one, padded to common widths."""
        if len(parts) == 1:
            return parts[0]
        prompt = max(part.prompts_BT.shape[1] for part in parts)
        new = max(part.responses_BT.shape[1] for part in parts)

        def right(name: str, value: float) -> Tensor:
            tensors = [getattr(part, name) for part in parts]
            return torch.cat([F.pad(t, (0, new - t.shape[1]), value=value) for t in tensors])

        def optional(name: str, value: float) -> Tensor | None:
            return None if getattr(parts[0], name) is None else right(name, value)

        prompts = [F.pad(p.prompts_BT, (prompt - p.prompts_BT.shape[1], 0)) for p in parts]
        return cls(
            torch.cat(prompts),
            torch.cat([p.prompt_lengths_B for p in parts]),
            right("responses_BT", 0),
            right("logprobs_BT", 0.0),
            right("mask_BT", False),
            torch.cat([p.stopped_B for p in parts]),
            optional("forced_BT", False),
            optional("versions_BT", 0),
        )


def left_padded(prompts: Sequence[Sequence[int]]) -> Tensor:
    """Prompts of unequal length as one array, padded with zeros on the left."""
    width = max(len(prompt) for prompt in prompts)
    return torch.tensor([[0] * (width - len(prompt)) + list(prompt) for prompt in prompts], dtype=torch.long)


_STORED = ("responses_BT", "logprobs_BT", "mask_BT", "stopped_B", "forced_BT", "versions_BT")
"""Fields of `Rollouts` in a checkpoint; prompts are read from the problems again."""


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

    def take(self, places: Sequence[int] | Ints) -> Groups:
        """Some of the groups."""
        n, device = self.scores_PN.shape[1], self.scores_PN.device
        at_P = torch.as_tensor(np.asarray(places), dtype=torch.long, device=device)
        rows_B = (at_P[:, None] * n + torch.arange(n, device=device)).reshape(-1)
        index_P = self.index_P[np.asarray(places, dtype=np.int64)]
        return replace(
            self,
            index_P=index_P,
            rollouts=self.rollouts.take(rows_B),
            scores_PN=self.scores_PN[at_P],
            rewards_PN=self.rewards_PN[at_P],
        )

    def with_dropped(self, scores_PN: Tensor | None) -> Groups:
        """These groups, recording the scores of the groups that a refill dropped."""
        if scores_PN is None:
            return self
        return replace(self, dropped=len(scores_PN) / len(self), dropped_score=float(scores_PN.mean()))

    def split(self, size: int) -> list[Groups]:
        """Consecutive batches of `size` problems; the last may have fewer."""
        if len(self) <= size:
            return [self]
        return [self.take(range(at, min(at + size, len(self)))) for at in range(0, len(self), size)]

    @classmethod
    def join(cls, parts: Sequence[Groups]) -> Groups:
        """Several batches as one; `dropped` and `dropped_score` are those of the first."""
        if len(parts) == 1:
            return parts[0]
        return replace(
            parts[0],
            index_P=np.concatenate([part.index_P for part in parts]),
            rollouts=Rollouts.join([part.rollouts for part in parts]),
            scores_PN=torch.cat([part.scores_PN for part in parts]),
            rewards_PN=torch.cat([part.rewards_PN for part in parts]),
        )

    def state(self, prefix: str) -> dict[str, np.ndarray]:
        """The arrays of a checkpoint that `restore` needs."""
        arrays = {name: getattr(self.rollouts, name) for name in _STORED}
        arrays |= {"scores_PN": self.scores_PN, "rewards_PN": self.rewards_PN}
        out = {f"{prefix}{name}": array.cpu().numpy() for name, array in arrays.items() if array is not None}
        dropped = np.array([self.dropped, self.dropped_score])
        return {**out, f"{prefix}index_P": self.index_P, f"{prefix}dropped": dropped}

    @classmethod
    def restore(
        cls, arrays: Mapping[str, np.ndarray], prefix: str, prompts: Sequence[Sequence[int]], device: torch.device
    ) -> Groups | None:
        """Groups from a checkpoint; None if it has none under this prefix."""
        if f"{prefix}index_P" not in arrays:
            return None
        index_P = arrays[f"{prefix}index_P"]

        def array(name: str) -> Tensor | None:
            stored = arrays.get(f"{prefix}{name}")
            return None if stored is None else torch.from_numpy(stored.copy()).to(device)

        def required(name: str) -> Tensor:
            found = array(name)
            assert found is not None, name
            return found

        scores_PN = required("scores_PN")
        of_B = np.repeat(index_P, scores_PN.shape[1])
        asked = [prompts[i] for i in of_B]
        rollouts = Rollouts(
            left_padded(asked).to(device),
            torch.tensor([len(prompt) for prompt in asked], device=device),
            required("responses_BT"),
            required("logprobs_BT"),
            required("mask_BT"),
            required("stopped_B"),
            array("forced_BT"),
            array("versions_BT"),
        )
        dropped, dropped_score = arrays.get(f"{prefix}dropped", np.zeros(2)).tolist()
        return cls(index_P, rollouts, scores_PN, required("rewards_PN"), dropped, dropped_score)
