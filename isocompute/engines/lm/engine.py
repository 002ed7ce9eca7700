"""The language-model engine: reinforcement learning of a decoder on one machine, as cells of a study."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from isocompute.engines.base import Cell, Control, Recorder
from isocompute.engines.drive import drive
from isocompute.engines.lm.checkpoint import save_decoder
from isocompute.engines.lm.config import DecoderConfig
from isocompute.engines.lm.evaluation import EvaluationSpec
from isocompute.engines.lm.lengths import penalty_window
from isocompute.engines.lm.memory import memory_budget, sampling_rows, training_rows
from isocompute.engines.lm.model import TINY, Model, load_model, model_folder, read_anchor, stop_tokens
from isocompute.engines.lm.phrases import interruption_of
from isocompute.engines.lm.tasks import ProblemsSpec, Tasks, make_tasks
from isocompute.engines.lm.training import LmTraining, Sizes
from isocompute.engines.lm.update import DivergedError
from isocompute.errors import InputError
from isocompute.recipes import Recipe, make_recipe
from isocompute.runs.settings import RunSettings

__all__ = ["EngineSpec", "LmEngine"]

MODEL = "model"
"""Folder of a finished run with its weights."""
_SECONDS = 20.0  # between checkpoints


class EngineSpec(BaseModel):
    """The `[engine_options]` table."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str = Field(default=TINY, description="checkpoint folder, name on the hub, or tiny: the built-in one")
    device: str = Field(default="auto", description="cpu, cuda, cuda:1; auto takes a GPU where there is one")
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        default="auto", description="what the model computes in; auto: bfloat16 on a GPU, float32 on a CPU"
    )
    micro_batch: int | None = Field(default=None, ge=1, description="rollouts in one forward and backward pass")
    sample_batch: int | None = Field(default=None, ge=1, description="rollouts sampled at a time")
    threads: int | None = Field(default=None, ge=1, description="CPU threads; 1 for small models, else torch's choice")
    slots: int | None = Field(default=None, ge=1, description="pipeline: sequences in flight; a batch if not set")
    overlap: int = Field(default=0, ge=0, description="pipeline: decode steps that go on beside an update")
    generation_device: str | None = Field(default=None, description="pipeline: where to sample, such as cuda:1")
    fast: bool = Field(default=True, description="CUDA graphs on a GPU, compiled C on a CPU, where the cell allows it")
    save_model: bool = Field(default=False, description="write the trained weights as a checkpoint into the run")

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> EngineSpec:
        """From a table; errors name the field."""
        try:
            spec = cls(**table)
        except ValidationError as error:
            first = error.errors()[0]
            known = f"; fields are {', '.join(cls.model_fields)}" if first["type"] == "extra_forbidden" else ""
            raise InputError(f"engine.{'.'.join(map(str, first['loc']))}: {first['msg']}{known}.") from error
        for name, device in (("device", spec.device), ("generation_device", spec.generation_device or "cpu")):
            if (name, device) != ("device", "auto") and not re.fullmatch(r"cpu|cuda(:\d+)?", device):
                auto = " or auto" if name == "device" else ""
                raise InputError(f"engine.{name}: '{device}' is not cpu, cuda, cuda:1{auto}.")
            if device.startswith("cuda") and not torch.cuda.is_available():
                raise InputError(f"engine.{name}: '{device}', but torch sees no GPU on this machine; use cpu.")
            if ":" in device and int(device.partition(":")[2]) >= torch.cuda.device_count():
                raise InputError(f"engine.{name}: '{device}', but torch sees {torch.cuda.device_count()} GPU(s).")
        return spec

    @property
    def where(self) -> str:
        """The device by name."""
        if self.device != "auto":
            return self.device
        return "cuda" if torch.cuda.is_available() else "cpu"

    @property
    def torch_dtype(self) -> torch.dtype:
        """The type of the weights."""
        if self.dtype == "auto":
            return torch.bfloat16 if self.where.startswith("cuda") else torch.float32
        return torch.bfloat16 if self.dtype == "bfloat16" else torch.float32


@lru_cache(maxsize=1)
def _model(name: str, dtype: torch.dtype, device: str) -> Model:
    """Cells of a study share their base; a worker loads it once."""
    return load_model(name, dtype=dtype, device=device)


