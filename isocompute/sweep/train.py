"""`isocompute train`: one run of the language-model engine, from a `train.toml` and command-line overrides."""

from __future__ import annotations

import json
import shutil
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from isocompute.core import files
from isocompute.core.allocation import SPEED_ONLY, Cell, ignore
from isocompute.core.errors import InputError, first_wrong
from isocompute.core.recipe import current_names, sampled_per_problem
from isocompute.core.recorder import CHECKPOINT, FINISHED, POINTS, RUNNING, SETTINGS, LostError
from isocompute.sweep.execute import is_finished, summary_at
from isocompute.sweep.lock import locked_folder

SPEC = "train.json"
_DEFAULT_STEPS = 60


class TrainSpec(BaseModel):
    """The content of a `train.toml`: an allocation and the tables of a study that apply to one run."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    problems_per_batch: int = Field(default=32, ge=1, description="Bp")
    rollouts_per_problem: int = Field(default=16, ge=1, description="n")
    update_steps: int | None = Field(default=None, ge=1, description="M; or give rollouts")
    rollouts: int | None = Field(default=None, ge=1, description="C: update_steps is what it pays for")
    seed: int = Field(default=0, ge=0)
    problems: dict[str, Any] = Field(
        default={}, description="as in a study's [problems] (docs/reference/study-toml.md)"
    )
    recipe: dict[str, Any] = Field(default={}, description="name of a recipe and fields that differ")
    evaluation: dict[str, Any] = Field(default={}, description="points, samples, k, temperature")
    engine_options: dict[str, Any] = Field(default={}, description="model, device, dtype, micro_batch, …")

    @model_validator(mode="after")
    def _one_length(self) -> TrainSpec:
        if self.update_steps is not None and self.rollouts is not None:
            raise ValueError("give update_steps or rollouts, not both")
        if self.rollouts is not None and self.rollouts < self.rollouts_per_update:
            raise ValueError(f"rollouts = {self.rollouts} is less than one batch of {self.rollouts_per_update}")
        return self

    @property
    def rollouts_per_update(self) -> int:
        """Rollouts sampled in an update, including those that only estimate a decoupled baseline."""
        n = sampled_per_problem(self.recipe, rollouts_per_problem=self.rollouts_per_problem)
        return self.problems_per_batch * n

    def cell(self) -> Cell:
        """The run as a cell for the engine."""
        steps = self.update_steps or _DEFAULT_STEPS
        if self.rollouts is not None:
            steps = self.rollouts // self.rollouts_per_update
        return Cell(
            name="run",
            problems_per_batch=self.problems_per_batch,
            rollouts_per_problem=self.rollouts_per_problem,
            update_steps=steps,
            seed=self.seed,
            problems=self.problems,
            recipe=self.recipe,
            evaluation={"points": 10, "samples": 4, **self.evaluation},
            engine={"save_model": True, **self.engine_options},
        )


def read_train_spec(path: str | Path | None, overrides: Mapping[str, Any]) -> TrainSpec:
    """The spec of a file, if given, with overrides; tables are merged field by field."""
    table: dict[str, Any] = {}
    where = "train"
    if path is not None:
        where = str(path)
        try:
            table = tomllib.loads(files.read_bytes(where).decode())
        except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise InputError(f"{where}: not TOML: {error}.") from error
    for key, value in overrides.items():
        known = table.get(key, {})
        if not isinstance(value, Mapping):
            table[key] = value
        elif isinstance(known, Mapping):  # otherwise validation reports the file's mistake
            table[key] = {**known, **value}
    for given, other in (("rollouts", "update_steps"), ("update_steps", "rollouts")):
        if given in overrides and other not in overrides:
            table.pop(other, None)  # an override replaces the file's length
    try:
        return TrainSpec.model_validate(table)
    except ValidationError as error:
        place, why = first_wrong(error, fields=TrainSpec.model_fields)
        raise InputError(f"{where}: {f'{place}: ' if place else ''}{why}.") from error


@dataclass(frozen=True)
class Trained:
    """The result of a run."""

    folder: str
    first: dict[str, Any]
    """The evaluation of the base model."""
    last: dict[str, Any]
    points: int
    finished: bool
    diverged: str | None
    ended: str | None
    """Why it ended before its last update, unless it diverged."""
    model: str | None
    """Folder of the trained weights, if they were saved."""


def train(
    spec: TrainSpec,
    *,
    out: str | Path,
    on_point: Callable[[Mapping[str, Any]], None] | None = None,
    on_start: Callable[[str], None] = ignore,
    on_progress: Callable[[str, int, int], None] = ignore,
    stopping: Callable[[], bool] = lambda: False,
) -> Trained:
    """Run or resume one training; everything is written under `out`.

    `on_start` gets a line that says which rollout engine runs and why, `on_progress` how far an evaluation is.
    """
    from isocompute.rl.engine import MODEL, LmEngine  # loads torch

    folder, cell = Path(out), spec.cell()
    _refuse_another_run(folder, spec)
    engine = LmEngine(on_point=on_point, on_start=on_start, on_progress=on_progress)
    engine.check(cell)
    if not is_finished(folder):
        fresh = not folder.exists()
        with _locked(folder):
            _refuse_another_run(folder, spec)  # another process may have started one meanwhile
            files.write_atomically(folder / SPEC, spec.model_dump_json(indent=1).encode() + b"\n")
            if not is_finished(folder):
                (folder / FINISHED).unlink(missing_ok=True)  # torn by a power cut
                try:
                    engine.run(cell, folder, _Control(stopping))
                except InputError:
                    if fresh and not (folder / CHECKPOINT).exists():
                        _clear(folder)  # nothing to resume from
                    raise
    points = [json.loads(line) for line in (folder / POINTS).read_text().splitlines()]
    summary = summary_at(folder)
    return Trained(
        folder=str(folder),
        first=points[0] if points else {},
        last=points[-1] if points else {},
        points=len(points),
        finished=summary is not None,
        diverged=(summary or {}).get("diverged"),
        ended=(summary or {}).get("ended"),
        model=str(folder / MODEL) if (folder / MODEL).exists() else None,
    )


def _refuse_another_run(folder: Path, spec: TrainSpec) -> None:
    """Refuse a folder that contains another run."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: there is a file of that name; give another --out.")
    if (folder / SPEC).exists():
        if _identity(_spec_at(folder / SPEC)) != _identity(spec):
            raise InputError(f"{folder}: holds a run with other settings ({SPEC}); give another --out, or remove it.")
    elif any((folder / name).exists() for name in (SETTINGS, CHECKPOINT, FINISHED)):
        raise InputError(f"{folder}: holds a run of something else; give another --out.")


