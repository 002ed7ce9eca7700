"""The simulator as an engine: trains a cell, evaluates it on a log grid of compute, checkpoints and resumes.

All randomness comes from one generator whose state is in the checkpoint, and points contain no times. The same cell
therefore gives the same bytes, interrupted or not.
"""

from __future__ import annotations

import time
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from isocompute.core.allocation import Cell, Control, Evaluation, Measures, all_retired, evaluation_steps, metric_names
from isocompute.core.arrays import Array, Ints
from isocompute.core.errors import InputError
from isocompute.core.recipe import Recipe, learning_rate, make_recipe
from isocompute.core.recorder import Recorder, RunSettings
from isocompute.problems.problem_set import ProblemSampler
from isocompute.sim.policy import CountBatch, Policy, advantages, evaluate, interference, logit_gradient, subsample
from isocompute.sim.world import World, WorldSpec, log_softmax, make_world

SIM_DEFAULTS: dict[str, Any] = {"learning_rate": 1e-2}
"""The learning rate at B = 1,024, from a grid search at Bp = 128, n = 8 (docs/explanation/simulator.md)."""

_NO_SEQUENCES = ("pipeline_steps", "off_policy_steps", "length_control")
"""Recipe fields that need responses of several tokens."""
_OTHERS = frozenset(
    {
        *("train/avg", "train/exact", "train/zero_pass", "zero_variance", "grad_norm"),
        *("interference", "retired", "entropy", "kl"),
    }
)
"""Metrics of a point besides those of the problem sets."""
_CONTROL_EVERY = 128
"""Number of updates after which the runner is asked again whether to stop."""
_CHECKPOINT_SECONDS = 3.0


@lru_cache(maxsize=4)
def _world(spec_json: str) -> World:
    """The world, which a worker makes once for all cells of a study."""
    return make_world(WorldSpec.model_validate_json(spec_json))


class SimEngine:
    """Runs cells of a study on the simulator."""

    def check(self, cell: Cell) -> None:
        """Refuse a cell that cannot run."""
        spec, recipe = WorldSpec.of(dict(cell.problems)), make_recipe(cell.recipe, defaults=SIM_DEFAULTS)
        Evaluation.of(cell.evaluation)
        if cell.problems_per_batch > spec.size:
            raise InputError(
                f"grid.problems_per_batch: {cell.problems_per_batch} is more than the {spec.size} problems of the set; "
                "raise problems.size."
            )
        if recipe.advantage == "gae":
            raise InputError("recipe.advantage: the simulator has no critic; 'gae' (PPO) needs engine = 'lm'.")
        unsupported = [name for name in _NO_SEQUENCES if getattr(recipe, name) != Recipe.model_fields[name].default]
        if unsupported or recipe.zero_variance_filter == "refill":
            field = unsupported[0] if unsupported else "zero_variance_filter"
            raise InputError(
                f"recipe.{field}: {getattr(recipe, field)!r} needs engine = 'lm'; the simulator samples a batch at "
                "once, and its responses have no length."
            )
        if cell.rollouts_per_problem < 2 and recipe.compares_groups:
            raise InputError(
                "grid.rollouts_per_problem: 1 rollout has no group to compare with; use at least 2, or "
                "recipe.advantage = 'none'."
            )
        if recipe.baseline_rollouts is not None and recipe.baseline_rollouts < cell.rollouts_per_problem:
            raise InputError(
                f"recipe.baseline_rollouts: {recipe.baseline_rollouts} is less than the {cell.rollouts_per_problem} "
                "rollouts to train on."
            )

    def measures(self, cell: Cell) -> Measures:
        """The metrics and compute units that the points of a cell will have."""
        ood = ["ood/"] if WorldSpec.of(dict(cell.problems)).out_of_distribution else []
        names = metric_names(Evaluation.of(cell.evaluation).k, ["", "exact/", *ood])
        return Measures(_OTHERS | names, frozenset({"rollouts", "steps"}))

    def run(self, cell: Cell, folder: Path, control: Control) -> bool:
        """Train the cell; True when it reached its last update."""
        spec, evaluation = WorldSpec.of(dict(cell.problems)), Evaluation.of(cell.evaluation)
        recipe = make_recipe(cell.recipe, defaults=SIM_DEFAULTS)
        training = _Training(cell, _world(spec.model_dump_json()), recipe, evaluation)
        settings = RunSettings(
            problems_per_batch=cell.problems_per_batch,
            rollouts_per_problem=cell.rollouts_per_problem,
            update_steps=cell.update_steps,
            seed=cell.seed,
            engine="sim",
            problems=spec.set,
            recipe=recipe.model_dump(),
        ).model_copy(update={"world": spec.model_dump(exclude={"pass_rates"})})
        with Recorder(folder, settings) as recorder:
            saved = recorder.resume()
            if saved is not None:
                training.restore(*saved)
            finished = training.run(recorder, control)
            if finished:
                summary: dict[str, Any] = {"points": training.evaluated, "rollouts": training.rollouts}
                if training.step < cell.update_steps:
                    summary["ended"] = all_retired(training.step, cell.update_steps, recipe)
                recorder.finish(summary)
            else:
                recorder.checkpoint(*training.state())
        return finished


