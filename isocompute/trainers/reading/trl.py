"""TRL's `GRPOConfig` as a Setup; defaults are those of 1.16."""

from __future__ import annotations

import math

from isocompute.trainers import trl as writer
from isocompute.trainers.reading.setup import Config, Odd, Settings, Setup
from isocompute.trainers.reading.shared import gradient_norm, in_batches, invert, steps_from_epochs

__all__ = ["DEFAULTS", "LOSS_TYPES", "NAME", "READ", "VERSION", "matches", "read"]

NAME, VERSION = "trl", writer.VERSION
LOSS_TYPES = ("grpo", "dr_grpo", "dapo", "bnpo", "cispo", "sapo", "luspo", "vespo")
DEFAULTS = {
    "num_generations": 8,
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "num_iterations": 1,
    "max_steps": -1,
    "num_train_epochs": 3.0,
    "learning_rate": 1e-6,
    "lr_scheduler_type": "linear",
    "warmup_steps": 0,
    "adam_beta1": 0.9,
    "adam_beta2": 0.999,
    "adam_epsilon": 1e-8,
    "weight_decay": 0.0,
    "max_grad_norm": 1.0,
    "loss_type": "dapo",
    "importance_sampling_level": "token",
    "epsilon": 0.2,
    "epsilon_high": None,
    "scale_rewards": "group",
    "beta": 0.0,
    "entropy_coef": 0.0,
    "temperature": 1.0,
    "top_p": 1.0,
    "max_completion_length": 512,
    "use_vllm": False,
    "vllm_importance_sampling_correction": True,
    "vllm_importance_sampling_mode": "sequence_mask",
    "vllm_importance_sampling_clip_max": 3.0,
    "seed": 42,
}
_AGGREGATIONS = invert(writer.LOSS_TYPES) | {"cispo": "token", "bnpo": "token", "sapo": "sequence", "luspo": "sequence"}
_SCALES = invert(writer.SCALES)
_MARKS = ("num_generations", "generation_batch_size", "steps_per_generation", "max_completion_length", "reward_funcs")
READ = frozenset(DEFAULTS) | {
    "generation_batch_size",
    "steps_per_generation",
    "num_processes",
    "world_size",
    "total_train_batch_size",
}
"""Keys that a setup depends on."""


def matches(config: Config) -> int:
    """How many settings only TRL has."""
    named = sum(name in ("GRPOConfig", "trl", "grpo") or "trl" in name.split("/") for name in config.names)
    return 2 * sum(key in config.keys for key in _MARKS) + 3 * min(1, named)


