"""NeMo-RL's YAML or overrides as a Setup; defaults are those of `grpo_math_1B.yaml`, on which most configs build."""

from __future__ import annotations

from typing import Any

from isocompute.trainers import nemo_rl as writer
from isocompute.trainers.reading.setup import Config, Odd, Settings, Setup, as_number
from isocompute.trainers.reading.shared import gradient_norm, group_filter, steps_from_epochs

__all__ = ["DEFAULTS", "NAME", "READ", "VERSION", "matches", "read"]

NAME, VERSION = "nemo-rl", writer.VERSION
_ROOT = "grpo_math_1B.yaml"
"""The config that the others build on, whose values are the defaults here."""
_WARMUP = [{"name": "torch.optim.lr_scheduler.LinearLR", "kwargs": {"start_factor": 0.1, "total_iters": 50}}]
DEFAULTS: dict[str, Any] = {
    "grpo.num_prompts_per_step": 32,
    "grpo.num_generations_per_prompt": 16,
    "grpo.max_num_steps": 1000000,
    "grpo.max_num_epochs": 1,
    "grpo.normalize_rewards": True,
    "grpo.use_leave_one_out_baseline": True,
    "grpo.adv_estimator.name": "grpo",
    "grpo.adv_estimator.minus_baseline": True,
    "grpo.use_dynamic_sampling": False,
    "grpo.val_num_generations_per_prompt": 1,
    "grpo.seed": 42,
    "grpo.async_grpo.enabled": False,
    "grpo.async_grpo.max_trajectory_age_steps": 1,
    "loss_fn.reference_policy_kl_penalty": 0.01,
    "loss_fn.ratio_clip_min": 0.2,
    "loss_fn.ratio_clip_max": 0.2,
    "loss_fn.use_cispo": False,
    "loss_fn.disable_ppo_ratio": False,
    "loss_fn.sequence_level_importance_ratios": False,
    "loss_fn.token_level_loss": True,
    "loss_fn.use_importance_sampling_correction": False,
    "policy.train_global_batch_size": 512,
    "policy.train_micro_batch_size": 4,
    "policy.max_total_sequence_length": 512,
    "policy.max_grad_norm": 1.0,
    "policy.optimizer.kwargs.lr": 5e-6,
    "policy.optimizer.kwargs.weight_decay": 0.01,
    "policy.optimizer.kwargs.betas": [0.9, 0.999],
    "policy.optimizer.kwargs.eps": 1e-8,
    "policy.scheduler": _WARMUP,
    "policy.generation.temperature": 1.0,
    "policy.generation.top_p": 1.0,
    "policy.megatron_cfg.enabled": False,
    "policy.megatron_cfg.optimizer.lr": 5e-6,
    "policy.megatron_cfg.optimizer.weight_decay": 0.01,
    "policy.megatron_cfg.optimizer.adam_beta1": 0.9,
    "policy.megatron_cfg.optimizer.adam_beta2": 0.999,
    "policy.megatron_cfg.optimizer.adam_eps": 1e-8,
    "policy.megatron_cfg.scheduler.lr_decay_style": "constant",
    "policy.megatron_cfg.scheduler.lr_warmup_iters": 13,
    "cluster.gpus_per_node": 1,
    "cluster.num_nodes": 1,
}
_LOSS_FLAGS = ("loss_fn.use_cispo", "loss_fn.sequence_level_importance_ratios", "loss_fn.disable_ppo_ratio")
_LEAVES = {
    "num_prompts_per_step": "grpo.num_prompts_per_step",
    "num_generations_per_prompt": "grpo.num_generations_per_prompt",
}
"""Keys that mean the same in no table."""
READ = frozenset(DEFAULTS)
"""Keys that a setup depends on."""


def matches(config: Config) -> int:
    """How many settings only NeMo-RL has."""
    return sum(key.startswith(("grpo.", "loss_fn.", "policy.generation.")) or key in _LEAVES for key in config.keys)


