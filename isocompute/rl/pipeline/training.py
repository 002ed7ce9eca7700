"""Training on a rolling pool of sequences: PipelineRL-k.

Sampling goes on until the ledger has a batch for the trainer; the update runs, and the sequences in flight take the new
weights at their next token. With `overlap`, an update runs beside the sampler for that many ticks, in a thread of its
own (on a GPU, a stream of its own; with a second device, there): the sampler then has a copy of the weights, which gets
the new ones when the update is done. The schedule is counted in ticks and not in seconds, so it is the same every time.
"""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor

from isocompute.rl.advantages import mixed_groups
from isocompute.rl.groups import Groups
from isocompute.rl.pipeline.ledger import Group, Ledger
from isocompute.rl.pipeline.pool import Pool, Records
from isocompute.rl.sampler import Rollouts
from isocompute.rl.training import REFILLS, LmTraining
from isocompute.rl.update import UpdateStats

__all__ = ["PipelineTraining"]

_FLIGHT = "flight/"


class PipelineTraining(LmTraining):
    """`LmTraining` whose rollouts come from a pool that never drains."""

    _COUNTERS = (*LmTraining._COUNTERS, "drawn", "restarted", "_dropped_since", "_dropped_scores")

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        bp, n, device = self.cell.problems_per_batch, self.sampled_per_problem, self.model.device
        # No token can get older than the run has updates.
        self.ledger = Ledger(problems_per_batch=bp, steps=min(self.recipe.pipeline_steps, self.update_steps))
        self.overlap = self.sizes.overlap
        where = torch.device(self.sizes.generation_device or device)
        self.apart = self.overlap > 0 or self.sizes.generation_device is not None
        self.sampling_decoder = copy.deepcopy(self.decoder).to(where) if self.apart else self.decoder
        self.records = Records.empty(self.ledger.seats * n, self.tasks.max_new_tokens, where)
        self.pool = Pool(
            self.sampling_decoder,
            self._settings(self.recipe.temperature),
            self.records,
            slots=max(n, self.sizes.slots or bp * n),
            at_once=self.sizes.sample_batch,
            prompt_tokens=max(len(prompt) for prompt in self.tasks.train.prompts),
            seed=self.cell.seed,
        )
        self._scores_QN = torch.zeros(self.ledger.seats, n, device=device)
        self._rewards_QN = torch.zeros_like(self._scores_QN)
        self.drawn = 0
        self._dropped_since = 0
        """Groups dropped since the last batch; a set that says nothing is trained on in the end."""
        self._dropped_scores = 0.0
        """Sum of their mean scores."""
        self.version = 0
        """Of the weights that the pool samples with."""
        self._executor = ThreadPoolExecutor(max_workers=1) if self.overlap else None
        self._stream: Any = None
        if self.overlap and device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch's annotation is missing

    def due(self) -> bool:
        """As elsewhere; while groups are under way, the last problem has not been trained on."""
        if len(self.ledger) and not self.sampler.active_P.any():
            return self.evaluated < len(self.steps) and self.step >= self.steps[self.evaluated]
        return super().due()

    def _gather(self) -> Groups | None:
        """The next batch; at the end, when no problem is left, whatever is complete."""
        while True:
            taken = self.ledger.batch(self.step)
            if not taken and not self._tick(next_update=self.step):
                taken = self.ledger.complete()[: self.cell.problems_per_batch]
                if not taken:
                    return None
            if taken:
                return self._take(taken)

    def _take(self, taken: list[Group]) -> Groups:
        """Complete groups as a batch; their places are free again."""
        seats = torch.tensor([group.seat for group in taken], device=self._scores_QN.device)
        index_P = np.array([group.problem for group in taken])
        groups = Groups(
            index_P,
            self._rollouts(taken),
            self._scores_QN[seats],
            self._rewards_QN[seats],
            dropped=self._dropped_since / len(taken),
            dropped_score=self._dropped_scores / max(1, self._dropped_since),
        )
        self.ledger.remove(taken)
        self._dropped_since, self._dropped_scores = 0, 0.0
        return groups

    def _learn(self, groups: Groups) -> None:
        """Update; beside it, where asked for, the pool goes on with the weights it has."""
        if self._executor is None:
            stats = self._train_on(groups)
        else:
            if self._stream is not None:
                self._stream.wait_stream(torch.cuda.current_stream())  # the batch is still being gathered
            learning = self._executor.submit(self._train_beside, groups)
            for _ in range(self.overlap):
                if not self._tick(next_update=self.step + 1):
                    break
            stats = learning.result()
        self._tally(groups, stats)
        self._push()

    def _train_beside(self, groups: Groups) -> UpdateStats:
        """The update on a stream of its own; its results are there when it returns."""
        if self._stream is None:
            return self._train_on(groups)
        with torch.cuda.stream(self._stream):
            stats = self._train_on(groups)
            self._stream.synchronize()
        return stats

    def _push(self) -> None:
        """The newest weights to the sampler, for all tokens from now on."""
        if self.apart:
            with torch.no_grad():
                for old, new in zip(self.sampling_decoder.parameters(), self.decoder.parameters(), strict=True):
                    old.copy_(new, non_blocking=True)
        self.pool.new_weights()
        self.version = self.step

    # Sampling

    def _tick(self, *, next_update: int) -> bool:
        """Start what there is room for, and one more token for everyone; False when there is nothing to do."""
        self._admit(next_update)
        if not self.pool.in_flight:
            return False
        ended = self.pool.tick(self.version).tolist()
        n = self.sampled_per_problem
        done = []
        for row in ended:
            group = self.ledger[row // n]
            group.unfinished -= 1
            if not group.unfinished:
                done.append(group)
        if done:
            self._judge(done)
        return True

    def _admit(self, next_update: int) -> None:
        n, device = self.sampled_per_problem, self.records.lengths_B.device
        count = min(self.pool.free // n, self.ledger.room(version=self.version, next_update=next_update))
        # At the end no more than the last updates will take: what is begun is trained on, or dropped and replaced.
        left = self.cell.problems_per_batch * (self.update_steps - next_update)
        count = min(count, left - len(self.ledger))
        if count <= 0:
            return
        # Problems follow from the seed and how many were drawn before, counted in batches as elsewhere.
        batch = self.drawn // self.cell.problems_per_batch
        for problem in self.sampler.draw(count, np.random.default_rng([self.cell.seed, batch])):
            group = self.ledger.start(number=self.drawn, problem=int(problem), version=self.version, rollouts=n)
            self._begin(group, torch.arange(n, device=device))
            self.drawn += 1
            self.sampled += n

    def _begin(self, group: Group, members: Tensor) -> None:
        """Responses of a group, from their first token."""
        n = self.sampled_per_problem
        prompt = self.tasks.train.prompts[group.problem]
        self.pool.add(prompt, group.seat * n + members, group.number * n + members)

    def _judge(self, done: list[Group]) -> None:
        """Verify groups that have just become complete; without a difference in rewards, `refill` drops them."""
        groups = self._judged(np.array([group.problem for group in done]), self._rollouts(done))
        seats = torch.tensor([group.seat for group in done], device=self._scores_QN.device)
        self._scores_QN[seats], self._rewards_QN[seats] = groups.scores_PN, groups.rewards_PN
        if self.recipe.zero_variance_filter == "refill":
            same = np.flatnonzero(~mixed_groups(groups.rewards_PN).cpu().numpy())
            if len(same) and self._dropped_since < REFILLS * self.cell.problems_per_batch:
                dropped = groups.take(same)
                self._dropped_since += len(same)
                self._dropped_scores += float(dropped.scores_PN.mean(dim=1).sum())
                self._drop(dropped)
                self.ledger.remove([done[i] for i in same])

    def _rollouts(self, groups: list[Group]) -> Rollouts:
        prompts = [self.tasks.train.prompts[group.problem] for group in groups for _ in range(self.sampled_per_problem)]
        rollouts = self.records.rollouts(self._rows(groups), prompts, forced=self.interruption is not None)
        return rollouts.to(self.model.device)

    def _rows(self, groups: list[Group]) -> Tensor:
        """Where the responses of these groups are recorded."""
        n, device = self.sampled_per_problem, self.records.lengths_B.device
        seats_Q = torch.tensor([group.seat for group in groups], dtype=torch.long, device=device)
        return (seats_Q[:, None] * n + torch.arange(n, device=device)).reshape(-1)

    def _since_last(self) -> dict[str, Any]:
        out = super()._since_last()
        if self.pool.ticks:
            out["sampler_busy"] = self.pool.worked / (self.pool.ticks * self.pool.slots)
            self.pool.ticks = self.pool.worked = 0
        return out

    # Checkpoints: whole responses are kept, those in flight begin again

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Everything `restore` needs; of the pool, the responses that are whole."""
        arrays, meta = super().state()
        groups = list(self.ledger)
        rows_B = self._rows(groups)
        for name, values in vars(self.records).items():
            arrays[f"{_FLIGHT}{name}"] = values[rows_B].cpu().numpy()
        seats_Q = torch.tensor([group.seat for group in groups], dtype=torch.long, device=self._scores_QN.device)
        arrays[f"{_FLIGHT}scores"] = self._scores_QN[seats_Q].cpu().numpy()
        arrays[f"{_FLIGHT}rewards"] = self._rewards_QN[seats_Q].cpu().numpy()
        told = [(group.number, group.problem, group.version) for group in groups]
        arrays[f"{_FLIGHT}groups"] = np.array(told, dtype=np.int64).reshape(-1, 3)
        return arrays, meta

    def restore(self, arrays: dict[str, np.ndarray], meta: dict[str, Any]) -> None:
        """Go on from a checkpoint: responses that were in flight begin again, and `restarted` counts them."""
        super().restore(arrays, meta)
        self._push()
        n, device = self.sampled_per_problem, self.records.lengths_B.device
        for place, (number, problem, version) in enumerate(arrays[f"{_FLIGHT}groups"].tolist()):
            stored = slice(place * n, (place + 1) * n)
            ended_N = torch.from_numpy(arrays[f"{_FLIGHT}ended_B"][stored])
            lost = n - int(ended_N.sum())
            group = self.ledger.start(number=number, problem=problem, version=version, rollouts=lost)
            rows_N = self._rows([group])
            for name, values in vars(self.records).items():
                values[rows_N] = torch.from_numpy(arrays[f"{_FLIGHT}{name}"][stored]).to(device)
            for name, mine_QN in (("scores", self._scores_QN), ("rewards", self._rewards_QN)):
                mine_QN[group.seat] = torch.from_numpy(arrays[f"{_FLIGHT}{name}"][place]).to(mine_QN.device)
            if lost:
                self._begin(group, (~ended_N).nonzero()[:, 0].to(device))
            self.restarted += lost
