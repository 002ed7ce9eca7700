"""TRL 1.16: a `GRPOConfig` as a Python file, and as YAML for `trl grpo --config`; defaults are those of the class.

`per_device_train_batch_size` counts completions. `generation_batch_size` = Bp · n fixes Bp whatever the number of
processes; an update is on-policy where it equals per_device · processes · gradient_accumulation_steps. `epsilon_high`
is CISPO's cap itself, and the default correction for the sampler is a sequence mask, not truncated importance sampling.
`trl grpo` loads files through `datasets`, which has no second split. It validates only on a folder or a Hub dataset
with one (`dataset_name`).
"""

from __future__ import annotations

import math
from pathlib import PurePath

from isocompute.core.errors import InputError
from isocompute.trainers import reading, writing
from isocompute.trainers.config_files import ConfigFile
from isocompute.trainers.plan_input import RunPlan, TrainingHardware, share_out
from isocompute.trainers.reading import ConfigReader, Keys, Note, TrainerSetup
from isocompute.trainers.writing import Exported, File, Flat, Notes

NAME, TITLE, VERSION = "trl", "TRL", "1.16.0"
KEYS = Keys(
    model="model_name_or_path",
    train_file="dataset_name",
    datasets="datasets",
    rollouts_per_problem=("num_generations", 8),
    generation_batch="generation_batch_size",
    steps_per_generation="steps_per_generation",
    micro_batch=("per_device_train_batch_size", 8),
    accumulation=("gradient_accumulation_steps", 1),
    update_batch="total_train_batch_size",  # logged, not an option
    processes=("num_processes", ..., "world_size"),
    epochs_per_batch=("num_iterations", 1),
    optimizer_steps=("max_steps", -1),
    epochs=("num_train_epochs", 3.0),
    learning_rate=("learning_rate", 1e-6),
    schedule=("lr_scheduler_type", "linear"),
    warmup=("warmup_steps", 0),
    warmup_ratio="warmup_ratio",
    beta1=("adam_beta1", 0.9),
    beta2=("adam_beta2", 0.999),
    epsilon=("adam_epsilon", 1e-8),
    weight_decay=("weight_decay", 0.0),
    grad_clip=("max_grad_norm", 1.0),
    loss_type=("loss_type", "dapo"),
    ratio_level=("importance_sampling_level", "token"),
    clip_low=("epsilon", 0.2),
    clip_high=("epsilon_high", None),
    scale_rewards=("scale_rewards", "group"),
    kl_coef=("beta", 0.0),
    entropy_coef=("entropy_coef", 0.0),
    temperature=("temperature", 1.0),
    top_p=("top_p", 1.0),
    max_prompt_length="max_prompt_length",  # until 0.24
    max_response_length=("max_completion_length", 512),
    max_length="vllm_max_model_length",
    use_vllm=("use_vllm", False),
    correction=("vllm_importance_sampling_correction", True),
    correction_mode=("vllm_importance_sampling_mode", "sequence_mask"),
    correction_cap=("vllm_importance_sampling_clip_max", 3.0, "vllm_importance_sampling_cap"),
    validation_samples="num_generations_eval",
    seed=("seed", 42),
)
LOSS_TYPES = ("grpo", "dr_grpo", "dapo", "bnpo", "cispo", "sapo", "luspo", "vespo")
AGGREGATIONS = {"token": "dapo", "sequence": "grpo", "fixed": "dr_grpo"}
"""TRL's loss_type is an aggregation; the loss itself is clip, at the token's or the sequence's ratio."""
SCALES = {"group_std": "group", "group_mean": "none", "batch_std": "batch"}
_BUILDERS = {".parquet": "parquet", ".json": "json", ".jsonl": "json", ".csv": "csv"}
"""What `datasets.load_dataset` calls the format of a file."""