class _Training:
    """The state of one cell; `run` calls `update` and `evaluate` in turn."""

    def __init__(self, cell: Cell, world: World, recipe: Recipe, evaluation: Evaluation) -> None:
        self.cell, self.world, self.recipe, self.evaluation = cell, world, recipe, evaluation
        self.rng = np.random.default_rng(np.random.SeedSequence([cell.seed, world.spec.seed, 1]))
        self.policy = Policy(world.spec, len(world.train), recipe)
        self.sampler = ProblemSampler(len(world.train), recipe.no_positive_resampling)
        self.update_steps = cell.update_steps
        self.steps = evaluation_steps(cell.update_steps, evaluation.points)
        self.base_log_PK = log_softmax(world.train.base_PK)
        self.step = 0
        self.rollouts = 0
        """Rollouts sampled so far, including those that only estimate a decoupled baseline."""
        self.evaluated = 0
        self._sums = np.zeros(3)
        self._interference = np.nan
        self.last_evaluated = -1

    def run(self, recorder: Recorder, control: Control) -> bool:
        """Update and evaluate until the end (True) or until the runner asks to stop (False)."""
        saved, reported, left = time.monotonic(), self.rollouts, True
        while left and self.step < self.update_steps:
            if self._due():
                recorder.append(self.evaluate())
            if self.step % _CONTROL_EVERY == 0:
                control.advanced(self.rollouts - reported)
                reported = self.rollouts
                if control.stopping():
                    return False
                if time.monotonic() - saved > _CHECKPOINT_SECONDS:
                    recorder.checkpoint(*self.state())
                    saved = time.monotonic()
            left = self.update()
        if self.step > self.last_evaluated:
            recorder.append(self.evaluate())
        control.advanced(self.rollouts - reported)
        return True

    def _due(self) -> bool:
        """Whether this step is on the evaluation grid and not evaluated yet."""
        return self.evaluated < len(self.steps) and self.step >= self.steps[self.evaluated]

    def update(self) -> bool:
        """Sample one batch and take the gradient steps on it; False when no problem is left."""
        cell, recipe, train = self.cell, self.recipe, self.world.train
        rollouts = cell.rollouts_per_problem
        sampled = recipe.baseline_rollouts or rollouts
        index_P = self.sampler.draw(cell.problems_per_batch, self.rng)
        if not len(index_P):
            return False
        features_PF, base_PK, correct_P = train.features_PF[index_P], train.base_PK[index_P], train.correct_P[index_P]
        sampler_PK = self.policy.probabilities(features_PF, base_PK, index_P)
        batch, right_P = self._rollouts(sampler_PK, correct_P, rollouts, sampled)
        base_log_PK = self.base_log_PK[index_P] if recipe.kl_coef else sampler_PK
        self.sampler.record(index_P, right_P, sampled)
        rate = learning_rate(recipe, batch_size=len(index_P) * rollouts, step=self.step)
        policy_PK, norm = sampler_PK, 0.0
        before_evaluation = self.evaluated < len(self.steps) and self.step + 1 >= self.steps[self.evaluated]
        before = self.policy.copy() if before_evaluation else None
        for repeat in range(recipe.updates_per_batch):
            if repeat:
                policy_PK = self.policy.probabilities(features_PF, base_PK, index_P)
            gradient_PK = logit_gradient(recipe, batch, policy_PK, base_log_PK)
            norm = self.policy.ascend(features_PF, gradient_PK, index_P, rate)
        if before is not None:
            self._interference = interference(before, self.policy, train, index_P)
        self.step += 1
        self.rollouts += len(index_P) * sampled
        reward = float(right_P.mean()) / sampled
        self._sums += (reward, 1.0 - float(batch.mixed_P.mean()), norm)
        return True

    def _rollouts(self, sampler_PK: Array, correct_P: Ints, rollouts: int, sampled: int) -> tuple[CountBatch, Ints]:
        """Draw `sampled` rollouts per problem and keep `rollouts` of them, with advantages from all."""
        rows = np.arange(len(correct_P))
        counts_PK = self.rng.multinomial(sampled, sampler_PK)
        right_P = counts_PK[rows, correct_P]
        right_advantage_P, wrong_advantage_P = advantages(self.recipe, right_P, sampled)
        if sampled > rollouts:
            counts_PK = subsample(counts_PK, rollouts, self.rng)
        mixed_P = (right_P > 0) & (right_P < sampled)
        return CountBatch(counts_PK, correct_P, sampler_PK, right_advantage_P, wrong_advantage_P, mixed_P), right_P

    def evaluate(self) -> dict[str, Any]:
        """Evaluate this step and return its point."""
        point: dict[str, Any] = {"step": self.step, "rollouts": self.rollouts}
        samples, ks = self.evaluation.samples, self.evaluation.k
        point |= evaluate(self.policy, self.world, self.base_log_PK, samples=samples, ks=ks, rng=self.rng)
        since = self.step - max(self.last_evaluated, 0)
        if since > 0:
            names = ("train/avg", "zero_variance", "grad_norm")
            point |= {name: float(total) / since for name, total in zip(names, self._sums, strict=True)}
            if np.isfinite(self._interference):
                point["interference"] = float(self._interference)
        point["retired"] = self.sampler.retired
        self._sums[:] = 0.0
        self._interference = np.nan  # measured only on the update before an evaluation
        self.evaluated += 1
        self.last_evaluated = self.step
        return {key: float(f"{value:.6g}") if isinstance(value, float) else value for key, value in point.items()}

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Everything `restore` needs."""
        arrays = {"sums": self._sums, **self.policy.state(), **self.sampler.state()}
        meta = {
            "step": self.step,
            "rollouts": self.rollouts,
            "evaluated": self.evaluated,
            "last_evaluated": self.last_evaluated,
            "sampler_at": self.sampler.at,
            "policy_steps": self.policy.steps,
            "rng": self.rng.bit_generator.state,
        }
        return arrays, meta

    def restore(self, arrays: dict[str, np.ndarray], meta: dict[str, Any]) -> None:
        """Continue from a checkpoint."""
        self.step, self.rollouts, self.evaluated = meta["step"], meta["rollouts"], meta["evaluated"]
        self.last_evaluated = meta["last_evaluated"]
        self._sums = arrays["sums"].copy()
        self.policy.restore(arrays, meta["policy_steps"])
        self.sampler.restore(arrays, meta["sampler_at"])
        self.rng.bit_generator.state = meta["rng"]
