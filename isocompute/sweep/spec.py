"""The spec of a study, `study.toml`, validated field by field, and the cells that it describes."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from isocompute.core import files
from isocompute.core.allocation import Allocation, Cell, Engine, grid
from isocompute.core.errors import InputError
from isocompute.core.recipe import sampled_per_problem
from isocompute.sweep.execute import check_name

SPEC, IDENTITY, RUNNER = "study.toml", "identity.json", "runner.json"
"""Files of a study's folder, next to the folders of its sets, variants and cells."""
_MOST = 2**53
"""The largest count; beyond it, floats cannot represent every whole number."""
_FOLDER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_FOLDER_RULE = f"use letters, digits, '.', '_' and '-', and none of {SPEC}, {IDENTITY}, {RUNNER}"


def _names_folder(name: Any) -> bool:
    """Whether a folder of the study may have this name."""
    if not isinstance(name, str) or not _FOLDER_NAME.fullmatch(name):
        return False
    return name.casefold() not in (SPEC, IDENTITY, RUNNER)  # not every disk distinguishes capitals


def _whole(value: Any) -> Any:
    """Allow floats such as 4e6, which TOML does not read as integers, but not booleans and strings."""
    if isinstance(value, bool | str):
        raise ValueError("should be a whole number")
    return value


def _without_repeats(values: list[int]) -> list[int]:
    repeated = [value for i, value in enumerate(values) if value in values[:i]]
    if repeated:
        raise ValueError(f"{repeated[0]} comes twice; keep one")
    return values


Whole = Annotated[int, BeforeValidator(_whole)]
Count = Annotated[int, BeforeValidator(_whole), Field(ge=1, le=_MOST)]
Table = dict[str, Any]
Distinct = AfterValidator(_without_repeats)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Grid(_Strict):
    """The allocations to run: every pair (Bp, n) whose batch is not too large."""

    problems_per_batch: Annotated[list[Count], Distinct] = Field(min_length=1, description="values of Bp")
    rollouts_per_problem: Annotated[list[Count], Distinct] = Field(min_length=1, description="values of n")
    max_batch: Count | None = Field(default=None, description="B_max: cells with Bp · n above it are left out")


class CellBudget(_Strict):
    """The budget of each cell; it makes as many updates as the budget pays for."""

    rollouts: Count = Field(description="C, in rollouts, of every cell")


class EvaluationTable(BaseModel):
    """When and how a cell is evaluated; engines may define further fields."""

    model_config = ConfigDict(extra="allow", frozen=True)

    points: Count = Field(default=40, description="evaluations of a run, on a log grid of compute")
    samples: Count = Field(default=16, description="samples of each validation problem")
    k: list[Count] = Field(default=[4], min_length=1, description="the k of avg@k, best@k and worst@k")

    @model_validator(mode="after")
    def _enough_samples(self) -> EvaluationTable:
        if max(self.k) > self.samples:
            raise ValueError(f"k = {max(self.k)} needs at least as many samples; samples = {self.samples}")
        return self


class Resources(_Strict):
    """CPUs and GPUs of a cell, which Ray uses to place cells."""

    cpus: Annotated[float, Field(ge=0)] = Field(default=1.0, description="CPU cores of a cell")
    gpus: Annotated[float, Field(ge=0)] = Field(default=0.0, description="GPUs of a cell, may be a fraction")


class Variant(_Strict):
    """What a variant changes in the recipe, problems or allocation."""

    recipe: Table = Field(default={}, description="fields of the recipe that differ; 'none' switches one off")
    problems: Table = Field(default={}, description="fields of the problem sets that differ, such as max_new_tokens")
    problems_per_batch: Count | None = Field(default=None, description="Bp in place of the grid's")
    rollouts_per_problem: Count | None = Field(default=None, description="n in place of the grid's")


class StudySpec(_Strict):
    """A sweep: one engine and recipe over a grid of allocations, problem sets and seeds at one budget."""

    engine: Annotated[str, AfterValidator(check_name)] = Field(description="sim, command, or package.module:Class")
    problems: list[Table] = Field(default=[{}], min_length=1, description="problem sets, as the engine reads them")
    recipe: Table = Field(default={}, description="the recipe's fields, as the engine reads them")
    variants: dict[str, Variant] = Field(default={}, description="the same with another recipe, each in its own folder")
    grid: Grid
    budget: CellBudget
    seeds: Annotated[list[Annotated[Whole, Field(ge=0)]], Distinct] = Field(
        default=[0], min_length=1, description="a run for each"
    )
    evaluation: EvaluationTable = EvaluationTable()
    resources: Resources = Resources()
    engine_options: Table = Field(default={}, description="further options of the engine")

    @field_validator("variants")
    @classmethod
    def _folders(cls, variants: dict[str, Variant]) -> dict[str, Variant]:
        for name in variants:
            if not _names_folder(name) or name == WHOLE:
                raise ValueError(f"'{name}' names a folder; {_FOLDER_RULE}, {WHOLE}")
        return variants

    @field_validator("problems", mode="before")
    @classmethod
    def _as_list(cls, value: Any) -> Any:
        return [value] if isinstance(value, dict) else value

    @field_validator("problems")
    @classmethod
    def _named(cls, sets: list[Table]) -> list[Table]:
        names = [table.get("set") for table in sets]
        for i, name in enumerate(names):
            if name is None:
                if len(sets) > 1:
                    raise ValueError(f"table {i + 1} has no set; with several tables give each a name: set = 'easy'")
            elif not _names_folder(name):
                raise ValueError(f"set = {name!r} names a folder; {_FOLDER_RULE}")
            elif names.index(name) != i:
                raise ValueError(f"set = '{name}' comes twice; give every table its own name")
        return sets


