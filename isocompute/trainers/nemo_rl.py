"""NeMo-RL 0.6: a YAML file on top of its own `examples/configs/grpo_math_1B.yaml`, whose values are the defaults here.

`policy.train_global_batch_size` counts rollouts: Bp · n means one update per batch. A CISPO cap of 5 is
`ratio_clip_max: 4`.
"""

from __future__ import annotations

from typing import Any

from isocompute.core.errors import InputError
from isocompute.trainers import reading, writing
from isocompute.trainers.config_files import ConfigFile
from isocompute.trainers.plan_input import RunPlan, TrainingHardware, share_out
from isocompute.trainers.reading import ConfigReader, Keys, Note, TrainerSetup
from isocompute.trainers.writing import Exported, File, Flat, Notes

NAME, TITLE, VERSION = "nemo-rl", "NeMo-RL", "0.6.0"
COMMIT = "7ea279abfbeb698b092856d0dab61e7cf39bc909"
ROOT = "grpo_math_1B.yaml"
ADAMW, MEGATRON = "policy.optimizer.kwargs", "policy.megatron_cfg"
_RISE = [{"name": "torch.optim.lr_scheduler.LinearLR", "kwargs": {"start_factor": 0.1, "total_iters": 50}}]
KEYS = Keys(
    problems_per_batch=("grpo.num_prompts_per_step", 32, "num_prompts_per_step"),
    rollouts_per_problem=("grpo.num_generations_per_prompt", 16, "num_generations_per_prompt"),
    max_steps=("grpo.max_num_steps", 1000000),
    epochs=("grpo.max_num_epochs", 1),
    normalize_rewards=("grpo.normalize_rewards", True),
    estimator=("grpo.adv_estimator.name", "grpo"),
    minus_baseline=("grpo.adv_estimator.minus_baseline", True),
    dynamic_sampling=("grpo.use_dynamic_sampling", False),
    validation_samples=("grpo.val_num_generations_per_prompt", 1),
    seed=("grpo.seed", 42),
    asynchronous=("grpo.async_grpo.enabled", False),
    max_age=("grpo.async_grpo.max_trajectory_age_steps", 1),
    kl_coef=("loss_fn.reference_policy_kl_penalty", 0.01),
    clip_low=("loss_fn.ratio_clip_min", 0.2),
    clip_high=("loss_fn.ratio_clip_max", 0.2),
    use_cispo=("loss_fn.use_cispo", False),
    disable_ratio=("loss_fn.disable_ppo_ratio", False),
    sequence_ratio=("loss_fn.sequence_level_importance_ratios", False),
    token_level=("loss_fn.token_level_loss", True),
    correction=("loss_fn.use_importance_sampling_correction", False),
    correction_type="loss_fn.truncated_importance_sampling_type",
    tis_cap="loss_fn.truncated_importance_sampling_ratio",
    model="policy.model_name",
    train_batch=("policy.train_global_batch_size", 512),
    micro_batch=("policy.train_micro_batch_size", 4),
    max_length=("policy.max_total_sequence_length", 512),
    grad_clip=("policy.max_grad_norm", 1.0),
    learning_rate=(f"{ADAMW}.lr", 5e-6),
    weight_decay=(f"{ADAMW}.weight_decay", 0.01),
    betas=(f"{ADAMW}.betas", [0.9, 0.999]),
    epsilon=(f"{ADAMW}.eps", 1e-8),
    scheduler=("policy.scheduler", _RISE),
    temperature=("policy.generation.temperature", 1.0),
    top_p=("policy.generation.top_p", 1.0),
    max_response_length="policy.generation.max_new_tokens",
    megatron=(f"{MEGATRON}.enabled", False),
    megatron_learning_rate=(f"{MEGATRON}.optimizer.lr", 5e-6),
    megatron_weight_decay=(f"{MEGATRON}.optimizer.weight_decay", 0.01),
    megatron_beta1=(f"{MEGATRON}.optimizer.adam_beta1", 0.9),
    megatron_beta2=(f"{MEGATRON}.optimizer.adam_beta2", 0.999),
    megatron_epsilon=(f"{MEGATRON}.optimizer.adam_eps", 1e-8),
    megatron_schedule=(f"{MEGATRON}.scheduler.lr_decay_style", "constant"),
    megatron_warmup=(f"{MEGATRON}.scheduler.lr_warmup_iters", 13),
    max_prompt_length="data.max_input_seq_length",
    train_file=("data.train.data_path", ..., "data.train.dataset_name"),
    val_file="data.validation.data_path",
    gpus_per_node=("cluster.gpus_per_node", 1),
    nodes=("cluster.num_nodes", 1),
)
ADVANTAGES = {
    "group_std": ("grpo", True, True),
    "group_mean": ("grpo", False, True),
    "batch_std": ("reinforce_plus_plus", False, True),
    "none": ("reinforce_plus_plus", False, False),
}
"""`adv_estimator.name`, `normalize_rewards`, `adv_estimator.minus_baseline`."""
_ALL_PROBLEMS = 10_000_000
"""A limit above the size of any validation set; the loop over problems ends with the set."""
_ENDLESS = 1_000_000
"""A step count from here on means no limit."""