def read(config: Config, gpus: int | None, problems: int | None) -> tuple[Setup, list[Odd]]:
    """What the settings amount to, and what is odd about them in NeMo-RL."""
    odd: list[Odd] = []
    unseen = [name for name in config.parents if not name.endswith(_ROOT)]
    given = Settings(config, {} if unseen else DEFAULTS, _LEAVES)
    batch = given.integer("grpo.num_prompts_per_step", "problems_per_batch")
    n = given.integer("grpo.num_generations_per_prompt", "rollouts_per_problem")
    train = given.integer("policy.train_global_batch_size", "updates_per_batch")
    if {"problems_per_batch", "rollouts_per_problem"} & set(given.assumed):
        given.assume("updates_per_batch")
    updates = None if not batch or not n or not train else batch * n / train
    if updates is not None and updates < 1:
        odd.append(
            Odd("mini_batch", f"train_global_batch_size = {train} is above the {batch} × {n} rollouts of a step.")
        )
        updates = None
    cispo, gspo = given.flag("loss_fn.use_cispo"), given.flag("loss_fn.sequence_level_importance_ratios")
    if not any(given.has(key) for key in _LOSS_FLAGS):
        given.assume("loss")
    low, high = given.number("loss_fn.ratio_clip_min", "clip_low"), given.number("loss_fn.ratio_clip_max", "clip_high")
    if "clip_high" in given.assumed:
        given.assume("ratio_cap")
    if cispo and low is not None and low < 1:
        odd.append(
            Odd("cispo_cap", f"ratio_clip_min = {low:g} floors CISPO's ratio at {1 - low:g}; 1 takes the floor away.")
        )
    asynchronous = given.flag("grpo.async_grpo.enabled")
    total = given.integer("policy.max_total_sequence_length")
    response = given.integer("policy.generation.max_new_tokens", "max_response_length") or total
    given.assume("entropy_coef", "ratio_anchor")  # no option for either
    prompt = given.integer("data.max_input_seq_length")
    setup = Setup(
        trainer=NAME,
        version=VERSION,
        problems_per_batch=batch,
        rollouts_per_problem=n,
        update_steps=_steps(given, batch, problems, odd),
        updates_per_batch=updates,
        rollouts_per_update=train,
        staleness=(given.integer("grpo.async_grpo.max_trajectory_age_steps", "staleness") or 1) if asynchronous else 0,
        **_optimizer(given),
        kl_coef=given.number("loss_fn.reference_policy_kl_penalty", "kl_coef"),
        entropy_coef=0.0,
        loss="cispo"
        if cispo
        else "gspo"
        if gspo
        else "reinforce"
        if given.flag("loss_fn.disable_ppo_ratio")
        else "clip",
        advantage=_advantage(given),
        aggregation="token" if given.flag("loss_fn.token_level_loss", "aggregation") else "sequence",
        clip_low=None if cispo else low,
        clip_high=None if cispo else high,
        ratio_cap=None if not cispo or high is None else 1 + high,
        ratio_anchor="trainer",
        tis_cap=_tis(given, odd),
        zero_variance_filter=group_filter(given.flag("grpo.use_dynamic_sampling", "zero_variance_filter"), odd),
        temperature=given.number("policy.generation.temperature", "temperature"),
        top_p=given.number("policy.generation.top_p", "top_p"),
        grad_clip=gradient_norm(given.number("policy.max_grad_norm", "grad_clip")),
        max_prompt_length=prompt if prompt is not None and prompt != total else None,
        max_response_length=response,
        validation_samples=given.integer("grpo.val_num_generations_per_prompt", "validation_samples"),
        seed=given.integer("grpo.seed", "seed"),
        gpus=gpus or (given.integer("cluster.num_nodes") or 1) * (given.integer("cluster.gpus_per_node", "gpus") or 1),
        micro_batch=given.integer("policy.train_micro_batch_size"),
        model=given.text("policy.model_name"),
        train_file=given.text("data.train.data_path") or given.text("data.train.dataset_name"),
        val_file=given.text("data.validation.data_path"),
        assumed=tuple(given.assumed),
    )
    return setup, odd