def read_spec(path: str | Path) -> StudySpec:
    """Read a `study.toml`.

    >>> read_spec("missing.toml")
    Traceback (most recent call last):
    ...
    isocompute.core.errors.InputError: missing.toml: cannot be read (No such file or directory).
    """
    return parse_spec(files.read_bytes(str(path)), name=str(path))


def parse_spec(data: bytes, *, name: str = "study.toml") -> StudySpec:
    """Parse the bytes of a spec; errors name the file and the field.

    >>> spec = parse_spec(b'''
    ... engine = "sim"
    ... grid = {problems_per_batch = [32], rollouts_per_problem = [8, 16]}
    ... budget = {rollouts = 4e4}
    ... ''')
    >>> [(cell.name, cell.update_steps) for cell in cells(spec)]
    [('32x8-s0', 156), ('32x16-s0', 78)]
    """
    try:
        table = tomllib.loads(data.decode())
    except UnicodeDecodeError as error:
        raise InputError(f"{name}: not UTF-8 text; save it as UTF-8.") from error
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{name}: not TOML: {error}.") from error
    try:
        spec = StudySpec.model_validate(table)
    except ValidationError as error:
        raise InputError(f"{name}: {'; '.join(_wrong(e) for e in error.errors()[:3])}.") from error
    try:
        cells(spec)
    except InputError as error:
        raise InputError(f"{name}: grid: {error}") from error
    return spec


def _wrong(error: Any) -> str:
    """A validation error as a message about the file's fields."""
    field = ".".join(str(part) for part in error["loc"])
    text = str(error["msg"]).removeprefix("Value error, ")
    if error["type"] == "extra_forbidden":
        owner: Any = StudySpec
        if error["loc"][0] == "variants":
            owner = Variant
        else:
            for part in error["loc"][:-1]:
                owner = owner.model_fields[part].annotation
        text = f"there is no such field; there are {', '.join(owner.model_fields)}"
    return f"{field}: {text[:1].lower() + text[1:]}"


WHOLE = "whole"
"""Folder of the unchanged recipe in a study with variants."""


def cells(spec: StudySpec) -> list[Cell]:
    """The runs of a study: every allocation of the grid on every problem set with every seed, for every variant."""
    if not spec.variants:
        return _cells_of(spec, Variant(), "")
    named = {WHOLE: Variant(), **spec.variants}
    return [cell for name, variant in named.items() for cell in _cells_of(spec, variant, f"{name}/")]


def _cells_of(spec: StudySpec, variant: Variant, folder: str) -> list[Cell]:
    bp, n = variant.problems_per_batch, variant.rollouts_per_problem
    allocations = grid(
        problems_per_batch=spec.grid.problems_per_batch if bp is None else [bp],
        rollouts_per_problem=spec.grid.rollouts_per_problem if n is None else [n],
        budget=spec.budget.rollouts,
        max_batch=spec.grid.max_batch,
    )
    recipe = {**spec.recipe, **variant.recipe}
    evaluation = spec.evaluation.model_dump()
    return [
        Cell(
            name=f"{folder}{prefix}{a.problems_per_batch}x{a.rollouts_per_problem}-s{seed}",
            problems_per_batch=a.problems_per_batch,
            rollouts_per_problem=a.rollouts_per_problem,
            update_steps=_affordable(a, recipe, spec.budget.rollouts),
            seed=seed,
            problems={**problems, **variant.problems},
            recipe=recipe,
            evaluation=evaluation,
            engine=spec.engine_options,
        )
        for problems, prefix in ((t, f"{t['set']}/" if "set" in t else "") for t in spec.problems)
        for a in allocations
        for seed in spec.seeds
    ]


def _affordable(allocation: Allocation, recipe: Table, budget: int) -> int:
    """M: the number of updates that the budget pays for, including rollouts for a decoupled baseline; at least 1."""
    n = sampled_per_problem(recipe, rollouts_per_problem=allocation.rollouts_per_problem)
    return max(1, budget // (allocation.problems_per_batch * n))


def check_cells(engine: Engine, of: list[Cell], *, budget: int, name: str = "study.toml") -> None:
    """Let the engine check each cell before any of them runs."""
    for cell in of:
        if cell.rollouts_per_update > budget:
            sampled = cell.rollouts_per_update // cell.problems_per_batch
            raise InputError(
                f"{name}: budget.rollouts = {budget} is under one batch of {cell.problems_per_batch} × {sampled} = "
                f"{cell.rollouts_per_update}; raise it, or lower recipe.baseline_rollouts (cell {cell.name})."
            )
        try:
            engine.check(cell)
        except InputError as error:
            raise InputError(f"{name}: {error} (cell {cell.name})") from error
