"""From a trainer's own configuration to ours: what a batch really is, whoever spelled it (facts per trainer below).

| | problems a batch | rollouts a problem |
| --- | --- | --- |
| veRL | `data.train_batch_size` | `actor_rollout_ref.rollout.n` |
| SkyRL | `trainer.train_batch_size` | `generator.n_samples_per_prompt` |
| NeMo-RL | `grpo.num_prompts_per_step` | `grpo.num_generations_per_prompt` |
| OpenRLHF | `rollout.batch_size` (`rollout_batch_size`) | `rollout.n_samples_per_prompt` (`n_samples_per_prompt`) |
| prime-rl | `orchestrator.batch_size` counts rollouts | `group_size` (`rollouts_per_example`) |
| TRL | completions of one optimiser step over `num_generations` | `num_generations` |
| Tinker | `groups_per_batch` | `group_size` |
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from isocompute.logs.literals import as_number
from isocompute.logs.recipe import recipe_of

__all__ = ["from_config", "from_name", "overrides"]

Config = Mapping[str, Any]

_FIELDS: dict[str, tuple[str, ...]] = {
    "update_steps": (
        "trainer.total_training_steps",
        "grpo.max_num_steps",
        "max_steps",
        "orchestrator.max_steps",
        "trainer.max_steps",
        "finetune.max_train_steps",
        "update_steps",
    ),
    "seed": ("seed", "data.seed", "grpo.seed", "trainer.seed", "dataset_builder.seed", "train.seed"),
    "model": (
        "actor_rollout_ref.model.path",
        "trainer.policy.model.path",
        "policy.model_name",
        "model_name",
        "model_name_or_path",
        "model.name",
        "actor.model_name_or_path",
        "pretrain",
        "model_path",
    ),
    "problems": ("data.train_files", "data.train_data", "dataset_name", "prompt_data", "data.prompt_dataset"),
}
_BATCHES = (
    ("data.train_batch_size", "actor_rollout_ref.rollout.n"),
    ("trainer.train_batch_size", "generator.n_samples_per_prompt"),
    ("grpo.num_prompts_per_step", "grpo.num_generations_per_prompt"),
    ("rollout.batch_size", "rollout.n_samples_per_prompt"),
    ("rollout_batch_size", "n_samples_per_prompt"),
    ("groups_per_batch", "group_size"),
    ("dataset_builder.groups_per_batch", "dataset_builder.group_size"),
    ("dataset_builder.batch_size", "dataset_builder.group_size"),
    ("problems_per_batch", "rollouts_per_problem"),
    ("num_prompts_per_step", "num_generations_per_prompt"),
    ("train_batch_size", "n_samples_per_prompt"),
    ("train_batch_size", "actor_rollout_ref.rollout.n"),
)
_VALUE = r"(\"[^\"]*\"|'[^']*'|[^\s\"',\\]+)"
_HYDRA = re.compile(r"(?<![\w.])\+{0,2}([A-Za-z_]\w*(?:\.\w+)+)=" + _VALUE)
_ARGPARSE = re.compile(r"(?<![\w-])--([A-Za-z_][\w.-]*)[= ]" + _VALUE)


def from_config(config: Config, *, trainer: str | None = None) -> tuple[dict[str, Any], list[str]]:
    """Settings in our names, and notes on what had to be concluded; `trainer` is whose log it was found in."""
    out: dict[str, Any] = {}
    notes: list[str] = []
    for ours, theirs in _FIELDS.items():
        value = _first(config, theirs)
        if ours in ("update_steps", "seed"):
            value = _whole(value, least=1 if ours == "update_steps" else 0)
        elif isinstance(value, list):
            value = ", ".join(str(v) for v in value) or None
        if value is not None and value != "":
            out[ours] = value if isinstance(value, int) else str(value)
    out |= recipe_of(config, trainer=trainer)
    gpus = _gpus(config)
    if gpus:
        out["gpus"] = gpus
    for way in (_spelled, _prime_rl, _trl, _pipeline_rl):
        found, said = way(config)
        if found:
            return out | found, notes + said
    return out, notes


def overrides(line: str) -> dict[str, str]:
    """What a command line in the log sets: `data.train_batch_size=256` (Hydra), `--rollout.batch_size 128`."""
    found = [*_HYDRA.findall(line), *((key.replace("-", "_"), value) for key, value in _ARGPARSE.findall(line))]
    return {key: value.strip("'\"") for key, value in found if not value.startswith(("$", "--"))}


def _spelled(config: Config) -> tuple[dict[str, int], list[str]]:
    """Trainers that count problems and rollouts under names of their own; a spelling of both goes before one of one."""
    notes: list[str] = []
    best: dict[str, int] = {}
    for problems, rollouts in _BATCHES:
        bp, n = _whole(config.get(problems)), _whole(config.get(rollouts))
        if problems == "data.train_batch_size" and bp and not n and "actor_rollout_ref.rollout.temperature" in config:
            n = 1  # a whole dump without it: veRL of 2024 sampled once a prompt
            notes.append("n = 1, since veRL's config has no rollout.n")
        found = {k: v for k, v in (("problems_per_batch", bp), ("rollouts_per_problem", n)) if v}
        if len(found) > len(best):
            best = found
    return best, notes


def _prime_rl(config: Config) -> tuple[dict[str, int], list[str]]:
    """`batch_size` counts rollouts."""
    n = _whole(
        _first(
            config,
            ("orchestrator.group_size", "orchestrator.rollouts_per_example", "rollouts_per_example", "group_size"),
        )
    )
    if n is None:
        return {}, []
    rollouts = _whole(_first(config, ("orchestrator.batch_size", "batch_size")))
    bp = rollouts // n if rollouts and rollouts % n == 0 else None
    return {"rollouts_per_problem": n} | ({"problems_per_batch": bp} if bp else {}), []


def _trl(config: Config) -> tuple[dict[str, int], list[str]]:
    """Completions of one optimiser step over `num_generations`; `generation_batch_size` tells how many devices."""
    n = _whole(config.get("num_generations"))
    if n is None:
        return {}, []
    device = _whole(config.get("per_device_train_batch_size"))
    accumulated = _whole(config.get("gradient_accumulation_steps")) or 1
    reuse = _whole(config.get("steps_per_generation")) or accumulated
    generated = _whole(config.get("generation_batch_size"))
    completions = _whole(config.get("total_train_batch_size"))
    if completions is None and generated and generated * accumulated % reuse == 0:
        completions = generated * accumulated // reuse
    devices = _whole(_first(config, ("world_size", "num_processes")))
    if completions is None and device and devices:
        completions = device * accumulated * devices
    bp = completions // n if completions and completions % n == 0 else None
    return {"rollouts_per_problem": n} | ({"problems_per_batch": bp} if bp else {}), []


def _pipeline_rl(config: Config) -> tuple[dict[str, int], list[str]]:
    """`attempts` rollouts of a problem; a step trains on `train_batch_size` × accumulation of them."""
    n = _whole(_first(config, ("attempts", "actor.attempts")))
    if n is None or "finetune.train_batch_size" not in config:
        return {}, []
    size = _whole(config.get("finetune.train_batch_size")) or 0
    accumulated = _whole(config.get("finetune.gradient_accumulation_passes")) or 1
    bp = size * accumulated // n if size and size * accumulated % n == 0 else None
    return {"rollouts_per_problem": n} | ({"problems_per_batch": bp} if bp else {}), []


def _gpus(config: Config) -> int | None:
    nodes = _whole(_first(config, ("trainer.nnodes", "cluster.num_nodes", "trainer.placement.policy_num_nodes"))) or 1
    each = _whole(
        _first(
            config, ("trainer.n_gpus_per_node", "cluster.gpus_per_node", "trainer.placement.policy_num_gpus_per_node")
        )
    )
    return nodes * each if each else None


_IN_NAME: tuple[tuple[str, Callable[[re.Match[str]], dict[str, int]]], ...] = (
    (r"(?<![A-Za-z0-9])bp[-_=]?(\d{1,6})(?!\d)", lambda m: {"problems_per_batch": int(m[1])}),
    (r"(?<![A-Za-z0-9])gpb[-_=]?(\d{1,6})(?!\d)", lambda m: {"problems_per_batch": int(m[1])}),
    (
        r"(?<![A-Za-z0-9])(?:n|rollout_?n|gs|group_?size|num_?generations)[-_=]?(\d{1,6})(?![\d.A-Za-z])",
        lambda m: {"rollouts_per_problem": int(m[1])},
    ),
)


def from_name(name: str) -> dict[str, int]:
    """Bp and n out of a run's name, as a last resort: only spellings that mean one thing, and only where they agree.

    `bsz256`, `b32` and `batch32` are not among them: whether such a number counts problems or rollouts is the
    commonest confusion there is.
    """
    found: dict[str, set[int]] = {}
    for pattern, read in _IN_NAME:
        for match in re.finditer(pattern, name, re.IGNORECASE):
            for key, value in read(match).items():
                found.setdefault(key, set()).add(value)
    return {key: values.pop() for key, values in found.items() if len(values) == 1 and min(values) >= 1}


def _first(config: Config, keys: tuple[str, ...]) -> Any:
    return next((config[key] for key in keys if config.get(key) is not None), None)


def _whole(value: Any, least: int = 1) -> int | None:
    number = as_number(value)
    return int(number) if number is not None and number == int(number) and least <= number < 2**53 else None