@lru_cache(maxsize=8)
def _tasks(spec_json: str, folder: Path, device: str, interrupted: bool) -> Tasks:
    spec = ProblemsSpec.model_validate_json(spec_json)
    return make_tasks(spec, folder, torch.device(device), interrupted=interrupted)


def _tasks_of(problems: ProblemsSpec, folder: Path, engine: EngineSpec, recipe: Recipe) -> Tasks:
    return _tasks(problems.model_dump_json(), folder, engine.where, recipe.length_control == "interrupt")


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
        tasks = _tasks_of(ProblemsSpec.of(cell.problems), folder, engine, recipe)
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
        if recipe.schedule:
            raise InputError("recipe.schedule: n does not change on the way in this engine; leave the field out.")
        if recipe.baseline_rollouts is not None and recipe.baseline_rollouts < cell.rollouts_per_problem:
            raise InputError(
                f"recipe.baseline_rollouts: {recipe.baseline_rollouts} is less than the {cell.rollouts_per_problem} "
                "rollouts to train on."
            )

    def run(self, cell: Cell, folder: Path, control: Control) -> bool:
        """Train the cell; True when it reached its last update, or diverged and stopped there."""
        engine, recipe = EngineSpec.of(cell.engine), lm_recipe(cell)
        model = _model(engine.model, engine.torch_dtype, engine.where)
        model.decoder.native = engine.fast
        _set_threads(engine, model)
        problems = ProblemsSpec.of(cell.problems)
        tasks = _tasks_of(problems, model.folder, engine, recipe)
        sizes = choose_sizes(engine, model, tasks, recipe.baseline_rollouts or cell.rollouts_per_problem)
        recorder = Recorder(folder, _settings(cell, engine, problems, recipe, sizes), on_point=self.on_point)
        evaluation = EvaluationSpec.of(cell.evaluation)
        kind = _kind_of_training(engine, cell, model, tasks, recipe)
        with _named_memory_errors(sizes):
            training = kind(cell, model, tasks, recipe, evaluation, sizes, keep_rates=recorder.append_rates)
        with closing(recorder):
            saved = recorder.resume()
            if saved is not None:
                before = saved[1].get("restarted", 0)
                training.restore(*saved)
                if training.restarted > before:
                    lost = training.restarted - before
                    warnings.warn(f"{folder}: {lost} responses in flight begin again.", stacklevel=2)
            diverged: str | None = None
            try:
                with _named_memory_errors(sizes):
                    finished = drive(training, recorder, control, pulse=1, seconds=_SECONDS)
                    if not finished:
                        recorder.checkpoint(*training.state())
            except DivergedError as error:
                diverged = f"diverged at update {training.step + 1}: {error}"
                _back_to_the_last_good(training, recorder)
                finished = True
            if finished:
                if engine.save_model or diverged:
                    save_decoder(training.decoder, folder / MODEL, tokenizer_from=model.folder)
                recorder.finish(_summary(training, diverged))
        return finished


def _summary(training: LmTraining, diverged: str | None) -> dict[str, Any]:
    """`finished.json`: what was done, and why it ended where it did not reach its last update."""
    out: dict[str, Any] = {"points": training.evaluated, "rollouts": training.rollouts}
    if training.restarted:
        out["restarted"] = training.restarted
    if diverged is not None:
        out["diverged"] = diverged
    elif training.step < training.update_steps:
        out["ended"] = (
            f"every problem is retired after {training.step} of {training.update_steps} updates: all have reached a "
            f"pass rate of {training.recipe.no_positive_resampling}"
        )
    return out


def _kind_of_training(engine: EngineSpec, cell: Cell, model: Model, tasks: Tasks, recipe: Recipe) -> type[LmTraining]:
    """A pipeline where the recipe asks for one; else whole captured steps on a GPU where the cell allows it."""
    if recipe.pipeline_steps:
        from isocompute.engines.lm.pipeline.training import PipelineTraining

        return PipelineTraining
    whole = recipe.off_policy_steps == 1 and recipe.length_control == "truncate"
    if not whole or recipe.zero_variance_filter == "refill" or not engine.fast or model.device.type != "cuda":
        return LmTraining
    from isocompute.engines.lm.fast.training import FastTraining, can_be_fast

    return FastTraining if can_be_fast(cell, model, tasks, recipe) else LmTraining