def _optimizer(given: Settings) -> dict[str, Any]:
    """Learning rate, schedule and AdamW: the Megatron backend has keys of its own for them."""
    if given.flag("policy.megatron_cfg.enabled"):
        megatron, schedule = "policy.megatron_cfg.optimizer", "policy.megatron_cfg.scheduler"
        return {
            "learning_rate": given.number(f"{megatron}.lr", "learning_rate"),
            "schedule": given.text(f"{schedule}.lr_decay_style"),
            "warmup_steps": given.integer(f"{schedule}.lr_warmup_iters", "warmup_steps"),
            "beta1": given.number(f"{megatron}.adam_beta1", "beta1"),
            "beta2": given.number(f"{megatron}.adam_beta2", "beta2"),
            "epsilon": given.number(f"{megatron}.adam_eps", "epsilon"),
            "weight_decay": given.number(f"{megatron}.weight_decay", "weight_decay"),
        }
    beta1, beta2 = given.pair("policy.optimizer.kwargs.betas", "beta1", "beta2")
    warmup, constant = _schedule(given.get("policy.scheduler", "warmup_steps"))
    return {
        "learning_rate": given.number("policy.optimizer.kwargs.lr", "learning_rate"),
        "schedule": "constant" if constant else "custom" if warmup is not None else None,
        "warmup_steps": warmup,
        "beta1": beta1,
        "beta2": beta2,
        "epsilon": given.number("policy.optimizer.kwargs.eps", "epsilon"),
        "weight_decay": given.number("policy.optimizer.kwargs.weight_decay", "weight_decay"),
    }


def _steps(given: Settings, batch: int | None, problems: int | None, odd: list[Odd]) -> int | None:
    """The smaller of a step count and the passes over the data."""
    steps, epochs = given.integer("grpo.max_num_steps"), given.integer("grpo.max_num_epochs")
    if not given.has("grpo.max_num_steps") or (steps or 0) >= 1_000_000:
        return steps_from_epochs(epochs, problems, batch, odd, "grpo.max_num_epochs")
    if problems and batch and epochs and steps:
        return min(steps, epochs * (problems // batch))
    if steps and epochs and epochs < steps:
        odd.append(
            Odd("data_size", f"M holds if {epochs} epoch(s) over the data give {steps} steps; --problems tells.")
        )
    return steps


def _advantage(given: Settings) -> str | None:
    # Before 0.5 there was no choice of estimators: whether rewards are normalised says it all.
    older = given.has("grpo.normalize_rewards")
    name = given.text("grpo.adv_estimator.name", None if older else "advantage")
    if name == "reinforce_plus_plus":
        return "batch_std" if given.flag("grpo.adv_estimator.minus_baseline") else "none"
    if name == "grpo":
        return "group_std" if given.flag("grpo.normalize_rewards") else "group_mean"
    return name


def _tis(given: Settings, odd: list[Odd]) -> float | None:
    if not given.flag("loss_fn.use_importance_sampling_correction"):
        return None
    kind = given.text("loss_fn.truncated_importance_sampling_type")
    if kind != "tis":
        says = "without a cap" if kind is None else f"by {kind}, not truncated importance sampling"
        odd.append(Odd("tis", f"the correction for the sampler is {says}."))
    return given.number("loss_fn.truncated_importance_sampling_ratio")


def _schedule(schedule: object) -> tuple[int | None, bool]:
    """Warm-up steps, and whether the rate stays constant after them."""
    if not isinstance(schedule, list):
        return None, False
    warmup, constant = 0, True
    for entry in schedule:
        name = str(entry.get("name", "")) if isinstance(entry, dict) else ""
        kwargs = entry.get("kwargs") if isinstance(entry, dict) else None
        if name.endswith("LinearLR") and isinstance(kwargs, dict):
            warmup = int(as_number(kwargs.get("total_iters")) or 0)
        elif name and not name.endswith("ConstantLR"):
            constant = False
    return warmup, constant
