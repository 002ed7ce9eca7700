"""One run of reinforcement learning: sample, verify, compare, update; evaluate on a log grid of compute.

Nothing here has a hidden state. The problems of a batch, the random numbers of every token and the order of an epoch
follow from the seed and the counts of what was done, so a checkpoint is weights, moments and counters, and a resumed
run on a CPU is the uninterrupted one to the bit.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from isocompute.core.arrays import Ints
from isocompute.core.cell import Cell
from isocompute.core.recipe import Recipe, learning_rate
from isocompute.problems.problem_set import ProblemSampler
from isocompute.rl.advantages import decoupled_advantages, mixed_groups
from isocompute.rl.critic import Critic, Judgement, judge, update_critic
from isocompute.rl.evaluation import Counts, EvaluationSpec, count_right, metrics_of
from isocompute.rl.groups import Groups
from isocompute.rl.lengths import length_penalty, penalty_window
from isocompute.rl.losses import kl_to_base
from isocompute.rl.model import Model
from isocompute.rl.optimizer import Optimizer
from isocompute.rl.phrases import interruption_of
from isocompute.rl.sampler import Rollouts, SamplingSettings, sample
from isocompute.rl.tasks import Task, Tasks
from isocompute.rl.update import Batch, UpdateStats, make_batch, refuse_foreign, refuse_unsound, score_all, update
from isocompute.sweep.drive import schedule

__all__ = ["MEANS", "OTHERS", "REFILLS", "LmTraining", "Sizes"]

_EVALUATION, _SEED_APART = 1 << 40, 1 << 20
"""Evaluations have random numbers of their own: not those of training, nor of another seed's evaluations."""
_CHOICE = 1 << 20
"""Marks the random numbers that choose what a decoupled baseline trains on: no other draw of a step has it."""
_CRITIC_FASTER = 10.0
"""A critic's learning rate over the policy's, where the recipe does not say its own."""
MEANS = (
    "train/avg",
    "zero_variance",
    "grad_norm",
    "entropy",
    "logprob_gap",
    "response_length",
    "truncated",
    "loss",
)
"""What a point averages over the updates since the last one."""


_MORE = ("interrupted", "staleness")
OTHERS = (
    *MEANS,
    *_MORE,
    "kl",
    "val/response_length",
    "val/truncated",
    "val/zero_pass",
    "retired",
    "dropped_groups",
    "sampler_busy",
)
"""Metrics of a point beside those of the problem sets; some recipes have no use for the last ones."""
_WAITING = "waiting/"
REFILLS = 10
"""Rounds of sampling after which a batch is trained on with the groups it has, as DAPO's own code has it."""


@dataclass(frozen=True)
class Sizes:
    """How many sequences go through the model at once; for a pipeline, also how it is laid out."""

    micro_batch: int
    sample_batch: int
    slots: int | None = None
    """Sequences in flight; None: a batch."""
    overlap: int = 0
    """Decode steps that go on beside an update."""
    generation_device: str | None = None


