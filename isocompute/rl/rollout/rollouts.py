"""Rollouts, and the groups of them that go from the sampler to the trainer: n responses to each of some problems."""

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
    """Whether the response ended by itself."""
    forced_BT: Tensor | None = None
    """Where a token was put there by an interruption; None: nowhere."""
    versions_BT: Tensor | None = None
    """How many updates had been made when the token was sampled; None: as many for all of them."""

    @property
    def lengths_B(self) -> Tensor:
        """Tokens of each response."""
        return self.mask_BT.sum(dim=1)

    @property
    def sampled_BT(self) -> Tensor:
        """Where the response has a token that the policy chose: what is trained on and averaged over."""
        return self.mask_BT if self.forced_BT is None else self.mask_BT & ~self.forced_BT

    @property
    def interrupted_B(self) -> Tensor:
        """Which responses an interruption has ended."""
        return torch.zeros_like(self.stopped_B) if self.forced_BT is None else self.forced_BT.any(dim=1)

    def __len__(self) -> int:
        return len(self.responses_BT)

    def take(self, rows: Tensor) -> Rollouts:
        """Some of the rows, without columns that none of them uses."""
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
    def join(cls, parts: Sequence[Rollouts], *, pad_token: int = 0) -> Rollouts:
        """Several batches as one, padded to common widths."""
        if len(parts) == 1:
            return parts[0]
        prompt = max(part.prompts_BT.shape[1] for part in parts)
        new = max(part.responses_BT.shape[1] for part in parts)

        def right(name: str, value: float) -> Tensor:
            tensors = [getattr(part, name) for part in parts]
            return torch.cat([F.pad(t, (0, new - t.shape[1]), value=value) for t in tensors])

        def where_kept(name: str, value: float) -> Tensor | None:
            return None if getattr(parts[0], name) is None else right(name, value)

        prompts = [F.pad(p.prompts_BT, (prompt - p.prompts_BT.shape[1], 0), value=pad_token) for p in parts]
        return cls(
            torch.cat(prompts),
            torch.cat([p.prompt_lengths_B for p in parts]),
            right("responses_BT", pad_token),
            right("logprobs_BT", 0.0),
            right("mask_BT", False),
            torch.cat([p.stopped_B for p in parts]),
            where_kept("forced_BT", False),
            where_kept("versions_BT", 0),
        )


def left_padded(prompts: Sequence[Sequence[int]], pad_token: int) -> Tensor:
    """Prompts of unequal length as one array, ending together."""
    width = max(len(prompt) for prompt in prompts)
    return torch.tensor([[pad_token] * (width - len(prompt)) + list(prompt) for prompt in prompts], dtype=torch.long)


_COLUMNS = ("responses_BT", "logprobs_BT", "mask_BT", "stopped_B", "forced_BT", "versions_BT")


@dataclass(frozen=True)
class Groups:
    """Rows of a problem stand together."""

    index_P: Ints
    rollouts: Rollouts
    scores_PN: Tensor
    """The verifier's."""
    rewards_PN: Tensor
    """What is trained on: scores after length control."""
    dropped: float = 0.0
    """Groups that a refill dropped for each of these."""
    dropped_score: float = 0.0
    """Mean score of those."""

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

    def beside(self, scores_PN: Tensor | None) -> Groups:
        """The same, sampled beside groups of these scores that a refill dropped."""
        if scores_PN is None:
            return self
        return replace(self, dropped=len(scores_PN) / len(self), dropped_score=float(scores_PN.mean()))

    def split(self, size: int) -> list[Groups]:
        """In order, `size` problems each; the last may have fewer."""
        if len(self) <= size:
            return [self]
        return [self.take(range(at, min(at + size, len(self)))) for at in range(0, len(self), size)]

    @classmethod
    def join(cls, parts: Sequence[Groups]) -> Groups:
        """Several as one; what was dropped for them is what was dropped for the first."""
        if len(parts) == 1:
            return parts[0]
        return replace(
            parts[0],
            index_P=np.concatenate([part.index_P for part in parts]),
            rollouts=Rollouts.join([part.rollouts for part in parts]),
            scores_PN=torch.cat([part.scores_PN for part in parts]),
            rewards_PN=torch.cat([part.rewards_PN for part in parts]),
        )

    # As arrays of a checkpoint; prompts are the problems' own and are not stored.

    def state(self, prefix: str) -> dict[str, np.ndarray]:
        """Everything `restore` needs."""
        arrays = {name: getattr(self.rollouts, name) for name in _COLUMNS}
        arrays |= {"scores_PN": self.scores_PN, "rewards_PN": self.rewards_PN}
        out = {f"{prefix}{name}": array.cpu().numpy() for name, array in arrays.items() if array is not None}
        dropped = np.array([self.dropped, self.dropped_score])
        return {**out, f"{prefix}index_P": self.index_P, f"{prefix}dropped": dropped}

    @classmethod
    def restore(
        cls, arrays: Mapping[str, np.ndarray], prefix: str, prompts: Sequence[Sequence[int]], device: torch.device
    ) -> Groups | None:
        """From a checkpoint, where it has some."""
        if f"{prefix}index_P" not in arrays:
            return None
        index_P = arrays[f"{prefix}index_P"]

        def array(name: str) -> Tensor | None:
            stored = arrays.get(f"{prefix}{name}")
            return None if stored is None else torch.from_numpy(stored.copy()).to(device)

        def kept(name: str) -> Tensor:
            found = array(name)
            assert found is not None, name
            return found

        scores_PN = kept("scores_PN")
        of_B = np.repeat(index_P, scores_PN.shape[1])
        asked = [prompts[i] for i in of_B]
        rollouts = Rollouts(
            left_padded(asked, 0).to(device),
            torch.tensor([len(prompt) for prompt in asked], device=device),
            kept("responses_BT"),
            kept("logprobs_BT"),
            kept("mask_BT"),
            kept("stopped_B"),
            array("forced_BT"),
            array("versions_BT"),
        )
        dropped, dropped_score = arrays.get(f"{prefix}dropped", np.zeros(2)).tolist()
        return cls(index_P, rollouts, scores_PN, kept("rewards_PN"), dropped, dropped_score)
