"""One run of reinforcement learning: sample, verify, compare, update; evaluate on a log grid of compute.

Nothing here has a hidden state. The problems of a batch, the random numbers of every token and the order of an epoch
follow from the seed and the counts of what was done, so a checkpoint is weights, moments and counters, and a resumed
run on a CPU is the uninterrupted one to the bit.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from isocompute.arrays import Ints
from isocompute.engines.base import Cell
from isocompute.engines.drive import schedule
from isocompute.engines.lm.advantages import decoupled_advantages, mixed_groups
from isocompute.engines.lm.critic import Critic, Judgement, judge, update_critic
from isocompute.engines.lm.evaluation import Counts, EvaluationSpec, count_right, metrics_of
from isocompute.engines.lm.losses import kl_to_base
from isocompute.engines.lm.model import Model
from isocompute.engines.lm.optimizer import Optimizer
from isocompute.engines.lm.sampler import Rollouts, SamplingSettings, sample
from isocompute.engines.lm.tasks import Task, Tasks
from isocompute.engines.lm.update import Batch, make_batch, refuse_foreign, refuse_unsound, score_all, update
from isocompute.engines.problem_sampler import ProblemSampler
from isocompute.recipes import Recipe, learning_rate

__all__ = ["MEANS", "LmTraining", "Sizes"]

_EVALUATION, _SEED_APART = 1 << 40, 1 << 20
"""Evaluations have random numbers of their own: not those of training, nor of another seed's evaluations."""
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


class Sizes:
    """How many sequences go through the model at once."""

    def __init__(self, *, micro_batch: int, sample_batch: int) -> None:
        self.micro_batch, self.sample_batch = micro_batch, sample_batch