def export(plan: RunPlan, hardware: TrainingHardware) -> Exported:
    """`nemo_rl.yaml`."""
    writing.require_full_batch(plan, TITLE)
    if plan.recipe.advantage == "gae" and plan.rollouts_per_problem < 2:
        raise InputError(
            "n = 1: the group's mean replaces the critic in NeMo-RL's GRPO, and leaves nothing of one rollout; "
            "take 2 or more."
        )
    notes = Notes()
    share = share_out(plan, hardware)
    recipe = plan.recipe
    values = writing.plan_values(plan, notes, share)
    estimator, by_std, baseline = ADVANTAGES.get(recipe.advantage, ADVANTAGES["group_mean"])
    cispo, gspo = recipe.loss == "cispo", recipe.loss == "gspo"
    by_token = not gspo and (cispo or recipe.aggregation != "sequence")
    cap = writing.tis_cap(plan, notes)
    settings: Flat = {"defaults": ROOT} | KEYS.write(
        values,
        train_file=writing.file_name(plan, "train_file", notes, "path/to/train.jsonl"),
        max_steps=plan.update_steps,
        epochs=plan.update_steps,  # an epoch has at least one step, so this never ends the run first
        normalize_rewards=by_std,
        estimator=estimator,
        minus_baseline=baseline,
        clip_low=1.0 if cispo else recipe.clip_low,
        clip_high=recipe.ratio_cap - 1 if cispo else recipe.clip_high,
        use_cispo=cispo,
        disable_ratio=recipe.loss == "reinforce",
        sequence_ratio=gspo,
        token_level=by_token,
        correction=cap is not None,
        correction_type=None if cap is None else "tis",
        tis_cap=cap,
        train_batch=plan.batch_size,
        max_length=plan.max_prompt_length + plan.max_response_length,
        scheduler=_schedule(recipe.warmup_steps),
        gpus_per_node=hardware.gpus_on_node,
        nodes=hardware.nodes,
        **({} if plan.val_file is None else {"val_file": plan.val_file}),
    )
    settings |= {
        "grpo.use_leave_one_out_baseline": False,
        "grpo.val_period": plan.validation_every,
        "grpo.val_at_start": True,
        "grpo.max_val_samples": _ALL_PROBLEMS,
        "checkpointing.checkpoint_dir": f"results/{writing.run_name(plan)}",  # a run resumes from what it finds there
        "checkpointing.save_period": plan.validation_every,
        "logger.log_dir": f"logs/{writing.run_name(plan)}",
        "policy.optimizer.name": "torch.optim.AdamW",
        "data.train.dataset_name": "ResponseDataset",
    }
    if share.tokens is not None:
        settings |= {
            "policy.sequence_packing.enabled": True,
            "policy.sequence_packing.train_mb_tokens": share.tokens,
            "policy.sequence_packing.logprob_mb_tokens": share.tokens,
        }
    if plan.val_file is not None:
        settings["data.validation.dataset_name"] = "ResponseDataset"
        settings["data.train.split_validation_size"] = 0.0  # the config below holds 5% of the training data out
    else:
        notes.add(
            "val_file",
            "fill in the validation problems (data.validation); without them 5% of the training problems are held out "
            "to validate on.",
        )
    if recipe.aggregation != ("token" if by_token else "sequence"):
        over = "tokens" if by_token else "responses"
        notes.add("aggregation", f"averaged over {over}, not by '{recipe.aggregation}'.")
    writing.note_whitened(plan, notes)
    if recipe.advantage == "gae":
        instead = "PPO has a config of its own (ppo_math_1B.yaml); the group's mean replaces the critic."
        notes.add("advantage", instead)
    writing.note_unfiltered(plan, notes, "grpo.use_dynamic_sampling")
    writing.note_general(plan, notes)
    writing.note_no_option(plan, notes, "entropy_coef", "fp32_head", "updates_per_batch")
    notes.add("reward", "the `math` environment scores the answers; fill in yours.")
    start = f"to use: copy beside {ROOT} in examples/configs, then uv run examples/run_grpo.py --config FILE"
    top = writing.header(plan, f"{TITLE} {VERSION} ({COMMIT[:8]})", notes, start)
    file = File("nemo_rl.yaml", writing.yaml_text(top, settings))
    return Exported(NAME, VERSION, (file,), tuple(notes), share.micro_batch, share.accumulation)


