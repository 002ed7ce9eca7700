"""One cell's run from its folder's state to its end, whoever makes its updates."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

import torch

from isocompute.core.cell import Cell, Control, all_retired
from isocompute.core.errors import InputError
from isocompute.core.recipe import Recipe
from isocompute.core.recorder import Recorder
from isocompute.core.run import RunSettings
from isocompute.rl.checkpoint import save_decoder
from isocompute.rl.evaluation import EvaluationSpec
from isocompute.rl.setup import set_up
from isocompute.rl.spec import EngineSpec
from isocompute.rl.tasks import ProblemsSpec
from isocompute.rl.training import LmTraining, Sizes
from isocompute.rl.update import DivergedError
from isocompute.sweep.drive import Turns, turns

__all__ = ["MODEL", "Session", "gpus_of"]

MODEL = "model"
"""Folder of a finished run with its weights."""
_SECONDS = 20.0  # between checkpoints


class Session:
    """A cell's training and the folder it writes to, restored from the last checkpoint where there is one."""

    def __init__(
        self, cell: Cell, folder: Path, *, on_point: Callable[[Mapping[str, Any]], None] | None = None
    ) -> None:
        made = set_up(cell)
        self.cell, self.folder, self.engine, self.sizes = cell, folder, made.engine, made.sizes
        settings = _settings(cell, made.engine, made.problems, made.recipe, made.sizes)
        self.recorder = Recorder(folder, settings, on_point=on_point)
        evaluation = EvaluationSpec.of(cell.evaluation)
        self.slots = (made.engine.slots or cell.rollouts_per_update) if made.recipe.pipeline_steps else None
        with _named_memory_errors(made.sizes, self.slots):
            self.training = made.kind(
                cell,
                made.model,
                made.tasks,
                made.recipe,
                evaluation,
                made.sizes,
                keep_rates=self.recorder.append_rates,
            )

    def __enter__(self) -> Self:
        try:
            saved = self.recorder.resume()
            if saved is not None:
                before = saved[1].get("restarted", 0)
                self.training.restore(*saved)
                if self.training.restarted > before:
                    lost = self.training.restarted - before
                    warnings.warn(f"{self.folder}: {lost} responses in flight begin again.", stacklevel=2)
        except BaseException:
            self.recorder.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.recorder.close()

    def turns(self, control: Control) -> Turns:
        """The run between its updates; it ends at its last update, at a divergence (both True) or when asked to stop,
        with a checkpoint.
        """
        training, diverged = self.training, None
        try:
            with _named_memory_errors(self.sizes, self.slots):
                finished = yield from turns(training, self.recorder, control, pulse=1, seconds=_SECONDS)
                if not finished:
                    self.recorder.checkpoint(*training.state())
        except DivergedError as error:
            diverged = f"diverged at update {max(training.step, training.begun)}: {error}"
            if error.point is not None:  # without it the run would look as good as it last did
                self.recorder.append(error.point)
            _back_to_the_last_good(training, self.recorder)
            finished = True
        if finished:
            if self.engine.save_model or diverged:
                self.recorder.check_holding()
                save_decoder(training.decoder, self.folder / MODEL, tokenizer_from=training.model.folder)
            self.recorder.finish(_summary(training, diverged))
        return finished


def _summary(training: LmTraining, diverged: str | None) -> dict[str, Any]:
    """`finished.json`: what was done, and why it ended where it did not reach its last update."""
    out: dict[str, Any] = {"points": training.evaluated, "rollouts": training.rollouts}
    if training.restarted:
        out["restarted"] = training.restarted
    if diverged is not None:
        out["diverged"] = diverged
    elif training.step < training.update_steps:
        out["ended"] = all_retired(training.step, training.update_steps, training.recipe)
    return out


def _back_to_the_last_good(training: LmTraining, recorder: Recorder) -> None:
    """The weights of the last checkpoint, or the base; the points stay up to the divergence."""
    saved = recorder.last_checkpoint()
    if saved is not None:
        arrays, _ = saved
        training.optimizer.restore(arrays, "policy/")
    else:
        training.decoder.load_state_dict(training.model.decoder.state_dict())


@contextmanager
def _named_memory_errors(sizes: Sizes, slots: int | None) -> Iterator[None]:
    """Out of memory is the user's to mend: say which number to set. `slots` are a pipeline's."""
    try:
        yield
    except RuntimeError as error:  # torch.OutOfMemoryError is one; the CPU allocator raises a plain one
        text = str(error)
        if not isinstance(error, torch.OutOfMemoryError) and "allocate memory" not in text:
            raise
        raise InputError(
            f"out of memory with micro_batch = {sizes.micro_batch} and sample_batch = {sizes.sample_batch}"
            f"{'' if slots is None else f', slots = {slots}'}; set "
            f"engine_options.micro_batch = {max(1, sizes.micro_batch // 2)} and sample_batch = "
            f"{max(1, sizes.sample_batch // 2)} (the result does not depend on them)"
            f"{'' if slots is None else ', or begin with fewer slots (it does)'}."
        ) from error


def gpus_of(engine: EngineSpec) -> int | None:
    """How many GPUs a run takes; None on a CPU."""
    devices = {torch.device(where) for where in (engine.where, engine.generation_device or engine.where)}
    return len({device.index or 0 for device in devices if device.type == "cuda"}) or None


def _settings(cell: Cell, engine: EngineSpec, problems: ProblemsSpec, recipe: Recipe, sizes: Sizes) -> RunSettings:
    return RunSettings(
        problems_per_batch=cell.problems_per_batch,
        rollouts_per_problem=cell.rollouts_per_problem,
        update_steps=cell.update_steps,
        seed=cell.seed,
        gpus=gpus_of(engine),
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
