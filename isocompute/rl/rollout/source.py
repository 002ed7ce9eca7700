"""Batches for the training loop: draw problems, sample responses with an engine, grade them beside it, keep or drop.

One loop serves every kind of staleness. `Ledger` decides which groups may start and which the trainer may take. Version
v of the weights is the result of v updates, and update s turns version s into s + 1. Under PipelineRL-k (ScaleRL
section 3.1) a group that starts at version v must be trained on by update v + k; two rules ensure this for all groups,
whatever the lengths of their responses:

- a group starts only if it can be trained on in time after all groups before it, at Bp groups per update;
- an update takes complete groups in the order they started, but only if all remaining groups can still be trained on
  in time; otherwise the trainer waits for the oldest groups to complete.

Groups start in the order of their versions, so waiting for the Bp oldest always ends. With k = 0 there is room for
exactly one batch, which is on-policy training; or for several at once, which is PPO-off-policy-k.

Which groups a batch holds never depends on how long grading takes: a group counts as complete when it is sampled, and
the trainer waits for the grades of those that it takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from isocompute.core.allocation import Cell, ignore
from isocompute.core.recipe import Recipe
from isocompute.problems.problem_set import ProblemSampler
from isocompute.rl.grading import GradingPool
from isocompute.rl.lengths import length_penalty, penalty_window
from isocompute.rl.losses import mixed_groups
from isocompute.rl.rollout.engine import FinishedGroup, Groups, PromptGroup, RolloutEngine, Rollouts, streams
from isocompute.rl.tasks import Task

MAX_REFILLS = 10
"""Batches of groups that may be dropped for one batch; then it is used with the groups it has, as in DAPO's code."""


@dataclass
class Group:
    """The rollouts of one problem, in flight or complete."""

    number: int
    """Number of groups that started before it; its key in the engine and in the grading pool."""
    problem: int
    version: int
    """Version of the weights when it started, which sampled its oldest token."""
    rollouts: Rollouts | None = None
    """None while it is in flight."""
    graded: Groups | None = None
    counted: bool = False
    """Whether its grades are in the pass rates, from before a checkpoint."""