def prepared_training(
    *, model: str, problems: str, recipe: str, device: str, problems_per_batch: int, rollouts_per_problem: int
) -> LmTraining:
    """A training that is ready to update, outside of any run folder."""
    cell = Cell(
        name="bench",
        problems_per_batch=problems_per_batch,
        rollouts_per_problem=rollouts_per_problem,
        update_steps=1,
        seed=0,
        problems={
            "source": problems,
            "size": max(2 * problems_per_batch, 512) if problems.startswith("chain") else None,
        },
        recipe={"name": recipe},
        engine={"model": model, "device": device},
    )
    LmEngine().check(cell)
    engine, chosen = EngineSpec.of(cell.engine), lm_recipe(cell)
    loaded = _model(engine.model, engine.torch_dtype, engine.where)
    loaded.decoder.native = engine.fast
    _set_threads(engine, loaded)
    tasks = _tasks_of(ProblemsSpec.of(cell.problems), loaded.folder, engine, chosen)
    sizes = choose_sizes(engine, loaded, tasks, rollouts_per_problem)
    kind = _kind_of_training(engine, cell, loaded, tasks, chosen)
    return kind(cell, loaded, tasks, chosen, EvaluationSpec(points=2, samples=4), sizes)


_SMALL = 4_000_000


def _set_threads(engine: EngineSpec, model: Model) -> None:
    """A small model's operations are too short to share: threads would mostly wait for each other."""
    small = sum(p.numel() for p in model.decoder.parameters()) < _SMALL
    if engine.threads is not None or (small and model.device.type == "cpu"):
        torch.set_num_threads(engine.threads or 1)


def lm_recipe(cell: Cell) -> Recipe:
    """The cell's recipe; fields it does not name come from the model's own folder, such as a learning rate."""
    return make_recipe(cell.recipe, defaults=read_anchor(model_folder(EngineSpec.of(cell.engine).model)))


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


def _back_to_the_last_good(training: LmTraining, recorder: Recorder) -> None:
    """The weights of the last checkpoint, or the base; the points stay up to the divergence."""
    saved = recorder.last_checkpoint()
    if saved is not None:
        arrays, _ = saved
        training.optimizer.restore(arrays, "policy/")
    else:
        training.decoder.load_state_dict(training.model.decoder.state_dict())


@contextmanager
def _named_memory_errors(sizes: Sizes) -> Iterator[None]:
    """Out of memory is the user's to mend: say which number to set."""
    try:
        yield
    except RuntimeError as error:  # torch.OutOfMemoryError is one; the CPU allocator raises a plain one
        text = str(error)
        if not isinstance(error, torch.OutOfMemoryError) and "allocate memory" not in text:
            raise
        raise InputError(
            f"out of memory with micro_batch = {sizes.micro_batch} and sample_batch = {sizes.sample_batch}"
            f"{'' if sizes.slots is None else f', slots = {sizes.slots}'}; set "
            f"engine_options.micro_batch = {max(1, sizes.micro_batch // 2)} and sample_batch = "
            f"{max(1, sizes.sample_batch // 2)} (the result does not depend on them)."
        ) from error


def _gpus(engine: EngineSpec) -> int | None:
    """How many GPUs a run takes; None on a CPU."""
    devices = {torch.device(where) for where in (engine.where, engine.generation_device or engine.where)}
    return len({device.index or 0 for device in devices if device.type == "cuda"}) or None


def _settings(cell: Cell, engine: EngineSpec, problems: ProblemsSpec, recipe: Recipe, sizes: Sizes) -> RunSettings:
    return RunSettings(
        problems_per_batch=cell.problems_per_batch,
        rollouts_per_problem=cell.rollouts_per_problem,
        update_steps=cell.update_steps,
        seed=cell.seed,
        gpus=_gpus(engine),
        engine="lm",
        model=engine.model,
        problems=problems.set or problems.source,
        recipe=recipe.model_dump(),
        versions={name: version(name) for name in ("torch", "numpy")},
    ).model_copy(
        update={
            "problem_set": problems.model_dump(exclude_none=True),
            "device": engine.where,
            "dtype": str(engine.torch_dtype).removeprefix("torch."),
            "micro_batch": sizes.micro_batch,
        }
    )
