"""Batches for the training loop: draw problems, sample and grade responses, keep or drop groups.

The loop takes its batches from a `RolloutSource`. A `Sampler` samples on demand: one on-policy batch, or several at
once (PPO-off-policy-k, ScaleRL section 3.1). `rollout.pipeline` has the other source.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from isocompute.core.allocation import Cell
from isocompute.core.arrays import Ints
from isocompute.core.recipe import Recipe
from isocompute.problems.problem_set import ProblemSampler
from isocompute.rl.lengths import length_penalty, penalty_window
from isocompute.rl.losses import mixed_groups
from isocompute.rl.model.decoder import Decoder
from isocompute.rl.rollout.eager import SamplingSettings, sample
from isocompute.rl.rollout.rollouts import Groups, Rollouts
from isocompute.rl.tasks import Task

MAX_REFILLS = 10
"""Rounds of sampling after which a batch is used with the groups it has, as in DAPO's code."""


class RolloutSource(ABC):
    """Samples and grades the batches of a run.

    Problems and random numbers follow from the seed and the counters, so a checkpoint needs no generator state.
    """

    def __init__(
        self,
        cell: Cell,
        recipe: Recipe,
        task: Task,
        decoder: Decoder,
        settings: SamplingSettings,
        *,
        sample_batch: int,
    ) -> None:
        self.cell, self.recipe, self.task, self.settings = cell, recipe, task, settings
        self.decoder, self.sample_batch = decoder, sample_batch
        self.problems = ProblemSampler(len(task), recipe.no_positive_resampling)
        self.rollouts_per_problem = recipe.baseline_rollouts or cell.rollouts_per_problem
        self.sampled = 0
        """Rollouts sampled so far, trained on or not; also the row number of the next one for its random numbers."""
        self.correct_P = np.zeros(len(task), dtype=np.int64)
        self.seen_P = np.zeros_like(self.correct_P)
        """Correct responses and all responses to each problem since the last evaluation."""
        self.on_drop: Callable[[Groups], None] = lambda _: None
        """Called with groups that were sampled but will not be trained on."""

    @property
    def exhausted(self) -> bool:
        """Whether every problem is retired and no sampled group is left to train on."""
        return not self.problems.active_P.any()

    @abstractmethod
    def next_batch(self, step: int) -> Groups | None:
        """The batch of update `step`; None when no problem is left."""

    def new_weights(self, step: int) -> None:  # noqa: B027 - a source that samples on demand has nothing to do
        """Called after an update: the decoder now has the weights of version `step`."""

    def metrics(self) -> dict[str, float]:
        """Metrics about sampling since the last point; called once for each point."""
        return {}

    def grade(self, index_P: Ints, rollouts: Rollouts) -> Groups:
        """Verify responses, count the correct ones per problem, and apply the length penalty."""
        device, n = rollouts.mask_BT.device, self.rollouts_per_problem
        problem_B = torch.from_numpy(index_P).to(device).repeat_interleave(n)
        scores_PN = self.task.verify(problem_B, rollouts).view(len(index_P), n)
        correct_P = (scores_PN > 0.5).sum(dim=1).cpu().numpy()
        self.problems.record(index_P, correct_P, n)
        np.add.at(self.correct_P, index_P, correct_P)  # a pipeline may finish two groups of one problem at once
        np.add.at(self.seen_P, index_P, n)
        rewards_PN = scores_PN
        if self.recipe.length_control == "penalty":
            longest, tolerance = penalty_window(self.recipe, budget=self.settings.max_new_tokens)
            lengths_PN = rollouts.lengths_B.view(scores_PN.shape)
            rewards_PN = length_penalty(scores_PN, lengths_PN, longest=longest, tolerance=tolerance)
        return Groups(index_P, rollouts, scores_PN, rewards_PN)

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Arrays and counters of a checkpoint."""
        arrays = {"right_since": self.correct_P, "seen_since": self.seen_P, **self.problems.state()}
        return arrays, {"sampler_at": self.problems.at, "sampled": self.sampled}

    def restore(self, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> None:
        """Resume from a checkpoint."""
        self.problems.restore(dict(arrays), meta["sampler_at"])
        self.sampled = max(meta.get("sampled", 0), meta["rollouts"])  # 0.1 numbered rows by rollouts
        self.correct_P, self.seen_P = arrays["right_since"].copy(), arrays["seen_since"].copy()


class Sampler(RolloutSource):
    """Samples batches on demand."""

    _WAITING = "waiting/"

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.waiting: list[Groups] = []
        """Batches that were sampled together with an earlier one (PPO-off-policy-k)."""

    @property
    def exhausted(self) -> bool:
        """Whether every problem is retired and no batch waits."""
        return super().exhausted and not self.waiting

    def next_batch(self, step: int) -> Groups | None:
        """A new batch, or one that was sampled with an earlier batch."""
        if not self.waiting:
            batches = min(self.recipe.off_policy_steps, max(1, self.cell.update_steps - step))
            fresh = self._groups(self.cell.problems_per_batch * batches, step)
            self.waiting = [] if fresh is None else fresh.split(self.cell.problems_per_batch)
        return self.waiting.pop(0) if self.waiting else None

    def _groups(self, problems: int, step: int) -> Groups | None:
        """Groups of `problems` problems, or of as many as are left.

        Under `refill` (DAPO's dynamic sampling), groups of other problems replace zero-variance groups.
        """
        kept: list[Groups] = []
        empty: list[Groups] = []
        missing, seed = problems, [self.cell.seed, step]
        for attempt in range(MAX_REFILLS):
            index_P = self.problems.draw(missing, np.random.default_rng([*seed, attempt] if attempt else seed))
            if not len(index_P):
                break
            groups = self.grade(index_P, self.sample(index_P, step))
            if self.recipe.zero_variance_filter != "refill":
                return groups
            mixed_P = mixed_groups(groups.rewards_PN).cpu().numpy()
            for some, places in ((kept, np.flatnonzero(mixed_P)), (empty, np.flatnonzero(~mixed_P))):
                if len(places):
                    some.append(groups.take(places))
            missing -= int(mixed_P.sum())
            if not missing:
                break
        if not kept and empty:  # all groups have zero variance; the update will change nothing
            kept = [empty.pop()]
        for dropped in empty:
            self.on_drop(dropped)
        return Groups.join(kept).with_dropped(Groups.join(empty).scores_PN if empty else None) if kept else None

    def sample(self, index_P: Ints, step: int = 0) -> Rollouts:
        """Sample n responses to each problem, at most `sample_batch` rows at a time."""
        n = self.rollouts_per_problem
        at_once = max(1, self.sample_batch // n)
        parts = []
        for start in range(0, len(index_P), at_once):
            prompts = [self.task.prompts[i] for i in index_P[start : start + at_once]]
            numbers_B = torch.arange(len(prompts) * n) + self.sampled + start * n
            parts.append(
                sample(self.decoder, prompts, self.settings, seed=self.cell.seed, per_prompt=n, row_numbers=numbers_B)
            )
        self.sampled += len(index_P) * n
        rollouts = Rollouts.join(parts)
        if self.recipe.off_policy_steps > 1:
            rollouts = replace(rollouts, versions_BT=torch.full_like(rollouts.responses_BT, step))
        return rollouts

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Arrays and counters of a checkpoint, including the batches that wait."""
        arrays, meta = super().state()
        if self.waiting:
            arrays |= Groups.join(self.waiting).state(self._WAITING)
        return arrays, meta

    def restore(self, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> None:
        """Resume from a checkpoint."""
        super().restore(arrays, meta)
        device = self.decoder.embed_tokens.weight.device
        waiting = Groups.restore(arrays, self._WAITING, self.task.prompts, device)
        self.waiting = [] if waiting is None else waiting.split(self.cell.problems_per_batch)
