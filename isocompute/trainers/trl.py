"""TRL 1.16: a `GRPOConfig` as a Python file, and as YAML for `trl grpo --config`.

`per_device_train_batch_size` counts completions. `generation_batch_size` = Bp · n fixes Bp whatever the number of
processes; an update is on-policy where it equals per_device · processes · gradient_accumulation_steps. `epsilon_high`
is CISPO's cap itself, and the default correction for the sampler is a sequence mask, not truncated importance sampling.
`trl grpo` loads files through `datasets` alone, which holds no second split: it validates on a folder or a dataset of
the Hub with one (`dataset_name`), and on no other file.
"""

from __future__ import annotations

from pathlib import PurePath

from isocompute.core.errors import InputError
from isocompute.trainers import common, render
from isocompute.trainers.hardware import Hardware, Share, share_out
from isocompute.trainers.plan_input import Plan
from isocompute.trainers.result import Exported, File, Flat, Notes

__all__ = ["LOSS_TYPES", "SCALES", "VERSION", "export"]

VERSION = "1.16.0"
LOSS_TYPES = {"token": "dapo", "sequence": "grpo", "fixed": "dr_grpo"}
"""TRL's loss_type is an aggregation; the loss itself is clip, at the token's or the sequence's ratio."""
SCALES = {"group_std": "group", "group_mean": "none", "batch_std": "batch"}
BUILDERS = {".parquet": "parquet", ".json": "json", ".jsonl": "json", ".csv": "csv"}
"""What `datasets.load_dataset` calls the format of a file."""


def export(plan: Plan, hardware: Hardware) -> Exported:
    """`grpo_config.py` and `grpo.yaml`."""
    if plan.rollouts_per_problem < 2:
        raise InputError(f"n = {plan.rollouts_per_problem}: TRL's GRPO takes 2 rollouts a problem or more.")
    common.fills_a_batch(plan, "TRL")
    notes = Notes()
    share = share_out(plan, hardware)
    settings = _settings(plan, share, notes)
    common.general(plan, notes)
    validation = _validation(plan, notes)
    notes.add("reward", "give GRPOTrainer a reward function, or reward_funcs in the YAML.")
    model, data = common.model(plan, notes), common.train_file(plan, notes)
    name = f"TRL {VERSION}"
    processes = f"accelerate launch --num_processes {hardware.gpus}"
    start = f"on exactly {hardware.gpus} process(es): {processes} your_script.py"
    start_yaml = f"to use: trl grpo --config grpo.yaml --num_processes {hardware.gpus}"
    script: Flat = {"model_name_or_path": model, **_dataset(data), "reward_funcs": ["accuracy_reward"]}
    return Exported(
        "trl",
        VERSION,
        (
            File(
                "grpo_config.py",
                render.python_call(
                    render.header(plan, name, notes, [start]), "trl", "GRPOConfig", settings | validation
                ),
            ),
            File("grpo.yaml", render.yaml_text(render.header(plan, name, notes, [start_yaml]), script | settings)),
        ),
        tuple(notes),
        share.micro_batch,
        share.accumulation,
    )


