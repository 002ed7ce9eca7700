"""The language-model engine: reinforcement learning of a decoder on one machine, as cells of a study."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from isocompute.core.allocation import Cell, Control, Measures, all_retired, ignore, metric_names
from isocompute.core.errors import InputError
from isocompute.core.recorder import Recorder, RunSettings
from isocompute.rl.evaluation import METRICS, Reports
from isocompute.rl.lengths import make_interruption, penalty_window
from isocompute.rl.loop import Training
from isocompute.rl.model.checkpoint import model_folder, save_policy, stop_tokens
from isocompute.rl.model.config import DecoderConfig
from isocompute.rl.setup import CellSetup, EngineSpec, EvaluationSpec, lm_recipe, set_up, tasks_of
from isocompute.rl.tasks import ProblemsSpec
from isocompute.rl.update import DivergedError

MODEL = "model"
"""Subfolder of a run with the trained weights."""


class LmEngine:
    """Runs cells of a study on a language model; `on_point` receives every evaluation."""

    def __init__(
        self,
        *,
        on_point: Callable[[Mapping[str, Any]], None] | None = None,
        on_start: Callable[[str], None] = ignore,
        on_progress: Callable[[str, int, int], None] = ignore,
    ) -> None:
        self.on_point, self.on_start, self.on_progress = on_point, on_start, on_progress

    def check(self, cell: Cell) -> None:
        """Refuse a cell that cannot run, before any weights are loaded."""
        engine, recipe = EngineSpec.of(cell.engine), lm_recipe(cell)
        EvaluationSpec.of(cell.evaluation)
        folder = model_folder(engine.model)
        DecoderConfig.read(folder)
        stops = stop_tokens(folder)
        tasks = tasks_of(ProblemsSpec.of(cell.problems), folder, recipe)
        n, budget = recipe.baseline_rollouts or cell.rollouts_per_problem, tasks.max_new_tokens
        if cell.problems_per_batch > len(tasks.train):
            raise InputError(
                f"grid.problems_per_batch: {cell.problems_per_batch} is more than the {len(tasks.train)} problems of "
                "the set; raise problems.size."
            )
        if n < 2 and recipe.compares_groups:
            raise InputError(
                "grid.rollouts_per_problem: 1 rollout has no group to compare with; use at least 2, or "
                "recipe.advantage = 'none' or 'gae'."
            )
        if recipe.top_p < 1 and (recipe.tis_cap is not None or recipe.ratio_reference == "sampler"):
            raise InputError(
                "recipe.top_p: below 1 the sampler draws from a nucleus that the trainer does not know, and importance "
                "weights against it would be wrong; use top_p = 1, or ratio_reference = 'trainer' without tis_cap."
            )
        if recipe.length_control == "interrupt":
            make_interruption(recipe, tasks.phrase, budget, folder, stops)
        if recipe.length_control == "penalty":
            penalty_window(recipe, budget=budget)
        if engine.slots is not None and not recipe.pipeline_steps:
            raise InputError("engine_options.slots: is for a pipeline; set recipe.pipeline_steps, or leave it out.")
        if engine.slots is not None and engine.slots < n:
            raise InputError(
                f"engine_options.slots: {engine.slots} slots cannot hold the rollouts of one problem; use at least {n}."
            )
        if cell.problems_per_batch * recipe.off_policy_steps > len(tasks.train):
            raise InputError(
                f"recipe.off_policy_steps: {recipe.off_policy_steps} batches of {cell.problems_per_batch} problems are "
                f"sampled at once, the set has {len(tasks.train)}; raise problems.size, or lower it."
            )
        if recipe.baseline_rollouts is not None and recipe.baseline_rollouts < cell.rollouts_per_problem:
            raise InputError(
                f"recipe.baseline_rollouts: {recipe.baseline_rollouts} is less than the {cell.rollouts_per_problem} "
                "rollouts to train on."
            )

    def measures(self, cell: Cell) -> Measures:
        """The metrics and compute units that the points of a cell will have."""
        engine, problems = EngineSpec.of(cell.engine), ProblemsSpec.of(cell.problems)
        sets = ["", *(f"{name}/" for name in (*problems.sources, *problems.out_of_distribution))]
        names = metric_names(EvaluationSpec.of(cell.evaluation).k, sets)
        hours = {"gpu_hours"} if gpus_of(engine) else set()
        return Measures(frozenset({*names, *METRICS}), frozenset({"rollouts", "tokens", "steps", *hours}))

    def run(self, cell: Cell, folder: Path, control: Control) -> bool:
        """Train the cell; True when it reached its last update, or diverged and stopped there."""
        setup, diverged = set_up(cell), None
        recorder = Recorder(folder, _settings(cell, setup), on_point=self.on_point)
        with recorder, _explained_memory_errors(setup):
            reports = Reports(recorder.append_rates, recorder.append_sample, self.on_progress)
            training = Training(setup, reports=reports)
            try:
                saved = recorder.resume()
                if saved is not None:
                    training.restore(*saved)
                    lost = training.source.restarted - saved[1].get("restarted", 0)
                    if lost and setup.recipe.pipeline_steps:  # otherwise they begin with the same weights
                        warnings.warn(f"{folder}: {lost} responses in flight begin again.", stacklevel=2)
                self.on_start(header(training, setup))
                try:
                    if not training.run(recorder, control):
                        return False
                except DivergedError as error:
                    diverged = f"diverged at update {max(training.step, training.begun)}: {error}"
                    if error.point is not None:  # otherwise the run would end on its last healthy point
                        recorder.append(error.point)
                    _restore_last_good(training, recorder)
                if setup.engine.save_model or diverged:
                    recorder.check_lock()
                    save_policy(training.decoder, folder / MODEL, base=setup.model.folder, recipe=setup.recipe)
                recorder.finish(_summary(training, diverged))
            finally:
                training.pool.close()
        return True


def header(training: Training, setup: CellSetup) -> str:
    """Which engine runs on what, and why, in a line."""
    name, why = setup.engine.sampler
    where = torch.cuda.get_device_name(setup.model.device) if setup.model.device.type == "cuda" else "CPU"
    sizes, dtype = training.sizes, str(setup.engine.torch_dtype).removeprefix("torch.")
    return (
        f"{name} rollouts ({why}), up to {sizes.rows:,} at a time; training passes of {sizes.tokens:,} tokens"
        f"{', activations recomputed' if sizes.recompute else ''}; {dtype} on {where}"
    )


def gpus_of(engine: EngineSpec) -> int | None:
    """How many GPUs a run takes; None on a CPU."""
    return 1 if torch.device(engine.where).type == "cuda" else None


def _restore_last_good(training: Training, recorder: Recorder) -> None:
    """Restore the weights of the last checkpoint, or of the base; the points up to the divergence stay."""
    saved = recorder.last_checkpoint()
    if saved is not None:
        training.optimizer.restore(saved[0], "policy/")
    else:
        training.decoder.reset(training.base.decoder)


def _summary(training: Training, diverged: str | None) -> dict[str, Any]:
    """The content of `finished.json`: the work done, and why the run ended if it did not reach its last update."""
    out: dict[str, Any] = {"points": training.evaluated, "rollouts": training.rollouts}
    if training.source.restarted:
        out["restarted"] = training.source.restarted
    if diverged is not None:
        out["diverged"] = diverged
    elif training.step < training.cell.update_steps:
        out["ended"] = all_retired(training.step, training.cell.update_steps, training.recipe)
    return out


@contextmanager
def _explained_memory_errors(setup: CellSetup) -> Iterator[None]:
    """Turn out-of-memory errors into an `InputError` that names the sizes to lower."""
    try:
        yield
    except RuntimeError as error:  # torch.OutOfMemoryError is one; the CPU allocator raises a plain RuntimeError
        if not isinstance(error, torch.OutOfMemoryError) and "allocate memory" not in str(error):
            raise
        smaller = [
            f"engine_options.sample_batch = {max(1, setup.sizes.rows // 2)}",
            *([] if setup.sizes.recompute else ["engine_options.recompute = true"]),
            *([] if setup.recipe.lora_rank else ["recipe.lora_rank = 32"]),
        ]
        raise InputError(
            f"out of memory with {setup.sizes.rows} rollouts in flight and passes of {setup.sizes.tokens} tokens; try "
            f"{', then '.join(smaller)}."
        ) from error


def _settings(cell: Cell, setup: CellSetup) -> RunSettings:
    engine, problems = setup.engine, setup.problems
    return RunSettings(
        problems_per_batch=cell.problems_per_batch,
        rollouts_per_problem=cell.rollouts_per_problem,
        update_steps=cell.update_steps,
        seed=cell.seed,
        gpus=gpus_of(engine),
        engine="lm",
        model=engine.model,
        problems=problems.set or problems.source,
        recipe=setup.recipe.model_dump(),
        versions={name: version(name) for name in ("torch", "numpy")},
    ).model_copy(
        update={
            "problem_set": problems.model_dump(exclude_none=True),
            "device": engine.where,
            "dtype": str(engine.torch_dtype).removeprefix("torch."),
            "rollout": engine.sampler[0],
        }
    )