def read(config: Config, gpus: int | None, problems: int | None) -> tuple[Setup, list[Odd]]:
    """What the settings amount to, and what is odd about them in TRL."""
    odd: list[Odd] = []
    given = Settings(config, DEFAULTS)
    n = given.integer("num_generations", "rollouts_per_problem")
    batch, updates, rollouts_per_update, processes = _batch(given, gpus, odd)
    problems_per_batch = _problems(batch, n, given, odd)
    optimizer_steps = given.integer("max_steps")
    if optimizer_steps is None or optimizer_steps <= 0:
        epochs = given.number("num_train_epochs")
        whole = int(epochs) if epochs is not None and epochs == int(epochs) else None
        steps = steps_from_epochs(whole, problems, problems_per_batch, odd, "num_train_epochs")
    else:
        steps = None if not updates else max(1, round(optimizer_steps / updates))
    loss_type, level = given.text("loss_type", "loss"), given.text("importance_sampling_level")
    high = given.number("epsilon_high")
    low = given.number("epsilon", "clip_low")
    if high is None and "clip_low" in given.assumed:
        given.assume("clip_high", "ratio_cap")
    if "loss" in given.assumed:
        given.assume("aggregation")
    given.assume("ratio_anchor", "zero_variance_filter")  # no option for either
    cispo = loss_type == "cispo"
    if loss_type not in LOSS_TYPES:
        odd.append(
            Odd(
                "loss",
                f"loss_type = {loss_type}: TRL {VERSION} fails at the first step; it has {', '.join(LOSS_TYPES)}.",
            )
        )
    if cispo and (high if high is not None else low or 0) <= 1:
        odd.append(
            Odd("cispo_cap", f"epsilon_high is CISPO's cap itself in TRL: {high} truncates every ratio; 5 is usual.")
        )
    setup = Setup(
        trainer=NAME,
        version=VERSION,
        problems_per_batch=problems_per_batch,
        rollouts_per_problem=n,
        update_steps=steps,
        updates_per_batch=updates,
        rollouts_per_update=rollouts_per_update,
        learning_rate=given.number("learning_rate", "learning_rate"),
        schedule=given.text("lr_scheduler_type"),
        warmup_steps=in_batches(_warmup(given, optimizer_steps), updates),
        kl_coef=given.number("beta", "kl_coef"),
        entropy_coef=given.number("entropy_coef", "entropy_coef"),
        loss="cispo" if cispo else _loss(loss_type, level),
        advantage=_advantage(given),
        aggregation=_AGGREGATIONS.get(loss_type or "", loss_type),
        clip_low=None if cispo else low,
        clip_high=None if cispo else (high if high is not None else low),
        ratio_cap=(high if high is not None else low) if cispo else None,
        ratio_anchor="trainer",
        tis_cap=_tis(given, odd),
        zero_variance_filter="off",
        temperature=given.number("temperature", "temperature"),
        top_p=given.number("top_p", "top_p"),
        beta1=given.number("adam_beta1", "beta1"),
        beta2=given.number("adam_beta2", "beta2"),
        epsilon=given.number("adam_epsilon", "epsilon"),
        weight_decay=given.number("weight_decay", "weight_decay"),
        grad_clip=gradient_norm(given.number("max_grad_norm", "grad_clip")),
        max_prompt_length=_prompt_length(given),
        max_response_length=given.integer("max_completion_length", "max_response_length"),
        validation_samples=given.integer("num_generations_eval", "validation_samples"),
        seed=given.integer("seed", "seed"),
        gpus=processes,
        micro_batch=given.integer("per_device_train_batch_size"),
        model=given.text("model_name_or_path"),
        train_file=_train_file(given),
        assumed=tuple(given.assumed),
    )
    return setup, odd


def _batch(
    given: Settings, gpus: int | None, odd: list[Odd]
) -> tuple[int | None, float | None, int | None, int | None]:
    """Rollouts of a batch, optimiser steps on it, rollouts of one of these steps, and processes.

    A batch is what is generated between two updates: where one optimiser step takes several generation batches, it is
    all of these.
    """
    per_device = given.integer("per_device_train_batch_size", "micro_batch")
    accumulation = given.integer("gradient_accumulation_steps")
    iterations = given.integer("num_iterations") or 1
    generated = given.integer("generation_batch_size")
    per_generation = given.integer("steps_per_generation")
    update = given.integer("total_train_batch_size")
    processes = gpus or given.integer("num_processes") or given.integer("world_size") or None
    if not accumulation or not (per_device or update):
        return None, None, None, processes
    # How often a batch is used depends on no process count, unless the generation batch alone is said.
    if not given.has("num_iterations", "gradient_accumulation_steps") and not per_generation:
        given.assume("updates_per_batch")
    if generated and not per_generation and processes is None:
        given.assume("updates_per_batch")
    if generated and per_generation:
        odd.append(Odd("generation_batch", "generation_batch_size and steps_per_generation exclude each other."))
    if processes is None and update is None and per_device:
        steps = per_device * (per_generation or accumulation)  # a printed config has both: TRL fills one in
        known = generated is not None and generated % steps == 0
        processes = generated // steps if generated and known else 1
        if not (known and per_generation):
            # Without a process count the file is taken at its word: on-policy where it fixes the generation batch.
            says = f"on-policy on {processes} process(es) only" if known else "taken to run on 1 process"
            odd.append(Odd("processes", f"{says}: the file does not say how many; give --gpus."))
            given.assume("gpus", *(() if generated else ("problems_per_batch",)))
    if update is None:
        assert per_device is not None
        assert processes is not None
        update = per_device * processes * accumulation
        if not generated and "micro_batch" in given.assumed:
            given.assume("problems_per_batch")
    if generated is None:
        generated = update * per_generation // accumulation if per_generation else update
    elif per_device and processes and generated % (per_device * processes):
        step = per_device * processes
        odd.append(
            Odd("generation_batch", f"generation_batch_size = {generated} is no multiple of {step}: TRL refuses it.")
        )
        return generated, None, update, processes
    updates = iterations * generated / update
    return (generated, updates, update, processes) if updates >= 1 else (update, 1, update, processes)


