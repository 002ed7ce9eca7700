"""The settings of a run from its trainer's configuration, which a log prints or a file beside the log contains.

`isocompute.trainers` reads the configs of most trainers; this module adds Tinker, PipelineRL and custom scripts. Only
what a config states counts: today's default may differ from the default of the version that ran.
"""

from __future__ import annotations

import itertools
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from importlib import import_module
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from isocompute.core.recipe import Recipe
from isocompute.data.columns import recipe_field
from isocompute.data.source import as_number, flatten
from isocompute.trainers import TrainerSetup, read_settings


@dataclass(frozen=True)
class RunConfig:
    """The settings in a trainer's config."""

    settings: dict[str, Any]
    """Fields of `RunSettings`; `update_steps` counts batches."""
    notes: tuple[str, ...] = ()
    """What was inferred."""
    steps_per_batch: Fraction = Fraction(1)
    """Optimiser steps per batch of rollouts, where the trainer's logs count them (TRL)."""
    evaluation_samples: int = 1
    """Samples per problem in an evaluation."""


def read_run_config(config: Mapping[str, Any], *, trainer: str | None = None) -> RunConfig:
    """The settings that a config with dotted keys gives; `trainer` is the one whose log contained it."""
    full, notes = (config and trainer not in _WITHOUT_FILE and read_settings(trainer, config)) or (None, [])
    setup = None if full is None else full.without_defaults
    known = setup is not None and (setup.problems_per_batch or setup.rollouts_per_problem)
    batch = {} if known else _other_batch(config)
    settings = _plain_settings(config)
    if full is None or setup is None or batch:
        settings |= batch | _recipe_settings(_plain_recipe(config), _whole(config.get("max_tokens")))
        return RunConfig(settings)
    stated = {
        "problems_per_batch": setup.problems_per_batch,
        "rollouts_per_problem": setup.rollouts_per_problem,
        "update_steps": setup.update_steps,
        "seed": setup.seed,
        "gpus": setup.gpus if setup.trainer in _ALL_GPUS else None,
        "model": setup.model,
        "problems": settings.get("problems") or setup.train_file,
    }
    settings |= {key: value for key, value in stated.items() if value is not None}
    recipe = _recipe_of(setup)
    if not recipe and setup.trainer != "trl":  # a log may have lost the tables of its keys; TRL's keys have none
        recipe = _plain_recipe(config)
    settings |= _recipe_settings(recipe, setup.max_response_length)
    steps = Fraction(1)
    if full.trainer == "trl" and full.updates_per_batch:
        steps = max(steps, Fraction(full.updates_per_batch).limit_denominator(10_000))
    samples = None if setup.trainer in _NAMING_K else setup.validation_samples
    return RunConfig(settings, tuple(notes), steps, samples or 1)


def _recipe_settings(recipe: dict[str, Any], max_new_tokens: int | None) -> dict[str, Any]:
    out: dict[str, Any] = {"recipe": recipe} if recipe else {}
    return out | ({"problem_set": {"max_new_tokens": max_new_tokens}} if max_new_tokens else {})


def _recipe_of(setup: TrainerSetup) -> dict[str, Any]:
    """The fields of `Recipe` that a setup states."""
    names = [name for name in Recipe.model_fields if hasattr(setup, name) and name != "schedule"]  # here, a decay
    recipe = {name: value for name in names if (value := getattr(setup, name)) is not None}
    if setup.staleness and _is_consistent({**recipe, "pipeline_steps": setup.staleness}):
        recipe["pipeline_steps"] = setup.staleness
    updates = recipe.get("updates_per_batch")
    if updates is not None:
        if updates == int(updates):
            recipe["updates_per_batch"] = int(updates)
        else:
            del recipe["updates_per_batch"]  # no field describes a batch that ends within a step
    return recipe


def _is_consistent(recipe: dict[str, Any]) -> bool:
    """Whether a `Recipe` accepts these fields together, whatever the value of a single one."""
    try:
        Recipe(**recipe)
    except ValidationError as error:
        return all(wrong["loc"] for wrong in error.errors())
    return True


