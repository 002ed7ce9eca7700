"""One training run: sample, grade, compute advantages, update; evaluate on a log grid of compute.

`Training.run` is the loop and `Training.update` one iteration of it. There is no hidden random state: the seed and the
counters determine the problems of a batch, the random number of each token and the order of an epoch. A checkpoint
holds weights, optimizer moments and counters. On a CPU, a resumed run matches an uninterrupted one bit for bit.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from isocompute.core.allocation import Control, evaluation_steps
from isocompute.core.recipe import learning_rate
from isocompute.core.recorder import Recorder
from isocompute.rl.critic import Critic, CriticEstimates, estimate_advantages, update_critic
from isocompute.rl.evaluation import MEANS, Evaluator, Reports
from isocompute.rl.grading import GradingPool
from isocompute.rl.losses import kl_to_base, mixed_groups
from isocompute.rl.rollout.engine import Groups, Rollouts
from isocompute.rl.rollout.source import RolloutSource
from isocompute.rl.setup import CellSetup, longest_prompt, make_engine, sampling_settings
from isocompute.rl.update import (
    Batch,
    Optimizer,
    UpdateStats,
    decoupled,
    make_batch,
    refuse_collapse,
    refuse_unsound,
    score_all,
    update,
    warm_up,
)

_CHECKPOINT_SECONDS, _CHECKPOINT_SHARE = 20.0, 0.03
"""A checkpoint is written every so many seconds, or less often where it would take more than this share of the time."""
_POLL_SECONDS = 0.2
_EVALUATION, _SEED_STRIDE = 1 << 40, 1 << 20
"""Evaluations use random numbers that neither training nor the evaluations of other seeds use."""
_DECOUPLED = 1 << 20
"""Part of the seed that chooses which rollouts to train on under a decoupled baseline."""


class StopRequestedError(Exception):
    """The runner asked to stop while responses were being sampled."""


class Training:
    """The state of one run."""

    def __init__(self, setup: CellSetup, *, reports: Reports | None = None) -> None:
        self.cell, self.tasks, self.recipe, self.evaluation = setup.cell, setup.tasks, setup.recipe, setup.evaluation
        self.base, self.sizes, self.reports = setup.model, setup.sizes, reports or Reports()
        self.decoder = self.base.decoder.policy(self.recipe.lora_rank, self.recipe.lora_scale, seed=self.cell.seed)
        """The policy being trained; `model.decoder` stays the base."""
        self.decoder.recompute = self.sizes.recompute
        self.optimizer = Optimizer(self.decoder.trained(), self.recipe)
        self.critic = Critic(self.decoder) if self.recipe.advantage == "gae" else None
        self.critic_optimizer = None if self.critic is None else Optimizer(self.critic.parts(), self.recipe)
        self.pool = GradingPool()
        self.engine = make_engine(
            setup.engine,
            self.decoder,
            sampling_settings(setup),
            rows=self.sizes.rows,
            prompt_tokens=longest_prompt(self.tasks),
        )
        task = self.tasks.train
        self.source = RolloutSource(self.cell, self.recipe, task, self.engine, self.pool, slots=setup.engine.slots)
        warm_up(self.decoder, self.optimizer, self.recipe)
        self.source.on_drop, self.source.on_step = self._count_dropped, self._poll
        self.pool.on_wait = self._poll
        self.evaluator = Evaluator(self.engine, self.pool, self.source.take, self._evaluating)
        self.grid = evaluation_steps(self.cell.update_steps, self.evaluation.points)
        self.step = self.begun = self.rollouts = self.tokens = self.evaluated = self.oldest = self.dropped = 0
        self.last_evaluated, self.rate, self.seconds, self.sampling_seconds = -1, 0.0, 0.0, 0.0
        """Time in which no gradient was computed: waiting for rollouts and their grades."""
        self._sums = dict.fromkeys(MEANS, 0.0)
        self._since = (0.0, 0, 0)
        """Seconds, rollouts and tokens at the last point."""
        self._last: Rollouts | None = None
        self._kl: float | None = None
        """KL to the base on the last batch, once an evaluation has asked for it."""
        self._stopping: Callable[[], bool] = lambda: False
        self._polled = self._save_at = 0.0

    def run(self, recorder: Recorder, control: Control) -> bool:
        """Update and evaluate until the end (True) or until the runner asks to stop (False)."""
        self._save_at, self._stopping = time.monotonic() + _CHECKPOINT_SECONDS, control.stopping
        reported, left = self.rollouts, True
        try:
            while left and self.step < self.cell.update_steps:
                if self._due():
                    recorder.append(self.evaluate())
                control.advanced(self.rollouts - reported)
                reported = self.rollouts
                if control.stopping():
                    raise StopRequestedError
                if time.monotonic() > self._save_at:
                    self._save(recorder)
                left = self.update()
            if self.step > self.last_evaluated:
                recorder.append(self.evaluate())
        except StopRequestedError:
            self._save(recorder)
            return False
        control.advanced(self.rollouts - reported)
        return True

    def update(self) -> bool:
        """Sample one batch and take the gradient steps on it; False when no problem is left."""
        started, self.begun = time.perf_counter(), self.step + 1
        groups = self.source.next_batch(self.step)  # sampled and graded
        if groups is None:
            return False
        self.sampling_seconds += time.perf_counter() - started
        batch, estimates = self._batch(groups)  # advantages, token weights, log-probs under the base
        stats = self._gradient_steps(groups, batch, estimates)
        self._count(groups, batch, stats)
        self.engine.load(self.decoder, self.step)
        self.source.new_weights(self.step)
        self.seconds += time.perf_counter() - started
        self._kl = None
        return True

    def _batch(self, groups: Groups) -> tuple[Batch, CriticEstimates | None]:
        """What stays constant during the gradient steps, and the critic's estimates where there is a critic."""
        recipe, rollouts, rewards_PN = self.recipe, groups.rollouts, groups.rewards_PN
        estimates = advantages_BT = None  # without a critic or a decoupled baseline, `make_batch` compares groups
        if self.critic is not None:
            estimates = estimate_advantages(self.critic, rollouts, rewards_PN.reshape(-1), recipe, sizes=self.sizes)
            advantages_BT = estimates.advantages_BT
        elif self.source.rollouts_per_problem > self.cell.rollouts_per_problem:
            seed = np.random.SeedSequence([self.cell.seed, self.step, _DECOUPLED]).generate_state(1, np.uint64)
            rollouts, advantages_BT = decoupled(groups, recipe, train=self.cell.rollouts_per_problem, seed=int(seed[0]))
        batch = make_batch(
            recipe,
            rollouts,
            rewards_PN,
            max_new_tokens=self.tasks.max_new_tokens,
            device=self.decoder.device,
            advantages_BT=advantages_BT,
        )
        if recipe.kl_coef:
            batch = replace(batch, base_logprobs_BT=self._base_logprobs(rollouts))
        return batch, estimates

    def _gradient_steps(self, groups: Groups, batch: Batch, estimates: CriticEstimates | None) -> UpdateStats:
        """Update the policy, and the critic where there is one."""
        recipe, sizes, batch_size = self.recipe, self.sizes, len(groups) * self.cell.rollouts_per_problem
        self.rate = learning_rate(recipe, batch_size=batch_size, step=self.step)
        stats = update(self.decoder, self.optimizer, batch, recipe, rate=self.rate, sizes=sizes)
        if self.critic is not None and self.critic_optimizer is not None and estimates is not None:
            rollouts, optimizer = groups.rollouts, self.critic_optimizer
            update_critic(self.critic, optimizer, rollouts, estimates, recipe, policy_rate=self.rate, sizes=sizes)
        return stats

    def _count(self, groups: Groups, batch: Batch, stats: UpdateStats) -> None:
        """Add an update to the means and counters."""
        rollouts, sampled = groups.rollouts, 1.0 + groups.dropped  # groups sampled per group trained on
        age, oldest = rollouts.staleness(self.step)
        self.oldest = max(self.oldest, oldest)
        seen = {
            **vars(stats),
            "train/avg": (float(groups.scores_PN.mean()) + groups.dropped * groups.dropped_score) / sampled,
            "zero_variance": 1.0 - float(mixed_groups(groups.rewards_PN).float().mean()) / sampled,
            "response_length": float(rollouts.lengths_B.float().mean()),
            "truncated": float((~rollouts.stopped_B).float().mean()),
            "interrupted": float(rollouts.interrupted_B.float().mean()),
            "staleness": age,
        }
        self._sums = {name: total + seen[name] for name, total in self._sums.items()}
        self._last = batch.rollouts
        self.step, self.rollouts = self.step + 1, self.rollouts + len(rollouts)
        self.tokens += int(rollouts.lengths_B.sum())

    def _count_dropped(self, rollouts: Rollouts) -> None:
        """Count a group that was sampled but will not be trained on."""
        self.dropped, self.rollouts = self.dropped + 1, self.rollouts + len(rollouts)
        self.tokens += int(rollouts.lengths_B.sum())

    def _base_logprobs(self, rollouts: Rollouts) -> torch.Tensor:
        return score_all(self.base.decoder, rollouts, self.recipe, sizes=self.sizes)

    def _kl_to_base(self) -> float | None:
        """On the policy's own samples: on another policy's, k3 has a heavy tail and no meaning."""
        if self._kl is None and self._last is not None:
            kl_BT = kl_to_base(self._last.logprobs_BT, self._base_logprobs(self._last).cpu())
            self._kl = float(kl_BT.sum() / self._last.sampled_BT.sum())
        return self._kl

    def _poll(self) -> None:
        """Between decode steps: end the run soon after the runner asks."""
        now = time.monotonic()
        if now - self._polled > _POLL_SECONDS:
            self._polled = now
            if self._stopping():
                raise StopRequestedError

    def _evaluating(self, done: int, total: int) -> None:
        self._poll()
        self.reports.progress(f"evaluation at update {self.step}", done, total)

    # Evaluation

    def _due(self) -> bool:
        """Whether to evaluate now: at each step of the grid, and once more when no problem is left."""
        if self.source.exhausted:
            return self.step > self.last_evaluated
        return self.evaluated < len(self.grid) and self.step >= self.grid[self.evaluated]

    def evaluate(self) -> dict[str, Any]:
        """Evaluate this step; raises `DivergedError`, with the point, if the policy has collapsed."""
        sampling = self.source.metrics()  # an evaluation uses the engine, too
        given, seed = self.evaluation.temperature, _EVALUATION + self.cell.seed * _SEED_STRIDE + self.step
        metrics, counts = self.evaluator.measure(
            self.tasks,
            samples=self.evaluation.samples,
            ks=self.evaluation.k,
            seed=seed,
            temperature=self.recipe.temperature if given is None else given,
            keep=self.evaluation.keep_samples,
        )
        self.engine.take_use()
        self.reports.counted(self.step, counts)
        point: dict[str, Any] = {name: getattr(self, name) for name in ("step", "rollouts", "tokens", "seconds")}
        point |= metrics | self._since_last() | sampling
        point = {key: float(f"{value:.6g}") if isinstance(value, float) else value for key, value in point.items()}
        kl = point.get("kl", 0.0)  # a run that was resumed after its last update has no rollouts to compute it from
        refuse_collapse(0.0 if math.isfinite(kl) else kl, "to the base")  # a point holds only finite numbers
        self.evaluated, self.last_evaluated = self.evaluated + 1, self.step
        refuse_collapse(kl, "to the base", point=point)
        return point

    def _since_last(self) -> dict[str, Any]:
        """Means over the updates since the last point; also reports the training counts."""
        since = self.step - max(self.last_evaluated, 0)
        if since <= 0:
            return {"kl": 0.0}  # nothing is trained yet: the policy is the base
        out: dict[str, Any] = {name: total / since for name, total in self._sums.items()}
        now = (self.seconds, self.rollouts, self.tokens)
        seconds, rollouts, tokens = (max(a - b, 1e-9) for a, b in zip(now, self._since, strict=True))
        out |= {"rollouts_per_second": rollouts / seconds, "tokens_per_second": tokens / seconds}
        out["learning_rate"], self._since = self.rate, now
        if (kl := self._kl_to_base()) is not None:
            out["kl"] = kl
        if self.recipe.no_positive_resampling is not None:
            out["retired"] = self.source.problems.retired
        if self.recipe.zero_variance_filter == "refill":
            out["dropped_groups"] = self.dropped / since
        seen = np.flatnonzero(self.source.seen_P)
        counts = {"samples": self.source.seen_P[seen].tolist(), "correct": self.source.correct_P[seen].tolist()}
        self.reports.rates({"step": self.step, "set": "train", "problems": seen.tolist(), **counts})
        self._sums = dict.fromkeys(MEANS, 0.0)
        self.source.seen_P[:] = self.source.correct_P[:] = self.dropped = 0
        return out

    # Checkpoints

    def _save(self, recorder: Recorder) -> None:
        """Have a checkpoint written; the next one is due when this one's cost is a small share of the time."""
        started = time.monotonic()
        recorder.checkpoint(*self.state())
        ended = time.monotonic()
        self._save_at = ended + max(_CHECKPOINT_SECONDS, (ended - started) / _CHECKPOINT_SHARE)

    _COUNTERS = ("step", "rollouts", "tokens", "seconds", "evaluated", "last_evaluated", "oldest", "dropped", "rate")

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Everything `restore` needs. Raises `DivergedError` instead of saving weights that give NaN."""
        if self._last is not None:
            refuse_unsound(self.decoder, self._last, self.recipe, sizes=self.sizes)
        arrays, meta = self.source.state()
        arrays |= self.optimizer.state("policy/")
        if self.critic_optimizer is not None:
            arrays |= self.critic_optimizer.state("critic/")
        kl = self._kl_to_base() if self._due() else None  # an evaluation that begins again needs it
        counters = {name: getattr(self, name) for name in self._COUNTERS}
        return arrays, {**meta, **counters, "sums": self._sums, "since": self._since, "kl": kl}

    def restore(self, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> None:
        """Resume from a checkpoint."""
        for name in self._COUNTERS:
            setattr(self, name, meta.get(name, getattr(self, name)))  # older checkpoints have fewer
        older = dict(zip(MEANS, [*arrays["sums"], *arrays["more"]], strict=True)) if "sums" in arrays else {}
        self._sums = {name: float(total) for name, total in meta.get("sums", older).items()}  # 0.1 stored arrays
        self.optimizer.restore(arrays, "policy/")
        self.engine.load(self.decoder, self.step)
        self.source.restore(arrays, meta)
        self._since, self._kl = meta.get("since", (self.seconds, self.rollouts, self.tokens)), meta.get("kl")
        if self.critic_optimizer is not None:
            self.critic_optimizer.restore(arrays, "critic/")
