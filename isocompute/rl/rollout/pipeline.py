"""PipelineRL-k (ScaleRL section 3.1): sampling continues across updates, and no token gets older than k updates.

`Ledger` decides which groups may start and which the trainer may take. Version v of the weights is the result of v
updates, and update s turns version s into s + 1. A group that starts at version v must be trained on by update v + k.
Two rules ensure this for all groups, whatever the lengths of their responses:

- a group starts only if it can be trained on in time after all groups before it, at Bp groups per update;
- an update takes complete groups in the order they started, but only if all remaining groups can still be trained on
  in time; otherwise the trainer waits for the oldest groups to complete.

Groups start in the order of their versions, so waiting for the Bp oldest always ends. With k = 0 there is room for
exactly one batch, which is on-policy training.

`Pipeline` is the `RolloutSource` that decodes a rolling pool of sequences until the ledger has a batch. Sequences in
flight use the new weights from their next token on and keep their old keys and values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from isocompute.rl.losses import mixed_groups
from isocompute.rl.rollout.pool import Pool, Records
from isocompute.rl.rollout.rollouts import Groups, Rollouts
from isocompute.rl.rollout.source import MAX_REFILLS, RolloutSource


@dataclass
class Group:
    """The rollouts of one problem, in flight or complete."""

    seat: int
    """Index of its block of rows in the records."""
    number: int
    """Number of groups that started before it."""
    problem: int
    version: int
    """Version of the weights when it started, which sampled its oldest token."""
    unfinished: int


class Ledger:
    """The groups under way, in the order they started; enforces the two rules above."""

    def __init__(self, *, problems_per_batch: int, steps: int) -> None:
        self.batch_size, self.steps = problems_per_batch, steps
        self.seats = problems_per_batch * (steps + 1)
        """The largest number of groups under way."""
        self._groups: dict[int, Group] = {}
        self._free = list(range(self.seats - 1, -1, -1))

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[Group]:
        return iter(self._groups.values())

    def room(self, *, version: int, next_update: int) -> int:
        """How many groups may start now, at this version of the sampler's weights."""
        in_time = self.steps - (next_update - version) + 1
        return max(0, self.batch_size * in_time - len(self._groups))

    def __getitem__(self, seat: int) -> Group:
        return self._groups[seat]

    def start(self, *, number: int, problem: int, version: int, rollouts: int) -> Group:
        """Add a group, for which there must be `room`; versions must not decrease from one group to the next."""
        group = Group(self._free.pop(), number, problem, version, rollouts)
        self._groups[group.seat] = group
        return group

    def complete(self) -> list[Group]:
        """Groups whose rollouts are all complete."""
        return [group for group in self._groups.values() if not group.unfinished]

    def batch(self, update: int) -> list[Group]:
        """The groups that this update may train on; empty while it has to wait."""
        taken = self.complete()[: self.batch_size]
        if len(taken) < self.batch_size:
            return []
        seats = {group.seat for group in taken}
        left = [group for group in self._groups.values() if group.seat not in seats]
        in_time = all(g.version + self.steps >= update + 1 + i // self.batch_size for i, g in enumerate(left))
        return taken if in_time else []

    def remove(self, groups: Iterable[Group]) -> None:
        """Remove groups that were trained on or dropped."""
        for group in groups:
            del self._groups[group.seat]
            self._free.append(group.seat)


class Pipeline(RolloutSource):
    """Takes batches from a pool that keeps sampling across updates."""

    _FLIGHT = "flight/"

    def __init__(self, *arguments: Any, slots: int | None = None, **options: Any) -> None:
        super().__init__(*arguments, **options)
        bp, n, device = self.cell.problems_per_batch, self.rollouts_per_problem, self.decoder.embed_tokens.weight.device
        # No token can be older than the number of updates in the run.
        self.ledger = Ledger(problems_per_batch=bp, steps=min(self.recipe.pipeline_steps, self.cell.update_steps))
        self.records = Records.empty(self.ledger.seats * n, self.settings.max_new_tokens, device)
        self.pool = Pool(
            self.decoder,
            self.settings,
            self.records,
            slots=max(n, slots or bp * n),
            at_once=self.sample_batch,
            prompt_tokens=max(len(prompt) for prompt in self.task.prompts),
            seed=self.cell.seed,
        )
        self._scores_QN = torch.zeros(self.ledger.seats, n, device=device)
        self._rewards_QN = torch.zeros_like(self._scores_QN)
        self.started = 0
        """Groups started so far."""
        self.restarted = 0
        """Responses that were in flight at a checkpoint and had to start again."""
        self._dropped = 0
        """Groups that `refill` dropped since the last batch; a limit ends this where every group has zero variance."""
        self._dropped_scores = 0.0
        """Sum of their mean scores."""
        self.version = 0
        """Version of the weights that the pool samples with."""

    @property
    def exhausted(self) -> bool:
        """Whether every problem is retired and no group is under way."""
        return super().exhausted and not len(self.ledger)

    def next_batch(self, step: int) -> Groups | None:
        """Decode until the ledger has a batch; once no problem is left, take whatever is complete."""
        while True:
            taken = self.ledger.batch(step)
            if not taken and not self._decode(step):
                taken = self.ledger.complete()[: self.cell.problems_per_batch]
                if not taken:
                    return None
            if taken:
                return self._take(taken)

    def new_weights(self, step: int) -> None:
        """Sequences in flight continue with the new weights and their old keys and values."""
        self.version = step

    def metrics(self) -> dict[str, float]:
        """Share of slots × decode steps that sampled a token since the last point."""
        if not self.pool.ticks:
            return {}
        busy = self.pool.worked / (self.pool.ticks * self.pool.slots)
        self.pool.ticks = self.pool.worked = 0
        return {"sampler_busy": busy}

    def _take(self, taken: list[Group]) -> Groups:
        """Complete groups as a batch; frees their seats."""
        seats = torch.tensor([group.seat for group in taken], device=self._scores_QN.device)
        groups = Groups(
            np.array([group.problem for group in taken]),
            self._rollouts(taken),
            self._scores_QN[seats],
            self._rewards_QN[seats],
            dropped=self._dropped / len(taken),
            dropped_score=self._dropped_scores / max(1, self._dropped),
        )
        self.ledger.remove(taken)
        self._dropped, self._dropped_scores = 0, 0.0
        return groups

    def _decode(self, next_update: int) -> bool:
        """Start groups where there is room and sample one token of each sequence; False when nothing is in flight."""
        self._admit(next_update)
        if not self.pool.in_flight:
            return False
        complete = []
        for row in self.pool.tick(self.version).tolist():
            group = self.ledger[row // self.rollouts_per_problem]
            group.unfinished -= 1
            if not group.unfinished:
                complete.append(group)
        if complete:
            self._grade(complete)
        return True

    def _admit(self, next_update: int) -> None:
        """Start as many groups as slots, the ledger and the remaining updates have room for."""
        bp, n = self.cell.problems_per_batch, self.rollouts_per_problem
        count = min(self.pool.free // n, self.ledger.room(version=self.version, next_update=next_update))
        # Near the end, start only groups that the remaining updates can take.
        count = min(count, bp * (self.cell.update_steps - next_update) - len(self.ledger))
        if count <= 0:
            return
        # Problems follow from the seed and the number of groups started, counted in batches as in `Sampler`.
        for problem in self.problems.draw(count, np.random.default_rng([self.cell.seed, self.started // bp])):
            group = self.ledger.start(number=self.started, problem=int(problem), version=self.version, rollouts=n)
            self._start(group, torch.arange(n, device=self.records.lengths_B.device))
            self.started += 1
            self.sampled += n

    def _start(self, group: Group, members: Tensor) -> None:
        """Start some of a group's responses from their first token."""
        n = self.rollouts_per_problem
        self.pool.add(self.task.prompts[group.problem], group.seat * n + members, group.number * n + members)

    def _grade(self, complete: list[Group]) -> None:
        """Verify newly completed groups; `refill` drops those with zero variance."""
        groups = self.grade(np.array([group.problem for group in complete]), self._rollouts(complete))
        seats = torch.tensor([group.seat for group in complete], device=self._scores_QN.device)
        self._scores_QN[seats], self._rewards_QN[seats] = groups.scores_PN, groups.rewards_PN
        if self.recipe.zero_variance_filter != "refill" or self._dropped >= MAX_REFILLS * self.cell.problems_per_batch:
            return
        same = np.flatnonzero(~mixed_groups(groups.rewards_PN).cpu().numpy())
        if len(same):
            dropped = groups.take(same)
            self._dropped += len(same)
            self._dropped_scores += float(dropped.scores_PN.mean(dim=1).sum())
            self.on_drop(dropped)
            self.ledger.remove([complete[i] for i in same])

    def _rollouts(self, groups: list[Group]) -> Rollouts:
        prompts = [self.task.prompts[group.problem] for group in groups for _ in range(self.rollouts_per_problem)]
        return self.records.rollouts(self._rows(groups), prompts, forced=self.settings.interruption is not None)

    def _rows(self, groups: list[Group]) -> Tensor:
        """Rows of the records that hold these groups."""
        n, device = self.rollouts_per_problem, self.records.lengths_B.device
        seats_Q = torch.tensor([group.seat for group in groups], dtype=torch.long, device=device)
        return (seats_Q[:, None] * n + torch.arange(n, device=device)).reshape(-1)

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Arrays and counters of a checkpoint, including the groups under way and their complete responses."""
        arrays, meta = super().state()
        groups = list(self.ledger)
        rows_B = self._rows(groups)
        for name, values in vars(self.records).items():
            arrays[f"{self._FLIGHT}{name}"] = values[rows_B].cpu().numpy()
        seats_Q = torch.tensor([group.seat for group in groups], dtype=torch.long, device=self._scores_QN.device)
        arrays[f"{self._FLIGHT}scores"] = self._scores_QN[seats_Q].cpu().numpy()
        arrays[f"{self._FLIGHT}rewards"] = self._rewards_QN[seats_Q].cpu().numpy()
        rows = [(group.number, group.problem, group.version) for group in groups]
        arrays[f"{self._FLIGHT}groups"] = np.array(rows, dtype=np.int64).reshape(-1, 3)
        counters = {"drawn": self.started, "restarted": self.restarted}
        return arrays, {**meta, **counters, "_dropped_since": self._dropped, "_dropped_scores": self._dropped_scores}

    def restore(self, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> None:
        """Resume from a checkpoint; responses that were in flight start again, and `restarted` counts them."""
        super().restore(arrays, meta)
        self.started, self.restarted = meta["drawn"], meta["restarted"]
        self._dropped, self._dropped_scores = meta["_dropped_since"], meta["_dropped_scores"]
        self.new_weights(meta["step"])
        n, device = self.rollouts_per_problem, self.records.lengths_B.device
        for place, (number, problem, version) in enumerate(arrays[f"{self._FLIGHT}groups"].tolist()):
            stored = slice(place * n, (place + 1) * n)
            ended_N = torch.from_numpy(arrays[f"{self._FLIGHT}ended_B"][stored])
            lost = n - int(ended_N.sum())
            group = self.ledger.start(number=number, problem=problem, version=version, rollouts=lost)
            rows_N = self._rows([group])
            for name, values in vars(self.records).items():
                values[rows_N] = torch.from_numpy(arrays[f"{self._FLIGHT}{name}"][stored]).to(device)
            for name, own_QN in (("scores", self._scores_QN), ("rewards", self._rewards_QN)):
                own_QN[group.seat] = torch.from_numpy(arrays[f"{self._FLIGHT}{name}"][place]).to(device)
            if lost:
                self._start(group, (~ended_N).nonzero()[:, 0].to(device))
            self.restarted += lost