class Ledger:
    """The groups under way, in the order they started; enforces the two rules above."""

    def __init__(self, *, problems_per_batch: int, steps: int, batches_at_once: int = 1) -> None:
        self.batch_size, self.steps, self.at_once = problems_per_batch, steps, batches_at_once
        self._groups: dict[int, Group] = {}
        self._phase = 0
        """Without staleness: the version at which the batches under way were sampled."""

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[Group]:
        return iter(self._groups.values())

    def __getitem__(self, number: int) -> Group:
        return self._groups[number]

    def room(self, *, version: int, next_update: int) -> int:
        """How many groups may start now, at this version of the sampler's weights."""
        if self.steps:
            in_time = self.steps - (next_update - version) + 1
            return max(0, self.batch_size * in_time - len(self._groups))
        if not self._groups:
            self._phase = version
        return self.batch_size * self.at_once - len(self._groups) if version == self._phase else 0

    def start(self, group: Group) -> None:
        """Add a group, for which there must be `room`; versions must not decrease from one group to the next."""
        self._groups[group.number] = group

    def restart(self, group: Group) -> None:
        """Add a group of a checkpoint."""
        self._groups[group.number], self._phase = group, group.version

    def complete(self) -> list[Group]:
        """Groups whose rollouts are all sampled."""
        return [group for group in self._groups.values() if group.rollouts is not None]

    def batch(self, update: int) -> list[Group]:
        """The groups that this update may train on; empty while it has to wait."""
        complete = self.complete()
        taken = complete[: self.batch_size]
        if len(taken) < self.batch_size or (not self.steps and len(complete) < len(self)):
            return []  # weights must not change under groups in flight, unless tokens may be stale
        numbers = {group.number for group in taken}
        left = [group for group in self._groups.values() if group.number not in numbers]
        in_time = all(g.version + self.steps >= update + 1 + i // self.batch_size for i, g in enumerate(left))
        return taken if in_time or not self.steps else []

    def remove(self, groups: Iterable[Group]) -> None:
        """Remove groups that were trained on or dropped."""
        for group in groups:
            del self._groups[group.number]


class RolloutSource:
    """Samples and grades the batches of a run.

    Problems and random numbers follow from the seed and the counters, so a checkpoint needs no generator state.
    """

    _FLIGHT = "flight/"

    def __init__(
        self,
        cell: Cell,
        recipe: Recipe,
        task: Task,
        engine: RolloutEngine,
        pool: GradingPool,
        *,
        slots: int | None = None,
    ) -> None:
        self.cell, self.recipe, self.task, self.engine, self.pool = cell, recipe, task, engine, pool
        self.problems = ProblemSampler(len(task), recipe.no_positive_resampling)
        self.rollouts_per_problem = recipe.baseline_rollouts or cell.rollouts_per_problem
        # No token can be older than the number of updates in the run.
        self.ledger = Ledger(
            problems_per_batch=cell.problems_per_batch,
            steps=min(recipe.pipeline_steps, cell.update_steps),
            batches_at_once=recipe.off_policy_steps,
        )
        # A pipeline has one batch in flight, unless the user says how many rollouts.
        self._most = max(1, (slots or cell.rollouts_per_update) // self.rollouts_per_problem)
        self.started = 0
        """Groups started so far."""
        self.restarted = 0
        """Responses that were in flight at a checkpoint and had to start again."""
        self.version = 0
        """Version of the weights that the engine samples with."""
        self.correct_P = np.zeros(len(task), dtype=np.int64)
        self.seen_P = np.zeros_like(self.correct_P)
        """Correct responses and all responses to each problem since the last evaluation."""
        self._dropped = 0
        """Groups that `refill` dropped since the last batch; a limit ends this where every group has zero variance."""
        self._dropped_scores = 0.0
        """Sum of their mean scores."""
        self.ungraded = 0
        """Groups since the last point that no reward function could grade."""
        self.on_drop: Callable[[Rollouts], None] = ignore
        """Called with rollouts that were sampled but will not be trained on."""
        self.on_step: Callable[[], None] = ignore
        """Called between the engine's steps; may raise to end the run."""

    @property
    def exhausted(self) -> bool:
        """Whether every problem is retired and no group is under way."""
        return not self.problems.active_P.any() and not len(self.ledger)

    def next_batch(self, step: int) -> Groups | None:
        """Sample until the ledger has a batch of update `step`; None when no problem is left."""
        while True:
            self._admit(step)
            taken = self.ledger.batch(step)
            if not taken and not self.engine.busy:  # no problem is left: take whatever is complete
                taken = self.ledger.complete()[: self.cell.problems_per_batch]
                if not taken:
                    return None
                kept = self._kept(taken)
                if not kept:
                    continue
                return self._batch(kept)
            if not taken:
                self.on_step()
                for finished in self.engine.step():
                    self.take(finished)
                continue
            # Batches that were sampled together are refilled together, while the weights are still theirs.
            looked_at = taken if self.ledger.steps else self.ledger.complete()
            if len(self._kept(looked_at)) == len(looked_at):
                return self._batch(taken)

    def take(self, finished: FinishedGroup) -> None:
        """A group of the engine is complete: have it graded."""
        group = self.ledger[finished.key]
        group.rollouts = finished.rollouts
        self._grade(group)

    def new_weights(self, step: int) -> None:
        """Called after an update: sequences in flight continue with the new weights, on their old keys and values."""
        self.version = step

    def metrics(self) -> dict[str, float]:
        """Metrics about sampling since the last point; called once for each point."""
        out = {"ungraded_groups": float(self.ungraded)} if self.ungraded else {}
        self.ungraded = 0
        worked, steps = self.engine.take_use()
        if self.ledger.steps and steps:
            out["sampler_busy"] = worked / (steps * self._most * self.rollouts_per_problem)
        return out

    def _admit(self, next_update: int) -> None:
        """Start as many groups as the ledger and the remaining updates have room for."""
        bp = self.cell.problems_per_batch
        count = self.ledger.room(version=self.version, next_update=next_update)
        # Near the end, start only groups that the remaining updates can take.
        count = min(count, bp * (self.cell.update_steps - next_update) - len(self.ledger))
        if self.ledger.steps:
            count = min(count, self._most - sum(group.rollouts is None for group in self.ledger))
        if count <= 0:
            return
        for problem in self.problems.draw(count, np.random.default_rng([self.cell.seed, self.started // bp])):
            group = Group(self.started, int(problem), self.version)
            self.ledger.start(group)
            self._submit(group)
            self.started += 1

    def _submit(self, group: Group) -> None:
        n = self.rollouts_per_problem
        rows_N = np.arange(group.number * n, (group.number + 1) * n)
        prompt = self.task.prompts[group.problem]
        self.engine.submit(PromptGroup(group.number, prompt, streams(self.cell.seed, rows_N), self.recipe.temperature))

    # Grades

    def _grade(self, group: Group) -> None:
        assert group.rollouts is not None
        submit_grading(self.pool, group.number, self.task, group.problem, group.rollouts)

    def _kept(self, taken: list[Group]) -> list[Group]:
        """Wait for the grades of these groups, count them, and drop what cannot be trained on."""
        kept: list[Group] = []
        dropped: list[Group] = []
        for group in taken:
            fresh = group.graded is None
            (dropped if fresh and not (self._record(group) and self._accepted(group)) else kept).append(group)
        for group in dropped:
            assert group.rollouts is not None
            self.on_drop(group.rollouts)
        self.ledger.remove(dropped)
        return kept

    def _accepted(self, group: Group) -> bool:
        """Whether `refill` keeps a group that was graded; counts those that it drops."""
        assert group.graded is not None
        full = self._dropped >= MAX_REFILLS * self.ledger.batch_size * self.ledger.at_once
        if self.recipe.zero_variance_filter != "refill" or full or bool(mixed_groups(group.graded.rewards_PN)):
            return True
        self._dropped += 1
        self._dropped_scores += float(group.graded.scores_PN.mean())
        return False

    def _record(self, group: Group) -> bool:
        """Count a group's grades; False if it has none."""
        rewards = self.pool.get(group.number)
        rollouts, index_P, n = group.rollouts, np.array([group.problem]), self.rollouts_per_problem
        assert rollouts is not None
        if rewards is None:
            self.ungraded += 1
            return False
        scores_PN = torch.tensor([rewards], dtype=torch.float32)
        if not group.counted:
            correct_P = (scores_PN > 0.5).sum(dim=1).numpy()
            self.problems.record(index_P, correct_P, n)
            self.correct_P[group.problem] += correct_P[0]
            self.seen_P[group.problem] += n
        rewards_PN = scores_PN
        if self.recipe.length_control == "penalty":
            longest, tolerance = penalty_window(self.recipe, budget=self.engine.settings.max_new_tokens)
            rewards_PN = length_penalty(scores_PN, rollouts.lengths_B[None], longest=longest, tolerance=tolerance)
        if self.recipe.off_policy_steps > 1:
            rollouts = replace(rollouts, versions_BT=torch.full_like(rollouts.responses_BT, group.version))
        group.graded = Groups(index_P, rollouts, scores_PN, rewards_PN)
        return True

    def _batch(self, taken: list[Group]) -> Groups:
        """Graded groups as a batch; they leave the ledger."""
        joined = Groups.join([group.graded for group in taken if group.graded is not None])
        self.ledger.remove(taken)
        share, score = self._dropped / len(taken), self._dropped_scores / max(1, self._dropped)
        self._dropped, self._dropped_scores = 0, 0.0
        return replace(joined, dropped=share, dropped_score=score)

    # Checkpoints

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Arrays and counters of a checkpoint, including the groups under way that are sampled."""
        counts = {"right_since": self.correct_P, "seen_since": self.seen_P, **self.problems.state()}
        arrays = {name: array.copy() for name, array in counts.items()}  # the run goes on while they are written
        rows = [(g.number, g.problem, g.version, g.rollouts is not None) for g in self.ledger]
        arrays[f"{self._FLIGHT}groups"] = np.array(rows, dtype=np.int64).reshape(-1, 4)
        sampled = [group.rollouts for group in self.ledger if group.rollouts is not None]
        if sampled:
            arrays |= {f"{self._FLIGHT}{name}": x.numpy() for name, x in Rollouts.join(sampled).stored().items()}
        counters: dict[str, Any] = {"drawn": self.started, "restarted": self.restarted, "sampler_at": self.problems.at}
        counters["counted"] = [group.number for group in self.ledger if group.graded is not None or group.counted]
        return arrays, {**counters, "_dropped_since": self._dropped, "_dropped_scores": self._dropped_scores}

    def restore(self, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> None:
        """Resume from a checkpoint; responses that were in flight start again, and `restarted` counts them."""
        self.problems.restore(dict(arrays), meta["sampler_at"])
        self.correct_P, self.seen_P = arrays["right_since"].copy(), arrays["seen_since"].copy()
        n, counted = self.rollouts_per_problem, set(meta.get("counted", ()))
        # Without a pipeline, 0.1 counted rollouts.
        self.started = meta.get("drawn", max(meta.get("sampled", 0), meta["rollouts"]) // n)
        self.restarted, self.version = meta.get("restarted", 0), meta["step"]
        self._dropped, self._dropped_scores = meta.get("_dropped_since", 0), meta.get("_dropped_scores", 0.0)
        for group in self._stored(arrays):
            # 0.1 counted what was complete.
            group.counted = group.number in counted if "counted" in meta else group.rollouts is not None
            self.ledger.restart(group)
            if group.rollouts is None:
                self._submit(group)
                self.restarted += n
            else:
                self._grade(group)

    def _stored(self, arrays: Mapping[str, np.ndarray]) -> Iterator[Group]:
        """The groups of a checkpoint, also of 0.1, which stored all rows of a pipeline and those of waiting batches."""
        waiting, n, at = arrays.get("waiting/index_P"), self.rollouts_per_problem, 0
        if waiting is not None:
            prefix, first = "waiting/", self.started - len(waiting)
            version = int(arrays["waiting/versions_BT"].max())
            table: list[Any] = [(first + place, problem, version, 1) for place, problem in enumerate(waiting.tolist())]
        else:
            prefix = self._FLIGHT
            table = arrays[f"{prefix}groups"].tolist() if f"{prefix}groups" in arrays else []
        stored = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
        if "mask_BT" in stored:
            stored["lengths_B"] = stored["mask_BT"].sum(axis=1)
        names = ["responses_BT", "logprobs_BT", "lengths_B", "stopped_B", "forced_BT", "versions_BT"]
        for number, problem, version, *sampled in table:
            rows, group = slice(at, at + n), Group(number, problem, version)
            if sampled and not sampled[0]:
                yield group
                continue
            at += n
            if sampled or stored["ended_B"][rows].all():
                kept = {name: torch.from_numpy(stored[name][rows].copy()) for name in names if name in stored}
                if self.engine.settings.interruption is None:
                    kept.pop("forced_BT", None)
                group.rollouts = Rollouts([self.task.prompts[problem]], torch.zeros(n, dtype=torch.long), **kept)
            yield group


def submit_grading(pool: GradingPool, key: int, task: Task, problem: int, rollouts: Rollouts) -> None:
    """Have the rollouts of one problem graded."""
    rows = zip(rollouts.responses_BT.tolist(), rollouts.lengths_B.tolist(), strict=True)
    tokens, stopped = [row[:length] for row, length in rows], rollouts.stopped_B.tolist()
    pool.submit(key, partial(task.grade, problem, tokens, stopped), inline=task.grade.cheap)