# Tinker, PipelineRL and other scripts.

_WITHOUT_FILE = ("tinker", "pipelinerl")
"""Trainers without a module in `isocompute.trainers`."""
_KEYS: dict[str, tuple[str, ...]] = {
    "update_steps": ("max_steps", "trainer.max_steps", "finetune.max_train_steps", "update_steps"),
    "seed": ("seed", "dataset_builder.seed"),
    "model": ("model_name", "model_name_or_path", "model_path", "model.name"),
    "problems": ("data.train_files", "data.train_data", "dataset_name", "prompt_data", "data.prompt_dataset"),
}
"""Keys with the same meaning in every trainer."""
_NAMING_K = ("verl", "prime-rl")
"""Trainers whose metric names contain the number of samples (k of avg@k)."""
_ALL_GPUS = ("verl", "nemo-rl", "skyrl")
"""Trainers whose setup counts all GPUs of a run, not those of one role."""
_BATCH_KEYS = (
    ("groups_per_batch", "group_size"),
    ("dataset_builder.groups_per_batch", "dataset_builder.group_size"),
    ("dataset_builder.batch_size", "dataset_builder.group_size"),
    ("problems_per_batch", "rollouts_per_problem"),
)
"""Problems per batch and rollouts per problem."""
_TINKER_LOSSES = {"importance_sampling": "reinforce", "ppo": "clip", "cispo": "cispo"}
_PREFIXES = ("", "finetune.", "optim.", "trainer.optim.", "actor.", "algorithm.")
"""Tables in which a plain name keeps its meaning."""


def _plain_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for ours, keys in _KEYS.items():
        value = next((config[key] for key in keys if config.get(key) is not None), None)
        if ours in ("update_steps", "seed"):
            value = _whole(value, least=1 if ours == "update_steps" else 0)
        elif isinstance(value, list):
            value = ", ".join(map(str, value))
        if value is not None and value != "":
            out[ours] = value if isinstance(value, int) else str(value)
    return out


def _other_batch(config: Mapping[str, Any]) -> dict[str, int]:
    """Bp and n; keys that give both take precedence over keys that give one."""
    best: dict[str, int] = {}
    for keys in _BATCH_KEYS:
        batch = zip(("problems_per_batch", "rollouts_per_problem"), map(_whole, map(config.get, keys)), strict=True)
        found = {name: value for name, value in batch if value}
        best = found if len(found) > len(best) else best
    attempts = _whole(config.get("attempts")) or _whole(config.get("actor.attempts"))
    if not best and attempts and "finetune.train_batch_size" in config:  # PipelineRL counts rollouts
        size = _whole(config["finetune.train_batch_size"]) or 0
        size *= _whole(config.get("finetune.gradient_accumulation_passes")) or 1
        best = {"rollouts_per_problem": attempts}
        if size and size % attempts == 0:
            best["problems_per_batch"] = size // attempts
    return best


