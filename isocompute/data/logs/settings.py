"""From a trainer's own configuration to ours: what a batch really is, whoever spelled it (facts per trainer below).

| | problems a batch | rollouts a problem |
| --- | --- | --- |
| veRL | `data.train_batch_size` | `actor_rollout_ref.rollout.n` |
| SkyRL | `trainer.train_batch_size` | `generator.n_samples_per_prompt` |
| NeMo-RL | `grpo.num_prompts_per_step` | `grpo.num_generations_per_prompt` |
| OpenRLHF | `rollout.batch_size` (`rollout_batch_size`) | `rollout.n_samples_per_prompt` (`n_samples_per_prompt`) |
| prime-rl | `orchestrator.batch_size` counts rollouts | `group_size` (`rollouts_per_example`) |
| TRL | completions of one generation batch over `num_generations` | `num_generations` |
| Tinker | `groups_per_batch` | `group_size` |

TRL counts the optimiser's steps, of which there may be several on one batch; the others count batches.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from isocompute.data.logs.literals import as_number
from isocompute.data.logs.recipe import recipe_of

__all__ = ["evaluation_samples", "from_config", "from_name", "in_batches", "steps_per_batch"]

Config = Mapping[str, Any]

_FIELDS: dict[str, tuple[str, ...]] = {
    "update_steps": (
        "trainer.total_training_steps",
        "grpo.max_num_steps",
        "max_steps",
        "orchestrator.max_steps",
        "trainer.max_steps",
        "trainer.max_training_steps",
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
_EVALUATED = (
    "num_generations_eval",
    "grpo.val_num_generations_per_prompt",
    "generator.eval_n_samples_per_prompt",
    "eval.n_samples_per_prompt",
    "eval_n_samples_per_prompt",
)
_OPENRLHF = ("rollout_batch_size", "micro_rollout_batch_size", "micro_train_batch_size", "n_samples_per_prompt")
"""Keys that stand in no table only there; its `train_batch_size` counts rollouts."""


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
    for way in _WAYS:
        found, said = way(config if _counts_problems(config, trainer) else _without_train_batch(config))
        if found:
            return out | found, notes + said
    return out, notes


def steps_per_batch(config: Config) -> Fraction:
    """Optimiser steps that TRL takes, and counts, on one batch of rollouts; 1 for trainers that count batches."""
    told = next((way for way in _WAYS if way(config)[0]), None)
    return max(Fraction(1), _passes(config)) if told is _trl else Fraction(1)


def evaluation_samples(config: Config) -> int:
    """How many samples an evaluation takes of a problem; 1 where the config does not say."""
    return _whole(_first(config, _EVALUATED)) or 1


def in_batches(settings: Mapping[str, Any], per_batch: Fraction) -> dict[str, Any]:
    """Settings whose `update_steps` counted the optimiser's steps, with batches in their place."""
    steps = settings.get("update_steps")
    return dict(settings) if not steps else {**settings, "update_steps": max(1, round(steps / per_batch))}


def _counts_problems(config: Config, trainer: str | None) -> bool:
    """Whether a `train_batch_size` in no table counts problems."""
    return trainer == "skyrl" or not (trainer == "openrlhf" or any(key in config for key in _OPENRLHF))


def _without_train_batch(config: Config) -> Config:
    return {key: value for key, value in config.items() if key != "train_batch_size"}


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
    """Completions of a generation batch over `num_generations`; where one step takes several, of all of these."""
    n = _whole(config.get("num_generations"))
    if n is None:
        return {}, []
    completions = _generated(config)
    if completions is not None:
        completions /= min(Fraction(1), _passes(config))
    bp = int(completions / n) if completions and (completions / n).denominator == 1 else None
    return {"rollouts_per_problem": n} | ({"problems_per_batch": bp} if bp else {}), []


def _generated(config: Config) -> Fraction | None:
    """Completions that TRL generates at a time."""
    said = _whole(config.get("generation_batch_size"))
    if said:
        return Fraction(said)
    trained = _trained(config)
    return None if trained is None else trained * _reuse(config)


def _trained(config: Config) -> int | None:
    """Completions of one optimiser step, on all devices."""
    said = _whole(config.get("total_train_batch_size"))
    device = _whole(config.get("per_device_train_batch_size"))
    devices = _whole(_first(config, ("world_size", "num_processes")))
    if said or not device or not devices:
        return said
    return device * devices * (_whole(config.get("gradient_accumulation_steps")) or 1)


def _reuse(config: Config) -> Fraction:
    """Optimiser steps that one pass over a generation batch makes; 1 where nothing else is said."""
    steps = _whole(config.get("steps_per_generation"))
    if steps:
        return Fraction(steps, _whole(config.get("gradient_accumulation_steps")) or 1)
    generated, trained = _whole(config.get("generation_batch_size")), _trained(config)
    return Fraction(generated, trained) if generated and trained else Fraction(1)


def _passes(config: Config) -> Fraction:
    """Optimiser steps on one generation batch, over all passes."""
    return _reuse(config) * (_whole(config.get("num_iterations")) or 1)


def _pipeline_rl(config: Config) -> tuple[dict[str, int], list[str]]:
    """`attempts` rollouts of a problem; a step trains on `train_batch_size` × accumulation of them."""
    n = _whole(_first(config, ("attempts", "actor.attempts")))
    if n is None or "finetune.train_batch_size" not in config:
        return {}, []
    size = _whole(config.get("finetune.train_batch_size")) or 0
    accumulated = _whole(config.get("finetune.gradient_accumulation_passes")) or 1
    bp = size * accumulated // n if size and size * accumulated % n == 0 else None
    return {"rollouts_per_problem": n} | ({"problems_per_batch": bp} if bp else {}), []


_WAYS = (_spelled, _prime_rl, _trl, _pipeline_rl)


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
