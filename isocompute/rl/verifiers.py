"""Verifiers: from rollouts to scores."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from isocompute.core.arrays import Ints
from isocompute.problems.problem_set import ProblemSet
from isocompute.rl.model import read_tokenizer
from isocompute.rl.sampler import Rollouts

__all__ = ["ChainVerifier", "JoinedVerifier", "PartVerifier", "TextVerifier", "Verifier"]


class Verifier(Protocol):
    """Scores responses."""

    def __call__(self, problems_B: Tensor, rollouts: Rollouts) -> Tensor:
        """Rewards of the rollouts, each of the problem with that number."""
        ...


class ChainVerifier:
    """Right when the response ends by itself and the number before its end is the answer; runs on any device."""

    def __init__(self, answers_P: Ints, device: torch.device) -> None:
        self.answers_P = torch.from_numpy(answers_P).to(device)
        """Token of each problem's answer."""

    def __call__(self, problems_B: Tensor, rollouts: Rollouts) -> Tensor:
        """One comparison a rollout."""
        place_B = (rollouts.lengths_B - 2).clamp(min=0)
        final_B = rollouts.responses_BT.gather(1, place_B[:, None])[:, 0]
        right_B = rollouts.stopped_B & (rollouts.lengths_B > 1) & (final_B == self.answers_P[problems_B])
        return right_B.float()


class PartVerifier:
    """Some problems of a set, numbered anew."""

    def __init__(self, verify: Verifier, places: Ints) -> None:
        self.verify, self.places = verify, torch.from_numpy(places)

    def __call__(self, problems_B: Tensor, rollouts: Rollouts) -> Tensor:
        """What the whole set's verifier says."""
        return self.verify(self.places.to(problems_B.device)[problems_B], rollouts)


class JoinedVerifier:
    """Several sets one after another, each with its own verifier."""

    def __init__(self, verifiers: Sequence[Verifier], sizes: Sequence[int]) -> None:
        self.verifiers = verifiers
        self.starts = [sum(sizes[:i]) for i in range(len(sizes) + 1)]

    def __call__(self, problems_B: Tensor, rollouts: Rollouts) -> Tensor:
        """Every set sees its own rollouts."""
        rewards_B = torch.zeros(len(problems_B), device=rollouts.mask_BT.device)
        for verify, start, end in zip(self.verifiers, self.starts[:-1], self.starts[1:], strict=True):
            rows = ((problems_B >= start) & (problems_B < end)).nonzero()[:, 0]
            if len(rows):
                rewards_B[rows] = verify(problems_B[rows] - start, rollouts.take(rows))
        return rewards_B


class TextVerifier:
    """Decodes responses and asks the problem set; equal responses to a problem are verified once."""

    def __init__(self, problems: ProblemSet, folder: Path) -> None:
        self.problems = problems
        self.tokenizer = read_tokenizer(folder)

    def __call__(self, problems_B: Tensor, rollouts: Rollouts) -> Tensor:
        """The set's own verifier on every distinct response."""
        lengths = rollouts.lengths_B.tolist()
        rows = [row[:n] for row, n in zip(rollouts.responses_BT.tolist(), lengths, strict=True)]
        texts = self.tokenizer.decode_batch(rows, skip_special_tokens=True)
        known: dict[tuple[int, str], float] = {}
        rewards = []
        for problem, text in zip(problems_B.tolist(), texts, strict=True):
            if (problem, text) not in known:
                known[problem, text] = self.problems.verify(self.problems.problems[problem], text)
            rewards.append(known[problem, text])
        return torch.tensor(rewards, dtype=torch.float32, device=rollouts.mask_BT.device)