def _schedule(warmup: int) -> list[Flat]:
    """A linear rise, then constant; the last entry sets where one gives way to the other."""
    rise = {"start_factor": 1 / max(1, warmup), "end_factor": 1.0, "total_iters": warmup}
    schedule: list[Flat] = [{"name": "torch.optim.lr_scheduler.LinearLR", "kwargs": rise}] if warmup else []
    constant = {"factor": 1.0, "total_iters": 10_000_000_000}
    schedule.append({"name": "torch.optim.lr_scheduler.ConstantLR", "kwargs": constant})
    return [*schedule, {"milestones": [warmup] if warmup else []}]


def matches(file: ConfigFile) -> int:
    """How much of a config is NeMo-RL's alone."""
    own = {key for name in ("problems_per_batch", "rollouts_per_problem") for key in KEYS.spellings[name]}
    return sum(key.startswith(("grpo.", "loss_fn.", "policy.generation.")) or key in own for key in file.keys)


def read(file: ConfigFile, gpus: int | None, problems: int | None) -> tuple[TrainerSetup, list[Note]]:
    """The setup that a config describes, and what is unusual about it in NeMo-RL."""
    notes: list[Note] = []
    config = ConfigReader(file, KEYS, has_defaults=all(name.endswith(ROOT) for name in file.parents))
    batch = config.integer("problems_per_batch", "problems_per_batch")
    n = config.integer("rollouts_per_problem", "rollouts_per_problem")
    train = config.integer("train_batch", "updates_per_batch", "rollouts_per_update")
    if {"problems_per_batch", "rollouts_per_problem"} & set(config.assumed):
        config.assume("updates_per_batch")
    updates = None if not batch or not n or not train else batch * n / train
    if updates is not None and updates < 1:
        message = f"train_global_batch_size = {train} is above the {batch} × {n} rollouts of a step."
        notes.append(Note("mini_batch", message))
        updates = None
    cispo, gspo = config.flag("use_cispo"), config.flag("sequence_ratio")
    reinforce = config.flag("disable_ratio")
    if not any(config.has(name) for name in ("use_cispo", "sequence_ratio", "disable_ratio")):
        config.assume("loss")
    low, high = config.number("clip_low", "clip_low"), config.number("clip_high", "clip_high", "ratio_cap")
    if cispo and low is not None and low < 1:
        message = f"ratio_clip_min = {low:g} floors CISPO's ratio at {1 - low:g}; 1 removes the floor."
        notes.append(Note("cispo_cap", message))
    config.assume("entropy_coef", "ratio_reference")  # no option for either
    total, prompt = config.integer("max_length"), config.integer("max_prompt_length")
    response = config.integer("max_response_length", "max_response_length")
    by_token = config.flag("token_level", "aggregation")
    refills = config.flag("dynamic_sampling", "zero_variance_filter")
    age = config.integer("max_age", "staleness") if config.flag("asynchronous") else None
    setup = config.setup(
        NAME,
        VERSION,
        problems_per_batch=batch,
        rollouts_per_problem=n,
        update_steps=_steps(config, batch, problems, notes),
        updates_per_batch=updates,
        rollouts_per_update=train,
        staleness=(age or 1) if config.flag("asynchronous") else 0,
        **_optimizer(config),
        entropy_coef=0.0,
        loss="cispo" if cispo else "gspo" if gspo else "reinforce" if reinforce else "clip",
        advantage=_advantage(config),
        aggregation="token" if by_token else "sequence",
        **reading.clip_fields(cispo, low, high),
        ratio_reference="trainer",
        tis_cap=_tis(config, notes),
        zero_variance_filter=reading.group_filter(refills, notes),
        max_prompt_length=prompt if prompt != total else None,
        max_response_length=response or total,
        gpus=config.gpus(gpus),
    )
    return setup, notes