def _problems(batch: int | None, n: int | None, given: Settings, odd: list[Odd]) -> int | None:
    if not batch or not n:
        return None
    if n < 2:
        odd.append(Odd("group", "num_generations must be 2 or more: TRL refuses it."))
    if batch % n:
        odd.append(
            Odd(
                "generation_batch",
                f"a generation batch of {batch} completions is no multiple of n = {n}: TRL refuses it.",
            )
        )
        return None
    if batch // n < 8:
        per_device = given.integer("per_device_train_batch_size")
        says = f"per_device_train_batch_size = {per_device} counts completions, not prompts"
        odd.append(Odd("completions", f"{says}: a batch has {batch // n} problem(s)."))
    return batch // n


def _loss(loss_type: str | None, level: str | None) -> str | None:
    if loss_type in ("sapo", "luspo", "vespo") or loss_type not in LOSS_TYPES:
        return loss_type
    return "gspo" if level == "sequence" else "clip"


def _advantage(given: Settings) -> str | None:
    scale = given.get("scale_rewards", "advantage")
    name = {"True": "group", "False": "none", "None": "none"}.get(str(scale), str(scale))
    return _SCALES.get(name, name)


def _tis(given: Settings, odd: list[Odd]) -> float | None:
    if not given.flag("use_vllm") or not given.flag("vllm_importance_sampling_correction"):
        return None
    mode = given.text("vllm_importance_sampling_mode")
    if mode != "token_truncate":
        odd.append(
            Odd("tis", f"the correction for the sampler is {mode}, not truncated importance sampling (token_truncate).")
        )
        return None
    cap = given.number("vllm_importance_sampling_cap")
    return cap if cap is not None else given.number("vllm_importance_sampling_clip_max", "tis_cap")


def _warmup(given: Settings, optimizer_steps: int | None) -> int | None:
    """`warmup_steps`, of the optimiser; below 1 it is a share of the run, as the older `warmup_ratio` is."""
    ratio = given.number("warmup_ratio") if given.has("warmup_ratio") else None
    steps = given.number("warmup_steps", "warmup_steps" if ratio is None else None)
    if steps is not None and steps >= 1:
        return int(steps)
    share = steps or ratio or 0.0
    if share == 0:
        return 0
    return None if not optimizer_steps or optimizer_steps < 0 else math.ceil(share * optimizer_steps)


def _train_file(given: Settings) -> str | None:
    """The first file of `datasets`, which stands over `dataset_name`, or the name it goes by."""
    mixture = given.get("datasets")
    first = mixture[0] if isinstance(mixture, list) and mixture else None
    if not isinstance(first, dict):
        return given.text("dataset_name")
    found = first.get("data_files") or first.get("path")
    if isinstance(found, dict):
        found = list(found.values())
    if isinstance(found, list):
        found = found[0] if found else None
    return found if isinstance(found, str) else None


def _prompt_length(given: Settings) -> int | None:
    if given.has("max_prompt_length"):
        return given.integer("max_prompt_length")
    total, response = given.integer("vllm_max_model_length"), given.integer("max_completion_length")
    return None if total is None or response is None else total - response