def _spec_at(path: Path) -> TrainSpec:
    try:
        return TrainSpec.model_validate_json(path.read_bytes())
    except ValidationError as error:
        _, why = first_wrong(error)
        raise InputError(f"{path}: damaged ({why}); give another --out, or remove the run's folder.") from error


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Make the folder and lock it, as a study locks its cells; remove it if it is empty at the end."""
    try:
        with locked_folder(str(folder), RUNNING, doing="is being trained", instead="give another --out"):
            yield
    except LostError as error:
        raise InputError(f"{folder}: {error.strerror}; the same command resumes when it has ended.") from error
    finally:
        with suppress(OSError):
            folder.rmdir()


def _clear(folder: Path) -> None:
    """Remove everything except the lock, which is released last."""
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != RUNNING:
            path.unlink()


def _identity(spec: TrainSpec) -> TrainSpec:
    """The spec without options that affect only speed and memory, which may change when a run is resumed."""
    kept = {
        "engine_options": {name: value for name, value in spec.engine_options.items() if name not in SPEED_ONLY},
        "evaluation": {name: value for name, value in spec.evaluation.items() if name != "keep_samples"},
        "problems": {name: value for name, value in spec.problems.items() if name != "reward_seconds"},
    }
    return spec.model_copy(update={**kept, "recipe": current_names(spec.recipe)})


class _Control:
    """The control of a single run."""

    def __init__(self, stopping: Callable[[], bool]) -> None:
        self.stopping = stopping

    def advanced(self, rollouts: int) -> None:
        """Ignore the count: a single run has no progress display."""