def _optimizer(config: ConfigReader) -> dict[str, Any]:
    """The schedule, and the fields for which the Megatron backend has its own keys."""
    if not config.flag("megatron"):
        warmup, constant = _warmup(config.get("scheduler", "warmup_steps", "schedule"))
        schedule = "constant" if constant else "custom" if warmup is not None else None
        return {"schedule": schedule, "warmup_steps": warmup}
    fields = ("learning_rate", "weight_decay", "beta1", "beta2", "epsilon")
    return {
        **{field: config.number(f"megatron_{field}", field) for field in fields},
        "schedule": config.text("megatron_schedule", "schedule"),
        "warmup_steps": config.integer("megatron_warmup", "warmup_steps"),
    }


def _warmup(schedule: object) -> tuple[int | None, bool]:
    """Warm-up steps, and whether the rate stays constant after them."""
    if not isinstance(schedule, list):
        return None, False
    warmup, constant = 0, True
    for entry in schedule:
        name = str(entry.get("name", "")) if isinstance(entry, dict) else ""
        kwargs = entry.get("kwargs") if isinstance(entry, dict) else None
        if name.endswith("LinearLR") and isinstance(kwargs, dict):
            warmup = int(reading.as_number(kwargs.get("total_iters")) or 0)
        elif name and not name.endswith("ConstantLR"):
            constant = False
    return warmup, constant


def _steps(config: ConfigReader, batch: int | None, problems: int | None, notes: list[Note]) -> int | None:
    """The smaller of a step count and the passes over the data."""
    steps, epochs = config.integer("max_steps"), config.integer("epochs")
    if not config.has("max_steps") or (steps or 0) >= _ENDLESS:
        return reading.steps_from_epochs(epochs, problems, batch, notes, KEYS["epochs"])
    if problems and batch and epochs and steps:
        return min(steps, epochs * (problems // batch))
    if steps and epochs and epochs < steps:
        message = f"M holds if {epochs} epoch(s) over the data give {steps} steps; --problems tells."
        notes.append(Note("data_size", message))
    return steps


def _advantage(config: ConfigReader) -> str | None:
    # Before 0.5 there was no choice of estimators, only whether rewards are normalised.
    older = config.has("normalize_rewards")
    name = config.text("estimator", *(() if older else ("advantage",)))
    if name == "reinforce_plus_plus":
        return "batch_std" if config.flag("minus_baseline") else "none"
    if name == "grpo":
        return "group_std" if config.flag("normalize_rewards") else "group_mean"
    return name


def _tis(config: ConfigReader, notes: list[Note]) -> float | None:
    if not config.flag("correction"):
        return None
    kind = config.text("correction_type")
    if kind != "tis":
        how = "without a cap" if kind is None else f"by {kind}, not truncated importance sampling"
        notes.append(Note("tis", f"the correction for the sampler is {how}."))
    return config.number("tis_cap")
