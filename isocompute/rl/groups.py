"""Groups of rollouts between sampler and trainer: the n responses to each of some problems, and what they earned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from isocompute.core.arrays import Ints
from isocompute.rl.sampler import Rollouts, left_padded

__all__ = ["Groups"]

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