class LmTraining:
    """The state of one cell and the two things done with it: `update` and `evaluate`."""

    fixed = False
    """Whether every shape is independent of what was sampled."""

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
        self.optimizer = Optimizer(list(self.decoder.parameters()), recipe)
        self.critic = Critic(self.decoder) if recipe.advantage == "gae" else None
        self.critic_optimizer = None if self.critic is None else Optimizer(self.critic.trained(), recipe)
        self.sampler = ProblemSampler(len(tasks.train), recipe.no_positive_resampling)
        self.steps = schedule(cell.update_steps, evaluation.points)
        self.step = self.rollouts = self.tokens = self.evaluated = 0
        self.seconds = 0.0
        self.last_evaluated = -1
        self.sampled_per_problem = recipe.baseline_rollouts or cell.rollouts_per_problem
        self._sums = np.zeros(len(MEANS))
        self._right_P, self._seen_P = (np.zeros(len(tasks.train), dtype=np.int64) for _ in "ab")
        self._last: Rollouts | None = None

    @property
    def update_steps(self) -> int:
        """Updates of the whole run."""
        return self.cell.update_steps

    def due(self) -> bool:
        """Whether this step is on the evaluation grid and not evaluated yet; after the last problem, it is the last."""
        if not self.sampler.active_P.any():
            return self.step > self.last_evaluated
        return self.evaluated < len(self.steps) and self.step >= self.steps[self.evaluated]

    # Training

    def update(self) -> bool:
        """One batch of rollouts and the updates it allows; False when no problem is left."""
        started = time.perf_counter()
        index_P = self.sampler.draw(self.cell.problems_per_batch, np.random.default_rng([self.cell.seed, self.step]))
        if not len(index_P):
            return False
        rollouts = self._sample(index_P)
        problem_B = torch.from_numpy(index_P).to(self.model.device).repeat_interleave(self.sampled_per_problem)
        rewards_PN = self.tasks.train.verify(problem_B, rollouts).view(len(index_P), -1)
        self._record(index_P, rewards_PN)
        batch, judgement = self._batch(rollouts, rewards_PN)
        self._last = batch.rollouts
        rate = learning_rate(self.recipe, batch_size=len(index_P) * self.cell.rollouts_per_problem, step=self.step)
        micro_batch = self.sizes.micro_batch
        stats = update(self.decoder, self.optimizer, batch, self.recipe, rate=rate, micro_batch=micro_batch)
        if self.critic is not None and self.critic_optimizer is not None and judgement is not None:
            critic_rate = rate * (self.recipe.critic_learning_rate or 10 * self.recipe.learning_rate)
            update_critic(
                self.critic,
                self.critic_optimizer,
                rollouts,
                judgement,
                self.recipe,
                rate=critic_rate / self.recipe.learning_rate,
                micro_batch=micro_batch,
            )
        lengths, right = float(rollouts.lengths_B.float().mean()), float(rewards_PN.mean())
        same = 1.0 - float(mixed_groups(rewards_PN).float().mean())
        cut = float((~rollouts.stopped_B).float().mean())
        self._sums += (right, same, stats.grad_norm, stats.entropy, stats.logprob_gap, lengths, cut, stats.loss)
        self.step += 1
        self.rollouts += len(rollouts)
        self.tokens += int(rollouts.mask_BT.sum())
        self.seconds += time.perf_counter() - started
        return True

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
            numbers_B = torch.arange(len(prompts) * n) + self.rollouts + start * n
            settings = self._settings(self.recipe.temperature)
            parts.append(
                sample(self.decoder, prompts, settings, seed=self.cell.seed, per_prompt=n, row_numbers=numbers_B)
            )
        return Rollouts.join(parts)

    def _settings(self, temperature: float) -> SamplingSettings:
        return SamplingSettings(
            max_new_tokens=self.tasks.max_new_tokens,
            temperature=temperature,
            top_p=self.recipe.top_p,
            stop_tokens=self.model.stop_tokens,
            fp32_head=self.recipe.fp32_head,
        )

    def _record(self, index_P: Ints, rewards_PN: Tensor) -> None:
        right_P = (rewards_PN > 0.5).sum(dim=1).cpu().numpy()
        self.sampler.record(index_P, right_P, self.sampled_per_problem)
        self._right_P[index_P] += right_P
        self._seen_P[index_P] += self.sampled_per_problem

    def _batch(self, rollouts: Rollouts, rewards_PN: Tensor) -> tuple[Batch, Judgement | None]:
        recipe, new = self.recipe, self.tasks.max_new_tokens
        judgement = None
        if self.critic is not None:
            rewards_B = rewards_PN.reshape(-1)
            judgement = judge(self.critic, rollouts, rewards_B, recipe, micro_batch=self.sizes.micro_batch)
            batch = make_batch(recipe, rollouts, rewards_PN, max_new_tokens=new, advantages_BT=judgement.advantages_BT)
        elif self.sampled_per_problem > self.cell.rollouts_per_problem:
            advantages_PN, places_PN = decoupled_advantages(
                rewards_PN, train=self.cell.rollouts_per_problem, kind=recipe.advantage, seed=self.cell.seed + self.step
            )
            first_P1 = torch.arange(len(rewards_PN), device=rewards_PN.device)[:, None] * self.sampled_per_problem
            rollouts = rollouts.take((first_P1 + places_PN).reshape(-1))
            advantages_B1 = advantages_PN.reshape(-1, 1)
            batch = make_batch(recipe, rollouts, rewards_PN, max_new_tokens=new, advantages_BT=advantages_B1)
        else:
            batch = make_batch(recipe, rollouts, rewards_PN, max_new_tokens=new)
        if recipe.kl_coef:
            base_BT = score_all(self.model.decoder, rollouts, recipe, micro_batch=self.sizes.micro_batch)
            batch = Batch(
                batch.rollouts,
                batch.advantages_BT,
                batch.policy_weights_BT,
                batch.extra_weights_BT,
                base_logprobs_BT=base_BT,
            )
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
            self.keep_rates(
                {
                    "step": self.step,
                    "set": task.name,
                    "samples": self.evaluation.samples,
                    "correct": counts.correct_P.tolist(),
                }
            )
        point |= self._since_last()
        refuse_foreign(point["kl"], "to the base")
        self.evaluated += 1
        self.last_evaluated = self.step
        return {key: float(f"{value:.6g}") if isinstance(value, float) else value for key, value in point.items()}

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
            out["kl"] = float(kl_to_base(self._last.logprobs_BT, base_BT).sum() / self._last.mask_BT.sum())
        if self.recipe.no_positive_resampling is not None:
            out["retired"] = self.sampler.retired
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
        self._right_P[:] = self._seen_P[:] = 0
        return out

    # Checkpoints

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Everything `restore` needs. Weights that give no numbers any more are refused: a checkpoint is a good one."""
        if self._last is not None:
            size = self.sizes.micro_batch
            refuse_unsound(self.decoder, self._last, self.recipe, micro_batch=size, fixed=self.fixed)
        arrays = {
            "sums": self._sums,
            "right_since": self._right_P,
            "seen_since": self._seen_P,
            **self.sampler.state(),
            **self.optimizer.state("policy/"),
        }
        if self.critic_optimizer is not None:
            arrays |= self.critic_optimizer.state("critic/")
        names = ("step", "rollouts", "tokens", "seconds", "evaluated", "last_evaluated")
        return arrays, {**{name: getattr(self, name) for name in names}, "sampler_at": self.sampler.at}

    def restore(self, arrays: dict[str, np.ndarray], meta: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.sampler.restore(arrays, meta.pop("sampler_at"))
        for name, value in meta.items():
            setattr(self, name, value)
        self._sums = arrays["sums"].copy()
        self._right_P, self._seen_P = arrays["right_since"].copy(), arrays["seen_since"].copy()
        self.optimizer.restore(arrays, "policy/")
        if self.critic_optimizer is not None:
            self.critic_optimizer.restore(arrays, "critic/")
