"""The language-model engine: reinforcement learning of a decoder on one machine, as cells of a study."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from isocompute.core.cell import Cell, Control, Measures, metric_names
from isocompute.core.errors import InputError
from isocompute.core.recipe import make_recipe
from isocompute.rl.evaluation import EvaluationSpec
from isocompute.rl.lengths import interruption_of, penalty_window
from isocompute.rl.model.checkpoint import model_folder, stop_tokens
from isocompute.rl.model.config import DecoderConfig
from isocompute.rl.session import Session, gpus_of
from isocompute.rl.setup import can_share, set_up, tasks_of
from isocompute.rl.spec import EngineSpec, lm_recipe
from isocompute.rl.tasks import ProblemsSpec
from isocompute.rl.training import OTHERS, LmTraining
from isocompute.sweep.drive import make_turns

__all__ = ["LmEngine", "prepared_training"]


class LmEngine:
    """Runs cells of a study on a language model; `on_point` is told every evaluation."""

    def __init__(self, *, on_point: Callable[[Mapping[str, Any]], None] | None = None) -> None:
        self.on_point = on_point

    def check(self, cell: Cell) -> None:
        """Refuse what cannot run, before any weight is loaded."""
        engine, recipe = EngineSpec.of(cell.engine), lm_recipe(cell)
        EvaluationSpec.of(cell.evaluation)
        folder = model_folder(engine.model)
        DecoderConfig.read(folder)
        stop_tokens(folder)
        tasks = tasks_of(ProblemsSpec.of(cell.problems), folder, engine, recipe)
        if cell.problems_per_batch > len(tasks.train):
            raise InputError(
                f"grid.problems_per_batch: {cell.problems_per_batch} is more than the {len(tasks.train)} problems of "
                "the set; raise problems.size."
            )
        if (recipe.baseline_rollouts or cell.rollouts_per_problem) < 2 and recipe.compares_groups:
            raise InputError(
                "grid.rollouts_per_problem: 1 rollout has no group to compare with; use at least 2, or "
                "recipe.advantage = 'none' or 'gae'."
            )
        if recipe.top_p < 1 and (recipe.tis_cap is not None or recipe.ratio_anchor == "sampler"):
            raise InputError(
                "recipe.top_p: below 1 the sampler draws from a nucleus that the trainer does not know, and importance "
                "weights against it would be wrong; use top_p = 1, or ratio_anchor = 'trainer' without tis_cap."
            )
        interruption_of(recipe, tasks, folder, stop_tokens(folder))
        if recipe.length_control == "penalty":
            penalty_window(recipe, budget=tasks.max_new_tokens)
        if engine.slots is not None and engine.slots < (recipe.baseline_rollouts or cell.rollouts_per_problem):
            raise InputError(
                f"engine.slots: {engine.slots} slots cannot hold the rollouts of one problem; use at least "
                f"{recipe.baseline_rollouts or cell.rollouts_per_problem}."
            )
        if cell.problems_per_batch * recipe.off_policy_steps > len(tasks.train):
            raise InputError(
                f"recipe.off_policy_steps: {recipe.off_policy_steps} batches of {cell.problems_per_batch} problems are "
                f"sampled at once, the set has {len(tasks.train)}; raise problems.size, or lower it."
            )
        if not recipe.pipeline_steps:
            for name in ("slots", "overlap", "generation_device"):
                if getattr(engine, name):
                    raise InputError(f"engine.{name}: is for a pipeline; set recipe.pipeline_steps, or leave it out.")
        if recipe.baseline_rollouts is not None and recipe.baseline_rollouts < cell.rollouts_per_problem:
            raise InputError(
                f"recipe.baseline_rollouts: {recipe.baseline_rollouts} is less than the {cell.rollouts_per_problem} "
                "rollouts to train on."
            )

    def measures(self, cell: Cell) -> Measures:
        """What the points of a cell will hold."""
        engine, problems = EngineSpec.of(cell.engine), ProblemsSpec.of(cell.problems)
        sets = ["", *(f"{name}/" for name in (*problems.sources, *problems.out_of_distribution))]
        names = metric_names(EvaluationSpec.of(cell.evaluation).k, sets)
        hours = {"gpu_hours"} if gpus_of(engine) else set()
        return Measures(frozenset({*names, *OTHERS}), frozenset({"rollouts", "tokens", "steps", *hours}))

    def run(self, cell: Cell, folder: Path, control: Control) -> bool:
        """Train the cell; True when it reached its last update, or diverged and stopped there."""
        with Session(cell, folder, on_point=self.on_point) as session:
            return make_turns(session.turns(control), session.training.update)

    def packs(self, cells: Sequence[Cell]) -> list[list[Cell]]:
        """Cells that can share a GPU in one process, those of one model together, and each of the others by itself."""
        by_device: dict[str, list[Cell]] = {}
        alone = []
        for cell in cells:
            if can_share(cell):
                by_device.setdefault(EngineSpec.of(cell.engine).where, []).append(cell)
            else:
                alone.append([cell])
        shared = [sorted(group, key=_of_model) for group in by_device.values()]
        return [*shared, *alone]

    def run_pack(self, jobs: Iterable[tuple[Cell, Path, Control]]) -> Iterator[tuple[Cell, bool | Exception]]:
        """Train cells at the same time on one GPU."""
        from isocompute.rl.together import run_together

        return run_together(jobs, on_point=self.on_point)


def _of_model(cell: Cell) -> tuple[str, str]:
    """What cells must have in common to share a base."""
    engine = EngineSpec.of(cell.engine)
    return engine.model, str(engine.torch_dtype)


def prepared_training(
    *,
    model: str,
    problems: str,
    recipe: str,
    device: str,
    problems_per_batch: int,
    rollouts_per_problem: int,
    updates: int,
) -> LmTraining:
    """A training that is ready to make so many updates, outside of any run folder.

    A pipeline has as many more ahead of it as it runs ahead, so that none of these is an end, where it drains.
    """
    cell = Cell(
        name="bench",
        problems_per_batch=problems_per_batch,
        rollouts_per_problem=rollouts_per_problem,
        update_steps=updates + make_recipe({"name": recipe}).pipeline_steps,
        seed=0,
        problems={
            "source": problems,
            "size": max(2 * problems_per_batch, 512) if problems.startswith("chain") else None,
        },
        recipe={"name": recipe},
        engine={"model": model, "device": device},
    )
    LmEngine().check(cell)
    made = set_up(cell)
    return made.kind(cell, made.model, made.tasks, made.recipe, EvaluationSpec(points=2, samples=4), made.sizes)