class LmTraining:
    """The state of one cell and the two things done with it: `update` and `evaluate`."""

    captured = False
    """Whether an update is one step of fixed shape, which a GPU captures and cells can share."""
    fixed = 0
    """Rollouts of a problem where every shape is independent of what was sampled; 0: shapes depend on it (`score`)."""
    _COUNTERS: ClassVar[tuple[str, ...]] = (
        *("step", "rollouts", "sampled", "tokens", "seconds", "evaluated", "last_evaluated", "oldest", "_dropped"),
    )
    """Attributes that a checkpoint keeps as they are."""

    def __init__(
        self,
        cell: Cell,
        model: Model,
        tasks: Tasks,
        recipe: Recipe,
        evaluation: EvaluationSpec,
        sizes: Sizes,
        *,
        keep_rates: Callable[[Mapping[str, Any]], None] = lambda _: None,
    ) -> None:
        self.cell, self.model, self.tasks, self.recipe, self.evaluation = cell, model, tasks, recipe, evaluation
        self.sizes, self.keep_rates = sizes, keep_rates
        self.decoder = copy.deepcopy(model.decoder)
        """Trained; the model's own stays the base."""
        flat = self.captured and model.device.type == "cuda"
        self.optimizer = Optimizer(list(self.decoder.parameters()), recipe, flat=flat)
        self.critic = Critic(self.decoder) if recipe.advantage == "gae" else None
        self.critic_optimizer = None if self.critic is None else Optimizer(self.critic.trained(), recipe)
        self.sampler = ProblemSampler(len(tasks.train), recipe.no_positive_resampling)
        self.steps = schedule(cell.update_steps, evaluation.points)
        self.step = self.rollouts = self.tokens = self.evaluated = 0
        self.seconds = 0.0
        self.last_evaluated = -1
        self.begun = 0
        """Number of the update that was begun last; where that one fails, it is not in `step`."""
        self.sampled_per_problem = recipe.baseline_rollouts or cell.rollouts_per_problem
        self.sampled = 0
        """Rollouts sampled so far, trained on or not: the numbers of the rows."""
        self.oldest = 0
        """Updates between the sampling and the training of a token, at most."""
        self.restarted = 0
        """Responses that a resumed run had to begin again."""
        self.interruption = interruption_of(recipe, tasks, model.folder, model.stop_tokens)
        self._waiting: list[Groups] = []
        self._dropped = 0
        self._sums, self._more = np.zeros(len(MEANS)), np.zeros(len(_MORE))
        self._right_P = np.zeros(len(tasks.train), dtype=np.int64)
        self._seen_P = np.zeros_like(self._right_P)
        self._last: Rollouts | None = None

    @property
    def update_steps(self) -> int:
        """Updates of the whole run."""
        return self.cell.update_steps

    def due(self) -> bool:
        """Whether this step is on the evaluation grid and not evaluated yet; after the last problem, it is the last."""
        if not self.sampler.active_P.any() and not self._waiting:
            return self.step > self.last_evaluated
        return self.evaluated < len(self.steps) and self.step >= self.steps[self.evaluated]

    # Training

    def update(self) -> bool:
        """One batch of rollouts and the updates it allows; False when no problem is left."""
        started = time.perf_counter()
        self.begun = self.step + 1
        groups = self._gather()
        if groups is not None:
            self._learn(groups)
        self.seconds += time.perf_counter() - started
        return groups is not None

    def _gather(self) -> Groups | None:
        """What the next update trains on: freshly sampled, or waiting since an earlier update (PPO-off-policy-k)."""
        if not self._waiting:
            batches = min(self.recipe.off_policy_steps, max(1, self.update_steps - self.step))
            fresh = self._sample_groups(self.cell.problems_per_batch * batches)
            self._waiting = [] if fresh is None else fresh.split(self.cell.problems_per_batch)
        return self._waiting.pop(0) if self._waiting else None

    def _sample_groups(self, problems: int) -> Groups | None:
        """Groups of this many problems, or as many as are left; `refill` samples others for those that say nothing."""
        kept: list[Groups] = []
        empty: list[Groups] = []
        missing, seed = problems, [self.cell.seed, self.step]
        for again in range(REFILLS):
            index_P = self.sampler.draw(missing, np.random.default_rng([*seed, again] if again else seed))
            if not len(index_P):
                break
            groups = self._judged(index_P, self._sample(index_P))
            if self.recipe.zero_variance_filter != "refill":
                return groups
            mixed_P = mixed_groups(groups.rewards_PN).cpu().numpy()
            for part, places in ((kept, np.flatnonzero(mixed_P)), (empty, np.flatnonzero(~mixed_P))):
                if len(places):
                    part.append(groups.take(places))
            missing -= int(mixed_P.sum())
            if not missing:
                break
        if not kept and empty:  # nothing to learn from in all of them: an update that moves nothing
            kept = [empty.pop()]
        for dropped in empty:
            self._drop(dropped)
        return Groups.join(kept).beside(Groups.join(empty).scores_PN if empty else None) if kept else None

    def _drop(self, groups: Groups) -> None:
        """Count what was sampled and will not be trained on."""
        self._dropped += len(groups)
        self.rollouts += len(groups.rollouts)
        self.tokens += int(groups.rollouts.mask_BT.sum())

    def _judged(self, index_P: Ints, rollouts: Rollouts) -> Groups:
        """Verify, keep score, and shape the rewards by length."""
        problem_B = torch.from_numpy(index_P).to(self.model.device).repeat_interleave(self.sampled_per_problem)
        scores_PN = self.tasks.train.verify(problem_B, rollouts).view(len(index_P), -1)
        right_P = (scores_PN > 0.5).sum(dim=1).cpu().numpy()
        self.sampler.record(index_P, right_P, self.sampled_per_problem)
        np.add.at(self._right_P, index_P, right_P)  # a pipeline may end two groups of one problem at once
        np.add.at(self._seen_P, index_P, self.sampled_per_problem)
        rewards_PN = scores_PN
        if self.recipe.length_control == "penalty":
            longest, tolerance = penalty_window(self.recipe, budget=self.tasks.max_new_tokens)
            lengths_PN = rollouts.lengths_B.view(scores_PN.shape)
            rewards_PN = length_penalty(scores_PN, lengths_PN, longest=longest, tolerance=tolerance)
        return Groups(index_P, rollouts, scores_PN, rewards_PN)

    def _learn(self, groups: Groups) -> None:
        """The updates that a batch allows, and what is counted of it."""
        self._tally(groups, self._train_on(groups))

    def _train_on(self, groups: Groups) -> UpdateStats:
        """New weights, and the critic's where there is one; nothing else changes."""
        rollouts = groups.rollouts
        batch, judgement = self._batch(rollouts, groups.rewards_PN)
        self._last = batch.rollouts
        rate = learning_rate(self.recipe, batch_size=len(groups) * self.cell.rollouts_per_problem, step=self.step)
        micro_batch = self.sizes.micro_batch
        stats = update(self.decoder, self.optimizer, batch, self.recipe, rate=rate, micro_batch=micro_batch)
        if self.critic is not None and self.critic_optimizer is not None and judgement is not None:
            own = self.recipe.critic_learning_rate
            faster = _CRITIC_FASTER if own is None else own / self.recipe.learning_rate
            update_critic(
                self.critic,
                self.critic_optimizer,
                rollouts,
                judgement,
                self.recipe,
                rate=rate * faster,
                micro_batch=micro_batch,
            )
        return stats

    def _tally(self, groups: Groups, stats: UpdateStats) -> None:
        """Count an update and what it was made from."""
        rollouts = groups.rollouts
        lengths = float(rollouts.lengths_B.float().mean())
        sampled = 1.0 + groups.dropped  # for each group that is trained on
        right = (float(groups.scores_PN.mean()) + groups.dropped * groups.dropped_score) / sampled
        same = 1.0 - float(mixed_groups(groups.rewards_PN).float().mean()) / sampled
        seen = {
            **vars(stats),
            "train/avg": right,
            "zero_variance": same,
            "response_length": lengths,
            "truncated": float((~rollouts.stopped_B).float().mean()),
        }
        self._sums += [seen[name] for name in MEANS]
        self._more += (float(rollouts.interrupted_B.float().mean()), self._staleness(rollouts))
        self.step += 1
        self.rollouts += len(rollouts)
        self.tokens += int(rollouts.mask_BT.sum())

    def _staleness(self, rollouts: Rollouts) -> float:
        """Updates since the tokens were sampled, on average."""
        if rollouts.versions_BT is None:
            return 0.0
        age_BT = (self.step - rollouts.versions_BT) * rollouts.sampled_BT
        self.oldest = max(self.oldest, int(age_BT.max()))
        return float(age_BT.sum() / rollouts.sampled_BT.sum())

    def sample_only(self, index_P: Ints) -> Rollouts:
        """Responses to these problems and nothing else; what `lm bench` times."""
        return self._sample(index_P)

    def settle(self) -> None:
        """Bring the counters up to date; here they always are."""

    def _sample(self, index_P: Ints) -> Rollouts:
        """n responses to each problem, as many at a time as fit."""
        n = self.sampled_per_problem
        at_once = max(1, self.sizes.sample_batch // n)
        parts = []
        for start in range(0, len(index_P), at_once):
            prompts = [self.tasks.train.prompts[i] for i in index_P[start : start + at_once]]
            numbers_B = torch.arange(len(prompts) * n) + self.sampled + start * n
            settings = self._settings(self.recipe.temperature)
            parts.append(
                sample(self.decoder, prompts, settings, seed=self.cell.seed, per_prompt=n, row_numbers=numbers_B)
            )
        self.sampled += len(index_P) * n
        rollouts = Rollouts.join(parts)
        if self.recipe.off_policy_steps > 1:
            rollouts = replace(rollouts, versions_BT=torch.full_like(rollouts.responses_BT, self.step))
        return rollouts

    def _settings(self, temperature: float) -> SamplingSettings:
        return SamplingSettings(
            max_new_tokens=self.tasks.max_new_tokens,
            temperature=temperature,
            top_p=self.recipe.top_p,
            stop_tokens=self.model.stop_tokens,
            fp32_head=self.recipe.fp32_head,
            interruption=self.interruption,
        )

    def _batch(self, rollouts: Rollouts, rewards_PN: Tensor) -> tuple[Batch, Judgement | None]:
        recipe, new = self.recipe, self.tasks.max_new_tokens
        judgement = None
        if self.critic is not None:
            rewards_B = rewards_PN.reshape(-1)
            judgement = judge(self.critic, rollouts, rewards_B, recipe, micro_batch=self.sizes.micro_batch)
            batch = make_batch(recipe, rollouts, rewards_PN, max_new_tokens=new, advantages_BT=judgement.advantages_BT)
        elif self.sampled_per_problem > self.cell.rollouts_per_problem:
            seed = np.random.SeedSequence([self.cell.seed, self.step, _CHOICE]).generate_state(1, np.uint64)
            advantages_PN, places_PN = decoupled_advantages(
                rewards_PN, train=self.cell.rollouts_per_problem, kind=recipe.advantage, seed=int(seed[0])
            )
            first_P1 = torch.arange(len(rewards_PN), device=rewards_PN.device)[:, None] * self.sampled_per_problem
            rollouts = rollouts.take((first_P1 + places_PN).reshape(-1))
            advantages_B1 = advantages_PN.reshape(-1, 1)
            batch = make_batch(recipe, rollouts, rewards_PN, max_new_tokens=new, advantages_BT=advantages_B1)
        else:
            batch = make_batch(recipe, rollouts, rewards_PN, max_new_tokens=new)
        if recipe.kl_coef:
            base_BT = score_all(self.model.decoder, rollouts, recipe, micro_batch=self.sizes.micro_batch)
            batch = replace(batch, base_logprobs_BT=base_BT)
        return batch, judgement

    # Evaluation

    def evaluate(self) -> dict[str, Any]:
        """The point of this step; per-problem counts go to `keep_rates`."""
        point: dict[str, Any] = {
            "step": self.step,
            "rollouts": self.rollouts,
            "tokens": self.tokens,
            "seconds": self.seconds,
        }
        wanted = self.evaluation.temperature
        settings = self._settings(self.recipe.temperature if wanted is None else wanted)
        sets = {"": self.tasks.validation, **{f"{k}/": t for k, t in self.tasks.out_of_distribution.items()}}
        for prefix, task in sets.items():
            counts = self._count(task, settings, seed=_EVALUATION + self.cell.seed * _SEED_APART + self.step)
            point |= metrics_of(counts, self.evaluation.k, prefix=prefix)
            if not prefix:
                point |= {"val/response_length": counts.response_length, "val/truncated": counts.truncated}
                point["val/zero_pass"] = float((counts.correct_P == 0).mean())
                for name, where in self.tasks.parts.items():
                    own = replace(counts, correct_P=counts.correct_P[where])
                    point |= metrics_of(own, self.evaluation.k, prefix=f"{name}/")
            self.keep_rates(
                {
                    "step": self.step,
                    "set": task.name,
                    "samples": self.evaluation.samples,
                    "correct": counts.correct_P.tolist(),
                }
            )
        point |= self._since_last()
        point = {key: float(f"{value:.6g}") if isinstance(value, float) else value for key, value in point.items()}
        kl = point.get("kl", 0.0)  # a run that was resumed after its last update has no rollouts to tell it from
        if not math.isfinite(kl):
            refuse_foreign(kl, "to the base")
        self.evaluated += 1
        self.last_evaluated = self.step
        refuse_foreign(kl, "to the base", point=point)
        return point

    def _count(self, task: Task, settings: SamplingSettings, *, seed: int) -> Counts:
        samples, rows = self.evaluation.samples, self.sizes.sample_batch
        return count_right(self.decoder, task, settings, samples=samples, seed=seed, rows=rows)

    def _since_last(self) -> dict[str, Any]:
        """Means over the updates since the last point, and the counts of training problems seen in them."""
        since = self.step - max(self.last_evaluated, 0)
        if since <= 0:
            return {"kl": 0.0}  # nothing is trained yet: the policy is the base
        out = {name: float(total) / since for name, total in zip(MEANS, self._sums, strict=True)}
        if self._last is not None:
            # Of the policy that sampled them: on another policy's samples k3 has a heavy tail and no meaning.
            base_BT = score_all(self.model.decoder, self._last, self.recipe, micro_batch=self.sizes.micro_batch)
            out["kl"] = float(kl_to_base(self._last.logprobs_BT, base_BT).sum() / self._last.sampled_BT.sum())
        out |= {name: float(total) / since for name, total in zip(_MORE, self._more, strict=True)}
        if self.recipe.no_positive_resampling is not None:
            out["retired"] = self.sampler.retired
        if self.recipe.zero_variance_filter == "refill":
            out["dropped_groups"] = self._dropped / since
        seen = np.flatnonzero(self._seen_P)
        self.keep_rates(
            {
                "step": self.step,
                "set": "train",
                "problems": seen.tolist(),
                "samples": self._seen_P[seen].tolist(),
                "correct": self._right_P[seen].tolist(),
            }
        )
        self._sums[:] = 0.0
        self._more[:] = 0.0
        self._dropped = 0
        self._right_P[:] = self._seen_P[:] = 0
        return out

    # Checkpoints

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Everything `restore` needs. Weights that give NaN are refused: a checkpoint is a good one."""
        if self._last is not None:
            size = self.sizes.micro_batch
            refuse_unsound(self.decoder, self._last, self.recipe, micro_batch=size, fixed=self.fixed)
        arrays = {
            "sums": self._sums,
            "more": self._more,
            "right_since": self._right_P,
            "seen_since": self._seen_P,
            **self.sampler.state(),
            **self.optimizer.state("policy/"),
        }
        if self.critic_optimizer is not None:
            arrays |= self.critic_optimizer.state("critic/")
        if self._waiting:
            arrays |= Groups.join(self._waiting).state(_WAITING)
        return arrays, {**{name: getattr(self, name) for name in self._COUNTERS}, "sampler_at": self.sampler.at}

    def restore(self, arrays: dict[str, np.ndarray], meta: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.sampler.restore(arrays, meta["sampler_at"])
        for name in self._COUNTERS:
            setattr(self, name, meta.get(name, getattr(self, name)))  # older checkpoints have fewer
        self.sampled = max(self.sampled, self.rollouts)  # whole captured steps number their rows by rollouts
        self._sums, self._more = arrays["sums"].copy(), arrays["more"].copy()
        waiting = Groups.restore(arrays, _WAITING, self.tasks.train.prompts, self.model.device)
        self._waiting = [] if waiting is None else waiting.split(self.cell.problems_per_batch)
        self._right_P, self._seen_P = arrays["right_since"].copy(), arrays["seen_since"].copy()
        self.optimizer.restore(arrays, "policy/")
        if self.critic_optimizer is not None:
            self.critic_optimizer.restore(arrays, "critic/")