def _plain_recipe(config: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe from keys whose meaning does not depend on the trainer."""
    out: dict[str, Any] = {}
    for prefix in _PREFIXES:
        for key, value in config.items():
            found = recipe_field(key.removeprefix(prefix), value) if key.startswith(prefix) else None
            if found is not None:
                out.setdefault(*found)
    loss = config.get("loss_fn")
    if isinstance(loss, str):
        out.setdefault("loss", _TINKER_LOSSES.get(loss, loss))
    substeps = _whole(config.get("num_substeps"))
    if substeps:
        out.setdefault("updates_per_batch", substeps)
    removed = config.get("remove_constant_reward_groups")
    if isinstance(removed, bool):
        out.setdefault("zero_variance_filter", "policy" if removed else "off")
    return out


def _whole(value: Any, least: int = 1) -> int | None:
    number = as_number(value)
    return int(number) if number is not None and number == int(number) and least <= number < 2**53 else None


# The name of a run, as a last resort.

_IN_NAME = {
    "problems_per_batch": r"(?<![A-Za-z0-9])(?:bp|gpb)[-_=]?(\d{1,6})(?!\d)",
    "rollouts_per_problem": (
        r"(?<![A-Za-z0-9])(?:n|rollout_?n|gs|group_?size|num_?generations)[-_=]?(\d{1,6})(?![\d.A-Za-z])"
    ),
}


def settings_in_name(name: str) -> dict[str, int]:
    """Bp and n that a run's name gives, such as `bp32-n8`, if it gives a single value.

    `bsz256`, `b32` and `batch32` do not count: such a number may be problems or rollouts.
    """
    out = {}
    for key, pattern in _IN_NAME.items():
        values = {int(value) for value in re.findall(pattern, name, re.IGNORECASE)}
        if len(values) == 1 and min(values) >= 1:
            out[key] = values.pop()
    return out


# Files beside a log: `config.json`, `NAME.config.json`, `config.yaml`, `.hydra/config.yaml`, TOML.

_LARGEST = 1 << 22
_NAMES = (
    *("config.json", "args.json", "training_args.json", "hparams.json", "config.yaml", "config.yml"),
    *("files/config.yaml", ".hydra/config.yaml", "rl.toml", "config.toml", "configs/rl.toml"),
    *("configs/orchestrator.toml", "control/orch.toml"),
)
_TRAINING_KEYS = {
    *("num_generations", "per_device_train_batch_size", "gradient_accumulation_steps", "generation_batch_size"),
    *("learning_rate", "max_steps", "num_train_epochs", "train_batch_size", "rollout_batch_size"),
}
"""Keys of a training, which a model's own config never has."""
CONFIG_SUFFIXES = (".config.json", ".config.yaml", ".config.toml", ".args.json")
_LOG_SUFFIXES = (".metrics.jsonl", ".jsonl", ".log", ".txt", ".out", ".json", ".csv")


def config_beside(path: Path) -> dict[str, Any]:
    """The first configuration file beside a log that belongs to a run and not to a model; flat, with dotted keys."""
    for candidate in _candidates(path):
        config = _read_config_file(candidate)
        of_model = config.keys() & {"architectures", "model_type"} and not config.keys() & _TRAINING_KEYS
        if config and not of_model:
            return config
    return {}


def _candidates(path: Path) -> Iterator[Path]:
    for ending in _LOG_SUFFIXES:
        if path.name.endswith(ending):
            stem = path.name.removesuffix(ending)
            yield from (path.parent / (stem + suffix) for suffix in CONFIG_SUFFIXES)
    try:
        if any(other.name.endswith(".config.json") for other in itertools.islice(path.parent.iterdir(), 10_000)):
            return  # each log here has its own config file
    except OSError:
        pass
    yield from (path.parent / name for name in _NAMES)


def _read_config_file(path: Path) -> dict[str, Any]:
    """A configuration file as a flat mapping with dotted keys; empty if it is missing or not readable."""
    try:
        if not path.is_file() or path.stat().st_size > _LARGEST:
            return {}
        text = path.read_text(encoding="utf-8", errors="replace")
        if path.suffix == ".json":
            data = json.loads(text)
        elif path.suffix == ".toml":
            data = tomllib.loads(text)
        else:
            yaml: Any = import_module("yaml")  # optional: whoever writes YAML has it installed
            try:
                data = yaml.load(text, Loader=yaml.SafeLoader)
            except yaml.YAMLError:
                return {}
    except (ImportError, OSError, ValueError, RecursionError):
        return {}
    if not isinstance(data, dict):
        return {}
    for key, value in data.items():  # W&B wraps every value: {"lr": {"value": 1e-6, "desc": null}}
        if isinstance(value, dict) and "value" in value and set(value) <= {"value", "desc"}:
            data[key] = value["value"]
    return flatten(data, separator=".")