def export(plan: RunPlan, hardware: TrainingHardware) -> Exported:
    """`grpo_config.py` and `grpo.yaml`."""
    if plan.rollouts_per_problem < 2:
        raise InputError(f"n = {plan.rollouts_per_problem}: TRL's GRPO takes 2 rollouts per problem or more.")
    writing.require_full_batch(plan, TITLE)
    notes = Notes()
    share = share_out(plan, hardware)
    recipe = plan.recipe
    values = writing.plan_values(plan, notes, share)
    model, data = values.pop("model"), writing.file_name(plan, "train_file", notes, "path/to/train.parquet")
    del values["max_prompt_length"]
    cap = writing.tis_cap(plan, notes)
    loss_type = "cispo" if recipe.loss == "cispo" else AGGREGATIONS.get(recipe.aggregation, "dapo")
    settings: Flat = {"output_dir": f"grpo/{writing.run_name(plan)}"} | KEYS.write(
        values,
        generation_batch=plan.batch_size,
        accumulation=share.accumulation,
        optimizer_steps=plan.update_steps * recipe.updates_per_batch,
        schedule="constant_with_warmup",
        warmup=writing.warmup_updates(plan),
        loss_type=loss_type,
        ratio_level="sequence" if recipe.loss == "gspo" else "token",
        clip_low=recipe.clip_low,
        clip_high=recipe.ratio_cap if recipe.loss == "cispo" else recipe.clip_high,
        scale_rewards=SCALES.get(recipe.advantage, "none"),
        max_length=plan.max_prompt_length + plan.max_response_length,
        use_vllm=True,
        correction=cap is not None,
    )
    if cap is not None:
        settings |= KEYS.write({}, correction_mode="token_truncate", correction_cap=cap)
    every = plan.validation_every * recipe.updates_per_batch
    settings |= {"optim": "adamw_torch", "vllm_mode": "colocate"}
    settings |= {"eval_steps": every, "save_steps": every, "logging_steps": 1}
    if plan.validation_samples is not None or plan.val_file is not None:
        samples = plan.validation_samples or 1
        settings[KEYS["validation_samples"]] = samples
        settings["per_device_eval_batch_size"] = samples * max(1, share.micro_batch // samples)
    _note_loss(plan, notes)
    writing.note_no_option(plan, notes, "fp32_head")
    if recipe.zero_variance_filter != "off":
        notes.add("zero_variance_filter", "zero-variance problems stay in the average: no option for it.")
    writing.note_general(plan, notes)
    validation = _validation(plan, notes)
    notes.add("reward", "give GRPOTrainer a reward function, or reward_funcs in the YAML.")
    name, processes = f"{TITLE} {VERSION}", f"--num_processes {hardware.gpus}"
    launch = f"on exactly {hardware.gpus} process(es): accelerate launch {processes} your_script.py"
    python = writing.python_call(writing.header(plan, name, notes, launch), "trl", "GRPOConfig", settings | validation)
    builder = _BUILDERS.get(PurePath(data).suffix.lower())
    table: Flat = {KEYS["model"]: model, "reward_funcs": ["accuracy_reward"]}
    table |= KEYS.write(
        {}, **({"train_file": data} if builder is None else {"datasets": [_dataset_file(builder, data)]})
    )
    launch = f"to use: trl grpo --config grpo.yaml {processes}"
    files = (
        File("grpo_config.py", python),
        File("grpo.yaml", writing.yaml_text(writing.header(plan, name, notes, launch), table | settings)),
    )
    return Exported(NAME, VERSION, files, tuple(notes), share.micro_batch, share.accumulation)


def _dataset_file(builder: str, path: str) -> dict[str, str]:
    return {"path": builder, "data_files": path, "split": "train"}


def _note_loss(plan: RunPlan, notes: Notes) -> None:
    recipe = plan.recipe
    if recipe.loss == "cispo" and recipe.aggregation != "token":
        notes.add("aggregation", f"CISPO is averaged over tokens, not by '{recipe.aggregation}'.")
    if recipe.loss == "reinforce":
        notes.add("loss", "the clipped loss replaces REINFORCE; at one update per batch the gradients are equal.")
    if recipe.aggregation not in AGGREGATIONS:
        notes.add("aggregation", "there is no mean over each problem's tokens; the mean over all tokens replaces it.")
    if recipe.advantage not in SCALES:
        notes.add("advantage", f"'{recipe.advantage}' is not offered: the group's mean is subtracted.")
    if recipe.advantage == "batch_std":
        notes.add(
            "advantage",
            "the batch's deviation is that of the rewards themselves, not of the rewards minus their group's mean: "
            "advantages are smaller by the factor between the two, the more problems differ in difficulty.",
        )


def _validation(plan: RunPlan, notes: Notes) -> Flat:
    """Settings that make a trainer with an `eval_dataset` validate; without one, TRL refuses to start with them."""
    script = (
        "`trl grpo` takes no second file: put both into one folder, as train and test of one format, and write "
        "dataset_name: FOLDER in place of datasets, eval_strategy: steps and eval_on_start: true."
    )
    if plan.val_file is None:
        notes.add(
            "val_file",
            "fill in the validation problems; nothing is validated without them: give GRPOTrainer eval_dataset, and "
            f"set eval_strategy='steps' and eval_on_start=True. {script}",
        )
        return {}
    notes.add("val_file", f"give GRPOTrainer eval_dataset ({plan.val_file}). The YAML does not validate: {script}")
    return {"eval_strategy": "steps", "eval_on_start": True}


def matches(file: ConfigFile) -> int:
    """How much of a config is TRL's alone."""
    own = {KEYS[name] for name in ("rollouts_per_problem", "generation_batch", "steps_per_generation")}
    own |= {KEYS["max_response_length"], "reward_funcs"}
    named = any(word in ("GRPOConfig", "trl", "grpo") or "trl" in word.split("/") for word in file.words)
    return 2 * len(own & file.keys) + 3 * named


def read(file: ConfigFile, gpus: int | None, problems: int | None) -> tuple[TrainerSetup, list[Note]]:
    """The setup that a config describes, and what is unusual about it in TRL."""
    notes: list[Note] = []
    config = ConfigReader(file, KEYS)
    n = config.integer("rollouts_per_problem", "rollouts_per_problem")
    batch, updates, rollouts_per_update, processes = _batch(config, gpus, notes)
    problems_per_batch = _problems(batch, n, config, notes)
    optimizer_steps = config.integer("optimizer_steps")
    if optimizer_steps is None or optimizer_steps <= 0:
        epochs = config.integer("epochs")
        steps = reading.steps_from_epochs(epochs, problems, problems_per_batch, notes, KEYS["epochs"])
    else:
        steps = None if not updates else max(1, round(optimizer_steps / updates))
    loss_type = config.text("loss_type", "loss", "aggregation")
    cispo = loss_type == "cispo"
    low = config.number("clip_low", "clip_low")
    high = config.number("clip_high", *(("clip_high", "ratio_cap") if "clip_low" in config.assumed else ()))
    high = low if high is None else high
    config.assume("ratio_reference", "zero_variance_filter")  # no option for either
    if loss_type not in LOSS_TYPES:
        message = f"loss_type = {loss_type}: TRL {VERSION} fails at the first step; it has {', '.join(LOSS_TYPES)}."
        notes.append(Note("loss", message))
    if cispo and (high or 0) <= 1:
        cap = config.number("clip_high")
        notes.append(
            Note("cispo_cap", f"epsilon_high is CISPO's cap itself in TRL: {cap} truncates every ratio; 5 is usual.")
        )
    if loss_type not in LOSS_TYPES or loss_type in ("cispo", "sapo", "luspo", "vespo"):
        loss = loss_type
    else:
        loss = "gspo" if config.text("ratio_level") == "sequence" else "clip"
    by_loss = reading.invert(AGGREGATIONS) | {
        "cispo": "token",
        "bnpo": "token",
        "sapo": "sequence",
        "luspo": "sequence",
    }
    scale = str(config.get("scale_rewards", "advantage"))
    scale = {"True": "group", "False": "none", "None": "none"}.get(scale, scale)
    total, response = config.integer("max_length"), config.integer("max_response_length")
    prompt = None if total is None or response is None else total - response
    setup = config.setup(
        NAME,
        VERSION,
        problems_per_batch=problems_per_batch,
        rollouts_per_problem=n,
        update_steps=steps,
        updates_per_batch=updates,
        rollouts_per_update=rollouts_per_update,
        warmup_steps=reading.in_batches(_warmup(config, optimizer_steps), updates),
        loss=loss,
        advantage=reading.invert(SCALES).get(scale, scale),
        aggregation=by_loss.get(loss_type or "", loss_type),
        clip_low=None if cispo else low,
        clip_high=None if cispo else high,
        ratio_cap=high if cispo else None,
        ratio_reference="trainer",
        tis_cap=_tis(config, notes),
        zero_variance_filter="off",
        max_prompt_length=config.integer("max_prompt_length") if config.has("max_prompt_length") else prompt,
        gpus=processes,
        train_file=_train_file(config),
    )
    return setup, notes


def _batch(
    config: ConfigReader, gpus: int | None, notes: list[Note]
) -> tuple[int | None, float | None, int | None, int | None]:
    """Rollouts of a batch, optimiser steps on it, rollouts of one of these steps, and processes.

    A batch is everything that is generated between two updates: all generation batches of an optimiser step, if it
    takes several.
    """
    per_device = config.integer("micro_batch", "micro_batch")
    accumulation = config.integer("accumulation")
    generated = config.integer("generation_batch")
    per_generation = config.integer("steps_per_generation")
    update = config.integer("update_batch")
    processes = gpus or config.integer("processes") or None
    if not accumulation or not (per_device or update):
        return None, None, None, processes
    # The updates per batch do not depend on the process count, unless only the generation batch is given.
    on_default = not per_generation and (
        (generated is not None and processes is None) or not config.has("epochs_per_batch", "accumulation")
    )
    if generated and per_generation:
        notes.append(Note("generation_batch", "generation_batch_size and steps_per_generation exclude each other."))
    if processes is None and update is None and per_device:
        steps = per_device * (per_generation or accumulation)  # a printed config has both: TRL fills one in
        known = generated is not None and generated % steps == 0
        processes = generated // steps if generated and known else 1
        if not (known and per_generation):
            # Without a process count, a file that fixes the generation batch is taken to be on-policy.
            runs = f"on-policy on {processes} process(es) only" if known else "taken to run on 1 process"
            notes.append(Note("processes", f"{runs}: the file does not set how many; give --gpus."))
            config.assume("gpus", *(() if generated else ("problems_per_batch", "rollouts_per_update")))
    if update is None:
        update = (per_device or 1) * (processes or 1) * accumulation
        if "micro_batch" in config.assumed:
            config.assume("rollouts_per_update", *(() if generated else ("problems_per_batch",)))
    if generated is None:
        generated = update * per_generation // accumulation if per_generation else update
    elif per_device and processes and generated % (per_device * processes):
        step = per_device * processes
        message = f"generation_batch_size = {generated} is not a multiple of {step}: TRL refuses it."
        notes.append(Note("generation_batch", message))
        return generated, None, update, processes
    updates = (config.integer("epochs_per_batch") or 1) * generated / update
    if updates == 1 and on_default:
        config.assume("updates_per_batch")
    return (generated, updates, update, processes) if updates >= 1 else (update, 1, update, processes)


def _problems(batch: int | None, n: int | None, config: ConfigReader, notes: list[Note]) -> int | None:
    if not batch or not n:
        return None
    if n < 2:
        notes.append(Note("group", "num_generations must be 2 or more: TRL refuses it."))
    if batch % n:
        message = f"a generation batch of {batch} completions is not a multiple of n = {n}: TRL refuses it."
        notes.append(Note("generation_batch", message))
        return None
    if batch // n < 8:
        counted = f"per_device_train_batch_size = {config.integer('micro_batch')} counts completions, not prompts"
        notes.append(Note("completions", f"{counted}: a batch has {batch // n} problem(s)."))
    return batch // n


def _tis(config: ConfigReader, notes: list[Note]) -> float | None:
    if not config.flag("use_vllm") or not config.flag("correction"):
        return None
    mode = config.text("correction_mode")
    if mode != "token_truncate":
        message = f"the correction for the sampler is {mode}, not truncated importance sampling (token_truncate)."
        notes.append(Note("tis", message))
        return None
    return config.number("correction_cap", "tis_cap")


def _warmup(config: ConfigReader, optimizer_steps: int | None) -> int | None:
    """`warmup_steps`, of the optimiser; below 1 it is a share of the run, as the older `warmup_ratio` is."""
    ratio = config.number("warmup_ratio")
    steps = config.number("warmup", *(("warmup_steps",) if ratio is None else ()))
    if steps is not None and steps >= 1:
        return int(steps)
    share = steps or ratio or 0.0
    if share == 0:
        return 0
    return None if not optimizer_steps or optimizer_steps < 0 else math.ceil(share * optimizer_steps)


def _train_file(config: ConfigReader) -> str | None:
    """The first file of `datasets`, or its name; without `datasets`, `dataset_name`."""
    mixture = config.get("datasets")
    first = mixture[0] if isinstance(mixture, list) and mixture else None
    if not isinstance(first, dict):
        return config.text("train_file")
    found = first.get("data_files") or first.get("path")
    if isinstance(found, dict):
        found = list(found.values())
    if isinstance(found, list):
        found = found[0] if found else None
    return found if isinstance(found, str) else None
