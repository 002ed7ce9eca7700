"""What a cell needs before it can train: model, problems, sizes that fit, and the kind of training it allows."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch

from isocompute.core.cell import Cell
from isocompute.core.recipe import Recipe
from isocompute.rl.config import DecoderConfig
from isocompute.rl.memory import memory_budget, sampling_rows, training_rows
from isocompute.rl.model import Model, load_model, model_folder
from isocompute.rl.spec import EngineSpec, lm_recipe
from isocompute.rl.tasks import ProblemsSpec, Tasks, make_tasks
from isocompute.rl.training import LmTraining, Sizes

__all__ = ["Setup", "can_share", "choose_sizes", "set_up", "tasks_of"]


@dataclass(frozen=True)
class Setup:
    """A cell with all that its spec names."""

    cell: Cell
    engine: EngineSpec
    recipe: Recipe
    problems: ProblemsSpec
    model: Model
    tasks: Tasks
    sizes: Sizes
    kind: type[LmTraining]


def set_up(cell: Cell) -> Setup:
    """Load what the cell names; cells of a study share their base and their problems."""
    engine, recipe, problems = EngineSpec.of(cell.engine), lm_recipe(cell), ProblemsSpec.of(cell.problems)
    if engine.where.startswith("cuda:"):
        torch.cuda.set_device(engine.where)  # kernels and streams are made on the current one
    model = _model(engine.model, engine.torch_dtype, engine.where, _stamps(model_folder(engine.model)))
    model.decoder.native = engine.fast
    _set_threads(engine, model)
    tasks = tasks_of(problems, model.folder, engine, recipe)
    sizes = choose_sizes(engine, model, tasks, recipe.baseline_rollouts or cell.rollouts_per_problem)
    kind = _kind_of_training(engine, cell, model.decoder.config, tasks, recipe)
    return Setup(cell, engine, recipe, problems, model, tasks, sizes, kind)


def can_share(cell: Cell) -> bool:
    """Whether a cell can share a GPU with others in one process: its steps are captured ones. Loads no weights."""
    engine, recipe = EngineSpec.of(cell.engine), lm_recipe(cell)
    if not engine.together or not engine.where.startswith("cuda"):
        return False
    folder = model_folder(engine.model)
    tasks = tasks_of(ProblemsSpec.of(cell.problems), folder, engine, recipe)
    return _kind_of_training(engine, cell, DecoderConfig.read(folder), tasks, recipe).captured


_Stamps = tuple[tuple[str, int, int], ...]


def _stamps(*paths: str | Path) -> _Stamps:
    """Names, times and sizes of these files and of those in these folders: others are others' models or problems."""
    out = []
    for path in map(Path, paths):
        with suppress(OSError):  # a name that is none of a file, or too long for one
            for file in path.iterdir() if path.is_dir() else [path]:
                with suppress(OSError):  # a link to nothing, or gone by now
                    found = file.stat()
                    out.append((str(file), found.st_mtime_ns, found.st_size))
    return tuple(sorted(out))


@lru_cache(maxsize=1)
def _model(name: str, dtype: torch.dtype, device: str, _: _Stamps) -> Model:
    """Cells of a study share their base; a worker loads it once."""
    return load_model(name, dtype=dtype, device=device)


@lru_cache(maxsize=8)
def _tasks(spec_json: str, folder: Path, device: str, controlled: bool, _: _Stamps) -> Tasks:
    spec = ProblemsSpec.model_validate_json(spec_json)
    return make_tasks(spec, folder, torch.device(device), controlled=controlled)


def tasks_of(problems: ProblemsSpec, folder: Path, engine: EngineSpec, recipe: Recipe) -> Tasks:
    """The cell's problems as tokens, made once."""
    stamps = _stamps(folder, *problems.all_sources)
    return _tasks(problems.model_dump_json(), folder, engine.where, recipe.length_control != "truncate", stamps)


def _kind_of_training(
    engine: EngineSpec, cell: Cell, config: DecoderConfig, tasks: Tasks, recipe: Recipe
) -> type[LmTraining]:
    """A pipeline where the recipe asks for one; else whole captured steps on a GPU where the cell allows it."""
    if recipe.pipeline_steps:
        from isocompute.rl.pipeline.training import PipelineTraining

        return PipelineTraining
    whole = recipe.off_policy_steps == 1 and recipe.length_control == "truncate"
    if not whole or recipe.zero_variance_filter == "refill" or not engine.fast or not engine.where.startswith("cuda"):
        return LmTraining
    from isocompute.rl.fast.training import FastTraining, can_be_fast

    return FastTraining if can_be_fast(cell, config, tasks, recipe) else LmTraining


_ONE_THREAD = 4_000_000
"""Parameters below which a model's operations on a CPU are faster on one thread."""


def _set_threads(engine: EngineSpec, model: Model) -> None:
    """A small model's operations are too short to share: threads would mostly wait for each other."""
    small = sum(p.numel() for p in model.decoder.parameters()) < _ONE_THREAD
    if engine.threads is not None or (small and model.device.type == "cpu"):
        torch.set_num_threads(engine.threads or 1)


def choose_sizes(engine: EngineSpec, model: Model, tasks: Tasks, rollouts_per_problem: int) -> Sizes:
    """Micro-batches that fit, where none are given; a problem's rollouts are sampled together."""
    measured = (tasks.train, tasks.validation, *tasks.out_of_distribution.values())
    longest = max(len(prompt) for task in measured for prompt in task.prompts)
    tokens, config, dtype = longest + tasks.max_new_tokens, model.decoder.config, engine.torch_dtype
    budget = memory_budget(model.device)
    train = engine.micro_batch or training_rows(config, tokens=tokens, dtype=dtype, budget=budget)
    sampled = engine.sample_batch or sampling_rows(config, tokens=tokens, dtype=dtype, budget=budget)
    return Sizes(
        micro_batch=train,
        sample_batch=max(sampled, rollouts_per_problem),
        slots=engine.slots,
        overlap=engine.overlap,
        generation_device=engine.generation_device,
    )
