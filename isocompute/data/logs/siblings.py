"""Configuration files beside a log: `config.json`, `NAME.config.json`, `config.yaml`, `.hydra/config.yaml`, TOML."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from isocompute.data.logs.literals import scalars

__all__ = ["config_beside", "read_config"]

_LARGEST = 1 << 22
_NAMES = (
    "config.json",
    "args.json",
    "training_args.json",
    "hparams.json",
    "config.yaml",
    "config.yml",
    "files/config.yaml",
    ".hydra/config.yaml",
    "rl.toml",
    "config.toml",
    "configs/rl.toml",
    "configs/orchestrator.toml",
    "control/orch.toml",
)
_TRAINING = {
    "num_generations",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "generation_batch_size",
    "learning_rate",
    "max_steps",
    "num_train_epochs",
    "train_batch_size",
    "rollout_batch_size",
}
"""Keys of a training, of which a model's own config has none."""
SUFFIXES = (".config.json", ".config.yaml", ".config.toml", ".args.json")
_LOG_ENDINGS = (".metrics.jsonl", ".jsonl", ".log", ".txt", ".out", ".json", ".csv")


def config_beside(path: Path) -> dict[str, Any]:
    """The flat configuration of the first such file that says anything."""
    for candidate in _candidates(path):
        config = read_config(candidate)
        if config and not _is_a_models(config):
            return config
    return {}


def _is_a_models(config: dict[str, Any]) -> bool:
    """Whether a config describes the model alone; transformers merges it into the config of a run at W&B."""
    return bool(config.keys() & {"architectures", "model_type"}) and not config.keys() & _TRAINING


def _candidates(path: Path) -> Iterator[Path]:
    for ending in _LOG_ENDINGS:
        if path.name.endswith(ending):
            stem = path.name.removesuffix(ending)
            yield from (path.parent / (stem + suffix) for suffix in SUFFIXES)
    if sum(1 for other in _some(path.parent) if other.name.endswith(".config.json")) > 0:
        return  # every log here has one of its own
    yield from (path.parent / name for name in _NAMES)


def _some(folder: Path) -> Iterator[Path]:
    try:
        for i, entry in enumerate(folder.iterdir()):
            if i > 10_000:
                return
            yield entry
    except OSError:
        return


def read_config(path: Path) -> dict[str, Any]:
    """A configuration file as one flat mapping with dots; empty where it is not there or not readable."""
    try:
        if not path.is_file() or path.stat().st_size > _LARGEST:
            return {}
        text = path.read_text(encoding="utf-8", errors="replace")
        if path.suffix == ".json":
            data = json.loads(text)
        elif path.suffix == ".toml":
            data = tomllib.loads(text)
        else:
            data = _yaml(text)
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(data, dict):
        return {}
    # W&B wraps every value: {"lr": {"value": 1e-6, "desc": null}}.
    return scalars({key: _unwrapped(value) for key, value in data.items()}, separator=".")


def _unwrapped(value: Any) -> Any:
    return value["value"] if isinstance(value, dict) and "value" in value and set(value) <= {"value", "desc"} else value


def _yaml(text: str) -> Any:
    try:
        yaml: Any = import_module("yaml")  # not among our requirements, but wherever YAML is written
    except ImportError:
        return {}
    try:
        return yaml.load(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