def _settings(plan: Plan, share: Share, notes: Notes) -> Flat:
    recipe = plan.recipe
    loss_type, level = _loss(plan, notes)
    scale = SCALES.get(recipe.advantage)
    if scale is None:
        notes.add("advantage", f"'{recipe.advantage}' is not offered: the group's mean is subtracted.")
    if recipe.advantage == "batch_std":
        notes.add(
            "advantage",
            "the batch's deviation is that of the rewards themselves, not of the rewards minus their group's mean: "
            "advantages are smaller by the factor between the two, the more problems differ in difficulty.",
        )
    cap = common.truncation(plan, notes)
    common.no_option(plan, notes, "fp32_head")
    if recipe.zero_variance_filter != "off":
        notes.add("zero_variance_filter", "zero-variance problems stay in the average: no option for it.")
    settings: Flat = {
        "output_dir": f"grpo/{common.run_name(plan)}",
        "num_generations": plan.rollouts_per_problem,
        "generation_batch_size": plan.batch_size,
        "per_device_train_batch_size": share.micro_batch,
        "gradient_accumulation_steps": share.accumulation,
        "num_iterations": recipe.updates_per_batch,
        "max_steps": plan.update_steps * recipe.updates_per_batch,
        "learning_rate": plan.learning_rate,
        "lr_scheduler_type": "constant_with_warmup",
        "warmup_steps": common.warmup_updates(plan),
        "optim": "adamw_torch",
        "adam_beta1": recipe.beta1,
        "adam_beta2": recipe.beta2,
        "adam_epsilon": recipe.epsilon,
        "weight_decay": recipe.weight_decay,
        "max_grad_norm": common.grad_clip(plan),
        "loss_type": loss_type,
        "importance_sampling_level": level,
        "epsilon": recipe.clip_low,
        "epsilon_high": recipe.ratio_cap if loss_type == "cispo" else recipe.clip_high,
        "scale_rewards": scale or "none",
        "beta": recipe.kl_coef,
        "entropy_coef": recipe.entropy_coef,
        "temperature": recipe.temperature,
        "top_p": recipe.top_p,
        "max_completion_length": plan.max_response_length,
        "use_vllm": True,
        "vllm_mode": "colocate",
        "vllm_max_model_length": plan.max_prompt_length + plan.max_response_length,
        "vllm_importance_sampling_correction": cap is not None,
    }
    if cap is not None:
        settings |= {"vllm_importance_sampling_mode": "token_truncate", "vllm_importance_sampling_clip_max": cap}
    if plan.validation_samples is not None or plan.val_file is not None:
        samples = plan.validation_samples or 1
        settings["num_generations_eval"] = samples
        settings["per_device_eval_batch_size"] = samples * max(1, share.micro_batch // samples)
    if plan.seed is not None:
        settings["seed"] = plan.seed
    every = plan.validation_every * recipe.updates_per_batch
    return settings | {"eval_steps": every, "save_steps": every, "logging_steps": 1}


def _dataset(name: str) -> Flat:
    """A file as the one entry of `datasets`; a dataset of the Hub or a folder by its name, with its splits."""
    builder = BUILDERS.get(PurePath(name).suffix.lower())
    if builder is None:
        return {"dataset_name": name}
    return {"datasets": [{"path": builder, "data_files": name, "split": "train"}]}


def _validation(plan: Plan, notes: Notes) -> Flat:
    """What makes a trainer with an `eval_dataset` validate; one without would refuse to start with it."""
    script = (
        "`trl grpo` takes no second file: put both into one folder, as train and test of one format, and write "
        "dataset_name: FOLDER in place of datasets, eval_strategy: steps and eval_on_start: true."
    )
    if plan.val_file is None:
        notes.add(
            "val_file",
            "fill in the validation problems, nothing is validated without: give GRPOTrainer eval_dataset, and set "
            f"eval_strategy='steps' and eval_on_start=True. {script}",
        )
        return {}
    notes.add("val_file", f"give GRPOTrainer eval_dataset ({plan.val_file}). The YAML does not validate: {script}")
    return {"eval_strategy": "steps", "eval_on_start": True}


def _loss(plan: Plan, notes: Notes) -> tuple[str, str]:
    """`loss_type` and `importance_sampling_level`."""
    recipe = plan.recipe
    if recipe.loss == "cispo":
        if recipe.aggregation != "token":
            notes.add("aggregation", f"CISPO is averaged over tokens, not by '{recipe.aggregation}'.")
        return "cispo", "token"
    if recipe.loss == "reinforce":
        notes.add("loss", "the clipped loss stands in for REINFORCE; at one update a batch the gradients are equal.")
    loss_type = LOSS_TYPES.get(recipe.aggregation)
    if loss_type is None:
        notes.add("aggregation", "there is no mean over each problem's tokens; the mean over all tokens stands in.")
    return loss_type or "dapo", "sequence" if recipe.loss == "gspo" else "token"
